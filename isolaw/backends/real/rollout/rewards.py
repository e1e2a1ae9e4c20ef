"""Rewards: what a response is worth, compared with a problem's answer.

``exact``
    1 where the response is the answer, up to white space around them, else 0.
``math``
    1 where math-verify finds the answer's expression in the response (``\\boxed{1/2}`` for ``0.5``), else 0.
    Some expressions keep sympy busy for ever, and math-verify's own time-outs need SIGALRM in the main
    thread of the trainer; so it runs in worker processes that the kernel ends at a time limit.
``package.module:function``
    the number that ``function(prompt, response, answer)`` returns.

avg@k, best@k and worst@k count answers that are *correct*: those with a reward of at least 1.
"""

from __future__ import annotations

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
    """A reward: called with a question for each response. ``failures`` counts those that were given up."""

    failures: int

    def __call__(self, questions: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response."""
        ...

    def close(self) -> None:
        """End what it started."""
        ...


def get(name: str) -> Reward:
    """Return the reward of that name, which the caller closes.

    Raises
    ------
    SpecError
        no such reward.

    >>> reward = get("exact")
    >>> question = Problem("17+25", "17+25=", "42")
    >>> reward([question, question], [" 42", "43"])
    [1.0, 0.0]
    """
    if name == "exact":
        return Exact()
    problems = check(name)
    if problems:
        raise SpecError(problems)
    return Math() if name == "math" else Custom(name)


def check(name: str, where: str = "real.reward") -> list[Issue]:
    """Return what is wrong with the name of a reward; a function's module is imported for it."""
    if name == "exact":
        return []
    if name == "math":
        if importlib.util.find_spec("math_verify") is None:
            return [Issue(where, "math-verify is not installed: pip install math-verify", found=name)]
        return []
    module, colon, function = name.partition(":")
    if not colon or not module or not function:
        accepted = "exact, math, or package.module:function"
        return [Issue(where, found=name, accepted=accepted, nearest=nearest(name, NAMES))]
    try:
        found = _import(module)
    except (Exception, SystemExit) as error:  # it is the user's code
        close = f"{Path(module).stem}:{function}" if module.endswith(".py") else ""
        what = f"cannot import {module!r}: {type(error).__name__}: {error}"
        return [Issue(where, what, found=name, nearest=close)]
    if not callable(getattr(found, function, None)):
        functions = [key for key, value in vars(found).items() if callable(value) and key[0] != "_"]
        close = nearest(function, functions)
        what = "is not a function" if hasattr(found, function) else "no such function"
        return [Issue(where, f"{module}: {what}", found=function, nearest=close and f"{module}:{close}")]
    try:
        signature = inspect.signature(getattr(found, function))
    except (ValueError, TypeError):  # written in C, it may have none
        return []
    try:
        signature.bind("", "", "")
    except TypeError:
        what = f"{module}: does not take (prompt, response, answer)"
        return [Issue(where, what, found=f"{function}{signature}")]
    return []


def digest(name: str) -> str | None:
    """Return the SHA-256 of the file that holds a function, None for the rewards of this module.

    The same name with another code is another reward, so it belongs to a run's identity.
    """
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
    """`Reward`: 1 where the response is the answer, white space around them apart."""

    failures = 0

    def __call__(self, questions: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response."""
        pairs = zip(questions, responses, strict=True)
        return [float(response.strip() == question.answer.strip()) for question, response in pairs]

    def close(self) -> None:
        """Nothing is open."""


class Custom:
    """`Reward`: what a user's ``package.module:function`` returns."""

    failures = 0

    def __init__(self, name: str) -> None:
        module, _, function = name.partition(":")
        self.name = name
        self.function: Function = getattr(_import(module), function)

    def __call__(self, questions: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response; raise `RunError` where it is no finite number."""
        return [self._one(q, response) for q, response in zip(questions, responses, strict=True)]

    def _one(self, question: Problem, response: str) -> float:
        where = f"reward {self.name}, problem {question.id!r}, response {response[:200]!r}"
        try:
            value = self.function(question.prompt, response, question.answer)
        except (Exception, SystemExit) as error:  # it is the user's code
            raise RunError(f"{where}: it raised {type(error).__name__}: {error}") from error
        if not isinstance(value, numbers.Real | np.bool_) or not _is_finite(value):
            raise RunError(f"{where}: it returned {value!r}; accepted: a finite number")
        return float(value)

    def close(self) -> None:
        """Nothing is open."""


class Math:
    """`Reward`: math-verify in worker processes; what takes longer than ``limit`` seconds is wrong.

    ``failures`` counts the responses that were given up, for their time or because they took a worker
    down with them.
    """

    def __init__(self, workers: int = 2, limit: float = LIMIT_S) -> None:
        self.failures = 0
        self.limit = limit
        self._threads = ThreadPoolExecutor(workers)
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(workers):
            self._idle.put(_Worker(limit))

    def __call__(self, questions: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response; equal responses to a problem are looked at once.

        Raises
        ------
        RunError
            math-verify cannot read the answer of a problem, so that nothing would ever be right.
        """
        pairs = [(q.answer, response) for q, response in zip(questions, responses, strict=True)]
        different = list(dict.fromkeys(pairs))
        found = dict(zip(different, self._threads.map(self._one, different), strict=True))
        for question, pair in zip(questions, pairs, strict=True):
            if found[pair] == "unreadable":
                raise RunError(f"problem {question.id!r}: math-verify cannot read its answer {pair[0]!r}")
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
    """A process that runs `serve`, started when it is needed and again when it was lost."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.process: subprocess.Popen[bytes] | None = None

    def ask(self, pair: tuple[str, str]) -> Any:
        """Return True, False or "unreadable", and None where the worker failed or did not come back."""
        if self.process is None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(pair).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            line = b""
        else:
            line = self._line(self.limit + _GRACE_S)
        if line:
            return json.loads(line)
        self.end()
        return None

    def _start(self) -> None:
        code = f"from {Math.__module__} import serve; serve({self.limit})"
        command = [sys.executable, "-P", "-c", code]  # -P: a math.py that lies about is not the library's
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if not self._line(_START_S):
            self.end()
            raise RunError(f"the worker of the math reward does not start: {' '.join(command)}")

    def _line(self, seconds: float) -> bytes:
        """The next line that it writes, or nothing where it is dead or silent."""
        assert self.process is not None
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline() if ready else b""

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def _import(module: str) -> ModuleType:
    """Import a module, which may lie in the working directory, as with ``python -m``."""
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
    """Answer, a line each, the pairs of answer and response that come a line each, until there are no more.

    The alarm is set for each pair and nobody handles it, so the kernel ends a process that is late,
    whatever it is doing and even when whoever asked is gone.
    """
    import logging
    import resource

    from math_verify import parse, verify  # type: ignore[import-untyped,import-not-found]

    logging.disable(logging.CRITICAL)  # it warns that its own time-outs are off
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's; this one ends with its input
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is not a reply

    def judge(answer: str, response: str) -> bool | str:
        plain = "$" in answer or "\\boxed" in answer
        expected = parse(answer if plain else f"${answer}$", parsing_timeout=None)
        if not expected:
            return "unreadable"
        return bool(verify(expected, parse(response, parsing_timeout=None), timeout_seconds=None))

    judge("1", "1")  # what the first one takes longer is not an answer's
    replies.write("ready\n")
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            reply: bool | str | None = judge(*json.loads(line))
        except Exception:  # of an expression too large or too deep for sympy
            reply = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        replies.write(json.dumps(reply) + "\n")
