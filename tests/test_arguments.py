"""Arguments of a wrong type, from Python: named, with what was found and what is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

import isolaw
from isolaw.errors import InputError
from isolaw.fits.law import Law
from isolaw.runs import Runs


@pytest.fixture(scope="module")
def runs(synthetic: Callable[..., Runs]) -> Runs:
    return synthetic([(32, n) for n in (8, 16, 32)], seeds=2)


@pytest.fixture(scope="module")
def law(runs: Runs) -> Law:
    return isolaw.fit(runs, draws=5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda runs, _: isolaw.answer(runs, None, draws=5), "compute: found NoneType; expected one"),
        (lambda runs, _: isolaw.answer(runs, 1e6, where="B_p=32"), "where: found 'B_p=32'; expected values"),
        (lambda runs, _: isolaw.fit(runs, where="B_p=32"), "where: found 'B_p=32'; expected values"),
        (
            lambda _, law: law.predict("20gpuh", cost="cost.csv"),
            "cost: found 'cost.csv'; expected the result",
        ),
        (lambda _, law: law.predict([1e5, 2e5]), r"compute: found \[100000.0, 200000.0\]; expected one"),
        (lambda _, law: law.predict(1e6, max_batch_rollouts="8k"), "max_batch_rollouts: found '8k'"),
        (lambda *_: isolaw.read_cost("12/s@8", price="two"), "price: found 'two'; expected a positive price"),
        (lambda runs, _: isolaw.fit(runs, draws="a"), "draws: found 'a'; expected 0 to 10000 draws"),
        (lambda *_: isolaw.read_cost(pd.DataFrame({"a": [1]})), "DataFrame"),
        (lambda *_: isolaw.read_cost(None), "None"),
        (
            lambda runs, _: isolaw.answer(runs, 1e6, draws=5, progress=int),
            "progress: found type; expected a function",
        ),
        (lambda *_: isolaw.sweep({}, on_event=int), "on_event: found type; expected a function"),
        (lambda *_: isolaw.sweep({}, out=3), "out: found 3; expected a string or a path"),
        (lambda *_: isolaw.sweep({1: 2}), "spec: found dict; expected a SweepSpec, a mapping"),
    ],
)
def test_a_wrong_type_is_named(call: Callable[..., Any], message: str, runs: Runs, law: Law) -> None:
    with pytest.raises(InputError, match=message):
        call(runs, law)
