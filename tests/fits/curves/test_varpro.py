"""The solver against solvers that share no code with it, and against brute force."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import lmfit
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import least_squares

from isolaw.fits.curves import kernel
from isolaw.fits.curves import varpro as solver
from isolaw.fits.curves.learning_curves import FAMILIES
from isolaw.fits.curves.varpro import FitStatus, Floats, SearchRange, Solution, basis, varpro

pytestmark = pytest.mark.filterwarnings("error")

BUDGETS = np.concatenate([[0.0], np.geomspace(2e3, 2e6, 39)])
LOG_BUDGETS = np.linspace(5.0, 7.0, 40)


# The bases, written down anew.
def exponential(x: Floats, shape: Sequence[float]) -> Floats:
    return 1 - np.exp(-x / math.exp(shape[0]))


def hill(x: Floats, shape: Sequence[float]) -> Floats:
    middle, slope = math.exp(shape[0]), math.exp(shape[1])
    return x**slope / (x**slope + middle**slope)


def sigmoid(x: Floats, shape: Sequence[float]) -> Floats:
    return 0.5 * (1 + np.tanh(0.5 * math.exp(shape[1]) * (x - shape[0])))


def error_power(x: Floats, shape: Sequence[float]) -> Floats:
    return -(x ** -shape[0])


class Case(NamedTuple):
    """A family: where it is measured, its basis and search, its held level, shapes that data determine."""

    family: str
    x: Floats
    s: Callable[[Floats, Sequence[float]], Floats]
    axes: list[SearchRange]
    low: float | None
    inside: list[tuple[float, float]]

    def fit(self, y: Floats, weights: Floats | None = None) -> Solution:
        y = np.atleast_2d(y)
        weights = np.ones_like(y) if weights is None else np.atleast_2d(weights)
        return varpro(self.x, y, weights, self.family, self.axes, self.low)

    def free(self, low: float, slope: float, shape: Sequence[float]) -> list[float]:
        """What a general solver searches."""
        return [slope, *shape] if self.low is not None else [low, slope, *shape]

    def residuals(self, y: Floats, weights: Floats) -> Callable[[Sequence[float]], Floats]:
        """The weighted residuals as a function of what is free."""

        def of(free: Sequence[float]) -> Floats:
            low, slope, *shape = free if self.low is None else (self.low, *free)
            return np.sqrt(weights) * (low + slope * self.s(self.x, shape) - y)

        return of


E, H, L, P = CASES = [
    Case(
        "exp",
        BUDGETS,
        exponential,
        FAMILIES["exp"].axes(BUDGETS),
        None,
        [(math.log(1e4), math.log(1.5e6))],
    ),
    Case(
        "hill",
        BUDGETS,
        hill,
        FAMILIES["hill"].axes(BUDGETS),
        None,
        [(math.log(1e4), math.log(8e5)), (math.log(0.5), math.log(5.0))],
    ),
    Case(
        "logistic",
        LOG_BUDGETS,
        sigmoid,
        [SearchRange(4.0, 8.0, 41), SearchRange(math.log(0.5), math.log(200.0), 24)],
        None,
        [(5.3, 6.7), (math.log(2.0), math.log(15.0))],
    ),
    Case("power", BUDGETS[1:], error_power, FAMILIES["power"].axes(BUDGETS[1:]), 1.0, [(0.05, 1.0)]),
]
each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
each_rising = pytest.mark.parametrize("case", [E, H, L], ids=lambda case: case.family)  # low is fitted


class Problem(NamedTuple):
    """A truth, as what is free of it, with data and weights."""

    truth: list[float]
    shape: list[float]
    y: Floats
    weights: Floats


def problem(case: Case, seed: int, noise: float | None = None) -> Problem:
    """A random problem; ``noise`` is a share of the rise."""
    rng = np.random.default_rng([seed, len(case.family)])
    shape = [rng.uniform(*ends) for ends in case.inside]
    low, slope = rng.uniform(0.1, 0.4), rng.uniform(0.1, 0.5)
    s = case.s(case.x, shape)
    if case.low is not None:
        low, slope = case.low, (slope + 0.4) / np.abs(s).max()
    share = rng.choice([0.01, 0.03, 0.1]) if noise is None else noise
    y = low + slope * s + share * slope * np.ptp(s) * rng.standard_normal(s.size)
    weights = rng.exponential(1.0, s.size) if seed % 2 else np.ones(s.size)
    return Problem(case.free(low, slope, shape), shape, y, weights)


def by_scipy(case: Case, y: Floats, weights: Floats, start: list[float], **options: Any) -> Any:
    """scipy's trust-region solver within the same bounds."""
    bounds = [(0.0, np.inf), *((a.low, a.high) for a in case.axes)]
    bounds = bounds if case.low is not None else [(-np.inf, np.inf), *bounds]
    low, high = np.array(bounds).T
    tight = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-15, "x_scale": "jac", "max_nfev": 2000}
    start = np.clip(start, low + 1e-9, high - 1e-9)
    return least_squares(case.residuals(y, weights), start, bounds=(low, high), **tight | options)


