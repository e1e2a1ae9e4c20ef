"""Intervals over seeds, and the rule of the verdict."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from isolaw.replication.verdicts import (
    DOUBLINGS,
    LEAST,
    PROBLEMS,
    REWARD,
    Effect,
    interval,
    leave_one_out,
    weakest,
)


def test_rows_are_the_mean_and_the_means_without_each() -> None:
    values = np.random.default_rng(0).standard_normal((5, 3, 2))
    rows = leave_one_out(values)
    assert rows.shape == (6, 3, 2)
    np.testing.assert_allclose(rows[0], values.mean(axis=0))
    for s in range(5):
        np.testing.assert_allclose(rows[1 + s], np.delete(values, s, axis=0).mean(axis=0))


def test_of_a_mean_it_is_students_interval() -> None:
    values = np.random.default_rng(1).standard_normal(8) + 0.7
    effect = Effect.of("mean", REWARD, leave_one_out(values))
    low, high = stats.t.interval(0.95, 7, loc=values.mean(), scale=stats.sem(values))
    assert (effect.value, effect.low, effect.high) == pytest.approx((values.mean(), low, high))


def test_a_difference_is_paired_within_seeds() -> None:
    rng = np.random.default_rng(2)
    seed = 100 * rng.standard_normal((8, 1))
    values = seed + np.array([0.0, 0.5]) + 0.01 * rng.standard_normal((8, 2))
    _, low, high = interval(leave_one_out(values)[:, 1] - leave_one_out(values)[:, 0])
    assert 0.48 < low < high < 0.52


@pytest.mark.parametrize("unit", [DOUBLINGS, REWARD, PROBLEMS])
def test_the_rule(unit: str) -> None:
    least = LEAST[unit]
    assert least == (1.0 if unit == DOUBLINGS else 0.01)

    def verdict(value: float, half: float) -> str:
        return Effect("x", unit, value, value - half, value + half).verdict

    assert verdict(least, 0.5 * least) == "yes"
    assert verdict(0.9 * least, 0.5 * least) == "partly"
    assert verdict(3 * least, 3 * least) == "no"  # the interval reaches zero
    assert verdict(-3 * least, 0.1 * least) == "no"  # the other direction
    assert verdict(float("nan"), 0.1) == "not measured"


def test_what_was_not_measured_has_no_numbers() -> None:
    effect = Effect.of("x", REWARD, np.full(9, np.nan))
    assert not effect.measured
    assert effect.to_dict()["value"] is effect.to_dict()["interval"] is None


def test_the_weakest_decides() -> None:
    assert weakest(["yes", "yes"]) == "yes"
    assert weakest(["partly", "yes"]) == "partly"
    assert weakest(["partly", "no", "yes"]) == "no"


def test_doublings_are_known_to_a_tenth_at_best() -> None:
    effect = Effect.of("n*", DOUBLINGS, np.full(9, 2.0))
    assert (effect.low, effect.high) == pytest.approx((1.9, 2.1))
