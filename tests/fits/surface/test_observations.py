"""Runs as observations: least squares as in the textbook, and seeds that cancel whatever is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface import observations
from isolaw.fits.surface.model import InitialReward, Link, StructuralModel
from isolaw.fits.surface.observations import BINS, Observations, observe

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

Measured = Callable[..., list[Configuration]]
GRID = np.geomspace(1e4, 1e6, 28)  # two checkpoints in most bins


@pytest.fixture(autouse=True, scope="module")
def _equal() -> Iterator[None]:
    """Bins of one width, which are easily made by hand; one test has those that there are."""

    def edges(configurations: list[Configuration], size: int) -> Floats:
        ends = [np.log(c.compute[c.compute > 0]) for c in configurations]
        return np.linspace(min(t.min() for t in ends), max(t.max() for t in ends), size + 1)[1:-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observations, "_edges", edges)
        yield


EDGES = observations._edges


@given(st.floats(11, 13), st.floats(0.3, 3), st.integers(6, 20))
def test_bins_are_narrow_where_rewards_change(at: float, width: float, size: int) -> None:
    """Each has as much of log C and of the change together, but for the steps of checkpoints."""
    compute = np.geomspace(1e4, 1e6, 200)
    learnt = 1 / (1 + np.exp(-(np.log(compute) - at) / width))
    (own,) = [Configuration(32, 8, compute, learnt, np.zeros(200, np.int64), (0,), 256.0)]
    edges = EDGES([own], size)
    low, high = np.log(compute[[0, -1]])
    assert edges.size == size - 1
    assert np.all(np.diff([low, *edges, high]) > 0)
    share = (edges - low) / (high - low)
    moved = (np.interp(edges, np.log(compute), learnt) - learnt[0]) / (learnt[-1] - learnt[0])
    np.testing.assert_allclose((share + moved) / 2, np.arange(1, size) / size, atol=0.06)


def table(
    rewards: Floats, seeds: list[tuple[int, ...]], last: dict[tuple[int, int], int] | None = None
) -> Any:
    """Configurations: the run of seed s has the rewards (N, S, P) at the first ``last`` checkpoints."""
    out = []
    for i, seed in enumerate(seeds):
        sizes = [(last or {}).get((i, s), GRID.size) for s in seed]
        out.append(
            Configuration(
                32,
                8 * 2**i,
                np.concatenate([GRID[:size] for size in sizes]),
                np.concatenate([rewards[i, s, :size] for s, size in zip(seed, sizes, strict=True)]),
                np.repeat(np.arange(len(seed)), sizes),
                seed,
                256.0 * 2**i,
            )
        )
    return out


def binned(configurations: list[Configuration]) -> tuple[Floats, Floats]:
    """The mean reward and the number of checkpoints of each run in each bin, (R, K), by hand."""
    end = max(c.measured[1] for c in configurations)
    edges = np.linspace(np.log(GRID[0]), np.log(end), BINS + 1)[1:-1]
    mean, count = [], []
    for c in configurations:
        for run in range(c.runs):
            own = c.run == run
            k = [int(np.sum(edges < t)) for t in np.log(c.compute[own])]
            parts = [c.reward[own][np.equal(k, bin_)] for bin_ in range(BINS)]
            mean.append([p.mean() if p.size else np.nan for p in parts])
            count.append([p.size for p in parts])
    return np.array(mean), np.array(count, dtype=float)


def weights_of_means(o: Observations) -> Floats:
    """The weights that the plain mean of the runs of a configuration has, (O, R)."""
    own = (o.run_place == o.place[:, None]) & (o.counts[:, o.bin].T > 0)
    return np.asarray(own / own.sum(axis=1, keepdims=True))


@st.composite
def designs(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], dict[tuple[int, int], int]]:
    """Seeds of three to five configurations, and runs that ended early, after a whole bin."""
    size = draw(st.integers(3, 5))
    seeds = [tuple(sorted(draw(st.sets(st.integers(0, 3), min_size=1)))) for _ in range(size)]
    runs = [(i, s) for i, seed in enumerate(seeds) for s in seed]
    return seeds, {run: 2 * draw(st.integers(4, BINS)) for run in runs[1:] if draw(st.booleans())}


@given(designs(), st.integers(0, 1000))
def test_generalised_least_squares(design: Any, rng: int) -> None:
    """In each bin (Xᵀ V⁻¹ X)⁻¹ Xᵀ V⁻¹ y with V = κ Z Zᵀ + I, and what `combined` says is what was done."""
    generator = np.random.default_rng(rng)
    rewards = generator.uniform(0, 1, (5, 1, GRID.size)) + generator.standard_normal((5, 4, GRID.size))
    configurations = table(rewards, *design)
    o = observe(configurations)
    mean, count = binned(configurations)
    np.testing.assert_array_equal(o.counts, count)
    for k in range(BINS):
        there = np.flatnonzero(count[:, k])
        own = o.bin == k
        assert sorted(o.place[own]) == sorted(set(o.run_place[there]))
        x = (o.run_place[there][:, None] == o.place[own]).astype(float)
        z = (o.run_seed[there][:, None] == np.arange(4)).astype(float)
        inverse = np.linalg.inv(o.kappa * z @ z.T + np.eye(there.size))
        expected = np.linalg.inv(x.T @ inverse @ x) @ x.T @ inverse
        np.testing.assert_allclose(o.combined[own][:, there], expected, atol=1e-9)
        np.testing.assert_allclose(o.reward[own], expected @ mean[there, k], atol=1e-9)
        assert not np.delete(o.combined[own], there, axis=1).any()


@given(designs())
def test_a_configuration_is_the_weighted_mean_of_its_own_runs(design: Any) -> None:
    """Weights are 1 over its own runs and 0 over those of every other, so that no reward is biased."""
    o = observe(table(np.random.default_rng(0).uniform(size=(5, 4, GRID.size)), *design))
    own = o.run_place[None, :] == np.arange(len(o.places))[:, None]
    np.testing.assert_allclose(o.combined @ own.T, np.eye(len(o.places))[o.place], atol=1e-9)


@given(st.lists(st.sets(st.integers(1, 4), min_size=1), min_size=3, max_size=6), st.integers(0, 1000))
def test_seeds_cancel_whatever_is_missing(others: list[set[int]], rng: int) -> None:
    """Without noise, whatever seeds they have beside one in common, they differ as they truly do."""
    generator = np.random.default_rng(rng)
    level = generator.uniform(0, 1, (6, 1, 1)) + 0.05 * np.log(GRID / GRID[0])
    effects = 0.1 * generator.standard_normal(5)
    seeds = [(0, *sorted(other)) for other in others]
    o = observe(table(level + effects[None, :, None], seeds))
    assert o.kappa > 15
    found = o.reward.reshape(BINS, -1) - o.reward.reshape(BINS, -1)[:, :1]
    expected = (level - level[0])[: len(seeds), 0, 0]
    np.testing.assert_allclose(found, np.tile(expected, (BINS, 1)), atol=3 * np.ptp(effects) / o.kappa)


def test_with_equal_seeds_it_is_the_mean() -> None:
    rewards = np.random.default_rng(0).uniform(size=(4, 3, GRID.size))
    o = observe(table(rewards, [(0, 1, 2)] * 4))
    np.testing.assert_allclose(o.combined, weights_of_means(o), atol=1e-12)
    assert o.kappa != 10.0  # found in the data
    assert o.seed_variance > 0


def test_one_configuration_without_a_seed_differs_by_no_effect_of_it() -> None:
    """The seed that is missing was the best by 0.3: a mean would put its configuration 0.1 too low."""
    rewards = np.zeros((6, 3, GRID.size)) + np.linspace(0, 0.2, GRID.size)
    rewards[:, 2] += 0.3
    o = observe(table(rewards, [(0, 1, 2)] * 5 + [(0, 1)]))
    for k in np.unique(o.bin):
        assert np.ptp(o.reward[o.bin == k]) < 1e-3


def test_residuals_are_those_of_the_two_way_table() -> None:
    """With every run there, κ large: what is left is y_cs − ȳ_c − ȳ_s + ȳ, with (N − 1)(S − 1) freedom."""
    generator = np.random.default_rng(1)
    rewards = generator.standard_normal((5, 4, GRID.size)) + 100 * generator.standard_normal((1, 4, 1))
    configurations = table(rewards, [(0, 1, 2, 3)] * 5)
    o = observe(configurations)
    mean, _ = binned(configurations)
    by = mean.reshape(5, 4, BINS)
    left = by - by.mean(axis=1, keepdims=True) - by.mean(axis=0, keepdims=True) + by.mean(axis=(0, 1))
    np.testing.assert_allclose(o.residuals.reshape(5, 4, BINS), left, atol=0.06)
    assert o.freedom == pytest.approx(4 * 3 / 20, rel=0.01)
    assert o.seed_variance == pytest.approx(by.mean(axis=0).var(axis=0, ddof=1).mean(), rel=0.02)


def test_one_seed_leaves_no_residuals() -> None:
    o = observe(table(np.random.default_rng(0).uniform(size=(4, 1, GRID.size)), [(0,)] * 4))
    assert (o.freedom, o.seed_variance) == (0.0, 0.0)
    np.testing.assert_allclose(o.combined, weights_of_means(o), atol=1e-12)


def test_seeds_of_their_own_have_no_common_effect_to_take_off() -> None:
    """No seed was run twice: each configuration is the mean of its runs."""
    rewards = np.random.default_rng(0).uniform(size=(3, 6, GRID.size))
    o = observe(table(rewards, [(0, 1), (2, 3), (4, 5)]))
    np.testing.assert_allclose(o.combined, weights_of_means(o), atol=1e-12)


def test_runs_that_share_a_seed_by_name_only_are_not_one() -> None:
    """A log without seeds: all runs are called 0, and how they vary is seen all the same."""
    rewards = np.random.default_rng(0).standard_normal((4, 3, GRID.size))
    configurations = table(rewards, [(0, 1, 2)] * 4)
    configurations = [replace(c, seeds=(0, 0, 0)) for c in configurations]
    o = observe(configurations)
    mean, _ = binned(configurations)
    by = mean.reshape(4, 3, BINS)
    np.testing.assert_allclose(
        o.residuals.reshape(4, 3, BINS), by - by.mean(axis=1, keepdims=True), atol=1e-9
    )
    assert (o.freedom, o.seed_variance) == (pytest.approx(2 / 3), 0.0)


def test_what_seeds_share_changes_no_difference(measured: Measured) -> None:
    """The same runs with effects of seeds ten times their differences: the same configurations, all alike."""
    base = np.random.default_rng(3).uniform(size=(4, 3, GRID.size))
    moved = base + np.array([-3.0, 1.0, 2.0])[None, :, None]
    one, other = (observe(table(r, [(0, 1, 2)] * 4)) for r in (base, moved))
    for k in np.unique(one.bin):
        differences = [o.reward[o.bin == k] - o.reward[o.bin == k].mean() for o in (one, other)]
        np.testing.assert_allclose(*differences, atol=1e-9)


# Time


def test_checkpoints_apart_are_moved_along_the_slope() -> None:
    """One run is looked at early in each bin, the other late: on one line both say the same."""
    early, late = GRID[::2], GRID[1::2]

    def line(compute: Floats) -> Floats:
        return 0.1 * np.log(compute)

    both = Configuration(
        32, 8, np.concatenate([early, late]), np.concatenate([line(early), line(late)]),
        np.repeat([0, 1], early.size), (0, 1), 256.0,
    )  # fmt: skip
    others = [Configuration(32, n, GRID, line(GRID), np.zeros(28, int), (0,), 32.0 * n) for n in (16, 32)]
    o = observe([both, *others])
    np.testing.assert_allclose(o.reward, 0.1 * o.t, atol=1e-3)
    left = o.residuals[~np.isnan(o.residuals)]
    assert np.abs(left).max() < 1e-3


def test_the_trend_does_not_jump_where_configurations_end() -> None:
    """The best of all ends half way: the mean of those that are left falls, what each learnt does not."""
    rewards = np.array([0.2, 0.2, 0.2, 0.9])[:, None, None] + 0.05 * np.log(GRID / GRID[0])[None, None]
    o = observe(table(rewards, [(0,)] * 4, {(3, 0): 14}))
    at = np.array([o.t[o.bin == k].mean() for k in np.unique(o.bin)])
    np.testing.assert_allclose(np.diff(o.trend), 0.05 * np.diff(at), atol=1e-6)


def test_many_configurations_have_fewer_bins(measured: Measured) -> None:
    pairs = [(b, n) for b in (8, 16, 32, 64, 128, 256) for n in (8, 16, 32, 64, 128)]
    assert observe(measured(pairs, hold="nothing")).counts.shape[1] == 10
    assert observe(measured(pairs[:20], hold="nothing")).counts.shape[1] == BINS


# On disk


@given(designs())
def test_round_trip(design: Any) -> None:
    generator = np.random.default_rng(0)
    o = observe(table(generator.uniform(size=(5, 4, GRID.size)) + np.log(GRID), *design))
    again = Observations.from_dict(json.loads(json.dumps(o.to_dict(), allow_nan=False)))
    np.testing.assert_array_equal(again.combined, o.combined)
    for name in ("places", "t", "reward", "log2_n", "log2_b", "trend", "place", "bin"):
        np.testing.assert_array_equal(getattr(again, name), getattr(o, name))
    assert again.run_place.dtype == o.run_place.dtype
    models = [StructuralModel(value, InitialReward(0.3, 0.01), Link(0.0, 1.0, 0.01)) for value in (o, again)]
    (one, *_), (other, *_) = (model.data_covariance(model.prior[:, 0] + 0.1) for model in models)
    np.testing.assert_array_equal(one, other)
