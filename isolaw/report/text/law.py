"""The text of a fitted law: the fitted data, n*(C), crossovers, saturation, compared laws and flags."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from isolaw.evidence import Quantity, count, in_reward, interval, number
from isolaw.fits.flags import Code, Flag, flags_with
from isolaw.fits.laws.equations import LAWS, equation, form_equation, parameters, preferred
from isolaw.fits.optimum import to_measured_level
from isolaw.runs import SYMBOL_OF

if TYPE_CHECKING:
    from isolaw.fits.document.schema import LawDocument

__all__ = [
    "axis", "data_line", "ends", "equation", "form", "form_equation",
    "intervals", "law_name", "law_summary", "notes", "parameters", "preferred", "saturation", "star",
    "steps_scale", "symbol", "verdict",
]  # fmt: skip

_AXES = {"compute": "rollouts generated", "steps": "update steps", "tokens": "tokens"}


def notes(flags: Iterable[Flag]) -> list[str]:
    """Return the printed texts of the flags, except flags that other lines state.

    The first line of the output states the flags about simulation (`isolaw.evidence`), and `saturation` its
    own.
    """
    stated_elsewhere = (Code.SIMULATED, Code.NO_SATURATION)
    texts = [caution.text for caution in flags if caution.code not in stated_elsewhere]
    first_words = [text.partition(" ")[0] for text in texts]
    named = [w == "isolaw" or "/" in w or not w[1:2].islower() for w in first_words]  # names, such as n*
    pairs = zip(texts, named, strict=True)
    return [text if is_name else text[:1].upper() + text[1:] for text, is_name in pairs]


def axis(document: LawDocument) -> str:
    """Return the label of a law's x axis."""
    return f"{symbol(document)}, {_AXES[document.x.name]}"


def symbol(document: LawDocument) -> str:
    """Return the symbol of a law's x axis, ``M`` or ``C``."""
    return "M" if document.x.name == "steps" else "C"


def steps_scale(document: LawDocument) -> int:
    """Return the factor from x to C: B if x counts steps, else 1."""
    return int(document.fixed["batch_rollouts"]) if document.x.name == "steps" else 1


def law_summary(document: LawDocument) -> list[str]:
    """Return the findings of a fit, line by line: the law, the fitted data, and how n* changes."""
    lines = (
        verdict(document),
        data_line(document),
        ends(document),
        *_crossovers(document),
        saturation(document),
    )
    return [line for line in lines if line]


def data_line(document: LawDocument) -> str:
    """Return one line about the fitted data: metric, runs, n, fixed values and learning curve."""
    levels = sorted({entry.level(document.axis) for entry in document.grid})
    fixed = ", ".join(f"{SYMBOL_OF.get(name, name)} = {value}" for name, value in document.fixed.items())
    return (
        f"{document.metric} on {document.eval_set}, fitted to {_runs(document)} with "
        + f"{SYMBOL_OF[document.axis]} = {', '.join(map(str, levels))}"
        + f"{' and ' if fixed else ''}{fixed}. isolaw holds {document.hold} fixed"
        + (f"; the learning curve is {document.curve}." if document.curve else ".")
    )


def _runs(document: LawDocument) -> str:
    return count(sum(g.runs for g in document.grid), "run")


def ends(document: LawDocument) -> str:
    """Return the intervals of n* at the first and last budgets where n* is known.

    Only the recommendation gives a value of n, so that each text names a single n for a budget.
    """
    known = [p for p in document.frontier if p.n_star.status != "not_identified"] or document.frontier
    texts = [
        f"{star(to_measured_level(p.n_star, document))} at {symbol(document)} = {number(p.x)}"
        for p in (known[0], known[-1])
    ]
    n, levels = SYMBOL_OF[document.axis], [entry.level(document.axis) for entry in document.grid]
    return f"{n}*, the {n} of {min(levels)}–{max(levels)} with the highest reward, is {' and '.join(texts)}."


def star(n_star: Quantity) -> str:
    """Return the interval of n* or B_p* as text, or the value if there are no draws.

    >>> star(Quantity(887.0, (413.0, None))), star(Quantity(16.0, None, "not_identified"))
    ('at least 413 (95 % bound)', 'not known')
    """
    if n_star.interval is None:
        return number(n_star.value) if n_star.status == "ok" and n_star.value is not None else "not known"
    kind, _, ends = interval(n_star.interval).partition(": ")
    return f"{ends} ({kind})"


def _crossovers(document: LawDocument) -> list[str]:
    """Return the budgets at which one n overtakes another, for consecutive n along the frontier."""
    path = [n for n, _ in itertools.groupby(point.n_star_strict for point in document.frontier)]
    neighbours = {(lower, higher) for lower, higher in itertools.pairwise(path) if lower < higher}
    n, lines = SYMBOL_OF[document.axis], []
    for c in document.crossovers:
        if (c.from_, c.to) not in neighbours:
            continue
        text = f"{n} = {c.to} overtakes {n} = {c.from_} at {symbol(document)} = {number(c.x)}"
        if not c.supported:
            text += f", which no data support: it is outside the range measured for both {n}"
        elif c.interval is not None:
            text += f" ({interval(c.interval)})"
        elif c.status == "not_identified":
            text += " (not identified)"
        lines.append(f"{text}.")
    return lines


