"""List candidate allocations for a budget: the measured ones, and others between and beyond them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from isolaw.allocation import AxisName, Cell, axis_of
from isolaw.errors import InputError
from isolaw.fits.document.schema import GridEntry, LawDocument
from isolaw.fits.flags import Code, Flag, flags_with
from isolaw.fits.selection import LEAST_CURVES, Configuration, Hold, law_axis
from isolaw.runs import SYMBOL_OF
from isolaw.step_cost import Cost

# Multiples of the compute that three n reached. Past the first, n* of the method ``paper`` is only a bound.
# Past the second, isolaw recommends nothing.
INTERVALS = 3.0
FAR = 10.0
_ROUNDING = 0.1
REACH = 4  # candidates extend from 1/4 of the smallest measured n to 4 times the largest
_REACH_B = 2  # the same factor for B_p
LEAST_STEPS = 20  # fewest steps that the budget must buy for a configuration without runs


def comparable_compute(grid: Sequence[GridEntry | Configuration]) -> float:
    """Return the compute up to which isolaw compares n: at least three n ran this far.

    An n reaches the compute one step after its last checkpoint, and can be compared slightly beyond.
    """
    axis = axis_of(grid)
    return _third_largest([(entry.level(axis), entry.end) for entry in grid])


def reached_compute(grid: Sequence[GridEntry | Configuration]) -> float:
    """Return the largest compute at which at least three n have a checkpoint.

    Messages and charts call it today's compute. `comparable_compute` is one step larger.
    """
    axis = axis_of(grid)
    return _third_largest([(entry.level(axis), entry.measured[1]) for entry in grid])


def _third_largest(ends: Iterable[tuple[int, float]]) -> float:
    """Return the third-largest value among each n's largest compute, or 0 for fewer than three n."""
    largest_by_n: dict[int, float] = {}
    for n, end in ends:
        largest_by_n[n] = max(largest_by_n.get(n, 0.0), end)
    return sorted(largest_by_n.values())[-LEAST_CURVES] if len(largest_by_n) >= LEAST_CURVES else 0.0


def times_beyond(budget: float, grid: Sequence[GridEntry]) -> float:
    """Return the ratio of a budget to `comparable_compute`, or infinity if fewer than three n were measured.

    A run that was planned for compute C can end up to one step before C. If only this shortfall (a share of
    at most `_ROUNDING`) takes the ratio past the limit `INTERVALS` or `FAR`, the result is exactly the limit.
    """
    reach = comparable_compute(grid)
    if not reach:
        return math.inf
    step = max(entry.step_cost for entry in grid if entry.end == reach)
    nominal = reach + min(step, _ROUNDING * reach)
    for limit in (INTERVALS, FAR):
        if limit * reach < budget <= limit * nominal:
            return limit
    return budget / reach


@dataclass(frozen=True)
class CandidateAllocation(Cell):
    """A candidate (B_p, n), with the cost of one step in the unit of the budget.

    ``measured`` is true if the runs include it. ``rate`` is the amount of the law's x (e.g. compute) that one
    unit of budget buys; it differs from 1 only for budgets in hours. ``beyond`` is the number of doublings
    past the measured n and B_p.
    """

    step_cost: float
    measured: bool
    rate: float = 1.0
    beyond: float = 0.0


def near_runs(
    document: LawDocument, candidates: list[CandidateAllocation], budget: float
) -> list[CandidateAllocation]:
    """Return the candidates for which the budget is at most `FAR` times the compute of the nearest runs."""
    if not candidates:
        return []
    places, grid_places = (np.array([cell.place for cell in cells]) for cells in (candidates, document.grid))
    distances = np.hypot(*(places.T[:, :, None] - grid_places.T[:, None]))
    is_near = distances <= distances.min(axis=1, keepdims=True) + _ROUNDING
    ends = np.where(is_near, [entry.end for entry in document.grid], 0.0).max(axis=1)
    limits = FAR * ends * (1 + _ROUNDING)
    return [c for c, limit in zip(candidates, limits, strict=True) if budget * c.rate <= limit]


