"""The surface: the textbook's conditional, truths that come back, and a lack of fit that is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.covariance import Pairs, Points
from isolaw.fits.surface.estimate import Surface, estimate, lack_of_fit
from isolaw.fits.surface.observations import observe
from isolaw.fits.surface.process import Process
from isolaw.fits.surface.slices import slices

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.numbers]

Measured = Callable[..., list[Configuration]]
Truth = Callable[[Any, Any, Any], Any]
SIX = [(32, n) for n in (8, 16, 32, 64, 128, 256)]
SETTINGS: dict[str, Any] = {
    "B_p": SIX,
    "B": [(4096 // n, n) for _, n in SIX],
    "nothing": [(b, n) for b in (16, 32, 64) for n in (8, 32, 128)],
}
SHARES = np.array([[0.3, 0.8, 0.4]])  # of the shift, of the rise, and where the step is


def given(process: Process, rng: int, draws: int = 0, **options: Any) -> Surface:
    """The surface at hyperparameters that are not fitted."""
    z = np.random.default_rng(rng).standard_normal(len(process.names))
    theta = process.prior[:, 0] + 0.5 * process.prior[:, 1] * z
    return Surface(process, theta, theta[None], SHARES, np.zeros(draws, np.int64), 7, **options)


def somewhere(process: Process) -> tuple[Floats, Floats, Floats]:
    """n and B_p between and beyond those measured, before the first checkpoint, and past the last."""
    u, v, log_c = np.array([3.3, 5.0, 6.6, 8.0]), np.array([5.0, 4.5, 6.0, 5.0]), process.start
    end = process.end - log_c
    return u, v, np.exp(log_c + np.array([-1.0, 0.4 * end, end, end + 1.5]))


@pytest.mark.parametrize("hold", SETTINGS)
def test_it_is_the_conditional_of_the_textbook(measured: Measured, hold: Any) -> None:
    """E = k Kᵀ⁻¹ y and Cov = k' − k K⁻¹ kᵀ (Rasmussen & Williams 2006, 2.23 f.), by dense inverses."""
    own = Process(observe(measured(SETTINGS[hold], hold=hold, noise=0.02, checkpoints=12)))
    surface = given(own, 1, draws=40)
    u, v, compute = somewhere(own)
    out = surface.rewards(u, v, compute)
    p, t = own.named(surface.mode), np.log(compute)
    shift = np.where(t > own.end, own.end + 0.3 * (t - own.end), t)
    at, value = own.observations.learnt
    last = np.interp(own.end, at, value)
    learnt = np.where(t > own.end, last + 0.8 * (np.interp(t, at, value) - last), np.interp(t, at, value))
    below = u <= own.gap[0] + 0.4 * (own.gap[1] - own.gap[0])
    ahead = np.maximum(t - own.end, 0.0)
    most = own.covariance.gone(p, own.points)[0].max() + ahead
    points = Points(u, v, np.maximum(t, own.start), shift, learnt, ahead, below, most, 0.8)
    inverse = np.linalg.inv(own.observed(p))
    across = own.covariance(p, Pairs(points, own.points))
    mean = own.centre + own.scale * across @ inverse @ own.y
    covariance = own.covariance(p, Pairs(points, points)) - across @ inverse @ across.T
    np.testing.assert_allclose(out[0], mean, atol=1e-6)
    # A draw is the mean and a root of the covariance times white noise, which is known.
    z = np.random.default_rng(7).standard_normal((40, 4))
    root = np.linalg.lstsq(z, (out[1:] - out[0]) / own.scale, rcond=None)[0].T
    np.testing.assert_allclose(z @ root.T, (out[1:] - out[0]) / own.scale, atol=1e-9)
    np.testing.assert_allclose(root @ root.T, covariance, atol=1e-6)


def test_draws_vary_as_the_covariance_says(measured: Measured) -> None:
    own = Process(observe(measured(SIX, noise=0.02, checkpoints=12)))
    u, v, compute = somewhere(own)
    few, many = (given(own, 2, draws).rewards(u, v, compute) for draws in (50, 20_000))
    z = np.random.default_rng(7).standard_normal((50, 4))
    root = np.linalg.lstsq(z, few[1:] - few[0], rcond=None)[0].T
    np.testing.assert_allclose(np.cov(many[1:].T), root @ root.T, atol=0.03 * np.max(root @ root.T))
    np.testing.assert_allclose(many[1:].mean(axis=0), many[0], atol=4 * np.sqrt(np.max(root**2) * 4 / 2e4))


