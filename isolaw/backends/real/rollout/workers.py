"""Run reward code in worker processes, so that every response gets a reply within a time limit.

`WorkerPool` is the trainer's side. It distributes rows of JSON and collects a reply for each row. `Channel`
is the worker's side. The code in a worker can hang, crash, fork or print. isolaw ends a failed worker with
all its child processes and replaces it. The current row of this worker gets no reply.

An alarm of the kernel ends a late worker. If the code has removed the alarm, the trainer ends the worker
`_GRACE_S` seconds later. A reply is valid only with the key that was sent with its rows. Key and pipes exist
only in the worker's memory. Neither its environment nor its arguments contain them, and forked or executed
programs do not inherit them. A graded program therefore cannot forge its own reward. The function in the
worker is trusted.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from isolaw import children
from isolaw.errors import RunError

IN_A_ROW = 16  # this many consecutive failures end the run
LATE, FLOODED, MALFORMED = "late", "reply of more than 1 MB", "malformed reply"
_START_S = 120.0
_GRACE_S = 1.5  # time for the alarm to end a worker before the trainer does
_LONGEST = 2**20  # maximum bytes of a reply
_LONGEST_TEXT = 2_000  # maximum characters of a reply that is a text
_READY = b"ready"
JsonRow = Sequence[Any]


def command(code: str, *arguments: str) -> list[str]:
    """Return the command of a worker that executes ``code`` with ``arguments``."""
    # -P: modules in the working directory must not shadow those of libraries
    return [sys.executable, "-P", "-c", code, *arguments]


class WorkerPool:
    """A pool of worker processes that execute a command, which must call `Channel.serve`.

    A worker gets ``limit`` seconds for each row. ``what`` names the reward in messages. ``failures`` counts
    the rows without a reply by kind: ``late``, the name of a signal, an exit status, or the fault of the
    reply.
    """

    def __init__(self, command: list[str], workers: int, limit: float, what: str) -> None:
        self.what = what
        self.failures: Counter[str] = Counter()
        self._in_a_row, self._lock = 0, threading.Lock()
        self._ending: RunError | None = None
        self._threads = ThreadPoolExecutor(workers)
        self.idle: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(workers):
            self.idle.put(_Worker(command, limit, what))

    def replies(self, rows: Sequence[JsonRow], at_once: int = 1) -> list[Any]:
        """Send ``at_once`` rows at a time; return the reply to each row, or None if the row failed.

        Raise `RunError` if a worker does not start, and after `IN_A_ROW` consecutive failures.
        """
        cut = [rows[i : i + at_once] for i in range(0, len(rows), at_once)]
        return [reply for part in self._threads.map(self._replies, cut) for reply in part]

    def ask(self, row: JsonRow) -> Future[list[Any]]:
        """Send a row as soon as a worker is free; the result is a list with its reply."""
        return self._threads.submit(self._replies, [row])

    def _replies(self, rows: Sequence[JsonRow]) -> list[Any]:
        out: list[Any] = []
        while len(out) < len(rows):
            if self._ending:
                raise self._ending
            worker = self.idle.get()
            try:
                replies, kind = worker.ask(rows[len(out) :])
            finally:
                self.idle.put(worker)
            for reply in replies:
                self._note("", rows[len(out)])
                out.append(reply)
            if len(out) < len(rows):  # the worker ended at this row
                self._note(kind, rows[len(out)])
                out.append(None)
        if self._ending:
            raise self._ending
        return out

    def _note(self, kind: str, row: JsonRow) -> None:
        """Count the failure of a row; an empty ``kind`` means success and ends a series of failures."""
        with self._lock:
            self._in_a_row = self._in_a_row + 1 if kind else 0
            if kind:
                self.failures[kind] += 1
            if self._in_a_row == IN_A_ROW:
                text = str(row[1])
                shown = f"{text[:200]!r}{' …' if len(text) > 200 else ''}"
                self._ending = RunError(
                    f"{self.what}: no reply to {IN_A_ROW} consecutive requests; the last request: {kind}, "
                    f"response {shown}"
                )

    def close(self) -> None:
        """End the worker processes."""
        self._threads.shutdown()
        while not self.idle.empty():
            self.idle.get().end()


class _Worker:
    """One worker process, which starts at the first request and restarts after it is lost."""

    def __init__(self, command: list[str], limit: float, what: str) -> None:
        self.command, self.limit, self.what = command, limit, what
        self.process: subprocess.Popen[bytes] | None = None
        self._read, self._searched = bytearray(), 0

    def ask(self, rows: Sequence[JsonRow]) -> tuple[list[Any], str]:
        """Return the replies to the rows, and the reason for missing replies (empty if there are none)."""
        key = secrets.token_hex(16)
        asked = memoryview(json.dumps({"key": key, "rows": rows}).encode() + b"\n")
        replies: list[Any] = []
        if self.process is None:
            self._start()
        while len(replies) < len(rows):
            line, asked = self._line(self.limit + _GRACE_S, asked)
            if isinstance(line, str):
                return replies, self._lost(line)
            sent, _, text = line.partition(b" ")
            try:
                if not secrets.compare_digest(sent, key.encode()):
                    raise ValueError
                replies.append(json.loads(text))
            except ValueError:
                return replies, self._lost(MALFORMED)
        return replies, ""

    def _start(self) -> None:
        self._read, self._searched = bytearray(), 0
        self.process = children.start(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        os.set_blocking(self.process.stdin.fileno(), False)  # type: ignore[union-attr]
        line, _ = self._line(_START_S)
        if line != _READY:
            why = self._lost(line if isinstance(line, str) else MALFORMED)
            raise RunError(f"the worker of the {self.what} does not start ({why}): {' '.join(self.command)}")

    def _line(self, seconds: float, asked: memoryview | None = None) -> tuple[bytes | str, memoryview]:
        """Return the next line that the process writes, and the unsent rest of ``asked``.

        If there is no line, return the reason as a string in its place. The time limit of ``seconds`` applies
        even if the process does not read its rows.
        """
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        source, sink = self.process.stdout.fileno(), self.process.stdin.fileno()
        asked, until = asked or memoryview(b""), time.monotonic() + seconds
        while (end := self._read.find(b"\n", self._searched)) < 0:
            self._searched = len(self._read)
            if self._searched > _LONGEST:
                return FLOODED, asked
            left = until - time.monotonic()
            readable, writable, _ = select.select([source], [sink] if asked else [], [], max(left, 0))
            if not readable and not writable:
                return LATE, asked
            if writable:
                try:
                    asked = asked[os.write(sink, asked[: 2**16]) :]
                except BrokenPipeError:
                    asked = memoryview(b"")
            if readable:
                if not (piece := os.read(source, 2**16)):
                    return "", asked
                self._read += piece
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        self._searched = 0
        return line, asked

    def _lost(self, kind: str) -> str:
        """End the process, and return the reason: ``kind`` or, if it is empty, how the process ended."""
        assert self.process is not None
        if not kind:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE_S)
            code = self.process.poll()
            if code is None:
                kind = "closed its pipe"
            elif code == -signal.SIGALRM:
                kind = LATE
            else:
                kind = f"exit status {code}" if code >= 0 else signal.Signals(-code).name
        self.end()
        return kind

    def end(self) -> None:
        """End the process and all processes that it has started."""
        if self.process is not None:
            children.end(self.process)
            self.process = None


class Channel:
    """The worker's side of the pipe to the trainer.

    Create it before the import of the user's code, so that printed text cannot be mistaken for a reply.
    Printed text then goes to standard error, and standard input is empty.
    """

    def __init__(self) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer handles Ctrl-C and closes this input
        self._source, self._sink = os.dup(0), os.dup(1)  # not inherited by programs that the code executes
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        os.register_at_fork(after_in_child=self._close)

    def _close(self) -> None:
        for number in (self._source, self._sink):
            with contextlib.suppress(OSError):
                os.close(number)

    def serve(self, judge: Callable[[list[JsonRow]], Iterable[Any]]) -> None:
        """Read rows and write the replies that ``judge`` yields for them; return when the input ends."""
        self._write(_READY)
        source = os.fdopen(self._source, "rb", closefd=False)
        while (line := source.readline()).endswith(b"\n"):  # the trainer can end in the middle of a line
            asked = json.loads(line)
            for reply in judge(asked["rows"]):
                text = json.dumps(reply[:_LONGEST_TEXT] if isinstance(reply, str) else reply)
                self._write(f"{asked['key']} {text}".encode())

    def _write(self, line: bytes) -> None:
        left = memoryview(line + b"\n")
        while left:
            left = left[os.write(self._sink, left) :]


@contextlib.contextmanager
def alarm(seconds: float) -> Any:
    """Let the kernel end this process if the block takes longer than the given seconds."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
