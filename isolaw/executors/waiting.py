"""Runs that wait for a place: which run is next, and what follows when a run ends.

The longest run begins first, so that none is left alone at the end; runs that failed before come last, so
that no other run waits for them. A run whose process or machine is gone is repeated from its state, for as
long as it makes progress. When several consecutive runs fail with the same cause, the sweep aborts.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from isolaw.config import ExecutorSection
from isolaw.executors.base import Event
from isolaw.store import SweepStore

# How long to wait before trying a run again that is in use elsewhere.
_ASK_AGAIN_S = 5.0


@dataclass(frozen=True)
class Waiter:
    """A run that waits, and what it takes of the limits while it is at work."""

    run_id: str
    rollouts: int = 0
    gpus: int = 0


class Waiting:
    """The queue of the sweep in ``directory``: its runs in order; once ``stop`` is set, none begins.

    Of ``limits``, None is no limit. After ``same_failures`` consecutive failures with the same cause no run
    begins. A lost run is repeated ``retries`` times without progress.
    """

    def __init__(
        self,
        directory: Path,
        runs: Sequence[Waiter],
        limits: ExecutorSection,
        stop: threading.Event | None = None,
    ) -> None:
        self.limits = limits
        self._store = SweepStore(directory)
        self._queue = list(runs)
        self._working: dict[str, Waiter] = {}
        self._not_before: dict[str, float] = {}
        self._stop = stop or threading.Event()
        self._cause, self._same = "", 0
        self._reached: dict[str, tuple[int | None, int]] = {}
        self._reported_busy: set[str] = set()

    @property
    def at_work(self) -> set[str]:
        """The runs that have begun and not ended."""
        return set(self._working)

    @property
    def halted(self) -> bool:
        """Whether no more runs begin."""
        return self._stop.is_set() or self._same >= self.limits.same_failures

    @property
    def open(self) -> bool:
        """Whether there is something left to wait for."""
        return bool(self._working) or (bool(self._queue) and not self.halted)

    def next(self) -> str | None:
        """Take the next run that may begin now from the queue; None where no run may."""
        working = self._working.values()
        if self.limits.jobs is not None and len(working) >= self.limits.jobs:
            return None
        rollouts = (self.limits.max_rollouts or math.inf) - sum(run.rollouts for run in working)
        gpus = (self.limits.max_gpus or math.inf) - sum(run.gpus for run in working)
        now = time.monotonic()
        for place, run in enumerate(self._queue):
            due = now >= self._not_before.get(run.run_id, 0.0)
            if due and run.rollouts <= rollouts and run.gpus <= gpus:
                self._working[run.run_id] = self._queue.pop(place)
                return run.run_id
        return None

    def settle(self, event: Event) -> Iterator[Event]:
        """Take note of an event, and yield the events for the engine's user."""
        if event.kind in ("checkpoint", "warning"):
            yield event
            return
        run = self._working.pop(event.run_id)
        if event.kind == "lost":
            yield from self._lost(run, event.cause)
        elif event.kind == "busy" and self.limits.retries:
            self._not_before[run.run_id] = time.monotonic() + _ASK_AGAIN_S
            self._queue.append(run)
            if run.run_id not in self._reported_busy:
                self._reported_busy.add(run.run_id)
                yield Event(run.run_id, "warning", cause=f"{event.cause}; waiting for its end")
        elif event.kind == "stopped" and not self.halted:  # asked to make room, not to end
            self._queue.insert(0, run)
        elif event.kind in ("busy", "failed"):
            yield from self._failed(event.run_id, event.cause)
        else:
            if event.kind == "done":
                self._cause, self._same = "", 0
            yield event

    def _lost(self, run: Waiter, cause: str) -> Iterator[Event]:
        if self.halted:  # it was asked to end
            yield Event(run.run_id, "stopped")
            return
        store = self._store.run(run.run_id)
        reached = store.last_state
        before, times = self._reached.get(run.run_id, (None, 0))
        times = times + 1 if reached == before else 1
        self._reached[run.run_id] = reached, times
        if times <= self.limits.retries:
            self._queue.insert(0, run)
            where = "its start" if reached is None else f"step {reached}"
            yield Event(run.run_id, "warning", cause=f"{cause}; repeated from {where}")
            return
        if self.limits.retries:
            cause = f"{cause}; {times} consecutive times without progress"
        with contextlib.suppress(OSError):  # a full disk must not hide the cause
            store.fail(cause, "")
        yield from self._failed(run.run_id, cause)

    def _failed(self, run_id: str, cause: str) -> Iterator[Event]:
        # Numbers and paths differ between runs that fail for one reason.
        kind = re.sub(r"\d[\d.,]*", "#", re.sub(r"[0-9a-f]{64}", "", cause))
        self._same = self._same + 1 if kind == self._cause else 1
        self._cause = kind
        yield Event(run_id, "failed", cause=cause)
        if self._same == self.limits.same_failures and (self._queue or self._working):
            left = len(self._queue) + len(self._working)
            yield Event(
                run_id,
                "warning",
                cause=f"{self._same} consecutive runs failed with the same cause, and the sweep aborts; "
                f"{left} more runs keep their state (the same command continues with them; "
                "executor.same_failures sets the limit)",
            )
