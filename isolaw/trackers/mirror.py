"""Copy the checkpoints of a sweep's runs from the store to trackers: TensorBoard and W&B.

The x axis is the compute in rollouts. The tags are ``<eval_set>/<metric>``, `STEP`, `SECONDS` and `TOKENS`.
Trackers drop or duplicate steps that are not in ascending order.

isolaw copies only checkpoints that resuming a run does not remove. It copies each checkpoint once and in
order, after the last checkpoint that the tracker already has. Steps therefore never go backwards or repeat,
even if a run is killed, resumed or extended. If a tracker fails, isolaw prints one warning and ignores the
tracker for the rest of the sweep. The next ``isolaw sweep`` copies the missing checkpoints.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from isolaw import commands
from isolaw.config import RunSpec, TrackingSection
from isolaw.errors import DataError, Issue
from isolaw.executors.waiting import Event
from isolaw.readers.containers import tensorboard, wandb_offline
from isolaw.store import SweepStore
from isolaw.store.tables import attributes_of, columns_of

STEP, SECONDS, TOKENS = "isolaw/step", "isolaw/wall_s", "isolaw/tokens"
EVERY_S = 10.0  # minimum seconds between updates of an active run


def check(section: TrackingSection) -> list[Issue]:
    """Return the issues of a ``[tracking]`` section; isolaw calls this before any run starts."""
    issues = [
        Issue("tracking.to", f"{name} is not installed: {commands.install(f'isolaw[{name}]')}")
        for name in section.to
        if not _installed(name)
    ]
    if section.directory is not None and Path(section.directory).is_file():
        issues.append(Issue("tracking.directory", found=section.directory, accepted="a directory"))
    return issues


def _installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None  # a folder wandb/ is no library


class Mirror:
    """The trackers of one sweep; the sweep's engine calls `after` for each event."""

    def __init__(self, section: TrackingSection, store: SweepStore) -> None:
        self._section = section
        self._store = store
        self._trackers = [TRACKERS[name] for name in section.to]
        self._writers: dict[tuple[str, str], _Tracker] = {}
        self._mirrored_compute: dict[tuple[str, str], int] = {}
        self._updated_at: dict[str, float] = {}

    def after(self, event: Event) -> Iterator[Event]:
        """Copy a run's new checkpoints to the trackers after an event; yield a warning if a tracker fails."""
        now = time.monotonic()
        ended = event.kind != "checkpoint"
        if ended or now - self._updated_at.setdefault(event.run_id, now) >= EVERY_S:
            self._updated_at[event.run_id] = now
            yield from self.update(event.run_id, ended=ended)

    def update(self, run_id: str, *, ended: bool = True) -> Iterator[Event]:
        """Copy a run's new checkpoints to all trackers, and close the copies if the run ``ended``."""
        for tracker in list(self._trackers):
            try:
                self._write(tracker, run_id)
                if ended and (writer := self._writers.pop((tracker.name, run_id), None)):
                    writer.close(finished=self._store.run(run_id).recorded().done_compute > 0)
            except Exception as error:  # a tracker's library must never stop a run
                self._trackers.remove(tracker)
                reason = str(error) or type(error).__name__
                yield Event(run_id, "warning", cause=f"{tracker.name}: isolaw stops mirroring: {reason}")

    def _write(self, tracker: type[_Tracker], run_id: str) -> None:
        run, key = self._store.run(run_id), (tracker.name, run_id)
        lines = run.settled()
        if not lines:
            return
        description = self._described(run.read_spec(), lines)
        if key not in self._mirrored_compute:
            self._mirrored_compute[key] = tracker.reached(description)
        started_at = run.recorded_at - lines[-1]["wall_s"]
        for line in lines:
            if line["compute"] <= self._mirrored_compute[key]:
                continue
            if key not in self._writers:
                self._writers[key] = tracker(description)
            self._writers[key].log(line["compute"], _tagged_values(line), started_at + line["wall_s"])
            self._mirrored_compute[key] = line["compute"]

    def _described(self, spec: RunSpec, lines: list[dict[str, Any]]) -> _TrackedRun:
        config = {**columns_of(spec), **attributes_of(spec)}
        for name in ("n_problems", "n_samples"):
            # Trackers store one number for the whole run. Some metrics (drift) have no number of problems.
            counts = {row.get(name) for line in lines for row in line["rows"]} - {None}
            if len(counts) == 1:
                config[name] = counts.pop()
        return _TrackedRun(
            run_id=spec.run_id,
            name=f"Bp{spec.problems_per_batch}-n{spec.rollouts_per_problem}-seed{spec.seed}-{spec.run_id[:8]}",
            directory=Path(self._section.directory or self._store.directory),
            project=self._section.project,
            config={"isolaw": config},
        )

    def close(self) -> None:
        """Close the runs that are still open after an interrupted sweep."""
        for writer in self._writers.values():
            with contextlib.suppress(Exception):
                writer.close(finished=False)
        self._writers.clear()


