"""The text of studies: backtests, laws side by side, model sizes and rollouts to a reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isolaw.evidence import number
from isolaw.fits.document.codec import encoded
from isolaw.fits.laws.equations import signed
from isolaw.report.document import Document, Passage, Stanza, Table
from isolaw.report.text.law import data_line, saturation, symbol, verdict

if TYPE_CHECKING:
    from isolaw.evidence import Quantity
    from isolaw.fits.document.schema import LawDocument
    from isolaw.fits.studies.model_size import SizeLaw
    from isolaw.fits.studies.target_laws import LrLaw
    from isolaw.fits.studies.targets import TargetRow, TargetStudy

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


_RULES = {"sqrt": "√(B_p · n)", "sqrt_problems": "√B_p", "linear": "B_p · n", "constant": "none"}


def targets(result: TargetStudy) -> Document:
    """Return the document: the critical batch, the learning rate, and the rollouts of every configuration."""
    targets = ", ".join(f"{target:g}" for target in result.targets)
    ranged = result.critical or result.lr or any(row.rollouts.interval for row in result.rows)
    ranges = (
        "Ranges are 95 % intervals."
        if ranged
        else "There are no intervals, which require a fit over several B_p."
    )
    head = f"Rollouts to reach {result.metric} = {targets} on {result.eval_set}. {ranges}"
    passages = [Passage("", [head])]
    if result.critical:
        rows = [["n", "to", "runs", "critical batch, B_p", "least rollouts", "least steps"]]
        rows += [
            [
                str(choice.rollouts_per_problem),
                f"{choice.target:g}",
                str(choice.reached),
                *map(_short, (choice.problems_per_batch, choice.rollouts, choice.steps)),
            ]
            for choice in result.critical
        ]
        passages.append(Passage("The critical batch", [Table.of(rows, ">")]))
    if result.lr is not None:
        passages.append(Passage("The learning rate", lr_lines(result.lr)))
    passages.append(Passage("Configurations", [_table(result)]))
    return Document(f"rollouts to {result.metric} = {targets}", passages, result.to_dict())


def lr_lines(law: LrLaw) -> list[Stanza]:
    """Return the exponents of the best lr, the rules that the runs support, and the best lr by (B_p, n)."""
    names = [("B_p", law.alpha), ("n", law.beta)]
    rows = [["best lr to", *(f"exponent of {symbol}" for symbol, exponents in names if exponents)]]
    for j, target in enumerate(law.targets):
        rows.append([f"{target:g}", *(_short(exponents[j]) for _, exponents in names if exponents)])
    lines: list[Stanza] = [Table.of(rows, ">"), _rule_line(law)]
    last = [choice for choice in law.choices if choice.target == law.targets[-1]]
    several = len({choice.rollouts_per_problem for choice in last}) > 1
    best = ", ".join(
        f"{choice.lr:.2g} at {choice.label if several else f'B_p = {choice.problems_per_batch}'}"
        for choice in last
    )
    lines.append(f"The best lr to reach {law.targets[-1]:g} is {best}.")
    if outside := [choice.label for choice in last if choice.beyond]:
        lines.append(f"No run used such an lr at {'; '.join(outside)}.")
    return lines


def _rule_line(law: LrLaw) -> str:
    """Return the learning rate rules that the runs support, and the exponents at the middle target."""
    kept = [f"lr ∝ {_RULES[rule]} ({rule})" if rule != "constant" else "one lr (constant)"
            for rule in law.supported]  # fmt: skip
    middle = len(law.targets) // 2
    names = [("B_p", law.alpha), ("n", law.beta)]
    power = " · ".join(
        f"{symbol}^{signed(exponents[middle].value or 0.0)}" for symbol, exponents in names if exponents
    )
    if not kept:
        return f"The best lr grows as {power}; the runs reject every rule of recipe.lr_scaling at 5 %."
    text = f"The best lr grows as {power}. The runs support {' and '.join(kept)}"
    left = len(law.p_values) - len(kept)
    text += "; they reject the other rules of recipe.lr_scaling at 5 %." if left else "; they reject no rule."
    if not law.alpha or not law.beta:
        text += f" The runs cannot distinguish rules that differ only in {'B_p' if law.beta else 'n'}."
    return text


def _table(result: TargetStudy) -> Table:
    """Return all results of each configuration for a single target, or its rollouts to each of several."""
    by_place: dict[tuple[object, ...], list[TargetRow]] = {}
    for row in result.rows:
        by_place.setdefault((*row.key, row.lr, str(row.recipe)), []).append(row)
    spent = next((row.spent for row in result.rows if row.spent is not None), None)
    ranged = any(row.rollouts.interval for row in result.rows)
    rows: list[dict[str, str | None]] = []
    for members in by_place.values():
        first = members[0]
        rows.append(
            {
                "B_p": str(first.problems_per_batch),
                "n": str(first.rollouts_per_problem),
                "lr": None if first.lr is None else f"{first.lr:.3g}",
                **{name: str(value) for name, value in first.recipe.items()},
                "runs": str(first.runs),
            }
        )
        if len(result.targets) > 1:
            rows[-1] |= {f"to {row.target:g}": _value(row.rollouts) for row in members}
            continue
        hours = first.spent and (first.spent.gpu_hours or first.spent.hours)
        more = "> " * (first.rollouts.status == "lower_bound")
        rows[-1] |= {
            "reached": str(first.reached),
            "rollouts": _value(first.rollouts),
            "95 %": _ends(first.rollouts) if ranged else None,
            "steps": _value(first.steps),
            "GPU hours" if spent and spent.gpu_hours else "hours": f"{more}{number(hours.value)}"
            if hours
            else None,
        }
    return Table.by_column(rows, ">")


def _value(q: Quantity) -> str:
    return f"{'> ' * (q.status == 'lower_bound')}{number(q.value)}"


def _short(q: Quantity) -> str:
    """Return a quantity as text for a table in which ranges are 95 % intervals."""
    if q.value is None:
        return "not stated"
    if q.interval is None:
        return f"{number(q.value)} (not identified)"
    low, high = q.interval
    if low is None or high is None:
        return f"{number(q.value)} ({f'> {number(low)}' if high is None else f'< {number(high)}'})"
    return f"{number(q.value)} ({number(low)}–{number(high)})"


def _ends(q: Quantity) -> str:
    return "" if q.interval is None else f"{number(q.interval[0])}–{number(q.interval[1])}"
