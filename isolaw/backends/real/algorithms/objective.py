"""Compute the loss of one training step, for micro-batches of any size.

The loss is a sum over the response tokens t of the step's rollouts i:

    L = Σ_i Σ_t w_i · ℓ_it,    ℓ_it = c_it · p_it + β · k_it - α · H_it

Here w_i is the rollout's weight in the *whole* batch (`row_weights`), so any split into micro-batches and
ranks adds up to the same loss and gradient. The terms are the policy term p (`_policy_term`), the truncated
importance weight c between sampler and trainer (`_importance_weights`), and the estimate k of the KL
divergence to the reference (`kl_estimate`; PPO subtracts its KL term from rewards instead). H is the entropy
of the next token (`train.head`). β and α weight the KL term and the entropy bonus.

Values in the padding never affect the result, even if they are NaN. Arithmetic is in float64, so the order of
summation changes the result by a relative error below 1e-12.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isolaw.config import Recipe


def row_weights(
    lengths: Tensor, in_gradient: Tensor, aggregation: str, max_response_tokens: int | None = None
) -> Tensor:
    """Return the weight w_i of each token of rollout i, given the response lengths of the whole batch.

    All arrays have shape (B_p, n). ``in_gradient`` marks the rollouts that enter the gradient
    (`algorithms.advantages.gradient_rows`). Other rollouts have weight 0, and the formulas do not count them:

    ================ ======================================================================
    ``token``        1 / tokens in the batch (the code of DAPO, arXiv 2503.14476)
    ``sequence``     1 / (rollouts · len_i), GRPO (arXiv 2402.03300, eq. 3)
    ``prompt``       1 / (problems · tokens of i's group) (ScaleRL, arXiv 2510.13786)
    ``fixed_length`` 1 / (rollouts · max_response_tokens), Dr. GRPO (arXiv 2503.20783)
    ================ ======================================================================

    With the first three aggregations, Σ_i w_i · len_i = 1. If no rollout enters the gradient, all weights
    are 0.

    >>> lengths, in_gradient = torch.tensor([[1, 3], [2, 2]]), torch.ones(2, 2, dtype=torch.bool)
    >>> row_weights(lengths, in_gradient, "sequence")
    tensor([[0.2500, 0.0833],
            [0.1250, 0.1250]], dtype=torch.float64)
    """
    lengths = lengths.double() * in_gradient
    if aggregation == "token":
        divisor = lengths.sum().expand_as(lengths)
    elif aggregation == "sequence":
        divisor = in_gradient.sum() * lengths
    elif aggregation == "prompt":
        divisor = in_gradient.any(1).sum() * lengths.sum(1, keepdim=True).expand_as(lengths)
    elif aggregation == "fixed_length":
        if max_response_tokens is None:
            raise ValueError("fixed_length needs max_response_tokens")
        divisor = in_gradient.sum() * torch.full_like(lengths, max_response_tokens)
    else:
        raise ValueError(f"no aggregation {aggregation!r}")
    return torch.where(in_gradient & (divisor > 0), 1 / divisor.clamp(min=1), 0.0)


def loss(
    recipe: Recipe,
    *,
    logprobs: Tensor,
    mask: Tensor,
    advantages: Tensor,
    weights: Tensor,
    old_logprobs: Tensor | None = None,
    sampler_logprobs: Tensor | None = None,
    reference_logprobs: Tensor | None = None,
    entropy: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a micro-batch and its metrics.

    The sum of these losses over micro-batches and ranks is the loss of the step. Each loss is a float64
    scalar. The metrics are float64 sums for `merge` and `means`; their keys depend on the recipe and on which
    arguments are None.

    Parameters
    ----------
    logprobs
        The trainer's log-probabilities under the current policy, of shape (R, T) with R ≥ 1, with a gradient.
    mask
        A boolean array of shape (R, T) that is True for tokens of the response.
    advantages, weights
        Arrays of shape (R,) from `algorithms.advantages.advantages` and `row_weights`. Token advantages from
        `train.ppo` have shape (R, T). Rows of weight 0 are ignored.
    old_logprobs
        The trainer's log-probabilities under the policy that sampled, of shape (R, T). None means on-policy:
        the loss uses ``logprobs`` without their gradient, so that ratios are exactly 1.
    sampler_logprobs, reference_logprobs, entropy
        Arrays of shape (R, T), or None. ScaleRL's ratio, importance sampling, the KL term and the entropy
        bonus raise `ValueError` if the array that they need is None. An array that no term needs contributes
        to the metrics only.

    Examples
    --------
    >>> logp = torch.tensor([[-1.0, -2.0], [-0.5, 0.0]], requires_grad=True)
    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> batch = {"mask": mask, "advantages": torch.tensor([1.0, -1.0])}
    >>> value, sums = loss(Recipe(), logprobs=logp, weights=torch.tensor([0.25, 0.5]), **batch)
    >>> value.backward()
    >>> logp.grad
    tensor([[-0.2500, -0.2500],
            [ 0.5000,  0.0000]])
    >>> means(sums)["clip_fraction"]
    0.0
    """
    has_weight = weights != 0
    mask = mask & has_weight[:, None]
    weights = weights.double()[:, None]
    if advantages.dim() == 2:
        advantages = masked(mask, advantages)
    else:
        advantages = advantages.double().masked_fill(~has_weight, 0.0)
    logprobs = masked(mask, logprobs)
    old = logprobs.detach() if old_logprobs is None else masked(mask, old_logprobs.detach())

    ratio_logprobs = old
    if recipe.algorithm == "scale_rl":
        if sampler_logprobs is None:
            raise ValueError("the ratio of scale_rl needs sampler_logprobs")
        ratio_logprobs = masked(mask, sampler_logprobs)
    token_loss, ratio, clipped = _policy_term(recipe, logprobs, ratio_logprobs, advantages)
    sums = {
        "tokens": mask.sum().double(),
        "clip_fraction": (clipped & mask).sum().double(),
        "ratio": (ratio * mask).sum(),
        "ratio_max": (ratio * mask).amax(),
    }
    if sampler_logprobs is not None:
        gap = (old - masked(mask, sampler_logprobs)).abs()
        sums |= {"mismatch": gap.sum(), "mismatch_max": gap.amax()}
    if recipe.importance_sampling == "token":
        if sampler_logprobs is None or recipe.importance_cap is None:
            raise ValueError("importance sampling needs sampler_logprobs and importance_cap")
        c = _importance_weights(old, sampler_logprobs, mask, recipe.importance_cap)
        token_loss = c * token_loss
        sums["importance_weight"] = (c * mask).sum()
    kl = 0.0 if recipe.kl is None or recipe.algorithm == "ppo" else recipe.kl
    if reference_logprobs is not None:
        estimate = kl_estimate(logprobs, masked(mask, reference_logprobs.detach()))
        sums["kl"] = estimate.detach().sum()
        if kl:
            token_loss = token_loss + kl * estimate
    elif kl:
        raise ValueError("the KL term needs reference_logprobs")
    if entropy is not None:
        entropy = masked(mask, entropy)
        sums["entropy"] = entropy.detach().sum()
        if recipe.entropy:
            token_loss = token_loss - recipe.entropy * entropy
    elif recipe.entropy:
        raise ValueError("the entropy bonus needs entropy")
    return (weights * mask * token_loss).sum(), {key: value.detach() for key, value in sums.items()}


def merge(sums: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the merged metric sums of two parts of a batch, of which the first can be empty.

    Keys that end in ``_max`` merge by maximum, and other keys by sum.

    >>> merge({"kl": torch.tensor(1.0), "ratio_max": torch.tensor(3.0)},
    ...       {"kl": torch.tensor(2.0), "ratio_max": torch.tensor(2.0)})
    {'kl': tensor(3.), 'ratio_max': tensor(3.)}
    """
    if not sums:
        return other
    return {
        key: torch.maximum(value, other[key]) if key.endswith("_max") else value + other[key]
        for key, value in sums.items()
    }


def means(sums: dict[str, Tensor]) -> dict[str, float]:
    """Return the metrics of a batch, given its sums: means over tokens, and maxima.

    The keys ``ratio`` and ``ratio_max`` compare the current policy with the sampling policy. ``mismatch`` and
    ``mismatch_max`` are |Δ log p| between trainer and sampler. ``kl`` (`kl_estimate`) and ``entropy`` are in
    nats per token. The other keys are ``clip_fraction`` and ``importance_weight``.

    >>> means({"tokens": torch.tensor(4.0), "kl": torch.tensor(1.0), "ratio_max": torch.tensor(1.5)})
    {'kl': 0.25, 'ratio_max': 1.5}
    """
    tokens = max(float(sums["tokens"]), 1.0)
    return {
        key: float(value) if key.endswith("_max") else float(value) / tokens
        for key, value in sums.items()
        if key != "tokens"
    }


def kl_estimate(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Return the estimate k3 of KL(π ‖ π_ref) at each sampled token (J. Schulman, joschu.net/blog/kl-approx).

    With u = log π_ref - log π at a token that π sampled, k3 = exp(u) - u - 1 ≥ 0, whose mean is the KL
    divergence. As a term of the loss (arXiv 2402.03300, eq. 4), its gradient is that of the reverse
    divergence, E[∇k3] = -E[exp(u) ∇ log π] = ∇ KL(π_ref ‖ π), which agrees to first order around π = π_ref
    (arXiv 2510.01555; 2512.21852).

    >>> kl_estimate(torch.tensor([0.0, -1.0]), torch.tensor([-1.0, -1.0]))
    tensor([0.3679, 0.0000])
    """
    u = reference_logprobs - logprobs
    return u.expm1() - u


def _importance_weights(old_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Return the truncated importance weights between sampler μ and trainer π_old, without gradient.

        c_it = min(π_old(y_it) / μ(y_it), ρ)

    Here y_it is token t of rollout i, and ρ is the cap. The result has shape (R, T). The weights correct each
    token but not its prefix (F. Yao et al. 2025, fengyao.notion.site/off-policy-rl). The truncation is from
    Ionides (2008).
    """
    return (masked(mask, old_logprobs.detach()) - masked(mask, sampler_logprobs)).exp().clamp(max=cap)


def _policy_term(
    recipe: Recipe, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the policy term p_it, its ratios, and a mask of the tokens that clipping changed.

    Each result has shape (R, T). Let s_it = π(y_it) / π_old(y_it) be the ratio, and let ε and ε' be the
    recipe's ``clip_low`` and ``clip_high``:

    - ``grpo``, ``dr_grpo``, ``dapo``, ``ppo``: p = -min(s A, clip(s, 1 - ε, 1 + ε') A)
      (arXiv 2402.03300, eq. 3; ε' > ε is DAPO's clip-higher, arXiv 2503.14476, eq. 10).
    - ``cispo``: p = -sg[clip(s, 1 - ε, 1 + ε')] A log π (arXiv 2506.13585, eq. 4 and 5). A clipped token
      still has a gradient.
    - ``scale_rl``: the term of ``cispo``, where π_old is the sampler's policy (arXiv 2510.13786, section 4).

    A bound of None means no bound. On-policy (π_old = π), every s is 1, and the gradient of every term is
    -A ∇ log π. Log-probabilities have shape (R, T) and contain no NaN. Advantages have shape (R,),
    or (R, T) if each token has its own.
    """
    low = 0.0 if recipe.clip_low is None else 1 - recipe.clip_low
    high = math.inf if recipe.clip_high is None else 1 + recipe.clip_high
    a = advantages if advantages.dim() == 2 else advantages[:, None]
    ratio = (logprobs - old_logprobs).exp()
    clipped_ratio = ratio.clamp(low, high)
    if recipe.algorithm in ("cispo", "scale_rl"):
        return -clipped_ratio.detach() * a * logprobs, ratio.detach(), clipped_ratio != ratio
    return -torch.minimum(ratio * a, clipped_ratio * a), ratio.detach(), clipped_ratio * a < ratio * a


def masked(mask: Tensor, values: Tensor) -> Tensor:
    """Return values in float64, with zeros where the mask is False, to block gradients and NaN from there."""
    return values.masked_fill(~mask, 0.0).double()
