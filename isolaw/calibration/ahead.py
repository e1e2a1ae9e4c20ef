"""Forecast rewards at budgets that no run has reached, with a calibrated ensemble.

Each member of the ensemble trains through the whole budget in every cell (B_p, n), on the same problems. A
cell's expected reward is the mean over members. Forecasts are **simulated**: isolaw assumes that the
mechanism continues as fitted. Members differ in the constants that the runs do not determine, and in their
draws of the model discrepancy (`isolaw.calibration.discrepancy`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from isolaw.allocation import BatchShape
from isolaw.calibration.discrepancy import Discrepancy
from isolaw.calibration.recorded import lr_factor
from isolaw.calibration.rounds import hash_of
from isolaw.calibration.simulation import Protocol, SimulatedCell
from isolaw.calibration.space import arguments_of
from isolaw.children import each
from isolaw.errors import InputError, Refused
from isolaw.simulators.interference import SIZES
from isolaw.simulators.model import Floats
from isolaw.simulators.presets import Preset

MEMBERS = 60
POINTS = 24  # number of C
FARTHEST = 100.0  # largest budget of a forecast, as a multiple of the largest measured C
_FORECAST = 2**21  # first index of the random streams, distinct from the streams of a calibration


@dataclass(frozen=True)
class RewardForecast:
    """Forecast rewards of the ensemble's members over a budget.

    ``rewards`` has shape (E, K, P), for E members in K cells (B_p, n) at P values of C; the last C is the
    budget. Rewards before a cell's first step are NaN. ``steps``, of length K, contains the steps that the
    budget pays for.
    """

    preset: Preset
    cells: tuple[BatchShape, ...]
    compute: Floats
    rewards: Floats
    steps: tuple[int, ...]

    @property
    def final(self) -> Floats:
        """The rewards at the budget, an array of shape (E, K)."""
        return self.rewards[:, :, -1]

    @property
    def best(self) -> BatchShape:
        """The cell with the highest expected reward, which also has the least expected loss."""
        return self.cells[int(self.final.mean(axis=0).argmax())]


def forecast(
    preset: Preset,
    compute: float,
    cells: Sequence[BatchShape],
    seed: int = 0,
    jobs: int | None = None,
    progress: Callable[[float], None] = lambda _: None,
    rates: Sequence[float] | None = None,
) -> RewardForecast:
    """Simulate the members of a preset through a budget in each of the cells (B_p, n).

    In each cell, one unit of the budget pays for the number of rollouts in ``rates``, by default one. Raises
    `InputError` if the budget is below one step of a cell, or if the discrepancy in the preset's file is
    damaged.
    """
    rate = dict(zip(cells, rates or [1.0] * len(cells), strict=True))
    cells = tuple(sorted(rate))
    least = {(b, n): b * n / rate[b, n] for b, n in cells}
    if not cells or (most := max(least.values())) > compute:
        text = f"found {compute:,.0f}; expected at least a step of each cell, {most if cells else 1:,.0f}"
        raise InputError(f"compute: {text}")
    grid = np.geomspace(max(min(least.values()), compute / 1e4), compute, POINTS)
    protocol = protocol_of(preset, rate, grid)
    left = discrepancy_of(preset)
    members = preset.members[:MEMBERS]

    arguments = [arguments_of(values, hash_of(seed, _FORECAST + i)) for i, values in enumerate(members)]
    found = each(protocol.simulate_cells, arguments, jobs, lambda done: progress(done / len(members)))
    rewards = np.full((len(members), len(cells), POINTS), np.nan)
    spent = [cell.compute / rate[key] for key, cell in zip(cells, protocol.cells, strict=True)]
    for i, rows in enumerate(found):
        for k, (at, row) in enumerate(zip(spent, rows, strict=True)):
            inside = grid >= at[1] * (1 - 1e-9)
            rewards[i, k, inside] = np.interp(grid[inside], at, row)
    at = np.array([grid * rate[key] for key in cells])
    rng = np.random.default_rng([seed, _FORECAST])
    rewards = np.clip(rewards + left.draws(cells, at, len(members), rng), 0, 1)
    return RewardForecast(preset, cells, grid, rewards, tuple(cell.steps[-1] for cell in protocol.cells))


def discrepancy_of(preset: Preset) -> Discrepancy:
    """Return the model discrepancy stored in a preset; raise `InputError` if it is damaged."""
    try:
        return Discrepancy.read(preset.discrepancy, preset.left)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{preset.name}.toml: [discrepancy] is damaged ({error})") from None


def check_reach(preset: Preset, compute: float) -> float:
    """Return ``compute`` as a multiple of the largest C of the preset's runs.

    Raises `Refused` if this multiple exceeds `FARTHEST`.
    """
    factor = compute / preset.measured
    if factor > FARTHEST:
        raise Refused(
            f"compute: {compute:,.0f} rollouts are {factor:,.0f} times the largest measured compute of "
            f"{preset.name} ({preset.measured:,.0f}); expected at most {FARTHEST:.0f} times. Extend "
            "runs, then calibrate again"
        )
    return factor


def protocol_of(preset: Preset, rate: Mapping[BatchShape, float], grid: Floats) -> Protocol:
    """Return a protocol of the sorted cells in ``rate``, evaluated at the steps that each budget allows."""
    recipe = dict(preset.recipe)
    rule, replacement = str(recipe.pop("lr_scaling", "sqrt")), bool(recipe.pop("replacement", False))
    out = []
    for (b, n), own in sorted(rate.items()):
        steps = sorted({0, *(int(c * own * (1 + 1e-12)) // (b * n) for c in grid)})
        out.append(SimulatedCell(b, n, lr_factor(b, n, rule), tuple(steps), tuple([0] * len(steps))))
    return Protocol(tuple(out), preset.n_train, SIZES[1], False, replacement, recipe)
