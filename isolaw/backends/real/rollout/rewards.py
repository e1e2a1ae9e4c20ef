"""Score responses by comparing them with the problems' answers.

``exact``
    1 if the response equals the answer, apart from surrounding white space, else 0.
``math``
    1 if math-verify finds the answer's expression in the response (``\\boxed{1/2}`` for ``0.5``), else 0
    (`math_reward`).
``package.module:function``
    The number that ``function(prompt, response, answer)`` returns. The function can be asynchronous or accept
    lists (`function_reward`).
``rollout``
    The number that the rollout function returned with its conversation (`function_rollout`).

avg@k, best@k and worst@k count *correct* answers, which have a reward of at least 1. If there are several
rewards, the first decides which answers are correct, and training uses their weighted sum.
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
    """Return the reward with a given name; raise `SpecError` for an unknown name.

    The reward uses ``workers`` processes. ``limit`` is the time limit in seconds; None means the reward's
    default. The caller must close the reward.

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
    """Several weighted rewards of the same responses; the first decides which responses are correct."""

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
        """Number of missing verdicts, summed over the rewards."""
        return sum(own.failures for own in self._each)

    def __call__(
        self, problems: Sequence[Problem], responses: Sequence[str], returned: Sequence[float] = ()
    ) -> NDArray[np.float64]:
        """Return the unweighted rewards, as an array of shape (responses, rewards).

        ``returned`` contains the rewards that the rollout function returned. Warn about responses without a
        verdict, with the number of failures of each kind.
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
    """Return the issues of a reward's name; for a user's function, this imports its module."""
    if name == "math" and importlib.util.find_spec("math_verify") is None:
        return [Issue(where, f"math-verify is not installed: {commands.install('math-verify')}", name)]
    if name in NAMES:
        return []
    return check_function(name, where, ("prompt", "response", "answer"), NAMES)


def digest(name: str) -> str | None:
    """Return the SHA-256 of the file that defines a user's function, which is part of a run's identity.

    Return None for a built-in reward, or if the function's module has no file.
    """
    module, colon, _ = name.partition(":")
    file = getattr(import_user_module(module), "__file__", None) if colon else None
    return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()


def correct(values: ArrayLike) -> NDArray[np.bool_]:
    """Return a mask of the correct responses, given rewards of any shape.

    >>> correct([1.0, 0.5, -1.0]).tolist()
    [True, False, False]
    """
    return np.asarray(values) >= 1.0
