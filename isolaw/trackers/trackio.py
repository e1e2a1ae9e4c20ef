"""Write to Trackio: to the project's database in ``TRACKIO_DIR``, which ``trackio show`` displays.

isolaw writes directly to Trackio's storage. It does not call ``trackio.init``, which allows only one run at a
time, prints messages, and hides failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from isolaw.trackers.base import TrackedRun, Tracker


class _Writer:
    """Writes one row per checkpoint, so that no checkpoint is written partially."""

    def __init__(self, run: TrackedRun) -> None:
        self._run, self._config = run, dict(run.config)

    def log(self, compute: int, values: Mapping[str, float], at: float) -> None:
        when = datetime.fromtimestamp(at, UTC).isoformat()
        run = self._run
        _storage().bulk_log(
            run.project, run.name, [dict(values)], [compute], [when], self._config, run_id=run.run_id
        )
        self._config = {}  # Trackio has stored it

    def close(self, finished: bool) -> None:
        """Do nothing: Trackio stores no status of a run, and no values are pending."""


def _storage() -> Any:
    from trackio.sqlite_storage import SQLiteStorage

    return SQLiteStorage


def _reached(run: TrackedRun) -> int:
    reached = _storage().get_max_step_for_run(run.project, run_id=run.run_id)
    return -1 if reached is None else int(reached)


TRACKER = Tracker("trackio", reached=_reached, open=_Writer)