def by_lmfit(case: Case, y: Floats, weights: Floats, start: list[float]) -> float:
    names = case.free("low", "slope", [f"shape{i}" for i in range(len(case.axes))])
    parameters = lmfit.Parameters()
    for name, value in zip(names, start, strict=True):
        parameters.add(name, value)
    parameters["slope"].min = 0
    for i, axis in enumerate(case.axes):
        parameters[f"shape{i}"].set(min=axis.low, max=axis.high)
    of = case.residuals(y, weights)
    result = lmfit.minimize(lambda p: of(list(p.valuesdict().values())), parameters, xtol=1e-12, ftol=1e-12)
    return float(np.sum(result.residual**2))


def finely(case: Case, y: Floats, weights: Floats, times: int) -> float:
    """The least sum of squares on a grid ``times`` finer than the solver's."""
    grid = product(*(np.linspace(a.low, a.high, (a.points - 1) * times + 1) for a in case.axes))
    s = np.array([case.s(case.x, shape) for shape in grid])
    if case.low is None:
        s, y = s - np.average(s, axis=1, weights=weights)[:, None], y - np.average(y, weights=weights)
    else:
        y = y - case.low
    along, own = np.maximum(s @ (weights * y), 0), s**2 @ weights
    return float(np.sum(weights * y**2) - np.max(along**2 / np.maximum(own, 1e-12)))


@each
def test_the_bases_are_their_equations(case: Case) -> None:
    shapes = np.array([problem(case, seed).shape for seed in range(20)])
    expected = [case.s(case.x, shape) for shape in shapes]
    np.testing.assert_allclose(basis(case.family, case.x, shapes), expected, rtol=1e-10, atol=1e-14)


@each
def test_the_gradient_is_that_of_the_projected_sum_of_squares(case: Case) -> None:
    """Kaufman's Jacobian leaves out a term that the residuals are orthogonal to: its gradient is exact."""
    code, u = solver._kernel_variable(case.family, case.x)
    for seed in range(5):
        p = problem(case, seed)
        shape = np.array(p.shape) + 0.1  # not at the minimum

        def sse(shape: Floats, p: Problem = p) -> float:
            held = case._replace(axes=[SearchRange(v, v, 1) for v in shape])
            return float(held.fit(p.y, p.weights).sse[0])

        s, d = basis(case.family, case.x, shape[None])[0], np.empty((shape.size, case.x.size))
        kernel._shape_slopes(code, u, shape, s, d)
        steps = 1e-5 * np.eye(shape.size)
        numeric = [(case.s(case.x, shape + h) - case.s(case.x, shape - h)) / 2e-5 for h in steps]
        np.testing.assert_allclose(d, numeric, rtol=1e-6, atol=1e-8)
        kernel._project(d, s, p.weights, case.low is None)
        base, slope, _ = kernel._fit_line(s, p.y, p.weights, case.low or 0.0, case.low is None)
        gradient = 2 * slope * d @ (p.weights * (base + slope * s - p.y))
        np.testing.assert_allclose(gradient, [(sse(shape + h) - sse(shape - h)) / 2e-5 for h in steps], 1e-5)


@pytest.mark.slow
@each
def test_no_solver_does_better(case: Case) -> None:
    behind = {}
    for seed in range(40):
        p = problem(case, seed)
        ours = case.fit(p.y, p.weights)
        found = case.free(ours.low[0], ours.slope[0], ours.shape[0])
        theirs = [2 * by_scipy(case, p.y, p.weights, start).cost for start in (p.truth, found)]
        theirs.append(by_lmfit(case, p.y, p.weights, p.truth))
        own = float(np.sum(case.residuals(p.y, p.weights)(found) ** 2))
        assert ours.sse[0] == pytest.approx(own, rel=1e-9)
        if own > min(theirs) * (1 + 1e-6):
            behind[seed] = own / min(theirs) - 1
    assert not behind, (
        f"{len(behind)} of 40 fits are worse than another solver's, by up to {max(behind.values()):.1g}"
    )


