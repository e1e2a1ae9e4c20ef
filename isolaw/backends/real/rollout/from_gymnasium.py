"""Make rollout functions from text environments with Gymnasium's interface (gymnasium.farama.org).

::

    # guesses.py; real.rollout = "guesses:rollout", real.reward = "rollout"
    from isolaw.backends.real.rollout.from_gymnasium import rollout_of
    rollout = rollout_of(lambda problem: Guess(int(problem.answer)))

An action is the model's text in one turn. An observation is the text or the messages that follow the action.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from isolaw.backends.real.rollout.function_rollout import LimitReached
from isolaw.backends.real.rollout.problems import Problem


def rollout_of(make: Callable[[Problem], Any]) -> Callable[[Problem, Any], Awaitable[Any]]:
    """Return the rollout function of the environment that ``make`` returns for a problem.

    The conversation begins with the problem's prompt and the observation from ``reset``, which is called with
    a seed that depends only on the problem. It ends when ``step`` reports termination or truncation, or when
    the rollout reaches a limit. The reward is the sum of the rewards of all steps. ``reset`` and ``step`` run
    in threads, so that a slow call does not delay other rollouts.

    >>> rollout_of(lambda problem: None).__name__
    'rollout'
    """

    async def rollout(problem: Problem, generate: Any) -> tuple[list[Any], float]:
        environment = make(problem)
        try:
            seed = int(problem.digest[:8], 16)
            observation, _ = await asyncio.to_thread(environment.reset, seed=seed, options=problem.columns)
            conversation, total, ended = [problem.prompt, observation], 0.0, False
            while not ended:
                try:
                    written = await generate(conversation)
                except LimitReached:
                    break
                stepped = await asyncio.to_thread(environment.step, str(written))
                observation, reward, terminated, truncated, _ = stepped
                conversation += [written, observation]
                total, ended = total + float(reward), terminated or truncated
        finally:
            environment.close()
        return conversation, total

    return rollout
