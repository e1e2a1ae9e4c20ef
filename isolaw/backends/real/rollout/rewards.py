"""Score responses by comparing them with the problems' answers.

``exact``
    1 if the response equals the answer, apart from surrounding white space, else 0.
``math``
    1 if math-verify finds the answer's expression in the response (``\\boxed{1/2}`` for ``0.5``), else 0
    (`worker_rewards`).
``package.module:function``
    The number that ``function(prompt, response, answer)`` returns (`worker_rewards`).

avg@k, best@k and worst@k count *correct* answers, which have a reward of at least 1.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolaw import commands
from isolaw.backends.real.rollout.problems import Problem
from isolaw.backends.real.rollout.reward_processes import WorkerPool
from isolaw.errors import Issue, SpecError, nearest
from isolaw.files import sha256

BUILT_IN = ("exact", "math")
_ANSWER_CHARACTERS = 60  # characters of an answer in a message
_FUNCTION_ARGUMENTS = ("prompt", "response", "answer")


class Reward:
    """A reward that scores responses one by one with the function ``score``, or in a ``pool`` of workers.

    ``failures`` counts responses without a verdict.
    """

    failures = 0
    pool: WorkerPool | None = None

    def __init__(self, score: Callable[[Problem, str], float]) -> None:
        self.score = score

    def __call__(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response to the problem at the same index."""
        return [self.score(problem, response) for problem, response in zip(problems, responses, strict=True)]

    def unreadable(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return the problems whose answers the reward cannot read, so that no response would be correct."""
        return []

    def close(self) -> None:
        """End all processes that the reward has started."""
        if self.pool:
            self.pool.close()

    @property
    def failures_by_kind(self) -> Counter[str]:
        """Number of failures of the workers, by kind."""
        return self.pool.failures if self.pool else Counter()


def get(
    name: str,
    workers: int = 2,
    limit: float | None = None,
    *,
    where: str = "real.reward",
    folder: str | None = None,
) -> Reward:
    """Return the reward with a given name; raise `SpecError` for the key ``where`` if it is unknown.

    The reward uses ``workers`` processes. ``limit`` is the time limit in seconds; None means the reward's
    default. ``folder`` can contain the module of a user's function. The caller must close the reward.

    >>> reward = get("exact")
    >>> problem = Problem("17+25", "17+25=", "42")
    >>> reward([problem, problem], [" 42", "43"])
    [1.0, 0.0]
    """
    if issues := check(name, where, folder) or check_code(name, where, folder):
        raise SpecError(issues)
    if name == "exact":
        return Reward(lambda problem, response: float(response.strip() == problem.answer.strip()))
    worker_rewards = importlib.import_module(f"{__package__}.worker_rewards")
    if name == "math":
        return worker_rewards.Math(workers, limit)  # type: ignore[no-any-return]
    return worker_rewards.Function(name, workers, limit, folder)  # type: ignore[no-any-return]


def check(name: str, where: str = "real.reward", folder: str | None = None) -> list[Issue]:
    """Return the issues of a reward's name, without importing the module of a user's function."""
    if name in BUILT_IN:
        return []
    module, _, function = name.partition(":")
    if not module or not function:
        accepted = f"{', '.join(BUILT_IN)}, or package.module:function"
        return [Issue(where, found=name, accepted=accepted, nearest=nearest(name, BUILT_IN))]
    if _find_module(module, folder) is None:
        close = f"{Path(module).stem}:{function}" if module.endswith(".py") else ""
        fault = f"no module {module!r} in {folder or 'the packages of Python'}"
        accepted = "" if close or not where.startswith("real.") else "its folder in real.modules"
        return [Issue(where, fault, name, accepted, nearest=close)]
    return []


def check_code(name: str, where: str = "real.reward", folder: str | None = None) -> list[Issue]:
    """Import the module of a user's reward, and return the issues of its function, or of packages."""
    if name == "math" and importlib.util.find_spec("math_verify") is None:
        return [Issue(where, f"math-verify is not installed: {commands.install('math-verify')}", name)]
    module, colon, function = name.partition(":")
    if not colon:
        return []
    try:
        imported = _import_user_module(module, folder)
    except (Exception, SystemExit) as error:  # raised by the user's code
        return [Issue(where, f"cannot import {module!r}: {type(error).__name__}: {error}", name)]
    reward = getattr(imported, function, None)
    if not callable(reward):
        functions = [key for key, value in vars(imported).items() if callable(value) and key[0] != "_"]
        close = nearest(function, functions)
        fault = "is not a function" if hasattr(imported, function) else "no such function"
        return [Issue(where, f"{module}: {fault}", function, nearest=close and f"{module}:{close}")]
    with contextlib.suppress(ValueError):  # functions written in C can lack a signature
        try:
            signature = inspect.signature(reward)
            signature.bind(*_FUNCTION_ARGUMENTS)
        except TypeError:
            fault = f"{module}: does not take ({', '.join(_FUNCTION_ARGUMENTS)})"
            return [Issue(where, fault, f"{function}{signature}")]
    return []


def answer_issues(name: str, problems: Sequence[Problem], where: str) -> list[Issue]:
    """Return an issue that lists all answers, with their lines, that a built-in reward cannot read."""
    if name not in BUILT_IN or check_code(name):
        return []
    reward = get(name, workers=min(len(os.sched_getaffinity(0)), 1 + len(problems) // 200))
    try:
        unreadable = reward.unreadable(problems)
    finally:
        reward.close()
    if not unreadable:
        return []
    lines = "; ".join(
        f"line {problem.line} {problem.answer[:_ANSWER_CHARACTERS]!r}"
        for problem in sorted(unreadable, key=lambda problem: problem.line)
    )
    note = f"the reward {name} cannot read {len(unreadable):,} of {len(problems):,} answers: {lines}"
    return [Issue(where, note)]


def function_of(name: str, folder: str | None = None) -> Callable[..., Any]:
    """Import and return a user's function by its name ``package.module:function``."""
    module, _, attribute = name.partition(":")
    return getattr(_import_user_module(module, folder), attribute)  # type: ignore[no-any-return]


def _import_user_module(module: str, folder: str | None = None) -> ModuleType:
    """Import a module from the module search path or, if it is not there, from ``folder``."""
    is_added = folder is not None and folder not in sys.path
    if is_added:
        sys.path.append(str(folder))
    try:
        return importlib.import_module(module)
    finally:
        if is_added:
            sys.path.remove(str(folder))


def _find_module(module: str, folder: str | None = None) -> ModuleSpec | None:
    """Find the module that `_import_user_module` would import, without importing it or its packages."""
    if module in sys.modules:
        return sys.modules[module].__spec__
    top, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(top)  # does not import a module without a dot in its name
    except ValueError:  # an empty name, or a module such as __main__
        return None
    if spec is None and folder is not None:
        spec = PathFinder.find_spec(top, [folder])
    for depth in range(len(parts)):
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = ".".join([top, *parts[: depth + 1]])
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec


def file_of(name: str, folder: str | None = None) -> Path | None:
    """Return the file that a user's function runs; None for a built-in reward or a module without a file."""
    module, colon, _ = name.partition(":")
    spec = _find_module(module, folder) if colon else None
    return Path(spec.origin).absolute() if spec and spec.has_location and spec.origin else None


def digest(name: str, folder: str | None = None) -> str | None:
    """Return the SHA-256 of the file that defines a user's function, which is part of a run's identity.

    Return None for a built-in reward, or if the function's module has no file.
    """
    file = file_of(name, folder)
    return None if file is None else sha256(file)


def is_correct(values: ArrayLike) -> NDArray[np.bool_]:
    """Return a mask of the correct responses, given rewards of any shape.

    >>> is_correct([1.0, 0.5, -1.0]).tolist()
    [True, False, False]
    """
    return np.asarray(values) >= 1.0
