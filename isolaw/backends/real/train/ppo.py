"""Compute PPO's advantages with the critic, and update the critic (arXiv 1707.06347; GAE: arXiv 1506.02438).

The critic is the base model with a scalar output head, under its own DeepSpeed engine. Its value is
V(s) = w · h(s) in float32. Here h is the last hidden state at the token before the predicted token, and w is
the head's weight, which is initially 0. There is no bias, because DeepSpeed's ZeRO-3 cannot restore a
parameter with fewer numbers than there are processes.

Advantages and targets are computed from the critic's values at the start of a batch (`_gae`). Both
stay fixed during all updates on the batch.

Arrays of the equations are float64 of shape (R, T) for R rollouts. Responses are padded on the right with
zeros to T tokens. The state s_t consists of the prompt and the response before token t. V_t = V(s_t) is the
critic's estimate of the return from this state. A response ends with its last token, even if it was cut off,
and V is 0 after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from isolaw.backends.real.algorithms import objective
from isolaw.backends.real.algorithms.objective import masked
from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.train.batch import Batch, RankGroup
from isolaw.backends.real.train.packing import Packed
from isolaw.backends.real.train.policy import Backbone, pretrained
from isolaw.backends.real.train.trainer import Trainer, gathered
from isolaw.config import Recipe

_EPSILON = 1e-8  # added to the variance in `_whiten`


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


class _Critic(Trainer):
    """The trainer of a value model, which starts from the base model and has its own state files."""

    prefix = "critic_"

    def _build(self, folder: str, *, gradient_checkpointing: bool = False) -> _ValueModel:
        model = pretrained(folder, self.dtype, self.device, zero=self._zero_config)
        model.set_output_embeddings(_scalar_head(model, self._zero_config))
        return _ValueModel(model, gradient_checkpointing=gradient_checkpointing)

    def _unfreeze(self, policy: Any) -> None:
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
    """The critic of a run; ``arguments`` and the model's ``folder`` are those of the run's `Trainer`."""

    def __init__(self, recipe: Recipe, ranks: RankGroup, folder: str, **arguments: Any) -> None:
        self.recipe, self.ranks = recipe, ranks
        self.critic = _Critic(folder, **arguments)

    def targets(self, batch: Batch, rewards: Tensor, penalties: Sequence[Tensor] | None) -> _Targets:
        """Return a batch's advantages and the critic's targets.

        ``rewards`` has shape (B_p, n) and applies to the last token of each rollout. ``penalties`` has one
        array of token penalties for each of this process's rows (`_token_rewards`).
        """
        values, mask = _padded(self.critic.values(batch.rollouts))
        padded_penalties = None if penalties is None else _padded(penalties)[0]
        token_rewards = _token_rewards(batch.local(rewards), mask, padded_penalties)
        assert self.recipe.gamma is not None
        assert self.recipe.gae_lambda is not None
        advantages = _gae(token_rewards, values, self.recipe.gamma, self.recipe.gae_lambda)
        returns = (advantages + values).masked_fill(~mask, 0.0)
        advantage_mean, advantage_variance = self._moments(batch, advantages, mask)
        _, return_variance = self._moments(batch, returns, mask)
        metrics = {"explained_variance": 1 - advantage_variance / return_variance} if return_variance else {}
        whitened = _whiten(advantages, mask, advantage_mean, advantage_variance)
        return _Targets(whitened, values, returns, metrics)

    def update(
        self, batch: Batch, targets: _Targets, rows: list[int], weights: Tensor, lr: float
    ) -> tuple[dict[str, Tensor], float]:
        """Update the critic on some of this process's rows; return its metric sums and gradient norm."""
        row_weights = batch.local(weights)[rows]
        sums: dict[str, Tensor] = {}

        def loss_of(indices: Sequence[int], packed: Packed, values: Tensor) -> Tensor:
            nonlocal sums
            if not indices:
                return values.sum() * 0.0
            batch_rows = [rows[i] for i in indices]
            old_values, returns = (
                x[batch_rows, : values.shape[1]].to(values.device) for x in (targets.values, targets.returns)
            )
            weight = row_weights[list(indices)].to(values.device)
            loss, more = _value_loss(values, old_values, returns, packed.mask, weight, self.recipe.value_clip)
            sums = objective.merge(sums, more)
            return loss

        self.critic.backward(batch.rollouts.rows(rows), loss_of)
        batch_sums = self.ranks.merge_sums(sums)
        return batch_sums, self.critic.update(lr)

    def _moments(self, batch: Batch, values: Tensor, mask: Tensor) -> tuple[float, float]:
        """Return mean and variance over all tokens of the batch, the same for any number of processes."""
        tokens = int(batch.lengths.sum())
        mean = float(self.ranks.gather(batch, values.sum(1).tolist()).sum()) / max(tokens, 1)
        square_sums = (values - mean).masked_fill(~mask, 0.0).square().sum(1)
        return mean, float(self.ranks.gather(batch, square_sums.tolist()).sum()) / max(tokens - 1, 1)


