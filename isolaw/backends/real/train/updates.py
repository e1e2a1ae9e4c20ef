"""Several updates on one batch: the rollouts that enter each, and their joint metrics.

``epochs`` passes over a batch, each in ``minibatches`` optimiser steps on equally many problems, shuffled
anew for each pass. With one pass, k mini-batches are PPO-off-policy-k (ScaleRL, arXiv 2510.13786, section
3.1). Ratios are to the policy at the start of the batch. C counts each rollout once; the metric ``reuse``
counts its uses.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from isolaw.backends.real.algorithms import objective

_SHUFFLES = 2  # a stream of random numbers


def updates(enters: Tensor, epochs: int, minibatches: int, key: tuple[int, int]) -> Iterator[Tensor]:
    """Yield for each update on a batch the rollouts that enter it, (B_p, n), leaving out updates without any.

    ``enters``, (B_p, n), are the rollouts of the batch that enter the gradient. A mini-batch consists of
    whole groups. The shuffles depend only on ``key``: the run's seed and the step.

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
    """Joint metrics of the updates on a batch: means over their tokens, and over the updates.

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
        self.used: dict[str, int] = {}  # by name of the norm, as the others
        self.norms: dict[str, list[float]] = {}
        self.sums: dict[str, dict[str, Tensor]] = {}

    def add(self, chosen: Tensor, name: str, norm: float, sums: dict[str, Tensor]) -> None:
        """Add an update on the rollouts ``chosen``: its gradient's norm, under its name, and its sums."""
        self.used[name] = self.used.get(name, 0) + int(chosen.sum())
        self.norms.setdefault(name, []).append(norm)
        self.sums[name] = objective.merge(self.sums[name], sums) if name in self.sums else sums

    def means(self) -> dict[str, float]:
        """Return the means."""
        out = {name: sum(norms) / len(norms) for name, norms in self.norms.items()}
        for sums in self.sums.values():
            out |= objective.means(sums)
        return {"grad_norm": 0.0, **out}

    def reuse(self) -> dict[str, float]:
        """Return how often the policy used each entering rollout, and the number of updates."""
        used, count = self.used.get("grad_norm", 0), len(self.norms.get("grad_norm", []))
        return {"reuse": used / max(self.rollouts, 1), "updates": float(count)}
