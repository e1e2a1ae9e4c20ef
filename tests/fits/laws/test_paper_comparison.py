"""The paper's method: whether the logistic describes n*, which it cannot where n* falls."""

from __future__ import annotations

import numpy as np
import pytest

from isolaw.fits.document.schema import Comparison
from isolaw.fits.frontier import Frontier, NStarPath, strict_path
from isolaw.fits.laws.comparison import _falls_after_rise, judge_logistic

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.numbers]


def frontier(reward: np.ndarray) -> tuple[Frontier, NStarPath]:
    """A frontier with one reward per n and compute, and its strict n*; −inf where it was not measured."""
    size, columns = reward.shape
    own = Frontier(np.geomspace(1e5, 1e7, columns), 8 * 2 ** np.arange(size), reward[None])
    return own, strict_path(own)


# Rewards of four n at 40 budgets; the middle two take turns.
X = np.linspace(0, 1, 40)
TURNS = np.array([0.2 + 0 * X, 0.5 - 0.1 * X, 0.4 + 0.1 * X, 0.2 + 0 * X])


def test_the_logistic_describes_an_n_that_never_falls() -> None:
    assert judge_logistic(*frontier(TURNS), True, seeds=3) == Comparison(True, "logistic", seeds=3)
    assert judge_logistic(*frontier(TURNS), False, seeds=3).verdict == "no law"


def test_two_seeds_have_no_verdict() -> None:
    out = judge_logistic(*frontier(TURNS), True, seeds=2)
    assert (out.verdict, out.refused, out.seeds) == (None, "few_seeds", 2)


def test_falling_is_noticed_beyond_tolerance_only() -> None:
    assert not _falls_after_rise(*frontier(TURNS))
    down = TURNS[[0, 2, 1, 3]]
    assert _falls_after_rise(*frontier(down))
    assert not _falls_after_rise(*frontier(0.5 + (down - 0.5) * 0.04))
    out = judge_logistic(*frontier(down), True, seeds=3)
    assert not out.monotone
    assert out.verdict == "no law"
