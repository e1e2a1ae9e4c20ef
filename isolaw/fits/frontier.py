"""Compute the compute-optimal frontier: the best n at each compute, and where one n overtakes another.

With ``hold="n"``, the axis is B_p, and "n" in this module means B_p (`isolaw.allocation.axis_of`).

A curve competes only at computes at which its configuration was measured. n* is *censored* (only a bound) at
the grid's edges, and where a neighbouring n on the grid was not measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from isolaw.allocation import Cell, axis_of
from isolaw.fits.curves.learning_curves import Curves
from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.slices import FLAT, Slices, highest

Bools = NDArray[np.bool_]
TOLERANCE = 0.005  # in units of the reward (`isolaw.fits.metric`)
POINTS = 50
_SEARCH_POINTS = 400


@dataclass(frozen=True)
class Frontier:
    """The frontier of 1 + D sets of curves at X computes over N levels of n. Row 0 is the fit to the data."""

    compute: Floats  # (X,)
    levels: NDArray[np.int64]  # measured n, ascending, (N,)
    reward: Floats  # the best reward of each n where it was measured, −inf elsewhere, (1 + D, N, X)
    unit: float = 1.0  # unit of the reward

    @property
    def best(self) -> Floats:
        """The reward on the frontier, for the estimate and D draws at X budgets, of shape (1 + D, X)."""
        return np.asarray(self.reward.max(axis=1))

    @cached_property
    def strict(self) -> NDArray[np.int64]:
        """Index of the best n, or of the smallest among equally good n, of shape (1 + D, X)."""
        return highest(self.reward, 1)

    @cached_property
    def tolerance(self) -> NDArray[np.int64]:
        """Index of the smallest n within the tolerance of the best, of shape (1 + D, X)."""
        threshold = self.best - TOLERANCE * self.unit - FLAT * np.abs(self.best)
        return np.asarray((self.reward >= threshold[:, None]).argmax(axis=1))


@dataclass(frozen=True)
class NStarPath:
    """n*(C) of the estimate and of D draws, the data to which both methods fit laws."""

    compute: Floats  # (X,)
    levels: NDArray[np.int64]  # measured n, ascending, (N,)
    # log2 n* and the reward at n*, (1 + D, X)
    log2_n: Floats
    reward: Floats
    # True where n* is only a lower (upper) bound, (1 + D, X). Both are True if n* is unknown.
    below: Bools
    above: Bools

    @property
    def censored(self) -> Bools:
        """A mask of shape (1 + D, X): True where n* is only a bound."""
        return self.below | self.above

    @property
    def at_top(self) -> Bools:
        """A mask of shape (1 + D, X): True where n* is the largest n of the grid."""
        return self.below & (self.log2_n >= np.log2(self.levels[-1]) - 1e-9)

    @property
    def n(self) -> Floats:
        """n* of shape (1 + D, X): +inf (−inf) where it is only a lower (upper) bound, NaN where unknown."""
        n = np.exp2(self.log2_n)
        n = np.where(self.below & ~self.above, np.inf, np.where(self.above & ~self.below, -np.inf, n))
        return np.where(self.below & self.above, np.nan, n)


def strict_path(frontier: Frontier) -> NStarPath:
    """Return the paper's n*: the measured n with the highest curve.

    It is only a bound at an end of the grid, and where the next n was not measured. It is unknown where all
    measured n are equally good.
    """
    strict, best = frontier.strict, frontier.best
    is_measured = np.isfinite(frontier.reward[0])  # (N, X), the same in every draw
    is_worse = best[:, None] - frontier.reward > FLAT * np.abs(best[:, None])
    is_flat = ~np.any(is_worse & is_measured, axis=1)
    # A row of False at either end, since nothing is measured beyond the grid.
    beside, columns = np.pad(is_measured, ((1, 1), (0, 0))), np.arange(frontier.compute.size)
    below, above = is_flat | ~beside[strict + 2, columns], is_flat | ~beside[strict, columns]
    log2_n = np.log2(frontier.levels)[strict]
    return NStarPath(frontier.compute, frontier.levels, log2_n, best, below, above)


def ridge_path(cut: Slices, configurations: list[Configuration], reach: float) -> NStarPath:
    """Return n* along the ridge of the surface; n* is unknown past ``reach``, where n cannot be compared."""
    u = cut.along[cut.best]
    is_unknown = cut.flat | (cut.compute > reach)
    levels = levels_of(configurations)
    low, high = np.log2(levels[[0, -1]])
    below, above = is_unknown | (u >= high - 1e-9), is_unknown | (u <= low + 1e-9)
    return NStarPath(cut.compute, levels, u, cut.reward.max(axis=2), below, above)


def cut_frontier(cut: Slices, configurations: list[Configuration], unit: float = 1.0) -> Frontier:
    """Return the frontier of a surface, with the reward of each measured n at its best B_p.

    All n compete at every compute.
    """
    axis = axis_of(configurations)
    cell_levels = np.array([c.level(axis) for c in configurations])
    levels = np.unique(cell_levels)
    cell_rewards = cut.reward[:, :, cut.place]
    reward = np.stack([cell_rewards[:, :, cell_levels == level].max(axis=2) for level in levels], axis=1)
    return Frontier(cut.compute, levels, reward, unit)


def levels_of(cells: Sequence[Cell]) -> NDArray[np.int64]:
    """Return the measured values of the law's axis (n, or B_p), ascending."""
    axis = axis_of(cells)
    return np.unique([cell.level(axis) for cell in cells])


