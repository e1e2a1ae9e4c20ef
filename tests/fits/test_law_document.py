"""The simultaneous band: 95 % of drawn paths, no wider than it must be, and never of no width."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.evidence import from_draws
from isolaw.fits.frontier import NStarPath
from isolaw.fits.law_document import simultaneous

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.numbers]

LEVELS = np.array([8, 16, 32, 64, 128])


def path(log2_n: np.ndarray, below: np.ndarray | None = None, above: np.ndarray | None = None) -> NStarPath:
    """n* at X computes in 1 + D draws; an end of the grid is a bound unless said otherwise."""
    below = log2_n >= 7 if below is None else below
    above = log2_n <= 3 if above is None else above
    compute = np.geomspace(1e4, 1e6, log2_n.shape[1])
    return NStarPath(compute, LEVELS, np.clip(log2_n, 3, 7), np.zeros(log2_n.shape), below, above)


def walks(rng: int, draws: int, size: int, step: float, start: float) -> np.ndarray:
    """Draws that wander about a straight ridge."""
    generator = np.random.default_rng(rng)
    noise = step * generator.standard_normal((1 + draws, size)).cumsum(axis=1)
    noise[0] = 0
    return start + np.linspace(-1, 1, size) + noise


paths = st.builds(
    lambda *args: path(walks(*args)),
    st.integers(0, 1000),
    st.sampled_from([20, 100, 400]),
    st.integers(1, 12),
    st.floats(0.01, 1.0),
    st.floats(3, 7),
)


def share_inside(n: np.ndarray, band: np.ndarray) -> float:
    return float(np.mean(~np.any((n < band[0]) | (n > band[1]), axis=1)))


@given(paths)
def test_it_holds_95_percent_of_paths(p: NStarPath) -> None:
    assert share_inside(p.n[1:], simultaneous(p)) >= 0.95


@given(paths)
def test_it_holds_the_pointwise_interval(p: NStarPath) -> None:
    band = simultaneous(p)
    for i in range(p.compute.size):
        status = "lower_bound" if p.below[0, i] else "upper_bound" if p.above[0, i] else "ok"
        q = from_draws(float(np.exp2(p.log2_n[0, i])), p.n[1:, i], status)
        if q.interval is None:
            continue
        low, high = (
            end if end is not None else sign * math.inf for end, sign in zip(q.interval, (-1, 1), strict=True)
        )
        assert band[0, i] <= low + 1e-9
        assert band[1, i] >= high - 1e-9


@given(paths)
def test_it_has_width(p: NStarPath) -> None:
    band = simultaneous(p)
    assert not np.isnan(band).any()
    assert np.all(band[0] < band[1])
    assert np.all(band[1][p.below[0]] == np.inf)
    assert np.all(band[0][p.above[0]] == -np.inf)


@given(st.integers(0, 1000), st.sampled_from([40, 100, 400]))
def test_none_narrower_would_do(rng: int, draws: int) -> None:
    """Against every family of equal-tailed quantiles, one after the other."""
    p = path(walks(rng, draws, 6, 0.05, 5.0))
    ordered = np.sort(p.n[1:], axis=0)
    best = None
    for k in range(math.ceil(0.025 * draws)):
        band = np.stack([ordered[k], ordered[-1 - k]])
        if share_inside(p.n[1:], band) >= 0.95:
            best = band
    np.testing.assert_array_equal(simultaneous(p), best)


def test_one_compute_is_a_pointwise_interval() -> None:
    """With a single compute there is nothing to be simultaneous about."""
    p = path(walks(0, 400, 1, 0.2, 5.0))
    low, high = from_draws(1.0, p.n[1:, 0]).interval or (None, None)
    assert simultaneous(p)[:, 0] == pytest.approx([low, high], rel=0.02)


def test_draws_that_do_not_vary_have_no_band() -> None:
    steady = np.repeat(np.linspace(4, 6, 5)[None], 51, axis=0)
    assert np.all(np.isinf(simultaneous(path(steady))))
    steady[1:, 2] += 0.1 * np.random.default_rng(0).standard_normal(50)
    assert np.isinf(simultaneous(path(steady))).all(axis=0).tolist() == [True, True, False, True, True]


def test_what_is_not_known_breaks_no_band() -> None:
    """Where a draw has no n*, it is inside; where none has, the band is open."""
    values = walks(0, 100, 5, 0.05, 5.0)
    unknown = np.zeros(values.shape, dtype=bool)
    unknown[1:60, 1] = True
    unknown[:, 3] = True
    p = path(values, below=unknown, above=unknown)
    band = simultaneous(p)
    assert np.isinf(band[:, 3]).all()
    assert np.isfinite(band[:, [0, 2, 4]]).all()
    known = np.where(np.isnan(p.n[1:]), band[1], p.n[1:])
    assert share_inside(known, band) >= 0.95


def test_a_bound_in_every_draw_is_one_sided() -> None:
    p = path(np.full((31, 3), 7.0))
    assert simultaneous(p).tolist() == [[128.0] * 3, [np.inf] * 3]
    p = path(np.full((31, 3), 3.0))
    assert simultaneous(p).tolist() == [[-np.inf] * 3, [8.0] * 3]
