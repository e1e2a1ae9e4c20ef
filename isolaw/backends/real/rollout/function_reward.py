"""Compute rewards by a user's function, in worker processes with a time limit (`workers`).

========================================  =========================================  ====================
function                                  arguments of a call                        ``limit`` applies to
========================================  =========================================  ====================
``def f(prompt, response, answer)``       one response                               one call
``async def f(prompt, response, answer)`` one; up to `AT_ONCE` calls are concurrent  one call
``def f(prompts, responses, answers)``    lists of up to `AT_ONCE`; returns a list   the call for all
``async def f(prompts, …)``               as above                                   as above
========================================  =========================================  ====================

A function whose parameters have these plural names is batched. It must score each response independently,
because isolaw chooses the responses of a batch. The calls of an asynchronous function share one event loop
for the lifetime of a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import math
import numbers
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from isolaw.backends.real.rollout import workers as processes
from isolaw.backends.real.rollout.problems import Problem
from isolaw.backends.real.rollout.rewards import Reward, function_of
from isolaw.errors import RunError

LIMIT_S = 60.0
AT_ONCE = 64
_BATCH = ["prompts", "responses", "answers"]
_SLACK_S = 1.0  # time for the event loop to cancel late calls before the alarm kills the process


class Function(Reward):
    """A reward that is the number returned by a user's function, or 0 if the call fails.

    A call fails after ``limit`` seconds, or if the function ends its process. Raise `RunError` if the
    function raises or returns anything except finite numbers, and after `workers.IN_A_ROW` consecutive
    failures.
    """

    pool: processes.WorkerPool

    def __init__(
        self, name: str, workers: int = 2, limit: float | None = None, folder: str | None = None
    ) -> None:
        self.name, self.workers = name, workers
        limit = limit or LIMIT_S
        function = function_of(name, folder)
        whole = _is_batched(function) or inspect.iscoroutinefunction(function)
        # The worker has the module search path of this process and, at its end, the function's folder.
        code = (
            "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"
            f"from {__name__} import serve; serve(sys.argv[2], {limit})"
        )
        search = json.dumps([*sys.path, *([folder] if folder else [])])
        command = processes.command(code, search, name)
        self.pool = processes.WorkerPool(command, workers, limit, f"reward {name}", whole)

    def __call__(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response to the problem at the same index."""
        rows = [(p.prompt, response, p.answer) for p, response in zip(problems, responses, strict=True)]
        # Batches do not depend on the number of workers. Single calls are spread to keep all workers busy.
        at_once = AT_ONCE if self.pool.whole else min(AT_ONCE, -(-len(rows) // (4 * self.workers)) or 1)
        replies = self.pool.replies(rows, at_once)
        for problem, (_, response, _), reply in zip(problems, rows, replies, strict=True):
            if isinstance(reply, str):
                raise RunError(
                    f"reward {self.name}, problem {problem.id!r}, response {response[:200]!r}: {reply}"
                )
        self.failures += sum(reply is None for reply in replies)
        return [0.0 if reply is None else reply for reply in replies]


def _is_batched(function: Callable[..., Any]) -> bool:
    """Return whether a function accepts lists, judging by the names of its parameters.

    >>> _is_batched(lambda prompts, responses, answers: [1.0]), _is_batched(lambda p, r, a: 1.0)
    (True, False)
    """
    try:
        return list(inspect.signature(function).parameters) == _BATCH
    except ValueError:  # functions written in C can lack a signature
        return False


def serve(name: str, limit: float) -> None:
    """Score rows of prompt, response and answer in a worker.

    The reply to a row is a number, None for a late call, or an error message.
    """
    channel = processes.Channel()
    function = function_of(name)
    batched, asynchronous = _is_batched(function), inspect.iscoroutinefunction(function)

    async def awaited(*arguments: Any) -> Any:
        try:
            async with asyncio.timeout(limit):
                return await function(*arguments)
        except (Exception, SystemExit) as error:
            return error

    async def side_by_side(rows: list[processes.JsonRow]) -> list[Any]:
        return await asyncio.gather(*(awaited(*row) for row in rows))

    def called(*arguments: Any) -> Any:
        try:
            return runner.run(awaited(*arguments)) if asynchronous else function(*arguments)
        except (Exception, SystemExit) as error:
            return error

    def replies(rows: list[processes.JsonRow]) -> Iterator[float | str | None]:
        if batched:
            with processes.alarm(limit + _SLACK_S * asynchronous):
                rewards = called(*map(list, zip(*rows, strict=True)))
            yield from _of_batch(rewards, len(rows))
        elif asynchronous:
            with processes.alarm(limit + _SLACK_S):
                rewards = runner.run(side_by_side(rows))
            yield from map(_checked, rewards)
        else:
            for row in rows:
                with processes.alarm(limit):
                    value = called(*row)
                yield _checked(value)

    with asyncio.Runner() as runner:
        channel.serve(replies)


def _of_batch(returned: Any, count: int) -> list[float | str | None]:
    """Return the replies for a batched function's return value or exception."""
    if isinstance(returned, BaseException):
        return [_checked(returned)] * count
    if not isinstance(returned, Sequence | np.ndarray) or isinstance(returned, str) or len(returned) != count:
        size = f"{len(returned)} values" if hasattr(returned, "__len__") else f"{returned!r}"
        return [f"it returned {size} for {count} responses; expected a list of {count} numbers"] * count
    return [_checked(value) for value in returned]


def _checked(value: Any) -> float | str | None:
    """Return a call's result as a number, None for a late call, or an error message for any other result."""
    if isinstance(value, TimeoutError):
        return None
    if isinstance(value, BaseException):
        return f"it raised {type(value).__name__}: {value}"
    number = math.nan
    with contextlib.suppress(OverflowError):  # an integer too large for a float
        number = float(value) if isinstance(value, numbers.Real | np.bool_) else math.nan
    return number if math.isfinite(number) else f"it returned {value!r}; expected a finite number"
