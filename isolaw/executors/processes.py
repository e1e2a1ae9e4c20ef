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
_LOOK_S = 10.0


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
        self.held = False  # whether it is suspended by SIGSTOP
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

    def give(self, run_id: str) -> None:
        self.run_id = run_id
        with contextlib.suppress(BrokenPipeError):  # if the worker has ended, an event reports it
            self._stdin.write(run_id + "\n")
            self._stdin.flush()

    def stop(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # closing flushes a buffered run id
            self._stdin.close()
        children.end(self.process)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


class _Processes:
    """The `Slots` of this executor: worker processes that each execute one run after another."""

    def __init__(self, directory: Path, each: Mapping[str, Resources]) -> None:
        self.directory, self.each = directory, each
        self.free = visible_gpus() if any(needs.gpus for needs in each.values()) else []
        self.store = SweepStore(directory)
        self.workers: set[_Worker] = set()
        self.queue: queue.Queue[tuple[_Worker, Event | None]] = queue.Queue()
        self.look_at = 0.0
        self.asked: set[str] = set()  # runs that were asked to stop

    def start(self, run_id: str) -> Event | None:
        self.asked.discard(run_id)
        self.store.run(run_id).proceed()
        count, idle = self.each[run_id].gpus, [w for w in self.workers if w.run_id is None]
        worker = next((w for w in idle if len(w.gpus) == count), None)
        if worker is None:
            while len(self.free) < count and idle:
                self._end(idle.pop())
            if len(self.free) < count:
                cause = f"the run needs {count} GPUs, but only {len(self.free)} are free on this machine"
                return Event(run_id, "failed", cause=cause)
            gpus, self.free = self.free[:count], self.free[count:]
            worker = _Worker(self.directory, self.queue, gpus)
            self.workers.add(worker)
        worker.give(run_id)
        return None

    def _end(self, worker: _Worker) -> None:
        """End a worker, and free its GPUs for other workers."""
        worker.stop()
        if worker in self.workers:
            self.workers.discard(worker)
            self.free = worker.gpus + self.free

    def events(self) -> list[Event]:
        out = list(self._stopped())
        with contextlib.suppress(queue.Empty):
            out += self._of(*self.queue.get(timeout=_WAIT_S))
        return out

    def _of(self, worker: _Worker, event: Event | None) -> list[Event]:
        if event is None:
            self._end(worker)
            if worker.run_id is None:
                return []
            cause = f"the worker process died (exit status {worker.process.returncode})"
            return [Event(worker.run_id, "lost", cause=cause)]
        if event.kind != "checkpoint":
            worker.run_id = None
        return [event]

    def _stopped(self) -> Iterator[Event]:
        """Warn once about each suspended worker; end suspended workers whose runs were asked to stop."""
        if time.monotonic() < self.look_at:
            return
        self.look_at = time.monotonic() + _LOOK_S
        for worker in self.workers:
            held = children.stopped(worker.process.pid) if worker.run_id else []
            if held and worker.run_id in self.asked:
                children.end(worker.process)
            elif held and not worker.held and worker.run_id:
                cause = f"process {held[0]} of the run is stopped; continue it with kill -CONT {held[0]}"
                yield Event(worker.run_id, "warning", cause=cause)
            worker.held = bool(held)

    def ask_to_stop(self, run_id: str) -> None:
        self.store.run(run_id).ask_to_stop()
        self.asked.add(run_id)
        self.look_at = 0.0

    def close(self) -> None:
        for worker in self.workers:
            worker.stop()


def run(
    directory: Path, waiting: Waiting, _chosen: ExecutorSection, each: Mapping[str, Resources]
) -> Iterator[Event]:
    """Execute the runs on as many workers as the limits allow, and yield their events."""
    yield from drive(_Processes(directory, each), waiting)
