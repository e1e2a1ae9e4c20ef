"""What single runs scatter about: a polynomial over (log n, log B_p), fitted by least squares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.fits.curves.bootstrap import exponents, hat
from isolaw.fits.selection import Configuration

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

N = [8, 16, 32, 64, 128, 256, 512]
FIXED_BP = [(32, n) for n in N]
FIXED_B = [(4096 // n, n) for n in N]
JOINT = [(b, n) for b in (16, 32, 64, 128) for n in N]
PLANES = {"B_p": FIXED_BP, "B": FIXED_B, "nothing": JOINT}


def configuration(b: int, n: int, runs: int = 1) -> Configuration:
    """A configuration of which only the place and the number of runs matter."""
    nothing = np.empty(0)
    return Configuration(b, n, nothing, nothing, np.empty(0, dtype=np.int64), (0,) * runs, float(b * n))


@pytest.mark.parametrize("first", [1, 3, 5, 7, 11])
def test_doublings_are_counted_whatever_their_logarithms_are_rounded_to(first: int) -> None:
    """Between a degree and the next there are odd numbers of doublings."""
    for doublings, degree in ((5, 2), (7, 4)):
        u = np.log2(first * 2.0 ** np.arange(doublings + 1))
        for end in (-1e-15, 1e-15):
            assert max(exponents(np.append(u[:-1], u[-1] + end), np.zeros(u.size))) == (degree, 0)


def test_weights_are_the_numbers_of_runs() -> None:
    """Against weighted least squares; three runs weigh as their mean entered three times does."""
    rng = np.random.default_rng(1)
    runs = [3, 1, 2, 5, 1, 1, 4]
    values = rng.uniform(0, 1, 7)
    u = np.log2([n for _, n in FIXED_BP])
    projection, _ = hat([configuration(b, n, r) for (b, n), r in zip(FIXED_BP, runs, strict=True)])
    basis = np.vander(u, 4, increasing=True)  # six doublings: a cubic
    w = np.diag(runs)
    expected = basis @ np.linalg.solve(basis.T @ w @ basis, basis.T @ w @ values)
    np.testing.assert_allclose(projection @ values, expected, atol=1e-8)


@pytest.mark.parametrize("hold", PLANES)
@given(st.data())
def test_a_polynomial_leaves_nothing(hold: str, data: st.DataObject) -> None:
    """Of the degree that six doublings of n determine."""
    u, v = (np.log2([p[i] for p in PLANES[hold]]) for i in (1, 0))
    terms = [u**0, u, u**2, u**3] + ([v, v**2, u * v] if hold == "nothing" else [])
    values = sum(data.draw(st.floats(-1, 1)) * t for t in terms)
    projection, _ = hat([configuration(b, n) for b, n in PLANES[hold]])
    np.testing.assert_allclose(projection @ values, values, atol=1e-6)


@pytest.mark.parametrize("hold", PLANES)
@pytest.mark.parametrize("runs", [1, 3])
def test_the_hat_matrix_is_a_projection(hold: str, runs: int) -> None:
    projection, freedom = hat([configuration(b, n, runs) for b, n in PLANES[hold]])
    np.testing.assert_allclose(projection @ projection, projection, atol=1e-9)
    np.testing.assert_allclose(projection, projection.T, atol=1e-9)
    assert np.trace(projection) == pytest.approx(len(PLANES[hold]) - freedom)
    np.testing.assert_allclose(projection.sum(axis=1), 1)  # a constant is a surface


@pytest.mark.parametrize(
    ("levels", "degree"),
    [
        ([8, 16, 32], 2),
        ([8, 16], 1),
        ([8], 0),
        ([8, 32, 128, 512], 3),
        ([8, 64, 512], 2),  # three levels determine no more
        ([4, 8, 16, 32, 64, 128, 256, 512, 1024], 4),
        ([4, 16, 64, 256, 1024, 4096], 4),  # and never beyond the fourth
    ],
)
def test_the_degree_grows_with_the_doublings(levels: list[int], degree: int) -> None:
    u = np.log2(levels)
    assert exponents(u, np.zeros(len(u))) == [(i, 0) for i in range(degree + 1)]


def test_terms_that_are_not_determined_are_left_out() -> None:
    """Along B = B_p · n, log B_p is a function of log n; on a cross there is no interaction."""
    cross = [(32, n) for n in N] + [(b, 64) for b in (8, 16, 64, 128)]
    u, v = (np.log2([p[i] for p in cross]) for i in (1, 0))
    assert (1, 1) not in exponents(u, v)
    assert {(0, 1), (0, 2)} <= set(exponents(u, v))
    two = [(b, n) for b in (16, 32) for n in N]
    u, v = (np.log2([p[i] for p in two]) for i in (1, 0))
    assert (0, 2) not in exponents(u, v)
    assert {(0, 1), (1, 1)} <= set(exponents(u, v))
