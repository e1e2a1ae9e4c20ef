"""Variable projection against solvers that share no code with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import lmfit
import numpy as np
import pytest
import statsmodels.api as sm
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import curve_fit

from isolaw.fits.curves import FAMILIES
from isolaw.fits.solve import Axis, Floats, Solution, varpro

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

BUDGETS = np.concatenate([[0.0], np.geomspace(2e3, 2e6, 39)])
LOG_BUDGETS = np.linspace(5.0, 7.0, 40)


def exponential(x: Floats, shape: Sequence[float]) -> Floats:
    return 1 - np.exp(-x / math.exp(shape[0]))


def hill(x: Floats, shape: Sequence[float]) -> Floats:
    middle, slope = math.exp(shape[0]), math.exp(shape[1])
    return x**slope / (x**slope + middle**slope)


def sigmoid(x: Floats, shape: Sequence[float]) -> Floats:
    return 0.5 * (1 + np.tanh(0.5 * math.exp(shape[0]) * (x - shape[1])))


Family = tuple[Floats, Callable[[Floats, Sequence[float]], Floats], list[Axis]]
FAMILY: dict[str, Family] = {
    "exp": (BUDGETS, exponential, FAMILIES["exp"].axes(BUDGETS)),
    "hill": (BUDGETS, hill, FAMILIES["hill"].axes(BUDGETS)),
    "logistic": (LOG_BUDGETS, sigmoid, [Axis(math.log(0.5), math.log(200.0), 24), Axis(4.0, 8.0, 41)]),
}
# Shapes that the data determine: the rise lies inside the range of x.
INSIDE = {
    "exp": [(math.log(1e4), math.log(1.5e6))],
    "hill": [(math.log(1e4), math.log(8e5)), (math.log(0.5), math.log(5.0))],
    "logistic": [(math.log(2.0), math.log(15.0)), (5.3, 6.7)],
}


def solve(family: str, y: Floats, weights: Floats | None = None) -> Solution:
    """The solution, by a basis written down anew: many shapes at once, one by one."""
    x, basis, axes = FAMILY[family]

    def many(x: Floats, shape: Floats) -> Floats:
        flat = shape.reshape(-1, shape.shape[-1])
        return np.array([basis(x, own) for own in flat]).reshape(*shape.shape[:-1], x.size)

    y = np.atleast_2d(y)
    return varpro(x, y, np.ones_like(y) if weights is None else np.atleast_2d(weights), many, axes)


def problem(family: str, seed: int) -> tuple[list[float], Floats, Floats]:
    """The truth (low, rise, shape…), noisy data and weights of one random problem."""
    rng = np.random.default_rng([seed, len(family)])
    x, basis, _ = FAMILY[family]
    shape = [rng.uniform(*ends) for ends in INSIDE[family]]
    low, rise = rng.uniform(0.1, 0.4), rng.uniform(0.1, 0.5)
    noise = rng.choice([0.003, 0.01, 0.03]) * rise / 0.3
    y = low + rise * basis(x, shape) + noise * rng.standard_normal(x.size)
    weights = rng.exponential(1.0, x.size) if seed % 2 else np.ones(x.size)
    return [low, rise, *shape], y, weights


def by_curve_fit(family: str, y: Floats, weights: Floats, start: list[float]) -> float:
    """The sum of squares that scipy's trust-region solver reaches within the same bounds."""
    x, basis, axes = FAMILY[family]

    def model(x: Floats, low: float, rise: float, *shape: float) -> Floats:
        return low + rise * basis(x, shape)

    bounds = [-np.inf, 0.0, *(a.low for a in axes)], [np.inf, np.inf, *(a.high for a in axes)]
    start = list(np.clip(start, np.array(bounds[0]) + 1e-9, np.array(bounds[1]) - 1e-9))
    options: dict[str, Any] = {"xtol": 1e-14, "ftol": 1e-14, "gtol": 1e-14, "x_scale": "jac"}
    found, _ = curve_fit(model, x, y, start, 1 / np.sqrt(weights), bounds=bounds, **options)
    return float(np.sum(weights * (y - model(x, *found)) ** 2))


def by_lmfit(family: str, y: Floats, weights: Floats, start: list[float]) -> float:
    x, basis, axes = FAMILY[family]
    parameters = lmfit.Parameters()
    parameters.add("low", start[0])
    parameters.add("rise", start[1], min=0)
    for i, (value, axis) in enumerate(zip(start[2:], axes, strict=True)):
        parameters.add(f"shape{i}", value, min=axis.low, max=axis.high)

    def residual(p: lmfit.Parameters) -> Floats:
        low, rise, *shape = p.valuesdict().values()
        return np.sqrt(weights) * (low + rise * basis(x, shape) - y)

    return float(np.sum(lmfit.minimize(residual, parameters, xtol=1e-12, ftol=1e-12).residual ** 2))


@pytest.mark.parametrize("family", FAMILY)
def test_no_solver_does_better(family: str) -> None:
    behind = {}
    for seed in range(40):
        truth, y, weights = problem(family, seed)
        ours = solve(family, y, weights)
        found = [ours.low[0], ours.high[0] - ours.low[0], *ours.shape[0]]
        theirs = [by_curve_fit(family, y, weights, start) for start in (truth, found)]
        theirs.append(by_lmfit(family, y, weights, truth))
        x, basis, _ = FAMILY[family]
        own = float(np.sum(weights * (y - found[0] - found[1] * basis(x, found[2:])) ** 2))
        assert ours.sse[0] == pytest.approx(own, rel=1e-9)
        if own > min(theirs) * (1 + 1e-6):
            behind[seed] = own / min(theirs) - 1
    assert not behind, (
        f"{len(behind)} of 40 fits are worse than another solver's, by up to {max(behind.values()):.1g}"
    )


