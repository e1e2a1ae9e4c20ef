"""Manage the queue of runs: choose the next run to execute, and decide what happens after each `Event`."""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from isolaw.config import ExecutorSection
from isolaw.store import SweepStore

if TYPE_CHECKING:
    from isolaw.design.decisions import Decision


@dataclass(frozen=True)
class Event:
    """A change in the status of a run, or a warning for the user.

    ``checkpoint`` means that the run has reached ``compute`` rollouts; executors can skip some of these
    events. ``stopped`` means that the run has saved its state and ended on request. ``lost`` means that the
    run's process or machine has died, and ``busy`` that another process has locked the run. ``decision``
    means that a race has chosen its next runs or ended; it belongs to no run. Callers of the engine receive
    neither ``lost`` nor ``busy``, because isolaw repeats such runs or marks them as failed.
    """

    run_id: str
    kind: Literal["checkpoint", "done", "failed", "stopped", "lost", "busy", "warning", "decision"]
    compute: int = 0
    cause: str = ""
    decision: Decision | None = None
    halted: bool = False  # no more runs start after this failure


def kind_of_failure(cause: str) -> str:
    """Return the part of a cause that runs share if they fail for the same reason.

    It is the first line, and of a trainer's last lines only the last one with an error: the others report
    progress. It has no numbers except exit statuses, and no run ids.

    >>> kind_of_failure("ended after 3 of 20 steps (exit status 1)\\n | step 3\\n | ValueError: n is 7")
    'ended after # of # steps (exit status 1) ValueError: n is #'
    """
    first_line, _, output = cause.partition("\n")
    errors = re.findall(r"(?i)\b\w*(?:error|exception)\b.*", output)
    kind = " ".join([first_line, *errors[-1:]])
    return re.sub(r"(?<!status )(?<!\d)\d[\d.,]*", "#", re.sub(r"[0-9a-f]{64}", "", kind))


# isolaw retries to start a run that another process has locked after this many seconds.
_BUSY_RETRY_S = 5.0


class Waiting:
    """The queue of runs in the sweep in ``directory``; no run starts after ``stop`` is set.

    ``runs`` maps the ids of runs, in order of execution, to their rollouts per batch, and ``gpus`` maps them
    to their numbers of GPUs. None in ``limits`` means no limit. If a run does not fit yet, smaller runs start
    before it. After ``same_failures`` consecutive failures with the same cause, no more runs start. If the
    process or machine of a run is lost, the run is repeated up to ``retries`` times without progress.
    """

    def __init__(
        self,
        directory: Path,
        runs: Mapping[str, int],
        gpus: Mapping[str, int],
        limits: ExecutorSection,
        stop: threading.Event,
    ) -> None:
        self.limits, self.stop, self._store = limits, stop, SweepStore(directory)
        self._queue, self._rollouts_by_run, self._gpus_by_run = list(runs), runs, gpus
        self._working: set[str] = set()
        self._not_before: dict[str, float] = {}  # earliest retry of busy runs
        self._last_kind, self._same_failures = "", 0
        self._attempts: dict[str, tuple[int | None, int]] = {}

    @property
    def at_work(self) -> set[str]:
        """Ids of the runs that have started and not ended."""
        return set(self._working)

    @property
    def halted(self) -> bool:
        """True if no more runs will start."""
        return self.stop.is_set() or self._same_failures >= self.limits.same_failures

    @property
    def open(self) -> bool:
        """True if there are active runs, or queued runs that will start."""
        return bool(self._working) or (bool(self._queue) and not self.halted)

    def next(self) -> str | None:
        """Remove and return the next run in the queue that can start now, or None if there is none."""
        if len(self._working) >= (self.limits.jobs or math.inf):
            return None
        rollouts = sum(self._rollouts_by_run[run_id] for run_id in self._working)
        gpus, now = sum(self._gpus_by_run[run_id] for run_id in self._working), time.monotonic()
        for run_id in self._queue:
            is_due = now >= self._not_before.get(run_id, 0.0)
            fits = gpus + self._gpus_by_run[run_id] <= (self.limits.max_gpus or math.inf)
            batch = rollouts + self._rollouts_by_run[run_id]
            if fits and is_due and batch <= (self.limits.max_rollouts or math.inf):
                self._queue.remove(run_id)
                self._working.add(run_id)
                return run_id
        return None

    def settle(self, event: Event) -> Iterator[Event]:
        """Process an event, and yield the events for the engine's caller."""
        if event.kind in ("checkpoint", "warning"):
            yield event
            return
        run_id = event.run_id
        self._working.remove(run_id)
        if event.kind == "lost":
            yield from self._after_loss(run_id, event.cause)
        elif event.kind == "busy" and self.limits.retries:
            reported = run_id in self._not_before
            self._not_before[run_id] = time.monotonic() + _BUSY_RETRY_S
            self._queue.append(run_id)
            if not reported:
                yield Event(run_id, "warning", cause=f"{event.cause}; isolaw waits for it to end")
        elif event.kind == "stopped" and not self.halted:  # interrupted, but the sweep continues
            self._queue.insert(0, run_id)
        elif event.kind in ("busy", "failed"):
            yield from self._after_failure(run_id, event.cause)
        else:
            if event.kind == "done":
                self._last_kind, self._same_failures = "", 0
            yield event

    def _after_loss(self, run_id: str, cause: str) -> Iterator[Event]:
        if self.halted:  # the run was asked to stop
            yield Event(run_id, "stopped")
            return
        run = self._store.run(run_id)
        reached = run.last_state
        last_reached, attempts = self._attempts.get(run_id, (None, 0))
        attempts = attempts + 1 if reached == last_reached else 1
        self._attempts[run_id] = reached, attempts
        if attempts <= self.limits.retries:
            self._queue.insert(0, run_id)
            resume_point = "its start" if reached is None else f"step {reached}"
            yield Event(run_id, "warning", cause=f"{cause}; isolaw repeats the run from {resume_point}")
            return
        if self.limits.retries:
            cause = f"{cause}; {attempts} consecutive attempts without progress"
        with contextlib.suppress(OSError):  # a full disk must not hide the cause
            run.fail(cause, "")
        yield from self._after_failure(run_id, cause)

    def _after_failure(self, run_id: str, cause: str) -> Iterator[Event]:
        kind = kind_of_failure(cause)
        self._same_failures = self._same_failures + 1 if kind == self._last_kind else 1
        self._last_kind = kind
        yield Event(run_id, "failed", cause=cause, halted=self.halted)
        if self._same_failures == self.limits.same_failures and (self._queue or self._working):
            remaining = len(self._queue) + len(self._working)
            cause = (
                f"{self._same_failures} consecutive runs failed with the same cause, so isolaw aborts the "
                f"sweep; {remaining} more runs keep their state (repeat this command to continue them; "
                "executor.same_failures sets the limit)"
            )
            yield Event(run_id, "warning", cause=cause)
