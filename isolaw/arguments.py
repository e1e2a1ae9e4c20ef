"""Check the arguments of a public function before its work begins.

The annotations of a function state the types of its arguments. `_LIMITS` states the range of the arguments
that several functions have, such as ``draws`` and ``seed``.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar, Union, cast

from isolaw.errors import InputError, wrong_argument
from isolaw.files import is_utf8
from isolaw.step_cost import parse_budget

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

Checked = TypeVar("Checked", bound=Callable[..., Any])

MOST_DRAWS = 10_000
_LARGEST = 2**63 - 1  # limit on integers, which tables and files store in 64 bits
_LONGEST_PATH, _LONGEST_NAME = 4096, 255  # limits of common file systems, in bytes
_INVALID = object()
# For each name, what messages say is accepted, and the range of a number.
_LIMITS: dict[str, tuple[str, float, float]] = {
    "draws": (f"0 to {MOST_DRAWS} draws", 0, MOST_DRAWS),
    "seed": ("a whole number from 0 to 2^63 - 1", 0, _LARGEST),
    "max_batch_rollouts": ("a number of rollouts, at least 1", 1, _LARGEST),
    "n_train_problems": ("a positive number of problems", 1, _LARGEST),
    "target": ("a finite number", -_LARGEST, _LARGEST),
    "price": ("a positive price per hour", 1e-9, _LARGEST),
    "fit_below": ("a measured compute", 0, _LARGEST),
}
# For other names, what messages say is accepted if the annotation says too little.
_ACCEPTED = {
    "compute": "one budget in rollouts, e.g. 1e6 or '1M'",
    "spec": "a SweepSpec, a mapping or a TOML file; to play recorded runs back: "
    'isolaw.sweep({"sweep": {"backend": "replay"}, "replay": {"source": runs}})',
    "cost": "the result of isolaw.read_cost",
    "where": 'values of columns, e.g. {"B_p": 32}',
    "metric": "the name of a metric, e.g. avg@4",
    "eval_set": "the name of an evaluation set, e.g. validation",
    "points": "a DataFrame. isolaw.read(df, columns={…}, set={…}) makes runs of another table",
    "attributes": "the attributes of each run_id, e.g. {run_id: {'lr': 1e-6}}",
    "run_ids": "a list of run_ids",
}
# For other names, the function that raises `InputError` for a value of the right type.
_CHECKS: dict[str, Callable[[Any], object]] = {"compute": parse_budget}


def checked(function: Checked) -> Checked:
    """Return a function that raises `InputError` for a wrong argument before its work begins.

    Numbers and strings of other libraries become those of Python.

    >>> @checked
    ... def fit(draws: int = 400, hold: Literal["B_p", "n"] = "B_p") -> int:
    ...     return draws
    >>> fit(8)
    8
    >>> fit(draws=-1)
    Traceback (most recent call last):
    isolaw.errors.InputError: draws: found -1; expected 0 to 10000 draws
    >>> fit(hold="B")
    Traceback (most recent call last):
    isolaw.errors.InputError: hold: found 'B'; expected B_p or n
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **keywords: Any) -> Any:
        try:
            bound = signature.bind(*args, **keywords)
        except TypeError:  # the call itself raises it, with a better message
            return function(*args, **keywords)
        hints = _hints(function)
        for name, value in bound.arguments.items():
            kind, hint = signature.parameters[name].kind, hints.get(name, Any)
            if kind is inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(_checked_argument(name, item, hint) for item in value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                keyword_hints = _keywords_of(hint)
                bound.arguments[name] = {
                    key: _checked_argument(key, item, keyword_hints.get(key, Any))
                    for key, item in value.items()
                }
            else:
                bound.arguments[name] = _checked_argument(name, value, hint)
        return function(*bound.args, **bound.kwargs)

    return cast(Checked, wrapper)


def _checked_argument(name: str, value: Any, hint: Any) -> Any:
    """Return a value as plain Python; raise `InputError` if its type or its range is wrong."""
    if name == "self" or hint is Any:
        return value
    no_limits = (_ACCEPTED.get(name) or _accepted_text(hint), -math.inf, math.inf)
    expected, low, high = _LIMITS.get(name, no_limits)
    if isinstance(value, str | os.PathLike) and _accepts_path(hint):
        check_path(name, value)
    elif name in ("metric", "eval_set") and isinstance(value, str) and not is_utf8(value):
        raise wrong_argument(name, value, expected)
    plain = _converted(value, hint)
    if plain is _INVALID:
        raise wrong_argument(name, value, expected)
    if plain is None:
        return plain
    is_number = any(_class_of(member) in (int, float) for member in _union_members(hint))
    if name in _CHECKS:
        _CHECKS[name](plain)
    elif (
        is_number and isinstance(plain, int | float) and not (abs(plain) < math.inf and low <= plain <= high)
    ):
        raise wrong_argument(name, value, expected)
    return plain


def check_path(name: str, path: str | os.PathLike[str]) -> None:
    """Raise `InputError` if no file can have a path.

    >>> check_path("out", "")
    Traceback (most recent call last):
    isolaw.errors.InputError: out: found ''; expected a path
    """
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise wrong_argument(name, text, "a path")
    if "\0" in text:
        raise wrong_argument(name, text, "a path without NUL characters")
    try:
        raw = os.fsencode(text)
    except UnicodeEncodeError:
        raise wrong_argument(name, text, "a path without lone surrogates") from None
    if len(raw) > _LONGEST_PATH or any(len(part) > _LONGEST_NAME for part in raw.split(b"/")):
        limits = f"at most {_LONGEST_PATH} bytes, with names of at most {_LONGEST_NAME}"
        raise InputError(f"{name}: found a path of {len(raw):,} bytes; expected {limits}")


@functools.cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of arguments; that of the result may name a class that is not imported."""
    hints = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    return typing.get_type_hints(types.SimpleNamespace(__annotations__=hints), function.__globals__)


@functools.cache
def _keywords_of(hint: Any) -> dict[str, Any]:
    """Return the annotations of keywords that are annotated as ``Unpack[…]``."""
    members = typing.get_args(hint)
    return typing.get_type_hints(members[0]) if members else {}


def _union_members(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _class_of(hint: Any) -> Any:
    """Return the class of an annotation, such as ``Mapping`` for ``Mapping[str, Any]``."""
    return typing.get_origin(hint) or hint


def _accepts_path(hint: Any) -> bool:
    kinds = [_class_of(member) for member in _union_members(hint)]
    return any(isinstance(kind, type) and issubclass(kind, os.PathLike) for kind in kinds)


def _converted(value: Any, hint: Any) -> Any:
    """Return a value in the form that an annotation names, or `_INVALID`."""
    for member in _union_members(hint):
        if (out := _as_member(value, member)) is not _INVALID:
            return out
    return _INVALID


def _as_member(value: Any, hint: Any) -> Any:
    kind, inner = _class_of(hint), typing.get_args(hint)
    if hint is Any or (getattr(kind, "_is_protocol", False) and kind.__module__ != "collections.abc"):
        return value
    if hint is None or kind is types.NoneType:
        return None if value is None else _INVALID
    if kind is Literal:
        return str.__str__(value) if isinstance(value, str) and value in inner else _INVALID
    if kind is bool:
        return bool(value) if type(value).__name__ in ("bool", "bool_") else _INVALID
    if kind in (int, float):
        return _number(value, kind)
    if kind is str:
        return str.__str__(value) if isinstance(value, str) else _INVALID
    if kind is tuple:
        fits = isinstance(value, list | tuple) and (inner[-1:] == (...,) or len(value) == len(inner))
        if not fits:
            return _INVALID
        hints = inner[:1] * len(value) if inner[-1:] == (...,) else inner
        items = [_converted(item, item_hint) for item, item_hint in zip(value, hints, strict=True)]
        return _INVALID if any(item is _INVALID for item in items) else tuple(items)
    if kind is Callable:
        return (
            value
            if callable(value) and not isinstance(value, type) and _accepts_arguments(value, inner[0])
            else _INVALID
        )
    if kind is Mapping:
        is_valid = isinstance(value, Mapping) and all(
            _converted(key, inner[0]) is not _INVALID and _converted(entry, inner[1]) is not _INVALID
            for key, entry in value.items()
        )
        return value if is_valid else _INVALID
    if kind in (Sequence, Iterable):
        return _list(value, kind, inner[0])
    if kind is BinaryIO:  # files are no instances of it
        return value if hasattr(value, "write") else _INVALID
    if isinstance(kind, type):
        return value if isinstance(value, kind) else _INVALID
    return value


def _accepts_arguments(function: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Return whether a function can be called with these positional arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a function of another language that does not list its arguments
        return True
    return True


def numbers(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """Return an argument as an array of numbers; raise `InputError` if it has other values.

    >>> numbers("correct", ["a"])
    Traceback (most recent call last):
    isolaw.errors.InputError: correct: found ['a']; expected a list of numbers
    """
    import numpy as np

    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise wrong_argument(name, values, "a list of numbers") from None


def _number(value: Any, kind: type) -> Any:
    """Return a real number as ``int`` or ``float``; a whole number stays exact."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return _INVALID
    try:
        as_float = float(value)
        as_int = int(value) if as_float.is_integer() else None  # type: ignore[call-overload]
    except (OverflowError, ValueError):  # beyond floats
        return _INVALID
    if as_int is None or (kind is float and isinstance(value, float)):
        return _INVALID if kind is int else as_float
    return as_int if as_int == value and abs(as_int) <= _LARGEST else _INVALID


def _list(value: Any, kind: type, item_hint: Any) -> Any:
    """Return an iterable as a list if it has a length, so that a generator is not consumed."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return _INVALID
    try:
        len(value)  # type: ignore[arg-type]
    except TypeError:  # a generator, a 0-d array
        return value if kind is Iterable and not hasattr(value, "ndim") else _INVALID
    items = [_converted(item, item_hint) for item in value]
    return _INVALID if any(item is _INVALID for item in items) else items


def _accepted_text(hint: Any) -> str:
    """Return what messages say that an annotation accepts."""
    words: list[str] = []
    for member in _union_members(hint):
        kind = _class_of(member)
        if kind is Literal:
            words += typing.get_args(member)
        elif kind is Callable:
            count = len(typing.get_args(member)[0])
            words.append(f"a function of {count} argument{'s' * (count > 1)}")
        elif kind is not types.NoneType:
            words.append(_CLASS_NAMES.get(kind) or f"{getattr(kind, '__name__', 'another value')}")
    words = list(dict.fromkeys(words))
    return " or ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} or {words[-1]}"


_CLASS_NAMES: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a string",
    tuple: "a tuple",
    Mapping: "a mapping",
    Sequence: "a list",
    Iterable: "a list",
    os.PathLike: "a path",
    Path: "a path",
    BinaryIO: "a binary file",
}
