"""Laws of n*: their least squares against others, bounds as bounds, in every draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import least_squares

from isolaw.fits.frontier import NStarPath
from isolaw.fits.laws.equations import LAWS
from isolaw.fits.selection import Floats

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

X = np.linspace(4.5, 6.5, 40)
LEVELS = 2 ** np.arange(2, 11)
THETA = {
    "constant": [6.3],
    "power": [-4.0, 1.9],
    "linear": [-500.0, 130.0],
    "non-monotone": [-50.0, 20.0, -1.7],
}
BENDS = np.linspace(0.002, 0.01, X.size)  # late in training a wrong n costs more


def law(name: str, x: Floats, theta: Any) -> Floats:
    """log2 n* of one θ, (X,)."""
    return LAWS[name].log2_n(x, np.atleast_2d(theta))[0]


def path(log2_n: np.ndarray, below: np.ndarray | None = None, above: np.ndarray | None = None) -> NStarPath:
    nowhere = np.zeros(log2_n.shape, dtype=bool)
    below, above = (nowhere if value is None else value for value in (below, above))
    return NStarPath(10**X, LEVELS, log2_n, np.zeros(log2_n.shape), below, above)


def drawn(name: str, rng: int, draws: int = 300, noise: float = 0.2) -> np.ndarray:
    """log2 n* of the true law, with noise; rows about what was seen in the first one."""
    generator = np.random.default_rng(rng)
    spread = noise * np.linspace(2, 0.5, X.size)
    seen = law(name, X, np.array(THETA[name])) + spread * generator.standard_normal(X.size)
    return np.concatenate([seen[None], seen + spread * generator.standard_normal((draws, X.size))])


@pytest.mark.parametrize("name", THETA)
def test_without_noise_it_is_the_truth(name: str) -> None:
    exact = np.tile(law(name, X, np.array(THETA[name])), (3, 1))
    np.testing.assert_allclose(LAWS[name].fit(X, path(exact), BENDS), np.tile(THETA[name], (3, 1)), rtol=1e-6)


@pytest.mark.parametrize("name", THETA)
def test_against_scipy(name: str) -> None:
    """The linear law to first order only: its errors are relative to n*."""
    seen = drawn(name, 1, noise=0.02 if name == "linear" else 0.2)
    found = LAWS[name].fit(X, path(seen), BENDS)
    for row in (0, 7):
        expected = least_squares(lambda t, y=seen[row]: (law(name, X, t) - y) * np.sqrt(BENDS), THETA[name]).x
        own = law(name, X, found[row])
        np.testing.assert_allclose(own, law(name, X, expected), atol=0.01 if name == "linear" else 1e-5)


@given(st.integers(0, 10_000), st.sampled_from(["constant", "power"]))
def test_bounds_pull_only_from_their_wrong_side(rng: int, name: str) -> None:
    """The grid ends at n = 64 and begins at 8; against a general minimiser of the one-sided loss."""
    seen = drawn(name, rng, draws=20, noise=0.4)
    low, high = 3.0, 6.0
    below, above = seen >= high, seen <= low
    clipped = np.clip(seen, low, high)

    def residuals(theta: np.ndarray) -> np.ndarray:
        off = law(name, X, theta) - clipped[0]
        return np.where((below[0] & (off > 0)) | (above[0] & (off < 0)), 0.0, off) * np.sqrt(BENDS)

    found = LAWS[name].fit(X, path(clipped, below, above), BENDS)[0]
    if below[0].all() or above[0].all():
        assert np.allclose(residuals(found), 0, atol=1e-3)
        return
    best = least_squares(residuals, THETA[name], xtol=1e-12, ftol=1e-12).cost
    assert 0.5 * np.sum(residuals(found) ** 2) <= best * (1 + 1e-3) + 1e-6


@pytest.mark.parametrize("name", ["constant", "power", "non-monotone"])
def test_its_draws_hold_the_truth(name: str) -> None:
    """Of 200 sets of data about 190 have the law at the last C in their interval."""
    held = 0
    for rng in range(200):
        draws = LAWS[name].fit(X, path(drawn(name, rng, draws=200)), BENDS)[1:]
        at_end = LAWS[name].log2_n(X[-1:], draws)[:, 0]
        low, high = np.quantile(at_end, [0.025, 0.975])
        held += low <= law(name, X[-1:], np.array(THETA[name]))[0] <= high
    assert 180 <= held <= 199


def test_what_is_not_known_says_nothing() -> None:
    seen = drawn("power", 3)
    unknown = np.zeros(seen.shape, dtype=bool)
    unknown[:, :10] = True
    moved = seen.copy()
    moved[:, :10] += 5
    a, b = (LAWS["power"].fit(X, path(value, unknown, unknown), BENDS) for value in (seen, moved))
    np.testing.assert_allclose(a, b)


def test_it_loses_least() -> None:
    """Where rewards bend ten times as much, n* counts ten times as much."""
    log2_n = np.where(X < 5.5, 5.0, 7.0)[None].repeat(2, axis=0)
    for low, high, expected in (
        (0.001, 0.01, (5 + 10 * 7) / 11),
        (0.01, 0.001, (10 * 5 + 7) / 11),
        (1.0, 1.0, 6.0),
    ):
        found = LAWS["constant"].fit(X, path(log2_n), np.where(X < 5.5, low, high))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_logistic_is_that_of_the_fit() -> None:
    theta = np.array([4.0, 3.5, np.log(8.0), 5.2])
    exact = np.tile(law("logistic", X, theta), (4, 1))
    found = LAWS["logistic"].fit(X, path(exact), BENDS)
    np.testing.assert_allclose(LAWS["logistic"].log2_n(X, found), exact, atol=1e-3)
