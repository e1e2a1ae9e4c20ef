"""`StepEffects`: what the equation of a step's time misses at each (B_p, n), and what that says of others.

With y the log of measured over predicted seconds of K configurations at x = (log2 B_p, log2 n),

    y = f(x) + e,    f ~ GP(0, σ² exp(−|x − x'|² / 2ℓ²)),    e ~ N(0, ν²)

(Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006, chapter 2). ℓ is held at two doublings:
a configuration says something of those within a factor of four, and nothing of those further away, where the
equation alone predicts and the interval is as wide as σ. σ and ν have the weights of their marginal
likelihood on a grid, where σ is at least 0.1: no equation of four numbers knows a step to less. ν is at least
the median deviation of runs within a configuration, so that an interval is that of one run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
REACH = 2.0  # ℓ, doublings
_SIGMA = (0.1, 0.2, 0.3, 0.5)
_NOISE = (0.02, 0.03, 0.05, 0.08, 0.12, 0.2)


@dataclass(frozen=True)
class StepEffects:
    """The effects of configurations on the log of a step's seconds.

    ``places`` are the (B_p, n) that were timed, ``seen`` what the equation misses there, in log seconds, and
    ``spread`` is how runs of one configuration differ.

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
        """σ, ν, the root of the observations' covariance and its inverse times y, over the grid."""
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
        """The marginal likelihood of each σ and ν, in sum 1."""
        y = np.array(self.seen)
        log = np.array([-0.5 * y @ alpha - np.log(np.diag(root)).sum() for _, _, root, alpha in self._known])
        weights = np.exp(log - log.max())
        return np.asarray(weights / weights.sum())


def _alike(one: Floats, other: Floats) -> Floats:
    """exp(−|x − x'|² / 2ℓ²), (K, Q)."""
    apart = one[:, None] - np.asarray(other)[None]
    return np.asarray(np.exp(-0.5 * (apart**2).sum(axis=-1) / REACH**2))
