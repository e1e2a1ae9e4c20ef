"""The training problems of each step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from isolaw.simulators.draws import permutations

_MOST_INDICES = 2**20  # of problems, drawn ahead at a time


class Batches:
    """Batches of B_p training problems; under one seed the same sequence of problems for every B_p and n.

    Without replacement a batch has distinct problems: each epoch is a new permutation of all D, without its
    incomplete last batch. With replacement every problem is drawn independently. ``rng`` orders the problems,
    and ``left`` are the remaining batches of the epoch, shape (batches, B_p).

    >>> [b.tolist() for b in Batches(np.random.default_rng(0), n_train=4, problems_per_batch=2).take(2)]
    [[[3, 0], [1, 2]]]
    """

    def __init__(
        self, rng: np.random.Generator, n_train: int, problems_per_batch: int, replacement: bool = False
    ) -> None:
        self.rng, self.n_train, self.size, self.replacement = rng, n_train, problems_per_batch, replacement
        self.left = np.empty((0, problems_per_batch), dtype=np.int64)

    def take(self, steps: int) -> Iterator[NDArray[np.int64]]:
        """Yield arrays (some steps, B_p) of limited size, ``steps`` steps in all."""
        most = max(1, _MOST_INDICES // self.size)
        while steps > 0:
            wanted = min(steps, most)
            if self.replacement:
                yield self.rng.integers(self.n_train, size=(wanted, self.size))
            else:
                yield self._of_epochs(wanted)
            steps -= wanted

    def _of_epochs(self, steps: int) -> NDArray[np.int64]:
        whole = self.n_train // self.size
        wanted = -(-max(steps - len(self.left), 0) // whole)
        epochs = permutations(self.rng, wanted, self.n_train)[:, : whole * self.size]
        batches = np.concatenate([self.left, epochs.reshape(wanted * whole, self.size)])
        self.left = batches[steps:]
        return batches[:steps]
