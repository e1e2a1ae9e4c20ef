"""Define `Tracker`, the interface of a tracker's module.

Each module has one `Tracker` with the name ``TRACKER``. The x axis is the compute in rollouts. The tags are
``<eval_set>/<metric>``, `STEP`, `SECONDS` and `TOKENS`. Trackers drop or duplicate steps that are not in
ascending order. isolaw therefore writes each checkpoint once and in order, after the last checkpoint that the
tracker already has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

STEP, SECONDS, TOKENS = "isolaw/step", "isolaw/wall_s", "isolaw/tokens"


@dataclass(frozen=True)
class TrackedRun:
    """The description of a run for trackers; a tracker has one run for each ``run_id``.

    ``name`` is a readable name such as ``Bp32-n8-seed0-1a2b3c4d``. ``directory`` is the folder in which the
    tracker writes its files, and ``project`` is the project in the tracker. ``config`` has one entry,
    ``{"isolaw": {…}}``, with B_p, n, the seed and other settings.
    """

    run_id: str
    name: str
    directory: Path
    project: str
    config: Mapping[str, Any]


class Writer(Protocol):
    """Protocol of a run in a tracker that is open for writing."""

    def log(self, compute: int, values: Mapping[str, float], at: float) -> None:
        """Write a checkpoint: its compute (the x axis), its values by tag, and its Unix time."""
        ...

    def close(self, finished: bool) -> None:
        """Write pending values and close the run; ``finished`` tells whether it has reached its horizon."""
        ...


@dataclass(frozen=True)
class Tracker:
    """The functions that write to one tracker.

    ``name`` is the name of the tracker in ``tracking.to``, of its library, and of the extra that installs
    this library. ``reached`` returns the compute of a run's last checkpoint in the tracker, or -1 if there is
    none. ``open`` opens a new or an existing run.
    """

    name: str
    reached: Callable[[TrackedRun], int]
    open: Callable[[TrackedRun], Writer]
