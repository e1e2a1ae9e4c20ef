"""Estimate the distribution of success probabilities from an avg@16 histogram.

Often, only the numbers of problems with 0, 1, … 16 of 16 correct samples are known, and sampling blurs these
counts: x ~ Binomial(16, p). The EM algorithm estimates the distribution of p by maximum likelihood on a grid
(the binomial mixture of Lord 1969, Psychometrika 34, 259)::

    w_g ← w_g · Σ_x s_x Binomial(x; 16, p_g) / Σ_g' w_g' Binomial(x; 16, p_g')

where w_g is the weight of grid point p_g, and s_x is the share of problems with x correct samples. The 16
samples determine only 16 moments of p, and cannot distinguish p = 0.001 from 0.01. The rest is **assumed**:
EM starts from the arcsine law and stops after 500 steps. Problems drawn from the estimate reproduce the
histogram to within a few thousandths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from isolaw.simulators.model import Floats

SAMPLES = 16
# Tolerance for the sum of the shares, since published shares are often rounded.
SUM_TOLERANCE = 1e-3
_GRID, _STEPS = 512, 500


def fault(shares: Sequence[float]) -> str:
    """Return ``""`` for a valid histogram, and otherwise the property that it lacks.

    >>> fault([0.5, 0.5])
    '17 shares, of problems with 0, 1, … 16 of 16 samples correct'
    >>> fault([0.5] + 16 * [0.03])
    'shares that sum to 1 (they sum to 0.98)'
    """
    if len(shares) != SAMPLES + 1:
        return f"{SAMPLES + 1} shares, of problems with 0, 1, … {SAMPLES} of {SAMPLES} samples correct"
    if not all(math.isfinite(s) and 0 <= s <= 1 for s in shares):
        return "shares between 0 and 1"
    if abs(math.fsum(shares) - 1) > SUM_TOLERANCE:
        return f"shares that sum to 1 (they sum to {math.fsum(shares):.4g})"
    return ""


def mean(shares: Sequence[float]) -> float:
    """Return the mean of p, which equals the mean of the histogram."""
    return float(np.dot(shares, np.arange(SAMPLES + 1)) / SAMPLES / math.fsum(shares))


@lru_cache(maxsize=16)
def distribution(shares: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Return the grid of p and the estimated weights of its points, as two arrays of shape (512,).

    >>> p, weights = distribution((0.5, *15 * (0.0,), 0.5))
    >>> bool(weights[p < 0.1].sum() > 0.49)
    True
    """
    p = np.sin(0.5 * np.pi * (np.arange(_GRID) + 0.5) / _GRID) ** 2
    x = np.arange(SAMPLES + 1)[:, None]
    ways = np.array([[math.comb(SAMPLES, k)] for k in range(SAMPLES + 1)])
    likelihood = ways * p**x * (1 - p) ** (SAMPLES - x)
    observed = np.asarray(shares) / math.fsum(shares)
    weights = np.full(_GRID, 1 / _GRID)
    for _ in range(_STEPS):
        weights = weights * ((observed / (likelihood @ weights)) @ likelihood)
    return p, weights / weights.sum()


def sample(shares: tuple[float, ...], rng: np.random.Generator, size: int) -> Floats:
    """Draw the success probabilities p of ``size`` problems."""
    p, weights = distribution(shares)
    return np.asarray(p[np.searchsorted(np.cumsum(weights)[:-1], rng.random(size), side="right")])
