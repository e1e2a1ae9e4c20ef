"""Which learning rates come next."""

from __future__ import annotations

import numpy as np
import pytest

from isolaw.recipe_check import rule


def searched(best: float, horizons: int = 1, shift: float = 0.0, failing: int = 99) -> list[dict[int, float]]:
    """Search a parabola whose vertex is at ``best`` at the last horizon, ``shift`` higher at each before."""
    tried = set(rule.START)
    while True:
        at = [
            {k: -np.inf if k >= failing else -((k - best - shift * i) ** 2) for k in tried}
            for i in reversed(range(horizons))
        ]
        if not (wanted := rule.search(at)):
            return at
        assert not tried & set(wanted)
        tried |= set(wanted)


@pytest.mark.parametrize("best", np.arange(-9.8, 10, 0.7))
def test_a_search_ends_with_the_best_between_its_neighbours(best: float) -> None:
    (rewards,) = searched(best)
    k = rule.best(rewards)
    assert abs(k - best) <= 0.5
    assert {k - 1, k, k + 1} <= rewards.keys()
    assert rule.peak(rewards) == pytest.approx(best)
    assert len(rewards) <= 7 + abs(best) / 2


def test_values_that_fail_bound_the_search() -> None:
    (rewards,) = searched(5.0, failing=3)
    assert rule.best(rewards) == 2
    assert rewards[3] == -np.inf
    assert max(rewards) == 4
    (rewards,) = searched(0.0, failing=-4)
    assert rule.best(rewards) < -4 or not np.isfinite(max(rewards.values()))


def test_the_search_follows_the_best_over_horizons() -> None:
    at = searched(1.3, horizons=3, shift=0.6)
    assert rule.slope([1e5, 2e5, 4e5], at) == pytest.approx(-0.6)
    assert rule.slope([1e5, 2e5, 4e5], searched(1.3, horizons=3, shift=-0.6)) == 0  # no model of that
    assert rule.slope([4e5], at[-1:]) is None


@pytest.mark.parametrize("best", [-3.2, 0.1, 4.4])
def test_the_bracket_moves_until_it_holds_the_best(best: float) -> None:
    rewards: dict[int, float] = {}
    while wanted := rule.bracket(0, rewards):
        rewards |= {k: -((k - best) ** 2) for k in wanted}
    assert rule.best(rewards) == round(best)
    assert len(rewards) == 3 + abs(round(best))
    assert rule.bracket(0, {}) == [-1, 0, 1]


def test_of_equals_the_smallest_and_an_end() -> None:
    assert rule.best({1: 0.5, 0: 0.5, -1: 0.1}) == 0
    assert rule.peak({0: 0.5, 1: 0.4}) == 0
    (rewards,) = searched(-100.0)
    assert min(rewards) == -rule.FARTHEST
