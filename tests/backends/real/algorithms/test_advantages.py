"""Advantages against plain loops, and the policy gradient that they give against the exact one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from isolaw.backends.real.algorithms.advantages import (
    EPSILON,
    advantages,
    gradient_rows,
    informative,
    mastered,
    overlong_penalty,
)

KINDS = ("group_std", "batch_std", "advantage_std", "centred", "leave_one_out", "none")


def slow(rewards: list[list[float]], kind: str, kept: list[bool]) -> list[list[float]]:
    groups = [group for group, keep in zip(rewards, kept, strict=True) if keep]
    every = [r for group in groups for r in group]
    middle = math.fsum(every) / len(every) if every else 0.0
    batch = math.sqrt(math.fsum((r - middle) ** 2 for r in every) / len(every)) if every else 0.0
    centred = [r - math.fsum(group) / len(group) for group in groups for r in group]
    within = math.sqrt(math.fsum(a**2 for a in centred) / len(centred)) if centred else 0.0
    out = []
    for group, keep in zip(rewards, kept, strict=True):
        n = len(group)
        mean = math.fsum(group) / n
        std = math.sqrt(math.fsum((r - mean) ** 2 for r in group) / n)
        row = []
        for i, r in enumerate(group):
            others = [other for j, other in enumerate(group) if j != i]
            value = {
                "group_std": (r - mean) / (std + EPSILON),
                "batch_std": (r - mean) / (batch + EPSILON),
                "advantage_std": (r - mean) / (within + EPSILON),
                "centred": r - mean,
                "leave_one_out": r - math.fsum(others) / len(others),
                "none": r,
            }[kind]
            row.append(value if keep else 0.0)
        out.append(row)
    return out


@st.composite
def batches(draw: Callable[..., object]) -> tuple[list[list[float]], list[bool]]:
    n = draw(st.integers(2, 6))
    reward = draw(st.sampled_from([st.sampled_from([0.0, 1.0]), st.floats(-3, 3, width=16)]))
    rewards = draw(st.lists(st.lists(reward, min_size=n, max_size=n), min_size=1, max_size=5))
    return rewards, draw(st.lists(st.booleans(), min_size=len(rewards), max_size=len(rewards)))


@pytest.mark.parametrize("kind", KINDS)
@given(batches())
def test_against_a_loop(kind: str, batch: tuple[list[list[float]], list[bool]]) -> None:
    rewards, kept = batch
    for dtype in (torch.float64, torch.float32):
        out = advantages(torch.tensor(rewards, dtype=dtype), kind, torch.tensor(kept))
        assert out.dtype == torch.float64
        torch.testing.assert_close(
            out, torch.tensor(slow(rewards, kind, kept), dtype=torch.float64), rtol=1e-9, atol=1e-9
        )


def test_all_are_kept_unless_said() -> None:
    rewards = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    for kind in KINDS:
        torch.testing.assert_close(
            advantages(rewards, kind), advantages(rewards, kind, torch.tensor([True, True]))
        )


def test_the_deviation_divides_by_n() -> None:
    assert advantages(torch.tensor([[0.0, 1.0]]), "group_std")[0, 1] == pytest.approx(1.0, abs=1e-5)
    four = advantages(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), "group_std")
    assert four[0, 3] == pytest.approx(1.0, abs=1e-5)


def test_groups_that_differ_by_rounding_only_do_not_explode() -> None:
    rewards = torch.tensor([[0.1 + 0.2, 0.3, 0.3, 0.3]], dtype=torch.float64)
    assert rewards[0, 0] != rewards[0, 1]
    assert advantages(rewards, "group_std").abs().max() < 1e-9
    for kind in ("group_std", "batch_std", "advantage_std", "centred", "leave_one_out"):
        assert torch.equal(advantages(torch.full((2, 3), 0.7), kind), torch.zeros(2, 3, dtype=torch.float64))


def test_filtered_groups_leave_the_batch_deviation() -> None:
    rewards = torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    every = advantages(rewards, "batch_std")
    kept = advantages(rewards, "batch_std", informative(rewards))
    assert every[0, 1] == pytest.approx(0.5 / math.sqrt(5 / 36), rel=1e-5)
    assert kept[0, 1] == pytest.approx(1.0, rel=1e-5)
    none = advantages(rewards, "batch_std", torch.zeros(3, dtype=torch.bool))
    assert torch.equal(none, torch.zeros(3, 2, dtype=torch.float64))


def test_unknown_and_impossible() -> None:
    with pytest.raises(ValueError, match="no advantage 'std'"):
        advantages(torch.zeros(1, 2), "std")
    with pytest.raises(ValueError, match="leave_one_out requires groups of two"):
        advantages(torch.zeros(1, 1), "leave_one_out")


# The gradient they give: on a bandit of three arms every group of n draws can be listed.

ARMS = torch.tensor([0.3, -0.4, 0.1], dtype=torch.float64)
REWARDS = torch.tensor([1.0, 0.0, 0.25], dtype=torch.float64)


def exact_gradient() -> torch.Tensor:
    logits = ARMS.clone().requires_grad_()
    (logits.softmax(0) * REWARDS).sum().backward()
    return logits.grad


def expected_gradient(kind: str, n: int, gradient_rollouts: int | None = None) -> torch.Tensor:
    """E[mean over the gradient's rollouts of A ∇ log π] over all 3^n groups."""
    p = ARMS.softmax(0)
    score = torch.eye(3, dtype=torch.float64) - p  # row a: ∇ log π(a)
    total = torch.zeros(3, dtype=torch.float64)
    for arms in itertools.product(range(3), repeat=n):
        a = advantages(REWARDS[list(arms)][None], kind)
        enters = gradient_rows(torch.tensor([True]), n, gradient_rollouts)
        each = (a * enters)[0, :, None] * score[list(arms)]
        total += math.prod(p[list(arms)].tolist()) * each.sum(0) / enters.sum()
    return total


@pytest.mark.parametrize(("n", "trained"), [(2, None), (4, None), (4, 1), (4, 3)])
def test_leave_one_out_and_no_baseline_are_unbiased_and_centring_shrinks(n: int, trained: int | None) -> None:
    exact = exact_gradient()
    for kind, factor in (("leave_one_out", 1.0), ("none", 1.0), ("centred", (n - 1) / n)):
        torch.testing.assert_close(
            expected_gradient(kind, n, trained), factor * exact, rtol=1e-10, atol=1e-12
        )


def test_the_groups_deviation_changes_the_direction() -> None:
    biased, exact = expected_gradient("group_std", 4), exact_gradient()
    assert torch.nn.functional.cosine_similarity(biased, exact, dim=0) < 0.9999


# What stands before and after them


@given(batches())
def test_informative_against_a_loop(batch: tuple[list[list[float]], list[bool]]) -> None:
    rewards, _ = batch
    assert informative(torch.tensor(rewards)).tolist() == [len(set(group)) > 1 for group in rewards]


@pytest.mark.parametrize("n", [1, 3, 7, 10, 20, 128])
def test_a_pass_rate_reaches_its_own_threshold(n: int) -> None:
    for correct in range(n + 1):
        rewards = torch.zeros(1, n)
        rewards[0, :correct] = 1
        assert mastered(rewards, correct / n).item()
        assert correct == n or not mastered(rewards, (correct + 1) / n).item()


@given(st.integers(1, 60), st.integers(1, 60), st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_overlong_penalty_against_the_papers_cases(longest: int, buffer: int, lengths: list[int]) -> None:
    buffer = min(buffer, longest)
    lengths = [min(length, longest) for length in lengths]
    out = overlong_penalty(torch.tensor(lengths), longest, buffer)
    for length, value in zip(lengths, out.tolist(), strict=True):
        expected = 0.0 if length <= longest - buffer else ((longest - buffer) - length) / buffer
        assert value == pytest.approx(expected)
        assert -1 <= value <= 0
    assert overlong_penalty(torch.tensor([longest]), longest, buffer).item() == -1
    assert overlong_penalty(torch.tensor(lengths), longest, 0).tolist() == [0.0] * len(lengths)


@given(st.lists(st.booleans(), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 6))
def test_gradient_rows_against_a_loop(kept: list[bool], n: int, trained: int) -> None:
    trained = min(trained, n)
    out = gradient_rows(torch.tensor(kept), n, trained).tolist()
    assert out == [[keep and i < trained for i in range(n)] for keep in kept]
    assert gradient_rows(torch.tensor(kept), n).tolist() == [[keep] * n for keep in kept]
