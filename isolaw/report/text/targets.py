"""Rollouts to a target, the critical batch and the rule of the lr as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolaw.report.document import Document, Passage, Stanza, Table
from isolaw.report.text.numbers import number, signed

if TYPE_CHECKING:
    from isolaw.fits.quantity import Quantity
    from isolaw.fits.studies.target_laws import LrLaw
    from isolaw.fits.studies.targets import TargetRow, TargetStudy

_RULES = {"sqrt": "√(B_p · n)", "sqrt_problems": "√B_p", "linear": "B_p · n", "constant": "none"}


def document(found: TargetStudy) -> Document:
    """Return the laws, then what every configuration needs."""
    targets = ", ".join(f"{own:g}" for own in found.targets)
    ranged = found.critical or found.lr or any(row.rollouts.interval for row in found.rows)
    ranges = "ranges are 95 % intervals" if ranged else "no intervals, which come from a fit over several B_p"
    head = f"Rollouts to {found.metric} = {targets} on {found.eval_set}; {ranges}."
    passages = [Passage("", [head])]
    if found.critical:
        rows = [["n", "to", "runs", "critical batch, B_p", "least rollouts", "least steps"]]
        rows += [
            [
                str(own.rollouts_per_problem),
                f"{own.target:g}",
                str(own.reached),
                *map(_short, (own.problems_per_batch, own.rollouts, own.steps)),
            ]
            for own in found.critical
        ]
        passages.append(Passage("The critical batch", [Table.of(rows, ">")]))
    if found.lr is not None:
        passages.append(Passage("The learning rate", lr_lines(found.lr)))
    passages.append(Passage("Configurations", [_table(found)]))
    return Document(f"rollouts to {found.metric} = {targets}", passages, found.to_dict(), found.simulated)


def lr_lines(law: LrLaw) -> list[Stanza]:
    """Return the exponents of the best lr, the rules that the runs support, and the best lr by (B_p, n)."""
    names = [("B_p", law.alpha), ("n", law.beta)]
    rows = [["best lr to", *(f"exponent of {symbol}" for symbol, own in names if own)]]
    for j, target in enumerate(law.targets):
        rows.append([f"{target:g}", *(_short(own[j]) for _, own in names if own)])
    lines: list[Stanza] = [Table.of(rows, ">"), rule_line(law)]
    last = [own for own in law.choices if own.target == law.targets[-1]]
    several = len({own.rollouts_per_problem for own in last}) > 1
    best = ", ".join(
        f"{own.lr:.2g} at {own.label if several else f'B_p = {own.problems_per_batch}'}" for own in last
    )
    lines.append(f"Best lr to {law.targets[-1]:g}: {best}.")
    if outside := [own.label for own in last if own.beyond]:
        lines.append(f"No run had such an lr at {'; '.join(outside)}.")
    return lines


def rule_line(law: LrLaw) -> str:
    """Return which rule of the lr the runs support, and the exponents at the middle target."""
    kept = [f"lr ∝ {_RULES[rule]} ({rule})" if rule != "constant" else "one lr (constant)"
            for rule in law.supported]  # fmt: skip
    middle = len(law.targets) // 2
    names = [("B_p", law.alpha), ("n", law.beta)]
    power = " · ".join(f"{symbol}^{signed(own[middle].value or 0.0)}" for symbol, own in names if own)
    if not kept:
        return f"The best lr grows as {power}; the runs reject every rule of recipe.lr_scaling at 5 %."
    text = f"The best lr grows as {power}. The runs support {' and '.join(kept)}"
    left = len(law.p_values) - len(kept)
    text += "; they reject the other rules of recipe.lr_scaling at 5 %." if left else "; none is rejected."
    if not law.alpha or not law.beta:
        text += f" They cannot tell rules apart that differ in {'B_p' if law.beta else 'n'} alone."
    return text


def _table(found: TargetStudy) -> Table:
    """One target: all that is known of a configuration. Several: their rollouts side by side."""
    several = len(found.targets) > 1
    by_place: dict[tuple[object, ...], list[TargetRow]] = {}
    for row in found.rows:
        by_place.setdefault((*row.key, row.lr, str(row.recipe)), []).append(row)
    recipes = list(found.rows[0].recipe)
    with_lr = any(row.lr is not None for row in found.rows)
    head = ["B_p", "n", *(["lr"] if with_lr else []), *recipes, "runs"]
    hours = next((row.spent for row in found.rows if row.spent is not None), None)
    if several:
        head += [f"to {own:g}" for own in found.targets]
    else:
        ranged = any(row.rollouts.interval for row in found.rows)
        head += ["reached", "rollouts", *(["95 %"] if ranged else []), "steps"]
        head += [] if hours is None else ["GPU hours" if hours.gpu_hours else "hours"]
    lines = [head]
    for rows in by_place.values():
        first = rows[0]
        cells = [str(first.problems_per_batch), str(first.rollouts_per_problem)]
        cells += [f"{first.lr:.3g}" if first.lr is not None else ""] if with_lr else []
        cells += [*(str(first.recipe[name]) for name in recipes), str(first.runs)]
        if several:
            cells += [_value(row.rollouts) for row in rows]
        else:
            cells += [str(first.reached), _value(first.rollouts)]
            cells += [*([_ends(first.rollouts)] if ranged else []), _value(first.steps)]
            if hours is not None:
                spent = first.spent and (first.spent.gpu_hours or first.spent.hours)
                more = "> " * (first.rollouts.status == "lower_bound")
                cells.append(f"{more}{number(spent.value)}" if spent else "")
        lines.append(cells)
    return Table.of(lines, ">")


def _value(q: Quantity) -> str:
    return f"{'> ' * (q.status == 'lower_bound')}{number(q.value)}"


def _short(q: Quantity) -> str:
    """A quantity in a table whose ranges are 95 % intervals."""
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
