"""Run a worker process: ``python -m isolaw.executors.worker DIR``.

The worker reads run ids from standard input and writes events to standard output, one per line. If its input
ends, the engine has ended or has no more work. The worker then exits immediately, which the store tolerates
at any time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from isolaw import children
from isolaw.errors import StoreError
from isolaw.executors.base import execute
from isolaw.executors.waiting import Event
from isolaw.store import RunStore, SweepStore
from isolaw.store.run import LOG

# Minimum seconds between reports of checkpoints. Without it, reports of short runs would take longer than the
# runs.
_REPORT_EVERY_S = 0.1


def _main(directory: str) -> None:
    """Execute the runs whose ids arrive on standard input, until the input ends."""
    # SIGINT ends a worker immediately, without a traceback. The engine has blocked the signal up to this
    # line.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Events use the original standard output. The output of libraries goes to the run's log.
    engine = _EngineHandler(os.dup(1))
    os.dup2(2, 1)
    run_ids: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for run_id in sys.stdin:
            run_ids.put(run_id.strip())
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    last_report = 0.0
    while True:
        run_id = run_ids.get()
        engine.run_id = run_id
        with logged(SweepStore(directory).run(run_id)):
            for event in execute(Path(directory), run_id):
                if event.kind != "checkpoint" or time.monotonic() - last_report >= _REPORT_EVERY_S:
                    last_report = time.monotonic()
                    engine.send(event)


class _EngineHandler(logging.Handler):
    """Sends events and logged warnings of a run to the engine; ends the worker if the engine has ended."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(logging.WARNING)
        self.run_id, self._lines = "", os.fdopen(descriptor, "w", encoding="utf-8")
        logging.getLogger("isolaw").addHandler(self)

    def send(self, event: Event) -> None:
        with self.lock or contextlib.nullcontext():  # the handler's lock: warnings come from any thread
            try:
                children.write(self._lines, vars(event))
            except BrokenPipeError:  # the engine has ended
                os._exit(0)

    def emit(self, record: logging.LogRecord) -> None:
        self.send(Event(self.run_id, "warning", cause=record.getMessage()))


@contextlib.contextmanager
def logged(run: RunStore) -> Iterator[None]:
    """Redirect standard output and standard error to the run's log inside the block.

    This includes the output of libraries and child processes. The log also gets isolaw's own messages of
    level INFO or higher.
    """
    try:
        log = run.open_log()
    except (OSError, StoreError):  # the run itself reports the problem with its folder
        yield
        return
    try:
        saved = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
        for descriptor in saved:
            os.dup2(log, descriptor)
        os.close(log)
        logger, handler = logging.getLogger("isolaw"), logging.StreamHandler()
        level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in saved.items():
            os.dup2(copy, descriptor)
            os.close(copy)
        with contextlib.suppress(OSError):  # the disk is no longer writable
            if (status := run.open().status(LOG)) and not status.st_size:
                run.open().remove(LOG)


if __name__ == "__main__":
    _main(sys.argv[1])
