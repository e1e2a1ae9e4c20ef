"""Write runs to trackers: TensorBoard and W&B.

The x axis is the compute in rollouts. The tags are ``<eval_set>/<metric>``, `STEP`, `SECONDS` and `TOKENS`.
Trackers drop or duplicate steps that are not in ascending order. isolaw therefore writes each checkpoint once
and in order, after the last checkpoint that the tracker already has (`isolaw.trackers.mirror`).
"""

from __future__ import annotations

import contextlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from isolaw.errors import DataError
from isolaw.readers.containers import tensorboard, wandb_offline

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


class Tracker(ABC):
    """A run in a tracker, new or existing, that is open for writing.

    ``name`` is the name of the tracker in ``tracking.to``, of its library, and of the extra that installs
    this library.
    """

    name: ClassVar[str]

    @staticmethod
    @abstractmethod
    def reached(run: TrackedRun) -> int:
        """Return the compute of a run's last checkpoint in the tracker, or -1 if there is none."""

    @abstractmethod
    def __init__(self, run: TrackedRun) -> None: ...

    @abstractmethod
    def log(self, compute: int, values: Mapping[str, float], at: float) -> None:
        """Write a checkpoint: its compute (the x axis), its values by tag, and its Unix time."""

    @abstractmethod
    def close(self, finished: bool) -> None:
        """Write pending values and close the run; ``finished`` tells whether it has reached its horizon."""


class _TensorBoard(Tracker):
    """Files ``<directory>/tensorboard/<name>/events.out.tfevents.*``.

    Values are written as 32-bit ``simple_value``, because TensorBoard's data server does not show 64-bit
    values. Each checkpoint is one event, so that none is written partially.
    """

    name = "tensorboard"

    @staticmethod
    def _folder(run: TrackedRun) -> Path:
        return run.directory / "tensorboard" / run.name

    @staticmethod
    def reached(run: TrackedRun) -> int:
        files = _TensorBoard._folder(run).glob("events.out.tfevents.*")
        logs = (log for file in files for log in tensorboard.CONTAINER.read(file))
        return max((int(step) for log in logs for step in log.step), default=-1)

    def __init__(self, run: TrackedRun) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._file = EventFileWriter(str(self._folder(run)))
        self._config = json.dumps(dict(run.config), indent=1)

    def log(self, compute: int, values: Mapping[str, float], at: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary import text_pb

        if self._config:  # not in __init__, because TensorBoard's relative time starts at the first event
            text = text_pb("config/text_summary", self._config)
            self._file.add_event(Event(step=compute, wall_time=at, summary=text))
            self._config = ""
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._file.add_event(Event(step=compute, wall_time=at, summary=Summary(value=scalars)))
        self._file.flush()

    def close(self, finished: bool) -> None:
        self._file.close()


class _WandB(Tracker):
    """Folders ``<directory>/wandb/offline-run-*``, or directly the server.

    The offline folder is the default, because a run must not wait for the network. The user uploads it with
    ``wandb sync``. With ``WANDB_MODE=online``, W&B uploads values immediately. A resumed run has an
    additional folder with the same id, and ``wandb sync`` uploads both in order.
    """

    name = "wandb"

    @staticmethod
    def _id(run: TrackedRun) -> str:
        return run.run_id[:16]

    @staticmethod
    def reached(run: TrackedRun) -> int:
        steps = [-1.0]
        # If two folders are created within one second, the name of the second ends in -1.
        for file in run.directory.glob(f"wandb/*run-*-{_WandB._id(run)}*/run-*.wandb"):
            with contextlib.suppress(DataError):  # the file exists but has no content yet
                steps += [step for log in wandb_offline.CONTAINER.read(file) for step in log.step]
        return int(max(steps))

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")
        (run.directory / "wandb").mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=run.project,
            name=run.name,
            id=self._id(run),
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


TRACKERS: dict[str, type[Tracker]] = {tracker.name: tracker for tracker in (_TensorBoard, _WandB)}
