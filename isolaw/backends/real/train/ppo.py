"""Compute PPO's advantages with the critic, and update the critic.

The critic is the base model with a scalar output head, under its own DeepSpeed engine. Its value is
V(s) = w · h(s) in float32. Here h is the last hidden state at the token before the predicted token, and w is
the head's weight, which is initially 0. There is no bias, because DeepSpeed's ZeRO-3 cannot restore a
parameter with fewer numbers than there are processes.

Advantages and targets are computed from the critic's values at the start of a batch (`algorithms.gae`). Both
stay fixed during all updates on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from isolaw.backends.real.algorithms import gae, objective
from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.train.batch import Batch, RankGroup
from isolaw.backends.real.train.packing import Packed
from isolaw.backends.real.train.policy import Backbone, pretrained
from isolaw.backends.real.train.trainer import Trainer, gathered
from isolaw.config import Recipe


class _ScalarHead(nn.Linear):  # type: ignore[misc]
    """A linear map to one number, in float32."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the K values of hidden states of shape (K, E)."""
        return nn.functional.linear(hidden.float(), self.weight.float())[:, 0]


class _ValueModel(Backbone):
    """A causal language model whose head is a `_ScalarHead`."""

    def forward(self, packed: Packed) -> Tensor:
        """Return the value before each response token, as shape (1, R, T) with zeros in the padding."""
        return packed.by_row(self.model.get_output_embeddings()(self.states(packed)))[None]


class Critic(Trainer):
    """The trainer of a value model, which starts from the base model and has its own state files."""

    prefix = "critic_"

    def _build(self, folder: str, *, gradient_checkpointing: bool = False) -> _ValueModel:
        model = pretrained(folder, self.dtype, self.device, zero=self._zero)
        model.set_output_embeddings(_scalar_head(model, self._zero))
        return _ValueModel(model, gradient_checkpointing=gradient_checkpointing)

    def _train_beside(self, policy: Any) -> None:
        policy.model.get_output_embeddings().requires_grad_(True)

    @torch.no_grad()
    def values(self, rollouts: Rollouts) -> list[Tensor]:
        """Return the value V before each response token, as one array for each row."""
        return self.by_row(rollouts, self.engine)


@dataclass(frozen=True)
class _Targets:
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

    def targets(self, batch: Batch, rewards: Tensor, penalties: Sequence[Tensor] | None) -> _Targets:
        """Return a batch's advantages and the critic's targets.

        ``rewards`` has shape (B_p, n) and applies to the last token of each rollout. ``penalties`` has one
        array of token penalties for each of this process's rows (`algorithms.gae.token_rewards`).
        """
        values, mask = _padded(self.critic.values(batch.rollouts))
        local = batch.own(rewards)
        charged = gae.token_rewards(local, mask, None if penalties is None else _padded(penalties)[0])
        assert self.recipe.gamma is not None
        assert self.recipe.gae_lambda is not None
        raw = gae.gae(charged, values, self.recipe.gamma, self.recipe.gae_lambda)
        returns = (raw + values).masked_fill(~mask, 0.0)
        mean, variance = self._moments(batch, raw, mask)
        _, of_returns = self._moments(batch, returns, mask)
        metrics = {} if of_returns == 0 else {"explained_variance": 1 - variance / of_returns}
        return _Targets(gae.whiten(raw, mask, mean, variance), values, returns, metrics)

    def update(
        self, batch: Batch, targets: _Targets, rows: list[int], weights: Tensor, lr: float
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
            sums = objective.merge(sums, more)
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
    local = [row.detach().cpu().double() for row in rows]
    width = max([1, *map(len, local)])
    lengths = torch.tensor([len(row) for row in local], dtype=torch.long)
    values = torch.zeros(len(local), width, dtype=torch.float64)
    if local:
        padded = pad_sequence(local, batch_first=True)
        values[:, : padded.shape[1]] = padded
    return values, torch.arange(width) < lengths[:, None]


def _scalar_head(model: Any, zero_config: dict[str, Any] | None) -> _ScalarHead:
    head = model.get_output_embeddings()
    divided: Any = nullcontext()
    if zero_config:
        from deepspeed import zero

        divided = zero.Init(config_dict_or_path=zero_config)
    with divided:
        scalar = _ScalarHead(head.in_features, 1, bias=False, dtype=head.weight.dtype)
    with gathered(scalar.weight, modifier_rank=0), torch.no_grad():
        scalar.weight.zero_()
    return scalar.to(head.weight.device)
