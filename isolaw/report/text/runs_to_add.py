"""Advice on which runs to add next, with the command that adds them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isolaw import commands
from isolaw.allocation import AxisName, Cell, axis_of
from isolaw.design.decisions import Ending
from isolaw.fits.allocations import INTERVALS, past_divergence, reached, times_beyond
from isolaw.fits.flags import Code, having
from isolaw.fits.frontier import TOLERANCE
from isolaw.report.text import law as law_text
from isolaw.report.text import race as race_text
from isolaw.report.text.numbers import count, in_reward, number
from isolaw.runs import SYMBOL_OF, listed

if TYPE_CHECKING:
    from isolaw.design.decisions import Decision
    from isolaw.fits.document.schema import GridEntry, LawDocument
    from isolaw.fits.predict import Prediction

_MOST_NAMED = 3
_SEEDS = 3  # with fewer seeds, an interval is based on too few differences between runs


@dataclass(frozen=True)
class RunsToAdd:
    """Runs to add: which runs, the reason, and the keys of a sweep file that add them."""

    what: str
    why: str
    keys: tuple[str, ...] = ()

    def command(self, sweep: str) -> str:
        """Return the command that adds the runs to a sweep; empty if there is none.

        >>> RunsToAdd("", "", ("sweep.seeds=3",)).command("runs/easy")
        'isolaw sweep --out runs/easy --set sweep.seeds=3'
        """
        return str(commands.extend_sweep(sweep, self.keys)) if sweep and self.keys else ""


def run_first(prediction: Prediction, document: LawDocument) -> str:
    """Name the n beyond the measured n to run before spending the budget; empty if there are none."""
    if not prediction.run_first:
        return ""
    n, levels = SYMBOL_OF[document.axis], ", ".join(map(str, prediction.run_first))
    reach = f"C = {number(min(reached(document.grid), _most(prediction)))}" + (
        "" if document.x.unit == "steps" else f" {document.x.unit}"
    )
    return f"Run {n} = {levels} first, to {reach} each: the best {n} may be beyond the measured {n}."


def _most(prediction: Prediction | None) -> float:
    """Return the compute of a budget, which runs to add need not exceed; infinity if it is in hours."""
    return math.inf if prediction is None or prediction.asked else prediction.compute


def next_line(
    prediction: Prediction, document: LawDocument, race: Sequence[Decision] = (), spend: str = ""
) -> str:
    """Return the next step in one line: the most informative runs, or ``spend`` if no run is missing."""
    first = next(iter(advice(document, prediction, race)), None)
    if first is not None:
        return f"Next: {first.what} {first.why}".rstrip()
    return f"Next: {(spend or SPEND) if prediction.options else 'Choose a smaller budget.'}"


SPEND = "No further run is needed; spend the budget."


def advice(
    document: LawDocument,
    prediction: Prediction | None,
    race: Sequence[Decision] = (),
    cap: int | None = None,
) -> list[RunsToAdd]:
    """Return the runs to add, the most informative first; empty if no run is missing.

    ``prediction`` is for the budget in question, and ``cap`` is the hardware limit on B_p · n. A ``race``
    deliberately ends some runs early and gives others more seeds, so neither is a fault. For a race, the
    advice contains the needs of the race instead.
    """
    if having(document.flags, Code.FLAT):
        return [RunsToAdd("Check the metric, or train until it rises.", "The reward never changed.")]
    lost = {cell.key for cell in document.diverged}
    grid = [g for g in document.grid if g.key not in lost]
    axis = document.axis
    out: list[RunsToAdd] = []
    if lost:
        names = listed([cell.label for cell in document.diverged], _MOST_NAMED, "; ")
        out.append(RunsToAdd(f"Find out why {names} diverged.", "A smaller lr may train stably."))
    if not grid:
        return out
    levels = sorted({g.level(axis) for g in document.grid})
    counts = sorted({g.runs for g in grid})
    largest = max(g.problems_per_batch * g.rollouts_per_problem // g.level(axis) for g in grid)
    out += _beyond(document, prediction, levels) or _grid_edge(document, levels, cap and cap // largest)
    out += _batch_edge(document, prediction)
    if race:
        out = [*_of_race(race, prediction), *out]
    elif prediction is not None and not prediction.options:  # ``run_first`` names the same runs
        out = [*_far(grid, prediction), *out]
    else:
        out += _far(grid, prediction) or _short(grid, _most(prediction))
    if counts[0] < _SEEDS and not race:
        why = (
            f"{'Each configuration has' if len(counts) == 1 else 'Some configurations have'} only "
            f"{count(counts[0], 'run')}, and intervals come from the differences between runs."
        )
        out.append(RunsToAdd(f"Run {_SEEDS} seeds of every configuration.", why, (f"sweep.seeds={_SEEDS}",)))
    for batch in document.health.batches:
        if batch.reason:
            # The cautions state the reason.
            what = f"Check the unstable runs with B_p = {batch.problems_per_batch} before you use them."
            out.append(RunsToAdd(what, "A larger B_p or a smaller lr may train stably."))
    if prediction is not None and prediction.options:
        out += _large_loss(prediction, levels, 0 if race else counts[0], axis)
    return out


def _of_race(history: Sequence[Decision], prediction: Prediction | None) -> list[RunsToAdd]:
    """Return the runs that a race needs to reach a result, or to reach one at this budget."""
    last = history[-1]
    target = max((request.compute for made in history for request in made.runs), default=0)
    if last.ending is None or last.ending is Ending.FAILED:
        why = "The race has not ended." if last.ending is None else race_text.outcome(last)
        return [RunsToAdd("Continue the race.", why, ("design.kind=race",))]
    out = []
    if last.ending is Ending.SPENT:
        keys = (f"design.spend={2 * last.spent}",)
        out.append(
            RunsToAdd(
                "Raise the spend of the race; it ends once its choice is certain.",
                race_text.outcome(last),
                keys,
            )
        )
    elif last.ending is Ending.COMPLETE and (last.expected_loss or 0.0) > TOLERANCE:
        seeds = len({request.seed for made in history for request in made.runs})
        keys = (f"sweep.seeds={2 * seeds}",)
        out.append(RunsToAdd("Add seeds to the race.", race_text.outcome(last), keys))
    if prediction is not None and prediction.compute > INTERVALS * target:
        goal = math.ceil(prediction.compute / INTERVALS)
        what = f"Run a race to C = {number(goal)}, a third of the budget, in a new directory."
        why = (
            f"This race compares configurations up to C = {number(target)}; other configurations may be best "
            "at a larger C."
        )
        out.append(RunsToAdd(what, why))
    return out


def _large_loss(
    prediction: Prediction, levels: Sequence[int], fewest: int, axis: AxisName
) -> list[RunsToAdd]:
    """Recommend the n in between if no measured n is near the best, or more seeds if the best n loses."""
    best = prediction.options[0]
    level, n = getattr(best.allocation, axis), SYMBOL_OF[axis]
    if not any(option.measured for option in prediction.options) and level not in levels:
        most = f"{prediction.tolerance:g}"
        why = f"isolaw recommends this {n}, but no run has it. Every measured {n} loses more than {most}."
        return [_add_n(level, levels, why, axis)]
    if fewest < _SEEDS or best.expected_loss <= prediction.tolerance:
        return []
    lost = in_reward(best.expected_loss, prediction.tolerance, 3)
    why = f"Even the best choice has an expected loss of {lost}."
    return [RunsToAdd("Run more seeds.", why, (f"sweep.seeds={2 * fewest}",))]


def _add_n(n: int, levels: Sequence[int], why: str, axis: AxisName) -> RunsToAdd:
    return RunsToAdd(f"Add {SYMBOL_OF[axis]} = {n:,}.", why, (f"grid.{axis}={sorted([*levels, n])}",))


def _beyond(document: LawDocument, prediction: Prediction | None, levels: Sequence[int]) -> list[RunsToAdd]:
    """Recommend the n in ``prediction.run_first``, which are beyond the measured n."""
    if prediction is None or not prediction.run_first:
        return []
    what, _, why = run_first(prediction, document).partition(": ")
    keys = (f"grid.{document.axis}={sorted({*levels, *prediction.run_first})}",)
    return [RunsToAdd(f"{what}.", f"{why[0].upper()}{why[1:]}", keys)]


def _grid_edge(document: LawDocument, levels: Sequence[int], most: int | None) -> list[RunsToAdd]:
    """Recommend one more n, at most ``most``, if the last known n* is at an end of the grid."""
    last = document.frontier[-1]
    if "grid_edge" not in last.censored_by or last.n_star.status not in ("lower_bound", "upper_bound"):
        return []
    top = last.n_star.status == "lower_bound"
    n = levels[-1] * 2 if top else levels[0] // 2
    at = f"{law_text.symbol(document)} = {number(last.x)}"
    end, symbol = "largest" if top else "smallest", SYMBOL_OF[document.axis]
    why = f"At {at}, the {end} measured {symbol} is the best, so {symbol}* is only a bound."
    ended = all(past_divergence(document, *_with(g, document.axis, n)) for g in document.grid)
    return [_add_n(n, levels, why, document.axis)] if 2 <= n <= (most or n) and not ended else []


def _with(cell: Cell, axis: AxisName, level: int) -> tuple[int, int]:
    """Return (B_p, n) of a configuration with another value on an axis."""
    b, n = cell.key
    return (level, n) if axis == "problems_per_batch" else (b, level)


def _batch_edge(document: LawDocument, prediction: Prediction | None) -> list[RunsToAdd]:
    """Recommend one more B_p if the recommended B_p is at or beyond an end of the measured B_p."""
    chosen = None if prediction is None else prediction.allocation
    if prediction is None or chosen is None or not having(prediction.flags, Code.BATCH_EDGE):
        return []
    b, measured = chosen.problems_per_batch, {g.problems_per_batch for g in document.grid}
    larger = b >= max(measured)
    new = b if b not in measured else b * 2 if larger else b // 2
    end = "largest" if larger else "smallest"
    if past_divergence(document, new, chosen.rollouts_per_problem):
        return []
    why = f"The recommended B_p is the {end} measured B_p."
    if new == b:
        why = f"The recommended B_p is {'larger' if larger else 'smaller'} than the {end} measured B_p."
    return [RunsToAdd(f"Add B_p = {new:,}.", why, (f"grid.problems_per_batch={sorted({*measured, new})}",))]


def _far(grid: Sequence[GridEntry], prediction: Prediction | None) -> list[RunsToAdd]:
    """Recommend longer runs if fewer than three n reach a third of the budget, where n* is only bounded."""
    if prediction is None or times_beyond(prediction.compute, grid) <= INTERVALS:
        return []
    goal = math.ceil(prediction.compute / INTERVALS)
    n, ends = SYMBOL_OF[axis_of(grid)], dict[int, float]()
    for g in grid:
        level = g.level(axis_of(grid))
        ends[level] = max(ends.get(level, 0.0), g.measured[1] + g.step_cost)
    short = ", ".join(f"{level:,}" for level, end in sorted(ends.items()) if end < goal)
    why = f"For {n}* to be more than a bound, three {n} must reach a third of the budget."
    if not prediction.options:
        why = f"A recommendation requires that three {n} reach a tenth of the budget. {why}"
    what = f"Run {n} = {short} to C = {number(goal)}, a third of the budget."
    return [RunsToAdd(what, why, (f"sweep.compute={goal}",))]


def _short(grid: Sequence[GridEntry], most: float) -> list[RunsToAdd]:
    """Recommend extending configurations that ended early, since their later rewards are extrapolated."""
    end = max(g.measured[1] for g in grid)
    axis = axis_of(grid)
    goal = min(end, most)
    names = sorted({g.level(axis) for g in grid if g.measured[1] + g.step_cost < 0.9 * goal})
    if not names:
        return []
    what = f"Run {SYMBOL_OF[axis]} = {', '.join(map(str, names))} to C = {number(goal)}."
    why = "Their runs ended earlier, so their rewards at larger budgets are extrapolated."
    return [RunsToAdd(what, why, (f"sweep.compute={int(end)}",) if goal == end else ())]
