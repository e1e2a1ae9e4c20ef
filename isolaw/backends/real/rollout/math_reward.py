"""The reward ``math``: math-verify in worker processes that the kernel ends at a time limit.

Some expressions keep sympy busy for ever, and math-verify's own time limits need SIGALRM in the main thread
of the trainer.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from isolaw.backends.real.rollout.problems import Problem
from isolaw.backends.real.rollout.rewards import Reward
from isolaw.errors import RunError

LIMIT_S = 5.0
_START_S = 120.0
_GRACE_S = 5.0
_MEMORY = 4 * 2**30  # bytes of address space for a worker: 9^9^9^9 ends there, not in the trainer's memory


class Math(Reward):
    """1 if math-verify finds the answer's expression in the response; late is wrong, after ``limit`` seconds.

    ``failures`` counts the responses that took too long or ended their worker.
    """

    def __init__(self, workers: int = 2, limit: float = LIMIT_S) -> None:
        self._threads = ThreadPoolExecutor(workers)
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(workers):
            self._idle.put(_Worker(limit))

    def __call__(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response, judging equal responses to a problem once.

        Raise `RunError` if math-verify cannot read an answer: then no response could be right.
        """
        pairs = [(p.answer, response) for p, response in zip(problems, responses, strict=True)]
        distinct = list(dict.fromkeys(pairs))
        found = dict(zip(distinct, self._threads.map(self._judge, distinct), strict=True))
        for problem, pair in zip(problems, pairs, strict=True):
            if found[pair] == "unreadable":
                raise RunError(f"problem {problem.id!r}: math-verify cannot read its answer {pair[0]!r}")
        self.failures += sum(found[pair] is None for pair in pairs)
        return [float(found[pair] is True) for pair in pairs]

    def _judge(self, pair: tuple[str, str]) -> Any:
        worker = self._idle.get()
        try:
            return worker.ask(pair)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End the workers."""
        self._threads.shutdown()
        while not self._idle.empty():
            self._idle.get().end()


class _Worker:
    """A process that runs `serve`, started when it is needed, again after it was lost."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, pair: tuple[str, str]) -> Any:
        """Return True, False or "unreadable", and None if the worker failed or did not answer."""
        process = self.process or self._start()
        line = b""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(pair).encode() + b"\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            line = _line(process, self.limit + _GRACE_S)
        if line:
            return json.loads(line)
        self.end()
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        code = f"from {__name__} import serve; serve({self.limit})"
        command = [sys.executable, "-P", "-c", code]  # -P: a math.py in this folder hides the library's
        self.process = process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if not _line(process, _START_S):
            self.end()
            raise RunError(f"the worker of the math reward does not start: {' '.join(command)}")
        return process

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def _line(process: subprocess.Popen[bytes], seconds: float) -> bytes:
    """Return the next line that a process writes, or nothing if it is dead or silent."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline() if ready else b""


def serve(limit: float) -> None:
    """Read a pair of answer and response a line, and write a verdict a line, until the input ends.

    No handler is set for each pair's alarm, so the kernel ends a late process, even if its parent is gone.
    """
    import logging
    import resource

    from math_verify import parse, verify  # type: ignore[import-untyped,import-not-found]

    logging.disable(logging.CRITICAL)  # it warns that its own time-outs are off
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer; this ends with its input
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library's output is no reply

    def judge(answer: str, response: str) -> bool | str:
        plain = "$" in answer or "\\boxed" in answer
        expected = parse(answer if plain else f"${answer}$", parsing_timeout=None)
        if not expected:
            return "unreadable"
        return bool(verify(expected, parse(response, parsing_timeout=None), timeout_seconds=None))

    judge("1", "1")  # the first one takes longer
    replies.write("ready\n")
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            reply: bool | str | None = judge(*json.loads(line))
        except Exception:  # of an expression too large or too deep for sympy
            reply = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(json.dumps(reply) + "\n")
