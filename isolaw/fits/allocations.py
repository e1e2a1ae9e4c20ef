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
from isolaw.fits.flags import Code, Flag, having
from isolaw.fits.selection import LEAST_CURVES, Configuration, Hold, varied
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


def comparable(grid: Sequence[GridEntry | Configuration]) -> float:
    """Return the compute up to which isolaw compares n: at least three n ran this far.

    An n reaches the compute one step after its last checkpoint, and can be compared slightly beyond.
    """
    axis = axis_of(grid)
    return _third([(entry.level(axis), entry.end) for entry in grid])


def reached(grid: Sequence[GridEntry | Configuration]) -> float:
    """Return the largest compute at which at least three n have a checkpoint.

    Messages and charts call it today's compute. `comparable` is one step larger.
    """
    axis = axis_of(grid)
    return _third([(entry.level(axis), entry.measured[1]) for entry in grid])


def _third(ends: Iterable[tuple[int, float]]) -> float:
    """Return the third-largest value among each n's largest compute, or 0 for fewer than three n."""
    last: dict[int, float] = {}
    for n, end in ends:
        last[n] = max(last.get(n, 0.0), end)
    return sorted(last.values())[-LEAST_CURVES] if len(last) >= LEAST_CURVES else 0.0


def times_beyond(budget: float, grid: Sequence[GridEntry]) -> float:
    """Return the ratio of a budget to `comparable`, or infinity if fewer than three n were measured.

    A run that was planned for compute C can end up to one step before C. If only this shortfall (a share of
    at most `_ROUNDING`) takes the ratio past the limit `INTERVALS` or `FAR`, the result is exactly the limit.
    """
    reach = comparable(grid)
    if not reach:
        return math.inf
    step = max(e.step_cost for e in grid if e.end == reach)
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


def in_reach(
    document: LawDocument, candidates: list[CandidateAllocation], budget: float
) -> list[CandidateAllocation]:
    """Return the candidates for which the budget is at most `FAR` times the compute of the nearest runs."""
    if not candidates:
        return []
    places, measured = (np.array([cell.place for cell in cells]) for cells in (candidates, document.grid))
    away = np.hypot(*(places.T[:, :, None] - measured.T[:, None]))
    near = away <= away.min(axis=1, keepdims=True) + _ROUNDING
    ends = np.where(near, [entry.end for entry in document.grid], 0.0).max(axis=1)
    most = FAR * ends * (1 + _ROUNDING)
    return [c for c, end in zip(candidates, most, strict=True) if budget * c.rate <= end]


def within_reach(
    document: LawDocument, candidates: list[CandidateAllocation], budget: float, flags: list[Flag]
) -> list[CandidateAllocation]:
    """Return the candidates `in_reach` of their runs, or all if there are none, and flag the others."""
    kept = in_reach(document, candidates, budget)
    if kept and (
        short := sorted(
            {c.level(document.axis) for c in candidates if c.measured}
            - {c.level(document.axis) for c in kept}
        )
    ):
        text = (
            f"the runs of {SYMBOL_OF[document.axis]} = {', '.join(map(str, short))} ended before a tenth of "
        )
        flags.append(Flag(Code.LIMITED, text + "this budget, so they do not compete"))
    return kept or candidates


def affordable(
    document: LawDocument, budget: int, cap: int | None, flags: list[Flag]
) -> list[CandidateAllocation]:
    """Return the stable measured configurations within the cap for which the budget buys at least one step.

    If no configuration is stable, the unstable ones are kept. Flags report an unstable B_p. The same holds
    for configurations whose runs diverged.
    """
    grid = document.grid
    unstable = {e.problems_per_batch: e.reason for e in document.health.batches if e.reason}
    out = [e for e in grid if e.step_cost <= budget and (cap is None or e.batch_rollouts <= cap)]
    smallest = min(e.step_cost for e in grid)
    if not out:
        limit = f"a budget of {budget}" if smallest > budget else f"max_batch_rollouts = {cap}"
        raise InputError(
            f"{limit} does not allow one step of the smallest measured batch, {smallest:.6g} "
            f"{document.x.unit}"
        )
    if max(e.step_cost for e in out) < max(e.step_cost for e in grid):
        text = "some measured batches are too large for this budget or for B_max"
        flags.append(Flag(Code.LIMITED, text))
    sound = [e for e in out if e.key not in {configuration.key for configuration in document.diverged}]
    flags += [Flag(flag.code, _kept(flag, document, sound)) for flag in having(document.flags, Code.DIVERGED)]
    out = sound or out
    stable = [e for e in out if e.problems_per_batch not in unstable]
    for b in sorted({e.problems_per_batch for e in out} & set(unstable)):
        kept = "leaves this B_p out" if stable else "keeps this B_p, since no other was measured"
        flags.append(Flag(Code.UNSTABLE_BATCH, f"at B_p = {b}, {unstable[b]}; isolaw {kept}"))
    return [CandidateAllocation(*e.key, e.step_cost, True) for e in stable or out]


