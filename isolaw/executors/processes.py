"""Implement the executor `processes`: worker processes on this machine (`isolaw.executors.worker`).

Each worker sees only the GPUs that its runs need, and no two workers share a GPU. Nothing is pickled, so the
user's script needs no ``__main__`` guard. If a worker dies, only its run fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from isolaw import children
from isolaw.config import ExecutorSection
from isolaw.executors.base import Resources, drive
from isolaw.executors.waiting import Event, Waiting
from isolaw.machine import visible_gpus
from isolaw.store import SweepStore

# Seconds between checks whether the sweep has to end.
_WAIT_S = 0.2
# Seconds between checks whether a worker is suspended.
_SUSPENSION_CHECK_S = 10.0


class _Worker:
    """A worker process, with a thread that forwards its events to the engine's queue."""

    def __init__(
        self,
        directory: Path,
        events: queue.Queue[tuple[_Worker, Event | None]],
        gpus: list[str],
    ) -> None:
        self.run_id: str | None = None
        self.gpus = gpus  # names of its GPUs; if empty, the runs need no GPU, and all GPUs are visible
        self.is_suspended = False  # whether it is suspended by SIGSTOP
        # The engine handles Ctrl-C. A SIGINT to the worker itself is blocked until the worker is ready.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process = children.start(
                [sys.executable, "-P", "-m", "isolaw.executors.worker", str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if _is_open(2) else subprocess.DEVNULL,
                text=True,
                env=os.environ | ({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}),
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._events = self.process.stdin, events
        threading.Thread(target=self._forward, args=(self.process.stdout,), daemon=True).start()

    def _forward(self, lines: IO[str]) -> None:
        with lines, contextlib.suppress(ValueError):  # the last line can be incomplete
            for line in lines:
                self._events.put((self, Event(**json.loads(line))))
        self._events.put((self, None))

    def assign(self, run_id: str) -> None:
        self.run_id = run_id
        with contextlib.suppress(BrokenPipeError):  # if the worker has ended, an event reports it
            self._stdin.write(run_id + "\n")
            self._stdin.flush()

    def stop(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # closing flushes a buffered run id
            self._stdin.close()
        children.end(self.process)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


class _Processes:
    """The `Slots` of this executor: worker processes that each execute one run after another."""

    def __init__(self, directory: Path, needs_by_run: Mapping[str, Resources]) -> None:
        self.directory, self.needs_by_run = directory, needs_by_run
        self.free_gpus = visible_gpus() if any(needs.gpus for needs in needs_by_run.values()) else []
        self.store = SweepStore(directory)
        self.workers: set[_Worker] = set()
        self.queue: queue.Queue[tuple[_Worker, Event | None]] = queue.Queue()
        self.next_check = 0.0
        self.asked_to_stop: set[str] = set()  # runs that were asked to stop

    def start(self, run_id: str) -> Event | None:
        self.asked_to_stop.discard(run_id)
        self.store.run(run_id).proceed()
        count, idle = self.needs_by_run[run_id].gpus, [w for w in self.workers if w.run_id is None]
        worker = next((worker for worker in idle if len(worker.gpus) == count), None)
        if worker is None:
            while len(self.free_gpus) < count and idle:
                self._end(idle.pop())
            if len(self.free_gpus) < count:
                cause = f"the run needs {count} GPUs, but only {len(self.free_gpus)} are free on this machine"
                return Event(run_id, "failed", cause=cause)
            gpus, self.free_gpus = self.free_gpus[:count], self.free_gpus[count:]
            worker = _Worker(self.directory, self.queue, gpus)
            self.workers.add(worker)
        worker.assign(run_id)
        return None

    def _end(self, worker: _Worker) -> None:
        """End a worker, and free its GPUs for other workers."""
        worker.stop()
        if worker in self.workers:
            self.workers.discard(worker)
            self.free_gpus = worker.gpus + self.free_gpus

    def events(self) -> list[Event]:
        events = list(self._suspension_events())
        with contextlib.suppress(queue.Empty):
            events += self._events_of(*self.queue.get(timeout=_WAIT_S))
        return events

    def _events_of(self, worker: _Worker, event: Event | None) -> list[Event]:
        if event is None:
            self._end(worker)
            if worker.run_id is None:
                return []
            cause = f"the worker process died (exit status {worker.process.returncode})"
            return [Event(worker.run_id, "lost", cause=cause)]
        if event.kind != "checkpoint":
            worker.run_id = None
        return [event]

    def _suspension_events(self) -> Iterator[Event]:
        """Warn once about each suspended worker; end suspended workers whose runs were asked to stop."""
        if time.monotonic() < self.next_check:
            return
        self.next_check = time.monotonic() + _SUSPENSION_CHECK_S
        for worker in self.workers:
            pids = children.stopped(worker.process.pid) if worker.run_id else []
            if pids and worker.run_id in self.asked_to_stop:
                children.end(worker.process)
            elif pids and not worker.is_suspended and worker.run_id:
                cause = f"process {pids[0]} of the run is stopped; continue it with kill -CONT {pids[0]}"
                yield Event(worker.run_id, "warning", cause=cause)
            worker.is_suspended = bool(pids)

    def ask_to_stop(self, run_id: str) -> None:
        self.store.run(run_id).ask_to_stop()
        self.asked_to_stop.add(run_id)
        self.next_check = 0.0

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()


def run(
    directory: Path, waiting: Waiting, _section: ExecutorSection, needs_by_run: Mapping[str, Resources]
) -> Iterator[Event]:
    """Execute the runs on as many workers as the limits allow, and yield their events."""
    yield from drive(_Processes(directory, needs_by_run), waiting)
