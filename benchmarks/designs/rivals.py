"""Alternatives to isolaw: each rival's allocation for a budget, from the same sweep.

    surface      the Gaussian process alone, over the measured n and those between
    exp, hill    the parametric surface alone (`isolaw.fits.surface.saturating`)
    process      scikit-learn's Gaussian process about a line: Matérn, a length scale for each axis
    isoflop      parabolas in log n at equal budgets, and a line through their vertices

All but the last choose what loses least on average over their draws (`process`: what it predicts to be best)
among the allocations that isolaw compares beyond the runs; `benchmarks.evidence` uses the last two alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

import isolaw
from benchmarks.designs.cells import BATCH, Cell
from isolaw.fits.allocations import LEAST_STEPS, REACH
from isolaw.fits.selection import Configuration

NAMES = ("surface", "exp", "hill", "process")
_PROFILES = 8
_NEAR = 1.5

Floats = NDArray[np.float64]


def allocations(cell: Cell, compute: float) -> list[tuple[int, int]]:
    """Return every (n, B_p) that a rival may choose: n of 2^k and 3 · 2^k, measured, between and beyond.

    If B_p varies, half the smallest and twice the largest measured one compete, too.
    """
    low, high = cell.levels[0], cell.levels[-1]
    found = []
    for n in sorted({f << k for f in (1, 3) for k in range(20)} | set(cell.levels)):
        inside = low <= n <= high
        if not (inside or max(low / REACH, 2) <= n <= high * REACH):
            continue
        if cell.hold == "B" and BATCH % n:
            continue
        batches = [BATCH // n] if cell.hold == "B" else cell.batches
        if cell.hold == "nothing":
            batches = [cell.batches[0] // 2, *cell.batches, cell.batches[-1] * 2]
        inside_b = {b: b in cell.batches or cell.hold == "B" for b in batches}
        found += [
            (n, b) for b in batches if compute >= n * b * (1 if inside and inside_b[b] else LEAST_STEPS)
        ]
    return found


def chosen(cell: Cell, law: isolaw.Law, compute: float) -> dict[str, list[int]]:
    """Return the (n, B_p) of every rival at a budget; without scikit-learn, of those that can do without."""
    surface = law.surface
    if surface is None:
        return {}
    places = allocations(cell, compute)
    u, v = np.log2(np.array(places, dtype=float)).T
    at = np.full(u.size, compute)
    inside = (u >= np.log2(cell.levels[0]) - 1e-9) & (u <= np.log2(cell.levels[-1]) + 1e-9)
    if cell.hold == "nothing":
        inside &= (v >= np.log2(cell.batches[0]) - 1e-9) & (v <= np.log2(cell.batches[-1]) + 1e-9)
    own = np.where(inside, surface.rewards(u, v, at)[1:], -np.inf)
    best = {"surface": _least_loss(own)}
    for member in law.pool.members:
        best[member.family] = _least_loss(member.rewards(u, v, at))
    if find_spec("sklearn") is not None:
        best["process"] = int(process(surface.process.observations, u, v, np.log(at)).argmax())
    return {name: list(places[i]) for name, i in best.items()}


def _least_loss(draws: Floats) -> int:
    return int((draws.max(axis=1, keepdims=True) - draws).mean(axis=0).argmin())


def process(observations: object, u: Floats, v: Floats, t: Floats) -> Floats:
    """Return predictions of scikit-learn's process, given the mean rewards that the surface is fitted to."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    o = observations
    axes = np.stack([o.log2_n, o.log2_b, o.t], axis=1)  # type: ignore[attr-defined]
    reward = o.reward  # type: ignore[attr-defined]
    new = np.stack([u, v, t], axis=1)
    varies = np.ptp(axes, axis=0) > 0
    axes, new = axes[:, varies], new[:, varies]
    line, *_ = np.linalg.lstsq(np.column_stack([np.ones(len(axes)), axes]), reward, rcond=None)
    left = reward - line[0] - axes @ line[1:]
    scale = max(float(left.std()), 1e-9)
    lengths = np.full(axes.shape[1], 2.0)
    kernel = ConstantKernel(1.0) * Matern(lengths, (0.1, 100.0), nu=2.5) + WhiteKernel(0.01, (1e-5, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = GaussianProcessRegressor(kernel, n_restarts_optimizer=1, random_state=0)
        model.fit(axes, left / scale)
    return np.asarray(line[0] + new @ line[1:] + scale * model.predict(new))


def isoflop(configurations: Sequence[Configuration], compute: float) -> float:
    """Return the best n at a budget by IsoFLOP profiles (Hoffmann et al., arXiv 2203.15556, 3.2).

    At each of `_PROFILES` budgets C_i of the last decade that three n reached, a parabola in log2 n through
    the mean rewards; n_i is its vertex, at most the outermost n, or the best n where it has no maximum.
    Then log n_i = a + b log C_i by least squares, and n(C) from it, within a quarter of the smallest to four
    times the largest.
    """
    ends = sorted((c.checkpoints[-1] for c in configurations), reverse=True)
    last = ends[2]
    first = max(last / 10, sorted(c.checkpoints[c.checkpoints > 0][0] for c in configurations)[2])
    budgets, found = np.geomspace(first, last, _PROFILES), []
    for budget in budgets:
        own = [c for c in configurations if c.checkpoints[0] <= budget <= c.checkpoints[-1] * (1 + 1e-9)]
        u = np.log2([c.rollouts_per_problem for c in own])
        reward = np.array([_smoothed(c, budget) for c in own])
        bend, slope, _ = np.polyfit(u, reward, 2) if len(own) > 2 else (0.0, 0.0, 0.0)
        vertex = -slope / (2 * bend) if bend < 0 else u[reward.argmax()]
        found.append(float(np.clip(vertex, u.min(), u.max())))
    rise, start = np.polyfit(np.log2(budgets), found, 1)
    n = np.array([c.rollouts_per_problem for c in configurations])
    return float(np.clip(2 ** (start + rise * np.log2(compute)), n.min() / REACH, n.max() * REACH))


def _smoothed(configuration: Configuration, budget: float) -> float:
    """Return the reward at a budget, by a line in log C through checkpoints within a factor of `_NEAR`."""
    c = configuration
    near = (c.compute >= budget / _NEAR) & (c.compute <= budget * _NEAR)
    if np.unique(c.compute[near]).size < 3:
        return float(np.interp(budget, c.checkpoints, c.mean))
    return float(np.polyfit(np.log(c.compute[near] / budget), c.reward[near], 1)[1])
