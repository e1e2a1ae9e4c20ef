"""Compute rewards by a user's function in worker processes with a time limit (`workers`)."""

from __future__ import annotations

import contextlib
import json
import math
import numbers
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from isolaw.backends.real.rollout import workers as processes
from isolaw.backends.real.rollout.problems import Problem
from isolaw.backends.real.rollout.rewards import Reward, function_of
from isolaw.errors import RunError

LIMIT_S = 60.0
_AT_ONCE = 64  # maximum number of responses to send to a worker at a time


class Function(Reward):
    """A reward that is the number returned by a user's function, or 0 if the call fails.

    A call fails after ``limit`` seconds, or if the function ends its process. Raise `RunError` if the
    function raises or returns anything except a finite number, and after `workers.IN_A_ROW` consecutive
    failures.
    """

    pool: processes.WorkerPool

    def __init__(
        self, name: str, workers: int = 2, limit: float | None = None, folder: str | None = None
    ) -> None:
        self.name, self.workers = name, workers
        limit = limit or LIMIT_S
        # The worker has the module search path of this process and, at its end, the function's folder.
        code = (
            "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
            f"from {__name__} import serve; serve(sys.argv[2], {limit})"
        )
        search = json.dumps([*sys.path, *([folder] if folder else [])])
        self.pool = processes.WorkerPool(
            processes.command(code, search, name), workers, limit, f"reward {name}"
        )

    def __call__(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response to the problem at the same index."""
        rows = [(p.prompt, response, p.answer) for p, response in zip(problems, responses, strict=True)]
        at_once = min(_AT_ONCE, -(-len(rows) // (4 * self.workers)) or 1)  # keeps all workers busy
        replies = self.pool.replies(rows, at_once)
        for problem, (_, response, _), reply in zip(problems, rows, replies, strict=True):
            if isinstance(reply, str):
                raise RunError(
                    f"reward {self.name}, problem {problem.id!r}, response {response[:200]!r}: {reply}"
                )
        self.failures += sum(reply is None for reply in replies)
        return [0.0 if reply is None else reply for reply in replies]


def serve(name: str, limit: float) -> None:
    """Score rows of prompt, response and answer in a worker; the reply is a number or an error message."""
    channel = processes.Channel()
    function = function_of(name)

    def replies(rows: list[processes.JsonRow]) -> Iterator[float | str]:
        for row in rows:
            try:
                with processes.alarm(limit):
                    value = function(*row)
            except (Exception, SystemExit) as error:
                yield f"it raised {type(error).__name__}: {error}"
            else:
                yield _checked(value)

    channel.serve(replies)


def _checked(value: Any) -> float | str:
    """Return a function's value as a number, or an error message if it is no finite number."""
    number = math.nan
    with contextlib.suppress(OverflowError):  # an integer too large for a float
        number = float(value) if isinstance(value, numbers.Real | np.bool_) else math.nan
    return number if math.isfinite(number) else f"it returned {value!r}; expected a finite number"
