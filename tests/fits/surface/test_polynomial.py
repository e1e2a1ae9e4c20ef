"""The surface: polynomials come back with their ridge, and what was not measured does not matter."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.polynomial import LEAST_LEVELS, Surface, Terms, fit_surface, hat, highest

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

N = [8, 16, 32, 64, 128, 256, 512]
FIXED_BP = [(32, n) for n in N]
FIXED_B = [(4096 // n, n) for n in N]
JOINT = [(b, n) for b in (16, 32, 64, 128) for n in N]
PLANES = {"fixed-bp": FIXED_BP, "fixed-b": FIXED_B, "joint": JOINT}


def configuration(b: int, n: int, runs: int = 1) -> Configuration:
    """A configuration of which only the place and the number of runs matter."""
    nothing = np.empty(0)
    return Configuration(b, n, nothing, nothing, np.empty(0, dtype=np.int64), (0,) * runs, float(b * n))


def fitted(
    pairs: list[tuple[int, int]],
    values: Floats,
    runs: list[int] | None = None,
    measured: np.ndarray | None = None,
) -> Surface:
    """The surface of rewards ``values`` (1 + D, N, X)."""
    places = [configuration(b, n, r) for (b, n), r in zip(pairs, runs or [1] * len(pairs), strict=True)]
    if measured is None:
        measured = np.ones(values.shape[1:], dtype=bool)
    return fit_surface(places, values, measured)


def plane(setting: str) -> tuple[Floats, Floats]:
    """log2 n, and log2 B_p where it varies on its own."""
    u = np.log2([n for _, n in PLANES[setting]])
    v = np.log2([b for b, _ in PLANES[setting]])
    return u, v if setting == "joint" else np.zeros_like(u)


Polynomial = Callable[[Floats, Floats], Floats]


@st.composite
def polynomials(draw: st.DrawFn, setting: str) -> Polynomial:
    """Of the degree that six doublings of n determine, with a maximum somewhere near the middle."""
    top, side = draw(st.floats(4, 8)), draw(st.floats(4, 7))
    bend, skew = draw(st.floats(0.001, 0.05)), draw(st.floats(-0.002, 0.002))
    across, slant = draw(st.floats(0.001, 0.02)), draw(st.floats(-0.0005, 0.0005))
    level = draw(st.floats(-2, 2))

    def reward(u: Floats, v: Floats) -> Floats:
        out = level - bend * (u - top) ** 2 + skew * (u - top) ** 3
        if setting == "joint":
            out = out - across * (v - side) ** 2 + slant * (u - top) * (v - side)
        return out

    return reward


@pytest.mark.parametrize("setting", PLANES)
@given(st.data())
def test_a_polynomial_comes_back(setting: str, data: st.DataObject) -> None:
    reward = data.draw(polynomials(setting))
    u, v = plane(setting)
    surface = fitted(PLANES[setting], reward(u, v)[None, :, None])
    between = np.array([3.0, 3.3, 4.71, 6.5, 8.99]), np.array([4.0, 4.2, 5.5, 6.1, 6.9])
    expected = reward(between[0], between[1] if setting == "joint" else np.zeros(5))
    np.testing.assert_allclose(
        surface.at(between[0], between[1] * (setting == "joint"))[0, 0], expected, atol=1e-9
    )


@pytest.mark.parametrize("setting", PLANES)
@settings(max_examples=25)
@given(st.data())
def test_the_ridge_is_the_argmax(setting: str, data: st.DataObject) -> None:
    """Against brute force over a grid eight times as fine (in the joint setting, over B_p as well)."""
    reward = data.draw(polynomials(setting))
    u, v = plane(setting)
    ridge = fitted(PLANES[setting], reward(u, v)[None, :, None]).ridge()
    fine = np.linspace(3, 9, 6 * 128 + 1)
    across = np.linspace(4, 7, 3 * 32 + 1) if setting == "joint" else np.zeros(1)
    grid_u, grid_v = (g.ravel() for g in np.meshgrid(fine, across, indexing="ij"))
    values = reward(grid_u, grid_v)
    best = values.argmax()
    assert ridge.reward[0, 0] <= values[best] + 1e-5  # it may lie between the points of the fine grid
    assert ridge.reward[0, 0] == pytest.approx(values[best], abs=3e-4 if setting == "joint" else 1e-5)
    if setting == "joint":
        assert reward(ridge.log2_n[0], ridge.log2_b[0])[0] == pytest.approx(ridge.reward[0, 0], abs=1e-9)
        return
    assert ridge.log2_n[0, 0] == pytest.approx(grid_u[best], abs=0.01)
    assert ridge.log2_b[0, 0] == 0


@given(st.floats(3.01, 8.99), st.floats(0.001, 0.1), st.floats(-3, 3))
def test_a_parabolas_top_is_exact(top: float, bend: float, level: float) -> None:
    u, _ = plane("fixed-bp")
    ridge = fitted(FIXED_BP, (level - bend * (u - top) ** 2)[None, :, None]).ridge()
    assert ridge.log2_n[0, 0] == pytest.approx(top, abs=1e-6)
    assert ridge.reward[0, 0] == pytest.approx(level, abs=1e-9)
    assert not ridge.below.any()
    assert not ridge.above.any()


@pytest.mark.parametrize("setting", ["fixed-bp", "fixed-b"])
@pytest.mark.parametrize("top", [1.0, 2.9, 3.0, 9.0, 9.1, 20.0])
def test_an_end_is_a_bound(setting: str, top: float) -> None:
    u, _ = plane(setting)
    ridge = fitted(PLANES[setting], (0.5 - 0.01 * (u - top) ** 2)[None, :, None]).ridge()
    assert ridge.log2_n[0, 0] == pytest.approx(np.clip(top, 3, 9), abs=1e-6)
    assert ridge.below[0, 0] == (top >= 9)
    assert ridge.above[0, 0] == (top <= 3)


def test_in_joint_an_end_of_n_is_a_bound() -> None:
    u, v = plane("joint")
    ridge = fitted(JOINT, (0.01 * u - 0.02 * (v - 5.5) ** 2)[None, :, None]).ridge()
    assert ridge.below[0, 0]
    assert ridge.log2_n[0, 0] == 9
    assert ridge.log2_b[0, 0] == pytest.approx(5.5, abs=1e-9)


def test_draws_and_computes_are_apart() -> None:
    """Each has its own argmax, as when it is fitted alone."""
    u, _ = plane("fixed-bp")
    rng = np.random.default_rng(0)
    values = 0.5 - 0.01 * (u[None, :, None] - rng.uniform(4, 8, (5, 1, 3))) ** 2
    values = values + 0.01 * rng.standard_normal(values.shape)
    ridge = fitted(FIXED_BP, values).ridge()
    assert ridge.log2_n.shape == (5, 3)
    for d in range(5):
        for x in range(3):
            alone = fitted(FIXED_BP, values[d : d + 1, :, x : x + 1]).ridge()
            assert ridge.log2_n[d, x] == pytest.approx(alone.log2_n[0, 0], abs=1e-9)
            assert ridge.reward[d, x] == pytest.approx(alone.reward[0, 0], abs=1e-12)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_below_three_levels_there_is_no_surface(levels: int) -> None:
    measured = np.zeros((len(N), 2), dtype=bool)
    measured[:, 0] = True
    measured[2 : 2 + levels, 1] = True
    u, _ = plane("fixed-bp")
    values = np.repeat((0.5 - 0.01 * (u - 5) ** 2)[None, :, None], 2, axis=2)
    surface = fitted(FIXED_BP, values, measured=measured)
    assert surface.defined.tolist() == [True, levels >= LEAST_LEVELS]
    ridge = surface.ridge()
    assert np.isnan(ridge.log2_n[0]).tolist() == [False, levels < LEAST_LEVELS]
    if levels < LEAST_LEVELS:  # not known at all: a bound on both sides
        assert ridge.below[0, 1]
        assert ridge.above[0, 1]


def test_two_n_at_many_batches_are_two_levels() -> None:
    pairs = [(b, n) for b in (8, 16, 32) for n in (8, 64)]
    assert not fitted(pairs, np.zeros((1, 6, 1))).defined.any()


def test_none_measured() -> None:
    measured = np.ones((len(N), 2), dtype=bool)
    measured[:, 1] = False
    surface = fitted(FIXED_BP, np.zeros((1, len(N), 2)), measured=measured)
    assert surface.defined.tolist() == [True, False]
    assert np.isnan(surface.ridge().log2_n[0, 1])


@given(st.sets(st.integers(0, 6), min_size=3), st.floats(-5, 5))
def test_what_was_not_measured_does_not_matter(measured: set[int], junk: float) -> None:
    mask = np.isin(np.arange(7), list(measured))[:, None]
    rng = np.random.default_rng(0)
    values = 0.5 - 0.01 * (plane("fixed-bp")[0] - 5.3) ** 2 + 0.002 * rng.standard_normal(7)
    dirty = np.where(mask[:, 0], values, junk)
    clean, other = (fitted(FIXED_BP, v[None, :, None], measured=mask).ridge() for v in (values, dirty))
    assert clean.log2_n[0, 0] == other.log2_n[0, 0]
    ends = plane("fixed-bp")[0][mask[:, 0]]
    assert ends.min() <= clean.log2_n[0, 0] <= ends.max()
    alone = fitted(
        [p for p, m in zip(FIXED_BP, mask[:, 0], strict=True) if m], values[mask[:, 0]][None, :, None]
    )
    assert alone.ridge().log2_n[0, 0] == pytest.approx(clean.log2_n[0, 0], abs=1e-6)


def test_a_flat_surface_has_no_argmax() -> None:
    """All rewards equal: no n is better than another, so n* is not known, in that draw."""
    u, _ = plane("fixed-bp")
    values = np.stack([np.full(7, 0.5), 0.5 - 0.01 * (u - 5) ** 2, np.full(7, -3e5)])[:, :, None]
    ridge = fitted(FIXED_BP, values).ridge()
    assert (ridge.below & ridge.above)[:, 0].tolist() == [True, False, True]
    assert ridge.reward[0, 0] == pytest.approx(0.5)


@given(st.floats(-1e-15, 1e-15), st.sampled_from([0.25, 0.5]))
def test_rounding_chooses_nothing(rounding: float, reward: float) -> None:
    """What varies by less than any processor's rounding leaves the smallest n, and the smallest B_p."""
    noise = rounding * np.sin(7 * np.arange(len(JOINT)))
    ridge = fitted(JOINT, (reward + noise)[None, :, None]).ridge()
    assert (ridge.log2_n[0, 0], ridge.log2_b[0, 0]) == (3, 4)
    twice = np.array([[0.1, reward, reward * (1 + rounding), 0.2, reward]])
    assert highest(twice, 1) == 1


