"""Two simple rules for n, which need no model: the best measured n, and IsoFLOP profiles.

`predict` shows what they choose beside its own answer, and `isolaw.fits.studies.backtest` what they lose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isolaw.allocation import BatchShape, axis_of
from isolaw.fits.selection import LEAST_CURVES, Configuration

_PROFILES = 8
_NEAR_FACTOR = 1.5  # checkpoints within this factor of a budget determine the reward there
_REACH = 4.0  # IsoFLOP extends from 1/4 of the smallest to 4 times the largest measured n


@dataclass(frozen=True)
class SimpleRules:
    """The choices of two rules: values of n, or of B_p if all runs have the same n."""

    best_measured: int  # has the highest mean at the compute that three configurations reached
    best: BatchShape  # the (B_p, n) that has it
    isoflop: tuple[float, float] | None  # a and b of log2 n = a + b log2 C; None for fewer than 3 n
    limits: tuple[float, float]  # the smallest and largest n that IsoFLOP may choose

    def choices(self, compute: float) -> dict[str, float]:
        """Return what each rule chooses for the budget C.

        >>> SimpleRules(16, (32, 16), (-6.0, 0.5), (2.0, 256.0)).choices(2.0**20)
        {'best_measured': 16, 'isoflop': 16.0}
        """
        choices: dict[str, float] = {"best_measured": self.best_measured}
        if self.isoflop is not None:
            start, rise = self.isoflop
            choices["isoflop"] = float(np.clip(np.exp2(start + rise * np.log2(compute)), *self.limits))
        return choices


def simple_rules(configurations: Sequence[Configuration]) -> SimpleRules:
    """Return the choices of both rules from these runs.

    The best measured configuration is among those that reached the compute that three did, and has the
    highest mean over the last tenth of the checkpoints up to there.

    IsoFLOP (Hoffmann et al. 2022, arXiv 2203.15556, section 3.2): at each of 8 budgets C_i of the last decade
    that three n reached, fit a parabola in log2 n to the rewards. n_i is its vertex, or the best n if the
    parabola has no maximum. Then fit log2 n_i = a + b log2 C_i.
    """
    axis = axis_of(configurations)
    high = sorted((c.checkpoints[-1] for c in configurations), reverse=True)[:LEAST_CURVES][-1]
    best = max((c for c in configurations if c.end >= high), key=lambda c: _last_mean(c, high))
    levels = np.array([c.level(axis) for c in configurations])
    limits = float(levels.min() / _REACH), float(levels.max() * _REACH)
    if np.unique(levels).size < LEAST_CURVES:
        return SimpleRules(best.level(axis), best.key, None, limits)
    low = sorted(c.checkpoints[c.checkpoints > 0][0] for c in configurations)[LEAST_CURVES - 1]
    budgets, vertices = np.geomspace(max(high / 10, low), high, _PROFILES), []
    for budget in budgets:
        covering = [c for c in configurations if c.checkpoints[0] <= budget <= c.checkpoints[-1] * (1 + 1e-9)]
        if not covering:  # between runs that share no compute
            return SimpleRules(best.level(axis), best.key, None, limits)
        log2_n = np.log2([c.level(axis) for c in covering])
        reward = np.array([_reward_near(c, float(budget)) for c in covering])
        is_enough = np.unique(log2_n).size >= LEAST_CURVES
        bend, slope, _ = np.polyfit(log2_n, reward, 2) if is_enough else (0.0, 0.0, 0.0)
        vertex = -slope / (2 * bend) if bend < 0 else log2_n[reward.argmax()]
        vertices.append(float(np.clip(vertex, log2_n.min(), log2_n.max())))
    rise, start = np.polyfit(np.log2(budgets), vertices, 1) if high > low else (0.0, vertices[-1])
    return SimpleRules(best.level(axis), best.key, (float(start), float(rise)), limits)


def _last_mean(c: Configuration, compute: float) -> float:
    """Return the mean reward over the last tenth of a configuration's checkpoints up to a compute."""
    mean = c.mean[: max(1, np.searchsorted(c.checkpoints, compute * (1 + 1e-9), side="right"))]
    return float(mean[-max(1, mean.size // 10) :].mean())


def _reward_near(c: Configuration, budget: float) -> float:
    """Return the reward at a budget, by a line in log C through the checkpoints near it."""
    is_near = (c.compute >= budget / _NEAR_FACTOR) & (c.compute <= budget * _NEAR_FACTOR)
    if np.unique(c.compute[is_near]).size < 3:
        return float(np.interp(budget, c.checkpoints, c.mean))
    return float(np.polyfit(np.log(c.compute[is_near] / budget), c.reward[is_near], 1)[1])
