"""Run a user's rollout function in worker processes with a time limit (`workers`).

::

    async def rollout(problem, generate):
        conversation = [problem.prompt]
        while len(conversation) < 6:
            written = await generate(conversation)      # what the model writes next
            conversation.append(written)                # marked as the model's: `Written`
            if not written.startswith("?"):
                break
            conversation.append(calculate(written))     # the environment's
        return conversation                             # or: return conversation, reward

A conversation is a list of texts or of chat messages ``{"role": …, "content": …}``. A list of messages within
this list, such as a prompt, counts as its messages. A rollout can only append to its conversation, and each
text of the model must follow the conversation that `generate` was called with. Every token therefore keeps
the id and log-probability that it was drawn with. isolaw never tokenises the model's texts, and it tokenises
the environment's texts once.

All rollouts of a process share one event loop. Rollouts advance together, each until it calls `generate` or
ends. The time limit applies to each rollout and excludes waits for the model. If a function blocks the loop
for longer than the limit, its process is killed, and all rollouts in this process fail.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import numbers
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from isolaw.backends.real.rollout import workers as processes
from isolaw.backends.real.rollout.problems import Problem
from isolaw.backends.real.rollout.rewards import check_function, check_imported, function_of
from isolaw.errors import Issue

LIMIT_S = 300.0
_MOST_ADDED = 500_000  # characters of JSON that a rollout can add in a turn; `workers` limits replies to 1 MB
_SLACK_S = 1.0  # time for the event loop to cancel late rollouts before the alarm kills the process
Reply = dict[str, Any]


class Written(str):
    """The model's text in one turn, without special tokens; ``finished`` is False if it was cut off."""

    finished: bool = True


class LimitReached(Exception):
    """Raised by `generate` if a rollout has no turn or token left; the function can catch it and return."""


class RolloutFunction:
    """A user's rollout function in ``workers`` processes, with ``limit`` seconds for each rollout."""

    def __init__(
        self, name: str, workers: int = 2, limit: float | None = None, folder: str | None = None
    ) -> None:
        limit = limit or LIMIT_S
        command = processes.command_for(__name__, name, limit, folder)
        self._workers = [processes.Worker(command, limit, f"rollout {name}") for _ in range(workers)]
        self._threads = ThreadPoolExecutor(workers)

    def advance(self, told: dict[int, Any]) -> dict[int, Reply]:
        """Send each rollout the input that it waits for, and return its reply; keys are rollout numbers.

        The input of a new rollout is its problem. Later inputs are the model's text and whether it is
        finished, or None if the rollout has reached its limit. A reply has one of three forms. With ``added``
        (the messages added to the conversation) and ``tools``, the rollout waits for the model. With
        ``reward`` it has ended, and with ``failed`` (the reason) it has failed.
        """
        count = len(self._workers)
        shares = [{key: value for key, value in told.items() if key % count == k} for k in range(count)]
        parts = self._threads.map(self._ask, self._workers, shares)
        return {number: reply for part in parts for number, reply in part.items()}

    @staticmethod
    def _ask(worker: processes.Worker, told: dict[int, Any]) -> dict[int, Reply]:
        replies, kind = worker.ask(list(told.items())) if told else ([], "")
        lost = [{"failed": kind}] * (len(told) - len(replies))
        return dict(zip(told, [*replies, *lost], strict=True))

    def close(self) -> None:
        """End the worker processes."""
        self._threads.shutdown()
        for worker in self._workers:
            worker.end()


def check(name: str, where: str = "real.rollout", folder: str | None = None) -> list[Issue]:
    """Return the issues of a rollout function's name, without importing its module."""
    return check_function(name, where, folder)


def check_code(name: str, where: str = "real.rollout", folder: str | None = None) -> list[Issue]:
    """Import the module of a rollout function, and return the issues of the function."""
    if issues := check_imported(name, where, ("problem", "generate"), folder):
        return issues
    if not asyncio.iscoroutinefunction(function_of(name, folder)):
        return [Issue(where, "the function is not asynchronous", name, "async def f(problem, generate)")]
    return []


def serve(name: str, limit: float) -> None:
    """Serve the requests of `RolloutFunction.advance` in a worker process."""
    channel = processes.Channel()
    function = function_of(name)
    rollouts: dict[int, _Rollout] = {}

    async def advance(rows: list[processes.JsonRow]) -> list[Reply]:
        for number, told in rows:
            if isinstance(told, dict):
                rollouts[number] = _Rollout(function, Problem(**told), limit)
            elif number in rollouts:  # otherwise it was lost with an earlier process
                rollouts[number].told.put_nowait(told)
        lost = {"failed": "the rollout was lost with its process"}
        return [await rollouts[number].says.get() if number in rollouts else lost for number, _ in rows]

    def replies(rows: list[processes.JsonRow]) -> list[Reply]:
        with processes.alarm(limit + _SLACK_S):
            return runner.run(advance(rows))

    with asyncio.Runner() as runner:
        channel.serve(replies)


