"""Forecast rewards at budgets that no run has reached, with an ensemble.

Each member of the ensemble trains through the whole budget in every cell (B_p, n), on the same problems. A
cell's expected reward is the mean over members. Forecasts are **simulated**: the mechanism continues as
fitted. Members differ in the constants that the runs do not determine, and in their draws of the model
discrepancy (`benchmarks.calibration.discrepancy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.calibration import each
from benchmarks.calibration.ensemble import Ensemble
from benchmarks.calibration.recorded import lr_factor
from benchmarks.calibration.rounds import hash_of
from benchmarks.calibration.simulation import Protocol, SimulatedCell
from benchmarks.calibration.space import arguments_of
from isolaw.allocation import BatchShape
from isolaw.simulators.interference import SIZES
from isolaw.simulators.model import Floats

MEMBERS = 60
POINTS = 24  # number of C
_FORECAST = 2**21  # first index of the random streams, distinct from the streams of a calibration


@dataclass(frozen=True)
class RewardForecast:
    """Forecast rewards of the ensemble's members over a budget.

    ``rewards`` has shape (E, K, P), for E members in K sorted cells (B_p, n) at P values of C; the last C is
    the budget. Rewards before a cell's first step are NaN.
    """

    cells: tuple[BatchShape, ...]
    compute: Floats
    rewards: Floats

    @property
    def final(self) -> Floats:
        """The rewards at the budget, an array of shape (E, K)."""
        return self.rewards[:, :, -1]

    @property
    def best(self) -> BatchShape:
        """The cell with the highest expected reward, which also has the least expected loss."""
        return self.cells[int(self.final.mean(axis=0).argmax())]

    @property
    def best_n(self) -> tuple[int, int]:
        """The interval that holds the best n of 90 % of the members."""
        of_members = [self.cells[k][1] for k in self.final.argmax(axis=1)]
        low, high = np.quantile(of_members, (0.05, 0.95), method="inverted_cdf")
        return int(low), int(high)


def forecast(
    ensemble: Ensemble, compute: float, cells: Sequence[BatchShape], seed: int = 0, jobs: int | None = None
) -> RewardForecast:
    """Simulate the members through a budget C in each of the cells (B_p, n)."""
    cells = tuple(sorted(cells))
    least = min(b * n for b, n in cells)
    grid = np.geomspace(max(least, compute / 1e4), compute, POINTS)
    protocol = protocol_of(ensemble, cells, grid)
    members = ensemble.members[:MEMBERS]
    arguments = [arguments_of(values, hash_of(seed, _FORECAST + i)) for i, values in enumerate(members)]
    simulated = each(protocol.simulate_cells, arguments, jobs)
    rewards = np.full((len(members), len(cells), POINTS), np.nan)
    for i, rows in enumerate(simulated):
        for k, (cell, row) in enumerate(zip(protocol.cells, rows, strict=True)):
            at = cell.compute
            inside = grid >= at[1] * (1 - 1e-9)
            rewards[i, k, inside] = np.interp(grid[inside], at, row)
    rng = np.random.default_rng([seed, _FORECAST])
    left = ensemble.discrepancy.draws(cells, np.tile(grid, (len(cells), 1)), len(members), rng)
    return RewardForecast(cells, grid, np.clip(rewards + left, 0, 1))


def protocol_of(ensemble: Ensemble, cells: Sequence[BatchShape], grid: Floats) -> Protocol:
    """Return a protocol of these cells, sorted, with exact evaluations at the steps that each C pays for."""
    recipe = dict(ensemble.recipe)
    rule, replacement = str(recipe.pop("lr_scaling", "sqrt")), bool(recipe.pop("replacement", False))
    out = []
    for b, n in sorted(cells):
        steps = sorted({0, *(int(c * (1 + 1e-12)) // (b * n) for c in grid)})
        out.append(SimulatedCell(b, n, lr_factor(b, n, rule), tuple(steps), (0,) * len(steps)))
    return Protocol(tuple(out), ensemble.n_train, SIZES[1], False, replacement, recipe)
