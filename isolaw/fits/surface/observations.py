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

BINS, _LEAST_BINS = 14, 2
_MOST_OBSERVATIONS = 300  # approximate limit on the number of observations, as time grows with their cube
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
        weights = np.zeros((self.t.size, self.run_place.size))
        for k in np.unique(self.bin):
            of_bin = np.flatnonzero(self.bin == k)
            runs, _, _, shares = _combine_bin(self.counts[:, k], self.run_place, self.run_seed, self.kappa)
            weights[np.ix_(of_bin, runs)] = shares
        return weights

    def to_dict(self) -> dict[str, Any]:
        """Return the observations as JSON-able data, without the residuals, which only the fit needs."""
        values = {k: getattr(self, k) for k in self.__dataclass_fields__ if k not in ("residuals", "freedom")}
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in values.items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Observations:
        """Return the observations that `to_dict` encoded."""
        integers = ("run_place", "run_seed", "place", "bin")
        values: dict[str, Any] = {
            name: np.asarray(v, np.int64 if name in integers else np.float64) if isinstance(v, list) else v
            for name, v in data.items()
        }
        return cls(**values, residuals=np.empty((0, 0)), freedom=0.0)


def observe(configurations: Sequence[Configuration]) -> Observations:
    """Return the observations of the configurations, without their checkpoints at step 0."""
    seeds = sorted({seed for c in configurations for seed in c.seeds})
    run_place = np.repeat(np.arange(len(configurations)), [c.runs for c in configurations])
    run_seed = np.array([seeds.index(seed) for c in configurations for seed in c.seeds])
    t, reward, counts = _bin_runs(configurations, run_place)
    kappa = _FIRST_KAPPA
    for is_last in (False, True):
        bin_parts = [_combine_bin(counts[:, k], run_place, run_seed, kappa) for k in range(counts.shape[1])]
        estimates = [weights @ reward[runs, k] for k, (runs, _, _, weights) in enumerate(bin_parts)]
        residuals, effects, freedom = _residuals(bin_parts, estimates, reward, run_seed, kappa)
        residual_count = int(np.sum(~np.isnan(residuals)))
        if freedom < 1e-6 * residual_count:
            seed_variance, freedom = 0.0, 0.0
            break
        run_variance = float(np.nansum(residuals**2)) / freedom
        is_shared = np.sum(~np.isnan(effects), axis=0) > 1
        seed_variances = np.nanvar(effects[:, is_shared], axis=0, ddof=1) if is_shared.any() else np.zeros(1)
        seed_variance = float(seed_variances.mean()) if len(seeds) > 1 else 0.0
        if not is_last and len(seeds) > 1:
            kappa = float(np.clip(seed_variance / max(run_variance, 1e-300), *_KAPPA))
    place = np.concatenate([bin_places for _, bin_places, _, _ in bin_parts])
    bins = np.repeat(np.arange(len(bin_parts)), [bin_places.size for _, bin_places, _, _ in bin_parts])
    first_runs = np.concatenate(
        [runs[design.argmax(axis=0)] if runs.size else runs for runs, _, design, _ in bin_parts]
    )
    y = np.concatenate(estimates)
    bin_t = t[first_runs, bins]
    places = np.array([c.place for c in configurations])
    return Observations(
        places, run_place, run_seed, counts, place, bins, bin_t, y, kappa, seed_variance,
        _trend(place, bins, y), residuals, freedom / max(residual_count, 1),
    )  # fmt: skip


