"""Check whether a calibrated ensemble and a fitted law contradict each other at a budget.

The ensemble and the law each give draws of the reward of a cell (B_p, n). isolaw compares the draws on the
cells that both contain. The ensemble and the law disagree

- about the choice, if the cell that one recommends is within 0.005 of the best in less than 5 % of the
  other's draws;
- about rewards, if their 95 % intervals do not overlap in some cell.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from isolaw.allocation import BatchShape
from isolaw.calibration.ahead import RewardForecast
from isolaw.evidence import LEVEL
from isolaw.fits.cell import Cell
from isolaw.fits.flags import Code, Flag
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.law import Law
from isolaw.fits.predict import Prediction, rewards
from isolaw.fits.selection import Floats

_ENDS = (1 - LEVEL) / 2, (1 + LEVEL) / 2
RARE = 0.05  # share of draws


def disagreements(
    ahead: RewardForecast, law: Law, found: Prediction, rates: Mapping[BatchShape, float]
) -> list[Flag]:
    """Return a flag for each contradiction between an ensemble and the draws of a law.

    Returns no flags if the law recommends nothing, or if fewer than two cells are common to both. ``rates``
    maps each cell to its rollouts per unit of the budget.
    """
    a = found.allocation
    if a is None:
        return []
    chosen = a.problems_per_batch, a.rollouts_per_problem
    keys = sorted({entry.key for entry in law.document.grid} | {chosen})
    keys = [key for key in keys if key in ahead.cells]
    if len(keys) < 2 or chosen not in keys:
        return []
    fitted = rewards(
        law, [Cell(*key) for key in keys], np.array([found.compute * rates[key] for key in keys])
    )
    fitted = fitted[1:] if len(fitted) > 1 else fitted
    simulated = ahead.final[:, [ahead.cells.index(key) for key in keys]]
    return [*_choices(keys, simulated, fitted, chosen), *_rewards(keys, simulated, fitted)]


def _choices(keys: list[BatchShape], simulated: Floats, fitted: Floats, chosen: BatchShape) -> list[Flag]:
    best = keys[int(simulated.mean(axis=0).argmax())]
    by_law, by_simulation = _within(fitted)[keys.index(best)], _within(simulated)[keys.index(chosen)]
    if min(by_law, by_simulation) >= RARE:
        return []
    text = (
        f"the simulation's best configuration ({Cell(*best).label}) is within {TOLERANCE} of the best in "
        f"{100 * by_law:.0f} % of the law's draws, and the law's best configuration ({Cell(*chosen).label}) "
        f"in {100 * by_simulation:.0f} % of the simulation's members"
    )
    return [Flag(Code.CHOICES_DISAGREE, text)]


def _rewards(keys: list[BatchShape], simulated: Floats, fitted: Floats) -> list[Flag]:
    if len(fitted) == 1:
        return []
    ours, theirs = (np.quantile(draws, _ENDS, axis=0) for draws in (simulated, fitted))
    gap = np.maximum(ours[0] - theirs[1], theirs[0] - ours[1])
    apart = int(np.sum(gap > 0))
    if not apart:
        return []
    worst = int(gap.argmax())
    spans = [f"{own[0, worst]:.3f}–{own[1, worst]:.3f}" for own in (ours, theirs)]
    text = (
        f"in {apart} of {len(keys)} configurations the 95 % intervals do not overlap; the difference is "
        f"largest at {Cell(*keys[worst]).label}: simulated {spans[0]}, fitted {spans[1]}"
    )
    return [Flag(Code.REWARDS_DISAGREE, text)]


def _within(draws: Floats) -> Floats:
    """Return the share of draws in which each cell is within 0.005 of the best."""
    return np.asarray(np.mean(draws.max(axis=1, keepdims=True) - draws <= TOLERANCE, axis=0))
