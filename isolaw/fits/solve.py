"""Least squares by variable projection, for many data sets at once.

Every family here is a line in two levels once its shape is known:

    y ≈ low · (1 − s) + high · s,   s = basis(x; shape) in [0, 1] and increasing in x

so low and high have a closed form for each shape (Golub & Pereyra 1973), and only one or two shape
parameters are searched: first on a grid, the same for all data sets, then by a shrinking local grid
for each. Deterministic, and without a starting value to choose. high ≥ low is kept: the fits are
monotone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Basis = Callable[[Floats, Floats], Floats]
_HALVINGS = 18
_ROUNDS = 200
_NOT_WORTH = 1e-9  # a relative gain below this is not followed along a flat valley
_TINY = 1e-300


@dataclass(frozen=True)
class Axis:
    """The search range of one shape parameter (in the parameter's own, unbounded, scale)."""

    low: float
    high: float
    points: int

    @property
    def spacing(self) -> float:
        """Distance of neighbouring grid points."""
        return (self.high - self.low) / (self.points - 1)


@dataclass(frozen=True)
class Solution:
    """The fits of D data sets.

    Attributes
    ----------
    low, high
        the two levels, shape (D,).
    shape
        shape parameters, (D, dimensions).
    sse
        weighted sum of squared residuals, (D,).
    on_bound
        the shape is not determined: its search stopped at the end of an axis, or the fit is flat; (D,).
    """

    low: Floats
    high: Floats
    shape: Floats
    sse: Floats
    on_bound: NDArray[np.bool_]


def varpro(x: Floats, y: Floats, weights: Floats, basis: Basis, axes: Sequence[Axis]) -> Solution:
    """Fit every data set by weighted least squares.

    Parameters
    ----------
    x
        abscissae, common to all data sets, shape (P,).
    y
        ordinates, (D, P) or (1, P) if all data sets have the same.
    weights
        non-negative, (D, P); zero leaves a point out.
    basis
        ``basis(x, shape)`` with shape (..., dimensions) gives s, (..., P).
    axes
        one per shape parameter.

    >>> x = np.linspace(0, 5, 30)
    >>> y = (0.7 - 0.4 * np.exp(-x / 1.3))[None]
    >>> s = varpro(x, y, np.ones_like(y), lambda x, t: -np.expm1(-x / np.exp(t)), [Axis(-3, 3, 50)])
    >>> np.round([s.low[0], s.high[0], np.exp(s.shape[0, 0])], 6)
    array([0.3, 0.7, 1.3])
    """
    moments = _Moments.of(y, weights)
    grid = np.array(list(product(*(np.linspace(a.low, a.high, a.points) for a in axes))))
    sse, *_ = moments.profile(basis(x, grid))
    centre = grid[np.argmin(sse, axis=1)]
    low_end, high_end = np.array([a.low for a in axes]), np.array([a.high for a in axes])
    offsets = np.array(list(product((-2.0, -1.0, 0.0, 1.0, 2.0), repeat=len(axes))))
    stay = len(offsets) // 2
    step = np.repeat(np.array([[a.spacing / 2 for a in axes]]), len(centre), axis=0)
    halvings = np.zeros(len(centre), dtype=int)
    active = np.arange(len(centre))
    for _ in range(_ROUNDS):
        candidates = np.clip(centre[active, None] + offsets * step[active, None], low_end, high_end)
        sse, *_ = moments.of_rows(active).profile(basis(x, candidates))
        no_better = sse[:, stay] <= sse.min(axis=1) + _NOT_WORTH * np.abs(sse[:, stay])
        best = np.where(no_better, stay, np.argmin(sse, axis=1))
        centre[active] = candidates[np.arange(active.size), best]
        # Only a search that found nothing better around it looks closer: a curved valley is followed.
        closer = active[best == stay]
        step[closer] /= 2
        halvings[closer] += 1
        active = active[halvings[active] < _HALVINGS]
        if not active.size:
            break
    sse, low, slope = (part[:, 0] for part in moments.profile(basis(x, centre[:, None, :])))
    span = high_end - low_end
    on_bound = np.any((centre < low_end + 1e-3 * span) | (centre > high_end - 1e-3 * span), axis=1)
    return Solution(low, low + slope, centre, np.maximum(sse, 0.0), on_bound | (slope <= 0))


@dataclass(frozen=True)
class _Moments:
    """What of the data the closed form needs; ``y`` is taken about ``origin`` to keep digits."""

    w: Floats  # (D, P)
    wy: Floats  # (D, P)
    sw: Floats  # (D, 1)
    sy: Floats
    syy: Floats
    origin: Floats  # (D, 1)

    @classmethod
    def of(cls, y: Floats, w: Floats) -> _Moments:
        sw = np.maximum(w.sum(axis=1, keepdims=True), _TINY)
        origin = (w * y).sum(axis=1, keepdims=True) / sw
        centred = y - origin
        wy = w * centred
        return cls(
            w,
            wy,
            sw,
            wy.sum(axis=1, keepdims=True),
            (wy * centred).sum(axis=1, keepdims=True),
            origin,
        )

    def of_rows(self, rows: NDArray[np.int64]) -> _Moments:
        """The same for some of the data sets."""
        return _Moments(
            self.w[rows],
            self.wy[rows],
            self.sw[rows],
            self.sy[rows],
            self.syy[rows],
            self.origin[rows],
        )

    def profile(self, s: Floats) -> tuple[Floats, Floats, Floats]:
        """Return (sse, low, high − low), each (D, G), for basis values (G, P) or (D, G, P)."""
        ws, wss, wsy = _dot(s, self.w), _dot(s * s, self.w), _dot(s, self.wy)
        css = wss - ws * ws / self.sw
        csy = wsy - ws * self.sy / self.sw
        # Where s hardly varies over the data, rounding decides: such a shape explains nothing.
        usable = css > 1e-12 * np.maximum(wss, _TINY)
        slope = np.where(usable, np.maximum(csy, 0.0) / np.where(usable, css, 1.0), 0.0)
        cyy = self.syy - self.sy * self.sy / self.sw
        low = self.origin + (self.sy - slope * ws) / self.sw
        return cyy - slope * (2 * csy - slope * css), low, slope


def _dot(s: Floats, v: Floats) -> Floats:
    """Σ_p s v for s (G, P) or (D, G, P) and v (D, P)."""
    return v @ s.T if s.ndim == 2 else np.asarray((s @ v[..., None])[..., 0])
