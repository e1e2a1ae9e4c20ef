"""What a fit found, as the content of ``law.json``: every quantity with its interval and status."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolaw.fits import frontier as frontiers
from isolaw.fits.bootstrap import seeds_are_shared
from isolaw.fits.curves import Curves
from isolaw.fits.frontier import Crossover, Frontier
from isolaw.fits.logistic import Logistic
from isolaw.fits.quantity import REFUSED, Quantity, from_draws
from isolaw.fits.select import Configuration, Selection

# The plateau is stated only if the law has come this close to it (in doublings of n) where measured.
_FLAT_WITHIN = 0.5
_LEAST_ON_PLATEAU = 5
_DRAWS_BEYOND = 0.025
_HIGHEST = 60.0  # log2 of an n that no one runs: keeps a wild draw finite
# Another curve family is worth a word when its residuals are smaller by a tenth.
_CLEARLY = 0.9
_A_RISE = 1e-6


def parameters(
    frontier: Frontier,
    x: NDArray[np.float64],
    law: Logistic | None,
    verdict: str,
    warnings: list[str],
) -> dict[str, Quantity]:
    """Return b, L, k, x0 and the level of saturation; add to ``warnings`` why a level is not stated."""
    if law is None:
        warnings.append("no law was fitted: at no compute is n* more than a bound")
        return dict.fromkeys(("b", "L", "k", "x0", "saturation"), REFUSED)
    known = np.flatnonzero(~frontier.censored[0])
    distinct = np.unique(frontier.strict[0][known]).size
    floor_seen = known[0] == 0 and law(x[:1])[0, 0] - law.b[0] < _FLAT_WITHIN
    saturation = _saturation(frontier, x, law, verdict, warnings)
    shape_known = not law.on_bound[0] and distinct > 1 and law.L[0] > 0
    rise_known = shape_known and floor_seen and saturation.status == "ok"
    return {
        "b": from_draws(law.b[0], law.b[1:], "ok" if shape_known and floor_seen else "upper_bound"),
        "L": from_draws(law.L[0], law.L[1:], "ok" if rise_known else "not_identified"),
        "k": from_draws(law.k[0], law.k[1:], "ok" if rise_known else "not_identified"),
        "x0": from_draws(law.x0[0], law.x0[1:], "ok" if rise_known else "not_identified"),
        "saturation": saturation,
    }


def _saturation(
    frontier: Frontier, x: NDArray[np.float64], law: Logistic, verdict: str, warnings: list[str]
) -> Quantity:
    """The n at which the law levels off, stated only where the data show it level off.

    If the frontier ends at the grid's largest n, with its neighbour measured, that n is a lower bound.
    """
    strict, top = frontier.strict, frontier.levels.size - 1
    if strict[0, -1] == top and not frontier.alone[0, -1]:
        drawn = frontier.levels[strict[1:, -1]]
        return from_draws(float(frontier.levels[top]), drawn, "lower_bound", frontier.levels)
    reason = _not_level(frontier, x, law, verdict)
    if reason:
        warnings.append(f"no saturation level is stated: {reason}")
        return REFUSED
    plateau = np.exp2(np.minimum(law.plateau, _HIGHEST))
    return from_draws(plateau[0], plateau[1:])


def _not_level(frontier: Frontier, x: NDArray[np.float64], law: Logistic, verdict: str) -> str:
    """Why the data do not show n* level off inside the grid; empty if they do."""
    largest = math.log2(frontier.levels[-1])
    if verdict != "logistic":
        return "along the frontier a constant n does as well as the law, or no law holds"
    if frontier.compute[-1] < 2 * frontier.compute[0]:
        return "the runs span less than a factor of two in compute"
    if frontier.censored[0, -1]:
        return "at the largest compute n* is only a bound"
    if not _rests(frontier, x):
        return "n* has not kept its last level for longer than it kept those before"
    near = law.plateau[0] - law(x)[0][~frontier.censored[0]] < _FLAT_WITHIN
    if int(near.sum()) < _LEAST_ON_PLATEAU:
        return "the law is still rising at the largest compute"
    if law.plateau[0] > largest - _FLAT_WITHIN:
        return f"the law levels off at the grid's largest n, {frontier.levels[-1]}"
    beyond = float(np.mean(law.plateau[1:] > largest)) if law.plateau.size > 1 else 0.0
    if beyond > _DRAWS_BEYOND:
        return f"in {beyond:.0%} of draws n* passes the grid's largest n, {frontier.levels[-1]}"
    return ""


def _rests(frontier: Frontier, x: NDArray[np.float64]) -> bool:
    """Whether the last level of n* lasts at least twice as long as a rise to the next one would take.

    A stair of a staircase is flat, too. What a doubling of n takes in x is seen on the stairs before.
    """
    log_n = np.log2(frontier.levels)
    strict = frontier.strict[0]
    changes = np.flatnonzero(np.diff(strict)) + 1
    if not changes.size:
        return True
    last, index = int(changes[-1]), int(strict[-1])
    doublings = abs(log_n[index] - log_n[strict[0]])
    next_rise = log_n[min(index + 1, log_n.size - 1)] - log_n[index]
    each = (x[last] - x[0]) / max(doublings, 1.0)
    return bool(x[-1] - x[last] >= 2 * each * next_rise)


def grid_entry(c: Configuration) -> dict[str, Any]:
    """Return one configuration of the grid."""
    return {
        "problems_per_batch": c.problems_per_batch,
        "rollouts_per_problem": c.rollouts_per_problem,
        "runs": c.runs,
        "checkpoints": int(c.compute.size),
        "measured": list(c.measured),
    }


def frontier_entries(frontier: Frontier, scale: float, draws: int) -> list[dict[str, Any]]:
    """Return the frontier's points; ``scale`` turns compute into x."""
    levels = frontier.levels
    out = []
    for i, compute in enumerate(frontier.compute):
        below, above = bool(frontier.below[0, i]), bool(frontier.above[0, i])
        status: Any = "ok"
        if below or above:
            status = "not_identified" if below and above else "lower_bound" if below else "upper_bound"
        strict = int(levels[frontier.strict[0, i]])
        reasons = []
        if strict in (levels[0], levels[-1]):
            reasons.append("grid edge")
        if frontier.alone[0, i]:
            reasons.append("a neighbouring n was not measured here")
        sampled = levels[frontier.strict[1:, i]] if draws else None
        out.append(
            {
                "x": float(compute * scale),
                "n_star": from_draws(float(strict), sampled, status, levels).to_dict(),
                "n_star_strict": strict,
                "n_star_tolerance": int(levels[frontier.tolerance[0, i]]),
                "reward": from_draws(float(frontier.best[0, i]), frontier.best[1:, i]).to_dict(),
                "censored": below or above,
                "censored_by": reasons,
            }
        )
    return out


