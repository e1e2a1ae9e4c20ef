"""The compute-optimal frontier: which n is best at each compute, and where one overtakes another.

A curve competes only where its configuration was measured. n* is *censored* where its neighbours on
the grid of n were not measured too, and at the grid's edges: there it is only a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.curves.learning_curves import Curves
from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.slices import FLAT, Slices, highest

TOLERANCE = 0.005
POINTS = 50
_SEARCH = 400


@dataclass(frozen=True)
class Frontier:
    """The frontier of 1 + D sets of curves (the data's first) at X computes over N levels of n.

    Attributes
    ----------
    compute
        (X,).
    levels
        measured n, ascending, (N,).
    reward
        the best reward of each n where it was measured, else −inf, (1 + D, N, X).
    strict, tolerance
        index of the best n (of equals the smallest), and of the smallest n within 0.005 of it, (1 + D, X).
    below, above
        where the strict n* is only a lower (upper) bound, (1 + D, X); both where all rewards are equal.
    alone
        where a neighbour of the strict n* was not measured, (1 + D, X).
    """

    compute: Floats
    levels: NDArray[np.int64]
    reward: Floats
    strict: NDArray[np.int64]
    tolerance: NDArray[np.int64]
    below: NDArray[np.bool_]
    above: NDArray[np.bool_]
    alone: NDArray[np.bool_]

    @property
    def censored(self) -> NDArray[np.bool_]:
        """Where n* is only a bound, on one side or on both; (1 + D, X)."""
        return self.below | self.above

    @property
    def best(self) -> Floats:
        """The reward on the frontier, (1 + D, X)."""
        return np.asarray(self.reward.max(axis=1))


@dataclass(frozen=True)
class Path:
    """n*(C) of 1 + D draws, by either method: what laws are fitted to.

    Attributes
    ----------
    compute
        (X,).
    levels
        measured n, ascending, (N,).
    log2_n, reward
        log2 n* and the reward there, (1 + D, X).
    below, above
        where n* is only a lower (upper) bound, (1 + D, X); both: it is not known.
    """

    compute: Floats
    levels: NDArray[np.int64]
    log2_n: Floats
    reward: Floats
    below: NDArray[np.bool_]
    above: NDArray[np.bool_]

    @property
    def censored(self) -> NDArray[np.bool_]:
        """Where n* is only a bound, (1 + D, X)."""
        return self.below | self.above

    @property
    def at_top(self) -> NDArray[np.bool_]:
        """Where n* is the largest n of the grid, (1 + D, X)."""
        return self.below & (self.log2_n >= np.log2(self.levels[-1]) - 1e-9)

    @property
    def n(self) -> Floats:
        """n*, with ±inf where it is a bound on that side and NaN where it is not known, (1 + D, X)."""
        n = np.exp2(self.log2_n)
        n = np.where(self.below & ~self.above, np.inf, np.where(self.above & ~self.below, -np.inf, n))
        return np.where(self.below & self.above, np.nan, n)


def strict_path(frontier: Frontier) -> Path:
    """Return the measured n with the highest curve: the paper's n*."""
    f = frontier
    log2_n = np.log2(f.levels)[f.strict]
    return Path(f.compute, f.levels, log2_n, f.best, f.below, f.above)


def ridge_path(cut: Slices, configurations: list[Configuration], reach: float) -> Path:
    """Return the surface's ridge; beyond ``reach``, to where n can be compared, n* is not known."""
    u = cut.log2_n[cut.best]
    far = cut.flat | (cut.compute > reach)
    levels = np.unique([c.rollouts_per_problem for c in configurations])
    ends = np.log2(levels[[0, -1]])
    top, bottom = u >= ends[1] - 1e-9, u <= ends[0] + 1e-9
    return Path(cut.compute, levels, u, cut.reward.max(axis=2), far | top, far | bottom)


def cut_frontier(cut: Slices, configurations: list[Configuration], reach: float) -> Frontier:
    """Return the rewards of the measured n on a surface: that of the best of their B_p.

    All compete at every compute; ``alone`` is where fewer than three of them ran that far.
    """
    n = np.array([c.rollouts_per_problem for c in configurations])
    levels = np.unique(n)
    own = cut.reward[:, :, cut.place]
    reward = np.stack([own[:, :, n == level].max(axis=2) for level in levels], axis=1)
    best = reward.max(axis=1, keepdims=True)
    strict = highest(reward, 1)
    tolerance = (reward >= best - TOLERANCE - FLAT * np.abs(best)).argmax(axis=1)
    alone = np.broadcast_to(cut.compute > reach, strict.shape)
    top, bottom = strict == levels.size - 1, strict == 0
    return Frontier(cut.compute, levels, reward, strict, tolerance, top | alone, bottom | alone, alone)


def supported_range(configurations: list[Configuration]) -> tuple[float, float]:
    """Return the compute range over which a frontier is drawn.

    It ends with the last checkpoint of any run. Where step 0 was measured every curve begins at
    C = 0, so the range begins when every configuration has made a step; else with the first checkpoint.
    """
    from_zero = [c for c in configurations if c.measured[0] == 0]
    if from_zero:
        low = max(float(c.compute[c.compute > 0].min()) for c in from_zero)
    else:
        low = min(c.measured[0] for c in configurations)
    return low, max(c.measured[1] for c in configurations)


def envelope(
    configurations: list[Configuration], curves: list[Curves], compute: Floats
) -> tuple[NDArray[np.int64], Floats]:
    """Return the levels of n and the best reward of each, −inf where none was measured."""
    levels = np.unique([c.rollouts_per_problem for c in configurations])
    size = curves[0].A.size
    reward = np.full((size, levels.size, compute.size), -np.inf)
    for configuration, curve in zip(configurations, curves, strict=True):
        level = int(np.searchsorted(levels, configuration.rollouts_per_problem))
        value = np.where(configuration.covers(compute), curve(compute), -np.inf)
        reward[:, level] = np.maximum(reward[:, level], value)
    return levels, reward


def trace(configurations: list[Configuration], curves: list[Curves], compute: Floats) -> Frontier:
    """Trace the frontier at ``compute`` (X,), each of which some configuration covers."""
    levels, reward = envelope(configurations, curves, compute)
    best = reward.max(axis=1, keepdims=True)
    strict = highest(reward, 1)
    tolerance = (reward >= best - TOLERANCE - FLAT * np.abs(best)).argmax(axis=1)
    measured = np.isfinite(reward[0])  # (N, X), the same in every draw
    top = levels.size - 1
    columns = np.arange(compute.size)
    missing_above = (strict < top) & ~measured[np.minimum(strict + 1, top), columns]
    missing_below = (strict > 0) & ~measured[np.maximum(strict - 1, 0), columns]
    flat = np.all((best - reward <= FLAT * np.abs(best)) | ~measured, axis=1)
    return Frontier(
        compute,
        levels,
        reward,
        strict,
        tolerance,
        below=flat | (strict == top) | missing_above,
        above=flat | (strict == 0) | missing_below,
        alone=missing_above | missing_below,
    )


@dataclass(frozen=True)
class Crossover:
    """Where ``to`` overtakes ``from_``: the last such compute in the range where both were measured.

    Attributes
    ----------
    shared
        first and last compute at which both were measured, None when there is none.
    draws
        the overtaking within ``shared``, the estimate first; −inf: ``to`` leads all along; +inf: not
        yet at its end. NaN without a shared range.
    extrapolated
        where the estimated curves cross when continued over all that either was measured; NaN or ±inf
        if they do not.
    """

    from_: int
    to: int
    shared: tuple[float, float] | None
    draws: Floats
    extrapolated: float

    @property
    def supported(self) -> bool:
        """Whether the estimate lies where both were measured."""
        return bool(np.isfinite(self.draws[0]))


def curve_rewards(
    configurations: list[Configuration], curves: list[Curves], first: float
) -> tuple[Floats, Floats]:
    """Return computes (X,) to seek crossovers at, and the best curve of each n there, (1 + D, N, X)."""
    levels = np.unique([c.rollouts_per_problem for c in configurations])
    ends = sorted({first, *(end for c in configurations for end in c.measured if end > 0)})
    compute = np.union1d(np.geomspace(ends[0], ends[-1], _SEARCH), ends)
    best = [
        np.max(
            [k(compute) for c, k in zip(configurations, curves, strict=True) if c.rollouts_per_problem == n],
            axis=0,
        )
        for n in levels
    ]
    return compute, np.stack(best, axis=1)


def between(frontier: Frontier, first: float) -> tuple[Floats, Floats]:
    """Return computes (X,) to seek crossovers at, and the rewards of each n between the frontier's."""
    compute = np.geomspace(min(first, frontier.compute[0]), frontier.compute[-1], _SEARCH)
    log, at = np.log(frontier.compute), np.log(compute)
    right = np.clip(np.searchsorted(log, at), 1, log.size - 1)
    share = np.clip((at - log[right - 1]) / (log[right] - log[right - 1]), 0.0, 1.0)
    return compute, (1 - share) * frontier.reward[:, :, right - 1] + share * frontier.reward[:, :, right]


def crossovers(
    configurations: list[Configuration], compute: Floats, reward: Floats, first: float
) -> list[Crossover]:
    """Return the crossover of every pair of n.

    Parameters
    ----------
    configurations
        what was measured; in the joint setting an n is represented by the best of its B_p.
    compute, reward
        (X,), and the rewards of each n there, (1 + D, N, X).
    first
        where the frontier begins.
    """
    levels = np.unique([c.rollouts_per_problem for c in configurations])
    spans = []
    for n in levels:
        own = [c.measured for c in configurations if c.rollouts_per_problem == n]
        low = min(start for start, _ in own)
        spans.append((max(low, first) if low == 0 else low, max(end for _, end in own)))
    out = []
    for i, a in enumerate(levels):
        for j in range(i + 1, levels.size):
            lead = reward[:, j] - reward[:, i]
            lead[np.abs(lead) <= FLAT * np.abs(reward[:, i])] = 0.0  # equal, but for rounding
            low, high = max(spans[i][0], spans[j][0]), min(spans[i][1], spans[j][1])
            shared = (low, high) if high > low else None
            draws = _overtaken(compute, lead, low, high) if shared else np.full(len(lead), np.nan)
            either = min(spans[i][0], spans[j][0]), max(spans[i][1], spans[j][1])
            beyond = float(_overtaken(compute, lead[:1], *either)[0]) if either[1] > either[0] else np.nan
            out.append(Crossover(int(a), int(levels[j]), shared, draws, beyond))
    return out


def _overtaken(compute: Floats, lead: Floats, low: float, high: float) -> Floats:
    """The last x in [low, high] at which a lead (1 + D, X) becomes positive, per draw; NaN: not known."""
    inside = (compute >= low * (1 - 1e-12)) & (compute <= high * (1 + 1e-12))
    if inside.sum() < 2:  # the frontier begins, or ends, elsewhere
        return np.full(len(lead), np.nan)
    log, lead = np.log(compute[inside]), lead[:, inside]
    crossing = (lead[:, :-1] < 0) & (lead[:, 1:] >= 0)
    last = log.size - 2 - crossing[:, ::-1].argmax(axis=1)
    rows = np.arange(len(lead))
    before, after = lead[rows, last], lead[rows, last + 1]
    share = np.where(crossing.any(axis=1), before / np.where(before == after, 1.0, before - after), 0.0)
    found = np.exp(log[last] + share * (log[last + 1] - log[last]))
    return np.where(crossing.any(axis=1), found, np.where(lead[:, -1] >= 0, -np.inf, np.inf))
