"""The documents of comparisons: of two recipes, of the recipes along an axis, and of two configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolaw.allocation import Cell
from isolaw.evidence import count, interval, number, share
from isolaw.fits.flags import Code
from isolaw.fits.studies.axis import AxisComparison
from isolaw.fits.studies.recipes import sign_of_difference
from isolaw.report.document import Document, Stanza, Table, cautions
from isolaw.report.text import costs

if TYPE_CHECKING:
    from isolaw.evidence import Quantity
    from isolaw.fits.studies.recipes import Contrast, RecipeComparison
    from isolaw.fits.studies.shapes import ShapeComparison
    from isolaw.step_cost import Cost

TwoNames = tuple[str, str]
_ROWS = {
    "A": "ceiling A",
    "C_mid": "C_mid (ratio)",
    "B": "exponent B",
    "reward": "reward at the budget",
    "end": "measured at the end",
    "predicted": "predicted from the first half",
    "error": "prediction error",
}


def recipes(comparison: RecipeComparison | AxisComparison) -> Document:
    """Return the comparison of two recipes with its verdict, or of all recipes along an axis."""
    if isinstance(comparison, AxisComparison):
        return _along_axis(comparison)
    facts = ", ".join(f"{fact} ({a} and {b})" for fact, (a, b) in comparison.facts.items())
    rows: list[list[str]] = []
    for contrast in comparison.contrasts:
        rows += _contrast(_places(contrast), comparison.names, contrast)
    if len(comparison.contrasts) > 1:
        rows += _contrast(f"mean of {len(comparison.contrasts)}", comparison.names, comparison.mean)
    drawn = {"run": "runs", "lack of fit": "runs", "block": "blocks of residuals"}
    units = " and ".join(dict.fromkeys(drawn[unit] for unit in comparison.units))
    first, second = comparison.names
    lines: list[Stanza] = [
        f"isolaw compares {comparison.metric} on {comparison.eval_set} of {first} and {second}."
        + (f" They differ in {facts}." if facts else ""),
        Table.of(rows),
        f"Intervals are 95 % bootstrap intervals over {units}"
        f"{', paired by seed' if comparison.paired else ''}.",
        *(f"{name.capitalize()}: {text}." for name, text in _verdict(comparison).items()),
    ]
    data = {**comparison.to_dict(), "verdict": _verdict(comparison)}
    return Document.of(f"{first} and {second}", lines, data)


def _along_axis(along: AxisComparison) -> Document:
    """Return the learning curves of the recipes along an axis, and the difference of each from the base."""
    comparisons = list(along.comparisons.values())
    base, budget = comparisons[0].mean.rows, comparisons[0].compute
    # Curves may not determine a ceiling, but rewards inside the measured range are known.
    names = ("A", "B", "C_mid") if budget is None else ("reward", "A", "B", "C_mid")
    heads = [f"R({number(budget)})" if budget and name == "reward" else name for name in names]
    changes = [f"{head}: {'ratio' if head == 'C_mid' else 'difference'}" for head in heads]
    rows = [[along.by, *heads, *changes]]
    rows.append([str(along.base), *(_cell(base[name].first, True) for name in names), *[""] * len(names)])
    for value, comparison in along.comparisons.items():
        mean = comparison.mean.rows
        cells = [_cell(mean[name].second, True) for name in names]
        cells += [_cell(mean[name].difference, True) for name in names]
        rows.append([str(value), *cells])
    several = "mean over " if len(comparisons[0].mean.configurations) > 1 else ""
    lines: list[Stanza] = [
        f"{comparisons[0].metric} on {comparisons[0].eval_set}, {several}{_places(comparisons[0].mean)}. "
        f"Differences are from {along.by} = {along.base}.",
        Table.of(rows),
        "Intervals contain 95 % of draws.",
    ]
    return Document.of(f"recipes by {along.by}", lines, along.to_dict())


def _contrast(title: str, names: tuple[str, str], contrast: Contrast) -> list[list[str]]:
    rows = [[title, *names, "difference"]]
    for name, label in _ROWS.items():
        if row := contrast.rows.get(name):
            alone = name == "error"  # shows the error of each recipe with its interval, and no difference
            cells = [_cell(row.first, alone), _cell(row.second, alone)]
            rows.append([f"  {label}", *cells, "" if alone else _cell(row.difference, True)])
    return rows


def _places(contrast: Contrast) -> str:
    return ", ".join(Cell(*shape).label for shape in contrast.configurations)


def _cell(q: Quantity, with_interval: bool = False) -> str:
    if q.value is None or q.status == "refused":
        return "not stated"
    if q.status == "not_identified":
        return "not determined"
    if not with_interval or q.interval is None:
        return number(q.value)
    low, high = q.interval
    return f"{number(q.value)} ({number(low)} to {number(high)})"


def _verdict(comparison: RecipeComparison) -> dict[str, str]:
    """Return one sentence each on ``ceiling``, ``speed``, ``reward`` (given a budget) and ``first half``."""
    names = comparison.names
    rows = {name: row.difference for name, row in comparison.mean.rows.items()}
    out = {
        "ceiling": _higher(names, rows["A"], "has the higher ceiling"),
        "speed": _speed(names, rows["C_mid"]),
    }
    if comparison.compute is not None:
        out["reward"] = _higher(names, rows["reward"], f"is better at C = {number(comparison.compute)}")
    return {**out, "first half": _first_half(names, rows["end"], rows["predicted"])}


def _higher(names: TwoNames, difference: Quantity, what: str) -> str:
    value = difference.value
    if value is None or difference.status != "ok":
        return f"the curves do not determine which recipe {what}"
    if value == 0:
        return f"neither recipe {what}, since both are equal"
    ahead, size = names[value > 0], f"{abs(value):.3g}"
    if difference.interval is None:
        return f"{ahead} {what}, by {size} (without an interval, so this may be noise)"
    size = f"{size} ({_interval(difference, value < 0)})"
    if not sign_of_difference(difference):
        return f"neither recipe {what} beyond noise; {ahead} leads by {size}"
    return f"{ahead} {what}, by {size}"


def _speed(names: TwoNames, ratio: Quantity) -> str:
    if ratio.value is None or ratio.status != "ok":
        return "the curves do not determine which recipe is faster"
    if ratio.value == 1:
        return "neither recipe is faster, since both are equal"
    text = f"the C_mid of {names[1]} is {ratio.value:.3g} times the C_mid of {names[0]}"
    if ratio.interval is None:
        return f"{text} (without an interval, so this may be noise)"
    text = f"{text} ({_interval(ratio)})"
    faster = sign_of_difference(ratio, 1.0)
    if faster:
        return f"{names[faster < 0]} is faster, since {text}"
    return f"neither recipe is faster beyond noise; {text}"


def _first_half(names: TwoNames, measured: Quantity, predicted: Quantity) -> str:
    truth, early = sign_of_difference(measured), sign_of_difference(predicted)
    if measured.value is None:
        return "not tested, since no compute was measured for both recipes"
    if truth is None:
        equal = (
            "both end at the same reward"
            if measured.value == 0
            else "the rewards at the end have no interval"
        )
        return f"not tested, since {equal}"
    if truth:
        size = f"{abs(measured.value):.3g} higher ({_interval(measured, truth < 0)})"
        text = f"{names[truth > 0]} ends {size}; the first half of the compute"
        outcome = {truth: "predicts this", 0: "does not show this", -truth: "predicts the opposite"}
    else:
        text = f"at the end, the recipes differ by no more than noise ({_interval(measured)}); "
        text += "the first half of the compute"
        outcome = {0: "predicts the same", 1: "predicts a difference", -1: "predicts a difference"}
    return f"{text} {'cannot be fitted' if early is None else outcome[early]}"


def _interval(q: Quantity, negated: bool = False) -> str:
    """Return the interval in words, negated if the sentence names the recipes in reverse order."""
    low, high = q.interval or (None, None)
    if negated:
        low, high = (None if high is None else -high), (None if low is None else -low)
    if low is None or high is None:
        return f"95 %: {high:.3g} or less" if low is None else f"95 %: {low:.3g} or more"
    return f"95 %: {low:.3g} to {high:.3g}"


_SURE = 0.95  # share of draws required for a claim
_UNSIGNED = {"rollouts": "rollouts", "hours": "hours of run time"}


def shapes(comparison: ShapeComparison, cost: Cost | None = None) -> Document:
    """Return the document; its first sentence says which configuration is better and how probable that is."""
    a, b = (Cell(*shape).label for shape in comparison.shapes)
    rows = [["", "runs", _what(comparison), *(["C"] if comparison.compute else [])]]
    for i, (name, quantity) in enumerate(((f"A: {a}", comparison.a), (f"B: {b}", comparison.b))):
        at = [number(comparison.compute[i])] if comparison.compute else []
        rows.append([name, str(comparison.runs[i]), _quantity(quantity), *at])
    rows.append(
        [
            "A − B" if comparison.quantity == "reward" else "A / B",
            "",
            _quantity(comparison.difference),
            *([""] if comparison.compute else []),
        ]
    )
    lines: list[Stanza] = [f"{_better(comparison)}.", Table.of(rows)]
    if 0 in comparison.runs:
        named = " and ".join(n for n, runs in zip("AB", comparison.runs, strict=True) if not runs)
        have, their = ("have", "their rewards") if comparison.runs == (0, 0) else ("has", "its reward")
        lines.append(
            f"{named} {have} no runs, so the surface through "
            f"{count(sum(comparison.runs) + comparison.others, 'run')} "
            f"predicts {their}."
        )
    if comparison.quantity == "reward" and comparison.probability is not None:
        lines.append(_settles(comparison, cost is not None))
    if comparison.neither:
        lines.append(
            f"In {share(comparison.neither)} of the draws, neither A nor B reaches the target "
            "within ten times the runs' compute."
        )
    if cost is not None:
        lines.append(f"Hours are from {costs.origin(cost)}. {costs.validation(cost)}")
        lines += costs.extrapolated(cost, comparison.shapes)
    flags = [flag for flag in comparison.flags if flag.code != Code.AS_READ]
    return Document.of(f"{a} or {b}", [*lines, *cautions(flags)], comparison.to_dict())


def _what(comparison: ShapeComparison) -> str:
    if comparison.quantity == "reward":
        return f"{comparison.metric} on {comparison.eval_set}"
    return f"{_UNSIGNED[comparison.quantity]} to {comparison.asked}"


def _sure(probability: float) -> str:
    return "above 99 %" if probability > 0.99 else share(probability)


def _better(comparison: ShapeComparison) -> str:
    """State which configuration is better, at which budget or target, and with which probability."""
    at = f"after {comparison.asked}" if comparison.asked.endswith("h") else f"at {comparison.asked}"
    at = at if comparison.quantity == "reward" else f"on the way to {comparison.asked}"
    p = comparison.probability
    if p is None:
        return f"Without draws, isolaw does not state which configuration is better {at}"
    if comparison.equal is not None and comparison.equal >= _SURE:
        return (
            f"A and B are within {comparison.tolerance:g} of each other {at} "
            f"(probability {_sure(comparison.equal)})"
        )
    q = 1 - p - (comparison.neither or 0.0)
    name, most = ("A", p) if p >= q else ("B", q)
    if most >= _SURE:
        return f"{name} is better {at} (probability {_sure(most)})"
    return (
        f"The runs do not show which configuration is better {at}: {name} is better with probability "
        f"{share(most)}"
    )


def _settles(comparison: ShapeComparison, in_hours: bool) -> str:
    """Name the runs that would settle the comparison."""
    further = comparison.further
    if further is None:
        text = "The difference is small: more than 16 additional runs of each configuration would settle it."
        return text + (" Timed steps of both would also narrow the interval." if in_hours else "")
    if not further.a and not further.b:
        return "No further run is needed."
    runs = [
        f"{count(k, 'run')} of {name} to C = {number(c)}"
        for name, k, c in zip("AB", (further.a, further.b), further.compute, strict=True)
        if k
    ]
    shows = (
        "show which configuration is better"
        if further.shows == "better"
        else f"show that the rewards are within {comparison.tolerance:g} of each other"
    )
    return f"Add {' and '.join(runs)} ({number(further.rollouts)} rollouts), which isolaw expects to {shows}."


def _quantity(q: Quantity) -> str:
    if q.value is None:
        return "not known"
    if q.status == "lower_bound" and q.interval and q.interval[0] == q.value:
        return f"at least {number(q.value)}"
    return number(q.value) + (f" ({interval(q.interval)})" if q.interval else "")
