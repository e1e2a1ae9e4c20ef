"""Compute PPO's advantages and the critic's loss (arXiv 1707.06347; GAE: arXiv 1506.02438).

Arrays are float64 of shape (R, T) for R rollouts. Responses are padded on the right with zeros to T tokens.
The state s_t consists of the prompt and the response before token t. V_t = V(s_t) is the critic's estimate of
the return from this state. A response ends with its last token, even if it was cut off, and V is 0 after it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isolaw.backends.real.algorithms.loss_terms import clean

_EPSILON = 1e-8  # added to the variance in `whiten`


def token_rewards(rewards: Tensor, mask: Tensor, penalties: Tensor | None = None) -> Tensor:
    """Return the reward r_it of each token: the rollout's reward at its last token, minus token penalties.

    ``rewards`` has shape (R,), ``penalties`` and the result have shape (R, T). If the KL term is in the
    reward, the penalty is β · k_it (RLHF, arXiv 2203.02155, eq. 2).

    >>> token_rewards(torch.tensor([1.0]), torch.tensor([[True, True, False]]))
    tensor([[0., 1., 0.]], dtype=torch.float64)
    """
    last = mask & ~torch.nn.functional.pad(mask, (0, 1))[:, 1:]
    out = rewards.double()[:, None] * last
    return out if penalties is None else out - clean(mask, penalties)


def gae(rewards: Tensor, values: Tensor, gamma: float, lam: float) -> Tensor:
    """Return the generalised advantage estimate (GAE) of each token, as an array of shape (R, T).

    ::

        δ_t = r_t + γ V_{t+1} - V_t,    A_t = δ_t + γ λ A_{t+1}

    This is eq. 16 of arXiv 1506.02438, with the discount γ = ``gamma`` and λ = ``lam``. A_t + V_t is the
    critic's target. For λ = 1 it is the discounted sum of future rewards, and for λ = 0 the one-step target
    r_t + γ V_{t+1}.

    >>> gae(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.75]]), gamma=1.0, lam=1.0)
    tensor([[0.5000, 0.2500]], dtype=torch.float64)
    """
    rewards, values = rewards.double(), values.double()
    out = torch.zeros_like(rewards)
    following = advantage = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        advantage = rewards[:, t] + gamma * following - values[:, t] + gamma * lam * advantage
        out[:, t], following = advantage, values[:, t]
    return out


def whiten(advantages: Tensor, mask: Tensor, mean: float, variance: float) -> Tensor:
    """Return the whitened advantages (A - mean) / sqrt(variance + 1e-8), with zeros in the padding.

    ``mean`` and ``variance`` are over all N tokens of the batch. The variance has the divisor N - 1, as in
    TRL and verl. Unlike the size n of a group, N is so large that the choice hardly matters.
    """
    return ((advantages - mean) * (variance + _EPSILON) ** -0.5).masked_fill(~mask, 0.0)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, weights: Tensor, clip: float | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the critic's loss on a micro-batch and the sums of its metrics, as `objective.loss` does.

    ::

        L = Σ_i Σ_t w_i · ½ max((V - R)², (clip(V, V_old - ε, V_old + ε) - R)²)

    The targets R and the values V_old are from the start of the batch (arXiv 2005.12729, section 3; TRL,
    verl). ε is ``clip``; if it is None, the loss omits the second argument of max. ``values`` has shape
    (R, T) and a gradient, ``weights`` has shape (R,).

    >>> one = torch.ones(1, 1)
    >>> value_loss(one, 0 * one, 2 * one, one.bool(), one[0], clip=None)[0]
    tensor(0.5000, dtype=torch.float64)
    """
    values, old_values, returns = (clean(mask, x) for x in (values, old_values, returns))
    square = (values - returns).square()
    largest = square
    if clip is not None:
        within = torch.maximum(torch.minimum(values, old_values + clip), old_values - clip)
        largest = torch.maximum(square, (within - returns).square())
    loss = 0.5 * largest * mask
    sums = {
        "tokens": mask.sum().double(),
        "critic_value": values.sum(),
        "value_loss": loss.sum(),
        "value_clip_fraction": (largest > square).sum().double(),
    }
    return (weights.double()[:, None] * loss).sum(), {key: x.detach() for key, x in sums.items()}