@pytest.mark.parametrize("first", [1, 3, 5, 7, 11])
def test_doublings_are_counted_whatever_their_logarithms_are_rounded_to(first: int) -> None:
    """Between a degree and the next there are odd numbers of doublings."""
    for doublings, degree in ((5, 2), (7, 4)):
        u = np.log2(first * 2.0 ** np.arange(doublings + 1))
        for end in (-1e-15, 1e-15):
            assert max(Terms.of(np.append(u[:-1], u[-1] + end), np.zeros(u.size)).exponents) == (degree, 0)


def test_weights_are_the_numbers_of_runs() -> None:
    """Against weighted least squares; three runs weigh as their mean entered three times does."""
    rng = np.random.default_rng(1)
    runs = [3, 1, 2, 5, 1, 1, 4]
    values = rng.uniform(0, 1, 7)
    u, _ = plane("fixed-bp")
    surface = fitted(FIXED_BP, values[None, :, None], runs)
    basis = np.vander(u, 4, increasing=True)  # six doublings: a cubic
    w = np.diag(runs)
    expected = basis @ np.linalg.solve(basis.T @ w @ basis, basis.T @ w @ values)
    np.testing.assert_allclose(surface.at(u, np.zeros(7))[0, 0], expected, atol=1e-8)
    unweighted = fitted(FIXED_BP, values[None, :, None])
    assert not np.allclose(unweighted.at(u, np.zeros(7))[0, 0], expected, atol=1e-3)