class _Rollout:
    """A rollout in its worker process: the function's asyncio task, and the conversation so far."""

    def __init__(self, function: Any, problem: Problem, limit: float) -> None:
        self.told: asyncio.Queue[Any] = asyncio.Queue()
        self.says: asyncio.Queue[Reply] = asyncio.Queue()
        self.conversation: list[Any] = []
        self.waiting = self.cut = False
        self.clock = asyncio.timeout(limit)
        self.task = asyncio.create_task(self._run(function, problem))

    async def _run(self, function: Any, problem: Problem) -> None:
        try:
            async with self.clock:
                self.says.put_nowait(self._ended(await function(problem, self.generate)))
        except LimitReached:
            self.says.put_nowait({"reward": None})
        except (Exception, SystemExit) as error:
            late = isinstance(error, TimeoutError) and self.clock.expired()
            said = processes.LATE if late else f"it raised {type(error).__name__}: {error}"
            self.says.put_nowait({"failed": said[:2000]})

    async def generate(self, conversation: Any, tools: Sequence[Any] | None = None) -> Written:
        """Return the model's next text for a conversation.

        The chat template lists the ``tools`` of the first call. Raise `LimitReached` if no turn or token is
        left, and `ValueError` if earlier parts of the conversation have changed.
        """
        if self.waiting or self.cut:
            why = (
                "the rollout reached its limit"
                if self.cut
                else "a rollout sends one request to the model at a time"
            )
            raise RuntimeError(f"generate: {why}")
        items = _flat(conversation)
        added = self._added(items)
        if len(json.dumps((added, tools))) > _MOST_ADDED:  # raises TypeError for values that JSON lacks
            raise ValueError(f"a turn's messages have more than {_MOST_ADDED:,} characters")
        loop, deadline = asyncio.get_running_loop(), self.clock.when()
        assert deadline is not None
        left, self.waiting = deadline - loop.time(), True
        self.clock.reschedule(None)
        try:
            self.says.put_nowait({"added": added, "tools": tools})
            told = await self.told.get()
        finally:
            self.waiting = False
            self.clock.reschedule(loop.time() + left)
        if told is None:
            self.cut = True
            raise LimitReached("the rollout has no turn or token left")
        written = Written(told[0])
        written.finished = told[1]
        self.conversation = [*copy.deepcopy(items), written]  # the user's code can edit messages in place
        return written

    def _added(self, items: list[Any]) -> list[Any]:
        """Return the items that the environment appended; raise `ValueError` if it changed earlier items."""
        known = len(self.conversation)
        for place, (item, own) in enumerate(zip(items, self.conversation, strict=False)):
            same = _content(item) == own if isinstance(own, Written) else item == own
            if not same:
                raise ValueError(f"the conversation's item {place} changed from {own!r} to {item!r}")
        if len(items) < known:
            raise ValueError(f"the conversation lost items: only {len(items)} of {known} remain")
        return items[known:]

    def _ended(self, returned: Any) -> Reply:
        conversation, reward = returned if isinstance(returned, tuple) else (returned, None)
        if not self.conversation:
            return {"failed": "it returned without a call of generate"}
        self._added(_flat(conversation))
        if reward is None:
            return {"reward": None}
        if not isinstance(reward, numbers.Real) or not math.isfinite(reward):
            return {"failed": f"it returned the reward {reward!r}; expected a finite number"}
        return {"reward": float(reward)}


def _flat(conversation: Any) -> list[Any]:
    """Return a conversation as a flat list of texts and messages; raise `TypeError` for anything else."""
    if isinstance(conversation, str | dict):
        conversation = [conversation]
    if not isinstance(conversation, list):
        raise TypeError(f"found {conversation!r:.200} as a conversation; expected a list")
    items = [part for item in conversation for part in (item if isinstance(item, list) else [item])]
    for item in items:
        if not isinstance(item, str) and not (isinstance(item, dict) and "role" in item):
            raise TypeError(f"found {item!r:.200} in a conversation; expected texts, or messages with a role")
    return items


def _content(item: Any) -> Any:
    """Return the content of an item if it is an assistant's message, else the item."""
    return item.get("content") if isinstance(item, dict) and item["role"] == "assistant" else item
