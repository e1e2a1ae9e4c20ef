"""Noise about a truth: effects shared by runs of one seed, a run's own effect, and evaluation noise.

By default a standard deviation of .017 shared by all runs of a seed, .005 of a run's own, and the binomial
error of 300 problems with 4 samples, .014 at each checkpoint. (300 seeds of the simulator's easy set: .021
shared, .009 for the rest.) Effects vary slowly along log C. A run's own effect grows from 0: at C = 0 all
runs are one policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

Floats = NDArray[np.float64]

SAMPLES = 4  # of each validation problem
_KNOTS = np.arange(2.0, 9.0, 0.5)  # of log10 C
_WIDTH = 0.6  # decades over which a slow effect stays alike
_DRIFT = 0.98  # from one checkpoint to the next


@dataclass(frozen=True)
class Noise:
    """Sizes are standard deviations of reward.

    Attributes
    ----------
    shared, own
        of effects of the seed and of the run.
    drift
        of a further effect of the run, AR(.98) along its checkpoints.
    power
        own effect and evaluation noise go as (n / 64)^power.
    problems
        validation problems.
    missing
        share of runs that are missing or crashed on the way.
    diverging
        share of runs that lose most of what they learnt at some point, for good.
    """

    shared: float = 0.017
    own: float = 0.005
    drift: float = 0.0
    power: float = 0.0
    problems: int = 300
    missing: float = 0.0
    diverging: float = 0.0


KINDS = {
    "white": Noise(),
    "drift": Noise(drift=0.01),
    "shrinking": Noise(power=-0.25),
    "shared": Noise(shared=0.034),
    "few_problems": Noise(problems=100),
    "missing": Noise(missing=0.3),
    "diverging": Noise(diverging=0.15),
}


def slow(rng: np.random.Generator, compute: Floats, rows: int, constant: float) -> Floats:
    """Return functions of C with variance 1, (rows, P); ``constant`` is the share that does not vary."""
    x = np.log10(np.maximum(compute, 1e2))
    weights = np.exp(-0.5 * ((x[:, None] - _KNOTS) / _WIDTH) ** 2)
    weights /= np.linalg.norm(weights, axis=1, keepdims=True)
    varying = rng.standard_normal((rows, _KNOTS.size)) @ weights.T
    fixed = rng.standard_normal((rows, 1))
    return np.sqrt(constant) * fixed + np.sqrt(1 - constant) * varying


def rewards(
    noise: Noise,
    rng: np.random.Generator,
    mean: Floats,
    compute: Floats,
    n: int,
    seeds: Floats,
) -> Floats:
    """Return the measured rewards of the runs of one configuration.

    Parameters
    ----------
    mean, compute
        the truth and C at the checkpoints, (P,).
    seeds
        effects of the seeds at the same checkpoints, variance 1, (seeds, P).

    Returns
    -------
    avg@4, (seeds, P), in [0, 1].
    """
    rows, points = seeds.shape
    factor = (n / 64) ** noise.power
    own = noise.own * slow(rng, compute, rows, constant=0.5)
    if noise.drift:
        steps = rng.standard_normal((rows, points)) * np.sqrt(1 - _DRIFT**2)
        steps[:, 0] = rng.standard_normal(rows)
        own = own + noise.drift * lfilter([1.0], [1.0, -_DRIFT], steps, axis=1)
    trained = -np.expm1(-compute / 3e4)
    # Where nearly nothing (or all) is solved, problem sets and runs can differ by little.
    room = np.minimum(np.sqrt(mean * (1 - mean)) / 0.45, 1.0)
    effect = noise.shared * seeds + factor * own * trained
    if noise.diverging:
        at = np.exp(rng.uniform(np.log(3e4), np.log(compute.max() + 3e4), rows))
        kept = np.where(rng.random(rows) < noise.diverging, rng.uniform(0.1, 0.6, rows), 1.0)
        mean = np.where(compute > at[:, None], mean[0] + kept[:, None] * (mean - mean[0]), mean)
    p = np.clip(mean + room * effect, 0.0, 1.0)
    answers = noise.problems * SAMPLES
    measured = rng.binomial(answers, p, size=p.shape) / answers
    return np.clip(p + factor * (measured - p), 0.0, 1.0)