def _padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return rows of numbers padded to a float64 array of shape (R, T) on the CPU, and the mask of numbers.

    T is at least 1.
    """
    cpu_rows = [row.detach().cpu().double() for row in rows]
    one_zero = torch.zeros(1, dtype=torch.float64)  # as one more row, it makes T at least 1
    values = pad_sequence([*cpu_rows, one_zero], batch_first=True)[:-1]
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.long)
    return values, torch.arange(values.shape[1]) < lengths[:, None]


def _scalar_head(model: Any, zero_config: dict[str, Any] | None) -> _ScalarHead:
    head = model.get_output_embeddings()
    partitioning: Any = nullcontext()
    if zero_config:
        from deepspeed import zero

        partitioning = zero.Init(config_dict_or_path=zero_config)
    with partitioning:
        scalar_head = _ScalarHead(head.in_features, 1, bias=False, dtype=head.weight.dtype)
    with gathered(scalar_head.weight, modifier_rank=0), torch.no_grad():
        scalar_head.weight.zero_()
    return scalar_head.to(head.weight.device)


def _token_rewards(rewards: Tensor, mask: Tensor, penalties: Tensor | None = None) -> Tensor:
    """Return the reward r_it of each token: the rollout's reward at its last token, minus token penalties.

    ``rewards`` has shape (R,), ``penalties`` and the result have shape (R, T). If the KL term is in the
    reward, the penalty is β · k_it (RLHF, arXiv 2203.02155, eq. 2).

    >>> _token_rewards(torch.tensor([1.0]), torch.tensor([[True, True, False]]))
    tensor([[0., 1., 0.]], dtype=torch.float64)
    """
    last = mask & ~torch.nn.functional.pad(mask, (0, 1))[:, 1:]
    out = rewards.double()[:, None] * last
    return out if penalties is None else out - masked(mask, penalties)


def _gae(rewards: Tensor, values: Tensor, gamma: float, lam: float) -> Tensor:
    """Return the generalised advantage estimate (GAE) of each token, as an array of shape (R, T).

    ::

        δ_t = r_t + γ V_{t+1} - V_t,    A_t = δ_t + γ λ A_{t+1}

    This is eq. 16 of arXiv 1506.02438, with the discount γ = ``gamma`` and λ = ``lam``. A_t + V_t is the
    critic's target. For λ = 1 it is the discounted sum of future rewards, and for λ = 0 the one-step target
    r_t + γ V_{t+1}.

    >>> _gae(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.75]]), gamma=1.0, lam=1.0)
    tensor([[0.5000, 0.2500]], dtype=torch.float64)
    """
    rewards, values = rewards.double(), values.double()
    out = torch.zeros_like(rewards)
    next_value = advantage = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        advantage = rewards[:, t] + gamma * next_value - values[:, t] + gamma * lam * advantage
        out[:, t], next_value = advantage, values[:, t]
    return out


def _whiten(advantages: Tensor, mask: Tensor, mean: float, variance: float) -> Tensor:
    """Return the whitened advantages (A - mean) / sqrt(variance + 1e-8), with zeros in the padding.

    ``mean`` and ``variance`` are over all N tokens of the batch. The variance has the divisor N - 1, as in
    TRL and verl. Unlike the size n of a group, N is so large that the choice hardly matters.
    """
    return ((advantages - mean) * (variance + _EPSILON) ** -0.5).masked_fill(~mask, 0.0)


def _value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, weights: Tensor, clip: float | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the critic's loss on a micro-batch and the sums of its metrics, as `objective.loss` does.

    ::

        L = Σ_i Σ_t w_i · ½ max((V - R)², (clip(V, V_old - ε, V_old + ε) - R)²)

    The targets R and the values V_old are from the start of the batch (arXiv 2005.12729, section 3; TRL,
    verl). ε is ``clip``; if it is None, the loss omits the second argument of max. ``values`` has shape
    (R, T) and a gradient, ``weights`` has shape (R,).

    >>> one = torch.ones(1, 1)
    >>> _value_loss(one, 0 * one, 2 * one, one.bool(), one[0], clip=None)[0]
    tensor(0.5000, dtype=torch.float64)
    """
    values, old_values, returns = (masked(mask, x) for x in (values, old_values, returns))
    error = (values - returns).square()
    larger_error = error
    if clip is not None:
        clipped = torch.maximum(torch.minimum(values, old_values + clip), old_values - clip)
        larger_error = torch.maximum(error, (clipped - returns).square())
    loss = 0.5 * larger_error * mask
    sums = {
        "tokens": mask.sum().double(),
        "critic_value": values.sum(),
        "value_loss": loss.sum(),
        "value_clip_fraction": (larger_error > error).sum().double(),
    }
    return (weights.double()[:, None] * loss).sum(), {key: x.detach() for key, x in sums.items()}
