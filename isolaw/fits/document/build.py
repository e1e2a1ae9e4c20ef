"""The parts of a law's document, made of what a fit found: every quantity with its interval and status."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.curves.learning_curves import Curves
from isolaw.fits.document.flags import Code, Flag
from isolaw.fits.document.schema import (
    BatchHealth,
    BoundBy,
    Comparison,
    Crossing,
    CurveEntry,
    FrontierPoint,
    GridEntry,
    HealthInfo,
    LawDocument,
)
from isolaw.fits.frontier import trace as frontiers
from isolaw.fits.frontier.trace import Crossover, Frontier, Path
from isolaw.fits.health import Stability
from isolaw.fits.laws.comparison import levels_off
from isolaw.fits.laws.equations import RISING
from isolaw.fits.laws.equations import Logistic
from isolaw.fits.quantity import LEVEL, REFUSED, Quantity, from_draws
from isolaw.fits.selection import Configuration, Selection
from isolaw.fits.surface.bootstrap import Unit

# The plateau is stated only if the law has come this close to it (in doublings of n) where measured.
_FLAT_WITHIN = 0.5
# Rewards from a quarter of a run's compute on are looked at for a fall that its curve cannot show.
_LATE = 4
# Another curve family is worth a word when its residuals are smaller by a tenth.
_CLEARLY = 0.9
_A_RISE = 1e-6


def parameters(
    path: Path,
    x: NDArray[np.float64],
    law: Logistic | None,
    comparison: Comparison,
    flags: list[Flag],
) -> dict[str, Quantity]:
    """Return b, L, k, x0 and the level of saturation; add to ``flags`` why a level is not stated."""
    if law is None:
        flags.append(Flag(Code.NO_LAW, "at no compute is n* more than a bound"))
        return dict.fromkeys(("b", "L", "k", "x0", "saturation"), REFUSED)
    known = np.flatnonzero(~path.censored[0])
    varies = float(np.ptp(path.log2_n[0, known])) > 0
    floor_seen = known[0] == 0 and law(x[:1])[0, 0] - law.b[0] < _FLAT_WITHIN
    saturation = _saturation(path, comparison, flags)
    shape_known = not law.on_bound[0] and varies and law.L[0] > 0
    rise_known = shape_known and floor_seen and saturation.status == "ok"
    return {
        "b": from_draws(law.b[0], law.b[1:], "ok" if shape_known and floor_seen else "upper_bound"),
        "L": from_draws(law.L[0], law.L[1:], "ok" if rise_known else "not_identified"),
        "k": from_draws(law.k[0], law.k[1:], "ok" if rise_known else "not_identified"),
        "x0": from_draws(law.x0[0], law.x0[1:], "ok" if rise_known else "not_identified"),
        "saturation": saturation,
    }


def _saturation(path: Path, comparison: Comparison, flags: list[Flag]) -> Quantity:
    """The n at which n* levels off, stated only where it does so in 95 % of draws, and by the preferred law.

    If the frontier ends at the grid's largest n, that n is a lower bound. If n* rises and levelling off is
    not shown, n* at the largest compute bounds the level from below.
    """
    last = path.n[:, -1]
    if path.at_top[0, -1] and not path.above[0, -1]:
        return from_draws(float(path.levels[-1]), last[1:], "lower_bound", path.levels)
    reason = _not_level(path, comparison)
    if not reason:
        return from_draws(last[0], last[1:])
    flags.append(Flag(Code.NO_SATURATION, reason))
    if not comparison.monotone or comparison.preferred == "non-monotone" or path.censored[0, -1]:
        return REFUSED
    return from_draws(float(last[0]), last[1:], "lower_bound")


def _not_level(path: Path, comparison: Comparison) -> str:
    """Why the data do not show n* level off inside the grid; empty if they do."""
    if comparison.refused == "few_seeds":
        return "there are fewer than three seeds per configuration"
    if len(path.log2_n) == 1:
        return "there are no draws"
    if not comparison.monotone:
        return "n* comes down again"
    if path.censored[0, -1]:
        return "at the largest compute n* is only a bound"
    share = levels_off(path)
    if share < LEVEL:
        return f"n* rises and then levels off in {math.floor(100 * share)}% of draws, which is less than 95%"
    if comparison.preferred in RISING:
        return "the law that draws prefer does not level off"
    return ""


def grid_entry(c: Configuration) -> GridEntry:
    """Return one configuration of the grid."""
    return GridEntry(
        c.problems_per_batch,
        c.rollouts_per_problem,
        runs=c.runs,
        checkpoints=int(c.compute.size),
        step_cost=c.step_cost,
        measured=c.measured,
    )


def frontier_entries(
    frontier: Frontier, path: Path, scale: float, stepwise: bool
) -> tuple[FrontierPoint, ...]:
    """Return the frontier's points; ``scale`` turns compute into x; ``stepwise``: n* is a measured n."""
    levels = frontier.levels
    band = simultaneous(path) if len(path.log2_n) > 1 else None
    out = []
    for i, compute in enumerate(frontier.compute):
        below, above = bool(path.below[0, i]), bool(path.above[0, i])
        status: Any = "ok"
        if below or above:
            status = "not_identified" if below and above else "lower_bound" if below else "upper_bound"
        reasons: list[BoundBy] = []
        if np.isclose(path.log2_n[0, i], np.log2([levels[0], levels[-1]])).any():
            reasons.append("grid_edge")
        if (below and not path.at_top[0, i]) or (above and path.log2_n[0, i] > np.log2(levels[0]) + 1e-9):
            reasons.append("neighbour")
        value = float(np.exp2(path.log2_n[0, i]))
        n_star = from_draws(value, path.n[1:, i], status, levels if stepwise else None)
        out.append(
            FrontierPoint(
                x=float(compute * scale),
                n_star=n_star,
                band=None if band is None else (_end(band[0, i]), _end(band[1, i])),
                n_star_strict=int(levels[frontier.strict[0, i]]),
                n_star_tolerance=int(levels[frontier.tolerance[0, i]]),
                reward=from_draws(float(path.reward[0, i]), path.reward[1:, i]),
                censored=below or above,
                censored_by=tuple(reasons),
            )
        )
    return tuple(out)


