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
_ROW_LABELS = {
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
        rows += _contrast_rows(_shapes_text(contrast), comparison.names, contrast)
    if len(comparison.contrasts) > 1:
        rows += _contrast_rows(f"mean of {len(comparison.contrasts)}", comparison.names, comparison.mean)
    drawn_unit = {"run": "runs", "lack of fit": "runs", "block": "blocks of residuals"}
    units = " and ".join(dict.fromkeys(drawn_unit[unit] for unit in comparison.units))
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


def _along_axis(study: AxisComparison) -> Document:
    """Return the learning curves of the recipes along an axis, and the difference of each from the base."""
    comparisons = list(study.comparisons.values())
    base, budget = comparisons[0].mean.rows, comparisons[0].compute
    # Curves may not determine a ceiling, but rewards inside the measured range are known.
    names = ("A", "B", "C_mid") if budget is None else ("reward", "A", "B", "C_mid")
    columns = [f"R({number(budget)})" if budget and name == "reward" else name for name in names]
    changes = [f"{head}: {'ratio' if head == 'C_mid' else 'difference'}" for head in columns]
    rows = [[study.by, *columns, *changes]]
    rows.append([str(study.base), *(_cell(base[name].first, True) for name in names), *[""] * len(names)])
    for value, comparison in study.comparisons.items():
        mean_rows = comparison.mean.rows
        cells = [_cell(mean_rows[name].second, True) for name in names]
        cells += [_cell(mean_rows[name].difference, True) for name in names]
        rows.append([str(value), *cells])
    mean = "mean over " if len(comparisons[0].mean.configurations) > 1 else ""
    lines: list[Stanza] = [
        f"{comparisons[0].metric} on {comparisons[0].eval_set}, {mean}{_shapes_text(comparisons[0].mean)}. "
        f"Differences are from {study.by} = {study.base}.",
        Table.of(rows),
        "Intervals contain 95 % of draws.",
    ]
    return Document.of(f"recipes by {study.by}", lines, study.to_dict())


def _contrast_rows(title: str, names: tuple[str, str], contrast: Contrast) -> list[list[str]]:
    rows = [[title, *names, "difference"]]
    for name, label in _ROW_LABELS.items():
        if row := contrast.rows.get(name):
            is_error = name == "error"  # shows the error of each recipe with its interval, and no difference
            cells = [_cell(row.first, is_error), _cell(row.second, is_error)]
            rows.append([f"  {label}", *cells, "" if is_error else _cell(row.difference, True)])
    return rows


def _shapes_text(contrast: Contrast) -> str:
    return ", ".join(Cell(*shape).label for shape in contrast.configurations)


def _cell(quantity: Quantity, with_interval: bool = False) -> str:
    if quantity.value is None or quantity.status == "refused":
        return "not stated"
    if quantity.status == "not_identified":
        return "not determined"
    if not with_interval or quantity.interval is None:
        return number(quantity.value)
    low, high = quantity.interval
    return f"{number(quantity.value)} ({number(low)} to {number(high)})"


def _verdict(comparison: RecipeComparison) -> dict[str, str]:
    """Return one sentence each on ``ceiling``, ``speed``, ``reward`` (given a budget) and ``first half``."""
    names = comparison.names
    rows = {name: row.difference for name, row in comparison.mean.rows.items()}
    sentences = {
        "ceiling": _higher(names, rows["A"], "has the higher ceiling"),
        "speed": _faster(names, rows["C_mid"]),
    }
    if comparison.compute is not None:
        sentences["reward"] = _higher(names, rows["reward"], f"is better at C = {number(comparison.compute)}")
    return {**sentences, "first half": _first_half(names, rows["end"], rows["predicted"])}


def _higher(names: TwoNames, difference: Quantity, claim: str) -> str:
    value = difference.value
    if value is None or difference.status != "ok":
        return f"the curves do not determine which recipe {claim}"
    if value == 0:
        return f"neither recipe {claim}, since both are equal"
    leader, size = names[value > 0], f"{abs(value):.3g}"
    if difference.interval is None:
        return f"{leader} {claim}, by {size} (without an interval, so this may be noise)"
    size = f"{size} ({_interval_text(difference, value < 0)})"
    if not sign_of_difference(difference):
        return f"neither recipe {claim} beyond noise; {leader} leads by {size}"
    return f"{leader} {claim}, by {size}"


def _faster(names: TwoNames, ratio: Quantity) -> str:
    if ratio.value is None or ratio.status != "ok":
        return "the curves do not determine which recipe is faster"
    if ratio.value == 1:
        return "neither recipe is faster, since both are equal"
    text = f"the C_mid of {names[1]} is {ratio.value:.3g} times the C_mid of {names[0]}"
    if ratio.interval is None:
        return f"{text} (without an interval, so this may be noise)"
    text = f"{text} ({_interval_text(ratio)})"
    sign = sign_of_difference(ratio, 1.0)
    if sign:
        return f"{names[sign < 0]} is faster, since {text}"
    return f"neither recipe is faster beyond noise; {text}"


def _first_half(names: TwoNames, measured: Quantity, predicted: Quantity) -> str:
    sign, predicted_sign = sign_of_difference(measured), sign_of_difference(predicted)
    if measured.value is None:
        return "not tested, since no compute was measured for both recipes"
    if sign is None:
        is_equal = measured.value == 0
        reason = "both end at the same reward" if is_equal else "the rewards at the end have no interval"
        return f"not tested, since {reason}"
    if sign:
        size = f"{abs(measured.value):.3g} higher ({_interval_text(measured, sign < 0)})"
        text = f"{names[sign > 0]} ends {size}; the first half of the compute"
        outcome = {sign: "predicts this", 0: "does not show this", -sign: "predicts the opposite"}
    else:
        text = f"at the end, the recipes differ by no more than noise ({_interval_text(measured)}); "
        text += "the first half of the compute"
        outcome = {0: "predicts the same", 1: "predicts a difference", -1: "predicts a difference"}
    return f"{text} {'cannot be fitted' if predicted_sign is None else outcome[predicted_sign]}"


def _interval_text(interval_of: Quantity, is_negated: bool = False) -> str:
    """Return the interval in words, negated if the sentence names the recipes in reverse order."""
    low, high = interval_of.interval or (None, None)
    if is_negated:
        low, high = (None if high is None else -high), (None if low is None else -low)
    if low is None or high is None:
        return f"95 %: {high:.3g} or less" if low is None else f"95 %: {low:.3g} or more"
    return f"95 %: {low:.3g} to {high:.3g}"


_SURE = 0.95  # share of draws required for a claim
_UNSIGNED = {"rollouts": "rollouts", "hours": "hours of run time"}


def shapes(comparison: ShapeComparison, cost: Cost | None = None) -> Document:
    """Return the document; its first sentence says which configuration is better and how probable that is."""
    a, b = (Cell(*shape).label for shape in comparison.shapes)
    rows = [["", "runs", _column_title(comparison), *(["C"] if comparison.compute else [])]]
    for i, (name, quantity) in enumerate(((f"A: {a}", comparison.a), (f"B: {b}", comparison.b))):
        compute_cell = [number(comparison.compute[i])] if comparison.compute else []
        rows.append([name, str(comparison.runs[i]), _quantity(quantity), *compute_cell])
    title = "A − B" if comparison.quantity == "reward" else "A / B"
    rows.append([title, "", _quantity(comparison.difference), *([""] if comparison.compute else [])])
    lines: list[Stanza] = [f"{_which_is_better(comparison)}.", Table.of(rows)]
    if 0 in comparison.runs:
        lacking = " and ".join(name for name, runs in zip("AB", comparison.runs, strict=True) if not runs)
        verb, rewards = ("have", "their rewards") if comparison.runs == (0, 0) else ("has", "its reward")
        lines.append(
            f"{lacking} {verb} no runs, so the surface through "
            f"{count(sum(comparison.runs) + comparison.others, 'run')} "
            f"predicts {rewards}."
        )
    if comparison.quantity == "reward" and comparison.probability is not None:
        lines.append(_runs_to_settle(comparison, cost is not None))
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


def _column_title(comparison: ShapeComparison) -> str:
    if comparison.quantity == "reward":
        return f"{comparison.metric} on {comparison.eval_set}"
    return f"{_UNSIGNED[comparison.quantity]} to {comparison.asked}"


def _probability_text(probability: float) -> str:
    return "above 99 %" if probability > 0.99 else share(probability)


def _which_is_better(comparison: ShapeComparison) -> str:
    """State which configuration is better, at which budget or target, and with which probability."""
    condition = f"after {comparison.asked}" if comparison.asked.endswith("h") else f"at {comparison.asked}"
    condition = condition if comparison.quantity == "reward" else f"on the way to {comparison.asked}"
    p_a = comparison.probability
    if p_a is None:
        return f"Without draws, isolaw does not state which configuration is better {condition}"
    if comparison.equal is not None and comparison.equal >= _SURE:
        return (
            f"A and B are within {comparison.tolerance:g} of each other {condition} "
            f"(probability {_probability_text(comparison.equal)})"
        )
    p_b = 1 - p_a - (comparison.neither or 0.0)
    name, probability = ("A", p_a) if p_a >= p_b else ("B", p_b)
    if probability >= _SURE:
        return f"{name} is better {condition} (probability {_probability_text(probability)})"
    return (
        f"The runs do not show which configuration is better {condition}: {name} is better with probability "
        f"{share(probability)}"
    )


def _runs_to_settle(comparison: ShapeComparison, in_hours: bool) -> str:
    """Name the runs that would settle the comparison."""
    further = comparison.further
    if further is None:
        text = "The difference is small: more than 16 additional runs of each configuration would settle it."
        return text + (" Timed steps of both would also narrow the interval." if in_hours else "")
    if not further.a and not further.b:
        return "No further run is needed."
    runs = [
        f"{count(needed, 'run')} of {name} to C = {number(compute)}"
        for name, needed, compute in zip("AB", (further.a, further.b), further.compute, strict=True)
        if needed
    ]
    shown = f"show that the rewards are within {comparison.tolerance:g} of each other"
    if further.shows == "better":
        shown = "show which configuration is better"
    return f"Add {' and '.join(runs)} ({number(further.rollouts)} rollouts), which isolaw expects to {shown}."


def _quantity(quantity: Quantity) -> str:
    if quantity.value is None:
        return "not known"
    if quantity.status == "lower_bound" and quantity.interval and quantity.interval[0] == quantity.value:
        return f"at least {number(quantity.value)}"
    return number(quantity.value) + (f" ({interval(quantity.interval)})" if quantity.interval else "")