def drop_far(
    document: LawDocument, candidates: list[CandidateAllocation], budget: float, flags: list[Flag]
) -> list[CandidateAllocation]:
    """Return the candidates `near_runs`, or all if there are none, and flag the others."""
    nearby = near_runs(document, candidates, budget)
    if not nearby:
        return candidates
    axes: list[AxisName] = ["rollouts_per_problem", "problems_per_batch"]
    for axis in axes[:1] if document.hold == "B" else axes:  # with fixed B, B_p follows from n
        absent = {c.level(axis) for c in candidates if c.measured} - {c.level(axis) for c in nearby}
        if absent:
            runs = f"the runs of {SYMBOL_OF[axis]} = {', '.join(map(str, sorted(absent)))}"
            text = f"{runs} ended before a tenth of this budget, so they do not compete"
            flags.append(Flag(Code.LIMITED, text))
    return nearby


def affordable_candidates(
    document: LawDocument, budget: int, cap: int | None, flags: list[Flag]
) -> list[CandidateAllocation]:
    """Return the stable measured configurations within the cap for which the budget buys at least one step.

    If no configuration is stable, the unstable ones are kept. Flags report an unstable B_p. The same holds
    for configurations whose runs diverged.
    """
    grid = document.grid
    unstable = {e.problems_per_batch: e.reason for e in document.health if e.reason}
    entries = [e for e in grid if e.step_cost <= budget and (cap is None or e.batch_rollouts <= cap)]
    smallest = min(e.step_cost for e in grid)
    if not entries:
        limit = f"a budget of {budget}" if smallest > budget else f"max_batch_rollouts = {cap}"
        raise InputError(
            f"{limit} does not allow one step of the smallest measured batch, {smallest:.6g} "
            f"{document.x.unit}"
        )
    if max(e.step_cost for e in entries) < max(e.step_cost for e in grid):
        limit = " or for your limit" * (cap is not None)
        text = f"some measured batches are too large for this budget{limit}"
        flags.append(Flag(Code.LIMITED, text))
    kept = [e for e in entries if e.key not in {configuration.key for configuration in document.diverged}]
    divergences = flags_with(document.flags, Code.DIVERGED)
    flags += [Flag(flag.code, _divergence_text(flag, document, kept)) for flag in divergences]
    entries = kept or entries
    stable = [e for e in entries if e.problems_per_batch not in unstable]
    for b in sorted({e.problems_per_batch for e in entries} & set(unstable)):
        action = "leaves this B_p out" if stable else "keeps this B_p, since no other was measured"
        flags.append(Flag(Code.UNSTABLE_BATCH, f"at B_p = {b}, {unstable[b]}; isolaw {action}"))
    return [CandidateAllocation(*e.key, e.step_cost, True) for e in stable or entries]


def _divergence_text(flag: Flag, document: LawDocument, undiverged: Sequence[GridEntry]) -> str:
    """Return the text of a flag about diverged runs, with its consequence for a recommendation."""
    if not document.diverged:
        return f"{flag.text}; predicted rewards assume that runs do not diverge"
    if not undiverged:
        action = "keeps these configurations, since no others were measured, and recommends nothing beyond"
    else:
        action = "recommends no configuration of which half of the runs diverged, and none beyond such an end"
    return f"{flag.text}; isolaw {action}; a smaller lr may train stably"


E = TypeVar("E", GridEntry, CandidateAllocation)


def _lines_of(entries: Iterable[E], hold: Hold) -> dict[int, list[E]]:
    """Group entries by B_p (by B or n if ``hold`` is one of them) and sort each group along the axis."""
    lines: dict[int, list[E]] = {}
    for entry in sorted(entries, key=lambda entry: entry.level(law_axis(hold))):
        held_value = {"B": entry.batch_rollouts, "n": entry.rollouts_per_problem}
        lines.setdefault(held_value.get(hold, entry.problems_per_batch), []).append(entry)
    return lines


