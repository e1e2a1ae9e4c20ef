"""Weight truths by their agreement with existing runs.

At each of L values of C at which at least two configurations were measured, contrasts are compared: reward
minus its mean over configurations, which removes levels, as they differ between problem sets. With y_cl the
measured contrast of configuration c at the l-th C, and m_cl the truth's, the weight w of the truth is

    log w = −½ · (T / L) Σ_l Σ_c (y_cl − m_cl)² / ((s² + σ²) / runs + misfit²)

where s² is the noise of an evaluation and σ the truth's standard deviation of a run. T is only 2, since
rewards at neighbouring C are not independent, and no truth is exactly right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isolaw.design.truths import Truth
from isolaw.fits.selection import Configuration, Floats

MISFIT = 0.01  # standard deviation of a contrast between runs and the best possible truth
_TEMPER = 2.0
_POINTS = 6
_LEAST = 2  # configurations needed at one C


def agreement(configurations: Sequence[Configuration], truths: Sequence[Truth], answers: int) -> Floats:
    """Return weights of truths, which sum to 1; equal weights if the runs cannot be compared.

    ``truths`` are over the cells of ``configurations``; ``answers`` is their number in an evaluation.
    """
    score = np.zeros(len(truths))
    firsts = [c.checkpoints[c.checkpoints > 0][0] for c in configurations]
    end = min(max((c.end for c in configurations), default=0.0), float(truths[0].compute[-1]))
    points = [
        at
        for at in np.geomspace(max(min(firsts, default=1.0), end / 100), end * (1 - 1e-9), _POINTS)
        if sum(_covers(c, at) for c in configurations) >= _LEAST
    ]
    for at in points:
        own = [c for c in configurations if _covers(c, at)]
        measured = np.array([np.interp(np.log(at), c.log_checkpoints, c.mean) for c in own])
        runs = np.array([c.runs for c in own])
        for i, truth in enumerate(truths):
            rows = [truth.cells.index(c.key) for c in own]
            mean, sigma = (
                np.array([np.interp(at, truth.compute, table[k]) for k in rows])
                for table in (truth.mean, truth.own)
            )
            noise = mean * (1 - mean) / max(answers, 1)
            away = (measured - measured.mean()) - (mean - mean.mean())
            score[i] -= (
                0.5 * _TEMPER / len(points) * np.sum(away**2 / ((noise + sigma**2) / runs + MISFIT**2))
            )
    weights = np.exp(score - score.max(initial=-np.inf))
    return np.asarray(weights / weights.sum())


def effective(weights: Floats) -> float:
    """Return 1 / Σ w², the number of equally likely truths with the same diversity."""
    return float(1 / np.sum(np.square(weights)))


def _covers(c: Configuration, at: float) -> bool:
    return bool(c.checkpoints[c.checkpoints > 0][0] <= at < c.end)
