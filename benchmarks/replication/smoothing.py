"""Find n*, the n at which the reward, smoothed over log2 n, is highest.

The argmax over the n of a grid jumps by whole doublings and follows noise. isolaw therefore smooths rewards
by local quadratic regression in u = log2 n (Cleveland 1979: tricube weights, 2.5 doublings wide, at least
four n). n* is the argmax of the smooth curve between the smallest and the largest measured n. Smoothing is
linear in the rewards, and n* is computed from means over seeds, never from the noise of a single seed. If the
reward falls off a cliff, n* from a single polynomial over all n is wrong by up to 0.7 doublings, and n* from
local regression by at most about 0.1 (`tests/benchmarks/test_replication.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from benchmarks.replication.verdicts import Floats
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.surface.slices import FLAT, highest

_BANDWIDTH = 2.5
_LEAST_LEVELS = 3
_FINE = 16  # points per doubling, later refined by a parabola
_LEAST_POINTS = 4
_EDGE = 1e-9


@lru_cache(maxsize=256)
def _smoother(u: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Return points between the first and last u, of shape (G,), and the weights of the rewards there.

    The weights have shape (G, N).
    """
    at = np.array(u)
    fine = np.linspace(at[0], at[-1], round((at[-1] - at[0]) * _FINE) + 1)
    weights = np.empty((fine.size, at.size))
    for g, centre in enumerate(fine):
        distance = np.abs(at - centre)
        reach = np.sort(distance)[min(_LEAST_POINTS, at.size) - 1]
        # Reach half a doubling beyond the farthest required point, so that its weight is positive.
        tricube = (1 - np.clip(distance / max(_BANDWIDTH, reach + 0.5), 0, 1) ** 3) ** 3
        root = np.sqrt(tricube)
        terms = np.stack([np.ones_like(at), at - centre, (at - centre) ** 2], axis=1)
        weights[g] = np.linalg.pinv(terms * root[:, None])[0] * root
    return fine, weights


def smooth(log2_n: Floats, reward: Floats) -> tuple[Floats, Floats]:
    """Return points u of shape (G,) and the smooth reward there, of shape (…, G).

    ``reward`` has shape (…, N), at ascending ``log2_n`` of shape (N,).
    """
    fine, weights = _smoother(tuple(float(v) for v in log2_n))
    return fine, reward @ weights.T


@dataclass(frozen=True)
class Optimum:
    """The maxima of smooth rewards, for any number of curves, each field with one value per curve.

    ``log2_n`` is log2 n*; among rewards equal up to rounding, the smallest n counts. ``tolerance`` is log2 of
    the smallest n within 0.005 of the best, and ``reward`` is the smooth reward at n*. ``bound`` is −1 if n*
    is the smallest measured n and +1 if it is the largest; n* is then only a bound.
    """

    log2_n: Floats
    tolerance: Floats
    reward: Floats
    bound: Floats

    @property
    def both(self) -> Floats:
        """``log2_n`` and ``tolerance``, stacked to shape (2, …)."""
        return np.stack([self.log2_n, self.tolerance])


def optimum(log2_n: Floats, reward: Floats) -> Optimum:
    """Find n* from ``reward``, of shape (…, N), at ascending ``log2_n``, of shape (N,).

    An n with NaN in any curve counts as not measured. With fewer than three measured n, the result is NaN.

    >>> u = np.arange(2.0, 12.0)
    >>> best = optimum(u, -0.01 * (u - 6.3) ** 2)
    >>> round(float(best.log2_n), 3), round(float(best.tolerance), 2)
    (6.3, 5.59)
    """
    flat = reward.reshape(-1, reward.shape[-1])
    measured = np.all(np.isfinite(flat), axis=0)
    shape = reward.shape[:-1]
    if measured.sum() < _LEAST_LEVELS:
        nothing = np.full(shape, np.nan)
        return Optimum(nothing, nothing, nothing, nothing)
    fine, curves = smooth(log2_n[measured], flat[:, measured])
    rows = np.arange(len(curves))
    top = highest(curves, 1)
    inner = np.clip(top, 1, fine.size - 2)
    before, here, after = curves[rows, inner - 1], curves[rows, inner], curves[rows, inner + 1]
    bend = before - 2 * here + after
    step = fine[1] - fine[0]
    bends = bend < -FLAT * step**2 * np.abs(here)
    moved = np.where(bends, 0.5 * (before - after) / np.where(bends, bend, 1.0), 0.0)
    refined = fine[inner] + step * np.clip(moved, -1, 1)
    best = np.where(top == inner, refined, fine[top])
    reward_there = np.maximum(curves[rows, top], here - 0.25 * (before - after) * moved * (top == inner))
    enough = curves >= reward_there[:, None] - TOLERANCE - FLAT
    first = enough.argmax(axis=1)
    left = np.maximum(first - 1, 0)
    rise = curves[rows, first] - curves[rows, left]
    share = (reward_there - TOLERANCE - curves[rows, left]) / np.where(rise > 0, rise, 1.0)
    tolerance = np.where(rise > 0, fine[left] + step * np.clip(share, 0, 1), fine[first])
    bound = np.where(best >= fine[-1] - _EDGE, 1.0, np.where(best <= fine[0] + _EDGE, -1.0, 0.0))
    return Optimum(*(part.reshape(shape) for part in (best, tolerance, reward_there, bound)))


def path(levels: Sequence[int], rewards: Floats) -> Optimum:
    """Return n* at every budget, of shape (R, X), from R rows of rewards, of shape (R, N, X)."""
    # Process one budget at a time, since some n have not made a step at the smaller budgets.
    optima = [optimum(np.log2(levels), rewards[:, :, x]) for x in range(rewards.shape[2])]
    names = ("log2_n", "tolerance", "reward", "bound")
    return Optimum(*(np.stack([getattr(o, name) for o in optima], axis=1) for name in names))
