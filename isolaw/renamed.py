"""Support the keywords of earlier versions, in Python and on the command line.

An old name works for one more minor release, with a warning that gives the new name.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, cast

KEYWORDS = {"setting": "hold", "fixed": "where", "bootstrap": "draws"}
# The value of ``hold`` (the quantity that a law keeps fixed) for each former value of ``setting``.
HOLDS = {"fixed-bp": "B_p", "fixed-b": "B", "fixed-n": "n", "joint": "nothing"}
Modern = TypeVar("Modern", bound=Callable[..., Any])


def renamed(function: Modern) -> Modern:
    """Return a function that also accepts the former names of its keywords, with a `DeprecationWarning`.

    >>> @renamed
    ... def f(hold="B_p"):
    ...     return hold
    >>> with warnings.catch_warnings(record=True) as found:
    ...     f(setting="joint")
    'nothing'
    >>> str(found[0].message)
    "f: setting='joint' is now hold='nothing'"
    """
    own = inspect.signature(function).parameters
    passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values())

    @functools.wraps(function)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        for old, new in KEYWORDS.items():
            if old in keywords and (new in own or passes_on):
                if new in keywords:
                    raise TypeError(f"{function.__name__}: found both {old} and {new}; expected {new} alone")
                value = keywords.pop(old)
                today = HOLDS.get(value, value) if old == "setting" else value
                was, now = (f"{old}={value!r}", f"{new}={today!r}") if today is not value else (old, new)
                warnings.warn(f"{function.__name__}: {was} is now {now}", DeprecationWarning, stacklevel=2)
                keywords[new] = today
        return function(*args, **keywords)

    return cast(Modern, wrapper)
