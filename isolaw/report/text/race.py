"""The decisions of a race as text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from isolaw.design.decisions import CellVerdict, Decision, DecisionStage, Ending
from isolaw.evidence import columns, count, number

_ENDINGS = {
    Ending.CERTAIN: "the expected loss is within the tolerance",
    Ending.SPENT: "the next runs would exceed the spend",
    Ending.COMPLETE: "all runs of the race are done",
    Ending.FAILED: "too many runs failed to compare three n; the same command repeats them",
}
_CONTINUES = {
    Ending.CERTAIN: "lower design.tolerance",
    Ending.SPENT: "raise design.spend",
    Ending.COMPLETE: "add seeds (sweep.seeds)",
}
_STAGES = {
    DecisionStage.RUNG: "continue",
    DecisionStage.NEIGHBOURS: "start the neighbours",
    DecisionStage.SEEDS: "start another seed of",
    DecisionStage.STOP: "end",
}


def summary(design: Mapping[str, Any], runs: int) -> list[str]:
    """Return the settings and limits of a race, from `isolaw.design.directory.Adaptive.to_dict`."""
    made, spend = len(design["decisions"]), design["spend"]
    part = _percent(spend, design["whole"])
    return [
        f"The race starts every second n at B_p = {design['start']} and ends at C = "
        f"{number(design['target'])}.",
        f"It may spend {number(spend)} rollouts, {part} of the grid, and ends earlier once the expected loss "
        f"is at most {design['tolerance']:g}.",
        *([f"{count(made, 'decision')} so far, {count(runs, 'run')} requested"] if made > 1 else []),
    ]


def decision(step: Decision, index: int) -> str:
    """Return one decision of a race as a line of text."""
    known = ""
    if step.best is not None and step.compute is not None:
        known = (
            f"{_cell(step.best)} is the best at C = {number(step.compute)}, with an expected loss of "
            f"{step.expected_loss:.4f}"
        )
        worse = [standing.key for standing in step.standings if standing.verdict is CellVerdict.WORSE]
        known += f"; left behind: {_cells(worse)}" if worse else ""
        known += "; "
    if step.ending is not None:
        return f"decision {index}: {known}{_ending(step.ending)}"
    compute = max(request.compute for request in step.runs)
    seeds = sorted({request.seed for request in step.runs})
    requested = _cells([request.key for request in step.runs])
    seeds_text = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    action = _STAGES[step.stage] if known else "start"
    return f"decision {index}: {known}{action} {requested} up to C = {number(compute)}, {seeds_text}"


def _ending(reason: Ending) -> str:
    """Return the reason why a race ended."""
    return f"the race ended: {_ENDINGS[reason]}"


def _outcome(last: Decision) -> str:
    """State the result of a race that has ended."""
    if last.best is None or last.ending is None:
        return f"The race has no result: {_ENDINGS[last.ending or Ending.FAILED]}."
    return (
        f"The race recommends {_cell(last.best)} at C = {number(last.compute or 0)}, with an expected loss "
        f"of {last.expected_loss:.4f} after {number(last.spent)} rollouts. It ended because "
        f"{_ENDINGS[last.ending]}."
        + (f" To continue, {_CONTINUES[last.ending]}." if last.ending in _CONTINUES else "")
    )


def result(history: Sequence[Decision], whole: int, grid: Collection[tuple[int, int]]) -> list[str]:
    """Describe the result of a race over ``grid``. All runs of the grid would cost ``whole`` rollouts."""
    last = history[-1]
    if last.best is None:
        return [_outcome(last)]
    runs = {request.run for decision in history for request in decision.runs}
    return [
        f"The race made {count(len(runs), 'run')} with {_percent(last.spent, whole)} of the grid's rollouts. "
        f"{_outcome(last)}",
        *_edge_warning(last.best, grid),
    ]


def _edge_warning(best: tuple[int, int], grid: Collection[tuple[int, int]]) -> list[str]:
    """Name the edges of the grid at which the best configuration is."""
    sides = []
    for axis, name in ((1, "n"), (0, "B_p")):
        values = sorted(key[axis] for key in grid if key[1 - axis] == best[1 - axis])
        if len(values) > 1 and best[axis] in (values[0], values[-1]):
            end = "largest" if best[axis] == values[-1] else "smallest"
            sides.append(f"{name} = {best[axis]} is the {end}")
    edge = f"The best is at the edge of the grid, where {' and '.join(sides)}"
    return [f"{edge}. Values beyond it may be better."] if sides else []


def state(race: Mapping[str, Any]) -> str:
    """Return the progress of a race, from `isolaw.design.directory.race_state`."""
    spend_text = "" if race["spend"] is None else f" of at most {number(race['spend'])}"
    ending_text = _ending(race["ending"]) if race["ending"] else "not ended"
    best = f"; the best configuration is {_cell(race['best'])}" if race["best"] else ""
    requested = f"{number(race['asked'])}{spend_text} rollouts requested"
    return f"race: {count(race['decisions'], 'decision')}, {requested}{best}; {ending_text}"


def _percent(rollouts: float, total: float) -> str:
    return f"{100 * min(rollouts / total, 1.0):.0f} %"


def standings(last: Decision) -> list[str]:
    """Return the configurations of the last comparison as the lines of a table."""
    ordered = sorted(last.standings, key=lambda standing: standing.expected_loss or 0.0)
    rows = [
        [
            f"{standing.problems_per_batch}",
            f"{standing.rollouts_per_problem}",
            f"{standing.reward:.3f}",
            f"{standing.expected_loss:.4f}",
            f"{100 * (standing.probability or 0.0):.0f} %",
        ]
        for standing in ordered
    ]
    return columns([["B_p", "n", "reward", "expected loss", "within 0.005"], *rows], ">")


def _cell(key: tuple[int, int]) -> str:
    """Return a configuration as text.

    >>> _cell((32, 512))
    'n = 512 with B_p = 32'
    """
    return f"n = {key[1]} with B_p = {key[0]}"


def _cells(keys: Iterable[tuple[int, int]]) -> str:
    """Return several configurations as text, grouped by B_p.

    >>> _cells([(32, 8), (8, 64), (32, 16)])
    'n = 64 with B_p = 8, n = 8, 16 with B_p = 32'
    """
    parts = []
    for batch, group in groupby(sorted(keys), key=lambda key: key[0]):
        parts.append(f"n = {', '.join(str(n) for _, n in group)} with B_p = {batch}")
    return ", ".join(parts)