def test_draws_are_wider_where_it_does_not_fit(measured: Measured) -> None:
    own = Process(observe(measured(SIX, noise=0.02, checkpoints=12)))
    at = somewhere(own)
    plain, wide = (given(own, 2, 30, misfit=m).rewards(*at) for m in (1.0, 3.0))
    np.testing.assert_allclose(wide - wide[0], 3 * (plain - plain[0]), atol=1e-9)


def test_rewards_keep_their_bounds(measured: Measured) -> None:
    own = Process(observe(measured(SIX, noise=0.02, checkpoints=12)))
    free, bounded = (given(own, 2, 30, bounds=b).rewards(*somewhere(own)) for b in ((-9, 9), (0.45, 0.55)))
    np.testing.assert_array_equal(bounded, np.clip(free, 0.45, 0.55))


def test_the_mean_of_several_theta_counts_them_as_draws_do(measured: Measured) -> None:
    own = Process(observe(measured(SIX, noise=0.02, checkpoints=12)))
    theta = np.stack([given(own, rng).mode for rng in (1, 2)])
    shares = np.repeat(SHARES, 2, axis=0)
    at = somewhere(own)
    of_draw = np.array([0, 0, 0, 1])
    both = Surface(own, theta[0], theta, shares, of_draw, 7).rewards(*at)[0]
    alone = [Surface(own, t, t[None], SHARES, np.zeros(0, np.int64), 7).rewards(*at)[0] for t in theta]
    np.testing.assert_allclose(both, 0.75 * alone[0] + 0.25 * alone[1], atol=1e-9)


# Truths


@pytest.mark.parametrize("hold", SETTINGS)
def test_a_smooth_truth_comes_back(measured: Measured, truth: Truth, hold: Any) -> None:
    """n* within a quarter of a doubling (of an n that loses next to nothing), and intervals that hold.

    At a fixed B, and over a plane of nine, n* moves along with B_p, and less is known.
    """
    wide = 1 if hold == "B_p" else 2
    surface = estimate(measured(SETTINGS[hold], hold=hold, noise=1e-3), 100, bounds=(0, 1))
    assert surface.misfit < 1.3
    compute = np.geomspace(3e4, 1e6, 4 if hold == "nothing" else 8)
    cut = slices(surface, compute)
    expected = np.array([truth(np.exp2(cut.log2_b), np.exp2(cut.log2_n), c) for c in compute])
    assert np.sqrt(np.mean((cut.reward[0] - expected) ** 2)) < {1: 0.003, 2: 0.015}[wide]
    best = expected.argmax(axis=1)
    assert np.abs(cut.log2_n[cut.best[0]] - cut.log2_n[best]).max() <= 0.25 * wide + 1e-9
    lost = expected.max(axis=1) - np.take_along_axis(expected, cut.best[:1].T, axis=1)[:, 0]
    assert lost.max() < 0.003 * wide
    low, high = np.quantile(cut.reward[1:], [0.025, 0.975], axis=0)
    assert np.mean((low <= expected) & (expected <= high)) > 0.7


def test_uncertainty_grows_where_runs_ended(measured: Measured) -> None:
    """n = 8 ended at a tenth of the budget: its reward is known there, and less and less beyond."""
    ends = {8: 1e5}
    surface = estimate(measured(SIX, noise=3e-3, compute=lambda b, n: ends.get(n, 1e6)), 200)
    compute = np.array([1e5, 2e5, 5e5, 1e6])
    u = np.array([3.0, 6.0]).repeat(4)
    spread = surface.rewards(u, np.full(8, 5.0), np.tile(compute, 2))[1:].std(axis=0).reshape(2, 4)
    assert np.all(np.diff(spread[0]) > 0)
    assert spread[0, -1] > 3 * spread[1, -1]


def test_what_seeds_share_does_not_matter_for_differences(measured: Measured) -> None:
    """Effects of seeds of 0.1 leave differences between n known ten times as well as rewards."""
    runs = measured(SIX, noise=1e-3)
    shift = np.array([-0.1, 0.02, 0.08])
    moved = [replace(c, reward=c.reward + shift[np.array(c.seeds)][c.run]) for c in runs]
    at = (np.array([4.0, 7.0]), np.full(2, 5.0), np.full(2, 5e5))
    plain, shared = (estimate(own, 200).rewards(*at)[1:] for own in (runs, moved))
    assert np.std(shared[:, 1] - shared[:, 0]) < 0.2 * np.std(shared[:, 0])
    assert np.std(shared[:, 0]) > 5 * np.std(plain[:, 0])


# Lack of fit


def shifted(configurations: list[Configuration], place: int, by: float) -> list[Configuration]:
    return [replace(c, reward=c.reward + by * (i == place)) for i, c in enumerate(configurations)]


