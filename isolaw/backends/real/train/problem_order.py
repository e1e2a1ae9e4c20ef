"""The order in which training problems are visited."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


class ProblemOrder:
    """Batches of problems: epochs of a new permutation each, whose incomplete last batch is dropped.

    The permutations depend on the seed and the hexadecimal hash ``content`` of the training set alone: all
    configurations of a sweep visit the problems in the same order. With ``replacement`` every problem of
    every batch is drawn anew. ``n_train`` is D, ``batch`` B_p ≤ D.

    >>> order = ProblemOrder(6, batch=3, seed=0, content="ab")
    >>> sorted(order.take() + order.take())
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, n_train: int, batch: int, seed: int, content: str, replacement: bool = False) -> None:
        self.n_train, self.batch, self.replacement = n_train, batch, replacement
        self.rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(content[:8], 16),)))
        self.waiting: list[int] = []
        self.retired: set[int] = set()

    def take(self) -> list[int]:
        """Return the problems of the next batch."""
        if self.replacement:
            return [int(i) for i in self.rng.integers(self.n_train, size=self.batch)]
        if len(self.waiting) < self.batch:
            if self.n_train - len(self.retired) < self.batch:
                self.retired.clear()  # all come back when fewer than a batch are left
            shuffled = self.rng.permutation(self.n_train)
            self.waiting = [int(i) for i in shuffled if int(i) not in self.retired]
        batch, self.waiting = self.waiting[: self.batch], self.waiting[self.batch :]
        return batch

    def retire(self, problems: Iterable[int]) -> None:
        """Leave these problems out of the epochs to come (no-positive-resampling)."""
        self.retired.update(problems)

    def state(self) -> dict[str, Any]:
        """Return the position in the order, as data for JSON."""
        return {"rng": self.rng.bit_generator.state, "waiting": self.waiting, "retired": sorted(self.retired)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.rng.bit_generator.state = state["rng"]
        self.waiting = [int(i) for i in state["waiting"]]
        self.retired = {int(i) for i in state["retired"]}
