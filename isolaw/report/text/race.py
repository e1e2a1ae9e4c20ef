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
    DecisionStage.NEIGHBOURS: "start the neighbors",
    DecisionStage.SEEDS: "start another seed of",
    DecisionStage.STOP: "end",
}


def summary(design: Mapping[str, Any], runs: int) -> list[str]:
    """Return the settings and limits of a race, from `isolaw.design.directory.Adaptive.to_dict`."""
    made, spend = len(design["decisions"]), design["spend"]
    part = _part(spend, design["whole"])
    return [
        f"The race starts every second n at B_p = {design['start']} and ends at C = "
        f"{number(design['target'])}.",
        f"It may spend {number(spend)} rollouts, {part} of the grid, and ends earlier once the expected loss "
        f"is at most {design['tolerance']:g}.",
        *([f"{count(made, 'decision')} so far, {count(runs, 'run')} requested"] if made > 1 else []),
    ]


def decision(made: Decision, index: int) -> str:
    """Return one decision of a race as a line of text."""
    known = ""
    if made.best is not None and made.compute is not None:
        known = (
            f"{cell(made.best)} is the best at C = {number(made.compute)}, with an expected loss of "
            f"{made.expected_loss:.4f}"
        )
        behind = [standing.key for standing in made.standings if standing.verdict is CellVerdict.WORSE]
        known += f"; left behind: {cells(behind)}" if behind else ""
        known += "; "
    if made.ending is not None:
        return f"decision {index}: {known}{ending(made.ending)}"
    to = max(request.compute for request in made.runs)
    seeds = sorted({request.seed for request in made.runs})
    requested = cells([request.key for request in made.runs])
    which = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    what = _STAGES[made.stage] if known else "start"
    return f"decision {index}: {known}{what} {requested} up to C = {number(to)}, {which}"


def ending(why: Ending) -> str:
    """Return the reason why a race ended."""
    return f"the race ended: {_ENDINGS[why]}"


def outcome(last: Decision) -> str:
    """State the result of a race that has ended."""
    if last.best is None or last.ending is None:
        return f"The race has no result: {_ENDINGS[last.ending or Ending.FAILED]}."
    return (
        f"The race recommends {cell(last.best)} at C = {number(last.compute or 0)}, with an expected loss of "
        f"{last.expected_loss:.4f} after {number(last.spent)} rollouts. It ended because "
        f"{_ENDINGS[last.ending]}."
        + (f" To continue, {_CONTINUES[last.ending]}." if last.ending in _CONTINUES else "")
    )


def result(history: Sequence[Decision], whole: int, grid: Collection[tuple[int, int]]) -> list[str]:
    """Describe the result of a race over ``grid``. All runs of the grid would cost ``whole`` rollouts."""
    last = history[-1]
    if last.best is None:
        return [outcome(last)]
    runs = {request.run for made in history for request in made.runs}
    return [
        f"The race made {count(len(runs), 'run')} with {_part(last.spent, whole)} of the grid's rollouts. "
        f"{outcome(last)}",
        *_edges(last.best, grid),
    ]


def _edges(best: tuple[int, int], grid: Collection[tuple[int, int]]) -> list[str]:
    """Name the edges of the grid at which the best configuration is."""
    sides = []
    for i, name in ((1, "n"), (0, "B_p")):
        line = sorted(key[i] for key in grid if key[1 - i] == best[1 - i])
        if len(line) > 1 and best[i] in (line[0], line[-1]):
            sides.append(f"{name} = {best[i]} is the {'largest' if best[i] == line[-1] else 'smallest'}")
    return (
        [f"The best is at the edge of the grid, where {' and '.join(sides)}. Values beyond it may be better."]
        if sides
        else []
    )


def state(race: Mapping[str, Any]) -> str:
    """Return the progress of a race, from `isolaw.design.directory.state`."""
    of = "" if race["spend"] is None else f" of at most {number(race['spend'])}"
    end = ending(race["ending"]) if race["ending"] else "not ended"
    best = f"; the best configuration is {cell(race['best'])}" if race["best"] else ""
    asked = f"{number(race['asked'])}{of} rollouts requested"
    return f"race: {count(race['decisions'], 'decision')}, {asked}{best}; {end}"


def _part(rollouts: float, of: float) -> str:
    return f"{100 * min(rollouts / of, 1.0):.0f} %"


def standings(last: Decision) -> list[str]:
    """Return the configurations of the last comparison as the lines of a table."""
    ordered = sorted(last.standings, key=lambda standing: standing.expected_loss or 0.0)
    rows = [
        [
            f"{place.problems_per_batch}",
            f"{place.rollouts_per_problem}",
            f"{place.reward:.3f}",
            f"{place.expected_loss:.4f}",
            f"{100 * (place.probability or 0.0):.0f} %",
        ]
        for place in ordered
    ]
    return columns([["B_p", "n", "reward", "expected loss", "within 0.005"], *rows], ">")


def cell(key: tuple[int, int]) -> str:
    """Return a configuration as text.

    >>> cell((32, 512))
    'n = 512 with B_p = 32'
    """
    return f"n = {key[1]} with B_p = {key[0]}"


def cells(keys: Iterable[tuple[int, int]]) -> str:
    """Return several configurations as text, grouped by B_p.

    >>> cells([(32, 8), (8, 64), (32, 16)])
    'n = 64 with B_p = 8, n = 8, 16 with B_p = 32'
    """
    parts = []
    for batch, group in groupby(sorted(keys), key=lambda key: key[0]):
        parts.append(f"n = {', '.join(str(n) for _, n in group)} with B_p = {batch}")
    return ", ".join(parts)
