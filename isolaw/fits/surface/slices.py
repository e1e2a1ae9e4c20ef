"""Evaluate a reward model at given computes over a grid of allocations, and find the best allocations.

All allocations compete at every compute. The uncertainty of each allocation grows past the end of the nearest
runs. The grid contains every measured n and B_p, points between them, and points beyond them that the caller
adds. With ``hold="B"``, B_p follows from n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.blas import one_blas_thread
from isolaw.fits.selection import Floats, varies_in_batch

FLAT = 1e-9  # a surface that varies by less than this share of the reward is flat up to rounding
_ZERO = 1e-12  # the same share of the reward's unit, for rewards near 0
_STEPS = (0.125, 0.25, 0.5, 1.0)  # doublings between grid points; isolaw uses the finest that _MOST allows
# Number of points that are drawn together, up to which the grid becomes finer. Beyond twice this number,
# rewards are interpolated between allocations as well.
_MOST = 400
_KNOTS = 12  # number of computes at which the surface is drawn, and between which it is interpolated
_FEWER_KNOTS = 8


def highest(values: Floats, axis: int) -> NDArray[np.int64]:
    """Return the index of the largest value along an axis; ties up to rounding go to the first.

    >>> int(highest(np.array([0.1, 0.3, 0.1 + 0.2]), 0))
    1
    """
    top = values.max(axis=axis, keepdims=True)
    return np.asarray((values >= top - FLAT * np.abs(top)).argmax(axis=axis))


def equal(top: Floats, bottom: Floats, unit: float) -> NDArray[np.bool_]:
    """Return where two rewards of this unit are equal up to rounding."""
    size = np.maximum(np.abs(top), np.abs(bottom))
    return np.asarray(top - bottom <= np.maximum(FLAT * size, _ZERO * unit))


class RewardModel(Protocol):
    """A model that returns the reward of an allocation at a budget in every draw."""

    @property
    def places(self) -> Floats:
        """log2 n and log2 B_p of the configurations that were run, of shape (N, 2)."""

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest possible reward."""

    def rewards(self, log2_n: Floats, log2_b: Floats, compute: Floats) -> Floats:
        """Return joint draws of the rewards at Q points.

        Returns an array of shape (1 + D, Q): the mean in row 0, then D draws.
        """


@dataclass(frozen=True)
class Slices:
    """Rewards at X computes over G allocations, for the mean and D draws."""

    compute: Floats  # (X,)
    # Coordinates of the allocations, (G,) each, in ascending order of n, then of B_p.
    log2_n: Floats
    log2_b: Floats
    reward: Floats  # (1 + D, X, G)
    place: NDArray[np.int64]  # index of each configuration's allocation, (N,); −1 if it is not in the grid
    unit: float = 1.0  # the reward's unit

    @property
    def along(self) -> Floats:
        """log2 n of the allocations, or log2 B_p if all have the same n, of shape (G,)."""
        one_n = np.ptp(self.log2_n) == 0 and np.ptp(self.log2_b) > 0
        return self.log2_b if one_n else self.log2_n

    @property
    def best(self) -> NDArray[np.int64]:
        """Index of the allocation with the highest reward, of shape (1 + D, X)."""
        return highest(self.reward, 2)

    @property
    def flat(self) -> NDArray[np.bool_]:
        """A mask of shape (1 + D, X): True where no allocation is better than another."""
        top, bottom = self.reward.max(axis=2), self.reward.min(axis=2)
        return equal(top, bottom, self.unit)


