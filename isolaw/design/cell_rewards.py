"""Compare the cells (B_p, n) of a grid at one compute C, given the runs so far.

isolaw draws the rewards r_d(a) of all cells a at C jointly from the fitted reward surface
(`isolaw.fits.surface.estimate`), so that effects shared by runs with the same seed cancel in differences. In
draw d, cell a loses

    loss_d(a) = max_b r_d(b) − r_d(a)

The probability of a cell is the share of draws in which its loss is at most ε. For this probability, each
reward also gets a normal error with the standard deviation `MISFIT`, since the surface cannot follow every
curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isolaw.allocation import BatchShape, Cell
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.metric import unit_of
from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.estimate import estimate

MISFIT = 0.004  # standard deviation of the surface's error, in units of reward
DRAWS = 400


@dataclass(frozen=True)
class CellRewards:
    """Comparison of K cells at one compute: mean rewards, D joint draws of the rewards, and losses."""

    cells: tuple[BatchShape, ...]  # (B_p, n)
    compute: int  # C at which the cells are compared
    reward: Floats  # mean over draws, of shape (K,)
    drawn: Floats  # drawn rewards, of shape (D, K)
    loss: Floats  # expected loss, of shape (K,)
    probability: Floats  # probability of being within ε of the best, of shape (K,)
    unit: float = 1.0  # the metric's unit (`isolaw.fits.metric`)

    @property
    def best(self) -> int:
        """Index of the cell with the least expected loss after rounding; the first one in a tie."""
        return int(self.loss.round(9).argmin())

    @property
    def expected_loss(self) -> float:
        """The expected loss of the best cell."""
        return float(self.loss[self.best])

    def gains(self) -> Floats:
        """Return how much each cell contributes to the expected loss of the best cell.

        The array has shape (K,). A cell contributes in the draws in which it has the highest reward:

        mean_d [ (r_d(b) − r_d(best)) · 1(b is the highest of draw d) ]
        """
        top = self.drawn.argmax(axis=1)
        over = self.drawn.max(axis=1) - self.drawn[:, self.best]
        return np.bincount(top, over, minlength=len(self.cells)) / len(self.drawn)


def compare(
    measured: Sequence[Configuration],
    cells: Sequence[BatchShape],
    compute: int,
    seed: int = 0,
) -> CellRewards:
    """Compare ``cells`` at ``compute`` rollouts, using draws of a surface fitted to ``measured``."""
    shares = all(c.reward.min() >= 0 and c.reward.max() <= 1 for c in measured)
    unit = 1.0 if shares else unit_of("", measured)
    surface = estimate(measured, DRAWS, seed, (0.0, 1.0) if shares else (-np.inf, np.inf))
    u, v = np.array([Cell(*cell).place for cell in cells]).T
    drawn = surface.rewards(u, v, np.full(len(cells), float(compute)))
    mean, drawn = drawn[0], drawn[1:]
    loss = np.mean(drawn.max(axis=1, keepdims=True) - drawn, axis=0)
    rng = np.random.default_rng([seed, len(cells)])
    rough = drawn + MISFIT * unit * rng.standard_normal(drawn.shape)
    within = rough >= rough.max(axis=1, keepdims=True) - TOLERANCE * unit
    return CellRewards(tuple(cells), compute, mean, drawn, loss, within.mean(axis=0), unit)
