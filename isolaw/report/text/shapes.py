"""The document of a comparison of two configurations: the answer, the numbers, the runs to settle it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolaw.evidence import interval
from isolaw.fits.cell import Cell
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


def document(found: ShapeComparison, cost: Cost | None = None) -> Document:
    """Return the document; its first sentence says which configuration is better and how probable that is."""
    a, b = (Cell(*shape).label for shape in found.shapes)
    rows = [["", "runs", _what(found), *(["C"] if found.compute else [])]]
    for i, (name, own) in enumerate(((f"A: {a}", found.a), (f"B: {b}", found.b))):
        at = [number(found.compute[i])] if found.compute else []
        rows.append([name, str(found.runs[i]), _quantity(own), *at])
    rows.append(
        [
            "A − B" if found.quantity == "reward" else "A / B",
            "",
            _quantity(found.difference),
            *([""] if found.compute else []),
        ]
    )
    lines: list[Stanza] = [f"{_verdict(found)}.", Table.of(rows)]
    if 0 in found.runs:
        named = " and ".join(n for n, runs in zip("AB", found.runs, strict=True) if not runs)
        have, their = ("have", "their rewards") if found.runs == (0, 0) else ("has", "its reward")
        lines.append(
            f"{named} {have} no runs, so the surface through {count(sum(found.runs) + found.others, 'run')} "
            f"predicts {their}."
        )
    if found.quantity == "reward" and found.probability is not None:
        lines.append(_settles(found, cost is not None))
    if found.neither:
        lines.append(
            f"In {share(found.neither)} of the draws, neither A nor B reaches the target "
            "within ten times the runs' compute."
        )
    if cost is not None:
        lines.append(f"Hours are from {costs.origin(cost)}. {costs.validation(cost)[0]}")
        lines += costs.extrapolated(cost, found.shapes)
    flags = [flag for flag in found.flags if flag.code != Code.AS_READ]
    return Document.of(f"{a} or {b}", [*lines, *cautions(flags)], found.to_dict())


def _what(found: ShapeComparison) -> str:
    if found.quantity == "reward":
        return f"{found.metric} on {found.eval_set}"
    return f"{_UNSIGNED[found.quantity]} to {found.asked}"


def _sure(probability: float) -> str:
    return "above 99 %" if probability > 0.99 else share(probability)


def _verdict(found: ShapeComparison) -> str:
    """State which configuration is better, at which budget or target, and with which probability."""
    at = f"after {found.asked}" if found.asked.endswith("h") else f"at {found.asked}"
    at = at if found.quantity == "reward" else f"on the way to {found.asked}"
    p = found.probability
    if p is None:
        return f"Without draws, isolaw does not state which configuration is better {at}"
    if found.equal is not None and found.equal >= _SURE:
        return f"A and B are within {found.tolerance:g} of each other {at} (probability {_sure(found.equal)})"
    q = 1 - p - (found.neither or 0.0)
    name, most = ("A", p) if p >= q else ("B", q)
    if most >= _SURE:
        return f"{name} is better {at} (probability {_sure(most)})"
    return (
        f"The runs do not show which configuration is better {at}: {name} is better with probability "
        f"{share(most)}"
    )


def _settles(found: ShapeComparison, in_hours: bool) -> str:
    """Name the runs that would settle the comparison."""
    own = found.further
    if own is None:
        text = "The difference is small: more than 16 additional runs of each configuration would settle it."
        return text + (" Timed steps of both would also narrow the interval." if in_hours else "")
    if not own.a and not own.b:
        return "No further run is needed."
    runs = [
        f"{count(k, 'run')} of {name} to C = {number(c)}"
        for name, k, c in zip("AB", (own.a, own.b), own.compute, strict=True)
        if k
    ]
    shows = (
        "show which configuration is better"
        if own.shows == "better"
        else f"show that the rewards are within {found.tolerance:g} of each other"
    )
    return f"Add {' and '.join(runs)} ({number(own.rollouts)} rollouts), which isolaw expects to {shows}."


def _quantity(q: Quantity) -> str:
    if q.value is None:
        return "not known"
    if q.status == "lower_bound" and q.interval and q.interval[0] == q.value:
        return f"at least {number(q.value)}"
    return number(q.value) + (f" ({interval(q.interval)})" if q.interval else "")
