"""Plain words for numbers and laws: one place, for every door."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from isolaw.fits.document.flags import Code, Flag, having

if TYPE_CHECKING:
    from isolaw.fits.document.schema import Comparison, FrontierPoint, LawDocument, LawEntry, PointsDocument
    from isolaw.fits.quantity import Quantity

# Flags whose text explains a name; the others are sentences of their own.
_NAMES: Mapping[str, str] = {
    str(code): code.replace("_", " ")
    for code in (
        Code.NO_INTERVALS, Code.NO_DRAWS, Code.MISFIT, Code.GRID_EDGE, Code.CENSORED, Code.LACK_OF_FIT,
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
}  # fmt: skip


def flag(own: Flag) -> str:
    """Return a flag as it is printed.

    >>> flag(Flag(Code.FLAT, "at this budget no measured n is better than another"))
    'flat: at this budget no measured n is better than another'
    """
    name = _NAMES.get(own.code)
    return f"{name}: {own.text}" if name else own.text


def bound_by(point: FrontierPoint, document: LawDocument) -> list[str]:
    """Return why n* is only a bound at a point of the frontier."""
    missing = "a neighbouring n was" if document.method == "paper" else "three n were"
    named = {"grid_edge": "grid edge", "neighbour": f"{missing} not measured here"}
    return [named[why] for why in point.censored_by]


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
    said = having(document.flags, Code.NO_SATURATION)
    if q.status == "ok":
        return f"Saturation: n* levels off at {quantity(q)}."
    if q.status == "refused":
        return f"Saturation: not stated; {said[0].text}." if said else ""
    why = f"not stated; {said[0].text}" if said else "not reached inside the measured n"
    level = f"; a level would be {quantity(q)}" if q.status == "lower_bound" else ""
    return f"Saturation: {why}{level}."


# What a law says of n*(C): in words, as an equation, and the names of θ.
_FORMS = {
    "constant": "a constant n",
    "linear": "n linear in {x}",
    "power": "n doubling at a constant rate in {x}",
    "logistic": "a logistic in {x}",
    "non-monotone": "log n quadratic in {x}",
}
_EQUATIONS = {
    "constant": "n* = n0",
    "linear": "n* = α + β {x}",
    "power": "log2 n* = α + β {x}",
    "logistic": "log2 n* = b + L / (1 + exp(−k ({x} − x0)))",
    "non-monotone": "log2 n* = α + β {x} + γ {x2}",
}
_GREEK = ("α", "β", "γ")


def law_name(law: str) -> str:
    """Return a law's name; that of a form says nothing of whether n* falls.

    >>> law_name("non-monotone"), law_name("power")
    ('quadratic', 'power')
    """
    return {"non-monotone": "quadratic"}.get(law, law)


def form(law: str, document: LawDocument) -> str:
    """Return what a law says of n*(C)."""
    text = _FORMS[law].format(x="log C" if document.x.log10 else "M")
    return f"a power law, {text}" if law == "power" and document.x.log10 else text


def form_equation(law: str, document: LawDocument) -> str:
    """Return a law as an equation with names for its parameters."""
    x, squared = _terms(document)
    return _EQUATIONS[law].format(x=x, x2=squared)


def parameters(law: str, entry: LawEntry) -> str:
    """Return θ of a law, each with its 95 % of draws; empty where it is not known."""
    names = {"constant": ("n0",), "logistic": ("b", "L", "k", "x0")}.get(law, _GREEK)
    natural = {"n0": lambda v: 2**v, "k": math.exp}  # the constant is fitted as log2 n0, k as log k
    out = []
    for i, (name, value) in enumerate(zip(names, entry.theta, strict=False)):
        at, *ends = (
            _signed(natural.get(name, float)(v))
            for v in (value, *(entry.interval[i] if entry.interval else ()))
        )
        out.append(f"{name} = {at}" + (f" ({ends[0]} to {ends[1]})" if ends else ""))
    return ", ".join(out)


def _signed(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def _terms(document: LawDocument) -> tuple[str, str]:
    """What a law is a function of, and its square."""
    return ("log10 C", "(log10 C)²") if document.x.log10 else ("M", "M²")


def preferred(document: LawDocument) -> str | None:
    """Return the name of the law that draws prefer; by the paper's method it is the logistic in any case.

    None where no preference is stated.
    """
    return "logistic" if document.method == "paper" else document.comparison.preferred


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
    if name == "power" and document.x.log10:  # log2 n* = α + β log10 C
        drawn = f" (exponent, {interval([e * math.log10(2) for e in ends[1]])})" if ends else ""
        return f"n* = {2 ** theta[0]:.3g} C^{theta[1] * math.log10(2):.3g}{drawn}"
    terms = "".join(
        f" {'+' if t >= 0 else '−'} {abs(t):.3g} {x}"
        for t, x in zip(theta[1:], _terms(document), strict=False)
    )
    return f"{'n*' if name == 'linear' else 'log2 n*'} = {_signed(theta[0])}{terms}"


def verdict(document: LawDocument) -> str:
    """Return which law draws prefer and what it is worth; empty if there is nothing to say."""
    c = document.comparison
    if c.refused == "few_seeds":
        text = (
            "Law: no preference is stated with fewer than 3 seeds per configuration "
            f"(the fewest here: {c.seeds})."
        )
        return " ".join([text, *_against_a_constant(c)])
    if not c.laws:
        return _on_the_curves(c)
    if having(document.flags, Code.VERSION_1):
        return "Law: an older isolaw compared the laws; fit the runs again."
    if not document.bootstrap.draws:
        return " ".join(["Law: without draws none is preferred.", *_constant(c)])
    if c.preferred is None:
        return " ".join(["Law: the draws prefer none.", *_against_a_constant(c), *_constant(c)])
    own = c.laws[c.preferred]
    shares = ", ".join(f"{law_name(name)} {share(better)}" for name, better in own.better.items())
    text = (
        f"Law: the draws prefer {form(c.preferred, document)}; no law loses less in 95% of them. "
        f"It loses {own.mean_regret:.4f} in reward on average"
    )
    if c.preferred != "constant":
        text += f", the best constant n {c.laws['constant'].mean_regret:.4f}"
    text += f". Share of draws in which it loses less than the others: {shares}."
    return text if c.preferred == "constant" else " ".join([text, *_constant(c)])


def _against_a_constant(c: Comparison) -> list[str]:
    """How often each law loses less than a constant n."""
    shares = [
        f"{law_name(name)} {share(law.better['constant'])}"
        for name, law in c.laws.items()
        if "constant" in law.better
    ]
    return (
        [f"Share of draws in which it loses less than a constant n: {', '.join(shares)}."] if shares else []
    )


def _constant(c: Comparison) -> list[str]:
    """That the best constant n loses little, where it does."""
    if c.verdict != "constant" or c.constant is None:
        return []
    return [f"On the fitted surface n = {c.constant.n} loses at most {c.constant.max_regret:.3f} anywhere."]


def _on_the_curves(c: Comparison) -> str:
    """The paper's comparison."""
    constant, logistic = c.constant, c.logistic
    if c.verdict == "constant" and constant is not None:
        return f"On the fitted curves n = {constant.n} loses at most {constant.max_regret:.3f} anywhere."
    if c.verdict == "no law":
        return "No law: on the fitted curves the logistic does no better than a constant n."
    if constant is None or logistic is None:
        return ""
    return (
        f"On the fitted curves the law loses {logistic.mean_regret:.4f} in reward on "
        f"average along the frontier; always n = {constant.n} would lose {constant.mean_regret:.4f}."
    )


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
        f"95 %, from {bootstrap.draws:,} draws{failed} (seed {bootstrap.seed}) of {_drawn(document)}.",
        *([paired] if bootstrap.unit == "run" else []),
        "docs/statistics.md has how often they hold the truth on simulated sweeps.",
    ]


def _drawn(document: LawDocument) -> str:
    """What the draws are of."""
    every = count(sum(g.runs for g in document.grid), "run")
    if document.surface is not None:
        return (
            f"the reward over n, B_p and C, given {every}; n*, losses and laws are computed in each draw"
            + (
                "; with one run of each n, runs vary as they scatter about a smooth function of n"
                * _alone(document)
            )
        )
    if document.bootstrap.unit == "block":
        return "blocks of residuals, as there is one run of each configuration; every step is repeated"
    scatter = " (their distance from a smooth surface over n)" * _alone(document)
    return f"{every}{scatter}; every step is repeated in every draw"


def _alone(document: LawDocument) -> bool:
    return document.bootstrap.unit == "lack of fit"


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
