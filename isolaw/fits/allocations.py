"""Which allocations a budget may be spent on: those that were measured, some between and some beyond them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from isolaw.errors import InputError
from isolaw.fits.cell import AxisName, Cell, axis_of
from isolaw.fits.document.schema import GridEntry, LawDocument
from isolaw.fits.flags import Code, Flag
from isolaw.fits.selection import LEAST_CURVES, Configuration
from isolaw.step_cost import Cost

INTERVALS = 3.0  # times the compute to which three n ran: intervals up to there
FAR = 10.0  # and no recommendation beyond
REACH = 4  # times the largest measured n, and the smallest over it
LEAST_STEPS = 20  # that a configuration without runs must be able to make


def comparable(grid: Sequence[GridEntry | Configuration]) -> float:
    """The compute to which at least three n ran: up to there, and somewhat beyond, n can be compared."""
    ends: dict[int, float] = {}
    axis = axis_of(grid)
    for entry in grid:
        n = entry.level(axis)
        ends[n] = max(ends.get(n, 0.0), entry.end)
    return sorted(ends.values())[-LEAST_CURVES] if len(ends) >= LEAST_CURVES else 0.0


@dataclass(frozen=True)
class CandidateAllocation(Cell):
    """An allocation: ``step_cost`` is in the budget's unit, and ``measured`` whether there are runs of it.

    ``rate`` is how much of the law's x a unit of the budget pays for; not 1 for budgets in hours. ``beyond``
    is how many doublings its n is past those measured.
    """

    step_cost: float
    measured: bool
    rate: float = 1.0
    beyond: float = 0.0


def affordable(
    document: LawDocument, budget: int, cap: int | None, flags: list[Flag]
) -> list[CandidateAllocation]:
    """The healthy configurations of which the budget pays for a step under the cap."""
    grid = document.grid
    unstable = {e.problems_per_batch: e.reason for e in document.health.batches if e.reason}
    out = [
        e for e in grid
        if e.step_cost <= budget and (cap is None or e.problems_per_batch * e.rollouts_per_problem <= cap)
    ]  # fmt: skip
    smallest = min(e.step_cost for e in grid)
    if not out:
        limit = f"a budget of {budget}" if smallest > budget else f"max_batch_rollouts = {cap}"
        raise InputError(
            f"{limit} does not allow one step of the smallest measured batch, {smallest:.6g} "
            f"{document.x.unit}"
        )
    if max(e.step_cost for e in out) < max(e.step_cost for e in grid):
        text = "larger batches were measured, but do not fit the budget or the cap"
        flags.append(Flag(Code.LIMITED, text))
    stable = [e for e in out if e.problems_per_batch not in unstable]
    for b in sorted({e.problems_per_batch for e in out} & set(unstable)):
        kept = "left out" if stable else "kept, since no other was measured"
        flags.append(Flag(Code.UNSTABLE_BATCH, f"B_p = {b} ({unstable[b]}), {kept}"))
    return [CandidateAllocation(*e.key, e.step_cost, True) for e in stable or out]


E = TypeVar("E", GridEntry, CandidateAllocation)


def _lines(entries: Iterable[E], setting: str) -> dict[int, list[E]]:
    """Configurations of one B_p (or B), ascending in n; of one n, ascending in B_p."""
    out: dict[int, list[E]] = {}
    axis: AxisName = "problems_per_batch" if setting == "fixed-n" else "rollouts_per_problem"
    for e in sorted(entries, key=lambda e: e.level(axis)):
        batch = e.problems_per_batch * e.rollouts_per_problem
        held = {"fixed-b": batch, "fixed-n": e.rollouts_per_problem}
        out.setdefault(held.get(setting, e.problems_per_batch), []).append(e)
    return out


def between(measured: list[CandidateAllocation], setting: str) -> list[CandidateAllocation]:
    """Configurations with an n of 2^k or 3 · 2^k between two that were measured at this B_p (or B).

    In the setting ``fixed-n`` those with such a B_p.
    """
    out = []
    axis: AxisName = "problems_per_batch" if setting == "fixed-n" else "rollouts_per_problem"
    for held, line in _lines(measured, setting).items():
        for low, high in pairwise(line):
            ends = low.level(axis), high.level(axis)
            for n in sorted(f << k for f in (1, 3) for k in range(40) if ends[0] < f << k < ends[1]):
                if setting == "fixed-b" and held % n:
                    continue
                share = math.log(n / ends[0]) / math.log(ends[1] / ends[0])
                cost = low.step_cost ** (1 - share) * high.step_cost**share
                key = (n, held) if setting == "fixed-n" else (held // n if setting == "fixed-b" else held, n)
                out.append(CandidateAllocation(*key, cost, False))
    return out


def beyond(
    document: LawDocument, healthy: Sequence[CandidateAllocation], budget: int, cap: int | None
) -> list[CandidateAllocation]:
    """Configurations with an n of 2^k or 3 · 2^k past those measured at this B_p (or B), to `REACH` times.

    The budget must pay for `LEAST_STEPS` steps of one under the cap: with fewer, nothing is trained. GRPO's
    advantage needs two rollouts. A B_p of which nothing is ``healthy`` has none. In the setting ``fixed-n``
    there is none: no B_p beyond those measured is recommended.
    """
    out: list[CandidateAllocation] = []
    if document.setting == "fixed-n":
        return out
    held_b = document.setting == "fixed-b"
    for held, line in _lines(document.grid, document.setting).items():
        if not held_b and all(c.problems_per_batch != held for c in healthy):
            continue
        ends = line[0], line[-1]
        n_of = [e.rollouts_per_problem for e in ends]
        for n in sorted(f << k for f in (1, 3) for k in range(40)):
            inside = n_of[0] <= n <= n_of[1]
            if inside or not max(n_of[0] / REACH, 2) <= n <= n_of[1] * REACH or (held_b and held % n):
                continue
            near = ends[n > n_of[1]]
            batch = held // n if held_b else held
            cost = near.step_cost * (1.0 if held_b else n / near.rollouts_per_problem)
            if cost * LEAST_STEPS <= budget and (cap is None or batch * n <= cap):
                past = abs(math.log2(n / near.rollouts_per_problem))
                out.append(CandidateAllocation(batch, n, cost, False, beyond=past))
    return out


def in_seconds(
    candidates: list[CandidateAllocation], cost: Cost, seconds: float, flags: list[Flag]
) -> list[CandidateAllocation]:
    """The candidates of which ``seconds`` pay for a step, each with its own seconds of a step.

    A budget in hours pays for different computes at different (B_p, n): C = seconds / S(B_p · n) · B_p · n.
    """
    steps = [(candidate, cost.step(*candidate.key)) for candidate in candidates]
    known = [(candidate, step) for candidate, step in steps if step is not None]
    if not known:
        raise InputError(
            f"{cost.where or cost.source}: timed steps of {cost.batches[0]:,} rollouts only, which the law "
            "does not have; the cost of other steps needs two sizes"
        )
    out = [replace(c, step_cost=step, rate=c.step_cost / step) for c, step in known if step <= seconds]
    if not out:
        shortest = min(step for _, step in known)
        raise InputError(
            f"a budget of {seconds:.3g} s does not pay for a step of any measured batch; the shortest takes "
            f"{shortest:.3g} s"
        )
    if len(out) < len(known):
        flags.append(Flag(Code.LIMITED, "a step of some measured batches takes longer than the whole budget"))
    if left := sorted({c.label for c, step in steps if step is None and c.measured}):
        flags.append(
            Flag(
                Code.COST_UNKNOWN, f"left out, since the cost of their steps is not known: {'; '.join(left)}"
            )
        )
    return out


def cost_flags(cost: Cost, chosen: Cell) -> list[Flag]:
    """Whether the cost of the chosen allocation's steps is extrapolated."""
    batch, sizes = chosen.problems_per_batch * chosen.rollouts_per_problem, cost.batches
    if not sizes or sizes[0] <= batch <= sizes[-1]:
        return []
    text = f"the cost is of steps of {batch:,} rollouts; the timed ones have {sizes[0]:,} to {sizes[-1]:,}"
    return [Flag(Code.COST_EXTRAPOLATED, text)]
