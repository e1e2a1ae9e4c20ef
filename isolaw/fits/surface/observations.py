"""Combine runs into observations of the surface: the reward of each configuration in bins of log C.

The reward y_cs of a run of configuration c and seed s is the configuration's reward r_c, an effect a_s that
all runs of the seed share, and the run's own effect e_cs:

    y_cs(t) = r_c(t) + a_s(t) + e_cs(t),    t = log C

In each bin of t, r_c = P y is estimated from the runs present by generalised least squares with random seed
effects: P = (Xᵀ V⁻¹ X)⁻¹ Xᵀ V⁻¹, V = κ Z Zᵀ + I. X assigns runs to configurations, Z assigns runs to seeds,
and κ is the ratio of the variances of a_s and e_cs. If all configurations have the same seeds, P computes
means. If some runs are missing, a seed's effect is estimated from its other runs. Since P is linear, the
covariance of the estimates is known exactly even if runs are missing (`isolaw.fits.surface.model`). The
residuals of this fit, without the seeds' effects, show how runs vary.

Bins only save time. Bins are narrow where rewards change, and average the checkpoints within them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.selection import Configuration, Floats

Ints = NDArray[np.int64]
BinPart = tuple[Ints, Ints, Floats, Floats]  # one bin's runs, their configurations, X and P

BINS, _FEWEST = 14, 2
_MOST = 300  # approximate limit on the number of observations, as time grows with their cube
_KAPPA = (0.05, 1000.0)  # limits of κ
_FIRST_KAPPA = 10.0


@dataclass(frozen=True)
class Observations:
    """The data that a surface is fitted to: O observations of N configurations from R runs in K bins."""

    places: Floats  # log2 n and log2 B_p of the configurations, (N, 2)
    # Indices of the configuration and of the seed of each run, (R,).
    run_place: Ints
    run_seed: Ints
    counts: Floats  # number of checkpoints of a run in a bin, (R, K)
    # Configuration, bin, log C and reward of each observation, (O,).
    place: Ints
    bin: Ints
    t: Floats
    reward: Floats
    kappa: float  # the κ used to combine runs
    seed_variance: float  # variance of the seeds' effects; 0 with one seed
    trend: Floats  # mean reward of all configurations in each bin with observations, (k,)
    residuals: Floats  # residual of each run in each bin, (R, K), NaN if it has no checkpoint there
    freedom: float  # degrees of freedom per residual; 0 without residuals

    @property
    def log2_n(self) -> Floats:
        """The log2 n of each observation, of shape (O,)."""
        return np.asarray(self.places[self.place, 0])

    @property
    def log2_b(self) -> Floats:
        """The log2 B_p of each observation, of shape (O,)."""
        return np.asarray(self.places[self.place, 1])

    @cached_property
    def combined(self) -> Floats:
        """P as one matrix of shape (O, R): the weight of each run in each observation."""
        out = np.zeros((self.t.size, self.run_place.size))
        for k in np.unique(self.bin):
            rows_of_bin = np.flatnonzero(self.bin == k)
            rows, _, _, weights = _combine(self.counts[:, k], self.run_place, self.run_seed, self.kappa)
            out[np.ix_(rows_of_bin, rows)] = weights
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the observations as JSON-able data, without the residuals, which only the fit needs."""
        values = {k: getattr(self, k) for k in self.__dataclass_fields__ if k not in ("residuals", "freedom")}
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Observations:
        """Return the observations that `to_dict` encoded."""
        whole = ("run_place", "run_seed", "place", "bin")
        values: dict[str, Any] = {
            name: np.asarray(v, dtype=np.int64 if name in whole else np.float64) if isinstance(v, list) else v
            for name, v in data.items()
        }
        return cls(**values, residuals=np.empty((0, 0)), freedom=0.0)


