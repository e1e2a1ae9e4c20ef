"""The text of studies: backtests, re-tuned laws, model sizes and rollouts to a reward."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isolaw.allocation import Cell
from isolaw.evidence import columns, number
from isolaw.fits.laws.equations import signed
from isolaw.report.document import Document, Passage, Stanza, Table
from isolaw.report.text.law import data_line, saturation, symbol, verdict

if TYPE_CHECKING:
    from isolaw.evidence import Quantity
    from isolaw.fits.law import Law
    from isolaw.fits.studies.model_size import SizeLaw
    from isolaw.fits.studies.target_laws import LrLaw
    from isolaw.fits.studies.targets import TargetRow, TargetStudy

_COUNT_WORDS = {1: "once", 2: "twice"}


def choices(result: Mapping[str, Any], rule: str) -> list[str]:
    """Return a rule's choice of n at each budget, with B_p if it varies and counts if seeds differ."""
    allocations = {name: losses["allocations"] for name, losses in result["rules"].items()}
    several_b = len({b for budgets in allocations.values() for shapes in budgets for b, _ in shapes}) > 1
    return [_choices_text(shapes, several_b) for shapes in allocations[rule]]


def _choices_text(shapes: list[list[int]], several_b: bool) -> str:
    """Return the choices at one budget, the most frequent first. ``shapes`` has (B_p, n) for each split.

    >>> _choices_text([[16, 4], [16, 64], [16, 4]], False), _choices_text([[16, 4], [16, 4]], True)
    ('n 4 twice, n 64 once', 'n 4 at B_p 16')
    """
    ordered = sorted(Counter(map(tuple, shapes)).items(), key=lambda pair: (-pair[1], pair[0]))
    names = [f"n {n}" + (f" at B_p {b}" if several_b else "") for (b, n), _ in ordered]
    if len(ordered) == 1:
        return names[0]
    count_words = [_COUNT_WORDS.get(count, f"{count} times") for _, count in ordered]
    return ", ".join(" ".join(pair) for pair in zip(names, count_words, strict=True))


def retuned_summary(name: str, value: Any, laws: Mapping[str, Law], chosen: Any) -> list[str]:
    """Return the law at one value of an axis, and the law with the axis re-tuned for every n and C."""
    documents = {key: law.document for key, law in laws.items()}
    low = max(document.x.range[0] for document in documents.values())
    high = min(document.x.range[1] for document in documents.values())
    budgets = [low * (high / low) ** (index / 4) for index in range(1, 5)]
    lines = []
    for title, document in ((f"{value} everywhere", documents["one"]), ("re-tuned", documents["retuned"])):
        lines.append(f"{name} = {title}: {data_line(document)}")
        points = [min(document.frontier, key=lambda point: abs(point.x - x)) for x in budgets]
        lines += [f"  best n at {symbol(document)} = {number(point.x)}: {point.n_star}" for point in points]
        lines += [f"  {line}" for line in (saturation(document), verdict(document)) if line]
    return [*lines, *_best_lines(name, chosen)]


def reward_lines(name: str, rewards: Any, chosen: Any) -> list[str]:
    """Return the reward of each value of an axis at the end of the runs, and the best value."""
    rows = [["B_p", "n", name, "reward"]]
    for b, n, value, reward in rewards.drop(columns=["compute", "edge"]).itertuples(index=False):
        rows.append([str(b), str(n), f"{value:g}", "unknown" if math.isnan(reward) else f"{reward:.3g}"])
    return ["The mean rewards at the end of the runs:", *columns(rows, ">"), *_best_lines(name, chosen)]


def _best_lines(name: str, chosen: Any) -> list[str]:
    """Return the best value of an axis for each configuration, and whether a value beyond may be better."""
    rows = chosen.itertuples(index=False)
    texts = [f"{value:g} at {Cell(b, n).label}{' (edge)' * edge}" for b, n, _, value, edge in rows]
    lines = [f"At the end of the runs, the best {name} is {'; '.join(texts)}."]
    edges = ["An edge is the lowest or the highest value that was run. Add values beyond it."]
    return lines + edges * bool(chosen["edge"].any())


def size_document(law: SizeLaw, extra_data: Mapping[str, Any]) -> Document:
    """Return the document of a model-size law. ``extra_data`` is added to its data."""
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
    return Document.of("model sizes", lines, {**law.to_dict(), **extra_data})


def _estimate(quantity: Quantity) -> str:
    return "not identified" if quantity.value is None else str(quantity)


