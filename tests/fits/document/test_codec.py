"""Dataclasses as JSON and back: what is read has the types that it says, or is refused by name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from isolaw.fits.document.codec import Malformed, decoded, encoded


@dataclass(frozen=True)
class Inner:
    kind: Literal["a", "b"]
    ends: tuple[float | None, float | None] | None = None


@dataclass(frozen=True)
class Outer:
    from_: int
    inner: Inner
    many: tuple[Inner, ...]
    named: dict[str, float]
    on: bool
    free: dict[str, Any] = field(default_factory=dict)


WHOLE = Outer(
    1, Inner("a", (0.5, None)), (Inner("b"), Inner("a")), {"x": 2.0}, on=True, free={"any": [1, None]}
)


def test_round_trip() -> None:
    data = json.loads(json.dumps(encoded(WHOLE), allow_nan=False))
    assert data["from"] == 1
    assert data["inner"] == {"kind": "a", "ends": [0.5, None]}
    assert decoded(Outer, data) == WHOLE


def test_what_has_a_default_may_be_missing_and_more_may_be_there() -> None:
    data = encoded(WHOLE)
    del data["free"]
    assert decoded(Outer, {**data, "later": 1}).free == {}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"from": "1"}, "from: found '1'; expected a valid integer"),
        ({"from": 1.5}, "from: found 1.5; expected a valid integer"),
        ({"from": True}, "from: found True; expected a valid integer"),
        ({"on": 1}, "on: found 1; expected a valid boolean"),
        ({"inner": []}, "inner: found []; expected an object"),
        ({"inner": {"kind": "c"}}, "inner.kind: found 'c'; expected 'a' or 'b'"),
        ({"inner": {"kind": ["a"]}}, "inner.kind: found ['a']; expected 'a' or 'b'"),
        ({"inner": {}}, "inner.kind: missing"),
        ({"inner": {"kind": "a", "ends": [1.0]}}, "inner.ends[1]: missing"),
        ({"many": {}}, "many: found {}; expected a valid array"),
        ({"many": [{"kind": "a"}, 3]}, "many[1]: found 3; expected an object"),
        ({"named": {"x": None}}, "named.x: found None; expected a valid number"),
        ({"named": {"x": float("nan")}}, "named.x: found nan; expected a finite number"),
        ({"named": {"x": 10**400}}, "named.x: found 1"),
    ],
)
def test_what_is_malformed_is_named(change: dict[str, Any], told: str) -> None:
    with pytest.raises(Malformed) as error:
        decoded(Outer, {**encoded(WHOLE), **change})
    assert str(error.value).startswith(told)


@pytest.mark.parametrize("data", [None, [], "text", 3])
def test_what_is_no_object_is_malformed(data: Any) -> None:
    with pytest.raises(Malformed, match="expected an object"):
        decoded(Outer, data)
