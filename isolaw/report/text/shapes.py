"""The document of a comparison of two configurations: the answer, the numbers, the runs to settle it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolaw.allocation import Cell
from isolaw.evidence import interval
from isolaw.fits.flags import Code
from isolaw.report.document import Document, Stanza, Table, cautions
from isolaw.report.text import costs
from isolaw.report.text.numbers import count, number, share

if TYPE_CHECKING:
    from isolaw.evidence import Quantity
    from isolaw.fits.studies.shapes import ShapeComparison
    from isolaw.step_cost import Cost

_SURE = 0.95  # share of draws required for a claim
_UNSIGNED = {"rollouts": "rollouts", "hours": "hours of run time"}


def document(comparison: ShapeComparison, cost: Cost | None = None) -> Document:
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
    lines: list[Stanza] = [f"{_verdict(comparison)}.", Table.of(rows)]
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
        lines.append(f"Hours are from {costs.origin(cost)}. {costs.validation(cost)[0]}")
        lines += costs.extrapolated(cost, comparison.shapes)
    flags = [flag for flag in comparison.flags if flag.code != Code.AS_READ]
    return Document.of(f"{a} or {b}", [*lines, *cautions(flags)], comparison.to_dict())


def _what(comparison: ShapeComparison) -> str:
    if comparison.quantity == "reward":
        return f"{comparison.metric} on {comparison.eval_set}"
    return f"{_UNSIGNED[comparison.quantity]} to {comparison.asked}"


def _sure(probability: float) -> str:
    return "above 99 %" if probability > 0.99 else share(probability)


def _verdict(comparison: ShapeComparison) -> str:
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
