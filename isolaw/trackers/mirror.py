"""Copy the checkpoints of a sweep's runs from the store to trackers.

isolaw copies only checkpoints that resuming a run does not remove. It copies each checkpoint once and in
order, after the last checkpoint that the tracker already has. Steps therefore never go backwards or repeat,
even if a run is killed, resumed or extended. If a tracker fails, isolaw prints one warning and ignores the
tracker for the rest of the sweep. The next ``isolaw sweep`` copies the missing checkpoints.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isolaw import commands
from isolaw.config import RunSpec, TrackingSection
from isolaw.errors import Issue
from isolaw.executors.waiting import Event
from isolaw.store import SweepStore
from isolaw.store.tables import attributes_of, columns_of
from isolaw.trackers.trackers import SECONDS, STEP, TOKENS, TRACKERS, TrackedRun, Tracker

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
        self._writers: dict[tuple[str, str], Tracker] = {}
        self._reached: dict[tuple[str, str], int] = {}
        self._updated: dict[str, float] = {}

    def after(self, event: Event) -> Iterator[Event]:
        """Copy a run's new checkpoints to the trackers after an event; yield a warning if a tracker fails."""
        now = time.monotonic()
        ended = event.kind != "checkpoint"
        if ended or now - self._updated.setdefault(event.run_id, now) >= EVERY_S:
            self._updated[event.run_id] = now
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

    def _write(self, tracker: type[Tracker], run_id: str) -> None:
        run, key = self._store.run(run_id), (tracker.name, run_id)
        lines = run.settled()
        if not lines:
            return
        tracked = self._tracked(run.read_spec(), lines)
        if key not in self._reached:
            self._reached[key] = tracker.reached(tracked)
        began = run.recorded_at - lines[-1]["wall_s"]
        for line in lines:
            if line["compute"] <= self._reached[key]:
                continue
            if key not in self._writers:
                self._writers[key] = tracker(tracked)
            self._writers[key].log(line["compute"], _values(line), began + line["wall_s"])
            self._reached[key] = line["compute"]

    def _tracked(self, spec: RunSpec, lines: list[dict[str, Any]]) -> TrackedRun:
        config = {**columns_of(spec), **attributes_of(spec)}
        for name in ("n_problems", "n_samples"):
            # Trackers store one number for the whole run. Some metrics (drift) have no number of problems.
            counts = {row.get(name) for line in lines for row in line["rows"]} - {None}
            if len(counts) == 1:
                config[name] = counts.pop()
        return TrackedRun(
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


def _values(line: dict[str, Any]) -> dict[str, float]:
    values = {f"{row['eval_set']}/{row['metric']}": row["value"] for row in line["rows"]}
    values |= {STEP: line["step"], SECONDS: line["wall_s"]}
    return values | ({} if line["tokens"] is None else {TOKENS: line["tokens"]})