_RULE_FORMULAS = {"sqrt": "√(B_p · n)", "sqrt_problems": "√B_p", "linear": "B_p · n", "constant": "none"}


def targets(result: TargetStudy) -> Document:
    """Return the document: the critical batch, the learning rate, and the rollouts of every configuration."""
    targets = ", ".join(f"{target:g}" for target in result.targets)
    is_repeated = any(row.rollouts.interval for row in result.rows)
    intervals_note = "There are no intervals, which require several seeds of a configuration."
    if result.critical or result.lr or (is_repeated and len(result.targets) == 1):
        intervals_note = "Ranges are 95 % intervals."
    elif is_repeated:
        intervals_note = "With a single target, isolaw also prints 95 % intervals."
    introduction = f"Rollouts to reach {result.metric} = {targets} on {result.eval_set}. {intervals_note}"
    passages = [Passage("", [introduction])]
    if result.critical:
        rows = [["n", "to", "runs", "critical batch, B_p", "least rollouts", "least steps"]]
        rows += [
            [
                str(choice.rollouts_per_problem),
                f"{choice.target:g}",
                str(choice.reached),
                *map(_table_text, (choice.problems_per_batch, choice.rollouts, choice.steps)),
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
    for index, target in enumerate(law.targets):
        rows.append([f"{target:g}", *(_table_text(exponents[index]) for _, exponents in names if exponents)])
    lines: list[Stanza] = [_rule_line(law), Table.of(rows, ">")]
    last_choices = [choice for choice in law.choices if choice.target == law.targets[-1]]
    several_n = len({choice.rollouts_per_problem for choice in last_choices}) > 1
    best = ", ".join(
        f"{choice.lr:.2g} at {choice.label if several_n else f'B_p = {choice.problems_per_batch}'}"
        for choice in last_choices
    )
    lines.append(f"The best lr to reach {law.targets[-1]:g} is {best}.")
    if not_run := [choice.label for choice in last_choices if choice.beyond]:
        lines.append(f"No run used such an lr at {'; '.join(not_run)}.")
    return lines


def _rule_line(law: LrLaw) -> str:
    """Return the learning rate rules that the runs support, and the exponents at the middle target."""
    kept = [f"lr ∝ {_RULE_FORMULAS[rule]} ({rule})" if rule != "constant" else "one lr (constant)"
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
    by_cell: dict[tuple[object, ...], list[TargetRow]] = {}
    for row in result.rows:
        by_cell.setdefault((*row.key, row.lr, str(row.recipe)), []).append(row)
    spent = next((row.spent for row in result.rows if row.spent is not None), None)
    has_intervals = any(row.rollouts.interval for row in result.rows)
    rows: list[dict[str, str | None]] = []
    for cell_rows in by_cell.values():
        row = cell_rows[0]
        rows.append(
            {
                "B_p": str(row.problems_per_batch),
                "n": str(row.rollouts_per_problem),
                "lr": None if row.lr is None else f"{row.lr:.3g}",
                **{name: str(value) for name, value in row.recipe.items()},
                "runs": str(row.runs),
            }
        )
        if len(result.targets) > 1:
            rows[-1] |= {f"to {row.target:g}": _value(row.rollouts) for row in cell_rows}
            continue
        hours = row.spent and (row.spent.gpu_hours or row.spent.hours)
        bound = "> " * (row.rollouts.status == "lower_bound")
        rows[-1] |= {
            "reached": str(row.reached),
            "rollouts": _value(row.rollouts),
            "95 %": _interval_ends(row.rollouts) if has_intervals else None,
            "steps": _value(row.steps),
            "GPU hours" if spent and spent.gpu_hours else "hours": f"{bound}{number(hours.value)}"
            if hours
            else None,
        }
    return Table.by_column(rows, ">")


def _value(quantity: Quantity) -> str:
    return f"{'> ' * (quantity.status == 'lower_bound')}{number(quantity.value)}"


def _table_text(quantity: Quantity) -> str:
    """Return a quantity as text for a table in which ranges are 95 % intervals."""
    if quantity.value is None:
        return "not stated"
    if quantity.interval is None:
        return f"{number(quantity.value)} (not identified)"
    low, high = quantity.interval
    if low is None or high is None:
        return f"{number(quantity.value)} ({f'> {number(low)}' if high is None else f'< {number(high)}'})"
    return f"{number(quantity.value)} ({number(low)}–{number(high)})"


def _interval_ends(q: Quantity) -> str:
    return "" if q.interval is None else f"{number(q.interval[0])}–{number(q.interval[1])}"
