"""Plain words for numbers and laws: one place, for every door."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from isolaw.fits.flags import Code, Flag, having

if TYPE_CHECKING:
    from isolaw.fits.law_document import Comparison, FrontierPoint, LawDocument, LawEntry, PointsDocument
    from isolaw.fits.quantity import Quantity

# Flags whose text explains a name; the others are sentences of their own.
_NAMES: Mapping[str, str] = {
    str(code): code.replace("_", " ")
    for code in (
        Code.NO_INTERVALS, Code.NO_DRAWS, Code.MISFIT, Code.GRID_EDGE, Code.CENSORED, Code.ONE_N,
        Code.EXTRAPOLATION, Code.FAR, Code.LIMITED, Code.FLAT, Code.UNCERTAIN, Code.EPOCHS,
        Code.FEWER_PROBLEMS,
    )
} | {
    Code.ONE_SEED: "one seed per configuration",
    Code.TWO_SEEDS: "two seeds per configuration",
    Code.LONE_RUNS: "one seed only",
    Code.UNSTABLE_BATCH: "unstable",
    Code.BATCH_EDGE: "grid edge",
    Code.NO_LAW: "no law was fitted",
    Code.NO_SATURATION: "no saturation level is stated",
    Code.OPEN_CEILING: "reward",
}  # fmt: skip
_BOUND_BY = {"grid_edge": "grid edge", "neighbour": "a neighbouring n was not measured here"}


def flag(own: Flag) -> str:
    """Return a flag as it is printed.

    >>> flag(Flag(Code.ONE_N, "only n = 8 competes at this budget; how it compares is not known"))
    'one n: only n = 8 competes at this budget; how it compares is not known'
    """
    name = _NAMES.get(own.code)
    return f"{name}: {own.text}" if name else own.text


def bound_by(point: FrontierPoint) -> list[str]:
    """Return why n* is only a bound at a point of the frontier."""
    return [_BOUND_BY[why] for why in point.censored_by]


def number(value: float | None) -> str:
    """Return a number as a person would write it.

    >>> number(1e7), number(65536), number(0.68341), number(None)
    ('1e+07', '65,536', '0.683', 'unknown')
    """
    if value is None:
        return "unknown"
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    if value == int(value):
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def quantity(q: Quantity) -> str:
    """Return an estimate with its interval and status.

    >>> from isolaw.fits.quantity import Quantity
    >>> quantity(Quantity(64.0, (32.0, None), "lower_bound"))
    '64, perhaps more (95 % of draws: 32 or more)'
    """
    if q.value is None:
        return "not stated"
    bound = {"lower_bound": ", perhaps more", "upper_bound": ", perhaps less"}.get(q.status, "")
    text = f"{number(q.value)}{bound}"
    if q.interval is not None:
        return f"{text} ({interval(q.interval)})"
    return f"{text} (not identified)" if q.status == "not_identified" else text


def interval(ends: Sequence[float | None]) -> str:
    """Return an interval in words; an open end says so."""
    low, high = ends
    if low is None:
        return f"95 % of draws: {number(high)} or less"
    if high is None:
        return f"95 % of draws: {number(low)} or more"
    if low == high:
        return f"95 % of draws: {number(low)}"
    return f"95 % of draws: {number(low)} to {number(high)}"


_AXES = {
    "compute": "C, rollouts generated",
    "steps": "M, update steps",
    "tokens": "C, tokens",
    "wall_s": "C, seconds",
}


def axis(document: LawDocument) -> str:
    """Return the name of a law's x axis."""
    return _AXES[document.x.name]


def symbol(document: LawDocument) -> str:
    """Return the symbol of a law's x axis."""
    return "M" if document.x.name == "steps" else "C"


