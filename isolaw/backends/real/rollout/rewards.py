"""Rewards of responses, which compare them with the problems' answers.

``exact``
    1 if the response is the answer, apart from white space around them, else 0.
``math``
    1 if math-verify finds the answer's expression in the response (``\\boxed{1/2}`` for ``0.5``), else 0
    (`math_reward`).
``package.module:function``
    the number that ``function(prompt, response, answer)`` returns; it may be asynchronous or take lists
    (`function_reward`).
``rollout``
    the number that the rollout function returned with its conversation (`function_rollout`).

avg@k, best@k and worst@k count *correct* answers: those with a reward of at least 1. Of several rewards the
first decides which answers are correct; training uses their weighted sum.
"""

from __future__ import annotations

import hashlib
import importlib.util
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolaw import commands
from isolaw.backends.real.rollout.problems import Problem
from isolaw.backends.real.rollout.reward import Reward, check_function, import_user_module
from isolaw.errors import Issue, SpecError

NAMES = ("exact", "math")
ROLLOUT = "rollout"


def get(name: str, workers: int = 2, limit: float | None = None) -> Reward:
    """Return the reward of that name, which the caller closes; raise `SpecError` for an unknown one.

    ``workers`` processes judge; ``limit`` is in seconds, by default the reward's own.

    >>> reward = get("exact")
    >>> problem = Problem("17+25", "17+25=", "42")
    >>> reward([problem, problem], [" 42", "43"])
    [1.0, 0.0]
    """
    if issues := check(name):
        raise SpecError(issues)
    if name == "exact":
        return Reward(lambda problem, response: float(response.strip() == problem.answer.strip()))
    if name != "math":
        from isolaw.backends.real.rollout.function_reward import Function

        return Function(name, workers, limit)
    from isolaw.backends.real.rollout.math_reward import Math

    return Math(workers, limit)


class Rewards:
    """Several rewards of the same responses, each with its weight; the first decides which are correct."""

    def __init__(
        self,
        names: Sequence[str],
        weights: Sequence[float] | None = None,
        workers: int = 2,
        limit: float | None = None,
    ) -> None:
        self.names = list(names)
        self.weights = np.array(weights or [1.0] * len(names))
        self._each = [get(name, workers, limit) for name in names if name != ROLLOUT]

    @property
    def failures(self) -> int:
        """Number of responses without a verdict of one of the rewards."""
        return sum(own.failures for own in self._each)

    def __call__(
        self, problems: Sequence[Problem], responses: Sequence[str], returned: Sequence[float] = ()
    ) -> NDArray[np.float64]:
        """Return each reward of each response, (responses, rewards), without weights.

        ``returned`` are those of the rollout function. Warns of responses without one, by kind.
        """
        before = self.failures
        judged = (own(problems, responses) for own in self._each)
        values = [list(returned) if name == ROLLOUT else next(judged) for name in self.names]
        if self.failures > before:
            kinds = Counter[str]()
            for own in self._each:
                kinds.update(own.kinds)
            said = ", ".join(f"{number:,} {kind}" for kind, number in sorted(kinds.items()))
            lost = f"{self.failures - before:,} of {len(responses):,} responses received no verdict"
            warnings.warn(f"{lost}{f' (so far: {said})' if said else ''}", stacklevel=2)
        return np.array(values, dtype=np.float64).reshape(len(self.names), len(responses)).T

    def close(self) -> None:
        """End all processes that the rewards started."""
        for own in self._each:
            own.close()


def check(name: str, where: str = "real.reward") -> list[Issue]:
    """Return the issues of a reward's name; this imports a function's module."""
    if name == "math" and importlib.util.find_spec("math_verify") is None:
        return [Issue(where, f"math-verify is not installed: {commands.install('math-verify')}", name)]
    if name in NAMES:
        return []
    return check_function(name, where, ("prompt", "response", "answer"), NAMES)


def digest(name: str) -> str | None:
    """Return the SHA-256 of the file that holds a function, a part of a run's identity; else None."""
    module, colon, _ = name.partition(":")
    file = getattr(import_user_module(module), "__file__", None) if colon else None
    return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()


def correct(values: ArrayLike) -> NDArray[np.bool_]:
    """Return which responses count as correct, by their rewards, any shape.

    >>> correct([1.0, 0.5, -1.0]).tolist()
    [True, False, False]
    """
    return np.asarray(values) >= 1.0
