"""Assemble a law's document from the results of a fit, with an interval and a status for each quantity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolaw.evidence import LEVEL, REFUSED, Quantity, Status, estimated, finite, from_draws
from isolaw.fits import frontier as frontiers
from isolaw.fits.curves.learning_curves import Curves
from isolaw.fits.document.schema import BoundBy, Comparison, Crossing, CurveEntry, FrontierPoint, GridEntry
from isolaw.fits.flags import Code, Flag
from isolaw.fits.frontier import Crossover, Frontier, NStarPath
from isolaw.fits.laws.comparison import levelling_share
from isolaw.fits.laws.equations import LAWS, Logistic
from isolaw.fits.optimum import widen
from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.slices import Slices

LAW_PARAMETERS = ("b", "L", "k", "x0", "saturation")
# The floor b counts as measured only if the law is this close to it at the first compute, in doublings of n.
_FLAT_WITHIN = 0.5
# Late falls, which a learning curve cannot show, are measured past 1 / this of a curve's compute.
_LATE_FACTOR = 4


def parameters(
    path: NStarPath,
    x: NDArray[np.float64],
    law: Logistic | None,
    comparison: Comparison,
    flags: list[Flag],
    symbol: str,
) -> dict[str, Quantity]:
    """Return b, L, k, x0 and the level at which n* saturates.

    If isolaw does not state the level, the reason is added to ``flags``. ``symbol`` is n, or B_p for a law of
    B_p.
    """
    if law is None:
        flags.append(Flag(Code.NO_LAW, f"{symbol}* is only a bound at every compute"))
        return dict.fromkeys(LAW_PARAMETERS, REFUSED)
    identified = np.flatnonzero(~path.censored[0])
    varies = float(np.ptp(path.log2_n[0, identified])) > 0
    floor_seen = identified[0] == 0 and law(x[:1])[0, 0] - law.b[0] < _FLAT_WITHIN
    saturation = _saturation(path, comparison, flags, symbol)
    shape_known = not law.on_bound[0] and varies and law.L[0] > 0
    rise_known = shape_known and floor_seen and saturation.status == "ok"
    rise: Status = "ok" if rise_known else "not_identified"
    return {
        "b": estimated(law.b, "ok" if shape_known and floor_seen else "upper_bound"),
        "L": estimated(law.L, rise),
        "k": estimated(law.k, rise),
        "x0": estimated(law.x0, rise),
        "saturation": saturation,
    }


def _saturation(path: NStarPath, comparison: Comparison, flags: list[Flag], symbol: str) -> Quantity:
    """Return the n at which n* levels off, if it levels off in 95 % of draws and under the preferred law.

    If the frontier ends at the grid's largest n, this n is a lower bound. If n* rises and the runs do not
    show that it levels off, n* at the largest compute is a lower bound.
    """
    last_n = path.n[:, -1]
    if path.at_top[0, -1] and not path.above[0, -1]:
        return from_draws(float(path.levels[-1]), last_n[1:], "lower_bound", path.levels)
    reason = _why_not_level(path, comparison, symbol)
    if not reason:
        return estimated(last_n)
    flags.append(Flag(Code.NO_SATURATION, reason))
    turns = comparison.preferred is not None and LAWS[comparison.preferred].turns
    if not comparison.monotone or turns or path.censored[0, -1]:
        return REFUSED
    return estimated(last_n, "lower_bound")


def _why_not_level(path: NStarPath, comparison: Comparison, symbol: str) -> str:
    """Return the reason why the data do not show that n* levels off within the grid, or "" if they do."""
    if comparison.refused == "few_seeds":
        return "there are fewer than three seeds per configuration"
    if len(path.log2_n) == 1:
        return "there are no draws"
    if not comparison.monotone:
        return f"{symbol}* falls at larger budgets"
    if path.censored[0, -1]:
        return f"at the largest compute {symbol}* is only a bound"
    share = levelling_share(path)
    if share < LEVEL:
        return f"{symbol}* rises and then levels off in only {math.floor(100 * share)} % of draws, below 95 %"
    if comparison.preferred is not None and LAWS[comparison.preferred].rises:
        return "the preferred law does not level off"
    return ""


def grid_entry(c: Configuration) -> GridEntry:
    """Return a configuration's entry in the grid."""
    return GridEntry(*c.key, c.runs, int(c.compute.size), c.step_cost, c.measured)


