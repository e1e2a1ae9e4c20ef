"""Determine the order in which a run visits its training problems."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


class ProblemOrder:
    """Batches of problems, in epochs that are random permutations of the training set.

    An incomplete last batch of an epoch is dropped. The permutations depend only on the seed and on
    ``content``, the hexadecimal hash of the training set. All configurations of a sweep therefore visit the
    problems in the same order. With ``replacement``, every problem of every batch is drawn independently.
    ``n_train`` is D, and ``batch_size`` is B_p ≤ D.

    >>> order = ProblemOrder(6, batch=3, seed=0, content="ab")
    >>> sorted(order.take() + order.take())
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, n_train: int, batch: int, seed: int, content: str, replacement: bool = False) -> None:
        self.n_train, self.batch_size, self.replacement = n_train, batch, replacement
        self.rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(content[:8], 16),)))
        self.waiting: list[int] = []
        self.retired: set[int] = set()

    def take(self) -> list[int]:
        """Return the problems of the next batch."""
        if self.replacement:
            return [int(i) for i in self.rng.integers(self.n_train, size=self.batch_size)]
        if len(self.waiting) < self.batch_size:
            if self.n_train - len(self.retired) < self.batch_size:
                self.retired.clear()  # reuse all problems if fewer than one batch remain
            shuffled = self.rng.permutation(self.n_train)
            self.waiting = [int(i) for i in shuffled if int(i) not in self.retired]
        batch, self.waiting = self.waiting[: self.batch_size], self.waiting[self.batch_size :]
        return batch

    def retire(self, problems: Iterable[int]) -> None:
        """Exclude these problems from later epochs (no-positive-resampling)."""
        self.retired.update(problems)

    def state(self) -> dict[str, Any]:
        """Return the position in the order as JSON-compatible data."""
        return {"rng": self.rng.bit_generator.state, "waiting": self.waiting, "retired": sorted(self.retired)}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the position from the result of `state`."""
        self.rng.bit_generator.state = state["rng"]
        self.waiting = [int(i) for i in state["waiting"]]
        self.retired = {int(i) for i in state["retired"]}
