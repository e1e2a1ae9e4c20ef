"""Worker processes that judge responses, and that the kernel ends at a time limit.

`Pool` is the trainer's side: it hands out rows of JSON and collects a reply for each. `serve` is a worker's
side. What a worker computes may hang, crash or print: it is then ended, replaced, and the row that it was at
has no reply. No handler is set for the alarm, so the kernel ends a late worker, even if its trainer is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from isolaw.errors import RunError

_START_S = 120.0
_GRACE_S = 5.0  # for an alarm to reach a worker, before its trainer ends it
Row = Sequence[Any]


class Pool:
    """Processes that execute ``python -P -c code``, which calls `serve`, with ``arguments``.

    A worker answers each row within ``limit`` seconds or, if it is ``whole``, all the rows that it is given
    at once. ``what`` names the reward in messages.
    """

    def __init__(
        self, code: str, arguments: Sequence[str], workers: int, limit: float, what: str, whole: bool = False
    ) -> None:
        command = [
            sys.executable,
            "-P",
            "-c",
            code,
            *arguments,
        ]  # -P: no module of this folder hides a library's
        self.whole = whole
        self._threads = ThreadPoolExecutor(workers)
        self.idle: SimpleQueue[Worker] = SimpleQueue()
        for _ in range(workers):
            self.idle.put(Worker(command, limit, what))

    def replies(self, rows: Sequence[Row], at_once: int = 1) -> list[Any]:
        """Return the reply to each row, None without one; a worker gets ``at_once`` rows at a time."""
        cut = [rows[i : i + at_once] for i in range(0, len(rows), at_once)]
        return [reply for part in self._threads.map(self._replies, cut) for reply in part]

    def _replies(self, rows: Sequence[Row]) -> list[Any]:
        out: list[Any] = []
        while len(out) < len(rows):
            worker = self.idle.get()
            try:
                out += worker.ask(rows[len(out) :])
            finally:
                self.idle.put(worker)
            if len(out) < len(rows):  # the worker ended at this row
                out += [None] * (len(rows) - len(out) if self.whole else 1)
        return out

    def close(self) -> None:
        """End the workers."""
        self._threads.shutdown()
        while not self.idle.empty():
            self.idle.get().end()


class Worker:
    """One such process, started when it is needed, again after it was lost."""

    def __init__(self, command: list[str], limit: float, what: str) -> None:
        self.command, self.limit, self.what = command, limit, what
        self.process: subprocess.Popen[bytes] | None = None
        self._read = b""

    def ask(self, rows: Sequence[Row]) -> list[Any]:
        """Return the replies to the rows, fewer if the process failed or did not answer in time."""
        process = self.process or self._start()
        replies: list[Any] = []
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(rows).encode() + b"\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            while len(replies) < len(rows) and (line := self._line(process, self.limit + _GRACE_S)):
                replies.append(json.loads(line))
        if len(replies) < len(rows):
            self.end()
        return replies

    def _start(self) -> subprocess.Popen[bytes]:
        self._read = b""
        process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.process = process
        if not self._line(process, _START_S):
            self.end()
            raise RunError(f"the worker of the {self.what} does not start: {' '.join(self.command)}")
        return process

    def _line(self, process: subprocess.Popen[bytes], seconds: float) -> bytes:
        """Return the next line that the process writes, or nothing if it is dead or silent."""
        assert process.stdout is not None
        output = process.stdout.fileno()
        while b"\n" not in self._read:
            ready, _, _ = select.select([output], [], [], seconds)
            if not ready or not (piece := os.read(output, 2**16)):
                return b""
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        return line

    def end(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def serve(judge: Callable[[list[Row]], Iterable[Any]]) -> None:
    """Read rows, and write the replies that ``judge`` yields for them, until the input ends.

    What the judge prints goes to standard error.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer; this ends with its input
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    output.write("ready\n")
    for line in sys.stdin:
        for reply in judge(json.loads(line)):
            output.write(json.dumps(reply) + "\n")


@contextlib.contextmanager
def alarm(seconds: float) -> Any:
    """While entered, the kernel ends this process after so many seconds."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