def frontier_entries(
    frontier: Frontier, path: NStarPath, scale: float, grid: Floats | None = None
) -> tuple[FrontierPoint, ...]:
    """Return the entries of the frontier for the document.

    ``scale`` converts compute to x. ``grid`` contains log2 n of the allocations among which draws of the
    reward model choose; without it, n* is a measured n.
    """
    levels, n, n_star = frontier.levels, path.n, np.exp2(path.log2_n[0])
    at_end = np.any(np.isclose(path.log2_n[0][:, None], np.log2(levels[[0, -1]])), axis=1)
    upper = path.above[0] & (path.log2_n[0] > np.log2(levels[0]) + 1e-9)
    lacks_neighbour = (path.below[0] & ~path.at_top[0]) | upper
    points = []
    for i, compute in enumerate(frontier.compute):
        below, above = bool(path.below[0, i]), bool(path.above[0, i])
        status: Status = "ok"
        if below or above:
            status = "not_identified" if below and above else "lower_bound" if below else "upper_bound"
        reasons: dict[BoundBy, Any] = {"grid_edge": at_end[i], "neighbour": lacks_neighbour[i]}
        points.append(
            FrontierPoint(
                x=float(compute * scale),
                n_star=from_draws(n_star[i], n[1:, i], status, levels)
                if grid is None
                else widen(from_draws(n_star[i], n[1:, i], status), grid),
                n_star_strict=int(levels[frontier.strict[0, i]]),
                n_star_tolerance=int(levels[frontier.tolerance[0, i]]),
                reward=estimated(path.reward[:, i]),
                censored=below or above,
                censored_by=tuple(name for name, is_reason in reasons.items() if is_reason),
            )
        )
    return tuple(points)


def crossover_entries(
    configurations: list[Configuration],
    compute: NDArray[np.float64],
    reward: NDArray[np.float64],
    start: float,
    scale: float,
) -> tuple[Crossing, ...]:
    """Return the crossover of every pair of n (see `crossovers`)."""
    crossings = []
    for c in frontiers.crossovers(configurations, compute, reward, start):
        x_star = estimated(c.draws * scale) if c.supported else _unsupported(c, scale)
        x = None if x_star.value is None else finite(x_star.value)
        crossings.append(Crossing(c.from_, c.to, x, c.supported, x_star.interval, x_star.status))
    return tuple(crossings)


def _unsupported(crossing: Crossover, scale: float) -> Quantity:
    """Return the crossover of two extrapolated curves, as a bound before or after the measured range."""
    value = crossing.extrapolated * scale
    if crossing.shared is None or np.isnan(crossing.draws[0]):  # NaN: the frontier does not cover the range
        return Quantity(value, None, "not_identified")
    low, high = (end * scale for end in crossing.shared)
    later = bool(crossing.draws[0] > 0)  # the estimate of ``to`` does not lead at the end of the shared range
    bound = float(np.quantile(crossing.draws, 1 - LEVEL if later else LEVEL, method="inverted_cdf")) * scale
    bound = min(max(bound, low), high)
    if later:
        return Quantity(value, (bound, None), "lower_bound")
    return Quantity(value, (None, bound), "upper_bound")


def curve_entry(c: Configuration, curve: Curves) -> CurveEntry:
    """Return the entry of one learning curve, which marks a ceiling that is not determined."""
    is_open = bool(curve.open_ended[0])
    return CurveEntry(
        *c.key,
        parameters={
            name: estimated(values, "not_identified" if is_open and name != "R0" else "ok")
            for name, values in curve.parameters().items()
        },
        ceiling="open" if is_open else "seen",
        rms=float(curve.rms[0]),
        measured=c.measured,
    )


def late_shortfall(c: Configuration, curve: Curves) -> float:
    """Return how far the reward is below its curve on average, beyond a quarter of the compute."""
    is_late = c.checkpoints >= c.checkpoints[-1] / _LATE_FACTOR
    return float(np.mean(curve(c.checkpoints[is_late])[0] - c.mean[is_late]))


def late_falls(cut: Slices, configurations: list[Configuration]) -> list[float]:
    """Return how far each configuration's reward ends below its highest reward, by the reward model."""
    falls = []
    for index, c in zip(cut.place, configurations, strict=True):
        rewards = cut.reward[0, c.covers(cut.compute), index]
        falls.append(float(rewards.max() - rewards[-1]) if rewards.size else 0.0)
    return falls
