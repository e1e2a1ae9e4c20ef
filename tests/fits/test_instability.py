"""The signs: each is seen where it is, where it began, and not in noise, dips and outliers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.fits.health import _EXPLOSION, _LEAST_EVALUATIONS, _TRUNCATED, find_sign

pytestmark = pytest.mark.numbers

STEPS = np.arange(60.0)


def rising(size: int = 60) -> np.ndarray:
    return 0.6 - 0.3 * np.exp(-np.arange(size) / size * 5)


def noisy(values: np.ndarray, seed: int, sigma: float = 0.015) -> np.ndarray:
    return values + sigma * np.random.default_rng(seed).standard_normal(values.size)


def alarms(values: np.ndarray, error: float, tries: int = 500) -> float:
    steps = np.arange(float(values.size))
    signs = [find_sign("avg@4", steps, noisy(values, i), error) for i in range(tries)]
    return float(np.mean([sign is not None for sign in signs]))


@pytest.mark.parametrize("size", [_LEAST_EVALUATIONS, 10, 30, 60, 300])
@pytest.mark.parametrize("error", [0.0, 0.015])
def test_noise_alone_is_hardly_ever_a_sign(size: int, error: float) -> None:
    assert alarms(rising(size), error) <= 0.02
    assert alarms(np.full(size, 0.5), error) <= 0.03


def test_a_fall_is_seen_as_soon_as_it_exceeds_noise_and_a_quarter_of_the_rise() -> None:
    def ends_at(level: float) -> np.ndarray:
        return np.concatenate([rising(40), np.linspace(0.6, level, 10), np.full(10, level)])

    assert alarms(ends_at(0.48), 0.015, 100) == 1.0
    assert alarms(ends_at(0.56), 0.015, 100) == 0.0


def test_the_beginning_and_the_size_of_a_fall() -> None:
    found = find_sign("avg@4", STEPS, np.where(STEPS < 30, rising(), 0.5), 0.01)
    assert found is not None
    assert found.name == "reward drawn down"
    assert 30 <= found.step <= 30 + 6
    assert found.before == pytest.approx(rising()[24:30].mean())
    assert found.after == pytest.approx(0.5)


def test_half_of_the_peak_lost_is_a_collapse() -> None:
    found = find_sign("avg@4", STEPS, np.where(STEPS < 30, rising(), 0.1))
    assert found is not None
    assert found.name == "reward collapse"


@pytest.mark.parametrize("at", [5, 30, 40, 59])
@pytest.mark.parametrize("size", [1, 2])
def test_outliers_are_not_signs(at: int, size: int) -> None:
    for factor in (-10, 10):
        values = noisy(rising(), 3)
        values[at : at + size] += factor * 0.015
        assert find_sign("avg@4", STEPS, values, 0.015) is None


def test_a_dip_that_recovers_is_no_sign() -> None:
    values = rising()
    values[30:42] -= 0.25
    assert find_sign("avg@4", STEPS, noisy(values, 0), 0.015) is None


def test_the_error_of_the_evaluation_counts() -> None:
    """Two wobbles on a coarse evaluation are nothing; the same on a fine one are a fall."""
    values = np.concatenate([np.full(20, 0.5), np.full(10, 0.45)])
    steps = np.arange(30.0)
    assert find_sign("avg@4", steps, values, 0.05) is None
    assert find_sign("avg@4", steps, values, 0.001) is not None


def test_entropy() -> None:
    decay = 0.5 * np.exp(-STEPS / 10)
    found = find_sign("entropy", STEPS, decay)
    assert found is not None
    assert found.name == "entropy collapse"
    # w = 6: the levels fall with the values, so a twentieth of the first is reached after 10 · ln 20.
    assert found.step == 5 + np.ceil(10 * np.log(20))
    assert find_sign("entropy", STEPS, 0.1 + 0.4 * np.exp(-STEPS / 10)) is None
    assert find_sign("entropy", STEPS, np.where((STEPS > 20) & (STEPS < 30), 0.001, 0.5)) is None
    found = find_sign("entropy", STEPS, np.where(STEPS < 40, 0.5, 10.0))
    assert found is not None
    assert (found.name, found.before, found.after) == ("entropy explosion", 0.5, 10.0)
    assert find_sign("entropy", STEPS, np.zeros(60)) is None


@pytest.mark.parametrize("metric", ["kl", "grad_norm"])
def test_explosions(metric: str) -> None:
    steps = np.arange(1.0, 201)
    assert find_sign(metric, steps, 1e-6 * steps**2) is None  # what bounded steps can make of KL
    assert find_sign(metric, steps, np.full(200, 0.3)) is None
    spike = np.where(steps == 150, 1e6, 0.3)
    assert find_sign(metric, steps, spike) is None
    found = find_sign(metric, steps, np.where(steps < 150, 0.01, 5.0))
    assert found is not None
    assert found.name == f"{metric} explosion"
    assert 150 <= found.step <= 170
    assert found.after >= _EXPLOSION * found.before


def test_kl_may_be_estimated_below_zero() -> None:
    steps = np.arange(1.0, 201)
    noise = 0.05 * np.random.default_rng(0).standard_normal(200)
    assert find_sign("kl", steps, noise) is None
    assert find_sign("kl", steps, noise + np.where(steps < 100, 0, 30)) is not None


def test_truncated_responses() -> None:
    assert find_sign("truncated_fraction", STEPS, np.linspace(0.4, 0.02, 60)) is None
    found = find_sign("truncated_fraction", STEPS, np.linspace(0.0, 2 * _TRUNCATED, 60))
    assert found is not None
    assert found.name == "truncated responses"
    assert 30 <= found.step <= 36


@given(
    st.sampled_from(["avg@4", "entropy", "kl", "grad_norm", "truncated_fraction"]),
    st.lists(st.floats(-1e100, 1e100), min_size=_LEAST_EVALUATIONS, max_size=40),
    st.floats(0, 1),
)
def test_any_values_give_a_finite_answer(metric: str, values: list[float], error: float) -> None:
    found = find_sign(metric, np.arange(float(len(values))), np.array(values), error)
    if found is not None:
        assert np.isfinite([found.before, found.after]).all()
        assert 0 <= found.step < len(values)


@given(st.integers(0, 10_000), st.floats(0.01, 100))
def test_the_unit_of_a_diagnostic_does_not_matter(seed: int, scale: float) -> None:
    values = np.abs(np.cumsum(np.random.default_rng(seed).standard_normal(40))) + 0.1
    steps = np.arange(1.0, 41)
    for metric in ("reward", "entropy", "kl"):
        one, other = find_sign(metric, steps, values), find_sign(metric, steps, values * scale)
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert (one.name, one.step) == (other.name, other.step)
