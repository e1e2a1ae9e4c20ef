"""The allocation law: monotone, and pulled by a bound only from its wrong side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import least_squares

from isolaw.fits.laws.equations import Logistic, fit_logistic

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.numbers]

X = np.linspace(5.0, 7.0, 50)


def truth(x: np.ndarray, b: float, rise: float, k: float, x0: float) -> np.ndarray:
    return b + rise / (1 + np.exp(-k * (x - x0)))


def found(law: Logistic, row: int = 0) -> list[float]:
    return [float(v[row]) for v in (law.b, law.L, law.k, law.x0)]


@pytest.mark.parametrize(
    "parameters",
    [
        (3.0, 6.0, 7.0, 6.1),
        (3.0, 3.0, 3.0, 6.0),
        (2.0, 5.0, 20.0, 5.6),
        (4.0, 1.0, 10.0, 6.4),
        (3, 6, 5, 6.3),
    ],
)
def test_exact_points_give_the_law(parameters: tuple[float, ...]) -> None:
    law = fit_logistic(X, truth(X, *parameters)[None])
    assert found(law) == pytest.approx(parameters, abs=2e-3)
    assert not law.on_bound[0]
    np.testing.assert_allclose(law(X)[0], truth(X, *parameters), atol=1e-4)


def test_linear_in_steps() -> None:
    """The form for a fixed batch: x is M itself."""
    steps = np.linspace(10, 2000, 60)
    law = fit_logistic(steps, truth(steps, 3.0, 4.0, 0.006, 700.0)[None])
    assert found(law) == pytest.approx((3.0, 4.0, 0.006, 700.0), rel=1e-3)


@given(st.lists(st.integers(0, 11), min_size=6, max_size=30), st.integers(0, 2**30))
def test_monotone_whatever_the_points(values: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(4, 8, len(values)))
    below, above = rng.random((2, 1, len(values))) < 0.2
    law = fit_logistic(x, np.array([values], dtype=float), below, above & ~below)
    fine = law(np.linspace(2, 10, 300))[0]
    assert law.L[0] >= 0
    assert law.k[0] > 0
    assert np.isfinite(fine).all()
    assert np.all(np.diff(fine) >= -1e-9)


def test_falling_and_constant_points_have_no_rise() -> None:
    law = fit_logistic(X, np.array([9 - (X - 5), np.full(50, 5.0)]))
    np.testing.assert_allclose(law.L, 0, atol=1e-9)
    np.testing.assert_allclose(law.b, [8.0, 5.0], atol=1e-9)
    assert law.on_bound.all()


# Bounds: the last ten points and the first ten are censored.
LAW = (3.0, 6.0, 5.0, 6.0)
LATE, EARLY = X > 6.6, X < 5.4
NONE = np.zeros((1, X.size), dtype=bool)


def test_a_bound_that_is_kept_does_not_pull() -> None:
    """Lower bounds far below the law and upper bounds far above it change nothing."""
    y = truth(X, *LAW)
    y[LATE] -= 3.0
    y[EARLY] += 3.0
    law = fit_logistic(X, y[None], LATE[None], EARLY[None])
    np.testing.assert_allclose(law(X)[0], truth(X, *LAW), atol=0.02)
    pulled = fit_logistic(X, y[None])
    assert np.abs(pulled(X)[0] - truth(X, *LAW)).max() > 0.5


def test_a_bound_that_is_broken_pulls() -> None:
    """Lower bounds above the law draw it up, upper bounds below it draw it down."""
    y = truth(X, *LAW)
    y[LATE] += 2.0
    y[EARLY] -= 2.0
    shift = fit_logistic(X, y[None], LATE[None], EARLY[None])(X)[0] - truth(X, *LAW)
    assert np.all(shift[LATE] > 0.3)
    assert np.all(shift[EARLY] < -0.3)


def test_each_side_pulls_its_own_way_only() -> None:
    flat = np.full(X.size, 5.0)
    high, low = flat.copy(), flat.copy()
    high[LATE], low[LATE] = 8.0, 2.0
    assert fit_logistic(X, high[None], LATE[None], NONE)(X)[0, -1] > 7.0
    assert fit_logistic(X, low[None], NONE, LATE[None])(X)[0, -1] < 4.9
    # The same values as bounds on the other side say nothing: n* = 5 fits exactly.
    below_eight = fit_logistic(X, high[None], NONE, LATE[None])(X)[0]
    np.testing.assert_allclose(below_eight[~LATE], 5.0, atol=0.1)
    assert below_eight.max() < 8.01
    above_two = fit_logistic(X, low[None], LATE[None], NONE)(X)[0]
    np.testing.assert_allclose(above_two, 5.0, atol=0.02)


def one_sided(law: np.ndarray, y: np.ndarray, below: np.ndarray, above: np.ndarray) -> np.ndarray:
    residual = law - y
    return np.where(below, np.minimum(residual, 0), np.where(above, np.maximum(residual, 0), residual))


def test_the_one_sided_loss_is_smallest() -> None:
    """Against scipy on the one-sided residuals themselves, from the truth and from our answer."""
    worse = {}
    for seed in range(20):
        rng = np.random.default_rng(seed)
        law = (3.0, rng.uniform(2, 6), rng.uniform(3, 9), rng.uniform(5.7, 6.3))
        y = truth(X, *law) + 0.4 * rng.standard_normal(X.size)
        below, above = (X > 6.5) & (rng.random(50) < 0.7), (X < 5.4) & (rng.random(50) < 0.7)
        y[below] -= rng.exponential(1.0, below.sum())
        fit = fit_logistic(X, y[None], below[None], above[None])
        own = float(np.sum(one_sided(fit(X)[0], y, below, above) ** 2))

        def residual(
            p: np.ndarray, y: np.ndarray = y, below: np.ndarray = below, above: np.ndarray = above
        ) -> np.ndarray:
            return one_sided(truth(X, *p), y, below, above)

        bounds = ([-np.inf, 0, 0.5, 4.0], [np.inf, np.inf, 200.0, 8.0])
        theirs = min(2 * least_squares(residual, start, bounds=bounds).cost for start in (law, found(fit)))
        if own > theirs * 1.001:
            worse[seed] = own / theirs - 1
    assert not worse


def test_data_sets_do_not_touch_each_other() -> None:
    y = np.array([truth(X, *LAW), truth(X, 4.0, 2.0, 9.0, 5.8), np.full(50, 3.0)])
    below = np.array([LATE, EARLY, LATE])
    together = fit_logistic(X, y, below, ~below & EARLY)
    for i in range(3):
        alone = fit_logistic(X, y[i : i + 1], below[i : i + 1], (~below & EARLY)[i : i + 1])
        np.testing.assert_allclose(together(X)[i], alone(X)[0], atol=1e-3)


def test_a_steep_rise_between_irregular_points_is_found() -> None:
    """The loss has several minima where the rise lies between few points; the truth is near the least."""
    worse = {}
    for seed in range(60):
        rng = np.random.default_rng([3, seed])
        x = np.sort(rng.uniform(4.5, 7.5, int(rng.integers(10, 60))))
        law = (rng.uniform(2, 4), rng.uniform(1, 7), 10 ** rng.uniform(0.3, 1.5), rng.uniform(5.0, 7.0))
        y = truth(x, *law) + rng.choice([0.001, 0.1, 0.5]) * rng.standard_normal(x.size)
        fit = fit_logistic(x, y[None])
        own = float(np.sum((fit(x)[0] - y) ** 2))
        span = float(np.ptp(x))
        bounds = (
            [-np.inf, 0, 1 / span, x.min() - span / 2],
            [np.inf, np.inf, 400 / span, x.max() + span / 2],
        )

        def residual(p: np.ndarray, x: np.ndarray = x, y: np.ndarray = y) -> np.ndarray:
            return truth(x, *p) - y

        starts = [
            np.clip(p, np.array(bounds[0]) + 1e-9, np.array(bounds[1]) - 1e-9) for p in (law, found(fit))
        ]
        theirs = min(2 * least_squares(residual, p, bounds=bounds, x_scale="jac").cost for p in starts)
        if own > theirs * 1.01:
            worse[seed] = own / theirs - 1
    assert not worse
