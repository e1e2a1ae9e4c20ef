"""Each term's gradient against the exact one, on a policy whose responses can all be listed.

The policy is a table: three tokens, of which 0 ends the response, at most three tokens long, so 1 + 2 + 4
prefixes and 15 responses. With w_i the probability of response i, the loss of all of them is a mean.
"""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from isolaw.backends.real.algorithms.objective import _importance_weights, kl_estimate, loss
from isolaw.backends.real.algorithms.presets import ALGORITHMS
from isolaw.config import Recipe

PREFIXES = [prefix for k in range(3) for prefix in itertools.product((1, 2), repeat=k)]
RESPONSES = [(*prefix, 0) for prefix in PREFIXES] + [
    (*prefix, last) for prefix in PREFIXES if len(prefix) == 2 for last in (1, 2)
]
WHERE = torch.tensor([[PREFIXES.index(y[:t]) if t < len(y) else 0 for t in range(3)] for y in RESPONSES])
TOKENS = torch.tensor([[y[t] if t < len(y) else 0 for t in range(3)] for y in RESPONSES])
MASK = torch.tensor([[t < len(y) for t in range(3)] for y in RESPONSES])


def table(seed: int) -> torch.Tensor:
    return torch.randn(len(PREFIXES), 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logprobs(policy: torch.Tensor) -> torch.Tensor:
    """Log-probability of each token of each response, with nonsense in the padding."""
    return policy.log_softmax(-1)[WHERE, TOKENS].masked_fill(~MASK, math.nan)


def probability(policy: torch.Tensor) -> torch.Tensor:
    return logprobs(policy).masked_fill(~MASK, 0).sum(1).exp()


def visits(policy: torch.Tensor) -> torch.Tensor:
    """How often each prefix is reached."""
    p = policy.softmax(-1)
    return torch.stack(
        [
            math.prod([p[PREFIXES.index(y[:t]), y[t]] for t in range(len(y))]) * p.new_ones(())
            for y in PREFIXES
        ]
    )


def gradient(value: torch.Tensor, policy: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(value, policy)[0]


def same(one: torch.Tensor, other: torch.Tensor) -> None:
    assert one.abs().max() > 1e-3
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def expected(
    policy: torch.Tensor, recipe: Recipe, advantages: torch.Tensor, **more: torch.Tensor
) -> torch.Tensor:
    """The gradient of the loss in expectation over the policy's own responses."""
    value, _ = loss(
        recipe,
        logprobs=logprobs(policy),
        mask=MASK,
        advantages=advantages,
        weights=probability(policy).detach(),
        **more,
    )
    return gradient(value, policy)


REWARDS = torch.randn(len(RESPONSES), generator=torch.Generator().manual_seed(9), dtype=torch.float64)
NOTHING = torch.zeros(len(RESPONSES), dtype=torch.float64)


def policy_and_reference() -> tuple[torch.Tensor, torch.Tensor]:
    return table(1).requires_grad_(), table(2)


def test_the_responses_are_all_there_are() -> None:
    assert len(RESPONSES) == 15
    assert probability(table(3)).sum().item() == pytest.approx(1)
    torch.testing.assert_close(visits(table(3))[1:3], table(3).softmax(-1)[0, 1:])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_on_policy_every_algorithm_follows_the_exact_policy_gradient(algorithm: str) -> None:
    policy, _ = policy_and_reference()
    exact = gradient((probability(policy) * REWARDS).sum(), policy)
    recipe = Recipe(algorithm=algorithm, clip_low=0.1, clip_high=0.1)
    drawn = {"sampler_logprobs": logprobs(policy).detach()}
    same(expected(policy, recipe, REWARDS, **drawn), -exact)
    same(expected(policy, recipe, REWARDS, old_logprobs=logprobs(policy), **drawn), -exact)


def test_grpo_without_clipping_is_the_exact_gradient_of_the_stale_surrogate() -> None:
    policy, old = policy_and_reference()
    value, _ = loss(
        Recipe(),
        logprobs=logprobs(policy),
        mask=MASK,
        advantages=REWARDS,
        weights=probability(old),
        old_logprobs=logprobs(old),
    )
    ratio = (logprobs(policy) - logprobs(old)).masked_fill(~MASK, -math.inf).exp().sum(1)
    same(gradient(value, policy), -gradient((probability(old) * REWARDS * ratio).sum(), policy))


# KL


def test_the_estimate_has_the_kl_divergence_as_its_mean() -> None:
    policy, reference = (table(seed) for seed in (1, 2))
    p = probability(policy)
    exact = (p * (p.log() - probability(reference).log())).sum()
    value = kl_estimate(logprobs(policy), logprobs(reference)).masked_fill(~MASK, 0.0)
    torch.testing.assert_close((p * value.sum(1)).sum(), exact)


def test_k3_in_the_loss_has_the_other_divergences_gradient() -> None:
    policy, reference = policy_and_reference()
    q, logp = reference.softmax(-1), policy.log_softmax(-1)
    other = (q * (q.log() - logp)).sum(-1)  # KL(π_ref ‖ π) after each prefix
    exact = gradient((visits(policy).detach() * other).sum(), policy)
    recipe = Recipe(kl=0.3)
    out = expected(policy, recipe, NOTHING, reference_logprobs=logprobs(reference))
    same(out, 0.3 * exact)
    # It agrees with the one meant to first order about the reference: halving the distance halves the
    # gradient and quarters the difference.
    differences = []
    for scale in (1e-2, 5e-3):
        near = (reference + scale * table(4)).requires_grad_()
        p = near.softmax(-1)
        meant = gradient((visits(near).detach() * (p * (p.log() - q.log())).sum(-1)).sum(), near)
        k3 = expected(near, recipe, NOTHING, reference_logprobs=logprobs(reference)) / 0.3
        assert (k3 - meant).norm() < 0.05 * meant.norm()
        differences.append((k3 - meant).norm().item())
    assert differences[0] / differences[1] == pytest.approx(4, rel=0.05)


@given(st.floats(-30, 0), st.floats(-30, 0))
def test_k3_is_never_negative(one: float, other: float) -> None:
    a, b = torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    assert kl_estimate(a, b) >= 0
    assert kl_estimate(a, b).item() == pytest.approx(
        math.exp(other - one) - (other - one) - 1, rel=1e-12, abs=1e-9
    )
    assert kl_estimate(a, a) == 0


def test_k3_is_exact_where_the_policies_almost_agree() -> None:
    a, b = torch.tensor(-1.0, dtype=torch.float64), torch.tensor(-1.0 + 1e-8, dtype=torch.float64)
    assert kl_estimate(a, b).item() == pytest.approx(0.5e-16, rel=1e-2, abs=0)


# Importance weights


@given(st.integers(0, 2**32 - 1), st.floats(0.5, 4))
def test_importance_weights_against_a_loop(seed: int, cap: float) -> None:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 5, (3,), generator=random)
    mask = torch.arange(4) < lengths[:, None]
    old, sampler = (-3 * torch.rand(3, 4, generator=random, dtype=torch.float64) for _ in range(2))
    out = _importance_weights(
        old.masked_fill(~mask, math.nan), sampler.masked_fill(~mask, math.inf), mask, cap
    )
    assert out.max() <= cap
    for i, length in enumerate(lengths.tolist()):
        for t in range(length):
            ratio = math.exp(old[i, t].item() - sampler[i, t].item())
            assert out[i, t].item() == pytest.approx(min(ratio, cap))


def test_importance_weights_stop_the_gradient_and_overflow_to_the_cap() -> None:
    old = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    sampler = torch.tensor([[-2000.0, -1.0]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert _importance_weights(old, sampler, mask, 2.0).tolist() == [[2.0, 1.0]]
    assert not _importance_weights(old, sampler, mask, 2.0).requires_grad
