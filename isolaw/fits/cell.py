"""`Cell`: one (B_p, n), the base class of configurations, grid entries in ``law.json`` and candidates.

A law describes one *axis*, which is n, or B_p if all runs have the same n.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

AxisName = Literal["rollouts_per_problem", "problems_per_batch"]


@dataclass(frozen=True)
class Cell:
    """A configuration that is identified only by its B_p and n."""

    problems_per_batch: int
    rollouts_per_problem: int

    @property
    def key(self) -> tuple[int, int]:
        """The pair (B_p, n)."""
        return self.problems_per_batch, self.rollouts_per_problem

    @property
    def batch_rollouts(self) -> int:
        """B = B_p · n, the rollouts of one step."""
        return self.problems_per_batch * self.rollouts_per_problem

    @property
    def place(self) -> tuple[float, float]:
        """The coordinates (log2 n, log2 B_p) of the cell on the reward surface."""
        return math.log2(self.rollouts_per_problem), math.log2(self.problems_per_batch)

    @property
    def label(self) -> str:
        """The configuration's name in messages and charts, such as ``B_p = 32, n = 8``."""
        return f"B_p = {self.problems_per_batch}, n = {self.rollouts_per_problem}"

    def level(self, axis: AxisName) -> int:
        """Return the cell's value on the axis, which is its B_p or its n."""
        return self.problems_per_batch if axis == "problems_per_batch" else self.rollouts_per_problem


def axis_of(cells: Iterable[Cell]) -> AxisName:
    """Return the axis of a law of these cells: B_p if they differ only in B_p, otherwise n.

    >>> axis_of([Cell(8, 16), Cell(32, 16)]), axis_of([Cell(8, 16), Cell(8, 32)])
    ('problems_per_batch', 'rollouts_per_problem')
    """
    batches, rollouts = zip(*(cell.key for cell in cells), strict=True)
    one_n = len(set(rollouts)) == 1 and len(set(batches)) > 1
    return "problems_per_batch" if one_n else "rollouts_per_problem"