@pytest.mark.parametrize("family", FAMILY)
def test_exact_data_give_the_truth(family: str) -> None:
    rng = np.random.default_rng(7)
    x, basis, _ = FAMILY[family]
    truth = [[rng.uniform(*ends) for ends in INSIDE[family]] for _ in range(30)]
    solution = solve(family, np.array([0.3 + 0.4 * basis(x, shape) for shape in truth]))
    np.testing.assert_allclose(solution.low, 0.3, atol=1e-4)
    np.testing.assert_allclose(solution.high, 0.7, atol=1e-4)
    np.testing.assert_allclose(solution.shape, truth, atol=1e-3)
    assert not solution.on_bound.any()


@pytest.mark.parametrize("family", FAMILY)
def test_levels_are_weighted_least_squares_at_the_shape(family: str) -> None:
    x, basis, _ = FAMILY[family]
    for seed in range(10):
        _, y, weights = problem(family, 2 * seed + 1)
        ours = solve(family, y, weights)
        s = basis(x, ours.shape[0])
        fit = sm.WLS(y, np.column_stack([1 - s, s]), weights=weights).fit()
        np.testing.assert_allclose([ours.low[0], ours.high[0]], fit.params, rtol=1e-8)
        assert ours.sse[0] == pytest.approx(float(np.sum(weights * fit.resid**2)), rel=1e-8)


def test_data_sets_do_not_touch_each_other() -> None:
    parts = [problem("exp", seed)[1:] for seed in range(6)]
    together = solve("exp", np.array([y for y, _ in parts]), np.array([w for _, w in parts]))
    for i, (y, weights) in enumerate(parts):
        alone = solve("exp", y, weights)
        np.testing.assert_allclose(together.shape[i], alone.shape[0], rtol=1e-6)
        assert together.sse[i] == pytest.approx(alone.sse[0], rel=1e-9)


def test_one_row_of_data_serves_all_weights() -> None:
    _, y, _ = problem("exp", 0)
    weights = np.random.default_rng(1).exponential(1.0, (5, y.size))
    shared, repeated = solve("exp", y, weights), solve("exp", np.tile(y, (5, 1)), weights)
    np.testing.assert_allclose(shared.high, repeated.high, rtol=1e-12)
    assert np.ptp(shared.high) > 1e-4


def test_weights_count_points() -> None:
    x, _, axes = FAMILY["exp"]
    _, y, _ = problem("exp", 3)
    times = np.random.default_rng(2).integers(0, 4, x.size)
    basis = FAMILIES["exp"].basis
    weighted = varpro(x, y[None], times[None].astype(float), basis, axes)
    repeated = np.repeat(y, times)[None]
    listed = varpro(np.repeat(x, times), repeated, np.ones_like(repeated), basis, axes)
    np.testing.assert_allclose(weighted.shape, listed.shape, rtol=1e-6)
    assert weighted.sse[0] == pytest.approx(listed.sse[0], rel=1e-8)


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("kind", ["flat", "falling"])
def test_nothing_rises(family: str, kind: str) -> None:
    x, basis, axes = FAMILY[family]
    shape = [(a.low + a.high) / 2 for a in axes]
    y = np.full(x.size, 0.4) if kind == "flat" else 0.6 - 0.2 * basis(x, shape)
    solution = solve(family, y)
    assert solution.on_bound[0]
    assert solution.low[0] == pytest.approx(y.mean(), abs=1e-12)
    assert solution.high[0] == pytest.approx(y.mean(), abs=1e-12)
    assert solution.sse[0] == pytest.approx(float(np.sum((y - y.mean()) ** 2)), abs=1e-15)


def test_a_straight_line_has_no_ceiling() -> None:
    solution = solve("exp", 0.2 + 0.1 * BUDGETS / BUDGETS.max())
    assert solution.on_bound[0]


@pytest.mark.parametrize("points", [12, 40])
def test_a_step_has_no_steepness(points: int) -> None:
    """Any steeper logistic fits a step as well: its steepness is not determined."""
    x, basis, axes = np.linspace(5.0, 7.0, points), FAMILY["logistic"][1], FAMILY["logistic"][2]

    def many(x: Floats, shape: Floats) -> Floats:
        flat = shape.reshape(-1, 2)
        return np.array([basis(x, own) for own in flat]).reshape(*shape.shape[:-1], x.size)

    y = np.where(x < 6, 3.0, 6.0)[None]
    solution = varpro(x, y, np.ones_like(y), many, axes)
    assert solution.sse[0] < 0.01
    assert solution.on_bound[0]


rewards = st.lists(st.floats(-5, 5), min_size=40, max_size=40).map(np.array)


@given(y=rewards)
def test_monotone_and_no_worse_than_a_constant(y: Floats) -> None:
    for family in FAMILY:
        solution = solve(family, y)
        total = float(np.sum((y - y.mean()) ** 2))
        assert solution.high[0] >= solution.low[0]
        assert 0 <= solution.sse[0] <= total * (1 + 1e-9) + 1e-12
        assert np.isfinite([solution.low[0], solution.high[0], *solution.shape[0]]).all()


@given(seed=st.integers(0, 10_000), shift=st.floats(-3, 3), factor=st.floats(0.01, 100))
def test_reward_has_no_natural_unit(seed: int, shift: float, factor: float) -> None:
    _, y, weights = problem("exp", seed)
    plain, changed = solve("exp", y, weights), solve("exp", shift + factor * y, weights)
    np.testing.assert_allclose(changed.high, shift + factor * plain.high, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(changed.sse, factor**2 * plain.sse, rtol=1e-6)
