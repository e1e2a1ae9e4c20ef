"""A reward that never changes: nothing is best, whatever its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import isolaw
from isolaw.fits.flags import Code, flags_with
from isolaw.runs import Runs

Make = Callable[..., Runs]
GRID = [(32, n) for n in (4, 8, 16, 32)]


@pytest.mark.parametrize("level", [0.0, 0.3, -2.0])
@pytest.mark.parametrize("method", ["surface", "paper"])
def test_a_constant_reward_has_no_best_n(synthetic: Make, method: Any, level: float) -> None:
    runs = synthetic(GRID, lambda _b, _n, c: np.full(c.shape, level), noise=0, seeds=2)
    law = isolaw.fit(runs, draws=10, method=method, records="off")
    (flag,) = flags_with(law.document.flags, Code.FLAT)
    assert flag.text == f"the reward never changed: avg@4 is {level:g} at all checkpoints"
    assert not flags_with(law.document.flags, Code.ONE_SEED, Code.COPIES)
    prediction = law.predict(2e6)
    assert prediction.n is None
    assert prediction.next.runs == ()
    assert {flag.code for flag in prediction.flags} & {Code.FLAT, Code.GRID_EDGE} == {Code.FLAT}


def test_an_answer_says_that_it_never_changed(synthetic: Make) -> None:
    runs = synthetic(GRID, lambda _b, _n, c: np.full(c.shape, 0.3), noise=0, seeds=2)
    answer = isolaw.answer(runs, 2e6, draws=10)
    assert "The reward never changed" in str(answer)
    assert answer.next.what == "Check the metric, or train until it rises."
