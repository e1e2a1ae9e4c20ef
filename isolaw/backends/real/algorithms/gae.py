"""PPO's advantages and the critic's loss (arXiv 1707.06347; GAE: arXiv 1506.02438).

Arrays are (R, T) in float64: R rollouts, with responses padded on the right to T tokens by zeros. The state
s_t is the prompt and the response before token t, and V_t = V(s_t) is the critic's estimate of the return
from there. A response ends with its last token, even if it was cut off; V is 0 after that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isolaw.backends.real.algorithms.loss_terms import clean

_EPSILON = 1e-8  # added to the variance in `whiten`


def token_rewards(rewards: Tensor, mask: Tensor, penalties: Tensor | None = None) -> Tensor:
    """Return r_it: a rollout's reward, (R,), at its last token, minus each token's penalty, (R, T).

    With the KL term in the reward, the penalty is β · k_it (RLHF, arXiv 2203.02155, eq. 2).

    >>> token_rewards(torch.tensor([1.0]), torch.tensor([[True, True, False]]))
    tensor([[0., 1., 0.]], dtype=torch.float64)
    """
    last = mask & ~torch.nn.functional.pad(mask, (0, 1))[:, 1:]
    out = rewards.double()[:, None] * last
    return out if penalties is None else out - clean(mask, penalties)


def gae(rewards: Tensor, values: Tensor, gamma: float, lam: float) -> Tensor:
    """Return the generalised advantage estimate of each token, (R, T).

    ::

        δ_t = r_t + γ V_{t+1} - V_t,    A_t = δ_t + γ λ A_{t+1}

    (arXiv 1506.02438, eq. 16), with the discount γ = ``gamma`` and λ = ``lam``. A_t + V_t is the critic's
    target: for λ = 1 the discounted sum of future rewards, for λ = 0 the one-step target r_t + γ V_{t+1}.

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
    """Return (A - mean) / sqrt(variance + 1e-8), with zeros in the padding.

    Mean and variance are over all tokens of the batch. The variance is divided by their number minus one, as
    in TRL and verl: unlike a group's n, that number is large.
    """
    return ((advantages - mean) * (variance + _EPSILON) ** -0.5).masked_fill(~mask, 0.0)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, weights: Tensor, clip: float | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the critic's loss of a micro-batch and the sums of its metrics, as `objective.loss` does.

    ::

        L = Σ_i Σ_t w_i · ½ max((V - R)², (clip(V, V_old - ε, V_old + ε) - R)²)

    with the targets R and V_old from the start of the batch (arXiv 2005.12729, section 3; TRL, verl); without
    ``clip`` (ε) the second term is left out. ``values`` are (R, T) with a gradient, ``weights`` (R,).

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
