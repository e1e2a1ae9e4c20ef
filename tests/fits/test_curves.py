"""Learning curves: the two forms, what comes back from data, and when a ceiling is not determined."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.fits.curves import FAMILIES, Curves, enough_points, fit_curves

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

COMPUTE = np.concatenate([[0.0], np.geomspace(1e3, 1e6, 40)])


def exp_curve(c: np.ndarray, r0: float, a: float, tau: float) -> np.ndarray:
    return a - (a - r0) * np.exp(-c / tau)


def hill_curve(c: np.ndarray, r0: float, a: float, middle: float, slope: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return r0 + (a - r0) / (1 + (middle / c) ** slope)


def one(family: str, **values: float) -> Curves:
    return Curves.from_parameters(family, {name: np.array([v]) for name, v in values.items()})


def fitted(reward: np.ndarray, family: str = "exp", compute: np.ndarray = COMPUTE) -> Curves:
    return fit_curves(compute, reward[None], np.ones((1, reward.size)), family)


def test_the_equations() -> None:
    exp, hill = one("exp", R0=0.3, A=0.8, tau=2e5), one("hill", R0=0.3, A=0.8, C_mid=2e5, B=1.7)
    np.testing.assert_allclose(exp(COMPUTE)[0], exp_curve(COMPUTE, 0.3, 0.8, 2e5), rtol=1e-12)
    np.testing.assert_allclose(hill(COMPUTE)[0], hill_curve(COMPUTE, 0.3, 0.8, 2e5, 1.7), rtol=1e-12)
    assert hill([2e5])[0, 0] == pytest.approx(0.55)


def test_exp_comes_back() -> None:
    curve = fitted(exp_curve(COMPUTE, 0.31, 0.72, 1.7e5))
    found = {name: float(v[0]) for name, v in curve.parameters().items()}
    assert found == pytest.approx({"R0": 0.31, "A": 0.72, "tau": 1.7e5}, rel=1e-4)
    assert not curve.open_ended[0]
    assert curve.rms[0] < 1e-7


@pytest.mark.parametrize(("middle", "slope"), [(3e4, 0.7), (1e5, 1.0), (1e5, 2.5), (4e5, 1.4)])
def test_hill_comes_back(middle: float, slope: float) -> None:
    curve = fitted(hill_curve(COMPUTE, 0.31, 0.72, middle, slope), "hill")
    found = {name: float(v[0]) for name, v in curve.parameters().items()}
    assert found == pytest.approx({"R0": 0.31, "A": 0.72, "C_mid": middle, "B": slope}, rel=1e-3)
    assert not curve.open_ended[0]


def test_many_data_sets_in_one_call() -> None:
    ceilings = np.array([0.5, 0.6, 0.7])
    reward = np.array([exp_curve(COMPUTE, 0.3, a, 1e5) for a in ceilings])
    curves = fit_curves(COMPUTE, reward, np.ones_like(reward))
    np.testing.assert_allclose(curves.A, ceilings, atol=1e-5)
    assert curves(COMPUTE).shape == reward.shape


def test_rms_is_the_weighted_residual() -> None:
    rng = np.random.default_rng(0)
    reward = exp_curve(COMPUTE, 0.3, 0.7, 1e5) + 0.01 * rng.standard_normal(COMPUTE.size)
    weights = rng.exponential(1.0, (1, COMPUTE.size))
    curve = fit_curves(COMPUTE, reward[None], weights)
    residual = reward - curve(COMPUTE)[0]
    assert curve.rms[0] == pytest.approx(np.sqrt(np.average(residual**2, weights=weights[0])), rel=1e-9)
    assert 0.005 < curve.rms[0] < 0.015


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tau", [1e8, 1e10])
def test_a_curve_that_only_rises_has_no_ceiling(family: str, tau: float) -> None:
    """Measured to a hundredth of its time constant or less, a curve is a straight line."""
    curve = fitted(exp_curve(COMPUTE, 0.3, 0.9, tau), family)
    assert curve.open_ended[0]
    assert curve(COMPUTE)[0] == pytest.approx(exp_curve(COMPUTE, 0.3, 0.9, tau), abs=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reward", [np.full(41, 0.5), np.linspace(0.6, 0.4, 41)], ids=["flat", "falling"])
def test_flat_and_falling_curves_are_flat_and_say_so(family: str, reward: np.ndarray) -> None:
    curve = fitted(reward, family)
    assert curve.open_ended[0]
    np.testing.assert_allclose(curve(COMPUTE)[0], 0.5, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_outlier_does_not_break_a_fit(family: str) -> None:
    reward = exp_curve(COMPUTE, 0.3, 0.7, 1e5)
    reward[20] += 5.0
    curve = fitted(reward, family)
    assert np.isfinite(list(curve.parameters().values())).all()
    assert np.all(np.diff(curve(COMPUTE)[0]) >= 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_unit_of_compute_does_not_matter(family: str) -> None:
    rng = np.random.default_rng(3)
    reward = exp_curve(COMPUTE, 0.3, 0.7, 1e5) + 0.01 * rng.standard_normal(COMPUTE.size)
    small, large = fitted(reward, family), fitted(reward, family, COMPUTE * 1e3)
    np.testing.assert_allclose(large(COMPUTE * 1e3), small(COMPUTE), atol=1e-5)


@given(
    st.sampled_from(sorted(FAMILIES)),
    st.lists(st.floats(-1, 2), min_size=12, max_size=12),
    st.lists(st.floats(1, 1e9), min_size=12, max_size=12, unique=True),
)
def test_any_curve_is_monotone_between_its_levels(family: str, values: list[float], at: list[float]) -> None:
    compute = np.sort(np.array(at))
    curve = fitted(np.array(values), family, compute)
    fine = curve(np.concatenate([[0.0], np.geomspace(1, 1e10, 200)]))[0]
    assert np.all(np.diff(fine) >= -1e-12)
    assert np.all((fine >= curve.R0[0] - 1e-9) & (fine <= curve.A[0] + 1e-9))


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_invert(family: str) -> None:
    reward = exp_curve(COMPUTE, 0.3, 0.7, 1e5)
    curve = fitted(reward, family)
    again = Curves.from_parameters(family, curve.parameters())
    np.testing.assert_allclose(again(COMPUTE), curve(COMPUTE), rtol=1e-12)


def test_five_points_make_a_curve() -> None:
    weights = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0.5, 0]])
    assert enough_points(weights).tolist() == [False, True]
