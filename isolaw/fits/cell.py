"""`Cell`: one (B_p, n), the base of configurations, grid entries in ``law.json`` and candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One (B_p, n)."""

    problems_per_batch: int
    rollouts_per_problem: int

    @property
    def key(self) -> tuple[int, int]:
        """(B_p, n)."""
        return self.problems_per_batch, self.rollouts_per_problem

    @property
    def place(self) -> tuple[float, float]:
        """Coordinates (log2 n, log2 B_p)."""
        return math.log2(self.rollouts_per_problem), math.log2(self.problems_per_batch)

    @property
    def label(self) -> str:
        """A short name."""
        return f"B_p = {self.problems_per_batch}, n = {self.rollouts_per_problem}"