def count(number: int, noun: str) -> str:
    """Return a number of things.

    >>> count(1, "run"), count(2000, "core")
    ('1 run', '2,000 cores')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def runs(least: int, most: int) -> str:
    """Return a number of runs.

    >>> runs(1, 1), runs(2, 3)
    ('1 run', '2 to 3 runs')
    """
    return count(most, "run") if least == most else f"{least:,} to {most:,} runs"


def law_summary(document: LawDocument) -> list[str]:
    """Return what a fit found, line by line."""
    lines = [data_line(document), *ends(document)]
    lines += crossovers(document)
    lines.append(saturation(document))
    lines.append(verdict(document))
    return [line for line in lines if line]


def ends(document: LawDocument) -> list[str]:
    """Return n* at the first and at the last budget where it is known."""
    frontier = document.frontier
    said = [p for p in frontier if p.n_star.status != "not_identified"] or frontier
    return [f"n* at {symbol(document)} = {number(p.x)}: {quantity(p.n_star)}." for p in (said[0], said[-1])]


def data_line(document: LawDocument) -> str:
    """Return what was fitted."""
    grid = document.grid
    n = sorted({g.rollouts_per_problem for g in grid})
    fixed = ", ".join(f"{k} = {v}" for k, v in document.fixed.items())
    every = sum(g.runs for g in grid)
    return (
        f"{document.metric} on {document.eval_set}: {count(every, 'run')}, n = {', '.join(map(str, n))}"
        + (f"; {fixed}" if fixed else "")
        + f"; setting {document.setting}, curve {document.curve}."
    )


def crossovers(document: LawDocument) -> list[str]:
    """Return where one n overtakes another, for neighbours along the frontier."""
    path: list[int] = []
    for point in document.frontier:
        if not path or path[-1] != point.n_star_strict:
            path.append(point.n_star_strict)
    wanted = {(a, b) for a, b in itertools.pairwise(path) if a < b}
    out = []
    for c in document.crossovers:
        if (c.from_, c.to) not in wanted:
            continue
        text = f"n = {c.to} overtakes n = {c.from_} at {symbol(document)} = {number(c.x)}"
        if not c.supported:
            text += ", outside what both were measured at: not supported by data"
        elif c.interval is not None:
            text += f" ({interval(c.interval)})"
        elif c.status == "not_identified":
            text += " (not identified)"
        out.append(text + ".")
    return out


def saturation(document: LawDocument) -> str:
    """Return whether n* levels off; empty if there is nothing to say."""
    q = document.params["saturation"]
    if q.status == "refused":
        said = having(document.flags, Code.NO_SATURATION)
        return f"Saturation: not stated; {said[0].text}." if said else ""
    if q.status == "ok":
        return f"Saturation: n* levels off at {quantity(q)}."
    few = document.comparison.refused == "few_seeds"
    level = f"; a level would lie at {quantity(q)}" if q.status == "lower_bound" else ""
    known = "not stated with fewer than 3 seeds" if few else "not reached" if level else "not identified"
    return f"Saturation: {known}{level}."


_FORMS = {
    "constant": "a constant n",
    "linear": "n linear in log C",
    "power": "a power law, n doubling at a constant rate in log C",
    "logistic": "a logistic, n levelling off",
    "non-monotone": "an n that turns round",
}


def form(law: str) -> str:
    """Return what a law says of n*(C)."""
    return _FORMS[law]


def preferred(document: LawDocument) -> str | None:
    """Return the name of the law that the rewards prefer, the logistic where laws were not compared.

    None where they were and no preference is stated.
    """
    return document.comparison.preferred if document.comparison.laws else "logistic"


def equation(document: LawDocument) -> str:
    """Return the preferred law with its numbers; empty of none, and of the logistic, which has a table."""
    name = preferred(document)
    if name is None or name == "logistic":
        return ""
    law = document.comparison.laws[name]
    theta, ends = law.theta, law.interval
    if not theta:
        return ""
    if name == "constant":
        drawn = f" ({interval([2**e for e in ends[0]])})" if ends else ""
        return f"n* = {2 ** theta[0]:.3g}{drawn}"
    if name == "power":  # log2 n* = α + β log10 C
        drawn = f" (exponent, {interval([e * math.log10(2) for e in ends[1]])})" if ends else ""
        return f"n* = {2 ** theta[0]:.3g} C^{theta[1] * math.log10(2):.3g}{drawn}"
    terms = "".join(
        f" {'+' if t >= 0 else '−'} {abs(t):.3g} {x}"
        for t, x in zip(theta[1:], ("log10 C", "(log10 C)²"), strict=False)
    )
    return f"{'n*' if name == 'linear' else 'log2 n*'} = {theta[0]:.3g}{terms}".replace("= -", "= −")


def verdict(document: LawDocument) -> str:
    """Return which law holds and what it is worth; empty if there is nothing to say."""
    comparison = document.comparison
    if comparison.refused == "few_seeds":
        return _unstated(comparison)
    if comparison.preferred is not None:
        return _laws_line(comparison.laws, comparison.preferred, comparison.verdict)
    constant, logistic = comparison.constant, comparison.logistic
    if comparison.verdict == "constant" and constant is not None:
        return (
            f"A constant n = {constant.n} loses at most {constant.max_regret:.3f} in reward anywhere "
            "measured: n hardly matters here."
        )
    if comparison.verdict == "no law":
        return "No law: the logistic does no better along the frontier than a constant n."
    if constant is None or logistic is None:
        return ""
    return (
        f"On the fitted curves the law loses {logistic.mean_regret:.4f} in reward on "
        f"average along the frontier; always n = {constant.n} would lose {constant.mean_regret:.4f}."
    )


def _unstated(comparison: Comparison) -> str:
    """That no law is preferred, why, and how far apart the laws are."""
    text = (
        "Law: no preference is stated with fewer than 3 seeds per configuration "
        f"(the fewest here: {comparison.seeds})"
    )
    if not comparison.laws:
        return f"{text}."
    least = min(law.aic for law in comparison.laws.values())
    told = ", ".join(f"{name} {law.aic - least:+.1f}" for name, law in comparison.laws.items())
    return f"{text}. AIC above the least: {told}."


def _laws_line(laws: Mapping[str, LawEntry], best: str, verdict: str | None) -> str:
    """Which law the rewards prefer, and what that is worth."""
    held = laws[best].held_out_regret is not None
    where = "on held-out seeds" if held else "on the fitted surface"
    lost = {name: law.held_out_regret if held else law.mean_regret for name, law in laws.items()}
    told = ", ".join(f"{name} {law.aic - laws[best].aic:+.1f}" for name, law in laws.items() if name != best)
    if any(law.aic < laws[best].aic for law in laws.values()):
        told += "; of laws within 2 of the least the simplest is named"
    text = (
        f"Law: the rewards prefer {_FORMS[best]} (AIC of the others: {told}). "
        f"It loses {lost[best]:.4f} in reward {where}"
    )
    if best != "constant":
        text += f", the best constant n {lost['constant']:.4f}"
    if verdict == "constant" and best != "constant":
        return f"{text}: n hardly matters here, for a constant loses at most 0.005 anywhere."
    return f"{text}."


def share(probability: float) -> str:
    """Return a share in percent, rounded down: all is only all.

    >>> share(0.995), share(1.0), share(0.29)
    ('99%', '100%', '29%')
    """
    return f"{math.floor(100 * probability + 1e-9)}%"


def points_summary(document: PointsDocument) -> list[str]:
    """Return the law of ready-made points, with its conditional standard errors."""
    label = document.standard_errors.label
    errors = asdict(document.standard_errors)
    symbol = "log10 C0" if document.x.log10 else "M0"
    names = {"L": "L", "k": "k", "x0": symbol, "b": "b"}
    parts = []
    for key, name in names.items():
        error = errors[key]
        value = document.params[key].value
        parts.append(
            f"{name} = {value:.4g}" + (f" (SE {error:.2g})" if error is not None else " (not identified)")
        )
    return [
        f"{document.points} points, SSE {document.sse:.4g}: {', '.join(parts)}",
        f"Standard errors: {label}.",
    ]


def intervals(document: LawDocument) -> list[str]:
    """Return what the intervals are made of, and what they leave out."""
    bootstrap = document.bootstrap
    if not bootstrap.draws:
        return ["none: nothing was drawn"]
    failed = f", {bootstrap.failed} of them failed" if bootstrap.failed else ""
    paired = (
        "Runs of one seed share their problems, which cancels where n are compared: differences between n "
        "are known better than rewards."
    )
    return [
        f"95 %, from {bootstrap.draws:,} draws{failed} (seed {bootstrap.seed}); what is drawn: "
        f"{_drawn(document)}. Every step is repeated in every draw.",
        *([paired] if bootstrap.unit == "run" else []),
        "On simulated sweeps they hold the true n* about as often as they say; rewards beyond the data come "
        "out too high, and their intervals do not know it (docs/statistics.md has the figures).",
    ]


def _drawn(document: LawDocument) -> str:
    """What the draws resample."""
    if document.bootstrap.unit == "block":
        return "block of residuals, where there is one run"
    if document.bootstrap.unit == "lack of fit":
        return "run (its distance from a smooth surface over n, where there is one run)"
    every = sum(g.runs for g in document.grid)
    return f"run ({every} runs; what a seed shares, and what a run has of its own)"


def side_by_side(by: str, documents: Mapping[Any, LawDocument]) -> list[str]:
    """Return laws one under the other, at computes that all of them cover."""
    low = max(d.x.range[0] for d in documents.values())
    high = min(d.x.range[1] for d in documents.values())
    lines = []
    for value, d in documents.items():
        lines.append(f"{by} = {value}: {data_line(d)}")
        near = d.frontier if low >= high else [_at(d, low * (high / low) ** (k / 4)) for k in range(1, 5)]
        lines += [f"  best n at {number(p.x)}: {quantity(p.n_star)}" for p in near]
        lines += [f"  {line}" for line in (saturation(d), verdict(d)) if line]
    if not low < high:
        lines.append(f"No compute is covered for every {by}, so the laws cannot be compared at one budget.")
    return lines


def retuned(name: str, value: Any, documents: Mapping[str, LawDocument], chosen: Any) -> list[str]:
    """Return the law at one value of an axis beside the one with it chosen anew for every n and C."""
    both = {f"{value} everywhere": documents["one"], "re-tuned": documents["retuned"]}
    lines = side_by_side(name, both)
    shown = ", ".join(f"{c[name]:g} at n = {c['rollouts_per_problem']}" for c in chosen.to_dict("records"))
    lines.append(f"Best {name} at the end: {shown}.")
    ends = chosen.loc[chosen["edge"], "rollouts_per_problem"].tolist()
    if ends:
        lines.append(
            f"At n = {', '.join(map(str, ends))} that is the lowest or the highest {name} that was run: "
            "more values may change this law."
        )
    return lines


def _at(document: LawDocument, x: float) -> FrontierPoint:
    """The point of a frontier nearest to x."""
    return min(document.frontier, key=lambda p: abs(p.x - x))
