"""Divide a batch into several updates, and average their metrics.

There are ``epochs`` passes over a batch. Each pass shuffles the problems and makes ``minibatches`` optimiser
steps on equal numbers of problems. With one pass, k mini-batches are PPO-off-policy-k (ScaleRL, arXiv
2510.13786, section 3.1). Ratios are relative to the policy at the start of the batch. C counts each rollout
once; the metric ``reuse`` counts how often it is used.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from isolaw.backends.real.algorithms import objective

_SHUFFLES = 2  # key of a random stream


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