@pytest.mark.parametrize("setting", PLANES)
@pytest.mark.parametrize("runs", [1, 3])
def test_the_hat_matrix_is_a_projection(setting: str, runs: int) -> None:
    projection, freedom = hat([configuration(b, n, runs) for b, n in PLANES[setting]])
    np.testing.assert_allclose(projection @ projection, projection, atol=1e-9)
    np.testing.assert_allclose(projection, projection.T, atol=1e-9)
    assert np.trace(projection) == pytest.approx(len(PLANES[setting]) - freedom)
    np.testing.assert_allclose(projection.sum(axis=1), 1)  # a constant is a surface
    rng = np.random.default_rng(0)
    values = rng.uniform(0, 1, len(projection))
    surface = fitted(PLANES[setting], values[None, :, None])
    np.testing.assert_allclose(surface.at(*surface.plane)[0, 0], projection @ values, atol=1e-9)


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
    assert Terms.of(u, np.zeros(len(u))).exponents == tuple((i, 0) for i in range(degree + 1))


def test_terms_that_are_not_determined_are_left_out() -> None:
    """Along B = B_p · n, log B_p is a function of log n; on a cross there is no interaction."""
    cross = [(32, n) for n in N] + [(b, 64) for b in (8, 16, 64, 128)]
    u, v = (np.log2([p[i] for p in cross]) for i in (1, 0))
    assert (1, 1) not in Terms.of(u, v).exponents
    assert {(0, 1), (0, 2)} <= set(Terms.of(u, v).exponents)
    two = [(b, n) for b in (16, 32) for n in N]
    u, v = (np.log2([p[i] for p in two]) for i in (1, 0))
    assert (0, 2) not in Terms.of(u, v).exponents
    assert {(0, 1), (1, 1)} <= set(Terms.of(u, v).exponents)


def test_the_ridge_stays_among_the_batches_that_were_run() -> None:
    """Nothing above B = 4096 was run: a reward that grows with both is highest on that edge."""
    pairs = [(b, n) for b, n in JOINT if b * n <= 4096]
    u, v = (np.log2([p[i] for p in pairs]) for i in (1, 0))
    ridge = fitted(pairs, (0.01 * u + 0.012 * v)[None, :, None]).ridge()
    assert ridge.log2_n[0, 0] + ridge.log2_b[0, 0] <= 12 + 1e-9
    assert ridge.log2_b[0, 0] == 7
    assert ridge.log2_n[0, 0] == pytest.approx(5)
