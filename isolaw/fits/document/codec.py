"""Dataclasses as JSON and back, by their fields: one way for all that ``law.json`` holds.

A field is a key of the same name, or of the name in its metadata (``field(metadata={"key": "from"})``).
Tuples are lists in JSON. What is read is checked against the types: a dataclass that was decoded has no field
of the wrong kind. Keys that no field has are passed over.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class Malformed(ValueError):
    """What was read is not of the type; the message says where."""


def encoded(value: Any) -> Any:
    """Return JSON-able data.

    >>> from isolaw.fits.quantity import Quantity
    >>> encoded((Quantity(64.0, (32.0, None), "lower_bound"),))
    [{'value': 64.0, 'interval': [32.0, None], 'status': 'lower_bound'}]
    """
    if is_dataclass(value):
        return {_key(f): encoded(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: encoded(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(own) for own in value]
    return str(value) if isinstance(value, str) else value


def decoded(cls: type[T], data: Any) -> T:
    """Return the dataclass that `encoded` made ``data`` of.

    Raises
    ------
    Malformed
        something is missing, or of another kind.

    >>> from isolaw.fits.quantity import Quantity
    >>> decoded(Quantity, {"value": 64, "interval": None, "status": "ok"})
    Quantity(value=64.0, interval=None, status='ok')
    >>> decoded(Quantity, {"value": "64", "interval": None, "status": "ok"})
    Traceback (most recent call last):
    isolaw.fits.document.codec.Malformed: value: expected a number, found '64'
    """
    return _decoded(cls, data, "")


def _decoded(hint: Any, data: Any, where: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return data
    if origin in (Union, types.UnionType):  # of a type and None, as all here are
        return None if data is None else _decoded(next(t for t in inner if t is not type(None)), data, where)
    if is_dataclass(hint):
        return _object(hint, _of(dict, data, where, "an object"), where)
    if origin is dict:
        held = _of(dict, data, where, "an object").items()
        return {key: _decoded(inner[1], own, _below(where, key)) for key, own in held}
    if origin is tuple:
        held = _of(list, data, where, "a list")
        each = [inner[0]] * len(held) if inner[-1] is Ellipsis else inner
        if len(each) != len(held):
            raise Malformed(f"{where}: expected {len(each)} values, found {len(held)}")
        return tuple(
            _decoded(t, own, f"{where}[{i}]") for i, (t, own) in enumerate(zip(each, held, strict=True))
        )
    if origin is Literal:
        if data not in inner:
            raise Malformed(f"{where}: expected one of {', '.join(map(repr, inner))}, found {_short(data)}")
        return data
    if hint is float:
        number = _of((int, float), data, where, "a number")
        if not abs(number) <= sys.float_info.max:
            raise Malformed(f"{where}: expected a finite number, found {_short(number)}")
        return float(number)
    return _of(hint, data, where, {int: "a whole number", str: "a text", bool: "true or false"}[hint])


def _object(cls: Any, data: dict[str, Any], where: str) -> Any:
    hints, values = _hints(cls), {}
    for f in fields(cls):
        key = _key(f)
        if key in data:
            values[f.name] = _decoded(hints[f.name], data[key], _below(where, key))
        elif f.default is MISSING and f.default_factory is MISSING:
            raise Malformed(f"{_below(where, key)}: missing")
    return cls(**values)


def _of(kind: Any, data: Any, where: str, told: str) -> Any:
    """The data, if they are of this kind; true and false are no numbers."""
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise Malformed(f"{where}: expected {told}, found {_short(data)}")
    return data


def _short(data: Any) -> str:
    text = repr(data)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _below(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _key(f: Any) -> str:
    return str(f.metadata.get("key", f.name))


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)