def _kept(flag: Flag, document: LawDocument, sound: Sequence[GridEntry]) -> str:
    """Return the text of a flag about diverged runs, with its consequence for a recommendation."""
    if not document.diverged:
        return f"{flag.text}; predicted rewards assume that runs do not diverge"
    if not sound:
        kept = "keeps these configurations, since no others were measured, and recommends nothing beyond"
    else:
        kept = "recommends no configuration of which half of the runs diverged, and none beyond such an end"
    return f"{flag.text}; isolaw {kept}; a smaller lr may train stably"


E = TypeVar("E", GridEntry, CandidateAllocation)


def _lines(entries: Iterable[E], hold: Hold) -> dict[int, list[E]]:
    """Group entries by B_p (by B or n if ``hold`` is one of them) and sort each group along the axis."""
    out: dict[int, list[E]] = {}
    for e in sorted(entries, key=lambda e: e.level(varied(hold))):
        held = {"B": e.batch_rollouts, "n": e.rollouts_per_problem}
        out.setdefault(held.get(hold, e.problems_per_batch), []).append(e)
    return out


def between(measured: list[CandidateAllocation], hold: Hold) -> list[CandidateAllocation]:
    """Return candidates with an unmeasured n = 2^k or 3 · 2^k between two measured n at the same B_p (or B).

    With ``hold="n"``, these values are B_p instead of n.
    """
    out = []
    axis = varied(hold)
    for held, line in _lines(measured, hold).items():
        for low, high in pairwise(line):
            ends = low.level(axis), high.level(axis)
            for n in sorted(f << k for f in (1, 3) for k in range(40) if ends[0] < f << k < ends[1]):
                share = math.log(n / ends[0]) / math.log(ends[1] / ends[0])
                cost = low.step_cost ** (1 - share) * high.step_cost**share
                out += [CandidateAllocation(*key, cost, False) for key in _at(held, n, hold)]
    return out