def crossover_entries(
    configurations: list[Configuration], curves: list[Curves], first: float, scale: float, draws: int
) -> list[dict[str, Any]]:
    """Return the crossover of every pair of n; ``first`` is where the frontier begins."""
    out = []
    for crossing in frontiers.crossovers(configurations, curves, first):
        if crossing.supported:
            q = from_draws(crossing.draws[0] * scale, crossing.draws[1:] * scale if draws else None)
        else:
            q = _unsupported(crossing, scale)
        entry = q.to_dict()
        pair = {"from": crossing.from_, "to": crossing.to}
        out.append({**pair, "x": entry.pop("value"), "supported": crossing.supported, **entry})
    return out


def _unsupported(crossing: Crossover, scale: float) -> Quantity:
    """Where two curves would cross if continued, and the side on which the data leave it."""
    value = crossing.extrapolated * scale
    if crossing.shared is None:
        return Quantity(value, None, "not_identified")
    low, high = (end * scale for end in crossing.shared)
    if crossing.draws[0] > 0:
        # Not overtaken by the end of the shared range; in some draws a little before it.
        floor = float(np.quantile(crossing.draws, 0.025, method="inverted_cdf")) * scale
        return Quantity(value, (min(max(floor, low), high), None), "lower_bound")
    ceiling = float(np.quantile(crossing.draws, 0.975, method="inverted_cdf")) * scale
    return Quantity(value, (None, max(min(ceiling, high), low)), "upper_bound")


