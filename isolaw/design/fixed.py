"""`Fixed`: a design that requests all its runs at once, like a grid."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from isolaw.allocation import BatchShape
from isolaw.design.cell_rewards import compare
from isolaw.design.decisions import Decision, DecisionStage, Ending, Request, RunKey, cost_of
from isolaw.design.race import described
from isolaw.fits.cell import Cell
from isolaw.fits.selection import Configuration


@dataclass(frozen=True)
class Fixed:
    """Runs all seeds of all ``cells`` to the target, then compares the ``compared`` cells, measured or not.

    If ``horizon`` is given, the runs end there and isolaw extrapolates the rewards to the target.
    """

    cells: tuple[BatchShape, ...]
    seeds: tuple[int, ...]
    target: int
    compared: tuple[BatchShape, ...]
    seed: int = 0  # seed of the draws
    horizon: int | None = None

    def next(
        self,
        history: Sequence[Decision],
        measured: Sequence[Configuration],
        failed: Collection[RunKey] = (),
    ) -> Decision:
        """Return the decision that follows ``history`` (see `isolaw.design.decisions.Design`)."""
        if not history:
            end = self.horizon or self.target
            runs = tuple(Request(*key, seed, end) for key in self.cells for seed in self.seeds)
            return Decision(DecisionStage.GRID, runs, cost=cost_of(runs, {}))
        found = compare(measured, [Cell(*key) for key in self.compared], self.target, self.seed)
        return described(Decision(DecisionStage.STOP, spent=history[0].cost, ending=Ending.COMPLETE), found)