def observe(configurations: Sequence[Configuration]) -> Observations:
    """Return the observations of the configurations, without their checkpoints at step 0."""
    seeds = sorted({s for c in configurations for s in c.seeds})
    run_place = np.repeat(np.arange(len(configurations)), [c.runs for c in configurations])
    run_seed = np.array([seeds.index(s) for c in configurations for s in c.seeds])
    t, reward, counts = _binned(configurations, run_place)
    kappa = _FIRST_KAPPA
    for last in (False, True):
        parts = [_combine(counts[:, k], run_place, run_seed, kappa) for k in range(counts.shape[1])]
        estimates = [weights @ reward[rows, k] for k, (rows, _, _, weights) in enumerate(parts)]
        residuals, effects, freedom = _left(parts, estimates, reward, run_seed, kappa)
        total = int(np.sum(~np.isnan(residuals)))
        if freedom < 1e-6 * total:
            variance, freedom = 0.0, 0.0
            break
        within = float(np.nansum(residuals**2)) / freedom
        present = np.sum(~np.isnan(effects), axis=0) > 1
        between = np.nanvar(effects[:, present], axis=0, ddof=1) if present.any() else np.zeros(1)
        variance = float(between.mean()) if len(seeds) > 1 else 0.0
        if not last and len(seeds) > 1:
            kappa = float(np.clip(variance / max(within, 1e-300), *_KAPPA))
    place = np.concatenate([here for _, here, _, _ in parts])
    bins = np.repeat(np.arange(len(parts)), [here.size for _, here, _, _ in parts])
    first = np.concatenate(
        [rows[design.argmax(axis=0)] if rows.size else rows for rows, _, design, _ in parts]
    )
    y = np.concatenate(estimates)
    at = t[first, bins]
    places = np.array([c.place for c in configurations])
    return Observations(
        places, run_place, run_seed, counts, place, bins, at, y, kappa, variance, _trend(place, bins, y),
        residuals, freedom / max(total, 1),
    )  # fmt: skip