def curve_entry(c: Configuration, curve: Curves) -> dict[str, Any]:
    """Return one learning curve, its ceiling marked where it is not determined."""
    values = curve.parameters()
    status: Any = "not_identified" if curve.open_ended[0] else "ok"
    return {
        "problems_per_batch": c.problems_per_batch,
        "rollouts_per_problem": c.rollouts_per_problem,
        **{
            name: from_draws(float(v[0]), v[1:], "ok" if name == "R0" else status).to_dict()
            for name, v in values.items()
        },
        "rms": float(curve.rms[0]),
        "measured": list(c.measured),
    }


def unit(configurations: list[Configuration]) -> str:
    """What the draws resample, in words."""
    if seeds_are_shared(configurations):
        return "run (a seed's runs together, over all configurations)"
    if min(c.runs for c in configurations) > 1:
        return "run (within its configuration)"
    return "block of residuals, where there is one run"


def warnings_of(
    selection: Selection,
    configurations: list[Configuration],
    frontier: Frontier,
    document: dict[str, Any],
    scale: float,
) -> list[str]:
    """Return what a reader must know before believing the numbers, the gravest first."""
    out = []
    single = [c for c in configurations if c.runs == 1]
    if len(single) == len(configurations):
        out.append("one seed per configuration: intervals leave out the variation between seeds")
    elif single:
        out.append(
            f"one seed only, whose variation intervals leave out: {', '.join(c.label for c in single)}"
        )
    top = int(frontier.levels[-1])
    at_top = frontier.compute[frontier.strict[0] == frontier.levels.size - 1] * scale
    symbol = "M" if selection.setting == "fixed-b" else "C"
    if at_top.size:
        out.append(
            f"n = {top} is the grid's edge: from {symbol} = {at_top.min():.3g} the frontier is at the "
            "largest n, so n* there is a lower bound; add runs with larger n"
        )
    alone = frontier.compute[frontier.alone[0]] * scale
    if alone.size:
        out.append(
            f"censored at {alone.size} of {frontier.compute.size} points ({symbol} = {alone.min():.3g} to "
            f"{alone.max():.3g}): a neighbouring n was not measured there"
        )
    if not document["comparison"]["monotone"]:
        out.append("n* comes down again by more than 0.005 in reward: a monotone law does not describe it")
    flat: list[str] = []
    rising: list[str] = []
    for k in document["curves"]:
        if k["A"]["status"] != "ok":
            kind = rising if k["A"]["value"] - k["R0"]["value"] > _A_RISE else flat
            kind.append(f"B_p = {k['problems_per_batch']}, n = {k['rollouts_per_problem']}")
    if rising:
        out.append(f"still rising at the end, so the ceiling A is not determined: {'; '.join(rising)}")
    if flat:
        out.append(f"flat or falling, which a learning curve cannot show: {'; '.join(flat)}")
    span = max(c.reward.max() for c in configurations) - min(c.reward.min() for c in configurations)
    if span < 10 * frontiers.TOLERANCE:
        out.append(
            f"all rewards lie within {span:.2g}: the tolerance of {frontiers.TOLERANCE} is wide for that"
        )
    highest = max(float(np.abs(c.reward).max()) for c in configurations)
    if highest > 1:
        out.append(
            f"{selection.metric} reaches {highest:.3g}: bins and tolerance are 0.005 of a reward in [0, 1]; "
            'percent are divided with --derive, as "score=accuracy/100"'
        )
    misfit = document["comparison"]["curves"]
    better = min(("exp", "hill"), key=lambda name: misfit[name])
    if misfit[better] < _CLEARLY * misfit[document["curve"]]:
        out.append(
            f"--curve {better} fits the checkpoints better (rms {misfit[better]:.4f}; "
            f"{document['curve']}: {misfit[document['curve']]:.4f})"
        )
    if document["bootstrap"]["failed"]:
        out.append(
            f"{document['bootstrap']['failed']} bootstrap draws failed: {document['bootstrap']['reasons']}"
        )
    return out + selection.warnings