@pytest.mark.slow
@each
@given(data=st.data())
def test_no_minimum_is_lower(case: Case, data: st.DataObject) -> None:
    """One shape parameter: at any noise. Two: while the rise can be told from the noise."""
    one = len(case.axes) == 1
    noise = data.draw(st.floats(0.01, 2.0 if one else 0.1))
    p = problem(case, data.draw(st.integers(0, 10_000)), noise)
    assert case.fit(p.y, p.weights).sse[0] <= finely(case, p.y, p.weights, 20 if one else 2) * (1 + 1e-9)


@each
def test_large_residuals_do_not_stop_the_search(case: Case) -> None:
    """Far from a perfect fit Gauss–Newton steps overshoot; undamped, these crept and were given up."""
    y = np.random.default_rng(5).standard_normal((300, case.x.size))
    assert FitStatus.FAILED not in case.fit(0.3 + 0.1 * y).status


@each
def test_exact_data_give_the_truth(case: Case) -> None:
    truth = [problem(case, seed).shape for seed in range(30)]
    low = 0.3 if case.low is None else case.low
    solution = case.fit(np.array([low + 0.4 * case.s(case.x, shape) for shape in truth]))
    np.testing.assert_allclose(solution.low, low, rtol=1e-8)
    np.testing.assert_allclose(solution.slope, 0.4, rtol=1e-8)
    np.testing.assert_allclose(solution.shape, truth, rtol=1e-8)
    assert (solution.status == FitStatus.CONVERGED).all()
    assert not solution.undetermined.any()


@each
def test_levels_are_weighted_least_squares_at_the_shape(case: Case) -> None:
    for seed in range(10):
        p = problem(case, 2 * seed + 1)
        ours = case.fit(p.y, p.weights)
        s = case.s(case.x, ours.shape[0])
        design = np.column_stack(case.free(np.ones_like(s), s, []))
        root = np.sqrt(p.weights)
        line, (sse,), *_ = np.linalg.lstsq(design * root[:, None], (p.y - (case.low or 0)) * root)
        np.testing.assert_allclose(case.free(ours.low[0], ours.slope[0], []), line, rtol=1e-8)
        assert ours.sse[0] == pytest.approx(float(sse), rel=1e-8)


@each_rising
def test_a_level_may_be_held(case: Case) -> None:
    for seed in range(10):
        p = problem(case, seed)
        held = case._replace(low=p.truth[0] - 0.02)
        ours = held.fit(p.y, p.weights)
        theirs = by_scipy(held, p.y, p.weights, p.truth[1:])
        assert ours.low[0] == held.low
        assert ours.sse[0] == pytest.approx(2 * theirs.cost, rel=1e-9)
        assert [ours.slope[0], *ours.shape[0]] == pytest.approx(theirs.x, rel=1e-4)
        assert ours.sse[0] > case.fit(p.y, p.weights).sse[0]


def test_a_shape_may_be_held() -> None:
    p = problem(H, 4)
    held = H._replace(axes=[H.axes[0], SearchRange(0.0, 0.0, 1)])
    ours = held.fit(p.y, p.weights)
    assert ours.status[0] == FitStatus.CONVERGED
    assert ours.shape[0, 1] == 0
    assert ours.sse[0] <= finely(held, p.y, p.weights, 100) * (1 + 1e-9)


@each
def test_data_sets_do_not_touch_each_other(case: Case) -> None:
    """However many there are, and however many threads: to the last bit."""
    parts = [problem(case, seed) for seed in range(10)] * 20
    together = case.fit(np.array([p.y for p in parts]), np.array([p.weights for p in parts]))
    for i, p in enumerate(parts[:10]):
        alone = case.fit(p.y, p.weights)
        for name in ("low", "slope", "shape", "sse", "status"):
            assert (getattr(together, name)[i::10] == getattr(alone, name)[0]).all()


def test_threads_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.array([problem(H, seed).y for seed in range(200)])
    found = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=threads: range(n))
        found.append(H.fit(y))
    for other in found[1:]:
        assert (other.shape == found[0].shape).all()
        assert (other.sse == found[0].sse).all()