def slices(
    model: RewardModel,
    compute: Floats,
    allowed: Callable[[Floats, Floats], NDArray[np.bool_]] | None = None,
    more: Floats | None = None,
    unit: float = 1.0,
) -> Slices:
    """Evaluate a model over the grid of allocations at ``compute`` (X,).

    If there are many computes, rewards are interpolated in log C between knots. ``allowed`` returns which
    (log2 n, log2 B_p) can be chosen, and ``more`` (K, 2) adds points to the grid. ``unit`` is the reward's.
    """
    places = model.places
    several = compute.size > _KNOTS
    knots = compute.size if not several else _FEWER_KNOTS if varies_in_batch(*places.T) else _KNOTS
    for step in _STEPS:
        u, v = _grid(places, step, more)
        if u.size * knots <= _MOST:
            break
    if allowed is not None:
        kept = allowed(u, v)
        u, v = u[kept], v[kept]
    at = np.geomspace(compute.min(), compute.max(), knots) if several else compute
    nodes, weights = _nodes(u, v, 2 * _MOST // at.size)
    points = np.tile(u[nodes], at.size), np.tile(v[nodes], at.size), np.repeat(at, nodes.size)
    with one_blas_thread():
        reward = model.rewards(*points).reshape(-1, at.size, nodes.size)
        reward = reward if nodes.size == u.size else reward @ weights
        if several:
            from scipy.interpolate import CubicSpline  # imported here, since its import is slow

            reward = CubicSpline(np.log(at), reward, axis=1)(np.log(compute))
            reward = np.clip(reward, *model.bounds)
    near = np.abs(places[:, 0, None] - u) + np.abs(places[:, 1, None] - v)
    place = np.where(near.min(axis=1) < 1e-9, near.argmin(axis=1), -1)
    return Slices(compute, u, v, reward, place, unit)


def _grid(places: Floats, step: float, more: Floats | None) -> tuple[Floats, Floats]:
    """Return log2 n and log2 B_p of all configurations and of points between them, within the range of B."""
    every = places if more is None else np.vstack([places, more])
    n = _line(every[:, 0], step)
    if not varies_in_batch(*places.T):
        total = places.sum(axis=1)
        held = np.unique(places[:, 1]).size == 1
        return n, np.full(n.size, places[0, 1]) if held else total[0] - n
    u, v = (x.ravel() for x in np.meshgrid(n, _line(every[:, 1], 2 * step), indexing="ij"))
    batch = every.sum(axis=1)
    inside = (u + v <= batch.max() + 1e-9) & (u + v >= batch.min() - 1e-9)
    return u[inside], v[inside]


def _nodes(u: Floats, v: Floats, most: int) -> tuple[NDArray[np.int64], Floats]:
    """Return which of G allocations to draw, about ``most`` (K,), and each one's share in all, (K, G).

    Rewards of the others are interpolated in log2 n between their neighbours with the same B_p.

    >>> kept, weights = _nodes(np.array([3.0, 3.5, 4.0, 4.1, 5.0]), np.zeros(5), 3)
    >>> kept.tolist(), weights[:, 1].tolist()
    ([0, 2, 4], [0.5, 0.5, 0.0])
    """
    gap, lines = 0.0, [np.flatnonzero(v == level) for level in np.unique(v)]
    while True:
        kept = np.zeros(u.size, dtype=bool)
        for line in lines:
            last = -np.inf
            for i in line:
                if u[i] >= last + gap or i == line[-1]:
                    kept[i], last = True, u[i]
        if kept.sum() <= max(most, 2 * len(lines)):
            break
        gap = 2 * gap or 0.125
    weights = np.zeros((kept.sum(), u.size))
    column = np.cumsum(kept) - 1
    for line in lines:
        nodes = line[kept[line]]
        for node, alone in zip(nodes, np.eye(nodes.size), strict=True):
            weights[column[node], line] = np.interp(u[line], u[nodes], alone)
    return np.flatnonzero(kept), weights


def _line(values: Floats, step: float) -> Floats:
    """Return the distinct values, with points added between them so that no gap exceeds ``step``.

    >>> _line(np.array([3.0, 4.0, 6.0]), 0.5)
    array([3. , 3.5, 4. , 4.5, 5. , 5.5, 6. ])
    """
    levels = np.unique(values)
    parts = [
        np.linspace(low, high, int(np.ceil((high - low) / step - 1e-9)), endpoint=False)
        for low, high in pairwise(levels)
    ]
    return np.concatenate([*parts, levels[-1:]])
