"""Does n* need a law? What each rule loses in reward along the frontier.

A rule names an n for each compute. Its regret at C is the reward of the frontier minus that of the
rule's n, on the fitted curves (so: in the sample, before any uncertainty). Reward decides, not how
well a curve passes through frontier points, which are deterministic functions of a few fits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.frontier import TOLERANCE, Frontier
from isolaw.fits.select import Floats


def nearest_level(
    log2_n: Floats, levels: NDArray[np.int64], allowed: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Return the index of the measured n nearest in log2; ``allowed`` (levels, …) restricts it.

    >>> nearest_level(np.array([3.4, 3.6]), np.array([8, 16]))
    array([0, 1])
    """
    distance = np.abs(np.log2(levels).reshape((-1,) + (1,) * log2_n.ndim) - log2_n)
    if allowed is not None:
        distance = np.where(allowed, distance, np.inf)
    return np.asarray(distance.argmin(axis=0))


def rules(frontier: Frontier, law_log2_n: Floats | None) -> dict[str, Any]:
    """Compare the logistic law and the best constant n with the frontier itself.

    Parameters
    ----------
    frontier
        row 0 is used.
    law_log2_n
        the law at the frontier's compute, (X,); None when it was refused.
    """
    # Only where the neighbours of n* were measured: elsewhere every rule is right by default.
    shown = ~frontier.alone[0]
    if not shown.any():
        return {"constant": None, "logistic": None, "monotone": True, "verdict": "no law"}
    reward, best = frontier.reward[0][:, shown], frontier.best[0][shown]
    measured = np.isfinite(reward)
    columns = np.arange(best.size)
    throughout = np.flatnonzero(measured.all(axis=1))

    def regret(log2_n: Floats) -> Floats:
        level = nearest_level(log2_n, frontier.levels, measured)
        return np.asarray(best - reward[level, columns])

    constants = {int(n): regret(np.full(columns.size, np.log2(n))) for n in frontier.levels[throughout]}
    n = min(constants, key=lambda n: constants[n].mean()) if constants else None
    out: dict[str, Any] = {
        "basis": "regret in reward on the fitted curves, in the sample",
        "constant": None if n is None else {"n": n, **_summary(constants[n])},
        "logistic": None if law_log2_n is None else _summary(regret(law_log2_n[shown])),
        "monotone": not falls(frontier),
    }
    out["verdict"] = _verdict(out)
    return out


def falls(frontier: Frontier) -> bool:
    """Return whether n* comes down again by more than the tolerance in reward can excuse."""
    strict, reward = frontier.strict[0], frontier.reward[0]
    highest = 0
    for x in np.flatnonzero(~frontier.censored[0]):
        if strict[x] < highest and reward[strict[x], x] - reward[highest, x] > TOLERANCE:
            return True
        highest = max(highest, int(strict[x]))
    return False


def _summary(regret: Floats) -> dict[str, float]:
    return {"mean_regret": float(regret.mean()), "max_regret": float(regret.max())}


def _verdict(out: dict[str, Any]) -> str:
    constant, logistic = out["constant"], out["logistic"]
    if constant is not None and constant["max_regret"] <= TOLERANCE:
        return "constant"
    if logistic is None or (constant is not None and logistic["mean_regret"] >= constant["mean_regret"]):
        return "no law"
    if not out["monotone"] and logistic["max_regret"] > TOLERANCE:
        return "no law"
    return "logistic"
