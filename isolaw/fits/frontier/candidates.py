"""Which allocations a budget may be spent on: those that were measured, and some between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from isolaw.costs.model import Cost
from isolaw.errors import InputError
from isolaw.fits.cell import Cell
from isolaw.fits.document.flags import Code, Flag
from isolaw.fits.document.schema import GridEntry, LawDocument
from isolaw.fits.selection import LEAST_CURVES, Configuration

INTERVALS = 3.0  # times the compute to which three n ran: intervals up to there
FAR = 10.0  # and no recommendation beyond


def comparable(grid: Sequence[GridEntry | Configuration]) -> float:
    """The compute to which at least three n ran: up to there, and somewhat beyond, n can be compared."""
    ends: dict[int, float] = {}
    for entry in grid:
        n = entry.rollouts_per_problem
        ends[n] = max(ends.get(n, 0.0), entry.end)
    return sorted(ends.values())[-LEAST_CURVES] if len(ends) >= LEAST_CURVES else 0.0


@dataclass(frozen=True)
class Candidate(Cell):
    """An allocation: ``step_cost`` is in the budget's unit, and ``measured`` whether there are runs of it.

    ``rate`` is how much of the law's x a unit of the budget pays for; not 1 for budgets in hours.
    """

    step_cost: float
    measured: bool
    rate: float = 1.0


def affordable(document: LawDocument, budget: int, cap: int | None, flags: list[Flag]) -> list[Candidate]:
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
    return [Candidate(*e.key, e.step_cost, True) for e in stable or out]


def between(measured: list[Candidate], setting: str) -> list[Candidate]:
    """Configurations with an n of 2^k or 3 · 2^k between two that were measured at this B_p (or B)."""
    out = []
    lines: dict[int, list[Candidate]] = {}
    for c in measured:
        batch = c.problems_per_batch * c.rollouts_per_problem
        lines.setdefault(batch if setting == "fixed-b" else c.problems_per_batch, []).append(c)
    for held, line in lines.items():
        line.sort(key=lambda c: c.rollouts_per_problem)
        for low, high in pairwise(line):
            ends = low.rollouts_per_problem, high.rollouts_per_problem
            for n in sorted(f << k for f in (1, 3) for k in range(40) if ends[0] < f << k < ends[1]):
                if setting == "fixed-b" and held % n:
                    continue
                share = math.log(n / ends[0]) / math.log(ends[1] / ends[0])
                cost = low.step_cost ** (1 - share) * high.step_cost**share
                out.append(Candidate(held // n if setting == "fixed-b" else held, n, cost, False))
    return out


def in_seconds(candidates: list[Candidate], cost: Cost, seconds: float, flags: list[Flag]) -> list[Candidate]:
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
