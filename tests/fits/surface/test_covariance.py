"""Covariance functions: against integrals, differences, and what makes them covariances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import dblquad

from isolaw.fits.selection import Floats
from isolaw.fits.surface.covariance import Pairs, Points, integrated, matern

times = st.lists(st.floats(0, 8), min_size=1, max_size=12).map(np.array)


def points(size: int) -> Points:
    return Points(*np.zeros((6, size)), np.zeros(size, dtype=bool))


def integral(a: Floats, b: Floats, length: float) -> tuple[Floats, Floats]:
    """Of all pairs."""
    return integrated(Pairs(points(a.size), points(b.size)), a, b, length)


@pytest.mark.parametrize("length", [0.3, 2.0, 50.0])
@pytest.mark.parametrize(("a", "b"), [(0.0, 1.0), (0.5, 0.5), (1.0, 4.0), (3.0, 0.2)])
def test_the_integral_of_ornstein_and_uhlenbeck(a: float, b: float, length: float) -> None:
    """∫₀ᵃ ∫₀ᵇ e^(−|s − s'| / ℓ) ds' ds, numerically, the fold apart."""

    def part(low: Any, high: Any) -> float:
        return dblquad(lambda s, r: np.exp(-abs(s - r) / length), 0, a, low, high)[0]

    expected = part(0, lambda r: min(r, b)) + part(lambda r: min(r, b), b)
    assert integral(np.array([a]), np.array([b]), length)[0][0, 0] == pytest.approx(expected, abs=1e-7)


@given(times, times, st.floats(0.2, 50))
def test_its_slope(a: Floats, b: Floats, length: float) -> None:
    step = 1e-5
    high, low = (integral(a, b, length * np.exp(d))[0] for d in (step, -step))
    np.testing.assert_allclose(integral(a, b, length)[1], (high - low) / (2 * step), rtol=1e-5, atol=1e-6)


@given(times, st.floats(0.2, 50))
def test_each_pair_once_is_half_of_all_pairs(t: Floats, length: float) -> None:
    own = Pairs(points(t.size))
    for found, whole in zip(integrated(own, t, t, length), integral(t, t, length), strict=True):
        np.testing.assert_allclose(own.matrix(found), whole, atol=1e-12)


@given(times, st.floats(0.2, 50))
def test_covariances_are_positive_definite(t: Floats, length: float) -> None:
    for gram in (matern((t[:, None] - t) / length)[0], integral(t, t, length)[0]):
        values = np.linalg.eigvalsh((gram + gram.T) / 2)
        assert values[0] > -1e-10 * max(1.0, values[-1])


@given(st.floats(-20, 20))
def test_matern(h: float) -> None:
    """Between a Matérn function of order 3/2 and one of 5/2; and its slope over −h, by differences."""
    r, q = np.sqrt(3) * abs(h), np.sqrt(5) * abs(h)
    both = (1 + r) * np.exp(-r), (1 + q + q * q / 3) * np.exp(-q)
    assert min(both) - 1e-12 <= matern(np.array(h))[0] <= max(both) + 1e-12
    step = 1e-6
    value, falls = matern(np.array(h))
    high, low = (matern(np.array(h + d))[0] for d in (step, -step))
    assert 0 <= value <= 1
    assert -falls * h == pytest.approx((high - low) / (2 * step), abs=1e-6)