def inner_candidates(measured: list[CandidateAllocation], hold: Hold) -> list[CandidateAllocation]:
    """Return candidates with an unmeasured n = 2^k or 3 · 2^k between two measured n at the same B_p (or B).

    With ``hold="n"``, these values are B_p instead of n.
    """
    candidates = []
    axis = law_axis(hold)
    for held_value, line in _lines_of(measured, hold).items():
        for low, high in pairwise(line):
            ends = low.level(axis), high.level(axis)
            for value in sorted(f << k for f in (1, 3) for k in range(40) if ends[0] < f << k < ends[1]):
                fraction = math.log(value / ends[0]) / math.log(ends[1] / ends[0])
                step_cost = low.step_cost ** (1 - fraction) * high.step_cost**fraction
                shapes = _shapes_at(held_value, value, hold)
                candidates += [CandidateAllocation(*shape, step_cost, False) for shape in shapes]
    return candidates


def _shapes_at(held_value: int, value: int, hold: Hold) -> list[tuple[int, int]]:
    """Return the (B_p, n) with this value on the axis, in a list that is empty if B_p would not be whole."""
    if hold == "n":
        return [(value, held_value)]
    if hold == "B":
        return [] if held_value % value else [(held_value // value, value)]
    return [(held_value, value)]


def outer_candidates(
    document: LawDocument, healthy: Sequence[CandidateAllocation], budget: int, cap: int | None
) -> list[CandidateAllocation]:
    """Return unmeasured candidates outside the measured range, up to a factor `REACH`.

    n is 2^k or 3 · 2^k at each B_p (or B). If B_p varies independently of n, candidates also extend beyond
    the range of B_p, up to a factor `_REACH_B`. With ``hold="nothing"``, both n and B_p are powers of two,
    and B_p · n is at most a factor `REACH` · `_REACH_B` outside the measured sizes: a grid that is narrow in
    B_p · n has corners that are farther from its runs. Each candidate must fit within the cap, and the budget
    must buy `LEAST_STEPS` steps, since shorter runs learn almost nothing. n is at least 2, as GRPO's
    advantage requires. B_p does not extend past an end of its range where runs are unstable, and neither n
    nor B_p past an end where runs diverged.
    """
    grid, fixes_batch = document.grid, document.hold == "B"
    n_values = sorted({e.rollouts_per_problem for e in grid})
    if document.hold == "n":
        shapes = [(b, n_values[0]) for b in _batches_beyond(document, healthy, (1, 3))]
    elif document.hold == "nothing":
        levels = sorted({c.rollouts_per_problem for c in healthy} | set(_outside(n_values, REACH, 2, (1,))))
        batches = {c.problems_per_batch for c in healthy} | set(_batches_beyond(document, healthy, (1,)))
        sizes = [e.batch_rollouts for e in grid]
        low, high = min(sizes) / (REACH * _REACH_B), max(sizes) * REACH * _REACH_B
        shapes = [(b, n) for b in sorted(batches) for n in levels if low <= b * n <= high]
    else:
        lines = _lines_of(grid, document.hold)
        if not fixes_batch:
            lines = {b: line for b, line in lines.items() if any(c.problems_per_batch == b for c in healthy)}
        shapes = [
            key
            for held_value, line in lines.items()
            for n in _outside([e.rollouts_per_problem for e in line], REACH, 2, (1, 3))
            for key in _shapes_at(held_value, n, document.hold)
        ]
    existing = {e.key for e in grid} | {c.key for c in healthy}
    measured = np.log([e.key for e in grid])
    candidates: list[CandidateAllocation] = []
    for b, n in shapes:
        if (b, n) in existing or past_divergence(document, b, n):
            continue
        nearest = grid[int(np.abs(measured - np.log([b, n])).sum(axis=1).round(9).argmin())]
        times = b * n / nearest.batch_rollouts
        if nearest.step_cost * times * LEAST_STEPS <= budget and (cap is None or b * n <= cap):
            doublings = _doublings_outside(n, n_values)
            doublings += 0.0 if fixes_batch else _doublings_outside(b, [e.problems_per_batch for e in grid])
            candidates.append(CandidateAllocation(b, n, nearest.step_cost * times, False, beyond=doublings))
    return candidates


def past_divergence(document: LawDocument, b: int, n: int) -> bool:
    """Return whether the runs diverged at (B_p, n), or at the end of the measured ones on its way there."""
    diverged = {cell.key for cell in document.diverged}
    if not diverged:
        return False
    cells = [*document.grid, *document.diverged]
    axes: tuple[AxisName, AxisName] = ("problems_per_batch", "rollouts_per_problem")
    for (axis, held_axis), (value, held_value) in zip((axes, axes[::-1]), ((b, n), (n, b)), strict=True):
        peers = [cell for cell in cells if cell.level(held_axis) == held_value] or cells
        healthy_levels = [cell.level(axis) for cell in peers if cell.key not in diverged]
        diverged_levels = [cell.level(axis) for cell in peers if cell.key in diverged]
        if diverged_levels and (
            not healthy_levels
            or (value > max(healthy_levels) and max(diverged_levels) > max(healthy_levels))
            or (value < min(healthy_levels) and min(diverged_levels) < min(healthy_levels))
        ):
            return True
    return (b, n) in diverged


def _outside(levels: Sequence[int], reach: int, smallest: int, factors: tuple[int, ...]) -> list[int]:
    """Return values f · 2^k (f in ``factors``) outside the range of the levels, up to a factor ``reach``.

    >>> _outside([8, 32], 4, 2, (1, 3))
    [2, 3, 4, 6, 48, 64, 96, 128]
    """
    low, high = min(levels), max(levels)
    powers = sorted(f << k for f in factors for k in range(40))
    return [v for v in powers if max(low / reach, smallest) <= v <= high * reach and not low <= v <= high]


def _batches_beyond(
    document: LawDocument, healthy: Sequence[CandidateAllocation], factors: tuple[int, ...]
) -> list[int]:
    """Return values of B_p outside the measured range, except on a side whose outermost runs are unstable."""
    batches = [e.problems_per_batch for e in document.grid]
    stable = [c.problems_per_batch for c in healthy]
    low, high = min(batches), max(batches)
    return [
        b for b in _outside(batches, _REACH_B, 1, factors)
        if (b < low and low in stable) or (b > high and high in stable)
    ]  # fmt: skip


def _doublings_outside(value: int, levels: Sequence[int]) -> float:
    """Return the number of doublings by which a value is outside the levels, or 0 if it is inside."""
    return max(math.log2(value / max(levels)), math.log2(min(levels) / value), 0.0)


def price_in_seconds(
    candidates: list[CandidateAllocation], cost: Cost, seconds: float, flags: list[Flag]
) -> list[CandidateAllocation]:
    """Return the candidates for which ``seconds`` buy at least one step, with step costs in seconds.

    With S(B_p · n) seconds per step, each (B_p, n) has its own compute: C = seconds / S(B_p · n) · B_p · n.
    """
    step_times = [(c, cost.step(*c.key)) for c in candidates]
    timed = [(c, step) for c, step in step_times if step is not None]
    if not timed:
        raise InputError(
            f"{cost.where or cost.source}: found timed steps of only {cost.batches[0]:,} rollouts, a size "
            "that the law does not have; expected timed steps of two sizes, which give the cost of others"
        )
    affordable = [replace(c, step_cost=step, rate=c.step_cost / step) for c, step in timed if step <= seconds]
    if not affordable:
        shortest = min(step for _, step in timed)
        raise InputError(
            f"a budget of {seconds:.3g} s is too short for a step of any measured batch; the shortest step "
            f"takes {shortest:.3g} s"
        )
    if len(affordable) < len(timed):
        flags.append(Flag(Code.LIMITED, "a step of some measured batches takes longer than the whole budget"))
    if untimed := sorted({c.label for c, step in step_times if step is None and c.measured}):
        text = f"isolaw left out configurations whose step cost is unknown: {'; '.join(untimed)}"
        flags.append(Flag(Code.COST_UNKNOWN, text))
    return affordable


def cost_flags(cost: Cost, cell: Cell) -> list[Flag]:
    """Return a flag if the step cost of the chosen allocation is extrapolated from timed steps."""
    batch, sizes = cell.batch_rollouts, cost.batches
    if not cost.extrapolates(*cell.key):
        return []
    if sizes[0] <= batch <= sizes[-1]:
        text = f"the cost of {cell.label} is extrapolated: no timed configuration is within a factor of four"
    else:
        text = f"the cost of steps of {batch:,} rollouts is extrapolated; timed steps have "
        text += f"{sizes[0]:,} to {sizes[-1]:,} rollouts"
    return [Flag(Code.COST_EXTRAPOLATED, text)]
