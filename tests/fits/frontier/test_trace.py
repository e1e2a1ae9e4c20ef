"""The frontier by brute force: who competes where, what is censored, where one n overtakes another."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from isolaw.fits.curves.families import Curves
from isolaw.fits.frontier.trace import TOLERANCE, crossovers, envelope, supported_range, trace
from isolaw.fits.selection import Configuration

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


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
        )
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
            assert frontier.reward[d, frontier.strict[d, j], j] == frontier.best[d, j]


@given(grids())
def test_censored_exactly_where_a_neighbour_is_missing(
    grid: tuple[list[Configuration], list[Curves], np.ndarray],
) -> None:
    configurations, curves, compute = grid
    frontier = trace(configurations, curves, compute)
    levels = frontier.levels.tolist()
    for j, x in enumerate(compute):
        here = {c.rollouts_per_problem for c in configurations if lies_in(c, x)}
        for d in range(3):
            i = int(frontier.strict[d, j])
            lacks_above = i + 1 < len(levels) and levels[i + 1] not in here
            lacks_below = i > 0 and levels[i - 1] not in here
            measured = frontier.reward[d, np.isfinite(frontier.reward[d, :, j]), j]
            equal = bool(np.all(measured == measured[0]))
            assert frontier.alone[d, j] == (lacks_above or lacks_below)
            assert frontier.below[d, j] == (i == len(levels) - 1 or lacks_above or equal)
            assert frontier.above[d, j] == (i == 0 or lacks_below or equal)
            assert frontier.censored[d, j] == (frontier.below[d, j] or frontier.above[d, j])


def test_a_curve_does_not_win_where_it_was_not_measured() -> None:
    """The best curve of all stops early; beyond its end it is out, and its neighbours are censored."""
    ranges = {8: 1e6, 16: 2e5, 32: 1e6, 64: 1e6}
    configurations = [configuration(1, n, 0.0, high) for n, high in ranges.items()]
    curves = [exp(0.3, a, 1e5) for a in (0.5, 0.9, 0.6, 0.4)]
    compute = np.array([1e5, 2e5, 2.1e5, 9e5])
    frontier = trace(configurations, curves, compute)
    assert frontier.levels[frontier.strict[0]].tolist() == [16, 16, 32, 32]
    assert frontier.censored[0].tolist() == [False, False, True, True]
    assert frontier.above[0].tolist() == [False, False, True, True]
    assert not frontier.below[0].any()


def test_where_all_are_equal_no_n_is_best() -> None:
    """In the first draw all three curves are the same; in the second only two are."""
    configurations = [configuration(1, n, 0.0, 1e6) for n in (8, 16, 32)]
    curves = [exp([0.3, 0.3], [0.5, ceiling], [1e5, 1e5]) for ceiling in (0.5, 0.5, 0.4)]
    frontier = trace(configurations, curves, np.array([1e5]))
    assert (frontier.below & frontier.above)[:, 0].tolist() == [True, False]


def test_the_range_begins_where_all_have_made_a_step() -> None:
    anchored = [configuration(32, n, 0.0, 1e6) for n in (8, 64)]
    firsts = [float(c.compute[c.compute > 0].min()) for c in anchored]
    assert supported_range(anchored) == (max(firsts), 1e6)
    late = [configuration(32, 8, 2e4, 2e5), configuration(32, 16, 4e4, 4e5)]
    assert supported_range(late) == (2e4, 4e5)


def lead(pair: list[Curves], x: float) -> float:
    return float(pair[1](x)[0, 0] - pair[0](x)[0, 0])


@settings(max_examples=60)
@given(st.floats(0.5, 0.7), st.floats(0.02, 0.2), st.floats(1e4, 3e5), st.floats(1.2, 8))
def test_crossover_is_the_root(a: float, more: float, tau: float, slower: float) -> None:
    pair = [exp(0.3, a, tau), exp(0.3, a + more, tau * slower)]
    ends = [configuration(1, 8, 1e3, 3e6), configuration(1, 32, 2e3, 2e6)]
    (found,) = crossovers(ends, pair, 1e3)
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
        (found,) = crossovers([small, large], pair, 1e3)
        assert found.shared == shared
        assert found.draws[0] == side
        assert not found.supported
        assert found.extrapolated == pytest.approx(root, rel=2e-4)


def test_no_shared_range_no_crossover() -> None:
    pair = [exp(0.3, 0.5, 1e5), exp(0.3, 0.6, 3e5)]
    (found,) = crossovers([configuration(1, 8, 1e3, 1e4), configuration(1, 32, 2e4, 1e7)], pair, 1e3)
    assert found.shared is None
    assert np.isnan(found.draws).all()
    assert not found.supported


def test_a_pair_of_each_n_and_a_value_of_each_draw() -> None:
    configurations = [configuration(1, n, 1e3, 1e7) for n in (8, 16, 32)]
    curves = [exp([0.3] * 2, [0.5, 0.52], [1e5] * 2), exp([0.3] * 2, [0.6] * 2, [3e5] * 2)]
    curves.append(exp([0.3] * 2, [0.7] * 2, [9e5] * 2))
    found = crossovers(configurations, curves, 1e3)
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
    (found,) = crossovers(both, pair, 100.0)
    assert found.shared == (100.0, 1e7)
    assert found.draws[0] == pytest.approx(brentq(lambda x: lead(pair, x), 1e5, 1e7), rel=2e-4)


def test_joint_takes_the_best_batch_of_each_n() -> None:
    configurations = [configuration(b, n, 1e3, 1e7) for b in (16, 32) for n in (8, 32)]
    curves = [exp(0.3, 0.5, 1e5), exp(0.3, 0.55, 4e5), exp(0.3, 0.45, 1e5), exp(0.3, 0.6, 6e5)]
    (found,) = crossovers(configurations, curves, 1e3)
    best = brentq(lambda x: max(lead([curves[0], curves[1]], x), lead([curves[0], curves[3]], x)), 1e4, 1e7)
    assert found.draws[0] == pytest.approx(best, rel=2e-4)