@pytest.mark.parametrize("rng", range(3))
@pytest.mark.parametrize("hold", SETTINGS)
def test_sound_data_have_no_lack_of_fit(measured: Measured, hold: Any, rng: int) -> None:
    options = {"noise": 0.005, "between": 0.01, "checkpoints": 20, "rng": rng}
    surface = estimate(measured(SETTINGS[hold], hold=hold, **options), 0)
    assert lack_of_fit(surface.process, surface.mode) == (1.0, None)
    assert surface.misfit == 1.0


@pytest.mark.parametrize("place", [0, 2, 3, 5])
def test_a_configuration_that_is_off_is_noticed(measured: Measured, place: int) -> None:
    """Higher than all others by 0.05 throughout: it, or one that has to be predicted from it, fits worst."""
    runs = measured(SIX, noise=0.003)
    mode = estimate(runs, 0).mode
    process = Process(observe(shifted(runs, place, 0.05)))
    wide, worst = lack_of_fit(process, mode)
    assert worst is not None
    assert abs(worst - place) <= 1
    assert wide > 1.5


def test_the_surface_is_the_wider_for_it(measured: Measured) -> None:
    """Fitted with the shift, hyperparameters take part of it; draws span it either way."""
    runs = shifted(measured(SIX, noise=0.003), 3, 0.05)
    at = (np.array([6.0]), np.array([5.0]), np.array([5e5]))
    plain, hit = (estimate(own, 100).rewards(*at)[1:].std() for own in (measured(SIX, noise=0.003), runs))
    assert hit > 1.5 * plain


# Draws


def test_without_draws_there_is_the_mean(measured: Measured) -> None:
    runs = measured(SIX, noise=0.003)
    none, some = estimate(runs, 0), estimate(runs, 50)
    at = somewhere(none.process)
    assert none.rewards(*at).shape == (1, 4)
    np.testing.assert_array_equal(none.mode, some.mode)
    np.testing.assert_allclose(none.rewards(*at)[0, 1:3], some.rewards(*at)[0, 1:3], atol=0.01)


def test_the_same_runs_and_seed_are_the_same_draws(measured: Measured) -> None:
    runs = measured(SIX, noise=0.003)
    one, again, other = (estimate(runs, 20, seed) for seed in (1, 1, 2))
    at = somewhere(one.process)
    np.testing.assert_array_equal(one.rewards(*at), again.rewards(*at))
    np.testing.assert_array_equal(one.rewards(*at), one.rewards(*at))
    assert np.all(one.rewards(*at)[1:] != other.rewards(*at)[1:])
    np.testing.assert_array_equal(one.mode, other.mode)


def test_the_unit_of_reward_does_not_matter(measured: Measured) -> None:
    runs = measured(SIX, noise=0.003)
    scaled = [replace(c, reward=1e4 * c.reward - 3e3) for c in runs]
    at = somewhere(Process(observe(runs)))
    one, other = (estimate(own, 20).rewards(*at) for own in (runs, scaled))
    np.testing.assert_allclose(other, 1e4 * one - 3e3, rtol=1e-3, atol=3)


def test_the_order_of_configurations_does_not_matter(measured: Measured) -> None:
    runs = measured(SIX, noise=0.003)
    one, other = (estimate(own, 20) for own in (runs, runs[::-1]))
    np.testing.assert_allclose(one.mode, other.mode, atol=0.05)
    at = somewhere(one.process)
    np.testing.assert_allclose(one.rewards(*at), other.rewards(*at), atol=0.003)


def test_beyond_all_that_was_seen_the_trend_goes_on_by_a_share(measured: Measured) -> None:
    """Runs of equal steps, all of it delay: small n at the largest compute would be far ahead of all runs."""
    own = Process(observe(measured(SIX, noise=0.02, compute=lambda b, n: 100.0 * b * n)))
    p = dict(own.named(own.prior[:, 0])) | {"delay": np.log(2)}
    u = np.array([3.0, 8.0])
    none = np.zeros(2)
    most = own.covariance.gone(p, own.points)[0].max()
    points = [
        Points(u, none, none + own.end, none, none, none, none > 0, most + none, share)
        for share in (0.0, 0.5, 1.0)
    ]
    flat, half, whole = (own.covariance.gone(p, x)[0] for x in points)
    assert flat[0] == most
    assert whole[0] - most == pytest.approx(5 * np.log(2), abs=0.3)
    assert half[0] == pytest.approx((flat[0] + whole[0]) / 2)
    assert flat[1] == whole[1] <= most + 1e-9
