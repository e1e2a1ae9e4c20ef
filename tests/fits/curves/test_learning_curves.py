"""Learning curves: the three forms, what comes back from data, when a ceiling is not determined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.fits.curves.learning_curves import FAMILIES, Curves, enough_points, fit_curves

pytestmark = pytest.mark.filterwarnings("error")

COMPUTE = np.concatenate([[0.0], np.geomspace(1e3, 1e6, 40)])
LEVELLED = ["exp", "hill"]  # the families with a floor and a ceiling of their own


def exp_curve(c: np.ndarray, R0: float, A: float, tau: float) -> np.ndarray:
    return A - (A - R0) * np.exp(-c / tau)


def hill_curve(c: np.ndarray, R0: float, A: float, C_mid: float, B: float) -> np.ndarray:
    return R0 + (A - R0) * c**B / (c**B + C_mid**B)


def power_curve(c: np.ndarray, E: float, K: float) -> np.ndarray:
    return 1 - np.exp(E - K * np.log(c))


CURVES: dict[str, tuple[Callable[..., np.ndarray], dict[str, float]]] = {
    "exp": (exp_curve, {"R0": 0.31, "A": 0.72, "tau": 1.7e5}),
    "hill": (hill_curve, {"R0": 0.31, "A": 0.72, "C_mid": 1e5, "B": 1.4}),
    "power": (power_curve, {"E": 0.6, "K": 0.12}),
}
each = pytest.mark.parametrize("family", CURVES)


def measured(family: str) -> np.ndarray:
    """Where a family can be measured: a power law says nothing of C = 0."""
    return COMPUTE[1:] if family == "power" else COMPUTE


def one(family: str, **values: float) -> Curves:
    return Curves.from_parameters(family, {name: np.array([v]) for name, v in values.items()})


def fitted(reward: np.ndarray, family: str = "exp", compute: np.ndarray = COMPUTE, **options: Any) -> Curves:
    return fit_curves(compute, reward[None], np.ones((1, reward.size)), family, **options)


def noisy(family: str, seed: int, noise: float = 0.01) -> np.ndarray:
    curve, truth = CURVES[family]
    c = measured(family)
    return curve(c, **truth) + noise * np.random.default_rng(seed).standard_normal(c.size)


def test_every_family_is_tested() -> None:
    assert CURVES.keys() == FAMILIES.keys()


@each
def test_the_equations(family: str) -> None:
    curve, truth = CURVES[family]
    c = measured(family)
    np.testing.assert_allclose(one(family, **truth)(c)[0], curve(c, **truth), rtol=1e-12)
    assert list(one(family, **truth).parameters()) == list(truth) == list(FAMILIES[family].parameters)


def test_halfway_at_the_middle() -> None:
    assert one("hill", R0=0.3, A=0.8, C_mid=2e5, B=1.7)([2e5])[0, 0] == pytest.approx(0.55)
    assert one("power", E=0.5, K=0.1).A[0] == 1


@each
def test_the_truth_comes_back(family: str) -> None:
    curve, truth = CURVES[family]
    found = fitted(curve(measured(family), **truth), family, measured(family))
    assert {name: float(v[0]) for name, v in found.parameters().items()} == pytest.approx(truth, rel=1e-7)
    assert not found.open_ended[0]
    assert found.rms[0] < 1e-9


@pytest.mark.parametrize(("middle", "slope"), [(3e4, 0.7), (1e5, 1.0), (1e5, 2.5), (4e5, 1.4)])
def test_hill_comes_back(middle: float, slope: float) -> None:
    curve = fitted(hill_curve(COMPUTE, 0.31, 0.72, middle, slope), "hill")
    found = {name: float(v[0]) for name, v in curve.parameters().items()}
    assert found == pytest.approx({"R0": 0.31, "A": 0.72, "C_mid": middle, "B": slope}, rel=1e-7)
    assert not curve.open_ended[0]


def test_a_power_law_leaves_out_the_start() -> None:
    reward = np.concatenate([[0.02], noisy("power", 0)])
    whole, without = fitted(reward, "power"), fitted(reward[1:], "power", COMPUTE[1:])
    assert whole.shape[0] == without.shape[0]
    assert whole.rms[0] == without.rms[0]


def test_many_data_sets_in_one_call() -> None:
    ceilings = np.array([0.5, 0.6, 0.7])
    reward = np.array([exp_curve(COMPUTE, 0.3, a, 1e5) for a in ceilings])
    curves = fit_curves(COMPUTE, reward, np.ones_like(reward))
    np.testing.assert_allclose(curves.A, ceilings, atol=1e-9)
    assert curves(COMPUTE).shape == reward.shape


@each
def test_rms_is_the_weighted_residual(family: str) -> None:
    reward, c = noisy(family, 0), measured(family)
    weights = np.random.default_rng(1).exponential(1.0, (1, c.size))
    curve = fit_curves(c, reward[None], weights, family)
    residual = reward - curve(c)[0]
    assert curve.rms[0] == pytest.approx(np.sqrt(np.average(residual**2, weights=weights[0])), rel=1e-9)
    assert 0.005 < curve.rms[0] < 0.015


@pytest.mark.parametrize("family", LEVELLED)
@pytest.mark.parametrize("tau", [1e8, 1e10])
def test_a_curve_that_only_rises_has_no_ceiling(family: str, tau: float) -> None:
    """Measured to a hundredth of its time constant or less, a curve is a straight line."""
    curve = fitted(exp_curve(COMPUTE, 0.3, 0.9, tau), family)
    assert curve.open_ended[0]
    assert curve(COMPUTE)[0] == pytest.approx(exp_curve(COMPUTE, 0.3, 0.9, tau), abs=1e-3)


def test_a_ceiling_needs_half_of_the_rise() -> None:
    """The fit is exact in both cases, but 40 % of a rise is no base for its end."""
    for share, open_ended in ((0.4, True), (0.6, False)):
        tau = COMPUTE[-1] / -np.log(1 - share)
        curve = fitted(exp_curve(COMPUTE, 0.3, 0.7, tau))
        assert curve.parameters()["tau"][0] == pytest.approx(tau, rel=1e-6)
        assert curve.open_ended[0] == open_ended


@pytest.mark.parametrize("family", LEVELLED)
@pytest.mark.parametrize("reward", [np.full(41, 0.5), np.linspace(0.6, 0.4, 41)], ids=["flat", "falling"])
def test_flat_and_falling_curves_are_flat_and_say_so(family: str, reward: np.ndarray) -> None:
    curve = fitted(reward, family)
    assert curve.open_ended[0]
    np.testing.assert_allclose(curve(COMPUTE)[0], 0.5, atol=1e-9)


def test_an_error_that_does_not_fall_says_so() -> None:
    for reward in (np.full(41, 0.5), np.linspace(0.6, 0.4, 41), np.ones(41), np.linspace(1.1, 1.2, 41)):
        curve = fitted(reward, "power")
        assert curve.open_ended[0]
        assert np.isfinite(curve(COMPUTE[1:])).all()
        assert np.all(np.diff(curve(COMPUTE[1:])[0]) >= 0)


@each
def test_one_outlier_does_not_break_a_fit(family: str) -> None:
    reward = noisy(family, 5)
    reward[20] += 5.0
    curve = fitted(reward, family, measured(family))
    assert np.isfinite(list(curve.parameters().values())).all()
    assert np.all(np.diff(curve(measured(family))[0]) >= 0)


@each
def test_the_unit_of_compute_does_not_matter(family: str) -> None:
    reward, c = noisy(family, 3), measured(family)
    small, large = fitted(reward, family, c), fitted(reward, family, c * 1e3)
    np.testing.assert_allclose(large(c * 1e3), small(c), atol=1e-7)


@given(
    st.sampled_from(sorted(FAMILIES)),
    st.lists(st.floats(-1, 2), min_size=12, max_size=12),
    st.lists(st.floats(1, 1e9), min_size=12, max_size=12, unique=True),
)
def test_any_curve_is_monotone_between_its_levels(family: str, values: list[float], at: list[float]) -> None:
    compute = np.sort(np.array(at))
    curve = fitted(np.array(values), family, compute)
    fine = curve(np.concatenate([[1e-9 if family == "power" else 0.0], np.geomspace(1, 1e10, 200)]))[0]
    assert np.all(np.diff(fine) >= -1e-12 * np.abs(fine).max())
    assert np.all(fine <= curve.A[0] + 1e-9)
    if family != "power":
        assert np.all(fine >= curve.parameters()["R0"][0] - 1e-9)


@each
def test_parameters_invert(family: str) -> None:
    c = measured(family)
    curve = fitted(noisy(family, 1), family, c)
    again = Curves.from_parameters(family, curve.parameters())
    np.testing.assert_allclose(again(c), curve(c), rtol=1e-12)


def test_five_points_make_a_curve() -> None:
    weights = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0.5, 0]])
    assert enough_points(weights).tolist() == [False, True]
