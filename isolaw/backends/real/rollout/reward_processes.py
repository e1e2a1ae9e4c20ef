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
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from isolaw import children
from isolaw.errors import RunError

FAILURES_IN_A_ROW = 16  # this many consecutive failures end the run
LATE, FLOODED, MALFORMED = "late", "reply of more than 1 MB", "malformed reply"
_START_S = 120.0
_GRACE_S = 1.5  # time for the alarm to end a worker before the trainer does
_REPLY_BYTES = 2**20  # maximum bytes of a reply
_REPLY_CHARACTERS = 2_000  # maximum characters of a reply that is a text
_READY = b"ready"
JsonRow = Sequence[Any]


def command(code: str, *arguments: str) -> list[str]:
    """Return the command of a worker that executes ``code`` with ``arguments``."""
    # -P: modules in the working directory must not shadow those of libraries
    return [sys.executable, "-P", "-c", code, *arguments]


class WorkerPool:
    """A pool of worker processes that execute a command, which must call `Channel.serve`.

    A worker gets ``limit`` seconds for each row. ``name`` names the reward in messages. ``failures`` counts
    the rows without a reply by kind: ``late``, the name of a signal, an exit status, or the fault of the
    reply.
    """

    def __init__(self, command: list[str], workers: int, limit: float, name: str) -> None:
        self.name = name
        self.failures: Counter[str] = Counter()
        self._failures_in_a_row, self._lock = 0, threading.Lock()
        self._error: RunError | None = None
        self._threads = ThreadPoolExecutor(workers)
        self.idle: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(workers):
            self.idle.put(_Worker(command, limit, name))

    def replies(self, rows: Sequence[JsonRow], chunk_size: int = 1) -> list[Any]:
        """Send ``chunk_size`` rows at a time; return the reply to each row, or None if the row failed.

        Raise `RunError` if a worker does not start, and after `FAILURES_IN_A_ROW` consecutive failures.
        """
        chunks = [rows[i : i + chunk_size] for i in range(0, len(rows), chunk_size)]
        return [reply for replies in self._threads.map(self._replies, chunks) for reply in replies]

    def _replies(self, rows: Sequence[JsonRow]) -> list[Any]:
        replies: list[Any] = []
        while len(replies) < len(rows):
            if self._error:
                raise self._error
            worker = self.idle.get()
            try:
                new_replies, failure = worker.ask(rows[len(replies) :])
            finally:
                self.idle.put(worker)
            for reply in new_replies:
                self._count("", rows[len(replies)])
                replies.append(reply)
            if len(replies) < len(rows):  # the worker ended at this row
                self._count(failure, rows[len(replies)])
                replies.append(None)
        if self._error:
            raise self._error
        return replies

    def _count(self, failure: str, row: JsonRow) -> None:
        """Count the failure of a row; an empty ``failure`` means success and ends a series of failures."""
        with self._lock:
            self._failures_in_a_row = self._failures_in_a_row + 1 if failure else 0
            if failure:
                self.failures[failure] += 1
            if self._failures_in_a_row == FAILURES_IN_A_ROW:
                text = str(row[1])
                response = f"{text[:200]!r}{' …' if len(text) > 200 else ''}"
                self._error = RunError(
                    f"{self.name}: no reply to {FAILURES_IN_A_ROW} consecutive requests; "
                    f"the last request: {failure}, response {response}"
                )

    def close(self) -> None:
        """End the worker processes."""
        self._threads.shutdown()
        while not self.idle.empty():
            self.idle.get().end()


