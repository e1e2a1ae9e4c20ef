"""The document of a comparison of two configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolaw.allocation import Cell
from isolaw.evidence import count, interval, number, share
from isolaw.fits.flags import Code
from isolaw.report.document import Document, Stanza, Table, cautions
from isolaw.report.text import costs

if TYPE_CHECKING:
    from isolaw.evidence import Quantity
    from isolaw.fits.studies.shapes import ShapeComparison
    from isolaw.step_cost import Cost

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
    if comparison.equal is not None and comparison.equal >= _SURE:
        return (
            f"A and B are within {comparison.tolerance:g} of each other {condition} "
            f"(probability {_probability_text(comparison.equal)})"
        )
    if (comparison.neither or 0.0) >= _SURE:
        return f"The runs do not show which configuration is better {condition}, which neither reaches"
    p_b = 1 - p_a - (comparison.neither or 0.0)
    name, probability = ("A", p_a) if p_a >= p_b else ("B", p_b)
    if probability >= _SURE:
        return f"{name} is better {condition} (probability {_probability_text(probability)})"
    return (
        f"The runs do not show which configuration is better {condition}: {name} is better with probability "
        f"{share(probability)}"
    )


def _quantity(quantity: Quantity) -> str:
    if quantity.value is None:
        return "not known"
    if quantity.status == "lower_bound" and quantity.interval and quantity.interval[0] == quantity.value:
        return f"at least {number(quantity.value)}"
    return number(quantity.value) + (f" ({interval(quantity.interval)})" if quantity.interval else "")
