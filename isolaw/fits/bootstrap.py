"""Resampling: what varies from draw to draw.

The unit is the run, never the checkpoint: checkpoints of one run are dependent. The model is

    y_cs(C) = μ_c(C) + a_s(C) + e_cs(C)        configuration c = (B_p, n), seed s

where a_s is what runs of one seed share over configurations (their problem set and its order), and
e_cs is the run's own: its sampling and its evaluations. a_s moves all curves alike, so it matters for a
reward and cancels in a comparison of n; e_cs does not cancel. A draw is

    y*_c = ȳ_c + Σ_s g_s a_s + Σ_d h_cd e_d

with Gaussian g and h: the second sum is over the residual curves d of *all* runs, so that three seeds
of nine configurations give (3 − 1)(9 − 1) = 16 degrees of freedom instead of two, nine times over. That
assumes that runs vary alike at all configurations. The first term's variance comes from S − 1 degrees
of freedom. Each is multiplied by √(ν/χ²_ν), drawn anew in each draw, which turns normal intervals into
Student's t with ν degrees of freedom: the small-sample correction. Whatever is computed from y*, the whole
of it is computed anew.

Where seeds are not shared between configurations, a is zero. With one run for each configuration there
are no residuals between seeds; then e is what a smooth surface over n leaves of the curves
(`isolaw.fits.surface`), if at least 3 degrees of freedom remain, and otherwise a run's residuals about
its own curve, in blocks: the latter leaves out the variation between runs, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.curves import fit_curves
from isolaw.fits.select import Configuration, Floats
from isolaw.fits.surface import hat

Unit = Literal["run", "lack of fit", "block"]
_CURVE_PARAMETERS = 3
_LEAST_FREEDOM = 3
# A draw of Student's t beyond this many times the normal one would bend curves, and moves no quantile.
_MOST_INFLATED = 10.0


@dataclass(frozen=True)
class Effects:
    """What the runs of a fit differ by.

    Attributes
    ----------
    shared
        for each configuration, the effects a_s of the seeds at its checkpoints, (seeds, checkpoints).
    own
        the residual curves e_d of all runs, each as (log C, residual).
    freedom
        degrees of freedom of the two.
    unit
        what the residuals stand for.
    """

    shared: list[Floats]
    own: list[tuple[Floats, Floats]]
    freedom: tuple[int, int]
    unit: Unit


def effects(configurations: list[Configuration], family: str) -> Effects:
    """Split the runs' deviations into what a seed shares and what is a run's own."""
    runs = sum(c.runs for c in configurations)
    if runs == len(configurations):
        return _single(configurations, family)
    deviations = [_deviations(c) for c in configurations]
    seeds = _shared_seeds(configurations)
    shared = [_seed_effects(c, configurations, deviations, seeds) for c in configurations]
    own = []
    for c, per_run, a in zip(configurations, deviations, shared, strict=True):
        if c.runs < 2:
            continue
        for seed, (log_c, deviation) in zip(c.seeds, per_run, strict=True):
            effect = np.interp(log_c, c.log_checkpoints, a[seeds.index(seed)]) if seed in seeds else 0.0
            own.append((log_c, deviation - effect))
    between = max(len(seeds) - 1, 0)
    return Effects(shared, own, (between, max(runs - len(configurations) - between, 1)), "run")


def _deviations(c: Configuration) -> list[tuple[Floats, Floats]]:
    """Each run's checkpoints less the mean of its configuration's runs there."""
    out = []
    for run in range(c.runs):
        mine = c.run == run
        at = indices(c)[mine]
        out.append((c.log_checkpoints[at], c.reward[mine] - c.mean[at]))
    return out


def _shared_seeds(configurations: list[Configuration]) -> list[int]:
    """The seeds that at least two configurations with several runs were run with."""
    several = [c for c in configurations if c.runs > 1]
    seeds = sorted({s for c in several for s in c.seeds})
    often = [s for s in seeds if sum(s in c.seeds for c in several) > 1]
    return often if len(often) > 1 else []


def _seed_effects(
    c: Configuration,
    configurations: list[Configuration],
    deviations: list[list[tuple[Floats, Floats]]],
    seeds: list[int],
) -> Floats:
    """a_s at the checkpoints of ``c``: the mean deviation of the runs of seed s, (seeds, checkpoints)."""
    out = np.zeros((len(seeds), c.log_checkpoints.size))
    for i, seed in enumerate(seeds):
        members = [
            per_run[other.seeds.index(seed)]
            for other, per_run in zip(configurations, deviations, strict=True)
            if other.runs > 1 and seed in other.seeds
        ]
        out[i] = np.mean([np.interp(c.log_checkpoints, *member) for member in members], axis=0)
    return out


def _single(configurations: list[Configuration], family: str) -> Effects:
    """One run each: residuals from a surface over n, or from each run's own curve."""
    nothing = [np.zeros((0, c.log_checkpoints.size)) for c in configurations]
    projection, freedom = hat(configurations)
    if freedom < _LEAST_FREEDOM:
        return Effects(nothing, [], (0, 0), "block")
    curves = [
        fit_curves(c.checkpoints, c.mean[None], np.ones((1, c.mean.size)), family) for c in configurations
    ]
    own = []
    for i, c in enumerate(configurations):
        at = np.array([curve(c.checkpoints)[0] for curve in curves])
        at[i] = c.mean
        own.append((c.log_checkpoints, at[i] - projection[i] @ at))
    return Effects(nothing, own, (0, freedom), "lack of fit")


