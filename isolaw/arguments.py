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
_WRONG = object()
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
            given = signature.bind(*args, **keywords)
        except TypeError:  # the call itself raises it, with a better message
            return function(*args, **keywords)
        hints = _hints(function)
        for name, value in given.arguments.items():
            kind, hint = signature.parameters[name].kind, hints.get(name, Any)
            if kind is inspect.Parameter.VAR_POSITIONAL:
                given.arguments[name] = tuple(_argument(name, item, hint) for item in value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                inner = _keywords_of(hint)
                given.arguments[name] = {
                    k: _argument(k, item, inner.get(k, Any)) for k, item in value.items()
                }
            else:
                given.arguments[name] = _argument(name, value, hint)
        return function(*given.args, **given.kwargs)

    return cast(Checked, wrapper)


def _argument(name: str, value: Any, hint: Any) -> Any:
    """Return a value as plain Python; raise `InputError` if its type or its range is wrong."""
    if name == "self" or hint is Any:
        return value
    expected, low, high = _LIMITS.get(name, (_ACCEPTED.get(name) or _words(hint), -math.inf, math.inf))
    if isinstance(value, str | os.PathLike) and _accepts_path(hint):
        check_path(name, value)
    elif name in ("metric", "eval_set") and isinstance(value, str) and not is_utf8(value):
        raise wrong_argument(name, value, expected)
    out = _converted(value, hint)
    if out is _WRONG:
        raise wrong_argument(name, value, expected)
    if out is None:
        return out
    if name in _CHECKS:
        _CHECKS[name](out)
    elif (
        _is_number(hint) and isinstance(out, int | float) and not (abs(out) < math.inf and low <= out <= high)
    ):
        raise wrong_argument(name, value, expected)
    return out


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
    given = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    return typing.get_type_hints(types.SimpleNamespace(__annotations__=given), function.__globals__)


@functools.cache
def _keywords_of(hint: Any) -> dict[str, Any]:
    """Return the annotations of keywords that are annotated as ``Unpack[…]``."""
    inner = typing.get_args(hint)
    return typing.get_type_hints(inner[0]) if inner else {}


def _members(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _kind(hint: Any) -> Any:
    """Return the class of an annotation, such as ``Mapping`` for ``Mapping[str, Any]``."""
    return typing.get_origin(hint) or hint


def _accepts_path(hint: Any) -> bool:
    kinds = [_kind(member) for member in _members(hint)]
    return any(isinstance(kind, type) and issubclass(kind, os.PathLike) for kind in kinds)


def _is_number(hint: Any) -> bool:
    return any(_kind(member) in (int, float) for member in _members(hint))


def _converted(value: Any, hint: Any) -> Any:
    """Return a value in the form that an annotation names, or `_WRONG`."""
    for member in _members(hint):
        if (out := _of_kind(value, member)) is not _WRONG:
            return out
    return _WRONG


def _of_kind(value: Any, hint: Any) -> Any:
    kind, inner = _kind(hint), typing.get_args(hint)
    if hint is Any or (getattr(kind, "_is_protocol", False) and kind.__module__ != "collections.abc"):
        return value
    if hint is None or kind is types.NoneType:
        return None if value is None else _WRONG
    if kind is Literal:
        return str.__str__(value) if isinstance(value, str) and value in inner else _WRONG
    if kind is bool:
        return bool(value) if type(value).__name__ in ("bool", "bool_") else _WRONG
    if kind in (int, float):
        return _number(value, kind)
    if kind is str:
        return str.__str__(value) if isinstance(value, str) else _WRONG
    if kind is tuple:
        fits = isinstance(value, list | tuple) and (inner[-1:] == (...,) or len(value) == len(inner))
        if not fits:
            return _WRONG
        each = inner[:1] * len(value) if inner[-1:] == (...,) else inner
        out = [_converted(item, its) for item, its in zip(value, each, strict=True)]
        return _WRONG if any(item is _WRONG for item in out) else tuple(out)
    if kind is Callable:
        return (
            value if callable(value) and not isinstance(value, type) and _takes(value, inner[0]) else _WRONG
        )
    if kind is Mapping:
        whole = isinstance(value, Mapping) and all(
            _converted(key, inner[0]) is not _WRONG and _converted(of_key, inner[1]) is not _WRONG
            for key, of_key in value.items()
        )
        return value if whole else _WRONG
    if kind in (Sequence, Iterable):
        return _list(value, kind, inner[0])
    if kind is BinaryIO:  # files are no instances of it
        return value if hasattr(value, "write") else _WRONG
    if isinstance(kind, type):
        return value if isinstance(value, kind) else _WRONG
    return value


def _takes(function: Callable[..., Any], arguments: Sequence[Any]) -> bool:
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
        return _WRONG
    try:
        near = float(value)
        whole = int(value) if near.is_integer() else None  # type: ignore[call-overload]
    except (OverflowError, ValueError):  # beyond floats
        return _WRONG
    if whole is None or (kind is float and isinstance(value, float)):
        return _WRONG if kind is int else near
    return whole if whole == value and abs(whole) <= _LARGEST else _WRONG


def _list(value: Any, kind: type, each: Any) -> Any:
    """Return an iterable as a list if it has a length, so that a generator is not consumed."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return _WRONG
    try:
        len(value)  # type: ignore[arg-type]
    except TypeError:  # a generator, a 0-d array
        return value if kind is Iterable and not hasattr(value, "ndim") else _WRONG
    out = [_converted(item, each) for item in value]
    return _WRONG if any(item is _WRONG for item in out) else out


def _words(hint: Any) -> str:
    """Return what messages say that an annotation accepts."""
    words: list[str] = []
    for member in _members(hint):
        kind = _kind(member)
        if kind is Literal:
            words += typing.get_args(member)
        elif kind is Callable:
            count = len(typing.get_args(member)[0])
            words.append(f"a function of {count} argument{'s' * (count > 1)}")
        elif kind is not types.NoneType:
            words.append(_NAMES.get(kind) or f"{getattr(kind, '__name__', 'another value')}")
    words = list(dict.fromkeys(words))
    return " or ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} or {words[-1]}"


_NAMES: dict[Any, str] = {
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
