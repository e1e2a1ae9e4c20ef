"""`Reward`: the interface of rewards, which judge responses; and the import of a user's function."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

from isolaw.backends.real.rollout.problems import Problem


def function_of(name: str) -> Callable[..., Any]:
    """Return a user's ``package.module:function``."""
    module, _, attribute = name.partition(":")
    return getattr(import_user_module(module), attribute)  # type: ignore[no-any-return]


def import_user_module(module: str) -> ModuleType:
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


class Reward:
    """The rewards of many responses, one by one; ``failures`` counts responses without a verdict.

    ``kinds`` counts the workers' own failures by their kind.
    """

    failures = 0
    kinds: Mapping[str, int] = MappingProxyType({})

    def __init__(self, one: Callable[[Problem, str], float]) -> None:
        self.one = one

    def __call__(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response to the problem at the same index."""
        return [self.one(problem, response) for problem, response in zip(problems, responses, strict=True)]

    def close(self) -> None:
        """End all processes that it started."""
