"""Compute the terms of the objective; `algorithms.objective` adds them up.

Arrays have shape (R, T) for R rollouts, with responses padded on the right to T tokens. Log-probabilities of
trainer, sampler and reference are natural logarithms at the sampling temperature.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isolaw.backends.real.algorithms import scale_rl
from isolaw.config import Recipe


def kl_estimate(
    logprobs: Tensor, reference_logprobs: Tensor, estimator: str | None, clamp: float | None = None
) -> Tensor:
    """Return an estimate of KL(π ‖ π_ref) at each sampled token (J. Schulman, joschu.net/blog/kl-approx).

    With u = log π_ref - log π at a token that π sampled,

        k1 = -u,    k2 = u² / 2 ≥ 0,    k3 = exp(u) - u - 1 ≥ 0

    The mean of k1 and k3 is the KL divergence, and that of k2 is close to it. As terms of the *loss*,
    however, only k2 has its gradient (arXiv 2510.01555; 2512.21852): E[∇k2] = -E[u ∇ log π] =
    ∇ KL(π ‖ π_ref). E[∇k1] = E[∇ log π] = 0, so k1 only adds noise.
    E[∇k3] = -E[exp(u) ∇ log π] = ∇ KL(π_ref ‖ π) is the gradient of the reverse divergence, which agrees to
    first order around π = π_ref. In the *reward* (`sequence_kl`), k1 gives the correct gradient, and k3 gives
    the correct gradient minus ∇ KL(π_ref ‖ π). The estimate is clamped to ±``clamp``, beyond which it has no
    gradient: exp(u) grows without bound at a token that the policy has come to avoid.

    >>> kl_estimate(torch.tensor([0.0, -1.0]), torch.tensor([-1.0, -1.0]), "k3")
    tensor([0.3679, 0.0000])
    """
    u = reference_logprobs - logprobs
    known = {"k1": lambda: -u, "k2": lambda: u.square() / 2, "k3": lambda: u.expm1() - u}
    if estimator not in known:
        raise ValueError(f"no KL estimator {estimator!r}")
    return known[estimator]() if clamp is None else known[estimator]().clamp(-clamp, clamp)


def sequence_kl(
    logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor, estimator: str, clamp: float | None = None
) -> Tensor:
    """Return the KL estimate of each rollout, Σ_t k_it, as a float64 array of shape (R,).

    The caller subtracts β times this sum from the rollout's reward. With k1 this gives
    R_i = r_i - β · log π(y_i) / π_ref(y_i), as in RLOO (arXiv 2402.14740). The penalty is subtracted before
    the baseline, because an advantage belongs to a whole response. ``logprobs`` are the trainer's
    log-probabilities under the policy that sampled.
    """
    logprobs, reference_logprobs = clean(mask, logprobs.detach()), clean(mask, reference_logprobs)
    return kl_estimate(logprobs, reference_logprobs, estimator, clamp).sum(1)


def importance_weights(
    old_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, level: str, cap: float
) -> Tensor:
    """Return the truncated importance weights between sampler μ and trainer π_old, without gradient.

        token     c_it = min(π_old(y_it) / μ(y_it), ρ)
        sequence  c_it = min(Π_s π_old(y_is) / μ(y_is), ρ)

    Here y_it is token t of rollout i, and ρ is the cap. The result has shape (R, T). Without a cap,
    ``sequence`` makes the gradient unbiased for any sampler, while ``token`` corrects each token but not its
    prefix (F. Yao et al. 2025, fengyao.notion.site/off-policy-rl). The truncation is from Ionides (2008).
    """
    difference = clean(mask, old_logprobs.detach()) - clean(mask, sampler_logprobs)
    if level == "sequence":
        difference = difference.sum(1, keepdim=True).expand_as(difference)
    elif level != "token":
        raise ValueError(f"no importance sampling by {level!r}")
    return difference.exp().clamp(max=cap)


def policy_term(
    recipe: Recipe, logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, advantages: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the policy term p_it, its ratios, and a mask of the tokens that clipping changed.

    Each result has shape (R, T). Let s_it = π(y_it) / π_old(y_it) be the ratio, and let ε and ε' be the
    recipe's ``clip_low`` and ``clip_high``:

    - ``grpo``, ``dr_grpo``, ``dapo``, ``ppo``: p = -min(s A, clip(s, 1 - ε, 1 + ε') A)
      (arXiv 2402.03300, eq. 3; ε' > ε is DAPO's clip-higher, arXiv 2503.14476, eq. 10).
    - ``gspo``: the same, with one ratio per response, the geometric mean of its token ratios:
      s_i = exp(1/len_i Σ_t log s_it) (arXiv 2507.18071, eq. 7). The code uses the paper's token form
      (section 4.3), s_it = sg[s_i] · π / sg[π], where sg[·] stops the gradient. This form has the same value
      and, summed over a response, the same gradient. It also allows a separate weight c_it for each token.
    - ``cispo``: p = -sg[clip(s, 1 - ε, 1 + ε')] A log π (arXiv 2506.13585, eq. 4 and 5). A clipped token
      still has a gradient.
    - ``scale_rl``: the term of ``cispo``, where π_old is the sampler's policy (arXiv 2510.13786, section 4).
      With ``cispo`` in ``recipe.without``, it is the term of ``dapo`` with the same π_old.

    A bound of None means no bound. On-policy (π_old = π), every s is 1, and the gradient of every term is
    -A ∇ log π. Log-probabilities and mask have shape (R, T) and contain no NaN. Advantages have shape (R,),
    or (R, T) if each token has its own.
    """
    low = 0.0 if recipe.clip_low is None else 1 - recipe.clip_low
    high = math.inf if recipe.clip_high is None else 1 + recipe.clip_high
    a = advantages if advantages.dim() == 2 else advantages[:, None]
    log_ratio = logprobs - old_logprobs
    if recipe.algorithm == "gspo":
        mean = log_ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        log_ratio = mean.detach() + (logprobs - logprobs.detach())
    ratio = log_ratio.exp()
    within = ratio.clamp(low, high)
    if recipe.algorithm == "cispo" or scale_rl.has(recipe, "cispo"):
        return -within.detach() * a * logprobs, ratio.detach(), within != ratio
    return -torch.minimum(ratio * a, within * a), ratio.detach(), within * a < ratio * a


def clean(mask: Tensor, values: Tensor) -> Tensor:
    """Return values in float64, with zeros where the mask is False, to block gradients and NaN from there."""
    return values.masked_fill(~mask, 0.0).double()
