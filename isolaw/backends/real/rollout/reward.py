"""Define the interface of rewards, which score responses, and import users' functions."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from isolaw.backends.real.rollout.problems import Problem
from isolaw.errors import Issue, nearest


def function_of(name: str) -> Callable[..., Any]:
    """Import and return a user's function by its name ``package.module:function``."""
    module, _, attribute = name.partition(":")
    return getattr(import_user_module(module), attribute)  # type: ignore[no-any-return]


def import_user_module(module: str) -> ModuleType:
    """Import a module from the module search path or the working directory, as ``python -m`` does."""
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        return importlib.import_module(module)
    finally:
        if added:
            sys.path.remove(here)


def check_function(name: str, where: str, arguments: Sequence[str], names: Sequence[str] = ()) -> list[Issue]:
    """Return the issues of a user's function that must accept ``arguments``; this imports its module.

    ``names`` are the built-in names that a user can give instead; only messages use them.
    """
    module, _, function = name.partition(":")
    if not module or not function:
        accepted = f"{''.join(f'{one}, ' for one in names)}{'or ' if names else ''}package.module:function"
        return [Issue(where, found=name, accepted=accepted, nearest=nearest(name, names))]
    try:
        imported = import_user_module(module)
    except (Exception, SystemExit) as error:  # raised by the user's code
        close = f"{Path(module).stem}:{function}" if module.endswith(".py") else ""
        what = f"cannot import {module!r}: {type(error).__name__}: {error}"
        return [Issue(where, what, name, nearest=close)]
    found = getattr(imported, function, None)
    if not callable(found):
        functions = [key for key, value in vars(imported).items() if callable(value) and key[0] != "_"]
        close = nearest(function, functions)
        what = "is not a function" if hasattr(imported, function) else "no such function"
        return [Issue(where, f"{module}: {what}", function, nearest=close and f"{module}:{close}")]
    with contextlib.suppress(ValueError):  # functions written in C can lack a signature
        try:
            signature = inspect.signature(found)
            signature.bind(*arguments)
        except TypeError:
            what = f"{module}: does not take ({', '.join(arguments)})"
            return [Issue(where, what, f"{function}{signature}")]
    return []


class Reward:
    """A reward that scores responses one by one with the function ``one``.

    ``failures`` counts responses without a verdict. ``kinds`` counts failures of the workers by kind.
    """

    failures = 0
    kinds: Mapping[str, int] = MappingProxyType({})

    def __init__(self, one: Callable[[Problem, str], float]) -> None:
        self.one = one

    def __call__(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
        """Return the reward of each response to the problem at the same index."""
        return [self.one(problem, response) for problem, response in zip(problems, responses, strict=True)]

    def close(self) -> None:
        """End all processes that the reward has started."""
