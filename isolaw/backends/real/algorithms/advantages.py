"""Turn the rewards of a batch into advantages, one number for each rollout.

Rewards are float64, (B_p, n), with one row per problem, and are processed in this order:

1. `informative` and `mastered` use the verifier's rewards r, before any penalty, to decide whether a group
   is kept, and whether its problem is visited again;
2. penalties are added: r_i + `overlong_penalty` - β · KL_i (`algorithms.loss_terms.sequence_kl`, with the KL
   term in the reward);
3. `advantages` subtracts baselines and scales;
4. `gradient_rows` selects the rollouts that enter the gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Added to a standard deviation before division: a group whose rewards differ only by rounding (about 1e-16)
# then gets advantages of about 1e-10 instead of 1.
EPSILON = 1e-6


def informative(rewards: Tensor) -> Tensor:
    """Return for each problem, (B_p,), whether its rewards (B_p, n) differ: equal rewards carry no advantage.

    Dynamic sampling draws problems until the batch is full of informative ones (DAPO, arXiv 2503.14476, eq.
    11: 0 < number correct < n); the zero-variance filter only leaves the others out of the loss (ScaleRL,
    arXiv 2510.13786, section 3).

    >>> informative(torch.tensor([[0.0, 1.0], [1.0, 1.0]]))
    tensor([ True, False])
    """
    return rewards.amax(1) > rewards.amin(1)


def mastered(rewards: Tensor, threshold: float) -> Tensor:
    """Return for each problem whether its pass rate in this batch reached ``threshold``.

    Under no-positive-resampling these problems are never drawn again (ScaleRL, arXiv 2510.13786,
    section 3, with a threshold of 0.9). The pass rate is the mean of rewards in [0, 1].

    >>> mastered(torch.tensor([[0.0, 1.0], [1.0, 1.0]]), 0.9)
    tensor([False,  True])
    """
    return rewards.double().mean(1) >= threshold


def overlong_penalty(lengths: Tensor, max_response_tokens: int, buffer: int) -> Tensor:
    """Return the penalty on the reward of a long response, in [-1, 0] (DAPO, arXiv 2503.14476, eq. 13).

    ::

        0                                    |y| ≤ L - L_buffer
        (L - L_buffer - |y|) / L_buffer      up to |y| = L, where it is -1

    where |y| is the response's length, L is ``max_response_tokens`` and L_buffer is ``buffer``, in tokens; a
    buffer of 0 means no penalty. ScaleRL uses the same penalty for correct responses only (arXiv 2510.13786,
    eq. 9; ``recipe.overlong_on``).

    >>> overlong_penalty(torch.tensor([10, 80, 90, 100]), max_response_tokens=100, buffer=20)
    tensor([ 0.0000,  0.0000, -0.5000, -1.0000], dtype=torch.float64)
    """
    if buffer == 0:
        return torch.zeros_like(lengths, dtype=torch.float64)
    return ((max_response_tokens - buffer - lengths.double()) / buffer).clamp(-1, 0)


def advantages(rewards: Tensor, kind: str, kept: Tensor | None = None) -> Tensor:
    """Return the advantages of a batch, (B_p, n) in float64.

    With r̄ and σ the mean and standard deviation of a group:

    ==================== =========================================================================
    ``group_std``        (r - r̄) / (σ + ε), GRPO (arXiv 2402.03300, 4.1.2)
    ``group_sample_std`` (r - r̄) / (s + ε), s = σ · √(n / (n - 1)): GRPO as veRL and TRL compute it, for
                         replications of their runs
    ``batch_std``        (r - r̄) / (σ_batch + ε), σ_batch that of all rewards of the batch (TRL's
                         ``scale_rewards="batch"``), as in the simulators
    ``advantage_std``    (r - r̄) / (σ_A + ε), σ_A that of all r - r̄ of the batch (ScaleRL, arXiv
                         2510.13786, section 4)
    ``centred``          r - r̄, Dr. GRPO (arXiv 2503.20783)
    ``leave_one_out``    r - mean of the others = (r - r̄) · n / (n - 1), RLOO (arXiv 2402.14740)
    ``none``             r
    ==================== =========================================================================

    The deviations σ divide by n. With n - 1, as in s, n itself would shorten the step: by 29 % at n = 2 and
    by 6 % at n = 8.

    r̄ and both deviations always use all n rollouts of a group, even if only some of them enter the gradient
    (`gradient_rows`). Groups that the zero-variance filter leaves out have advantage 0 and do not enter
    σ_batch and σ_A (ScaleRL's effective batch).

    ``rewards``, (B_p, n), include penalties: a KL penalty makes equal rewards differ, and ``group_std``
    scales that small difference up to one. ``kept``, (B_p,), are the groups that the filter keeps (None:
    all). Raise `ValueError` for an unknown ``kind``, and for ``leave_one_out`` or ``group_sample_std`` with
    n = 1.

    >>> advantages(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), "group_std")
    tensor([[-1.0000, -1.0000,  1.0000,  1.0000]], dtype=torch.float64)
    >>> advantages(torch.tensor([[0.0, 0.0, 0.0, 1.0]]), "leave_one_out")
    tensor([[-0.3333, -0.3333, -0.3333,  1.0000]], dtype=torch.float64)
    """
    rewards = rewards.double()
    if kept is None:
        kept = torch.ones(len(rewards), dtype=torch.bool, device=rewards.device)
    centred = rewards - rewards.mean(1, keepdim=True)
    n = rewards.shape[1]
    if n < 2 and kind in ("leave_one_out", "group_sample_std"):
        raise ValueError(f"{kind} requires groups of two or more rollouts")
    if kind == "group_std":
        out = centred / (centred.square().mean(1, keepdim=True).sqrt() + EPSILON)
    elif kind == "group_sample_std":
        out = centred / (rewards.std(1, keepdim=True) + EPSILON)
    elif kind == "batch_std":
        spread = rewards[kept].std(correction=0) if bool(kept.any()) else torch.zeros((), dtype=torch.float64)
        out = centred / (spread + EPSILON)
    elif kind == "advantage_std":  # their mean is 0
        spread = centred[kept].square().mean().sqrt() if bool(kept.any()) else 0.0
        out = centred / (spread + EPSILON)
    elif kind == "centred":
        out = centred
    elif kind == "leave_one_out":
        out = centred * (n / (n - 1))
    elif kind == "none":
        out = rewards
    else:
        raise ValueError(f"no advantage {kind!r}")
    return out.masked_fill(~kept[:, None], 0.0)


def gradient_rows(kept: Tensor, n: int, gradient_rollouts: int | None = None) -> Tensor:
    """Return which rollouts enter the gradient, (B_p, n): the first ``gradient_rollouts`` of each kept group.

    All n rollouts estimate a problem's baseline; at most ``gradient_rollouts`` of them (None: all) are
    trained on. A group's rollouts are exchangeable, so the first ones are a random choice that no reward
    affects.

    >>> gradient_rows(torch.tensor([True, False]), n=4, gradient_rollouts=2)
    tensor([[ True,  True, False, False],
            [False, False, False, False]])
    """
    first = torch.arange(n, device=kept.device) < (n if gradient_rollouts is None else gradient_rollouts)
    return kept[:, None] & first
