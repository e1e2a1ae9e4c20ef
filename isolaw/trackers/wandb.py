"""Write to W&B: to ``<directory>/wandb/offline-run-*``, or directly to the server.

The offline folder is the default, because a run must not wait for the network. The user uploads it with
``wandb sync``. With ``WANDB_MODE=online``, W&B uploads values immediately. A resumed run has an additional
folder with the same id, and ``wandb sync`` uploads both in order.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from isolaw.errors import DataError
from isolaw.readers.containers.wandb_offline import CONTAINER
from isolaw.trackers.base import TrackedRun, Tracker


class _Writer:
    def __init__(self, run: TrackedRun) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        (run.directory / "wandb").mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=_id(run),
            dir=str(run.directory),
            config=dict(run.config),
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",
            # These settings prevent W&B from printing, capturing output and measuring this process.
            settings=wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True),
        )

    def log(self, compute: int, values: Mapping[str, float], at: float) -> None:
        self._run.log(dict(values), step=compute, commit=True)

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


def _id(run: TrackedRun) -> str:
    return run.run_id[:16]


def _reached(run: TrackedRun) -> int:
    steps = [-1.0]
    # If two folders are created within one second, the name of the second ends in -1.
    for file in run.directory.glob(f"wandb/*run-*-{_id(run)}*/run-*.wandb"):
        with contextlib.suppress(DataError):  # the file exists but has no content yet
            steps += [step for log in CONTAINER.read(file) for step in log.step]
    return int(max(steps))


TRACKER = Tracker("wandb", reached=_reached, open=_Writer)
