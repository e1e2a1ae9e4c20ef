"""The surface cut at computes: over all that was measured and between, and nothing beyond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.estimate import Surface, estimate
from isolaw.fits.surface.slices import FLAT, Slices, highest, slices
from tests.fits.conftest import unfitted

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.numbers]

Measured = Callable[..., list[Configuration]]
LEVELS = [4, 8, 16, 24, 64, 128, 512]
pairs_of = st.lists(
    st.tuples(st.sampled_from([8, 16, 48]), st.sampled_from(LEVELS)), min_size=2, max_size=8, unique=True
)


def surface_at(measured: Measured, pairs: Any, draws: int = 4) -> Surface:
    """A surface of a few draws, its hyperparameters not fitted."""
    return unfitted(measured(sorted(pairs), hold="nothing", seeds=1, checkpoints=8), draws)


@pytest.fixture(scope="module")
def joint(measured: Measured) -> Surface:
    return surface_at(measured, [(b, n) for b in (8, 16, 32) for n in (8, 32, 128) if b * n <= 2048])


@settings(max_examples=settings().max_examples // 4)
@given(st.data())
def test_the_grid(measured: Measured, data: st.DataObject) -> None:
    """Every measured place, nothing outside the n, the B_p and the batches that were measured."""
    pairs = data.draw(pairs_of.filter(lambda own: len({n for _, n in own}) > 2))
    surface = surface_at(measured, pairs)
    cut = slices(surface, np.array([1e5]))
    places = surface.model.observations.places
    at = np.stack([cut.log2_n[cut.place], cut.log2_b[cut.place]], axis=1)
    np.testing.assert_allclose(at, places, atol=1e-9)
    for axis, grid in zip(places.T, (cut.log2_n, cut.log2_b), strict=True):
        assert axis.min() - 1e-9 <= grid.min()
        assert grid.max() <= axis.max() + 1e-9
    batch, total = places.sum(axis=1), cut.log2_n + cut.log2_b
    assert batch.min() - 1e-9 <= total.min()
    assert total.max() <= batch.max() + 1e-9
    assert np.all(np.diff(np.unique(cut.log2_n)) <= 1 + 1e-9)
    order = np.lexsort((cut.log2_b, cut.log2_n))
    assert order.tolist() == list(range(order.size))
    assert cut.reward.shape == (5, 1, cut.log2_n.size)


@pytest.mark.parametrize("hold", ["B_p", "B"])
def test_over_a_line(measured: Measured, hold: Any) -> None:
    """Eighths of doublings; at fixed B the problems follow from n."""
    n = (8, 32, 64, 512)
    pairs = [(32 if hold == "B_p" else 4096 // m, m) for m in n]
    surface = unfitted(measured(pairs, hold=hold, seeds=1), 2)
    cut = slices(surface, np.array([1e5]))
    np.testing.assert_allclose(cut.log2_n, np.arange(3, 9.01, 0.125))
    np.testing.assert_allclose(cut.log2_b, 5 if hold == "B_p" else 12 - cut.log2_n)
    more = slices(surface, np.array([1e5]), more=np.log2([[48, 32 if hold == "B_p" else 4096 / 48]]))
    assert np.abs(more.log2_n - np.log2(48)).min() < 1e-12


def test_at_one_compute_it_is_the_surface(joint: Surface) -> None:
    cut = slices(joint, np.array([2e5]))
    expected = joint.rewards(cut.log2_n, cut.log2_b, np.full(cut.log2_n.size, 2e5))
    np.testing.assert_array_equal(cut.reward[:, 0], expected)


def test_what_may_not_be_chosen_is_left_out(joint: Surface) -> None:
    """A cap on the batch, as a prediction has: configurations beyond it have no place."""
    cut = slices(joint, np.array([2e5]), lambda u, v: u + v <= 9 + 1e-9)
    assert (cut.log2_n + cut.log2_b).max() <= 9 + 1e-9
    fits = joint.model.observations.places.sum(axis=1) <= 9 + 1e-9
    assert (cut.place >= 0).tolist() == fits.tolist()


@pytest.mark.parametrize("size", [1, 4, 12, 13, 50])
def test_few_points_are_drawn_together(joint: Surface, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Time grows with the cube of them."""
    drawn = []
    own = Surface.rewards
    monkeypatch.setattr(Surface, "rewards", lambda self, u, *at: drawn.append(u.size) or own(self, u, *at))
    cut = slices(joint, np.geomspace(2e4, 9e5, size))
    assert cut.reward.shape[1] == size
    assert len(drawn) == 1
    assert drawn[0] <= 400


def test_between_knots_it_is_smooth(joint: Surface) -> None:
    """The mean between the computes at which it is drawn is the mean there."""
    compute = np.geomspace(2e4, 9e5, 50)
    cut = slices(joint, compute)
    for x in (7, 23, 40):
        grid = cut.log2_n.size
        expected = joint.rewards(cut.log2_n, cut.log2_b, np.full(grid, compute[x]))[0]
        np.testing.assert_allclose(cut.reward[0, x], expected, atol=0.003)


def test_rewards_keep_their_bounds_between_knots(measured: Measured) -> None:
    runs = measured([(32, n) for n in (8, 32, 128)], lambda b, n, c: 1 - 0.7 * np.exp(-c / 2e4), noise=1e-3)
    cut = slices(estimate(runs, 20, bounds=(0.0, 1.0)), np.geomspace(2e4, 1e6, 50))
    assert cut.reward.max() <= 1


# The best


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.floats(-1e-12, 1e-12))
def test_of_equals_the_first_is_highest(values: list[float], rounding: float) -> None:
    own = np.array([*values, 1.5, 1.5 + rounding, 0.0])
    assert highest(own, 0) == len(values)


def flat_and_not(reward: Floats) -> Slices:
    nothing = np.zeros(reward.shape[2])
    return Slices(np.array([1.0]), nothing, nothing, reward, np.zeros(0, np.int64))


@given(st.floats(-1, 1), st.sampled_from([0.0, 0.3, -5.0, 1e6]))
def test_flat_but_for_rounding(rounding: float, level: float) -> None:
    wave = np.sin(np.arange(7.0))
    noise = 0.4 * FLAT * abs(level) * rounding * wave
    rows = np.stack([level + noise, level + (1 + abs(level)) * 1e-6 * wave])[:, None]
    found = flat_and_not(rows)
    assert found.flat[:, 0].tolist() == [True, False]
    assert found.best[0, 0] == 0


def test_between_the_drawn_allocations_of_a_large_grid_rewards_are_straight_in_log_n() -> None:
    class Straight:
        places = np.array([(u, v) for u in np.linspace(2, 10, 70) for v in range(3, 8)])
        bounds = (-np.inf, np.inf)
        drawn = 0

        def rewards(self, log2_n: Floats, log2_b: Floats, compute: Floats) -> Floats:
            self.drawn = log2_n.size
            return np.stack([log2_n + log2_b + np.log(compute), 2 * log2_n - log2_b + np.log(compute)])

    model, compute = Straight(), np.geomspace(1e4, 1e6, 8)
    cut = slices(model, compute)
    assert model.drawn <= 800 < len(model.places) * 8
    expected = [cut.log2_n + cut.log2_b, 2 * cut.log2_n - cut.log2_b]
    for rewards, of_allocation in zip(cut.reward, expected, strict=True):
        np.testing.assert_allclose(rewards, of_allocation + np.log(compute)[:, None], atol=1e-9)
