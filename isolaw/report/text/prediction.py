"""A prediction as text: the recommendation, its expected loss, n*; and which runs to add next."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isolaw.costs.model import parse_hours
from isolaw.errors import InputError
from isolaw.fits.document.flags import Code, having
from isolaw.fits.frontier.candidates import INTERVALS, comparable
from isolaw.fits.frontier.trace import TOLERANCE
from isolaw.report.text import costs
from isolaw.report.text import law as law_text
from isolaw.report.text.numbers import count, number, quantity, share

if TYPE_CHECKING:
    from isolaw.costs.model import Cost
    from isolaw.fits.document.schema import GridEntry, LawDocument
    from isolaw.fits.law import Law
    from isolaw.fits.predict import Prediction
    from isolaw.fits.quantity import Quantity

_FIXED = {"fixed-bp": "B_p*", "fixed-b": "M*"}
_SEEDS = 3  # with fewer, an interval rests on very few differences between runs


def answer(prediction: Prediction) -> str:
    """Return the recommendation in one sentence, without a number where there is none."""
    a = prediction.allocation
    if a is None:
        return "isolaw recommends no allocation for this budget."
    return (
        f"For a budget of {_named(prediction)}: "
        f"n = {a.rollouts_per_problem} rollouts for each of B_p = {a.problems_per_batch} problems, "
        f"M = {a.steps:,} steps."
    )


def loss(prediction: Prediction, document: LawDocument) -> str:
    """Return the expected loss of the recommendation, or why there is no recommendation."""
    if not prediction.options:
        far = having(prediction.flags, Code.FAR)
        return " ".join(f"{_named(prediction)} is {flag.text}." for flag in far)
    best = prediction.options[0]
    text = f"Expected loss: {best.expected_regret:.4f} in {document.metric} against the best allocation"
    if best.probability is not None:
        text += f"; within {TOLERANCE} of it in {share(best.probability)} of draws"
    n = best.allocation.rollouts_per_problem
    return f"{text}." + ("" if best.measured else f" No run has n = {n}; it is between measured n.")


def largest_with_recommendation(law: Law, prediction: Prediction, **limits: Any) -> Prediction | None:
    """Return the prediction for the largest budget with a recommendation; None if ``prediction`` has one.

    ``limits`` are those of `Law.predict`. The budget has three digits, so that the printed budget is exact.
    """
    if prediction.options or not prediction.comparable:
        return None
    digit = 10 ** max(len(str(prediction.comparable)) - 3, 0)
    budget: float | str = prediction.comparable // digit * digit
    if prediction.asked:
        budget = _hours(prediction)
    try:
        found = law.predict(budget, **limits)
    except InputError:  # it does not pay for a step
        return None
    return found if found.options else None


def largest_answer(prediction: Prediction) -> str:
    """Return the recommendation of `largest_with_recommendation` in one sentence."""
    return answer(prediction).replace("For a budget of", "The largest budget with a recommendation is")


def star(q: Quantity) -> str:
    """Return n*, B_p* or M*; no number where it is not known."""
    return "not known" if q.status in ("not_identified", "refused") else quantity(q)


def n_star(prediction: Prediction) -> str:
    """Return n* at the budget, or that it is a bound or not known; empty without a recommendation."""
    if not prediction.options:
        return ""
    bound = prediction.n_star.status in ("lower_bound", "upper_bound")
    far = bound and having(prediction.flags, Code.CENSORED)
    return star(prediction.n_star) + ("; so far beyond the runs only a bound" if far else "")


def split(prediction: Prediction, document: LawDocument) -> dict[str, str]:
    """Return B_p* and M* at the budget by their names, as far as they are known."""
    if not prediction.options:
        return {}
    out = {}
    for name, q in {"B_p*": prediction.b_star, "M*": prediction.m_star}.items():
        if q.status != "refused":
            fixed = name == _FIXED.get(document.setting)
            how = "fixed" if name == "B_p*" else "C / B"
            out[name] = f"{number(q.value)} ({how})" if fixed else star(q)
    return out


def by_law(prediction: Prediction) -> str:
    """Return n* at the budget by the preferred law; empty where it gives none."""
    q = prediction.law_n
    return "" if q.status in ("refused", "not_identified") else quantity(q)


def prediction_summary(
    prediction: Prediction, document: LawDocument, nearest: Prediction | None = None
) -> list[str]:
    """Return a recommendation, line by line; without one, ``nearest`` of `largest_with_recommendation`."""
    if not prediction.options:
        lines = [answer(prediction), loss(prediction, document)]
        if nearest is not None:
            lines.append(f"{largest_answer(nearest).partition(': ')[0]}:")
            lines += [f"  {line}" for line in prediction_summary(nearest, document)]
        return lines
    lines = [
        f"{answer(prediction).removesuffix('.')} ({prediction.unspent:,} {prediction.unit} left over).",
        *([] if prediction.cost is None else [cost_line(prediction, prediction.cost)]),
        loss(prediction, document),
        f"Predicted {document.metric}: {quantity(prediction.reward)}.",
    ]
    name, by = law_text.law_name(law_text.preferred(document) or ""), by_law(prediction)
    lines.append(
        f"n* (highest fitted reward): {n_star(prediction)}" + (f"; {name} law: {by}." if by else ".")
    )
    if parts := split(prediction, document):
        lines.append("; ".join(f"{name}: {text}" for name, text in parts.items()) + ".")
    if len(prediction.options) > 1:
        lines.append(f"Other choices with an expected loss of at most {TOLERANCE}:")
    for other in prediction.options[1:]:
        b = other.allocation
        where = "" if other.measured else " (not measured)"
        text = f"  n = {b.rollouts_per_problem}, B_p = {b.problems_per_batch}, M = {b.steps:,}{where}: "
        text += f"expected loss {other.expected_regret:.4f}"
        if other.probability is not None:
            text += f", within {TOLERANCE} of the best in {share(other.probability)} of draws"
        lines.append(text + costs.short(prediction.spent(other)))
    if prediction.epochs is not None:
        lines.append(f"Epochs: {number(prediction.epochs)} passes over the training problems.")
    return lines + [f"Caution: {note}." for note in law_text.notes(prediction.flags)]


def cost_line(prediction: Prediction, cost: Cost) -> str:
    """Return what the recommended allocation costs; empty without one."""
    if not prediction.options:
        return ""
    return costs.spent(prediction.spent(prediction.options[0]), cost)


def _named(prediction: Prediction) -> str:
    return prediction.asked or f"C = {number(prediction.compute)} {prediction.unit}"


def _hours(prediction: Prediction) -> str:
    """The largest budget with a recommendation, as hours of the kind that was asked for, rounded down."""
    hours, of_gpus = parse_hours(prediction.asked)
    digits = f"{hours * prediction.comparable / prediction.compute * 0.995:.3g}"
    return f"{digits}{'gpuh' if of_gpus else 'h'}"


@dataclass(frozen=True)
class Advice:
    """Runs to add, why, and the keys of a sweep that add them."""

    what: str
    why: str
    keys: tuple[str, ...] = ()

    def command(self, sweep: str) -> str:
        """Return the command that adds them to a sweep; empty where there is none.

        >>> Advice("", "", ("sweep.seeds=3",)).command("runs/easy")
        'isolaw sweep --out runs/easy --set sweep.seeds=3'
        """
        settings = [word for key in self.keys for word in ("--set", key)]
        return shlex.join(["isolaw", "sweep", "--out", sweep, *settings]) if sweep and settings else ""


def advice(document: LawDocument, prediction: Prediction | None) -> list[Advice]:
    """Return the runs that would tell most, the first first; empty where nothing is missing.

    ``prediction`` is for the budget in question.
    """
    grid = document.grid
    levels = sorted({g.rollouts_per_problem for g in grid})
    counts = sorted({g.runs for g in grid})
    out = [*_grid_edge(document, levels), *_batch_edge(grid, prediction)]
    out += _far(grid, prediction) or _short(grid)
    if counts[0] < _SEEDS:
        why = (
            f"{'Each configuration has' if len(counts) == 1 else 'Some configurations have'} "
            f"{count(counts[0], 'run')}: intervals come from the differences between its runs."
        )
        out.append(Advice(f"Run {_SEEDS} seeds of every configuration.", why, (f"sweep.seeds={_SEEDS}",)))
    for batch in document.health.batches:
        if batch.reason:
            why = f"{batch.reason}. A larger B_p or a smaller lr may train stably."
            what = f"Check the runs with B_p = {batch.problems_per_batch} before you use them."
            out.append(Advice(what, why))
    if prediction is not None and prediction.options:
        out += _large_loss(prediction, levels, counts[0])
    return out


def _large_loss(prediction: Prediction, levels: Sequence[int], fewest: int) -> list[Advice]:
    """Where no measured n is near the best: the n between them; where even the best choice loses, seeds."""
    best = prediction.options[0]
    n = best.allocation.rollouts_per_problem
    if not any(option.measured for option in prediction.options) and n not in levels:
        why = f"isolaw recommends it, no run has it, and every measured n loses more than {TOLERANCE}."
        return [_add_n(n, levels, why)]
    if fewest < _SEEDS or best.expected_regret <= TOLERANCE:
        return []
    why = f"Even the best choice has an expected loss of {best.expected_regret:.3f}."
    return [Advice("Run more seeds.", why, (f"sweep.seeds={2 * fewest}",))]


def _add_n(n: int, levels: Sequence[int], why: str) -> Advice:
    return Advice(f"Add n = {n:,}.", why, (f"grid.rollouts_per_problem={sorted([*levels, n])}",))


def _grid_edge(document: LawDocument, levels: Sequence[int]) -> list[Advice]:
    """Where n* is at an end of the grid at the largest compute at which it is known."""
    last = document.frontier[-1]
    if "grid_edge" not in last.censored_by or last.n_star.status not in ("lower_bound", "upper_bound"):
        return []
    top = last.n_star.status == "lower_bound"
    n = levels[-1] * 2 if top else levels[0] // 2
    at = f"{law_text.symbol(document)} = {number(last.x)}"
    why = f"At {at} the {'largest' if top else 'smallest'} measured n is the best, so n* is only a bound."
    return [_add_n(n, levels, why)] if n >= 2 else []


def _batch_edge(grid: Sequence[GridEntry], prediction: Prediction | None) -> list[Advice]:
    """Where the recommended B_p is an end of the measured ones."""
    chosen = None if prediction is None else prediction.allocation
    if prediction is None or chosen is None or not having(prediction.flags, Code.BATCH_EDGE):
        return []
    b, measured = chosen.problems_per_batch, {g.problems_per_batch for g in grid}
    larger = b == max(measured)
    new = b * 2 if larger else b // 2
    why = f"The recommended B_p is the {'largest' if larger else 'smallest'} measured one."
    return [Advice(f"Add B_p = {new:,}.", why, (f"grid.problems_per_batch={sorted({*measured, new})}",))]


def _far(grid: Sequence[GridEntry], prediction: Prediction | None) -> list[Advice]:
    """Where fewer than three n reach a third of the budget: isolaw states nothing there, or bounds alone."""
    if prediction is None or prediction.compute <= INTERVALS * comparable(grid):
        return []
    goal = math.ceil(prediction.compute / INTERVALS)
    ends: dict[int, float] = {}
    for g in grid:
        n = g.rollouts_per_problem
        ends[n] = max(ends.get(n, 0.0), g.measured[1] + g.step_cost)
    short = ", ".join(f"{n:,}" for n, end in sorted(ends.items()) if end < goal)
    why = "For n* to be more than a bound, three n must reach a third of the budget."
    if not prediction.options:
        why = f"A recommendation needs three n at a tenth of the budget. {why}"
    what = f"Run n = {short} to C = {number(goal)}, a third of the budget."
    return [Advice(what, why, (f"sweep.compute={goal}",))]


def _short(grid: Sequence[GridEntry]) -> list[Advice]:
    """Configurations that ended early, so that their rewards at larger budgets are extrapolated."""
    end = max(g.measured[1] for g in grid)
    names = sorted({g.rollouts_per_problem for g in grid if g.measured[1] + g.step_cost < 0.9 * end})
    if not names:
        return []
    what = f"Run n = {', '.join(map(str, names))} to C = {number(end)}."
    why = "Their runs ended earlier, so their rewards at larger budgets are extrapolated."
    return [Advice(what, why, (f"sweep.compute={int(end)}",))]