def _bin_runs(configurations: Sequence[Configuration], run_place: Ints) -> tuple[Floats, Floats, Floats]:
    """Return the mean t, the mean reward and the number of checkpoints of each run in each bin.

    Each array has shape (R, K). Means are NaN where a run has no checkpoints.
    """
    edges = _edges(configurations, max(min(BINS, _MOST_OBSERVATIONS // len(configurations)), _LEAST_BINS))
    bin_count = edges.size + 1
    counts, t, reward = (np.zeros((run_place.size, bin_count)) for _ in range(3))
    run_index = 0
    for c in configurations:
        for run in range(c.runs):
            rows = (c.run == run) & (c.compute > 0)
            log_c = np.log(c.compute[rows])
            bins = np.searchsorted(edges, log_c)
            counts[run_index] = np.bincount(bins, minlength=bin_count)
            t[run_index] = np.bincount(bins, log_c, minlength=bin_count)
            reward[run_index] = np.bincount(bins, c.reward[rows], minlength=bin_count)
            run_index += 1
    has_checkpoints = counts > 0
    t, reward = (np.where(has_checkpoints, v / np.maximum(counts, 1), np.nan) for v in (t, reward))
    for place in range(len(configurations)):  # move a configuration's runs to one t, along its own slope
        rows = np.flatnonzero(run_place == place)
        used_bins = np.flatnonzero(has_checkpoints[rows].any(axis=0))
        block = np.ix_(rows, used_bins)
        totals = counts[block].sum(axis=0)
        mean_t, mean_reward = (np.nansum(v[block] * counts[block], axis=0) / totals for v in (t, reward))
        slope = np.gradient(mean_reward, mean_t) if used_bins.size > 1 else np.zeros(1)
        reward[block] -= slope * (t[block] - mean_t)
        t[block] = np.where(has_checkpoints[block], mean_t, np.nan)
    return t, reward, counts


def _edges(configurations: Sequence[Configuration], size: int) -> Floats:
    """Return the inner edges of ``size`` bins of log C, within which rewards are nearly linear.

    Bin widths give equal weight to the range of log C and to the change of rewards over all configurations.
    """
    log_compute = [np.log(c.checkpoints[c.checkpoints > 0]) for c in configurations]
    low, high = min(t.min() for t in log_compute), max(t.max() for t in log_compute)
    fine_edges = np.linspace(low, high, 4 * size + 1)
    change = np.zeros(fine_edges.size - 1)
    for c, t in zip(configurations, log_compute, strict=True):
        fine_bins = np.clip(np.searchsorted(fine_edges, t) - 1, 0, change.size - 1)
        counts = np.bincount(fine_bins, minlength=change.size)
        used = np.flatnonzero(counts)
        mean = np.bincount(fine_bins, c.mean[c.checkpoints > 0], minlength=change.size)[used] / counts[used]
        centres = (fine_edges[used] + fine_edges[used + 1]) / 2
        change += np.gradient(np.interp(fine_edges, centres, mean))[:-1] if used.size > 1 else 0.0
    total_change = np.append(0.0, np.cumsum(np.abs(change)))
    position = np.linspace(0, 1, fine_edges.size)
    if total_change[-1] > 0:
        position = (position + total_change / total_change[-1]) / 2
    return np.interp(np.arange(1, size) / size, position, fine_edges)


def _combine_bin(counts: Floats, run_place: Ints, run_seed: Ints, kappa: float) -> BinPart:
    """Return one bin's runs, their configurations, the design X and the weights P."""
    runs = np.flatnonzero(counts > 0)
    places, place_index = np.unique(run_place[runs], return_inverse=True)
    design = np.eye(places.size)[place_index]
    seeds, shrinkage = _seed_matrix(run_seed[runs], kappa)
    # V⁻¹ = I − Z diag(κ / (1 + κ n_s)) Zᵀ, with n_s the number of runs of each seed.
    weighted = design.T - (design.T @ seeds * shrinkage) @ seeds.T
    return runs, places, design, np.asarray(np.linalg.solve(weighted @ design, weighted))


def _seed_matrix(run_seed: Ints, kappa: float) -> tuple[Floats, Floats]:
    """Return the matrix Z, of shape (R, S), and the factor κ / (1 + κ n_s) of each seed.

    The factor times the sum of a seed's residuals is the seed's effect.
    """
    seeds = np.eye(run_seed.max() + 1)[run_seed] if run_seed.size else np.zeros((0, 1))
    return seeds, kappa / (1 + kappa * seeds.sum(axis=0))


def _residuals(
    bin_parts: list[BinPart], estimates: list[Floats], reward: Floats, run_seed: Ints, kappa: float
) -> tuple[Floats, Floats, float]:
    """Return the residuals, the seed effects and the degrees of freedom.

    Residuals have shape (R, K) and seed effects (S, K); absent values are NaN.
    """
    residuals = np.full(reward.shape, np.nan)
    effects = np.full((run_seed.max() + 1, reward.shape[1]), np.nan)
    freedom = 0.0
    for k, ((runs, _, design, weights), estimate) in enumerate(zip(bin_parts, estimates, strict=True)):
        if not runs.size:
            continue
        seeds, shrinkage = _seed_matrix(run_seed[runs], kappa)
        bin_residuals = reward[runs, k] - design @ estimate
        effect = shrinkage * (seeds.T @ bin_residuals)
        effects[: effect.size, k] = np.where(seeds.any(axis=0), effect, np.nan)
        residuals[runs, k] = bin_residuals - seeds @ effect
        # The trace of X P, and the degrees of freedom that the seed effects use.
        used = shrinkage * (seeds.sum(axis=0) - np.einsum("sc,cs->s", seeds.T @ design, weights @ seeds))
        freedom += runs.size - estimate.size - float(used.sum())
    return residuals, effects, freedom


def _trend(place: Ints, bins: Ints, y: Floats) -> Floats:
    """Return the trend of the rewards, of shape (k,).

    It accumulates increments between neighbouring bins. Each increment is a mean over the configurations
    present in both bins, so the trend does not jump where configurations begin or end.
    """
    used_bins = np.unique(bins)
    levels = [float(y[bins == used_bins[0]].mean())]
    for earlier, later in pairwise(used_bins):
        old, new = (dict(zip(place[bins == k], y[bins == k], strict=True)) for k in (earlier, later))
        shared = sorted(set(old) & set(new))
        levels.append(levels[-1] + (float(np.mean([new[c] - old[c] for c in shared])) if shared else 0.0))
    return np.array(levels)
