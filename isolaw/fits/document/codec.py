"""Convert the dataclasses in ``law.json`` to JSON and back, field by field.

Each field becomes a key of the same name, with the exceptions in `KEYS`; tuples become lists. Reading checks
types, converts only integers to floats, and ignores unknown keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar

from isolaw.evidence import Simulated

T = TypeVar("T")
KEYS = {"from_": "from", "flags": "warnings"}


class Malformed(ValueError):
    """Raised for data of the wrong type. The message names the key, the found value and the expected one."""


class Encoded:
    """Base class of dataclasses. Their JSON contains the properties named in ``DERIVED``, then the fields."""

    DERIVED: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data, with every estimate as value, interval and status."""
        names = [*self.DERIVED, *(f.name for f in fields(self))]  # type: ignore[arg-type]
        return {KEYS.get(name, name): encoded(getattr(self, name)) for name in names}


def encoded(value: Any) -> Any:
    """Return a value as JSON-able data.

    >>> from isolaw.evidence import Quantity
    >>> encoded((Quantity(64.0, (32.0, None), "lower_bound"),))
    [{'value': 64.0, 'interval': [32.0, None], 'status': 'lower_bound'}]
    """
    if isinstance(value, Simulated):
        return value.json
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return {KEYS.get(f.name, f.name): encoded(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(key): encoded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encoded(item) for item in value]
    return str(value) if isinstance(value, str) else value


def decoded(cls: type[T], data: Any) -> T:
    """Return the instance of the dataclass ``cls`` that `encoded` converted to ``data``.

    Raises
    ------
    Malformed
        a field is missing or has the wrong type.

    >>> from isolaw.evidence import Quantity
    >>> decoded(Quantity, {"value": 64, "interval": None, "status": "ok"})
    Quantity(value=64.0, interval=None, status='ok')
    >>> decoded(Quantity, {"value": "64", "interval": None, "status": "ok"})
    Traceback (most recent call last):
    isolaw.fits.document.codec.Malformed: value: found '64'; expected a valid number
    """
    from pydantic import ValidationError  # imported here, since fitting does not need it

    try:
        (instance,) = _adapter(cls).validate_json(json.dumps([data]))  # type: ignore[arg-type]
    except ValidationError as error:
        fault = error.errors()[0]
        where = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in fault["loc"][1:]).lstrip(".")
        value = repr(fault["input"])
        expected = fault["msg"].removeprefix("Input should be ")
        reason = f"found {value if len(value) <= 40 else value[:40] + '…'}; expected {expected}"
        raise Malformed(f"{where}: {'missing' if fault['type'] == 'missing' else reason}") from None
    return instance  # type: ignore[no-any-return]


@cache
def _adapter(cls: Any) -> Any:
    from pydantic import TypeAdapter

    # pydantic accepts no configuration for a dataclass itself, but applies the configuration of a list of it.
    return TypeAdapter(
        list[cls],
        config={"alias_generator": lambda name: KEYS.get(name, name), "strict": True, "allow_inf_nan": False},
    )
