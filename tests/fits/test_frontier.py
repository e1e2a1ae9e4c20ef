"""The frontier by brute force: who competes where, what is censored, where one n overtakes another."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from isolaw.fits.curves.learning_curves import Curves
from isolaw.fits.frontier import (
    TOLERANCE,
    Crossover,
    _last_overtaking,
    crossovers,
    curve_rewards,
    cut_frontier,
    envelope,
    ridge_path,
    strict_path,
    supported_range,
    trace,
)
from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.slices import FLAT, Slices

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.numbers]


def configuration(b: int, n: int, low: float, high: float) -> Configuration:
    """A configuration of one run that was measured from ``low`` to ``high``."""
    compute = np.array([low, *np.geomspace(max(low, 1.0), high, 6)[1:]])
    run = np.zeros(compute.size, dtype=int)
    return Configuration(b, n, compute, np.zeros(compute.size), run, (0,), float(b * n))


def exp(r0: float | list[float], a: float | list[float], tau: float | list[float]) -> Curves:
    parts = {k: np.atleast_1d(np.asarray(v, float)) for k, v in {"R0": r0, "A": a, "tau": tau}.items()}
    return Curves.from_parameters("exp", parts)


@st.composite
def grids(draw: st.DrawFn) -> tuple[list[Configuration], list[Curves], np.ndarray]:
    """Configurations with ranges of their own, three sets of curves for each, and where to look."""
    pairs = draw(
        st.lists(
            st.tuples(st.sampled_from([16, 32]), st.sampled_from([8, 16, 32, 64, 128])),
            min_size=1,
            max_size=8,
            unique=True,
        ).filter(lambda own: len(own) == 1 or len({n for _, n in own}) > 1)  # at one n it is of B_p
    )
    found, curves = [], []
    for b, n in sorted(pairs):
        low = draw(st.sampled_from([0.0, 1e4, 3e4, 1e5]))
        high = draw(st.sampled_from([3e5, 1e6, 3e6]))
        found.append(configuration(b, n, low, high))
        level = st.floats(0.2, 0.8)
        triple = [(draw(level), draw(level), draw(st.floats(1e4, 1e6))) for _ in range(3)]
        curves.append(
            exp(*[list(v) for v in zip(*[(min(r, a), max(r, a), t) for r, a, t in triple], strict=True)])
        )
    compute = np.geomspace(1e3, 4e6, 60)
    covered = [any(lies_in(c, x) for c in found) for x in compute]
    return found, curves, compute[covered]


def lies_in(c: Configuration, x: float) -> bool:
    """From the first checkpoint until the step after the last one would have been paid for."""
    return c.compute.min() <= x < c.compute.max() + c.problems_per_batch * c.rollouts_per_problem


@given(grids())
def test_who_competes(grid: tuple[list[Configuration], list[Curves], np.ndarray]) -> None:
    configurations, curves, compute = grid
    levels, reward = envelope(configurations, curves, compute)
    assert levels.tolist() == sorted({c.rollouts_per_problem for c in configurations})
    for i, n in enumerate(levels):
        for j, x in enumerate(compute):
            members = [
                k(x)[:, 0]
                for c, k in zip(configurations, curves, strict=True)
                if c.rollouts_per_problem == n and lies_in(c, x)
            ]
            expected = np.max(members, axis=0) if members else np.full(3, -np.inf)
            assert reward[:, i, j].tolist() == expected.tolist()


@given(grids())
def test_the_frontier_is_never_below_a_competing_curve(
    grid: tuple[list[Configuration], list[Curves], np.ndarray],
) -> None:
    configurations, curves, compute = grid
    frontier = trace(configurations, curves, compute)
    for c, curve in zip(configurations, curves, strict=True):
        inside = np.array([lies_in(c, x) for x in compute], dtype=bool)
        assert np.all(frontier.best[:, inside] >= curve(compute)[:, inside])
    assert np.isfinite(frontier.best).all()


@given(grids())
def test_tolerance(grid: tuple[list[Configuration], list[Curves], np.ndarray]) -> None:
    frontier = trace(*grid)
    for d in range(3):
        for j in range(frontier.compute.size):
            near = np.flatnonzero(frontier.reward[d, :, j] >= frontier.best[d, j] - TOLERANCE)
            assert frontier.tolerance[d, j] == near.min()
            assert frontier.tolerance[d, j] <= frontier.strict[d, j]
            strict = frontier.reward[d, frontier.strict[d, j], j]  # of equals, but for rounding, the first
            assert strict == pytest.approx(frontier.best[d, j], rel=2e-9)


@given(grids())
def test_censored_exactly_where_a_neighbour_is_missing(
    grid: tuple[list[Configuration], list[Curves], np.ndarray],
) -> None:
    configurations, curves, compute = grid
    frontier = trace(configurations, curves, compute)
    path = strict_path(frontier)
    levels = frontier.levels.tolist()
    for j, x in enumerate(compute):
        here = {c.rollouts_per_problem for c in configurations if lies_in(c, x)}
        for d in range(3):
            i = int(frontier.strict[d, j])
            lacks_above = i + 1 < len(levels) and levels[i + 1] not in here
            lacks_below = i > 0 and levels[i - 1] not in here
            measured = frontier.reward[d, np.isfinite(frontier.reward[d, :, j]), j]
            equal = bool(np.all(measured.max() - measured <= FLAT * np.abs(measured.max())))
            assert path.below[d, j] == (i == len(levels) - 1 or lacks_above or equal)
            assert path.above[d, j] == (i == 0 or lacks_below or equal)


def test_a_curve_does_not_win_where_it_was_not_measured() -> None:
    """The best curve of all stops early; beyond its end it is out, and its neighbours are censored."""
    ranges = {8: 1e6, 16: 2e5, 32: 1e6, 64: 1e6}
    configurations = [configuration(1, n, 0.0, high) for n, high in ranges.items()]
    curves = [exp(0.3, a, 1e5) for a in (0.5, 0.9, 0.6, 0.4)]
    compute = np.array([1e5, 2e5, 2.1e5, 9e5])
    frontier = trace(configurations, curves, compute)
    assert frontier.levels[frontier.strict[0]].tolist() == [16, 16, 32, 32]
    path = strict_path(frontier)
    assert path.above[0].tolist() == [False, False, True, True]
    assert not path.below[0].any()


def test_where_all_are_equal_no_n_is_best() -> None:
    """In the first draw all three curves are the same; in the second only two are."""
    configurations = [configuration(1, n, 0.0, 1e6) for n in (8, 16, 32)]
    curves = [exp([0.3, 0.3], [0.5, ceiling], [1e5, 1e5]) for ceiling in (0.5, 0.5, 0.4)]
    path = strict_path(trace(configurations, curves, np.array([1e5])))
    assert (path.below & path.above)[:, 0].tolist() == [True, False]


def test_the_range_begins_where_all_have_made_a_step() -> None:
    anchored = [configuration(32, n, 0.0, 1e6) for n in (8, 64)]
    firsts = [float(c.compute[c.compute > 0].min()) for c in anchored]
    assert supported_range(anchored) == (max(firsts), 1e6)
    late = [configuration(32, 8, 2e4, 2e5), configuration(32, 16, 4e4, 4e5)]
    assert supported_range(late) == (2e4, 4e5)


def crossed(configurations: list[Configuration], curves: list[Curves], first: float) -> list[Crossover]:
    return crossovers(configurations, *curve_rewards(configurations, curves, first), first)


def lead(pair: list[Curves], x: float) -> float:
    return float(pair[1](x)[0, 0] - pair[0](x)[0, 0])


@settings(max_examples=60)
@given(st.floats(0.5, 0.7), st.floats(0.02, 0.2), st.floats(1e4, 3e5), st.floats(1.2, 8))
def test_crossover_is_the_root(a: float, more: float, tau: float, slower: float) -> None:
    pair = [exp(0.3, a, tau), exp(0.3, a + more, tau * slower)]
    ends = [configuration(1, 8, 1e3, 3e6), configuration(1, 32, 2e3, 2e6)]
    (found,) = crossed(ends, pair, 1e3)
    assert (found.from_, found.to, found.shared) == (8, 32, (2e3, 2e6))
    at_ends = lead(pair, 2e3), lead(pair, 2e6)
    if at_ends[0] < 0 <= at_ends[1]:
        root = brentq(lambda x: lead(pair, x), 2e3, 2e6)
        assert found.supported
        assert found.draws[0] == pytest.approx(root, rel=2e-4)
    else:
        assert not found.supported
        assert found.draws[0] == (-math.inf if at_ends[1] >= 0 else math.inf)


def test_crossover_outside_the_shared_range_is_not_supported() -> None:
    pair = [exp(0.3, 0.5, 1e5), exp(0.3, 0.6, 3e5)]
    root = brentq(lambda x: lead(pair, x), 1e3, 1e7)
    for shared, side in {(1e3, root / 2): math.inf, (root * 2, 1e7): -math.inf}.items():
        small, large = configuration(1, 8, *shared), configuration(1, 32, 1e3, 1e7)
        (found,) = crossed([small, large], pair, 1e3)
        assert found.shared == shared
        assert found.draws[0] == side
        assert not found.supported
        assert found.extrapolated == pytest.approx(root, rel=2e-4)


def test_no_shared_range_no_crossover() -> None:
    pair = [exp(0.3, 0.5, 1e5), exp(0.3, 0.6, 3e5)]
    (found,) = crossed([configuration(1, 8, 1e3, 1e4), configuration(1, 32, 2e4, 1e7)], pair, 1e3)
    assert found.shared is None
    assert np.isnan(found.draws).all()
    assert not found.supported


def test_a_pair_of_each_n_and_a_value_of_each_draw() -> None:
    configurations = [configuration(1, n, 1e3, 1e7) for n in (8, 16, 32)]
    curves = [exp([0.3] * 2, [0.5, 0.52], [1e5] * 2), exp([0.3] * 2, [0.6] * 2, [3e5] * 2)]
    curves.append(exp([0.3] * 2, [0.7] * 2, [9e5] * 2))
    found = crossed(configurations, curves, 1e3)
    assert [(c.from_, c.to) for c in found] == [(8, 16), (8, 32), (16, 32)]
    for c in found:
        for d in range(2):
            small, large = (curves[[8, 16, 32].index(n)] for n in (c.from_, c.to))
            root = brentq(lambda x, d=d, s=small, k=large: (k(x) - s(x))[d, 0], 1e4, 1e7)
            assert c.draws[d] == pytest.approx(root, rel=2e-4)


def test_the_last_crossing_counts() -> None:
    """A step measured at C = 0 is not a crossing: the search begins where the frontier does."""
    pair = [exp(0.30, 0.5, 1e5), exp(0.31, 0.6, 5e5)]
    both = [configuration(1, 8, 0.0, 1e7), configuration(1, 32, 0.0, 1e7)]
    (found,) = crossed(both, pair, 100.0)
    assert found.shared == (100.0, 1e7)
    assert found.draws[0] == pytest.approx(brentq(lambda x: lead(pair, x), 1e5, 1e7), rel=2e-4)


def test_joint_takes_the_best_batch_of_each_n() -> None:
    configurations = [configuration(b, n, 1e3, 1e7) for b in (16, 32) for n in (8, 32)]
    curves = [exp(0.3, 0.5, 1e5), exp(0.3, 0.55, 4e5), exp(0.3, 0.45, 1e5), exp(0.3, 0.6, 6e5)]
    (found,) = crossed(configurations, curves, 1e3)
    best = brentq(lambda x: max(lead([curves[0], curves[1]], x), lead([curves[0], curves[3]], x)), 1e4, 1e7)
    assert found.draws[0] == pytest.approx(best, rel=2e-4)


# On a surface


def cut(reward: Floats, levels: list[int], finer: int = 1, batches: int = 1) -> Slices:
    """Rewards (1 + D, X, G) at computes from 1e3 on, over a grid that has the levels of n."""
    u = np.linspace(np.log2(levels[0]), np.log2(levels[-1]), (len(levels) - 1) * finer + 1).repeat(batches)
    v = np.tile(np.arange(4.0, 4 + batches), u.size // batches)
    place = np.array([i * finer * batches + k for k in range(batches) for i in range(len(levels))])
    return Slices(np.geomspace(1e3, 1e6, reward.shape[1]), u, v, reward, place)


def places(levels: list[int], batches: int = 1) -> list[Configuration]:
    return [configuration(16 * 2**k, n, 0.0, 1e6) for k in range(batches) for n in levels]


FIVE = [8, 16, 32, 64, 128]


@given(st.integers(0, 1000))
def test_the_ridge_is_the_highest_of_all_allocations(rng: int) -> None:
    reward = np.random.default_rng(rng).uniform(0, 1, (3, 6, 33))
    reward[1, 2] = 0.5  # in that draw no n is better than another
    own = cut(reward, FIVE, finer=8)
    path = ridge_path(own, places(FIVE), reach=1e5)
    for d in range(3):
        for x, compute in enumerate(own.compute):
            u = own.log2_n[reward[d, x].argmax()] if (d, x) != (1, 2) else 3.0
            assert path.log2_n[d, x] == u
            assert path.reward[d, x] == reward[d, x].max()
            unknown = compute > 1e5 or (d, x) == (1, 2)
            assert path.below[d, x] == (unknown or u == 7)
            assert path.above[d, x] == (unknown or u == 3)
            assert np.isnan(path.n[d, x]) == unknown
            assert path.at_top[d, x] == (u == 7)


@given(st.integers(0, 1000), st.sampled_from([1, 3]))
def test_measured_n_on_a_surface(rng: int, batches: int) -> None:
    """Each n with the best of its B_p, at every compute, wherever its runs ended."""
    reward = np.random.default_rng(rng).uniform(0, 1, (2, 4, 17 * batches))
    frontier = cut_frontier(cut(reward, FIVE, 4, batches), places(FIVE, batches))
    for i in range(5):
        own = reward[:, :, 4 * i * batches : (4 * i + 1) * batches].max(axis=2)
        np.testing.assert_array_equal(frontier.reward[:, i], own)
    best = frontier.reward.max(axis=1)
    np.testing.assert_array_equal(frontier.strict, frontier.reward.argmax(axis=1))
    near = (frontier.reward >= best[:, None] - TOLERANCE - FLAT).argmax(axis=1)
    np.testing.assert_array_equal(frontier.tolerance, near)


def test_crossovers_on_a_surface() -> None:
    """Rewards that are straight in log C between the frontier's points cross where the lines do."""
    x = np.linspace(0, 1, 6)
    reward = np.stack([0.5 + 0 * x, 0.4 + 0.3 * x, 0.1 + 0.2 * x], axis=1)[None]
    own = cut(reward, [8, 32, 128])
    configurations = places([8, 32, 128])
    frontier = cut_frontier(own, configurations)
    first, never, other = crossovers(configurations, frontier.compute, frontier.reward, 1e3)
    assert first.draws[0] == pytest.approx(1e3 * 1e3 ** (1 / 3), rel=0.005)
    assert first.supported
    assert never.draws[0] == other.draws[0] == math.inf


def test_two_n_that_the_frontier_never_compares_have_no_crossover() -> None:
    """Both were measured together before the frontier begins."""
    lead = np.array([[-1.0, 1.0, 1.0]])
    assert np.isnan(_last_overtaking(np.array([512.0, 1024.0, 2048.0]), lead, 64.0, 320.0)).all()
