"""The surface: the textbook's conditional, truths that come back, and draws that are what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface import estimate as module
from isolaw.fits.surface.estimate import Surface, estimate
from isolaw.fits.surface.slices import slices
from tests.fits.conftest import unfitted

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.numbers]

Measured = Callable[..., list[Configuration]]
Truth = Callable[[Any, Any, Any], Any]
SIX = [(32, n) for n in (8, 16, 32, 64, 128, 256)]
SETTINGS: dict[str, Any] = {
    "B_p": SIX,
    "B": [(4096 // n, n) for _, n in SIX],
    "nothing": [(b, n) for b in (16, 32, 64) for n in (8, 32, 128)],
}


def somewhere(surface: Surface) -> tuple[Floats, Floats, Floats]:
    """n and B_p between and beyond those measured, before the first checkpoint, and past the last."""
    u, v, log_c = np.array([3.3, 5.0, 6.6, 8.0]), np.array([5.0, 4.5, 6.0, 5.0]), surface.model.first_t
    end = surface.model.last_t - log_c
    return u, v, np.exp(log_c + np.array([-1.0, 0.4 * end, end, end + 1.5]))


@pytest.mark.parametrize("hold", SETTINGS)
def test_it_is_the_conditional_of_the_textbook(measured: Measured, hold: Any) -> None:
    """E = m + k K⁻¹ (y − m) and Cov = k' − k K⁻¹ kᵀ (Rasmussen & Williams 2006, 2.24), by dense inverses."""
    runs = measured(SETTINGS[hold], hold=hold, noise=0.02, checkpoints=12)
    surface = unfitted(runs, draws=20_000, rng=1)
    u, v, compute = somewhere(surface)
    places = surface.model.locate(u, v, np.log(compute))
    mean, across, among = surface.model.prior_at(surface.mode, places, surface.model.self_kernels(places))
    covariance, left = surface.model.data_covariance(surface.mode)
    inverse = np.linalg.inv(covariance)
    expected = mean + across @ inverse @ left
    spread = np.sqrt(np.diag(among - across @ inverse @ across.T))
    z, _ = surface.model.link.inverse(surface.rewards(u, v, compute))
    z = (z - surface.model.best_trend) / surface.model.scale
    inside = (surface.rewards(u, v, compute)[0] > 0.1) & (surface.rewards(u, v, compute)[0] < 0.9)
    np.testing.assert_allclose(z[0, inside], expected[inside], atol=1e-6)
    np.testing.assert_allclose(z[1:, inside].std(axis=0), spread[inside], rtol=0.05)
    np.testing.assert_allclose(surface.means(u, v, compute), surface.rewards(u, v, compute)[0], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("hold", SETTINGS)
def test_a_smooth_truth_comes_back(measured: Measured, truth: Truth, hold: Any) -> None:
    """n* within a quarter of a doubling (or an n that loses next to nothing), and intervals that hold."""
    surface = estimate(measured(SETTINGS[hold], hold=hold, noise=1e-3), 100, bounds=(0, 1))
    compute = np.geomspace(3e4, 1e6, 4 if hold == "nothing" else 8)
    cut = slices(surface, compute)
    expected = np.array([truth(np.exp2(cut.log2_b), np.exp2(cut.log2_n), c) for c in compute])
    assert np.sqrt(np.mean((cut.reward[0] - expected) ** 2)) < (0.004 if hold == "B_p" else 0.015)
    lost = expected.max(axis=1) - np.take_along_axis(expected, cut.best[:1].T, axis=1)[:, 0]
    assert lost.max() < 0.006
    low, high = np.quantile(cut.reward[1:], [0.025, 0.975], axis=0)
    assert np.mean((low <= expected) & (expected <= high)) > 0.7


def test_uncertainty_grows_where_runs_ended(measured: Measured) -> None:
    """n = 8 ended at a tenth of the budget: its reward is known there, and less and less beyond."""
    ends = {8: 1e5}
    surface = estimate(measured(SIX, noise=3e-3, compute=lambda b, n: ends.get(n, 1e6)), 400)
    compute = np.array([1e5, 2e5, 5e5, 1e6])
    u = np.array([3.0, 6.0]).repeat(4)
    drawn = surface.rewards(u, np.full(8, 5.0), np.tile(compute, 2))[1:].reshape(-1, 2, 4)
    spread = (drawn[:, 0] - drawn[:, 1]).std(axis=0)  # without what all n share
    assert np.all(np.diff(spread) > 0)
    assert spread[-1] > 1.5 * spread[0]


@pytest.mark.slow
def test_what_seeds_share_does_not_matter_for_differences(measured: Measured) -> None:
    """Effects of seeds of 0.1 leave differences between n known ten times as well as rewards."""
    runs = measured(SIX, noise=1e-3)
    shift = np.array([-0.1, 0.02, 0.08])
    moved = [replace(c, reward=c.reward + shift[np.array(c.seeds)][c.run]) for c in runs]
    at = (np.array([4.0, 7.0]), np.full(2, 5.0), np.full(2, 5e5))
    plain, shared = (estimate(value, 200).rewards(*at)[1:] for value in (runs, moved))
    assert np.std(shared[:, 1] - shared[:, 0]) < 0.2 * np.std(shared[:, 0])
    assert np.std(shared[:, 0]) > 5 * np.std(plain[:, 0])


def test_rewards_keep_their_bounds(measured: Measured) -> None:
    """Rewards that end at 1 stay below it at every budget, also in every draw, and close to what was seen."""

    def easy(b: Any, n: Any, compute: Any) -> Any:
        return 1 - 0.9 * np.exp(-(compute / 1e5))

    surface = estimate(measured(SIX, easy, noise=1e-3), 200, bounds=(0.0, 1.0))
    rewards = surface.rewards(np.full(3, 5.0), np.full(3, 5.0), np.array([1e6, 3e6, 1e7]))
    assert rewards.max() <= 1
    assert rewards[0] == pytest.approx(1, abs=0.01)


def test_without_draws_there_is_the_mean_at_the_mode(measured: Measured) -> None:
    runs = measured(SIX, noise=0.003)
    none, some = estimate(runs, 0), estimate(runs, 50)
    at = somewhere(none)
    assert none.rewards(*at).shape == (1, 4)
    np.testing.assert_array_equal(none.mode, some.mode)
    np.testing.assert_allclose(none.rewards(*at)[0, 1:3], some.rewards(*at)[0, 1:3], atol=0.01)


@pytest.mark.slow
def test_the_same_runs_and_seed_are_the_same_draws(measured: Measured) -> None:
    runs = measured(SIX, noise=0.003)
    one, again, other = (estimate(runs, 20, seed) for seed in (1, 1, 2))
    at = somewhere(one)
    np.testing.assert_array_equal(one.rewards(*at), again.rewards(*at))
    assert np.all(one.rewards(*at)[1:] != other.rewards(*at)[1:])
    np.testing.assert_array_equal(one.mode, other.mode)


@pytest.mark.slow
def test_the_unit_of_reward_does_not_matter(measured: Measured) -> None:
    runs = measured(SIX, noise=0.003)
    scaled = [replace(c, reward=1e4 * c.reward - 3e3) for c in runs]
    one, other = estimate(runs, 20), estimate(scaled, 20, unit=1e4)
    at = somewhere(one)
    np.testing.assert_allclose(other.rewards(*at), 1e4 * one.rewards(*at) - 3e3, rtol=1e-3, atol=10)


@pytest.mark.slow
def test_the_order_of_configurations_does_not_matter(measured: Measured) -> None:
    runs = measured(SIX, noise=0.003)
    one, other = (estimate(value, 20) for value in (runs, runs[::-1]))
    at = somewhere(one)
    np.testing.assert_allclose(one.rewards(*at)[0], other.rewards(*at)[0], atol=0.005)


@pytest.mark.slow
@pytest.mark.nightly
def test_draws_of_the_parameters_are_those_of_a_long_chain(measured: Measured) -> None:
    """Means and spreads of θ agree with emcee's, which knows neither the proposal nor its weights."""
    import emcee

    model = unfitted(measured(SIX[::2], noise=0.01, seeds=1, checkpoints=15)).model
    mode = module._mode(model)
    theta, weights, effective = module._sample_posterior(model, mode, 0)
    assert effective > module.FEW
    size = mode.size
    start = mode + 0.1 * model.prior[:, 1] * np.random.default_rng(1).standard_normal((3 * size, size))
    chain = emcee.EnsembleSampler(3 * size, size, lambda theta: -model.loss(theta))
    chain.random_state = np.random.RandomState(2).get_state()
    chain.run_mcmc(start, 600)
    long = chain.get_chain(discard=200, flat=True)
    mean = weights @ theta
    spread = np.sqrt(weights @ (theta - mean) ** 2)
    apart = (mean - long.mean(axis=0)) / long.std(axis=0)
    assert np.abs(apart).max() < 0.7
    assert np.all((spread / long.std(axis=0) > 0.5) & (spread / long.std(axis=0) < 1.7))
