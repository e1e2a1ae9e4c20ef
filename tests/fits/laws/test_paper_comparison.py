"""The paper's rules: what the best constant n and the logistic lose on curves, and which is worth having."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.fits.frontier import TOLERANCE, Frontier
from isolaw.fits.laws.comparison import _falls_after_rise, _nearest_level
from isolaw.fits.laws.comparison import compare_rules as rules_with

compare_rules = partial(rules_with, seeds=3)
pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.numbers]

levels_of = st.lists(st.sampled_from([2**i for i in range(1, 12)]), min_size=1, max_size=8, unique=True).map(
    lambda values: np.array(sorted(values))
)


def frontier(reward: np.ndarray, levels: list[int] | None = None) -> Frontier:
    """A frontier with one reward per n and compute; −inf where it was not measured."""
    size, columns = reward.shape
    strict = reward.argmax(axis=0)
    measured = np.isfinite(reward)
    at = np.arange(columns)
    no_above = (strict < size - 1) & ~measured[np.minimum(strict + 1, size - 1), at]
    no_below = (strict > 0) & ~measured[np.maximum(strict - 1, 0), at]
    return Frontier(
        compute=np.geomspace(1e5, 1e7, columns),
        levels=np.array(levels or [8 * 2**i for i in range(size)]),
        reward=reward[None],
        below=((strict == size - 1) | no_above)[None],
        above=((strict == 0) | no_below)[None],
        alone=(no_above | no_below)[None],
    )


@given(levels_of, st.floats(-3, 14))
def test_nearest_by_hand(levels: np.ndarray, log2_n: float) -> None:
    index = _nearest_level(np.array([log2_n]), levels, np.ones((len(levels), 1), dtype=bool))[0]
    distances = [abs(np.log2(n) - log2_n) for n in levels]
    assert distances[index] == pytest.approx(min(distances), abs=1e-9)


@given(levels_of, st.floats(-3, 14), st.data())
def test_nearest_among_those_allowed(levels: np.ndarray, log2_n: float, data: st.DataObject) -> None:
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=len(levels), max_size=len(levels))))
    allowed[data.draw(st.integers(0, len(levels) - 1))] = True
    index = _nearest_level(np.array([log2_n]), levels, allowed[:, None])[0]
    assert allowed[index]
    least = min(abs(np.log2(n) - log2_n) for n in levels[allowed])
    assert abs(np.log2(levels[index]) - log2_n) == pytest.approx(least, abs=1e-9)


# Rewards of four n at 40 budgets; the middle two take turns.
X = np.linspace(0, 1, 40)
TURNS = np.array([0.2 + 0 * X, 0.5 - 0.1 * X, 0.4 + 0.1 * X, 0.2 + 0 * X])


def test_regret_by_hand() -> None:
    out = compare_rules(frontier(TURNS), np.where(X < 0.5, 4.0, 5.0))
    assert (out.logistic.mean_loss, out.logistic.max_loss) == pytest.approx((0.0, 0.0), abs=1e-12)
    losses = {n: (TURNS.max(axis=0) - TURNS[i]) for i, n in enumerate([8, 16, 32, 64])}
    assert losses[16].mean() == pytest.approx(losses[32].mean())
    best = 16  # of equals the smaller, whatever they are rounded to
    assert out.constant.n == best
    assert out.constant.mean_loss == pytest.approx(losses[best].mean())
    assert out.constant.max_loss == pytest.approx(losses[best].max())
    assert out.verdict == "logistic"


def test_a_law_that_is_no_better_loses() -> None:
    out = compare_rules(frontier(TURNS), np.full(X.size, 6.0))
    assert out.logistic.mean_loss > out.constant.mean_loss
    assert out.verdict == "no law"
    assert compare_rules(frontier(TURNS), None).verdict == "no law"
    assert compare_rules(frontier(TURNS), None).logistic is None


def test_a_constant_within_tolerance_wins() -> None:
    nearly = 0.5 + (TURNS - 0.5) * 0.04
    out = compare_rules(frontier(nearly), np.where(X < 0.5, 4.0, 5.0))
    assert out.constant.max_loss <= TOLERANCE
    assert out.verdict == "constant"


def test_only_what_was_measured_throughout_is_a_constant() -> None:
    nearly_best = TURNS.copy()
    nearly_best[0] = TURNS.max(axis=0) - 0.006
    law = np.where(X < 0.5, 4.0, 5.0)
    assert compare_rules(frontier(nearly_best), law).constant.n == 8
    nearly_best[0, 30:] = -np.inf
    out = compare_rules(frontier(nearly_best), law)
    assert out.constant.n in (16, 32)
    assert out.logistic.max_loss == pytest.approx(0.0, abs=1e-12)


def test_nothing_is_compared_where_neighbours_are_missing() -> None:
    lonely = np.full((3, 10), -np.inf)
    lonely[1] = 0.5
    assert compare_rules(frontier(lonely), np.full(10, 4.0)).verdict == "no law"


def test_two_seeds_have_no_verdict() -> None:
    out = rules_with(frontier(TURNS), np.where(X < 0.5, 4.0, 5.0), seeds=2)
    assert (out.verdict, out.refused, out.seeds) == (None, "few_seeds", 2)
    assert out.constant.n == 16


def test_falling_is_noticed_beyond_tolerance_only() -> None:
    assert not _falls_after_rise(frontier(TURNS))
    down = TURNS[[0, 2, 1, 3]]
    assert _falls_after_rise(frontier(down))
    assert not _falls_after_rise(frontier(0.5 + (down - 0.5) * 0.04))
    out = compare_rules(frontier(down), np.full(X.size, 4.5))
    assert not out.monotone
    assert out.verdict == "no law"
