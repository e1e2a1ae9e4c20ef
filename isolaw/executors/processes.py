"""The executor `processes`: worker processes on this machine.

A worker is ``python -m isolaw.executors.worker DIR``: it reads run ids from its standard input and
answers with events. ``ISOLAW_WORKER`` in its environment is its place, from 0 to ``jobs`` - 1. Nothing is
pickled, a caller's script needs no ``__main__`` guard, and a worker whose engine disappears sees its input
end and stops.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from isolaw.executors.base import Event
from isolaw.store import SweepStore


class _Worker:
    """One worker process, and the thread that forwards its events to the engine's queue."""

    def __init__(
        self, directory: Path, events: queue.Queue[tuple[_Worker, Event | None]], place: int
    ) -> None:
        self.run_id: str | None = None
        self.place = place
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "isolaw.executors.worker", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is the engine's to handle
            env={**os.environ, "ISOLAW_WORKER": str(place)},
        )
        self._events = events
        threading.Thread(target=self._forward, daemon=True).start()

    def _forward(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put((self, Event(**json.loads(line))))
        self._events.put((self, None))

    def give(self, run_id: str) -> None:
        self.run_id = run_id
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its end arrives as an event
            self.process.stdin.write(run_id + "\n")
            self.process.stdin.flush()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def run(directory: Path, run_ids: Sequence[str], jobs: int) -> Iterator[Event]:
    """Execute the runs on at most ``jobs`` workers; a worker that dies fails its run alone."""
    waiting = deque(run_ids)
    events: queue.Queue[tuple[_Worker, Event | None]] = queue.Queue()
    workers: set[_Worker] = set()

    def start() -> None:
        taken = {worker.place for worker in workers}
        worker = _Worker(directory, events, min(set(range(jobs)) - taken))
        workers.add(worker)
        worker.give(waiting.popleft())

    try:
        for _ in range(min(jobs, len(waiting))):
            start()
        while workers:
            worker, event = events.get()
            if event is not None:
                yield event
                if event.kind == "checkpoint":
                    continue
                worker.run_id = None
                if waiting:
                    worker.give(waiting.popleft())
                    continue
            workers.discard(worker)
            worker.stop()
            if event is None and worker.run_id is not None:
                cause = f"the worker process died (exit status {worker.process.returncode})"
                SweepStore(directory).run(worker.run_id).fail(cause, "")
                yield Event(worker.run_id, "failed", cause=cause)
                if waiting:
                    start()
    finally:
        for worker in workers:
            worker.stop()
