"""Resampling: what varies from draw to draw.

The unit is the run, never the checkpoint: checkpoints of one run are dependent. S ≥ 2 runs get
Dirichlet weights with mean 1 and variance 1, α = (S − 2)/S (for S = 2: all weight on one run). A
weighted mean then has the variance s²/S of the usual unbiased estimate; multinomial resampling would
give (S − 1)/S of it, a third less for three seeds.

Where all configurations were run with the same seeds, a seed's weight is the same in all of them:
runs of one seed share their problem set and its order, and what they share cancels in a comparison
of n. (This is valid whether or not they share anything.) Otherwise weights are drawn independently
for each configuration.

With one run there is nothing to resample between runs. Its residuals about the fitted curve are
resampled in blocks instead; such intervals leave out the variation between seeds, and say so.
"""

from __future__ import annotations

import numpy as np

from isolaw.fits.curves import fit_curves
from isolaw.fits.records import record_mask
from isolaw.fits.select import Configuration, Floats

_CURVE_PARAMETERS = 3


def run_weights(runs: int, draws: int, rng: np.random.Generator) -> Floats:
    """Return weights of ``runs`` runs, (draws, runs), mean 1 and variance 1.

    >>> w = run_weights(3, 100_000, np.random.default_rng(0))
    >>> np.round([w.mean(), w.var()], 1)
    array([1., 1.])
    """
    if runs < 2:
        return np.ones((draws, runs))
    if runs == 2:
        return 2.0 * np.eye(2)[rng.integers(0, 2, draws)]
    return np.asarray(runs * rng.dirichlet(np.full(runs, (runs - 2) / runs), draws))


def seeds_are_shared(configurations: list[Configuration]) -> bool:
    """Return whether all configurations were run with the same seeds, once each."""
    first = configurations[0].seeds
    return len(set(first)) == len(first) > 1 and all(c.seeds == first for c in configurations)


def weights_of_runs(configurations: list[Configuration], draws: int, seed: int) -> list[Floats]:
    """Return the weights of each configuration's runs, (draws, runs) each."""
    if seeds_are_shared(configurations):
        shared = run_weights(configurations[0].runs, draws, np.random.default_rng(seed))
        return [shared] * len(configurations)
    return [run_weights(c.runs, draws, stream(c, seed)) for c in configurations]


def stream(configuration: Configuration, seed: int) -> np.random.Generator:
    """The draws' stream of one configuration, whatever other configurations there are."""
    key = (configuration.problems_per_batch, configuration.rollouts_per_problem)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def resample(
    configuration: Configuration,
    family: str,
    width: float | None,
    run_weight: Floats,
    rng: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Return rewards and weights of a configuration's checkpoints, the data first, then the draws.

    Parameters
    ----------
    configuration
        P checkpoints.
    family
        curve about which a single run's residuals are taken.
    width
        bin of record points, which are chosen anew in each draw; None: all checkpoints.
    run_weight
        weights of its runs, (D, runs).
    rng
        the stream from which a single run's residuals are drawn.

    Returns
    -------
    rewards (1 + D, P) or (1, P), weights (1 + D, P).
    """
    draws = len(run_weight)
    if configuration.runs > 1 or draws == 0:
        reward = configuration.reward[None]
        weights = np.ones((1 + draws, configuration.reward.size))
        weights[1:] = run_weight[:, configuration.run]
    else:
        reward = np.concatenate([configuration.reward[None], _blocks(configuration, family, draws, rng)])
        weights = np.ones(reward.shape)
    if width is not None:
        mask = np.empty(reward.shape, dtype=bool)
        for run in range(configuration.runs):
            columns = configuration.run == run
            mask[:, columns] = record_mask(reward[:, columns], width)
        weights = weights * mask
    return reward, weights


def _blocks(configuration: Configuration, family: str, draws: int, rng: np.random.Generator) -> Floats:
    """The fitted curve plus its residuals in circular blocks of about P^(1/3) checkpoints."""
    size = configuration.reward.size
    curve = fit_curves(configuration.compute, configuration.reward[None], np.ones((1, size)), family)
    fitted = curve(configuration.compute)[0]
    residuals = (configuration.reward - fitted) * np.sqrt(size / max(size - _CURVE_PARAMETERS, 1))
    length = max(1, round(size ** (1 / 3)))
    starts = rng.integers(0, size, (draws, -(-size // length)))
    index = (starts[:, :, None] + np.arange(length)).reshape(draws, -1)[:, :size] % size
    return np.asarray(fitted + residuals[index])
