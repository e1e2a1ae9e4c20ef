"""What to run next, from what a fit says of its own gaps: in words, and as a command where there is one."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from isolaw.fits.document.flags import Code, having
from isolaw.fits.document.schema import GridEntry, LawDocument
from isolaw.fits.frontier.candidates import INTERVALS, comparable
from isolaw.fits.prediction import Prediction
from isolaw.report.text import words

_SEEDS = 3  # with fewer an interval rests on very few differences between runs
_LOSS = 0.005


@dataclass(frozen=True)
class Advice:
    """Something to run, why, and the keys of a sweep that would do it."""

    what: str
    why: str
    keys: tuple[str, ...] = ()

    def command(self, sweep: str) -> str:
        """Return the command that continues a sweep so; empty where there is none.

        >>> Advice("", "", ("sweep.seeds=3",)).command("runs/easy")
        'isolaw sweep --out runs/easy --set sweep.seeds=3'
        """
        if not sweep or not self.keys:
            return ""
        parts = ["isolaw", "sweep", "--out", sweep, *(p for key in self.keys for p in ("--set", key))]
        return " ".join(shlex.quote(part) for part in parts)


def advice(document: LawDocument, prediction: Prediction | None) -> list[Advice]:
    """Return what would tell most, the first thing first; empty where nothing is missing.

    Parameters
    ----------
    document
        of a law.
    prediction
        for the budget in question.
    """
    grid = document.grid
    levels = sorted({g.rollouts_per_problem for g in grid})
    out = [*_edges(document, levels), *_batch_edge(grid, prediction)]
    out += _far(grid, prediction) or _short(grid)
    fewest = min(g.runs for g in grid)
    if fewest < _SEEDS:
        out.append(
            Advice(
                f"Run {_SEEDS} seeds of every configuration.",
                f"There {'is' if fewest == 1 else 'are'} {words.runs(fewest, fewest)} of "
                f"{'each' if len({g.runs for g in grid}) == 1 else 'some'}: how runs of one configuration "
                "differ is what intervals are made of.",
                (f"sweep.seeds={_SEEDS}",),
            )
        )
    out += [
        Advice(
            f"Look at the runs with B_p = {batch.problems_per_batch} before you use them.",
            f"{batch.reason}. A larger B_p or a smaller lr may train stably.",
        )
        for batch in document.health.batches
        if batch.reason
    ]
    if prediction is not None and prediction.options:
        out += _loss(prediction, levels, fewest)
    return out


def _loss(prediction: Prediction, levels: Sequence[int], fewest: int) -> list[Advice]:
    """Where no measured n is near the best: the n between them; where even the best choice loses, seeds."""
    best = prediction.options[0]
    n = best.allocation.rollouts_per_problem
    if not any(option.measured for option in prediction.options) and n not in levels:
        why = "It is recommended, every measured n is expected to lose more than 0.005, and no run had it."
        return [Advice(f"Add n = {n:,}.", why, (_n_key([*levels, n]),))]
    if fewest < _SEEDS or best.expected_regret <= _LOSS:
        return []
    why = f"Even the best choice is expected to lose {best.expected_regret:.3f}."
    return [Advice("Run more seeds.", why, (f"sweep.seeds={2 * fewest}",))]


def _n_key(levels: Sequence[int]) -> str:
    return f"grid.rollouts_per_problem=[{', '.join(map(str, sorted(levels)))}]"


def _edges(document: LawDocument, levels: Sequence[int]) -> list[Advice]:
    """Where n* lies at an end of the grid at the largest compute at which it is known at all."""
    last = document.frontier[-1]
    symbol = words.symbol(document)
    status = last.n_star.status
    if "grid_edge" not in last.censored_by or status not in ("lower_bound", "upper_bound"):
        return []
    top = status == "lower_bound"
    n = levels[-1] * 2 if top else levels[0] // 2
    if n < 2:
        return []
    return [
        Advice(
            f"Add n = {n:,}.",
            f"At {symbol} = {words.number(last.x)} the best n is the {'largest' if top else 'smallest'} "
            "that was measured, so only a bound.",
            (_n_key([*levels, n]),),
        )
    ]


def _batch_edge(grid: Sequence[GridEntry], prediction: Prediction | None) -> list[Advice]:
    """Where the recommended B_p is an end of those measured."""
    chosen = None if prediction is None else prediction.allocation
    if prediction is None or chosen is None or not having(prediction.flags, Code.BATCH_EDGE):
        return []
    b, there = chosen.problems_per_batch, {g.problems_per_batch for g in grid}
    larger = b == max(there)
    batches = sorted(there | {b * 2 if larger else b // 2})
    return [
        Advice(
            f"Add B_p = {batches[-1] if larger else batches[0]:,}.",
            f"The recommended B_p is the {'largest' if larger else 'smallest'} that was measured.",
            (f"grid.problems_per_batch=[{', '.join(map(str, batches))}]",),
        )
    ]


def _far(grid: Sequence[GridEntry], prediction: Prediction | None) -> list[Advice]:
    """Where fewer than three n ran to a third of the budget: nothing, or bounds alone, are stated there."""
    if prediction is None or prediction.compute <= INTERVALS * comparable(grid):
        return []
    goal = math.ceil(prediction.compute / INTERVALS)
    ends: dict[int, float] = {}
    for g in grid:
        n = g.rollouts_per_problem
        ends[n] = max(ends.get(n, 0.0), g.measured[1] + g.step_cost)
    short = ", ".join(f"{n:,}" for n, end in sorted(ends.items()) if end < goal)
    return [
        Advice(
            f"Run n = {short} to C = {words.number(goal)}, a third of the budget.",
            ("" if prediction.options else "A recommendation needs three n at a tenth of the budget. ")
            + "For n* to be more than a bound, three n must reach a third of it.",
            (f"sweep.compute={goal}",),
        )
    ]


def _short(grid: Sequence[GridEntry]) -> list[Advice]:
    """Configurations that ended early, so that at larger budgets they are extrapolated."""
    end = max(g.measured[1] for g in grid)
    short = [g for g in grid if g.measured[1] + g.step_cost < 0.9 * end]
    if not short:
        return []
    names = sorted({g.rollouts_per_problem for g in short})
    return [
        Advice(
            f"Run n = {', '.join(map(str, names))} to C = {words.number(end)}.",
            "Their runs ended earlier, so their rewards at larger budgets are extrapolated.",
            (f"sweep.compute={int(end)}",),
        )
    ]
