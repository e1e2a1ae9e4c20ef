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

from isolaw.fits.curves.varpro import Axis, Floats, varpro

# Bounds that are broken join the fit and those that are kept leave it, until nothing changes.
_ROUNDS = 12
# In doublings: a bound is broken by more than this, or by rounding. Squared and summed over all points: laws
# that differ by less fit alike, as many do where few points are more than bounds, and the first is kept.
ROUNDING = 1e-9
ALIKE = 1e-12
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

    def replaced(self, rows: NDArray[np.int64], other: Logistic, chosen: NDArray[np.bool_]) -> Logistic:
        """Return these laws with ``rows`` taken from the ``chosen`` ones of ``other``."""
        parts = []
        for name in ("b", "L", "k", "x0", "on_bound"):
            values = getattr(self, name).copy()
            values[rows] = getattr(other, name)[chosen]
            parts.append(values)
        return Logistic(*parts)

    @property
    def plateau(self) -> Floats:
        """The level b + L that it saturates at, in log2 n, (D,)."""
        return self.b + self.L


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
        where the value is only a lower (upper) bound, (D, X); where both, it says nothing.

    >>> x = np.linspace(5, 7, 50)
    >>> y = (3 + 6 / (1 + np.exp(-7 * (x - 6.1))))[None]
    >>> law = fit_logistic(x, y)
    >>> [round(float(v[0]), 3) for v in (law.b, law.L, law.k, law.x0)]
    [3.0, 6.0, 7.0, 6.1]
    """
    span = float(np.ptp(x))
    axes = [
        Axis(math.log(_STEEPNESS[0] / span), math.log(_STEEPNESS[1] / span), 9),
        Axis(float(x.min()) - span / 2, float(x.max()) + span / 2, 41),
    ]
    below = np.zeros(log2_n.shape, dtype=bool) if below is None else below
    above = np.zeros(log2_n.shape, dtype=bool) if above is None else above
    bound = below | above
    # A data set of nothing but bounds starts from their values.
    used = ~bound | bound.all(axis=1, keepdims=True)
    law = _fit(x, log2_n, used, axes)
    fitted = law(x)
    loss = _one_sided(fitted, log2_n, below, above)
    for _ in range(_ROUNDS):
        broken = (below & ~above & (fitted < log2_n - ROUNDING)) | (
            above & ~below & (fitted > log2_n + ROUNDING)
        )
        wanted = ~bound | broken
        changed = np.flatnonzero(np.any(wanted != used, axis=1) & wanted.any(axis=1))
        if not changed.size:
            break
        used[changed] = wanted[changed]
        refit = _fit(x, log2_n[changed], used[changed], axes)
        fitted[changed] = refit(x)
        own = _one_sided(fitted[changed], log2_n[changed], below[changed], above[changed])
        better = own < loss[changed] - ALIKE
        loss[changed[better]] = own[better]
        law = law.replaced(changed[better], refit, better)
    return law


def _fit(x: Floats, log2_n: Floats, used: NDArray[np.bool_], axes: list[Axis]) -> Logistic:
    s = varpro(x, log2_n, used.astype(np.float64), "logistic", axes)
    return Logistic(s.low, s.slope, np.exp(s.shape[:, 0]), s.shape[:, 1], s.undetermined)


def _one_sided(fitted: Floats, log2_n: Floats, below: NDArray[np.bool_], above: NDArray[np.bool_]) -> Floats:
    """The sum of squares in which a bound that is kept costs nothing, (D,)."""
    residual = fitted - log2_n
    kept = (below & (above | (residual > 0))) | (above & (residual < 0))
    # A wild draw's law may lie anywhere; its loss must only stay finite.
    return np.asarray(np.sum(np.clip(np.where(kept, 0.0, residual), -1e100, 1e100) ** 2, axis=1))
