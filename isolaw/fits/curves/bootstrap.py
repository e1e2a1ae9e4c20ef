"""Resample the mean learning curves of configurations.

The unit of resampling is the run, not the checkpoint, since a run's checkpoints are dependent. The model is

    y_cs(C) = μ_c(C) + a_s(C) + e_cs(C)        configuration c = (B_p, n), seed s

where y_cs is a run's reward and μ_c the configuration's mean. a_s is the effect that all runs of one seed
share (through their problem set and its order), and e_cs is the run's own effect (from its sampling and
evaluations). a_s cancels when n with the same seeds are compared; e_cs does not. A draw is

    y*_c = ȳ_c + mean over the seeds s of c [ Σ_t g_st a_t ] + Σ_d (h_cd / √S_c − h̄_d) e_d

where ȳ_c is the mean of the S_c runs of c, and g and h are Gaussian with variance 1/ν. The second sum is over
the residual curves e_d of *all* runs. Three seeds of nine configurations thus give (3 − 1)(9 − 1) = 16
degrees of freedom for all configurations together, instead of two for each. Pooling assumes that runs vary
equally at all configurations. The estimate of a_t is the mean deviation of a seed's runs, which contains a
share of the runs' own effects. The mean h̄ of h_cd / √S_c over configurations removes this share, so the
variances equal those of a two-way analysis of variance. With S seeds, the first sum has S − 1 degrees of
freedom. Each sum is multiplied by √(ν/χ²_ν), drawn once per draw, which turns normal intervals into Student's
t intervals with ν degrees of freedom.

If configurations share no seeds, a is zero. With one run per configuration there are no residuals between
seeds. If at least 3 degrees of freedom remain, e then contains the residuals of the curves from a smooth
surface over n (`hat`). Otherwise, blocks of a run's residuals about its own curve are drawn, which omits the
variation between runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.curves.learning_curves import Curves, fit_curves
from isolaw.fits.selection import Configuration, Floats, varies_in_batch

ResamplingUnit = Literal["run", "lack of fit", "block"]
Curve = tuple[Floats, Floats]  # log C, value
_CURVE_PARAMETERS = 3
_OCTAVES_PER_DEGREE = 2.0
_DEGREES = (2, 4)
_RANK = 1e-9  # threshold on singular values, relative to the largest; measured allocations far exceed it
_LEAST_FREEDOM = 3
# Larger factors from Student's t would distort fitted curves without affecting any quantile.
_MOST_INFLATED = 10.0


@dataclass(frozen=True)
class Effects:
    """The estimated deviations of runs from the means of their configurations."""

    # The seed effects a_s at the checkpoints of each configuration, (seeds, checkpoints).
    shared: list[Floats]
    of_runs: list[Curve]  # the residual curves e_d of all runs, each as (log C, residual)
    freedom: tuple[int, int]  # degrees of freedom of the shared effects and of the runs' own effects
    unit: ResamplingUnit  # the unit of resampling


def effects(configurations: list[Configuration], family: str) -> Effects:
    """Split the runs' deviations into seed effects and the runs' own effects."""
    deviations = [_deviations(c) for c in configurations]
    freedom = sum(max(len(per_run) - 1, 0) for per_run in deviations)
    if not freedom:
        return _single(configurations, family)
    counts = Counter(seed for per_run in deviations for seed in {seed for seed, _ in per_run})
    seeds = sorted(seed for seed, configuration_count in counts.items() if configuration_count > 1)
    seeds = seeds if len(seeds) > 1 else []
    at = [c.log_checkpoints for c in configurations]
    means = np.empty((len(seeds), sum(x.size for x in at)))
    for row, seed in zip(means, seeds, strict=True):
        curves = [curve for per_run in deviations for s, curve in per_run if s == seed]
        row[:] = sum(np.interp(np.concatenate(at), *curve) for curve in curves) / len(curves)
    shared, of_runs = np.split(means, np.cumsum([x.size for x in at])[:-1], axis=1), []
    for x, mean, per_run in zip(at, shared, deviations, strict=True):
        for seed, (log_c, deviation) in per_run:
            effect = np.interp(log_c, x, mean[seeds.index(seed)]) if seed in seeds else 0.0
            of_runs.append((log_c, deviation - effect))
    between = max(len(seeds) - 1, 0)
    return Effects(shared, of_runs, (between, max(freedom - between, 1)), "run")


def _deviations(c: Configuration) -> list[tuple[int, Curve]]:
    """Return each run's seed and its deviation from the mean of the runs, where at least two are present.

    Runs are interpolated, since their checkpoints can differ. (They always differ if compute is in tokens.)
    """
    runs = [(c.log_checkpoints[c.index[c.run == i]], c.reward[c.run == i]) for i in range(c.runs)]
    out = []
    for seed, (log_c, reward) in zip(c.seeds, runs, strict=True):
        at = np.array([np.interp(log_c, *run, left=np.nan, right=np.nan) for run in runs])
        together = np.sum(~np.isnan(at), axis=0) > 1
        if together.any():
            mean = np.nanmean(at[:, together], axis=0)
            out.append((seed, (log_c[together], reward[together] - mean)))
    return out


def _single(configurations: list[Configuration], family: str) -> Effects:
    """Return the effects for one run per configuration.

    The effects are residuals from a smooth surface over n. There are none if too few degrees of freedom
    remain.
    """
    nothing = [np.zeros((0, c.log_checkpoints.size)) for c in configurations]
    projection, freedom = hat(configurations)
    if freedom < _LEAST_FREEDOM:
        return Effects(nothing, [], (0, 0), "block")
    curves = [_curve(c, family) for c in configurations]
    of_runs = []
    for i, c in enumerate(configurations):
        at = np.array([_at(curve, c) for curve in curves])
        at[i] = c.mean
        of_runs.append((c.log_checkpoints, at[i] - projection[i] @ at))
    return Effects(nothing, of_runs, (0, freedom), "lack of fit")


def resample(
    configurations: list[Configuration], family: str, draws: int, seed: int
) -> tuple[list[Floats], ResamplingUnit]:
    """Draw the mean curves of all configurations of a fit ``draws`` times.

    ``family`` is the curve family used for the residuals of single runs. Returns the deviations from the mean
    of the runs, and the unit of resampling. Each configuration has an array of deviations of shape (1 + D, P)
    at its P distinct checkpoints; row 0 is zero.
    """
    spread = effects(configurations, family)
    rng = np.random.default_rng(seed)
    of_seeds, of_runs = (inflation(nu, draws, rng)[:, None] / np.sqrt(max(nu, 1)) for nu in spread.freedom)
    size = len(spread.shared[0])
    every = sorted({s for c in configurations for s in c.seeds})
    g = rng.standard_normal((draws, len(every), size)) * of_seeds[:, :, None]
    out = [np.zeros((1 + draws, c.log_checkpoints.size)) for c in configurations]
    if not draws:
        return out, spread.unit
    if spread.unit == "block":
        for shift, c in zip(out, configurations, strict=True):
            shift[1:] = _blocks(c, family, draws, stream(c, seed))
        return out, spread.unit
    donors = [_nearest(c.log_checkpoints, spread.of_runs) for c in configurations]
    several, twice = 0, np.zeros((draws, len(spread.of_runs)))  # not one array of all h, which would not fit
    for shift, c, a, residuals in zip(out, configurations, spread.shared, donors, strict=True):
        normal = stream(c, seed).standard_normal((draws, len(spread.of_runs))) * of_runs
        if size and c.runs > 1:
            several, twice = several + 1, twice + normal / np.sqrt(c.runs)
        mine = g[:, [every.index(s) for s in c.seeds]].mean(axis=1)
        shift[1:] = mine @ a + normal @ residuals / np.sqrt(_present(c))
    twice /= max(several, 1)
    for shift, residuals in zip(out, donors, strict=True):
        shift[1:] -= twice @ residuals
    return out, spread.unit


def inflation(freedom: int, draws: int, rng: np.random.Generator) -> Floats:
    """Return draws of √(ν/χ²_ν), the factor that turns a normal draw into Student's t with ν = ``freedom``.

    The array has shape (draws,).
    """
    if freedom < 1:
        return np.zeros(draws)
    return np.minimum(np.sqrt(freedom / rng.chisquare(freedom, draws)), _MOST_INFLATED)


def _block_index(size: int, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return resampled checkpoint indices of shape (draws, size), in circular blocks of about size^(1/3)."""
    length = max(1, round(size ** (1 / 3)))
    starts = rng.integers(0, size, (draws, -(-size // length)))
    return (starts[:, :, None] + np.arange(length)).reshape(draws, -1)[:, :size] % size


def _present(c: Configuration) -> Floats:
    """Return the number of runs that had started and not yet ended at each of the P checkpoints."""
    runs = [c.of_run(run)[0] for run in range(c.runs)]
    return np.sum(
        [(c.checkpoints >= r.min()) & (c.checkpoints <= r.max()) for r in runs], axis=0, dtype=float
    )


def _nearest(at: Floats, curves: Sequence[Curve]) -> Floats:
    """Return the values of R curves at their checkpoints nearest to ``at`` (P,), as an array of shape (R, P).

    Interpolation would average out part of the noise.
    """
    out = np.empty((len(curves), at.size))
    for row, (log_c, values) in zip(out, curves, strict=True):
        right = np.clip(log_c.searchsorted(at), 1, log_c.size - 1)
        row[:] = values[right - (at - log_c[right - 1] < log_c[right] - at)]
    return out


def stream(configuration: Configuration, seed: int) -> np.random.Generator:
    """Return the random generator of a configuration, which does not depend on the other configurations."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=configuration.key))


def _blocks(c: Configuration, family: str, draws: int, rng: np.random.Generator) -> Floats:
    """Draw blocks of residuals about the fitted curve, to add to the mean, with shape (draws, P)."""
    size = c.mean.size
    residuals = (c.mean - _at(_curve(c, family), c)) * np.sqrt(size / max(size - _CURVE_PARAMETERS, 1))
    return np.asarray(residuals[_block_index(size, draws, rng)])


def _curve(c: Configuration, family: str) -> Curves:
    return fit_curves(c.checkpoints, c.mean[None], np.ones((1, c.mean.size)), family)


def _at(curve: Curves, c: Configuration) -> Floats:
    """Evaluate a curve at the checkpoints of ``c``.

    A power law is undefined at C = 0, so it is evaluated at the exponential of `log_checkpoints`.
    """
    return curve(np.exp(c.log_checkpoints) if curve.family == "power" else c.checkpoints)[0]


def hat(configurations: Sequence[Configuration]) -> tuple[Floats, int]:
    """Return the projection matrix of rewards onto a smooth surface, and the residual degrees of freedom.

    The matrix has shape (N, N). The surface is a polynomial in u = log2 n and v = log2 B_p with coefficients
    α_i and β_j: Σ_{i ≤ p} α_i u^i, plus β_1 v + β_2 v² + β_3 u v if B_p varies independently of n. It is
    fitted by least squares weighted by the number of runs. Its degree p is half the number of measured
    doublings of n, within 2 to 4.
    """
    u, v = np.array([c.place for c in configurations]).T
    if not varies_in_batch(u, v):
        v = np.zeros_like(u)
    terms = exponents(u, v)
    values = np.stack([(u - u.mean()) ** i * (v - v.mean()) ** j for i, j in terms], axis=1)
    root = np.sqrt([float(c.runs) for c in configurations])
    return values @ (np.linalg.pinv(values * root[:, None]) * root), len(configurations) - len(terms)


def exponents(u: Floats, v: Floats) -> list[tuple[int, int]]:
    """Return the exponents of (u, v) in the terms that these points determine.

    If the points do not determine all terms, terms of the highest degree are dropped first.
    """
    levels, batches = np.unique(u).size, np.unique(v).size
    # Rounding removes the rounding errors of the logarithms, so five doublings count as exactly five.
    degree = int(np.clip(round(round(float(np.ptp(u)), 9) / _OCTAVES_PER_DEGREE), *_DEGREES))
    out = [(i, 0) for i in range(min(degree, levels - 1) + 1)]
    out += [(0, 1), (1, 1)] if batches > 1 else []
    out += [(0, 2)] if batches > 2 else []
    u, v = u - u.mean(), v - v.mean()
    while np.linalg.matrix_rank(np.stack([u**i * v**j for i, j in out], axis=1), rtol=_RANK) < len(out):
        out.remove(max(out, key=lambda e: (e[0] + e[1], e[0])))
    return out