def _binned(configurations: Sequence[Configuration], run_place: Ints) -> tuple[Floats, Floats, Floats]:
    """Return the mean t, the mean reward and the number of checkpoints of each run in each bin.

    Each array has shape (R, K). Means are NaN where a run has no checkpoints.
    """
    edges = _edges(configurations, max(min(BINS, _MOST // len(configurations)), _FEWEST))
    size = edges.size + 1
    counts, t, reward = (np.zeros((run_place.size, size)) for _ in range(3))
    row = 0
    for c in configurations:
        for run in range(c.runs):
            rows = (c.run == run) & (c.compute > 0)
            log_c = np.log(c.compute[rows])
            k = np.searchsorted(edges, log_c)
            counts[row] = np.bincount(k, minlength=size)
            t[row] = np.bincount(k, log_c, minlength=size)
            reward[row] = np.bincount(k, c.reward[rows], minlength=size)
            row += 1
    there = counts > 0
    t, reward = (np.where(there, v / np.maximum(counts, 1), np.nan) for v in (t, reward))
    for place in range(len(configurations)):  # move a configuration's runs to one t, along its own slope
        rows = np.flatnonzero(run_place == place)
        known = np.flatnonzero(there[rows].any(axis=0))
        at = np.ix_(rows, known)
        total = counts[at].sum(axis=0)
        mean_t, mean = (np.nansum(v[at] * counts[at], axis=0) / total for v in (t, reward))
        slope = np.gradient(mean, mean_t) if known.size > 1 else np.zeros(1)
        reward[at] -= slope * (t[at] - mean_t)
        t[at] = np.where(there[at], mean_t, np.nan)
    return t, reward, counts


def _edges(configurations: Sequence[Configuration], size: int) -> Floats:
    """Return the inner edges of ``size`` bins of log C, within which rewards are nearly linear.

    Bin widths give equal weight to the range of log C and to the change of rewards over all configurations.
    """
    after = [np.log(c.checkpoints[c.checkpoints > 0]) for c in configurations]
    low, high = min(t.min() for t in after), max(t.max() for t in after)
    fine = np.linspace(low, high, 4 * size + 1)
    change = np.zeros(fine.size - 1)
    for c, t in zip(configurations, after, strict=True):
        k = np.clip(np.searchsorted(fine, t) - 1, 0, change.size - 1)
        looks = np.bincount(k, minlength=change.size)
        known = np.flatnonzero(looks)
        mean = np.bincount(k, c.mean[c.checkpoints > 0], minlength=change.size)[known] / looks[known]
        at = (fine[known] + fine[known + 1]) / 2
        change += np.gradient(np.interp(fine, at, mean))[:-1] if known.size > 1 else 0.0
    moved = np.append(0.0, np.cumsum(np.abs(change)))
    share = np.linspace(0, 1, fine.size)
    if moved[-1] > 0:
        share = (share + moved / moved[-1]) / 2
    return np.interp(np.arange(1, size) / size, share, fine)


def _combine(counts: Floats, run_place: Ints, run_seed: Ints, kappa: float) -> BinPart:
    """Return one bin's runs, their configurations, the design X and the weights P."""
    rows = np.flatnonzero(counts > 0)
    here, column = np.unique(run_place[rows], return_inverse=True)
    design = np.eye(here.size)[column]
    seed, shrunk = _of_seeds(run_seed[rows], kappa)
    # V⁻¹ = I − Z diag(κ / (1 + κ n_s)) Zᵀ, with n_s the number of runs of each seed.
    weighted = design.T - (design.T @ seed * shrunk) @ seed.T
    return rows, here, design, np.asarray(np.linalg.solve(weighted @ design, weighted))


def _of_seeds(run_seed: Ints, kappa: float) -> tuple[Floats, Floats]:
    """Return the matrix Z, of shape (R, S), and the factor κ / (1 + κ n_s) of each seed.

    The factor times the sum of a seed's residuals is the seed's effect.
    """
    seed = np.eye(run_seed.max() + 1)[run_seed] if run_seed.size else np.zeros((0, 1))
    return seed, kappa / (1 + kappa * seed.sum(axis=0))


def _left(
    parts: list[BinPart], estimates: list[Floats], reward: Floats, run_seed: Ints, kappa: float
) -> tuple[Floats, Floats, float]:
    """Return the residuals, the seed effects and the degrees of freedom.

    Residuals have shape (R, K) and seed effects (S, K); absent values are NaN.
    """
    residuals = np.full(reward.shape, np.nan)
    effects = np.full((run_seed.max() + 1, reward.shape[1]), np.nan)
    freedom = 0.0
    for k, ((rows, _, design, weights), estimate) in enumerate(zip(parts, estimates, strict=True)):
        if not rows.size:
            continue
        seed, shrunk = _of_seeds(run_seed[rows], kappa)
        left = reward[rows, k] - design @ estimate
        effect = shrunk * (seed.T @ left)
        effects[: effect.size, k] = np.where(seed.any(axis=0), effect, np.nan)
        residuals[rows, k] = left - seed @ effect
        # The trace of X P, and the degrees of freedom that the seed effects use.
        taken = shrunk * (seed.sum(axis=0) - np.einsum("sc,cs->s", seed.T @ design, weights @ seed))
        freedom += rows.size - estimate.size - float(taken.sum())
    return residuals, effects, freedom


def _trend(place: Ints, bins: Ints, y: Floats) -> Floats:
    """Return the trend of the rewards, of shape (k,).

    It accumulates increments between neighbouring bins. Each increment is a mean over the configurations
    present in both bins, so the trend does not jump where configurations begin or end.
    """
    known = np.unique(bins)
    level = [float(y[bins == known[0]].mean())]
    for before, after in pairwise(known):
        old, new = (dict(zip(place[bins == k], y[bins == k], strict=True)) for k in (before, after))
        both = sorted(set(old) & set(new))
        level.append(level[-1] + (float(np.mean([new[c] - old[c] for c in both])) if both else 0.0))
    return np.array(level)