@dataclass(frozen=True)
class Sample:
    """One configuration's checkpoints in 1 + D versions, the data first.

    Attributes
    ----------
    compute
        distinct checkpoints, (P,).
    shift
        what a draw adds to the mean of the runs, (1 + D, P); row 0 is zero.
    """

    compute: Floats
    shift: Floats


def resample(
    configurations: list[Configuration], family: str, draws: int, seed: int
) -> tuple[list[Sample], Unit]:
    """Draw the mean curves of all configurations ``draws`` times.

    Parameters
    ----------
    configurations
        of one fit.
    family
        the learning curve about which a single run's residuals are taken.
    draws, seed
        how often, and the stream.

    Returns
    -------
    One `Sample` for each configuration, and what was resampled.
    """
    found = effects(configurations, family)
    rng = np.random.default_rng(seed)
    inflation = [_inflation(nu, draws, rng) for nu in found.freedom]
    seeds = len(found.shared[0])
    g = rng.standard_normal((draws, seeds)) * inflation[0][:, None]
    if seeds:
        g /= np.sqrt(seeds * max(found.freedom[0], 1))
    out = []
    for c, a in zip(configurations, found.shared, strict=True):
        own_rng = stream(c, seed)
        shift = np.zeros((1 + draws, c.log_checkpoints.size))
        if draws and found.unit == "block":
            shift[1:] = _blocks(c, family, draws, own_rng)
        elif draws:
            donors = np.array([_nearest(c.log_checkpoints, *curve) for curve in found.own])
            h = own_rng.standard_normal((draws, len(donors))) * inflation[1][:, None]
            shift[1:] = g @ a + h @ donors / np.sqrt(found.freedom[1] * c.runs)
        out.append(Sample(c.checkpoints, shift))
    return out, found.unit


def _inflation(freedom: int, draws: int, rng: np.random.Generator) -> Floats:
    """√(ν/χ²_ν): what makes a normal draw one of Student's t."""
    if freedom < 1:
        return np.zeros(draws)
    return np.minimum(np.sqrt(freedom / rng.chisquare(freedom, draws)), _MOST_INFLATED)


def _nearest(at: Floats, log_c: Floats, values: Floats) -> Floats:
    """Values at the nearest checkpoint: interpolation would average the evaluations' noise away."""
    right = np.clip(np.searchsorted(log_c, at), 1, log_c.size - 1)
    left = right - 1
    return values[np.where(at - log_c[left] < log_c[right] - at, left, right)]


def stream(configuration: Configuration, seed: int) -> np.random.Generator:
    """The draws' stream of one configuration, whatever other configurations there are."""
    key = (configuration.problems_per_batch, configuration.rollouts_per_problem)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def _blocks(c: Configuration, family: str, draws: int, rng: np.random.Generator) -> Floats:
    """The residuals about the fitted curve, in circular blocks of about P^(1/3) checkpoints."""
    size = c.mean.size
    curve = fit_curves(c.checkpoints, c.mean[None], np.ones((1, size)), family)
    fitted = curve(c.checkpoints)[0]
    residuals = (c.mean - fitted) * np.sqrt(size / max(size - _CURVE_PARAMETERS, 1))
    length = max(1, round(size ** (1 / 3)))
    starts = rng.integers(0, size, (draws, -(-size // length)))
    index = (starts[:, :, None] + np.arange(length)).reshape(draws, -1)[:, :size] % size
    return np.asarray(fitted - c.mean + residuals[index])


def indices(c: Configuration) -> NDArray[np.int64]:
    """Return which distinct checkpoint each of a configuration's rows is, (rows,)."""
    return np.searchsorted(c.checkpoints, c.compute)
