"""The allocation law: log2 n* rises as a logistic and saturates (arXiv 2603.12151, section 4).

    log2 n*(C) = b + L / (1 + exp(−k (log10 C − log10 C0)))      fixed-bp, joint
    log2 n*(M) = b + L / (1 + exp(−k (M − M0)))                  fixed-b: linear in M

with L, k ≥ 0. The logarithm of C is to base 10 (checked against the paper's drawn curves). A point
that is censored is a bound, not a value: it pulls only a law that is on its wrong side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from isolaw.fits.solve import Axis, Floats, varpro

# One-sided residuals by majorisation: a bound that is kept counts as met exactly.
_ROUNDS = 10
# k times the range of x: from hardly bent to a step between neighbouring points.
_STEEPNESS = (1.0, 400.0)


@dataclass(frozen=True)
class Logistic:
    """D fitted laws over x (log10 C, or M).

    Attributes
    ----------
    b, L, k, x0
        floor, rise, steepness and midpoint, each (D,).
    on_bound
        steepness or midpoint is not determined, (D,).
    """

    b: Floats
    L: Floats
    k: Floats
    x0: Floats
    on_bound: NDArray[np.bool_]

    def __call__(self, x: ArrayLike) -> Floats:
        """Return log2 n* at x (X,), as (D, X)."""
        z = self.k[:, None] * (np.atleast_1d(np.asarray(x, dtype=np.float64)) - self.x0[:, None])
        return self.b[:, None] + self.L[:, None] * expit(z)

    @property
    def plateau(self) -> Floats:
        """The level b + L that it saturates at, in log2 n, (D,)."""
        return self.b + self.L


def _basis(x: Floats, shape: Floats) -> Floats:
    return np.asarray(expit(np.exp(shape[..., :1]) * (x - shape[..., 1:])))


def fit_logistic(
    x: Floats, log2_n: Floats, below: NDArray[np.bool_] | None = None, above: NDArray[np.bool_] | None = None
) -> Logistic:
    """Fit D laws by least squares.

    Parameters
    ----------
    x
        log10 C or M, (X,), not all equal.
    log2_n
        log2 n* of each data set, (D, X).
    below, above
        where the value is only a lower (upper) bound, (D, X).

    >>> x = np.linspace(5, 7, 50)
    >>> y = (3 + 6 / (1 + np.exp(-7 * (x - 6.1))))[None]
    >>> law = fit_logistic(x, y)
    >>> [round(float(v[0]), 3) for v in (law.b, law.L, law.k, law.x0)]
    [3.0, 6.0, 7.0, 6.1]
    """
    span = float(np.ptp(x))
    axes = [
        Axis(math.log(_STEEPNESS[0] / span), math.log(_STEEPNESS[1] / span), 24),
        Axis(float(x.min()) - span / 2, float(x.max()) + span / 2, 41),
    ]
    weights = np.ones_like(log2_n)
    target = log2_n
    below = np.zeros(log2_n.shape, dtype=bool) if below is None else below
    above = np.zeros(log2_n.shape, dtype=bool) if above is None else above
    bounded = bool(np.any(below | above))
    shape = None
    for _ in range(_ROUNDS if bounded else 1):
        s = varpro(x, target, weights, _basis, axes, shape)
        shape = s.shape
        law = Logistic(s.low, s.high - s.low, np.exp(s.shape[:, 0]), s.shape[:, 1], s.on_bound)
        if not bounded:
            break
        fitted = law(x)
        moved = np.where(
            below, np.maximum(log2_n, fitted), np.where(above, np.minimum(log2_n, fitted), log2_n)
        )
        if np.max(np.abs(moved - target)) < 1e-4:
            break
        target = moved
    return law
