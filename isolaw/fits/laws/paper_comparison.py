"""Compare the best constant n and the logistic law by their losses on the fitted curves, as the paper does.

This comparison is in-sample and uses no draws. `isolaw.fits.laws.comparison` is isolaw's own comparison.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.document.schema import Comparison, ConstantRule, RuleLoss
from isolaw.fits.frontier import TOLERANCE, Frontier
from isolaw.fits.laws.comparison import LEAST_SEEDS
from isolaw.fits.selection import Floats


def nearest_level(log2_n: Floats, levels: NDArray[np.int64], allowed: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the index of the allowed level that is nearest to n in log2, at each of X computes.

    ``levels`` is (N,) and ``allowed`` (N, X). Of two equally near levels, the smaller one is returned.

    >>> nearest_level(np.array([3.4, 3.5, 3.6]), np.array([8, 16]), np.array([[True], [True]]))
    array([0, 0, 1])
    """
    distance = np.abs(np.log2(levels)[:, None] - log2_n).round(9)
    return np.asarray(np.where(allowed, distance, np.inf).argmin(axis=0))


def rules(frontier: Frontier, law_log2_n: Floats | None, seeds: int) -> Comparison:
    """Compare the logistic law and the best constant n with the envelope of the curves (``paper``).

    Only row 0 of the frontier is used. ``law_log2_n`` (X,) is the law at the frontier's computes, or None if
    it was refused. With fewer than three ``seeds`` of each configuration, there is no verdict.
    """
    # Use only computes at which the neighbours of n* were measured. Elsewhere, no rule can lose.
    shown = ~frontier.alone[0]
    reward, best = frontier.reward[0][:, shown], frontier.best[0][shown]
    measured = np.isfinite(reward)
    columns = np.arange(best.size)

    def losses(log2_n: Floats) -> Floats:
        level = nearest_level(log2_n, frontier.levels, measured)
        return np.asarray(best - reward[level, columns])

    constants = [
        ConstantRule(*_mean_and_most(losses(np.full(columns.size, np.log2(n)))), int(n))
        for n in frontier.levels[measured.all(axis=1) & shown.any()]
    ]
    constant = min(constants, key=lambda rule: round(rule.mean_loss / frontier.unit, 12), default=None)
    logistic = None
    if law_log2_n is not None and shown.any():
        logistic = RuleLoss(*_mean_and_most(losses(law_log2_n[shown])))
    monotone = not falls(frontier)
    if seeds < LEAST_SEEDS:
        return Comparison(constant, logistic, monotone, None, refused="few_seeds", seeds=seeds)
    verdict = _verdict(constant, logistic, monotone, TOLERANCE * frontier.unit)
    return Comparison(constant, logistic, monotone, verdict, seeds=seeds)


def _mean_and_most(losses: Floats) -> tuple[float, float]:
    return float(losses.mean()), float(losses.max())


def falls(frontier: Frontier) -> bool:
    """Return whether n* falls after a rise, with a gain in reward above the tolerance."""
    strict, reward = frontier.strict[0], frontier.reward[0]
    highest = 0
    for x in np.flatnonzero(~(frontier.below | frontier.above)[0]):
        if strict[x] < highest and reward[strict[x], x] - reward[highest, x] > TOLERANCE * frontier.unit:
            return True
        highest = max(highest, int(strict[x]))
    return False


def _verdict(
    constant: ConstantRule | None, logistic: RuleLoss | None, monotone: bool, tolerance: float
) -> str:
    if constant is not None and constant.max_loss <= tolerance:
        return "constant"
    if logistic is None or (constant is not None and logistic.mean_loss >= constant.mean_loss):
        return "no law"
    if not monotone and logistic.max_loss > tolerance:
        return "no law"
    return "logistic"