def _tagged_values(line: dict[str, Any]) -> dict[str, float]:
    values = {f"{row['eval_set']}/{row['metric']}": row["value"] for row in line["rows"]}
    values |= {STEP: line["step"], SECONDS: line["wall_s"]}
    return values | ({} if line["tokens"] is None else {TOKENS: line["tokens"]})


@dataclass(frozen=True)
class _TrackedRun:
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


class _Tracker(ABC):
    """A run in a tracker, new or existing, that is open for writing.

    ``name`` is the name of the tracker in ``tracking.to``, of its library, and of the extra that installs
    this library.
    """

    name: ClassVar[str]

    @staticmethod
    @abstractmethod
    def reached(run: _TrackedRun) -> int:
        """Return the compute of a run's last checkpoint in the tracker, or -1 if there is none."""

    @abstractmethod
    def __init__(self, run: _TrackedRun) -> None: ...

    @abstractmethod
    def log(self, compute: int, values: Mapping[str, float], unix_time: float) -> None:
        """Write a checkpoint: its compute (the x axis), its values by tag, and its Unix time."""

    @abstractmethod
    def close(self, finished: bool) -> None:
        """Write pending values and close the run; ``finished`` tells whether it has reached its horizon."""


class _TensorBoard(_Tracker):
    """Files ``<directory>/tensorboard/<name>/events.out.tfevents.*``.

    Values are written as 32-bit ``simple_value``, because TensorBoard's data server does not show 64-bit
    values. Each checkpoint is one event, so that none is written partially.
    """

    name = "tensorboard"

    @staticmethod
    def _folder(run: _TrackedRun) -> Path:
        return run.directory / "tensorboard" / run.name

    @staticmethod
    def reached(run: _TrackedRun) -> int:
        files = _TensorBoard._folder(run).glob("events.out.tfevents.*")
        logs = (log for file in files for log in tensorboard.CONTAINER.read(file))
        return max((int(step) for log in logs for step in log.step), default=-1)

    def __init__(self, run: _TrackedRun) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._file = EventFileWriter(str(self._folder(run)))
        self._config = json.dumps(dict(run.config), indent=1)

    def log(self, compute: int, values: Mapping[str, float], unix_time: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary import text_pb

        if self._config:  # not in __init__, because TensorBoard's relative time starts at the first event
            text = text_pb("config/text_summary", self._config)
            self._file.add_event(Event(step=compute, wall_time=unix_time, summary=text))
            self._config = ""
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._file.add_event(Event(step=compute, wall_time=unix_time, summary=Summary(value=scalars)))
        self._file.flush()

    def close(self, finished: bool) -> None:
        self._file.close()


class _WandB(_Tracker):
    """Folders ``<directory>/wandb/offline-run-*``, or directly the server.

    The offline folder is the default, because a run must not wait for the network. The user uploads it with
    ``wandb sync``. With ``WANDB_MODE=online``, W&B uploads values immediately. A resumed run has an
    additional folder with the same id, and ``wandb sync`` uploads both in order.
    """

    name = "wandb"

    @staticmethod
    def _id(run: _TrackedRun) -> str:
        return run.run_id[:16]

    @staticmethod
    def reached(run: _TrackedRun) -> int:
        steps = [-1.0]
        # If two folders are created within one second, the name of the second ends in -1.
        for file in run.directory.glob(f"wandb/*run-*-{_WandB._id(run)}*/run-*.wandb"):
            with contextlib.suppress(DataError):  # the file exists but has no content yet
                steps += [step for log in wandb_offline.CONTAINER.read(file) for step in log.step]
        return int(max(steps))

    def __init__(self, run: _TrackedRun) -> None:
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

    def log(self, compute: int, values: Mapping[str, float], unix_time: float) -> None:
        self._run.log(dict(values), step=compute, commit=True)

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, type[_Tracker]] = {tracker.name: tracker for tracker in (_TensorBoard, _WandB)}