def _at(held: int, value: int, hold: Hold) -> list[tuple[int, int]]:
    """Return the (B_p, n) with this value on the axis, in a list that is empty if B_p would not be whole."""
    if hold == "n":
        return [(value, held)]
    if hold == "B":
        return [] if held % value else [(held // value, value)]
    return [(held, value)]


def beyond(
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
    grid, held_b = document.grid, document.hold == "B"
    n_of = sorted({e.rollouts_per_problem for e in grid})
    if document.hold == "n":
        places = [(b, n_of[0]) for b in _batches_beyond(document, healthy, (1, 3))]
    elif document.hold == "nothing":
        levels = sorted({c.rollouts_per_problem for c in healthy} | set(_outside(n_of, REACH, 2, (1,))))
        batches = {c.problems_per_batch for c in healthy} | set(_batches_beyond(document, healthy, (1,)))
        sizes = [e.batch_rollouts for e in grid]
        low, high = min(sizes) / (REACH * _REACH_B), max(sizes) * REACH * _REACH_B
        places = [(b, n) for b in sorted(batches) for n in levels if low <= b * n <= high]
    else:
        lines = _lines(grid, document.hold)
        if not held_b:
            lines = {b: line for b, line in lines.items() if any(c.problems_per_batch == b for c in healthy)}
        places = [
            key
            for held, line in lines.items()
            for n in _outside([e.rollouts_per_problem for e in line], REACH, 2, (1, 3))
            for key in _at(held, n, document.hold)
        ]
    there = {e.key for e in grid} | {c.key for c in healthy}
    measured = np.log([e.key for e in grid])
    out: list[CandidateAllocation] = []
    for b, n in places:
        if (b, n) in there or past_divergence(document, b, n):
            continue
        near = grid[int(np.abs(measured - np.log([b, n])).sum(axis=1).round(9).argmin())]
        times = b * n / near.batch_rollouts
        if near.step_cost * times * LEAST_STEPS <= budget and (cap is None or b * n <= cap):
            past = _past(n, n_of) + (0.0 if held_b else _past(b, [e.problems_per_batch for e in grid]))
            out.append(CandidateAllocation(b, n, near.step_cost * times, False, beyond=past))
    return out


def past_divergence(document: LawDocument, b: int, n: int) -> bool:
    """Return whether the runs diverged at (B_p, n), or at the end of the measured ones on its way there."""
    lost = {cell.key for cell in document.diverged}
    if not lost:
        return False
    cells = [*document.grid, *document.diverged]
    axes: tuple[AxisName, AxisName] = ("problems_per_batch", "rollouts_per_problem")
    for (axis, other), (value, held) in zip((axes, axes[::-1]), ((b, n), (n, b)), strict=True):
        line = [cell for cell in cells if cell.level(other) == held] or cells
        sound = [cell.level(axis) for cell in line if cell.key not in lost]
        ended = [cell.level(axis) for cell in line if cell.key in lost]
        if ended and (
            not sound
            or (value > max(sound) and max(ended) > max(sound))
            or (value < min(sound) and min(ended) < min(sound))
        ):
            return True
    return (b, n) in lost


def _outside(levels: Sequence[int], reach: int, least: int, factors: tuple[int, ...]) -> list[int]:
    """Return values f · 2^k (f in ``factors``) outside the range of the levels, up to a factor ``reach``.

    >>> _outside([8, 32], 4, 2, (1, 3))
    [2, 3, 4, 6, 48, 64, 96, 128]
    """
    low, high = min(levels), max(levels)
    every = sorted(f << k for f in factors for k in range(40))
    return [v for v in every if max(low / reach, least) <= v <= high * reach and not low <= v <= high]


def _batches_beyond(
    document: LawDocument, healthy: Sequence[CandidateAllocation], factors: tuple[int, ...]
) -> list[int]:
    """Return values of B_p outside the measured range, except on a side whose outermost runs are unstable."""
    measured = [e.problems_per_batch for e in document.grid]
    stable = [c.problems_per_batch for c in healthy]
    low, high = min(measured), max(measured)
    return [
        b for b in _outside(measured, _REACH_B, 1, factors)
        if (b < low and low in stable) or (b > high and high in stable)
    ]  # fmt: skip


def _past(value: int, levels: Sequence[int]) -> float:
    """Return the number of doublings by which a value is outside the levels, or 0 if it is inside."""
    return max(math.log2(value / max(levels)), math.log2(min(levels) / value), 0.0)


def in_seconds(
    candidates: list[CandidateAllocation], cost: Cost, seconds: float, flags: list[Flag]
) -> list[CandidateAllocation]:
    """Return the candidates for which ``seconds`` buy at least one step, with step costs in seconds.

    With S(B_p · n) seconds per step, each (B_p, n) has its own compute: C = seconds / S(B_p · n) · B_p · n.
    """
    steps = [(candidate, cost.step(*candidate.key)) for candidate in candidates]
    known = [(candidate, step) for candidate, step in steps if step is not None]
    if not known:
        raise InputError(
            f"{cost.where or cost.source}: found timed steps of only {cost.batches[0]:,} rollouts, a size "
            "that the law does not have; expected timed steps of two sizes, which give the cost of others"
        )
    out = [replace(c, step_cost=step, rate=c.step_cost / step) for c, step in known if step <= seconds]
    if not out:
        shortest = min(step for _, step in known)
        raise InputError(
            f"a budget of {seconds:.3g} s is too short for a step of any measured batch; the shortest step "
            f"takes {shortest:.3g} s"
        )
    if len(out) < len(known):
        flags.append(Flag(Code.LIMITED, "a step of some measured batches takes longer than the whole budget"))
    if left := sorted({c.label for c, step in steps if step is None and c.measured}):
        text = f"isolaw left out configurations whose step cost is unknown: {'; '.join(left)}"
        flags.append(Flag(Code.COST_UNKNOWN, text))
    return out


def cost_flags(cost: Cost, chosen: Cell) -> list[Flag]:
    """Return a flag if the step cost of the chosen allocation is extrapolated from timed steps."""
    batch, sizes = chosen.batch_rollouts, cost.batches
    if not cost.extrapolates(*chosen.key):
        return []
    if sizes[0] <= batch <= sizes[-1]:
        text = (
            f"the cost of {chosen.label} is extrapolated: no timed configuration is within a factor of four"
        )
    else:
        text = f"the cost of steps of {batch:,} rollouts is extrapolated; timed steps have "
        text += f"{sizes[0]:,} to {sizes[-1]:,} rollouts"
    return [Flag(Code.COST_EXTRAPOLATED, text)]