class _Worker:
    """One worker process, which starts at the first request and restarts after it is lost."""

    def __init__(self, command: list[str], limit: float, name: str) -> None:
        self.command, self.limit, self.name = command, limit, name
        self.process: subprocess.Popen[bytes] | None = None
        self._buffer, self._searched_bytes = bytearray(), 0

    def ask(self, rows: Sequence[JsonRow]) -> tuple[list[Any], str]:
        """Return the replies to the rows, and the reason for missing replies (empty if there are none)."""
        key = secrets.token_hex(16)
        unsent = memoryview(json.dumps({"key": key, "rows": rows}).encode() + b"\n")
        replies: list[Any] = []
        if self.process is None:
            self._start()
        while len(replies) < len(rows):
            line, unsent = self._read_line(self.limit + _GRACE_S, unsent)
            if isinstance(line, str):
                return replies, self._end_lost(line)
            reply_key, _, text = line.partition(b" ")
            try:
                if not secrets.compare_digest(reply_key, key.encode()):
                    raise ValueError
                replies.append(json.loads(text))
            except ValueError:
                return replies, self._end_lost(MALFORMED)
        return replies, ""

    def _start(self) -> None:
        self._buffer, self._searched_bytes = bytearray(), 0
        self.process = children.start(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        os.set_blocking(self.process.stdin.fileno(), False)  # type: ignore[union-attr]
        line, _ = self._read_line(_START_S)
        if line != _READY:
            why = self._end_lost(line if isinstance(line, str) else MALFORMED)
            raise RunError(f"the worker of the {self.name} does not start ({why}): {' '.join(self.command)}")

    def _read_line(self, seconds: float, unsent: memoryview | None = None) -> tuple[bytes | str, memoryview]:
        """Return the next line that the process writes, and what remains of ``unsent``.

        If there is no line, return the reason as a string in its place. The time limit of ``seconds`` applies
        even if the process does not read its rows.
        """
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        stdout, stdin = self.process.stdout.fileno(), self.process.stdin.fileno()
        unsent, deadline = unsent or memoryview(b""), time.monotonic() + seconds
        while (end := self._buffer.find(b"\n", self._searched_bytes)) < 0:
            self._searched_bytes = len(self._buffer)
            if self._searched_bytes > _REPLY_BYTES:
                return FLOODED, unsent
            remaining_s = max(deadline - time.monotonic(), 0)
            readable, writable, _ = select.select([stdout], [stdin] if unsent else [], [], remaining_s)
            if not readable and not writable:
                return LATE, unsent
            if writable:
                try:
                    unsent = unsent[os.write(stdin, unsent[: 2**16]) :]
                except BrokenPipeError:
                    unsent = memoryview(b"")
            if readable:
                if not (received := os.read(stdout, 2**16)):
                    return "", unsent
                self._buffer += received
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched_bytes = 0
        return line, unsent

    def _end_lost(self, failure: str) -> str:
        """End the process, and return the reason: ``failure`` or, if it is empty, how the process ended."""
        assert self.process is not None
        if not failure:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE_S)
            code = self.process.poll()
            if code is None:
                failure = "closed its pipe"
            elif code == -signal.SIGALRM:
                failure = LATE
            else:
                failure = f"exit status {code}" if code >= 0 else signal.Signals(-code).name
        self.end()
        return failure

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
        for descriptor in (self._source, self._sink):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def serve(self, judge: Callable[[list[JsonRow]], Iterable[Any]]) -> None:
        """Read rows and write the replies that ``judge`` yields for them; return when the input ends."""
        self._write(_READY)
        source = os.fdopen(self._source, "rb", closefd=False)
        while (line := source.readline()).endswith(b"\n"):  # the trainer can end in the middle of a line
            request = json.loads(line)
            for reply in judge(request["rows"]):
                text = json.dumps(reply[:_REPLY_CHARACTERS] if isinstance(reply, str) else reply)
                self._write(f"{request['key']} {text}".encode())

    def _write(self, line: bytes) -> None:
        unwritten = memoryview(line + b"\n")
        while unwritten:
            unwritten = unwritten[os.write(self._sink, unwritten) :]


@contextlib.contextmanager
def alarm(seconds: float) -> Any:
    """Let the kernel end this process if the block takes longer than the given seconds."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
