"""Resampling: what varies from draw to draw.

The unit is the run, never the checkpoint: checkpoints of one run are dependent. With S ≥ 2 runs of
a configuration, its runs get Dirichlet weights with mean 1 and variance 1, α = (S − 2)/S (for S = 2:
all weight on one run). A weighted mean then has the variance s²/S of the usual unbiased estimate;
multinomial resampling would give (S − 1)/S of it, a third less for three seeds. The weights are
drawn independently for each configuration.

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


def resample(
    configuration: Configuration, family: str, width: float | None, draws: int, rng: np.random.Generator
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
    draws
        D.
    rng
        the draws' stream.

    Returns
    -------
    rewards (1 + D, P) or (1, P), weights (1 + D, P).
    """
    if configuration.runs > 1 or draws == 0:
        reward = configuration.reward[None]
        weights = np.ones((1 + draws, configuration.reward.size))
        weights[1:] = run_weights(configuration.runs, draws, rng)[:, configuration.run]
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
