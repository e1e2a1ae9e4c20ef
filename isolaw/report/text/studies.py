"""The text of studies: choices in a backtest, laws side by side, and model-size laws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isolaw.fits.document.codec import encoded
from isolaw.report.document import Document, Stanza, Table
from isolaw.report.text.law import data_line, saturation, symbol, verdict
from isolaw.report.text.numbers import number

if TYPE_CHECKING:
    from isolaw.evidence import Quantity
    from isolaw.fits.document.schema import LawDocument
    from isolaw.fits.studies.model_size import SizeLaw

_TIMES = {1: "once", 2: "twice"}


def choices(result: Mapping[str, Any], rule: str) -> list[str]:
    """Return a rule's choice of n at each budget, with B_p if it varies and counts if seeds differ."""
    allocations = {name: losses["allocations"] for name, losses in result["rules"].items()}
    several = len({b for budgets in allocations.values() for places in budgets for b, _ in places}) > 1
    return [_chosen(places, several) for places in allocations[rule]]


def _chosen(places: list[list[int]], several: bool) -> str:
    """Return the choices at one budget, the most frequent first. ``places`` has (B_p, n) for each split.

    >>> _chosen([[16, 4], [16, 64], [16, 4]], False), _chosen([[16, 4], [16, 4]], True)
    ('n 4 twice, n 64 once', 'n 4 at B_p 16')
    """
    ordered = sorted(Counter(map(tuple, places)).items(), key=lambda pair: (-pair[1], pair[0]))
    names = [f"n {n}" + (f" at B_p {b}" if several else "") for (b, n), _ in ordered]
    if len(ordered) == 1:
        return names[0]
    times = [_TIMES.get(often, f"{often} times") for _, often in ordered]
    return ", ".join(" ".join(pair) for pair in zip(names, times, strict=True))


def _side_by_side(by: str, documents: Mapping[Any, LawDocument]) -> list[str]:
    """Return n* of several laws at budgets that all of them cover."""
    low = max(d.x.range[0] for d in documents.values())
    high = min(d.x.range[1] for d in documents.values())
    lines = []
    for value, d in documents.items():
        lines.append(f"{by} = {value}: {data_line(d)}")
        points = d.frontier
        if low < high:
            common = [low * (high / low) ** (k / 4) for k in range(1, 5)]
            points = tuple(min(d.frontier, key=lambda p: abs(p.x - x)) for x in common)
        lines += [f"  best n at {symbol(d)} = {number(p.x)}: {p.n_star}" for p in points]
        lines += [f"  {line}" for line in (saturation(d), verdict(d)) if line]
    if not low < high:
        lines.append(
            f"The runs of the different {by} have no range of compute in common, so isolaw cannot compare "
            "their laws at the same budget."
        )
    return lines


def retuned_summary(name: str, value: Any, documents: Mapping[str, LawDocument], chosen: Any) -> list[str]:
    """Return the law at one value of an axis, and the law with the axis re-tuned for every n and C."""
    lines = _side_by_side(name, {f"{value} everywhere": documents["one"], "re-tuned": documents["retuned"]})
    best = ", ".join(f"{c[name]:g} at n = {c['rollouts_per_problem']}" for c in chosen.to_dict("records"))
    lines.append(f"At the end of the runs, the best {name} is {best}.")
    if edge := chosen.loc[chosen["edge"], "rollouts_per_problem"].tolist():
        lines.append(
            f"At n = {', '.join(map(str, edge))} the best {name} is the lowest or highest value that was "
            "run. Add values beyond the edge; they may change this law."
        )
    return lines


def size_document(
    law: SizeLaw, predictions: Sequence[Mapping[str, Any]], more: Mapping[str, Any]
) -> Document:
    """Return the document of a model-size law with predicted rewards. ``more`` is added to its data."""
    curves = law.curves
    rows = [["N", "K(N)", "E(N), log10"]]
    rows += [[number(n), _estimate(law.K[n]), _estimate(law.E[n])] for n in law.K]
    lines: list[Stanza] = [
        f"The law is fitted to {len(curves.sizes)} model sizes, N = {number(curves.sizes[0])} to "
        f"{number(curves.sizes[-1])}, and {curves.x.size} checkpoints. X is {curves.x_name}.",
        f"K_max = {_estimate(law.K_max)}",
        f"N0 = {_estimate(law.N0)}",
        Table.of(rows, "><"),
    ]
    for p in predictions:
        at = f"N = {number(p['model_size'])} at {curves.x_name} = {number(p[curves.x_name])}"
        extrapolated = " (E(N) is extrapolated)" if p["extrapolated_size"] else ""
        lines.append(f"{at}: reward {_estimate(p['reward'])}{extrapolated}")
    data = {**law.to_dict(), **more, "predictions": encoded(predictions)}
    return Document.of("model sizes", lines, data)


def _estimate(q: Quantity) -> str:
    return "not identified" if q.value is None else str(q)
