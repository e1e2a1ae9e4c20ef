"""Least squares by variable projection, for many data sets at once.

Every family here is a line in two levels once its shape is known:

    y ≈ low · (1 − s) + high · s,   s = basis(x; shape) in [0, 1] and increasing in x

so low and high have a closed form for each shape (Golub & Pereyra 1973), and only one or two shape
parameters are searched: on a grid, the same for all data sets, then by a shrinking local grid for each,
and last by damped Gauss–Newton steps, which follow a narrow valley. Deterministic, and without a
starting value to choose. high ≥ low is kept: the fits are
monotone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Basis = Callable[[Floats, Floats], Floats]
_HALVINGS = 12
_POLISH = 15
_TINY = 1e-300
_MOST_VALUES = 2e7  # of a basis, at a time: 160 MB


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
    most = max(1, int(_MOST_VALUES / (x.size * 5 ** len(axes))))
    if len(weights) > most:
        parts = [
            varpro(x, y[i : i + most] if len(y) > 1 else y, weights[i : i + most], basis, axes)
            for i in range(0, len(weights), most)
        ]
        return Solution(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Solution)))
    moments = _Moments.of(y, weights)
    grid = np.array(list(product(*(np.linspace(a.low, a.high, a.points) for a in axes))))
    sse, *_ = moments.profile(basis(x, grid))
    centre = grid[np.argmin(sse, axis=1)]
    ends = np.array([a.low for a in axes]), np.array([a.high for a in axes])
    step = np.array([a.spacing for a in axes])
    offsets = np.array(list(product((-2.0, -1.0, 0.0, 1.0, 2.0), repeat=len(axes))))
    rows = np.arange(len(centre))
    for _ in range(_HALVINGS):
        step = step / 2
        candidates = np.clip(centre[:, None] + offsets * step, *ends)
        sse, *_ = moments.profile(basis(x, candidates))
        centre = candidates[rows, np.argmin(sse, axis=1)]
    centre = _polished(x, y, moments, basis, centre, ends)
    sse, low, slope = (part[:, 0] for part in moments.profile(basis(x, centre[:, None, :])))
    margin = 1e-3 * (ends[1] - ends[0])
    on_bound = np.any((centre < ends[0] + margin) | (centre > ends[1] - margin), axis=1)
    return Solution(low, low + slope, centre, np.maximum(sse, 0.0), on_bound | (slope <= 0))


def _polished(
    x: Floats,
    y: Floats,
    moments: _Moments,
    basis: Basis,
    shape: Floats,
    ends: tuple[Floats, Floats],
) -> Floats:
    """Levenberg–Marquardt steps on the shape alone, the levels profiled out; only gains are kept."""
    root = np.sqrt(moments.w)
    shape = shape.copy()

    def residuals(at: Floats) -> Floats:
        s = basis(x, at[:, None, :])
        _, low, slope = (part[:, 0] for part in moments.profile(s))
        return np.asarray(root * (low[:, None] + slope[:, None] * s[:, 0, :] - y))

    tiny = 1e-5 * (ends[1] - ends[0])
    directions = np.eye(tiny.size)
    damping = np.full(len(shape), 1e-3)
    r = residuals(shape)
    sse = np.sum(r * r, axis=1)
    for _ in range(_POLISH):
        jacobian = np.stack(
            [
                (residuals(np.clip(shape + tiny * e, *ends)) - residuals(np.clip(shape - tiny * e, *ends)))
                / (2 * tiny @ e)
                for e in directions
            ],
            axis=-1,
        )
        gradient = np.einsum("dpk,dp->dk", jacobian, r)
        normal = np.einsum("dpk,dpl->dkl", jacobian, jacobian)
        diagonal = np.einsum("dkk->dk", normal)
        normal = normal + (damping[:, None] * diagonal + _TINY)[:, :, None] * directions
        usable = np.abs(np.linalg.det(normal)) > _TINY
        normal[~usable] = directions
        step = np.where(usable[:, None], np.linalg.solve(normal, gradient[..., None])[..., 0], 0.0)
        tried = np.clip(shape - step, *ends)
        r_tried = residuals(tried)
        sse_tried = np.sum(r_tried * r_tried, axis=1)
        better = sse_tried < sse
        shape[better], r[better], sse[better] = tried[better], r_tried[better], sse_tried[better]
        damping = np.where(better, damping / 5, damping * 10)
    return shape


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