def supported_range(configurations: list[Configuration]) -> tuple[float, float]:
    """Return the range of compute over which the frontier is computed.

    It ends at the last checkpoint of any run. If step 0 was measured, curves begin at C = 0, and the range
    begins when every configuration has made a step. Otherwise, the range begins at the first checkpoint.
    """
    steps = [float(c.compute[c.compute > 0].min()) for c in configurations if c.measured[0] == 0]
    low = max(steps) if steps else min(c.measured[0] for c in configurations)
    return low, max(c.measured[1] for c in configurations)


def envelope(
    configurations: list[Configuration], curves: list[Curves], compute: Floats, measured: bool = True
) -> tuple[NDArray[np.int64], Floats]:
    """Return the levels of n, and the highest curve of each level at ``compute``."""
    levels, axis = levels_of(configurations), axis_of(configurations)
    reward = np.full((curves[0].A.size, levels.size, compute.size), -np.inf)
    for c, curve in zip(configurations, curves, strict=True):
        level = int(np.searchsorted(levels, c.level(axis)))
        curve_reward = np.where(c.covers(compute), curve(compute), -np.inf) if measured else curve(compute)
        reward[:, level] = np.maximum(reward[:, level], curve_reward)
    return levels, reward


def trace(
    configurations: list[Configuration], curves: list[Curves], compute: Floats, unit: float = 1.0
) -> Frontier:
    """Return the frontier of the curves at ``compute`` (X,). A configuration must cover each compute."""
    return Frontier(compute, *envelope(configurations, curves, compute), unit)


@dataclass(frozen=True)
class Crossover:
    """The last compute at which ``to`` overtakes ``from_`` in the range where both were measured."""

    from_: int
    to: int
    # First and last compute at which both n were measured; None if there is no such range.
    shared: tuple[float, float] | None
    # The crossover within ``shared`` in the estimate and in each draw: −inf if ``to`` always leads, +inf if
    # it never leads, NaN without a shared range.
    draws: Floats
    # The crossover of the estimated curves in the range where either n was measured; NaN or ±inf as above.
    extrapolated: float

    @property
    def supported(self) -> bool:
        """Whether the estimated crossover is within the range where both n were measured."""
        return bool(np.isfinite(self.draws[0]))


def curve_rewards(
    configurations: list[Configuration], curves: list[Curves], start: float
) -> tuple[Floats, Floats]:
    """Return the computes at which to search for crossovers, and the best reward of each n there.

    The arrays have shapes (X,) and (1 + D, N, X).
    """
    edges = sorted({start, *(end for c in configurations for end in c.measured if end > 0)})
    compute = np.union1d(np.geomspace(edges[0], edges[-1], _SEARCH_POINTS), edges)
    return compute, envelope(configurations, curves, compute, measured=False)[1]


def crossovers(
    configurations: list[Configuration], compute: Floats, reward: Floats, start: float
) -> list[Crossover]:
    """Return the crossover of every pair of n.

    ``compute`` is (X,), and ``reward`` (1 + D, N, X) contains the reward of each n (at its best B_p
    with ``hold="nothing"``). ``start`` is the compute at which the frontier begins.
    """
    spans: dict[int, tuple[float, float]] = {}
    axis = axis_of(configurations)
    for c in sorted(configurations, key=lambda c: c.level(axis)):
        low, high = c.measured
        old_span = spans.get(c.level(axis), (math.inf, 0.0))
        spans[c.level(axis)] = min(low, old_span[0]), max(high, old_span[1])
    crossovers = []
    for (i, (a, span)), (j, (b, other_span)) in combinations(enumerate(spans.items()), 2):
        starts, ends = zip(*((low or max(low, start), high) for low, high in (span, other_span)), strict=True)
        lead = reward[:, j] - reward[:, i]
        lead[np.abs(lead) <= FLAT * np.abs(reward[:, i])] = 0.0  # equal up to rounding
        shared = (max(starts), min(ends)) if min(ends) > max(starts) else None
        draws = _last_overtaking(compute, lead, *shared) if shared else np.full(len(lead), np.nan)
        extrapolated = float(_last_overtaking(compute, lead[:1], min(starts), max(ends))[0])
        crossovers.append(Crossover(a, b, shared, draws, extrapolated))
    return crossovers


def _last_overtaking(compute: Floats, lead: Floats, low: float, high: float) -> Floats:
    """Return the last x in [low, high] at which the lead (1 + D, X) becomes positive, for each draw.

    Between the computes (X,), the lead is linear in log x. Without such an x, the result is −inf if the lead
    ends at 0 or above, and +inf otherwise. The result is NaN if the frontier does not cover the range.
    """
    low, high = max(low, compute[0]), min(high, compute[-1])
    if not low < high:
        return np.full(len(lead), np.nan)
    log_c, log_ends = np.log(compute), np.log([low, high])
    right = np.clip(np.searchsorted(log_c, log_ends), 1, log_c.size - 1)
    fraction = (log_ends - log_c[right - 1]) / (log_c[right] - log_c[right - 1])
    start_lead, end_lead = ((1 - fraction) * lead[:, right - 1] + fraction * lead[:, right]).T
    is_inside = (compute > low) & (compute < high)
    log_c = np.array([log_ends[0], *log_c[is_inside], log_ends[1]])
    lead = np.column_stack([start_lead, lead[:, is_inside], end_lead])
    crosses = (lead[:, :-1] < 0) & (lead[:, 1:] >= 0)
    last_crossing = log_c.size - 2 - crosses[:, ::-1].argmax(axis=1)
    draws = np.arange(len(lead))
    before, after = lead[draws, last_crossing], lead[draws, last_crossing + 1]
    fraction = np.where(crosses.any(axis=1), before / np.where(before == after, 1.0, before - after), 0.0)
    crossing = np.exp(log_c[last_crossing] + fraction * np.diff(log_c)[last_crossing])
    return np.where(crosses.any(axis=1), crossing, np.where(lead[:, -1] >= 0, -np.inf, np.inf))