def saturation(document: LawDocument) -> str:
    """State whether n* levels off; empty if that is not known."""
    level, n = document.params["saturation"], SYMBOL_OF[document.axis]
    if level.status == "ok":
        return f"{n}* levels off at {level}."
    level_text = f"; if it does, at {level}" if level.status == "lower_bound" else ""
    is_unknown = level.status == "refused" and not flags_with(document.flags, Code.NO_SATURATION)
    return "" if is_unknown else f"No sign yet that {n}* levels off{level_text}."


def law_name(law: str) -> str:
    """Return the name of a law. The name "quadratic" does not claim that n* falls.

    >>> law_name("non-monotone"), law_name("power")
    ('quadratic', 'power')
    """
    return (law in LAWS and LAWS[law].label) or law


def form(law: str, document: LawDocument) -> str:
    """Return the form of a law in words, such as ``a constant n``."""
    text = LAWS[law].words.format(x="log C" if document.x.log10 else "M", n=SYMBOL_OF[document.axis])
    return f"a power law, {text}" if law == "power" and document.x.log10 else text


def verdict(document: LawDocument) -> str:
    """Return the preferred law with its numbers and why it is preferred; empty without a comparison."""
    comparison = document.comparison
    if flags_with(document.flags, Code.FLAT):
        return "isolaw prefers no law, since the reward never changed."
    if comparison.refused == "few_seeds":
        return f"Comparing laws needs 3 seeds per configuration; some have {comparison.seeds}."
    if not comparison.laws:
        no_law = "isolaw prefers no law: the logistic does not describe " + SYMBOL_OF[document.axis]
        return f"{no_law}*." if comparison.verdict == "no law" else ""
    if not document.bootstrap.draws:
        return " ".join(["Without draws, isolaw prefers no law.", *_constant_loss(document)])
    if comparison.preferred is None:
        return " ".join(["The draws prefer no law.", *_constant_loss(document)])
    n, law, name = SYMBOL_OF[document.axis], equation(document), form(comparison.preferred, document)
    text = f"isolaw prefers the law {law}, {name}. " if law else f"isolaw prefers this law: {name}. "
    preferred_law = comparison.laws[comparison.preferred]
    loss = f"{in_reward(preferred_law.mean_loss, document.tolerance)} in {document.metric}"
    text += f"On average over C, its {n} loses {loss} against the best {n}"
    if comparison.preferred == "constant":
        return f"{text}, and no other law loses less in 95 % of draws."
    constant = in_reward(comparison.laws["constant"].mean_loss, document.tolerance)
    text += f"; the best constant {n} loses {constant}. "
    return " ".join([f"{text}No other law loses less in 95 % of draws.", *_constant_loss(document)])


def _constant_loss(document: LawDocument) -> list[str]:
    """Return the largest loss of the preferred constant n as a sentence; empty without such a law."""
    comparison = document.comparison
    if comparison.verdict != "constant":
        return []
    constant, n = comparison.laws["constant"], SYMBOL_OF[document.axis]
    loss, level = in_reward(constant.max_loss, document.tolerance, 3), round(2 ** constant.theta[0])
    return [f"On the fitted surface, {n} = {level} loses at most {loss} at any budget."]


def intervals(document: LawDocument) -> list[str]:
    """Return how the intervals are computed, and the uncertainty that they do not cover."""
    bootstrap = document.bootstrap
    if not bootstrap.draws:
        return ["The fit made no draws, so there are no intervals."]
    has_single_runs = bootstrap.unit == "lack of fit"
    if document.surface is not None:
        drawn = f"the reward over n, B_p and C, given {_runs(document)}. Each draw gives n*, losses and laws"
        if has_single_runs:
            drawn += (
                ". With one run of each n, the scatter of runs about a smooth function of n gives their "
                "variance"
            )
    elif bootstrap.unit == "block":
        drawn = "blocks of residuals, since each configuration has one run. Each draw repeats the whole fit"
    else:
        drawn = _runs(document) + " (their distance from a smooth surface over n)" * has_single_runs
        drawn += ". Each draw repeats the whole fit"
    failed = f", of which {bootstrap.failed} failed," if bootstrap.failed else ""
    lines = [
        f"Intervals contain 95 % of {bootstrap.draws:,} draws{failed} (seed {bootstrap.seed}) of {drawn}."
    ]
    if bootstrap.unit == "run":
        lines.append(
            "Runs with the same seed share their problems. The noise of the problems cancels when n are "
            "compared, so differences between n are known better than rewards."
        )
    return [*lines, "docs/statistics.md lists how often intervals contain the truth on simulated sweeps."]
