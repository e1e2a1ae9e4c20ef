"""Determine the order in which a run visits its training problems, and divide a batch into several updates.

There are ``epochs`` passes over a batch. Each pass shuffles the problems and makes ``minibatches`` optimiser
steps on equal numbers of problems. With one pass, k mini-batches are PPO-off-policy-k (ScaleRL, arXiv
2510.13786, section 3.1). Ratios are relative to the policy at the start of the batch. C counts each rollout
once; the metric ``reuse`` counts how often it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isolaw.backends.real.algorithms import objective

_SHUFFLES = 2  # key of a random stream


class ProblemOrder:
    """Batches of problems, in epochs that are random permutations of the training set.

    An incomplete last batch of an epoch is dropped. The permutations depend only on the seed and on
    ``content``, the hexadecimal hash of the training set. All configurations of a sweep therefore visit the
    problems in the same order. With ``replacement``, every problem of every batch is drawn independently.
    ``n_train`` is D, and ``batch`` is B_p ≤ D.

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
                self.retired.clear()  # reuse all problems if fewer than one batch remain
            shuffled = self.rng.permutation(self.n_train)
            self.waiting = [int(i) for i in shuffled if int(i) not in self.retired]
        batch, self.waiting = self.waiting[: self.batch], self.waiting[self.batch :]
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


def updates(enters: Tensor, epochs: int, minibatches: int, key: tuple[int, int]) -> Iterator[Tensor]:
    """Yield for each update on a batch the mask of its rollouts; skip updates without rollouts.

    ``enters`` marks the rollouts of the batch that enter the gradient. All masks have shape (B_p, n). A
    mini-batch consists of whole groups. The shuffles depend only on ``key``, the run's seed and the step.

    >>> [one[:, 0].tolist() for one in updates(torch.ones(2, 1).bool(), 1, 2, (0, 1))]
    [[False, True], [True, False]]
    """
    seed, step = key
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_SHUFFLES, step)))
    for _ in range(epochs):
        for problems in np.array_split(rng.permutation(len(enters)), minibatches):
            chosen = torch.zeros_like(enters)
            chosen[problems] = enters[problems]
            if bool(chosen.any()):
                yield chosen


class UpdateMeans:
    """Metrics of the updates on a batch, averaged over their tokens or over the updates.

    >>> measured = UpdateMeans(torch.ones(2, 1).bool())
    >>> for _ in range(2):
    ...     measured.add(torch.ones(2, 1).bool(), "grad_norm", 3.0, {"tokens": torch.tensor(4.0)})
    >>> measured.means()
    {'grad_norm': 3.0}
    >>> measured.reuse()
    {'reuse': 2.0, 'updates': 2.0}
    """

    def __init__(self, enters: Tensor) -> None:
        self.rollouts = int(enters.sum())
        self.used: dict[str, int] = {}  # these three dictionaries have the name of the norm as their key
        self.norms: dict[str, list[float]] = {}
        self.sums: dict[str, dict[str, Tensor]] = {}

    def add(self, chosen: Tensor, name: str, norm: float, sums: dict[str, Tensor]) -> None:
        """Add an update on the rollouts ``chosen``: its metric sums, and ``norm`` under the key ``name``."""
        self.used[name] = self.used.get(name, 0) + int(chosen.sum())
        self.norms.setdefault(name, []).append(norm)
        self.sums[name] = objective.merge(self.sums.get(name, {}), sums)

    def means(self) -> dict[str, float]:
        """Return the means of all metrics."""
        out = {name: sum(norms) / len(norms) for name, norms in self.norms.items()}
        for sums in self.sums.values():
            out |= objective.means(sums)
        return {"grad_norm": 0.0, **out}

    def reuse(self) -> dict[str, float]:
        """Return the mean number of policy updates per rollout in the gradient, and the number of updates."""
        used, count = self.used.get("grad_norm", 0), len(self.norms.get("grad_norm", []))
        return {"reuse": used / max(self.rollouts, 1), "updates": float(count)}
