"""The race: run every second n first, drop n that are surely worse than others, and refine near the best n.

1. *Rungs.* Every second n of the grid, with one seed and at one B_p, runs to C/8, C/4, C/2 and C. After a
   rung, an n is plausible if it is within ε = 0.005 of the best in more than 5 % of draws. All n from the
   smallest to the largest plausible one continue, and also the next larger n, since larger n overtake later.
   At least three n continue; if failed runs leave fewer, other n replace them.
2. *Neighbours.* The grid neighbours of the best cell (B_p, n), along n and along B_p, run to C, too. This
   step repeats until all neighbours of the best cell are measured, for at most four rounds.
3. *Seeds.* The best cell and its two strongest rivals run to C with their next seed, until the expected
   loss is at most the tolerance or the spend is used up.

isolaw compares cells at a compute that all cells reached, and never extrapolates, since learning curves
cross. Runs with the same seed share their problems, so even one seed shows much of the difference between two
cells.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from isolaw.allocation import BatchShape
from isolaw.design.cell_rewards import CellRewards, compare
from isolaw.design.decisions import (
    CellVerdict,
    Decision,
    DecisionStage,
    Ending,
    Request,
    RunKey,
    Standing,
    cost_of,
    horizons,
)
from isolaw.fits.selection import LEAST_CURVES, Configuration

RUNGS = (8, 4, 2, 1)  # the horizon of each rung is the target divided by this factor
LEAST_STEPS = 4  # fewest steps of a run at its first rung; larger batches start at a later rung
SHARE = 0.05  # an n is dropped if it is within ε of the best in at most this share of draws
TOLERANCE = 0.001  # default expected loss at which a race ends, in units of the metric
ROUNDS = 4  # limit on the rounds of neighbours
_RIVALS = 2  # number of cells that get a seed together with the best cell


@dataclass(frozen=True)
class Race:
    """A race over the cells of a grid.

    Parameters
    ----------
    cells
        (B_p, n) that may run.
    start
        the B_p of the rungs.
    target
        horizon of the longest runs: C, in rollouts.
    seeds
        the seeds, in the order in which the race uses them.
    spend
        limit on the rollouts of all runs together.
    tolerance
        expected loss, in reward, at which the race ends; None: `TOLERANCE` of the metric's unit
        (`isolaw.fits.metric`).
    seed
        random seed of the posterior draws.
    pinned
        cells that the race always runs to the target.
    missing
        runs that cannot execute: a sweep that replays recorded runs need not have all runs of the grid.
    """

    cells: tuple[BatchShape, ...]
    start: int
    target: int
    seeds: tuple[int, ...]
    spend: int
    tolerance: float | None = None
    seed: int = 0
    pinned: tuple[BatchShape, ...] = ()
    missing: frozenset[RunKey] = frozenset()

    @property
    def rungs(self) -> tuple[int, ...]:
        """The horizons of the rungs in rollouts, in ascending order."""
        return tuple(self.target // part for part in RUNGS)

    @property
    def least(self) -> int:
        """The rollouts that a race needs: the three cheapest runs to the target at B_p = ``start``."""
        runs = sorted(Request(*key, self.seeds[0], self.target).rollouts for key in self._line())
        return sum(runs[:LEAST_CURVES])

    @property
    def limits(self) -> tuple[float, ...]:
        """The user's choices that determine when a race ends. If they change, an ended race can continue."""
        return (self.spend, self.tolerance or TOLERANCE, len(self.cells), *self.seeds)

    def next(
        self,
        history: Sequence[Decision],
        measured: Sequence[Configuration],
        failed: Collection[RunKey] = (),
    ) -> Decision:
        """Return the decision that follows ``history``.

        ``measured`` contains the requested runs, only up to their requested horizons. ``failed`` contains the
        (B_p, n, seed) of failed runs.
        """
        if not history:
            return self._ask(DecisionStage.RUNG, history, self._entering(0), self.rungs[0])
        made, gone = horizons(history), tuple(sorted(failed))
        at = max(request.compute for request in history[-1].runs)
        known = {c.key for c in measured}
        arrived = sorted({key[:2] for key, end in made.items() if end >= at and key not in failed} & known)
        if len(arrived) < LEAST_CURVES:
            spare = [key for key in self._line() if (*key, self.seeds[0]) not in made]
            missing = spare[: LEAST_CURVES - len(arrived)]
            again = self._ask(DecisionStage.RUNG, history, missing, at) if spare else None
            return replace(again or _end(Ending.FAILED, history), failed=gone)
        found = compare(measured, arrived, at, self.seed)
        if at < self.target:
            kept, rung = self._kept(found), self.rungs.index(at) + 1
            going = {*kept, *self._entering(rung)}
            decision = self._ask(DecisionStage.RUNG, history, going, self.rungs[rung])
        else:
            kept, decision = arrived, self._refined(history, found)
        return _described(replace(decision, failed=gone), found, kept)

    def _refined(self, history: Sequence[Decision], found: CellRewards) -> Decision:
        """Return the decision after the last rung: neighbours of the best cell, more seeds, or the end."""
        made = horizons(history)
        rounds = sum(decision.stage is DecisionStage.NEIGHBOURS for decision in history)
        beside = [key for key in self._beside(found.cells[found.best]) if (*key, self.seeds[0]) not in made]
        limits = history[-1].limits
        grown = bool(limits) and limits != self.limits  # the grid may have new cells since the last decision
        if beside and (grown or (rounds < ROUNDS and history[-1].stage is not DecisionStage.SEEDS)):
            return self._ask(DecisionStage.NEIGHBOURS, history, beside, self.target)
        return self._one_more_seed(history, found)

    def _line(self) -> list[BatchShape]:
        return sorted(cell for cell in self.cells if cell[0] == self.start)

    def _entering(self, rung: int) -> list[BatchShape]:
        """Return the cells that start at this rung: every second n at B_p = ``start``, and pinned cells."""
        line = self._line()
        chosen = line[::-2] if len(line) >= 2 * LEAST_CURVES - 1 else line
        return [key for key in {*chosen, *self.pinned} if self._first_rung(key) == rung]

    def _first_rung(self, key: BatchShape) -> int:
        steps = [rung // (key[0] * key[1]) for rung in self.rungs]
        return next((i for i, count in enumerate(steps) if count >= LEAST_STEPS), len(steps) - 1)

    def _kept(self, found: CellRewards) -> list[BatchShape]:
        """Return the cells that continue to the next rung."""
        at = [i for i, (b, _) in enumerate(found.cells) if b == self.start]
        near = [k for k, i in enumerate(at) if found.probability[i] > SHARE or i == found.best]
        low, high = (min(near), min(max(near) + 1, len(at) - 1)) if near else (0, len(at) - 1)
        while high - low + 1 < min(LEAST_CURVES, len(at)):  # extend the range toward the more probable n
            below = found.probability[at[low - 1]] if low > 0 else -1.0
            above = found.probability[at[high + 1]] if high + 1 < len(at) else -1.0
            low, high = (low - 1, high) if below > above else (low, high + 1)
        kept = [found.cells[i] for i in at[low : high + 1]]
        return kept + [cell for cell in found.cells if cell in self.pinned]

    def _beside(self, key: BatchShape) -> list[BatchShape]:
        """Return the grid neighbours of a cell along n and along B_p."""
        row = sorted(cell for cell in self.cells if cell[0] == key[0])
        column = sorted(cell for cell in self.cells if cell[1] == key[1])
        return [
            line[i] for line in (row, column) for i in (line.index(key) - 1, line.index(key) + 1)
            if 0 <= i < len(line)
        ]  # fmt: skip

    def _one_more_seed(self, history: Sequence[Decision], found: CellRewards) -> Decision:
        if found.expected_loss <= (self.tolerance or TOLERANCE * found.unit):
            return _end(Ending.CERTAIN, history)
        made, gains = horizons(history), found.gains()
        rivals = [i for i in sorted(range(len(gains)), key=lambda i: (-gains[i], i)) if i != found.best]
        runs = []
        for i in (found.best, *rivals[:_RIVALS]):
            key = found.cells[i]
            left = [seed for seed in self.seeds if (*key, seed) not in {*made, *self.missing}]
            runs += [Request(*key, left[0], self.target)] if left else []
        if not runs:
            return _end(Ending.COMPLETE, history)
        while len(runs) > 2 and self._exceeds(history, runs):  # a seed helps only in two or more cells
            runs.pop()
        return self._affordable(DecisionStage.SEEDS, history, runs)

    def _exceeds(self, history: Sequence[Decision], runs: Sequence[Request]) -> bool:
        return _spent(history) + cost_of(runs, horizons(history)) > self.spend

    def _ask(
        self, stage: DecisionStage, history: Sequence[Decision], keys: Iterable[BatchShape], compute: int
    ) -> Decision:
        runs = [Request(*key, self.seeds[0], compute) for key in sorted(keys)]
        return self._affordable(stage, history, runs)

    def _affordable(
        self, stage: DecisionStage, history: Sequence[Decision], runs: Sequence[Request]
    ) -> Decision:
        """Return the decision to make these runs, or the end of the race if they would exceed the spend."""
        if self._exceeds(history, runs):
            return _end(Ending.SPENT, history)
        return Decision(stage, tuple(sorted(runs)), _spent(history), cost_of(runs, horizons(history)))


def _end(ending: Ending, history: Sequence[Decision]) -> Decision:
    return Decision(DecisionStage.STOP, spent=_spent(history), ending=ending)


def _spent(history: Sequence[Decision]) -> int:
    return sum(decision.cost for decision in history)


def _described(decision: Decision, found: CellRewards, kept: Collection[BatchShape]) -> Decision:
    """Return a decision with the comparison of cells that led to it, in which only ``kept`` are not worse."""
    rows = zip(found.cells, found.reward, found.loss, found.probability, strict=True)
    return replace(
        decision,
        compute=found.compute,
        best=found.cells[found.best],
        expected_loss=found.expected_loss,
        standings=tuple(
            Standing(*cell, CellVerdict.KEPT if cell in kept else CellVerdict.WORSE, *map(float, own))
            for cell, *own in rows
        ),
    )
