"""`StepEffects`: interpolate the error of the equation for a step's time between configurations (B_p, n).

Let y be the log of the ratio of measured to predicted seconds of K configurations at x = (log2 B_p, log2 n).
Then

    y = f(x) + e,    f ~ GP(0, σ² exp(−|x − x'|² / 2ℓ²)),    e ~ N(0, ν²)

(Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006, chapter 2). ℓ is fixed at two doublings,
so a configuration is informative about others within a factor of four. Further away, only the equation
predicts, and σ determines the width of the interval. Predictions are averaged over a grid of σ and ν,
weighted by the marginal likelihood. σ is at least 0.1, since an equation with four numbers does not predict a
step more precisely. ν is at least the median deviation of runs within a configuration, so the interval is for
a single run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
REACH = 2.0  # ℓ in doublings
_SIGMA = (0.1, 0.2, 0.3, 0.5)
_NOISE = (0.02, 0.03, 0.05, 0.08, 0.12, 0.2)


@dataclass(frozen=True)
class StepEffects:
    """The effect of each configuration on the log of a step's seconds.

    ``places`` contains the timed (B_p, n), and ``seen`` the error of the equation at each place, in log
    seconds. ``spread`` is the standard deviation between runs of one configuration.

    >>> effects = StepEffects(((128, 1), (128, 4), (8, 4)), (0.3, 0.1, 0.0), 0.05)
    >>> [round(value, 2) for value in effects.at(128, 2)]
    [0.19, 0.14]
    >>> round(effects.at(2**20, 2**10)[1], 2)
    0.27
    """

    places: tuple[tuple[int, int], ...]
    seen: tuple[float, ...]
    spread: float

    def at(self, problems_per_batch: int, rollouts_per_problem: int) -> tuple[float, float]:
        """Return the expected effect on the log of a step's seconds, and its standard deviation."""
        alike = _alike(self._places, np.log2([[problems_per_batch, rollouts_per_problem]]))[:, 0]
        means, variances = [], []
        for sigma, noise, root, alpha in self._known:
            across = sigma**2 * alike
            half = np.linalg.solve(root, across)
            means.append(float(across @ alpha))
            variances.append(sigma**2 - float(half @ half) + max(noise, self.spread) ** 2)
        mean = float(self._weights @ means)
        return mean, math.sqrt(float(self._weights @ (np.array(variances) + (np.array(means) - mean) ** 2)))

    @cached_property
    def _places(self) -> Floats:
        return np.log2(np.array(self.places, dtype=float))

    @cached_property
    def _known(self) -> Sequence[tuple[float, float, Floats, Floats]]:
        """σ, ν, the Cholesky factor of the covariance of y, and the inverse times y, at each grid point."""
        y, alike = np.array(self.seen), _alike(self._places, self._places)
        out = []
        for sigma in _SIGMA:
            for noise in _NOISE:
                root = np.asarray(np.linalg.cholesky(sigma**2 * alike + noise**2 * np.eye(y.size)))
                alpha = np.asarray(np.linalg.solve(root.T, np.linalg.solve(root, y)))
                out.append((sigma, noise, root, alpha))
        return out

    @cached_property
    def _weights(self) -> Floats:
        """The weight of each σ and ν, proportional to its marginal likelihood; the weights sum to 1."""
        y = np.array(self.seen)
        log = np.array([-0.5 * y @ alpha - np.log(np.diag(root)).sum() for _, _, root, alpha in self._known])
        weights = np.exp(log - log.max())
        return np.asarray(weights / weights.sum())


def _alike(one: Floats, other: Floats) -> Floats:
    """Return the correlation exp(−|x − x'|² / 2ℓ²) of K points with Q points, as an array of shape (K, Q)."""
    apart = one[:, None] - np.asarray(other)[None]
    return np.asarray(np.exp(-0.5 * (apart**2).sum(axis=-1) / REACH**2))