def test_one_row_serves_all() -> None:
    p = problem(E, 0)
    weights = np.random.default_rng(1).exponential(1.0, (5, p.y.size))
    shared, repeated = E.fit(p.y, weights), E.fit(np.tile(p.y, (5, 1)), weights)
    assert (shared.shape == repeated.shape).all()
    assert np.ptp(shared.slope) > 1e-4
    y = p.y + 0.01 * np.random.default_rng(2).standard_normal((5, p.y.size))
    shared, repeated = E.fit(y, weights[0]), E.fit(y, np.tile(weights[0], (5, 1)))
    assert (shared.shape == repeated.shape).all()
    assert np.ptp(shared.slope) > 1e-4


@each
def test_weights_count_points(case: Case) -> None:
    p = problem(case, 3)
    y = p.y.copy()
    y[7] += 20 * np.std(p.y)
    times = np.random.default_rng(2).integers(0, 4, y.size)
    weighted = case.fit(y, times.astype(float))
    listed = case._replace(x=np.repeat(case.x, times)).fit(np.repeat(y, times))
    np.testing.assert_allclose(weighted.shape, listed.shape, rtol=1e-5)
    np.testing.assert_allclose(weighted.slope, listed.slope, rtol=1e-5)
    assert weighted.sse[0] == pytest.approx(listed.sse[0], rel=1e-6)


@each
def test_no_weight_at_all_is_a_failed_fit(case: Case) -> None:
    p = problem(case, 0)
    y, weights = np.tile(p.y, (3, 1)), np.ones((3, p.y.size))
    weights[1], y[2, 5] = 0, np.nan
    solution = case.fit(y, weights)
    assert solution.status.tolist() == [FitStatus.CONVERGED, FitStatus.FAILED, FitStatus.FAILED]
    for name in ("low", "slope", "shape", "sse"):
        assert np.isfinite(getattr(solution, name)).all()


@each_rising
@pytest.mark.parametrize("kind", ["flat", "falling", "nearly flat"])
def test_nothing_rises(case: Case, kind: str) -> None:
    shape = [(a.low + a.high) / 2 for a in case.axes]
    y = np.full(case.x.size, 0.4) if kind != "falling" else 0.6 - 0.2 * case.s(case.x, shape)
    if kind == "nearly flat":
        y[::3] += 1e-15
    solution = case.fit(y)
    assert solution.status[0] == FitStatus.NOT_IDENTIFIED
    assert np.ptp(solution.slope[0] * case.s(case.x, solution.shape[0])) < 1e-12
    assert y.min() - 1e-12 < solution.low[0] < y.max() + 1e-12
    assert solution.low[0] == pytest.approx(y.mean(), abs=1e-12)
    assert solution.sse[0] == pytest.approx(float(np.sum((y - y.mean()) ** 2)), abs=1e-15)


def test_an_error_that_does_not_fall_has_no_power() -> None:
    for y in (np.full(39, 0.5), np.linspace(0.6, 0.4, 39), np.full(39, 1.0), np.full(39, 1.3)):
        solution = P.fit(y)
        assert solution.undetermined[0]
        assert solution.low[0] == 1
        assert np.isfinite([solution.slope[0], solution.sse[0], *solution.shape[0]]).all()


def test_a_straight_line_has_no_ceiling() -> None:
    assert E.fit(0.2 + 0.1 * BUDGETS / BUDGETS.max()).status[0] == FitStatus.ON_BOUND


@each
def test_within_a_thousandth_of_its_end_a_shape_is_on_it(case: Case) -> None:
    """The first shape parameter, near both ends of its search, from exact data."""
    axis = case.axes[0]
    inside = [np.mean(ends) for ends in case.inside]
    margin = 1e-3 * (axis.high - axis.low)
    if case.low is None:  # both ends are far outside the data: bring them in
        axis = SearchRange(inside[0] - 0.5, inside[0] + 0.5, 5)
        margin = 1e-3
    near = case._replace(axes=[axis, *case.axes[1:]])
    for end, inwards in ((axis.low, 1), (axis.high, -1)):
        for distance, status in ((0.0, 1), (0.5, 1), (1.5, 0), (5.0, 0)):
            shape = [end + inwards * distance * margin, *inside[1:]]
            s = case.s(case.x, shape)
            solution = near.fit((case.low or 0.3) + 0.4 * s / np.ptp(s))
            assert solution.status[0] == status
            assert solution.shape[0] == pytest.approx(shape, abs=1e-6)


