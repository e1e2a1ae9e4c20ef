"""Compute PPO's advantages with the critic, and update the critic.

Advantages and targets are computed from the critic's values at the start of a batch (`algorithms.gae`). Both
stay fixed during all updates on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from isolaw.backends.real.algorithms import gae, objective
from isolaw.backends.real.train.batch import Batch, RankGroup
from isolaw.backends.real.train.critic import Critic
from isolaw.backends.real.train.packing import Packed
from isolaw.config import Recipe


@dataclass(frozen=True)
class Targets:
    """Advantages and critic targets for the rows of a process, and their metrics.

    Arrays are float64 of shape (R, T), with zeros in the padding.
    """

    advantages: Tensor  # whitened over the batch
    values: Tensor  # the critic's values at the start of the batch
    returns: Tensor
    metrics: dict[str, float]


class PPO:
    """The critic of a run; ``keys`` are the arguments of the run's `Trainer`."""

    def __init__(self, recipe: Recipe, ranks: RankGroup, model: str, **keys: Any) -> None:
        self.recipe, self.ranks = recipe, ranks
        self.critic = Critic(model, **keys)

    def targets(self, batch: Batch, rewards: Tensor, penalties: Sequence[Tensor] | None) -> Targets:
        """Return a batch's advantages and the critic's targets.

        ``rewards`` has shape (B_p, n) and applies to the last token of each rollout. ``penalties`` has one
        array of token penalties for each of this process's rows (`algorithms.gae.token_rewards`).
        """
        values, mask = _padded(self.critic.values(batch.rollouts))
        own = batch.own(rewards)
        charged = gae.token_rewards(own, mask, None if penalties is None else _padded(penalties)[0])
        assert self.recipe.gamma is not None
        assert self.recipe.gae_lambda is not None
        raw = gae.gae(charged, values, self.recipe.gamma, self.recipe.gae_lambda)
        returns = (raw + values).masked_fill(~mask, 0.0)
        mean, variance = self._moments(batch, raw, mask)
        _, of_returns = self._moments(batch, returns, mask)
        metrics = {} if of_returns == 0 else {"explained_variance": 1 - variance / of_returns}
        return Targets(gae.whiten(raw, mask, mean, variance), values, returns, metrics)

    def update(
        self, batch: Batch, targets: Targets, rows: list[int], weights: Tensor, lr: float
    ) -> tuple[dict[str, Tensor], float]:
        """Update the critic on some of this process's rows; return its metric sums and gradient norm."""
        own_weights = batch.own(weights)[rows]
        sums: dict[str, Tensor] = {}

        def loss_of(part: Sequence[int], packed: Packed, values: Tensor) -> Tensor:
            nonlocal sums
            if not part:
                return values.sum() * 0.0
            held = [rows[i] for i in part]
            old, returns = (
                x[held, : values.shape[1]].to(values.device) for x in (targets.values, targets.returns)
            )
            weight = own_weights[list(part)].to(values.device)
            loss, more = gae.value_loss(values, old, returns, packed.mask, weight, self.recipe.value_clip)
            sums = objective.merge(sums, more) if sums else more
            return loss

        self.critic.backward(batch.rollouts.rows(rows), loss_of)
        merged = self.ranks.merged(sums)
        return merged, self.critic.update(lr)

    def _moments(self, batch: Batch, values: Tensor, mask: Tensor) -> tuple[float, float]:
        """Return mean and variance over all tokens of the batch, the same for any number of processes."""
        tokens = int(batch.lengths.sum())
        mean = float(self.ranks.gathered(batch, values.sum(1).tolist()).sum()) / max(tokens, 1)
        square = (values - mean).masked_fill(~mask, 0.0).square().sum(1)
        return mean, float(self.ranks.gathered(batch, square.tolist()).sum()) / max(tokens - 1, 1)


def _padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return rows of numbers padded to a float64 array of shape (R, T) on the CPU, and the mask of numbers.

    T is at least 1.
    """
    own = [row.detach().cpu().double() for row in rows]
    width = max([1, *map(len, own)])
    lengths = torch.tensor([len(row) for row in own], dtype=torch.long)
    values = torch.zeros(len(own), width, dtype=torch.float64)
    if own:
        found = pad_sequence(own, batch_first=True)
        values[:, : found.shape[1]] = found
    return values, torch.arange(width) < lengths[:, None]