def simultaneous(path: Path) -> NDArray[np.float64]:
    """Return the band that holds 95 % of drawn n*(C) at every C at once, (2, X); ±inf where it is open.

    It is the narrowest family of equal-tailed pointwise quantiles with that share; what is not known in a
    draw breaks no band. It is open where the estimate is a bound, and where the draws do not vary.
    """
    draws = np.sort(path.n[1:], axis=0)  # NaN last
    counts = np.sum(~np.isnan(draws), axis=0)
    n = path.n[1:]
    low, high = 0.0, 1 - LEVEL
    band = np.array([])
    for _ in range(12):
        tail = (low + high) / 4  # half of the middle of [low, high]
        index = np.maximum(np.floor(tail * counts).astype(int), 0)
        columns = np.arange(draws.shape[1])
        lower = draws[index, columns]
        upper = draws[np.maximum(counts - 1 - index, 0), columns]
        broken = np.mean(np.any((n < lower) | (n > upper), axis=1))
        if broken <= 1 - LEVEL or not band.size:
            band = np.where(counts == 0, [[-np.inf], [np.inf]], [lower, upper])
        low, high = ((low + high) / 2, high) if broken <= 1 - LEVEL else (low, (low + high) / 2)
    value = np.exp2(path.log2_n[0])
    band[0] = np.where(path.below[0], np.minimum(band[0], value), band[0])
    band[1] = np.where(path.above[0], np.maximum(band[1], value), band[1])
    still = np.isclose(band[0], band[1], rtol=1e-12, atol=0)
    band[0, still | path.above[0]] = -np.inf
    band[1, still | path.below[0]] = np.inf
    return band


