"""Weight truths by their agreement with existing runs.

isolaw compares contrasts: the reward of a configuration minus the mean over configurations. The mean is
removed because it depends on the problem set. The comparison uses L values of C where at least two
configurations were measured. Let y_cl be the measured contrast of configuration c at the l-th C, and m_cl its
contrast in a truth. The weight w of the truth is

    log w = −½ · (T / L) Σ_l Σ_c (y_cl − m_cl)² / ((s² + σ²) / runs + misfit²)

where s² is the variance of an evaluation and σ the standard deviation of a run in the truth. T, the number of
values of C that count as independent, is only 2, because rewards at neighbouring C are correlated and no
truth is exactly right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isolaw.design.truths import Truth
from isolaw.fits.selection import Configuration, Floats

MISFIT = 0.01  # standard deviation of the difference in contrast between runs and the best truth
_TEMPER = 2.0
_POINTS = 6
_LEAST = 2  # configurations required at one C


def agreement(configurations: Sequence[Configuration], truths: Sequence[Truth], answers: int) -> Floats:
    """Return the weights of truths. They sum to 1, and are equal if the runs allow no comparison.

    ``truths`` must contain the cells of ``configurations``. ``answers`` is the number of answers in one
    evaluation of the runs.
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
    """Return 1 / Σ w², the effective number of truths: N truths with equal weights give N."""
    return float(1 / np.sum(np.square(weights)))


def _covers(c: Configuration, at: float) -> bool:
    return bool(c.checkpoints[c.checkpoints > 0][0] <= at < c.end)