@pytest.mark.parametrize("points", [12, 40])
def test_a_step_has_no_steepness(points: int) -> None:
    """Any steeper logistic fits a step as well: its steepness is not determined."""
    x = np.linspace(5.0, 7.0, points)
    solution = L._replace(x=x).fit(np.where(x < 6, 3.0, 6.0))
    assert solution.sse[0] < 0.01
    assert solution.undetermined[0]


@pytest.mark.parametrize("points", [5, 9, 21])
@pytest.mark.parametrize("falling", [0.0, 0.02])
def test_a_step_with_one_point_between_has_no_steepness(points: int, falling: float) -> None:
    """Steepness and middle can be traded for each other: a ridge, on which a search stands still anywhere."""
    x = np.linspace(5.0, 7.0, points)
    y = np.where(x < 6, 3.0, 6.0) - falling * (x - 6)
    y[points // 2] = 4.0
    solution = L._replace(x=x).fit(y)
    assert solution.sse[0] < 0.02
    assert solution.undetermined[0]


rewards = st.lists(st.floats(-5, 5), min_size=40, max_size=40).map(np.array)


@given(y=rewards)
def test_monotone_and_no_worse_than_a_constant(y: Floats) -> None:
    for case in (E, H, L):
        solution = case.fit(y)
        total = float(np.sum((y - y.mean()) ** 2))
        assert solution.slope[0] >= 0
        assert 0 <= solution.sse[0] <= total * (1 + 1e-9) + 1e-12
        assert np.isfinite([solution.low[0], solution.slope[0], *solution.shape[0]]).all()


# Few points, some of them without weight, of any size: the cases that divide by nothing.
@given(
    case=st.sampled_from(CASES),
    y=st.lists(st.floats(-1e9, 1e9), min_size=6, max_size=6).map(np.array),
    weights=st.lists(st.sampled_from([0.0, 1e-9, 1.0, 3.0]), min_size=6, max_size=6).map(np.array),
)
def test_whatever_comes_in_numbers_come_out(case: Case, y: Floats, weights: Floats) -> None:
    solution = case._replace(x=case.x[3:33:5]).fit(y, weights)
    for name in ("low", "slope", "shape", "sse", "status"):
        assert np.isfinite(getattr(solution, name)).all()


@given(seed=st.integers(0, 10_000), shift=st.floats(-3, 3), factor=st.floats(0.01, 100))
def test_reward_has_no_natural_unit(seed: int, shift: float, factor: float) -> None:
    p = problem(E, seed)
    plain, changed = E.fit(p.y, p.weights), E.fit(shift + factor * p.y, p.weights)
    np.testing.assert_allclose(changed.low, shift + factor * plain.low, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(changed.slope, factor * plain.slope, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(changed.sse, factor**2 * plain.sse, rtol=1e-6)


@each_rising
def test_a_large_offset_costs_its_own_digits_only(case: Case) -> None:
    """1e6 + y keeps ten of y's sixteen digits; nothing is lost beside those."""
    for seed in range(10):
        p = problem(case, seed)
        plain, shifted = case.fit(p.y, p.weights), case.fit(1e6 + p.y, p.weights)
        assert shifted.status[0] == plain.status[0]
        np.testing.assert_allclose(shifted.low - 1e6, plain.low, atol=1e-7)
        np.testing.assert_allclose(shifted.slope, plain.slope, rtol=1e-6)
        np.testing.assert_allclose(shifted.shape, plain.shape, atol=1e-6)
        np.testing.assert_allclose(shifted.sse, plain.sse, rtol=1e-6)


@each
def test_of_shapes_that_fit_alike_the_smallest_slope_is_taken(case: Case) -> None:
    """Two values of x determine no shape: whatever y is rounded to, the same one is taken."""
    x = np.repeat(case.x[[5, -5]], 3)
    y = np.tile([-0.1, 0.0, 0.1], 2) + np.repeat([0.3, 0.6], 3)
    rounded = y * (1 + 1e-15 * np.random.default_rng(0).uniform(-1, 1, (50, 6)))
    own = case._replace(x=x).fit(np.vstack([y, rounded]), np.ones((1, 6)))
    np.testing.assert_allclose(own.shape, np.broadcast_to(own.shape[0], own.shape.shape), rtol=1e-6)
    np.testing.assert_allclose(own.slope, own.slope[0], rtol=1e-6)
