"""Runs that wait for a place: which one is next, and what becomes of one that ended.

The longest run begins first, so that none is left alone at the end; runs that failed before come last, so
that they keep nobody waiting. A run whose process or machine has gone is made again, from its state, for as
long as that gets it further. When several runs in a row fail with one and the same cause, the cause is the
sweep's, and no more is spent.
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

from isolaw.executors.base import Event
from isolaw.store import SweepStore

# A run that is in use elsewhere is asked for again after so many seconds.
_ASK_AGAIN_S = 5.0


@dataclass(frozen=True)
class Limits:
    """What the runs at work may hold together, and when to give up.

    Attributes
    ----------
    runs, rollouts, gpus
        at work at a time; rollouts are the runs' batches, B_p · n. None: no limit.
    same_failures
        runs in a row that fail with the same cause, after which no more is begun.
    retries
        how often a run that was lost is made again without getting further.
    """

    runs: int | None = None
    rollouts: int | None = None
    gpus: int | None = None
    same_failures: int = 5
    retries: int = 0


@dataclass(frozen=True)
class Waiter:
    """A run that waits: what it takes of the limits while it is at work."""

    run_id: str
    rollouts: int = 0
    gpus: int = 0


class Waiting:
    """The queue of a sweep.

    Parameters
    ----------
    directory
        the sweep's.
    runs
        in the order in which they shall begin.
    limits
        what they may hold together.
    stop
        set by whoever wants the sweep to end: nothing more is begun.
    """

    def __init__(
        self,
        directory: Path,
        runs: Sequence[Waiter],
        limits: Limits,
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
        self._told: set[str] = set()

    @property
    def at_work(self) -> set[str]:
        """Runs that have begun and not ended."""
        return set(self._working)

    @property
    def halted(self) -> bool:
        """Whether nothing more shall begin."""
        return self._stop.is_set() or self._same >= self.limits.same_failures

    @property
    def open(self) -> bool:
        """Whether there is something left to wait for."""
        return bool(self._working) or (bool(self._queue) and not self.halted)

    @property
    def left(self) -> int:
        """How many runs have not begun."""
        return len(self._queue)

    def next(self) -> str | None:
        """Return the next run that may begin now, which thereby has begun; None where none may."""
        working = self._working.values()
        if self.limits.runs is not None and len(working) >= self.limits.runs:
            return None
        rollouts = (self.limits.rollouts or math.inf) - sum(run.rollouts for run in working)
        gpus = (self.limits.gpus or math.inf) - sum(run.gpus for run in working)
        now = time.monotonic()
        for place, run in enumerate(self._queue):
            due = now >= self._not_before.get(run.run_id, 0.0)
            if due and run.rollouts <= rollouts and run.gpus <= gpus:
                self._working[run.run_id] = self._queue.pop(place)
                return run.run_id
        return None

    def settle(self, event: Event) -> Iterator[Event]:
        """Take note of an event, and yield what the engine's user is told."""
        if event.kind in ("checkpoint", "warning"):
            yield event
            return
        run = self._working.pop(event.run_id)
        if event.kind == "lost":
            yield from self._lost(run, event.cause)
        elif event.kind == "busy" and self.limits.retries:
            self._not_before[run.run_id] = time.monotonic() + _ASK_AGAIN_S
            self._queue.append(run)
            yield from self._tell_once(run, f"{event.cause}; waiting for its end")
        elif event.kind == "stopped" and not self.halted:  # it was told to make room, not to end
            self._queue.insert(0, run)
        elif event.kind in ("busy", "failed"):
            yield from self._failed(event.run_id, event.cause)
        else:
            if event.kind == "done":
                self._cause, self._same = "", 0
            yield event

    def _lost(self, run: Waiter, cause: str) -> Iterator[Event]:
        if self.halted:  # what was asked to end has ended
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
            yield Event(run.run_id, "warning", cause=f"{cause}; made again from {where}")
            return
        if self.limits.retries:
            cause = f"{cause}; {times} times in a row without getting further"
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
                cause=f"{self._same} runs in a row failed with the same cause, and the sweep stops here; "
                f"{left} more are left as they are (the same command goes on with these; "
                "executor.same_failures is when to stop)",
            )

    def _tell_once(self, run: Waiter, text: str) -> Iterator[Event]:
        if run.run_id not in self._told:
            self._told.add(run.run_id)
            yield Event(run.run_id, "warning", cause=text)
