"""Rewards: what a response is worth, compared with a problem's answer.

``exact``
    1 if the response is the answer, apart from white space around them, else 0.
``math``
    1 if math-verify finds the answer's expression in the response (``\\boxed{1/2}`` for ``0.5``), else 0.
    Some expressions keep sympy busy for ever, and math-verify's own time limits need SIGALRM in the main
    thread of the trainer, so it runs in worker processes that the kernel ends at a time limit.
``package.module:function``
    the number that ``function(prompt, response, answer)`` returns.

avg@k, best@k and worst@k count *correct* answers: those with a reward of at least 1.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import numbers
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolaw.backends.real.rollout.problems import Message, Problem
from isolaw.errors import Issue, RunError, SpecError, nearest

NAMES = ("exact", "math")
LIMIT_S = 5.0
_START_S = 120.0
_GRACE_S = 5.0
_MEMORY = 4 * 2**30  # bytes of address space for a worker: 9^9^9^9 ends there, not in the trainer's memory

Function = Callable[[str | list[Message], str, str], float]


class Reward(Protocol):
    """Called with a problem for each response; ``failures`` counts responses without a verdict."""

    failures: int

    def __call__(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response."""
        ...

    def close(self) -> None:
        """End what it started."""
        ...


def get(name: str) -> Reward:
    """Return the reward of that name, which the caller closes; raise `SpecError` for an unknown one.

    >>> reward = get("exact")
    >>> problem = Problem("17+25", "17+25=", "42")
    >>> reward([problem, problem], [" 42", "43"])
    [1.0, 0.0]
    """
    if name == "exact":
        return Exact()
    if issues := check(name):
        raise SpecError(issues)
    return Math() if name == "math" else Custom(name)


def check(name: str, where: str = "real.reward") -> list[Issue]:
    """Return what is wrong with the name of a reward; this imports a function's module."""
    if name == "exact":
        return []
    if name == "math":
        missing = importlib.util.find_spec("math_verify") is None
        return (
            [Issue(where, "math-verify is not installed: pip install math-verify", name)] if missing else []
        )
    module, _, function = name.partition(":")
    if not module or not function:
        accepted = "exact, math, or package.module:function"
        return [Issue(where, found=name, accepted=accepted, nearest=nearest(name, NAMES))]
    try:
        imported = _import(module)
    except (Exception, SystemExit) as error:  # of the user's code
        close = f"{Path(module).stem}:{function}" if module.endswith(".py") else ""
        return [
            Issue(where, f"cannot import {module!r}: {type(error).__name__}: {error}", name, nearest=close)
        ]
    found = getattr(imported, function, None)
    if not callable(found):
        functions = [key for key, value in vars(imported).items() if callable(value) and key[0] != "_"]
        close = nearest(function, functions)
        what = "is not a function" if hasattr(imported, function) else "no such function"
        return [Issue(where, f"{module}: {what}", function, nearest=close and f"{module}:{close}")]
    with contextlib.suppress(ValueError):  # a function written in C may have no signature
        try:
            signature = inspect.signature(found)
            signature.bind("", "", "")
        except TypeError:
            what = f"{module}: does not take (prompt, response, answer)"
            return [Issue(where, what, f"{function}{signature}")]
    return []


def digest(name: str) -> str | None:
    """Return the SHA-256 of the file that holds a function, a part of a run's identity; else None."""
    module, colon, _ = name.partition(":")
    file = getattr(_import(module), "__file__", None) if colon else None
    return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()


def correct(values: ArrayLike) -> NDArray[np.bool_]:
    """Return which responses count as correct, by their rewards, any shape.

    >>> correct([1.0, 0.5, -1.0]).tolist()
    [True, False, False]
    """
    return np.asarray(values) >= 1.0


class Exact:
    """`Reward`: 1 if the response is the answer, apart from white space around them."""

    failures = 0

    def __call__(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response."""
        return [self.one(p, response) for p, response in zip(problems, responses, strict=True)]

    def one(self, problem: Problem, response: str) -> float:
        """Return the reward of a response."""
        return float(response.strip() == problem.answer.strip())

    def close(self) -> None:
        """Do nothing: nothing is open."""


class Custom(Exact):
    """`Reward`: what a user's ``package.module:function`` returns."""

    def __init__(self, name: str) -> None:
        module, _, function = name.partition(":")
        self.name = name
        self.function: Function = getattr(_import(module), function)

    def one(self, problem: Problem, response: str) -> float:
        """Return the reward of a response; raise `RunError` unless it is a finite number."""
        where = f"reward {self.name}, problem {problem.id!r}, response {response[:200]!r}"
        try:
            value = self.function(problem.prompt, response, problem.answer)
        except (Exception, SystemExit) as error:  # of the user's code
            raise RunError(f"{where}: it raised {type(error).__name__}: {error}") from error
        if not isinstance(value, numbers.Real | np.bool_) or not _is_finite(value):
            raise RunError(f"{where}: it returned {value!r}; expected a finite number")
        return float(value)


class Math:
    """`Reward`: math-verify in worker processes; what takes longer than ``limit`` seconds is wrong.

    ``failures`` counts the responses that took too long or ended their worker.
    """

    def __init__(self, workers: int = 2, limit: float = LIMIT_S) -> None:
        self.failures = 0
        self.limit = limit
        self._threads = ThreadPoolExecutor(workers)
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(workers):
            self._idle.put(_Worker(limit))

    def __call__(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response, judging equal responses to a problem once.

        Raises
        ------
        RunError
            math-verify cannot read the answer of a problem, so that no response could be right.
        """
        pairs = [(p.answer, response) for p, response in zip(problems, responses, strict=True)]
        distinct = list(dict.fromkeys(pairs))
        found = dict(zip(distinct, self._threads.map(self._one, distinct), strict=True))
        for problem, pair in zip(problems, pairs, strict=True):
            if found[pair] == "unreadable":
                raise RunError(f"problem {problem.id!r}: math-verify cannot read its answer {pair[0]!r}")
        self.failures += sum(found[pair] is None for pair in pairs)
        return [float(found[pair] is True) for pair in pairs]

    def _one(self, pair: tuple[str, str]) -> Any:
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
        code = f"from {Math.__module__} import serve; serve({self.limit})"
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


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def _import(module: str) -> ModuleType:
    """Import a module, also from the working directory, as ``python -m`` does."""
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        return importlib.import_module(module)
    finally:
        if added:
            sys.path.remove(here)


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
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the trainer; this process ends with its input
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
