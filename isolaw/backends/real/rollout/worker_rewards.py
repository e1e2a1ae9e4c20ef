"""Score responses in worker processes (`reward_processes`): the reward ``math``, and a user's function.

math-verify needs processes because sympy never finishes with some expressions, and its own time limits need
SIGALRM in the main thread of the trainer.
"""

from __future__ import annotations

import contextlib
import json
import math
import numbers
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from isolaw.backends.real.rollout import reward_processes
from isolaw.backends.real.rollout.problems import Problem
from isolaw.backends.real.rollout.rewards import Reward, function_of
from isolaw.errors import RunError

_MATH_S = 5.0
_TOO_LARGE, _UNREADABLE = "too large", "unreadable"
# Answers that math-verify certainly reads: numbers and fractions.
_PLAIN_ANSWER = re.compile(r"-?(?:\d+(?:,\d{3})*(?:\.\d+)?|\\[dt]?frac\{-?\d+\}\{\d+\})")
# Text that says itself where its mathematics is; \$ is the sign of dollars.
_DELIMITED = re.compile(r"(?<!\\)\$.+(?<!\\)\$|\\boxed|\\\(|\\\[", re.S)
_MEMORY_BYTES = 4 * 2**30  # address space of a worker, so that 9^9^9^9 cannot exhaust the host's memory
_FUNCTION_S = 60.0
_LARGEST_CHUNK = 64  # maximum number of responses to send to a worker at a time


class Math(Reward):
    """A reward of 1 if math-verify finds the answer's expression in the response, else 0.

    math-verify gets ``limit`` seconds per response. ``failures`` counts responses that took too long, were
    too large, or ended their worker.
    """

    pool: reward_processes.WorkerPool

    def __init__(self, workers: int = 2, limit: float | None = None) -> None:
        limit = limit or _MATH_S
        command = reward_processes.command(f"from {__name__} import _serve_math; _serve_math({limit})")
        self.pool = reward_processes.WorkerPool(command, workers, limit, "math reward")

    def __call__(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response; judge equal responses to a problem only once.

        Raise `RunError` if math-verify cannot read an answer, because no response could then be correct.
        """
        pairs = [(p.answer, response) for p, response in zip(problems, responses, strict=True)]
        distinct = list(dict.fromkeys(pairs))
        replies = dict(zip(distinct, self.pool.replies(distinct), strict=True))
        for problem, pair in zip(problems, pairs, strict=True):
            if replies[pair] == _UNREADABLE:
                raise RunError(f"problem {problem.id!r}: math-verify cannot parse the answer {pair[0]!r}")
        self.failures += sum(replies[pair] in (None, _TOO_LARGE) for pair in pairs)
        return [float(replies[pair] is True) for pair in pairs]

    def unreadable(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return the problems whose answers math-verify cannot parse within the limit."""
        answers = list(dict.fromkeys(p.answer for p in problems if not _PLAIN_ANSWER.fullmatch(p.answer)))
        replies = dict(zip(answers, self.pool.replies([(answer, "") for answer in answers]), strict=True))
        return [p for p in problems if replies.get(p.answer, False) in (None, _UNREADABLE, _TOO_LARGE)]


def _readings(answer: str) -> list[str]:
    """Return the texts in which math-verify may find an answer, the first choice first."""
    boxed = f"\\boxed{{{answer}}}"
    if _DELIMITED.search(answer):
        return [answer, boxed]
    return [boxed, f"${answer}$"] if "\\$" in answer else [f"${answer}$", boxed]


def _serve_math(limit: float) -> None:
    """Judge pairs of answer and response; replies are True, False, "unreadable" or "too large"."""
    import logging
    import resource

    channel = reward_processes.Channel()

    from math_verify import parse, verify  # type: ignore[import-untyped,import-not-found]

    logging.disable(logging.CRITICAL)  # math-verify warns that its own time-outs are off
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))

    def judge(answer: str, response: str) -> bool | str:
        parsed = (parse(text, parsing_timeout=None) for text in _readings(answer))
        if (expected := next(filter(None, parsed), None)) is None:
            return _UNREADABLE
        return bool(verify(expected, parse(response, parsing_timeout=None), timeout_seconds=None))

    def replies(pairs: list[reward_processes.JsonRow]) -> Iterator[bool | str]:
        for answer, response in pairs:
            try:
                with reward_processes.alarm(limit):
                    reply = judge(answer, response)
            except Exception:  # the expression is too large or too deep for sympy
                reply = _TOO_LARGE
            yield reply

    judge("1", "1")  # warm-up: the first call takes longer
    channel.serve(replies)


class Function(Reward):
    """A reward that is the number returned by a user's function, or 0 if the call fails.

    A call fails after ``limit`` seconds, or if the function ends its process. Raise `RunError` if the
    function raises or returns anything except a finite number, and after `reward_processes.FAILURES_IN_A_ROW`
    consecutive failures.
    """

    pool: reward_processes.WorkerPool

    def __init__(
        self, name: str, workers: int = 2, limit: float | None = None, folder: str | None = None
    ) -> None:
        self.name, self.workers = name, workers
        limit = limit or _FUNCTION_S
        # The worker has the module search path of this process and, at its end, the function's folder.
        code = (
            "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
            f"from {__name__} import _serve_function; _serve_function(sys.argv[2], {limit})"
        )
        search = json.dumps([*sys.path, *([folder] if folder else [])])
        self.pool = reward_processes.WorkerPool(
            reward_processes.command(code, search, name), workers, limit, f"reward {name}"
        )

    def __call__(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response to the problem at the same index."""
        rows = [(p.prompt, response, p.answer) for p, response in zip(problems, responses, strict=True)]
        chunk_size = min(_LARGEST_CHUNK, -(-len(rows) // (4 * self.workers)) or 1)  # keeps all workers busy
        replies = self.pool.replies(rows, chunk_size)
        for problem, (_, response, _), reply in zip(problems, rows, replies, strict=True):
            if isinstance(reply, str):
                raise RunError(
                    f"reward {self.name}, problem {problem.id!r}, response {response[:200]!r}: {reply}"
                )
        self.failures += sum(reply is None for reply in replies)
        return [0.0 if reply is None else reply for reply in replies]


def _serve_function(name: str, limit: float) -> None:
    """Score rows of prompt, response and answer in a worker; the reply is a number or an error message."""
    channel = reward_processes.Channel()
    function = function_of(name)

    def replies(rows: list[reward_processes.JsonRow]) -> Iterator[float | str]:
        for row in rows:
            try:
                with reward_processes.alarm(limit):
                    value = function(*row)
            except (Exception, SystemExit) as error:
                yield f"it raised {type(error).__name__}: {error}"
            else:
                yield _finite_number(value)

    channel.serve(replies)


def _finite_number(value: Any) -> float | str:
    """Return a function's value as a number, or an error message if it is no finite number."""
    number = math.nan
    with contextlib.suppress(OverflowError):  # an integer too large for a float
        number = float(value) if isinstance(value, numbers.Real | np.bool_) else math.nan
    return number if math.isfinite(number) else f"it returned {value!r}; expected a finite number"