def _end(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def crossover_entries(
    configurations: list[Configuration],
    compute: NDArray[np.float64],
    reward: NDArray[np.float64],
    first: float,
    scale: float,
    draws: int,
) -> tuple[Crossing, ...]:
    """Return the crossover of every pair of n (see `crossovers`)."""
    out = []
    for crossing in frontiers.crossovers(configurations, compute, reward, first):
        if crossing.supported:
            q = from_draws(crossing.draws[0] * scale, crossing.draws[1:] * scale if draws else None)
        else:
            q = _unsupported(crossing, scale)
        x = None if q.value is None else _end(q.value)
        out.append(Crossing(crossing.from_, crossing.to, x, crossing.supported, q.interval, q.status))
    return tuple(out)


def _unsupported(crossing: Crossover, scale: float) -> Quantity:
    """Where two curves would cross if continued, and the side on which the data leave it."""
    value = crossing.extrapolated * scale
    if crossing.shared is None or np.isnan(crossing.draws[0]):  # or the frontier does not compare them there
        return Quantity(value, None, "not_identified")
    low, high = (end * scale for end in crossing.shared)
    if crossing.draws[0] > 0:
        # Not overtaken by the end of the shared range; in some draws a little before it.
        floor = float(np.quantile(crossing.draws, 1 - LEVEL, method="inverted_cdf")) * scale
        return Quantity(value, (min(max(floor, low), high), None), "lower_bound")
    ceiling = float(np.quantile(crossing.draws, LEVEL, method="inverted_cdf")) * scale
    return Quantity(value, (None, max(min(ceiling, high), low)), "upper_bound")


def curve_entry(c: Configuration, curve: Curves) -> CurveEntry:
    """Return one learning curve, its ceiling marked where it is not determined."""
    values = curve.parameters()
    late = c.checkpoints >= c.checkpoints[-1] / _LATE
    status: Any = "not_identified" if curve.open_ended[0] else "ok"
    return CurveEntry(
        c.problems_per_batch,
        c.rollouts_per_problem,
        parameters={
            name: from_draws(float(v[0]), v[1:], "ok" if name == "R0" else status)
            for name, v in values.items()
        },
        ceiling="open" if curve.open_ended[0] else "seen",
        rms=float(curve.rms[0]),
        late=float(np.mean(c.mean[late] - curve(c.checkpoints[late])[0])),
        measured=c.measured,
    )


def health_info(stability: Stability) -> HealthInfo:
    """Return the health of the runs."""
    batches = [
        BatchHealth(b, share, *stability.counts[b], stability.reasons.get(b))
        for b, share in stability.shares.items()
    ]
    return HealthInfo(stability.smallest, tuple(batches), stability.unknown)


def flags_of(
    selection: Selection, resampled: Unit, path: Path, frontier: Frontier, document: LawDocument, scale: float
) -> tuple[Flag, ...]:
    """Return what a reader must know before believing the numbers, the gravest first."""
    out: list[Flag] = []

    def flag(code: Code, text: str) -> None:
        out.append(Flag(code, text))

    configurations = selection.configurations
    single = [c for c in configurations if c.runs == 1]
    if resampled == "block":
        flag(Code.ONE_SEED, "intervals leave out the variation between seeds")
    elif resampled == "lack of fit":
        flag(
            Code.ONE_SEED,
            "the variation between runs is taken from how they scatter about a smooth function of n",
        )
    elif all(c.runs == 2 for c in configurations):
        flag(
            Code.TWO_SEEDS,
            "intervals rest on the one difference between two runs of each n, which is very little",
        )
    elif single:
        flag(Code.LONE_RUNS, f"{'; '.join(c.label for c in single)}, taken to vary as the others do")
    if document.surface is not None and document.surface.misfit > 1:
        flag(
            Code.LACK_OF_FIT,
            "configurations differ from what all others say of them by more than chance; intervals are "
            f"{document.surface.misfit:.2f} times as wide for it",
        )
    top = int(frontier.levels[-1])
    at_top = frontier.compute[path.at_top[0]] * scale
    symbol = "M" if selection.setting == "fixed-b" else "C"
    if at_top.size:
        flag(
            Code.GRID_EDGE,
            f"from {symbol} = {at_top.min():.3g} the frontier is at n = {top}, the largest, so n* there is a "
            "lower bound; add runs with larger n",
        )
    lower = path.below[0] & ~path.at_top[0]
    upper = path.above[0] & (path.log2_n[0] > np.log2(frontier.levels[0]) + 1e-9)
    alone = frontier.compute[lower | upper] * scale
    if alone.size:
        flag(
            Code.CENSORED,
            f"at {alone.size} of {frontier.compute.size} points ({symbol} = {alone.min():.3g} to "
            f"{alone.max():.3g}) "
            + ("a neighbouring n was" if document.method == "paper" else "three n were")
            + " not measured",
        )
    if not document.comparison.monotone:
        flag(
            Code.NOT_MONOTONE,
            "n* comes down again, which a monotone law does not describe",
        )
    flat: list[str] = []
    rising: list[str] = []
    for k in document.curves:
        if k.ceiling != "seen":
            (flat if _never_rises(k) else rising).append(
                f"B_p = {k.problems_per_batch}, n = {k.rollouts_per_problem}"
            )
    if rising:
        flag(
            Code.STILL_RISING,
            f"still rising at the end, so the ceiling A is not determined: {'; '.join(rising)}",
        )
    if flat:
        flag(Code.FLAT_CURVES, f"flat or falling, which a learning curve cannot show: {'; '.join(flat)}")
    fallen = [k for k in document.curves if k.late < -frontiers.TOLERANCE]
    if 2 * len(fallen) > len(document.curves):
        worst = min(fallen, key=lambda k: k.late)
        flag(
            Code.LATE_FALL,
            "rewards fall late in training, which a learning curve cannot show: from a quarter of its "
            f"compute on they lie {-worst.late:.3f} below the curve at n = "
            f"{worst.rollouts_per_problem}, and more than {frontiers.TOLERANCE} at {len(fallen)} of "
            f"{len(document.curves)}"
            + ("; rewards are predicted that much too high" if document.method == "paper" else ""),
        )
    span = max(c.reward.max() for c in configurations) - min(c.reward.min() for c in configurations)
    if span < 10 * frontiers.TOLERANCE:
        flag(
            Code.NARROW_REWARDS,
            f"all rewards lie within {span:.2g}: the tolerance of {frontiers.TOLERANCE} is wide for that",
        )
    highest = max(float(np.abs(c.reward).max()) for c in configurations)
    if highest > 1:
        flag(
            Code.REWARD_SCALE,
            f"{selection.metric} reaches {highest:.3g}: bins and tolerance are 0.005 of a reward in [0, 1]; "
            'percent are divided with --derive, as "score=accuracy/100"',
        )
    rms = {name: own.rms for name, own in document.comparison.curves.items()}
    better, used = min(rms, key=lambda name: rms[name]), rms.get(document.curve)
    if used is not None and rms[better] < _CLEARLY * used:
        flag(
            Code.MISFIT,
            f"--curve {better} fits the checkpoints better (rms {rms[better]:.4f}; "
            f"{document.curve}: {used:.4f})",
        )
    if document.bootstrap.failed:
        flag(
            Code.FAILED_DRAWS,
            f"{document.bootstrap.failed} bootstrap draws failed: {document.bootstrap.reasons}",
        )
    return (*out, *selection.flags)


def _never_rises(curve: CurveEntry) -> bool:
    """Whether a curve ends where it starts; one without a start and a ceiling of its own (power) does not."""
    ends = [curve.parameters[name].value for name in ("R0", "A") if name in curve.parameters]
    return len(ends) == 2 and ends[0] is not None and ends[1] is not None and ends[1] - ends[0] <= _A_RISE
