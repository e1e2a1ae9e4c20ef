"""The loss against loops over single tokens, its gradient too; any split adds up to the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from isolaw.backends.real.algorithms.advantages import advantages, gradient_rows, informative
from isolaw.backends.real.algorithms.objective import loss, means, merge, row_weights
from isolaw.backends.real.algorithms.presets import ALGORITHMS, resolve_recipe
from isolaw.config import Recipe

AGGREGATIONS = ("token", "sequence", "prompt", "fixed_length")
PADDED = ("logprobs", "old_logprobs", "sampler_logprobs", "reference_logprobs", "entropy")
Batch = dict[str, torch.Tensor]


def make(seed: int, rows: int, width: int) -> Batch:
    """A stale batch with all its tensors, zeros in the padding; some rows are empty or of weight 0."""
    random = torch.Generator().manual_seed(seed)

    def uniform(*shape: int, low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(*shape, generator=random, dtype=torch.float64)

    lengths = torch.randint(0, width + 1, (rows,), generator=random)
    mask = torch.arange(width) < lengths[:, None]
    logp = uniform(rows, width, low=-4, high=-0.5)
    batch = {
        "logprobs": logp,
        "old_logprobs": logp + uniform(rows, width, low=-0.5, high=0.5),
        "sampler_logprobs": logp + uniform(rows, width, low=-0.7, high=0.7),
        "reference_logprobs": logp + uniform(rows, width, low=-1, high=1),
        "entropy": uniform(rows, width, low=0, high=2),
    }
    batch = {key: value.masked_fill(~mask, 0.0) for key, value in batch.items()}
    weights = uniform(rows, low=0.1, high=1) * (torch.rand(rows, generator=random) < 0.8)
    return batch | {"mask": mask, "advantages": uniform(rows, low=-2, high=2), "weights": weights}


@st.composite
def batches(draw: Callable[..., Any]) -> Batch:
    return make(draw(st.integers(0, 2**32 - 1)), draw(st.integers(1, 5)), draw(st.integers(1, 6)))


@st.composite
def recipes(draw: Callable[..., Any]) -> Recipe:
    return Recipe(
        algorithm=draw(st.sampled_from(sorted(ALGORITHMS))),
        clip_low=draw(st.sampled_from([None, 0.05, 0.2, 1.0])),
        clip_high=draw(st.sampled_from([None, 0.05, 0.28, 4.0])),
        importance_sampling=draw(st.sampled_from(["none", "token"])),
        importance_cap=draw(st.sampled_from([1.0, 1.3, 2.0])),
        kl=draw(st.sampled_from([0.0, 0.1])),
        entropy=draw(st.sampled_from([0.0, 0.1])),
    )


def evaluate(
    recipe: Recipe, batch: Batch
) -> tuple[float, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """The loss, its gradients in the log-probabilities and the entropy, and the sums."""
    logp = batch["logprobs"].clone().requires_grad_()
    entropy = batch["entropy"].clone().requires_grad_()
    value, sums = loss(recipe, **(batch | {"logprobs": logp, "entropy": entropy}))
    assert value.dtype == torch.float64
    assert not any(each.requires_grad for each in sums.values())
    g, h = torch.autograd.grad(value, [logp, entropy], allow_unused=True)
    return value.item(), g, torch.zeros_like(g) if h is None else h, sums


def slow(
    recipe: Recipe, batch: Batch
) -> tuple[float, list[list[float]], list[list[float]], dict[str, float]]:
    """The same, one token at a time, with the derivatives written out."""
    logp, old, sampler, reference, entropy = (batch[key].tolist() for key in PADDED)
    mask, rows, width = batch["mask"].tolist(), len(logp), len(logp[0])
    low = 0.0 if recipe.clip_low is None else 1 - recipe.clip_low
    high = math.inf if recipe.clip_high is None else 1 + recipe.clip_high
    total, count = 0.0, 0
    gradient, of_entropy = ([[0.0] * width for _ in range(rows)] for _ in range(2))
    sums: dict[str, list[float]] = {
        key: [0.0]
        for key in ("clip_fraction", "ratio", "ratio_max", "mismatch", "mismatch_max", "kl", "entropy", "tis")
    }
    for i in range(rows):
        tokens = [t for t in range(width) if mask[i][t]]
        a, w = batch["advantages"][i].item(), batch["weights"][i].item()
        if w == 0 or not tokens:
            continue
        for t in tokens:
            ratio = math.exp(logp[i][t] - (sampler if recipe.algorithm == "scale_rl" else old)[i][t])
            clipped = min(max(ratio, low), high)
            if recipe.algorithm in ("cispo", "scale_rl"):
                term, slope, cut = -clipped * a * logp[i][t], -clipped * a, clipped != ratio
            else:
                cut = clipped * a < ratio * a
                term, slope = -min(ratio * a, clipped * a), 0.0 if cut else -ratio * a
            c = 1.0
            if recipe.importance_sampling == "token":
                c = min(math.exp(old[i][t] - sampler[i][t]), recipe.importance_cap or 0)
            value, slope = c * term, c * slope
            u = reference[i][t] - logp[i][t]
            k3 = math.exp(u) - u - 1
            if recipe.kl and recipe.algorithm != "ppo":
                value += recipe.kl * k3
                slope += recipe.kl * (1 - math.exp(u))
            value -= (recipe.entropy or 0) * entropy[i][t]
            total += w * value
            gradient[i][t] = w * slope
            of_entropy[i][t] = -w * (recipe.entropy or 0)
            count += 1
            gap = abs(old[i][t] - sampler[i][t])
            for key, each in (("clip_fraction", float(cut)), ("ratio", ratio), ("ratio_max", ratio),
                              ("mismatch", gap), ("mismatch_max", gap), ("kl", k3),
                              ("entropy", entropy[i][t]), ("tis", c)):  # fmt: skip
                sums[key].append(each)
    metrics = {
        key: max(values) if key.endswith("_max") else math.fsum(values) / max(count, 1)
        for key, values in sums.items()
    }
    tis = metrics.pop("tis")
    return (
        total,
        gradient,
        of_entropy,
        metrics | ({"importance_weight": tis} if recipe.importance_sampling != "none" else {}),
    )


@settings(max_examples=300)
@given(recipes(), batches())
def test_loss_gradient_and_metrics_against_a_loop(recipe: Recipe, batch: Batch) -> None:
    value, gradient, of_entropy, sums = evaluate(recipe, batch)
    expected, expected_gradient, expected_of_entropy, metrics = slow(recipe, batch)
    assert value == pytest.approx(expected, rel=1e-10, abs=1e-12)
    for one, other in ((gradient, expected_gradient), (of_entropy, expected_of_entropy)):
        torch.testing.assert_close(one, torch.tensor(other, dtype=torch.float64), rtol=1e-10, atol=1e-12)
    assert means(sums) == pytest.approx(metrics, rel=1e-10, abs=1e-12)


def test_the_loop_sees_every_case() -> None:
    """Clipped above and below, capped and not, an empty row, a row of weight 0."""
    batch = make(7, 40, 6)
    for algorithm in ALGORITHMS:
        recipe = Recipe(
            algorithm=algorithm, clip_low=0.1, clip_high=0.1, importance_sampling="token", importance_cap=1.3
        )
        metrics = slow(recipe, batch)[3]
        assert 0 < metrics["clip_fraction"] < 1
        assert 0 < metrics["importance_weight"] < 1.3
    assert (batch["weights"] == 0).any()
    assert (batch["mask"].sum(1) == 0).any()


def test_gradient_against_finite_differences_of_the_papers_form() -> None:
    recipe = Recipe(clip_low=0.1, clip_high=0.1, kl=0.1)
    batch = make(11, 6, 4)
    _, gradient, _, _ = evaluate(recipe, batch)

    def value(logp: torch.Tensor) -> float:
        total = 0.0
        for i in range(len(logp)):
            t = batch["mask"][i]
            if not t.any() or batch["weights"][i] == 0:
                continue
            ratio = (logp[i, t] - batch["old_logprobs"][i, t]).exp()
            a = batch["advantages"][i]
            term = -torch.minimum(ratio * a, ratio.clamp(0.9, 1.1) * a)
            u = batch["reference_logprobs"][i, t] - logp[i, t]
            total += (batch["weights"][i] * (term + 0.1 * (u.exp() - u - 1))).sum().item()
        return total

    assert value(batch["logprobs"]) == pytest.approx(evaluate(recipe, batch)[0], rel=1e-12)
    for i, t in itertools.product(range(6), range(4)):
        step = torch.zeros_like(batch["logprobs"])
        step[i, t] = 1e-6
        slope = (value(batch["logprobs"] + step) - value(batch["logprobs"] - step)) / 2e-6
        assert gradient[i, t].item() == pytest.approx(slope, rel=1e-6, abs=1e-8)


def test_scale_rl_against_its_equation_written_for_a_batch() -> None:
    """Arxiv 2510.13786, section 4, from rewards to the gradient: three problems, of which one is dropped."""
    rewards = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]], dtype=torch.float64)
    batch = make(5, 9, 6)
    lengths = batch["mask"].sum(1).reshape(3, 3)
    recipe = resolve_recipe(Recipe(algorithm="scale_rl"))
    kept = informative(rewards)
    weights = row_weights(lengths, gradient_rows(kept, 3), recipe.aggregation)
    given = {
        "advantages": advantages(rewards, recipe.advantage, kept).flatten(),
        "weights": weights.flatten(),
    }
    value, gradient, _, _ = evaluate(recipe, batch | given)

    logp = batch["logprobs"].clone().requires_grad_()
    deviations = [r - sum(group) / 3 for group in (rewards[0].tolist(), rewards[2].tolist()) for r in group]
    sigma = math.sqrt(math.fsum(a * a for a in deviations) / len(deviations))
    objective = torch.zeros((), dtype=torch.float64)
    for place, x in enumerate((0, 2)):
        terms = torch.zeros((), dtype=torch.float64)
        for i in range(3):
            row = 3 * x + i
            for t in range(int(lengths[x, i])):
                rho = math.exp(logp[row, t].item() - batch["sampler_logprobs"][row, t].item())
                terms = terms + min(rho, 5.0) * deviations[3 * place + i] / sigma * logp[row, t]
        objective = objective + terms / int(lengths[x].sum()) / 2
    assert value == pytest.approx(-objective.item(), rel=1e-5)
    (expected,) = torch.autograd.grad(-objective, logp)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-9)


def test_scale_rl_needs_the_samplers_logprobs() -> None:
    batch = make(3, 2, 3)
    del batch["sampler_logprobs"]
    with pytest.raises(ValueError, match="sampler_logprobs"):
        loss(Recipe(algorithm="scale_rl"), **batch)


# On-policy and stale


@given(batches(), st.sampled_from(["none", "token"]))
def test_on_policy_all_algorithms_have_one_gradient(batch: Batch, level: str) -> None:
    gradients = []
    for algorithm in set(ALGORITHMS) - {"scale_rl"}:  # whose ratio is to the sampler
        recipe = Recipe(
            algorithm=algorithm, clip_low=1e-3, clip_high=1e-3, importance_sampling=level, importance_cap=1.2
        )
        for old in ({}, {"old_logprobs": batch["logprobs"]}):
            _, gradient, _, sums = evaluate(
                recipe, {k: v for k, v in batch.items() if k != "old_logprobs"} | old
            )
            gradients.append(gradient)
            assert sums["clip_fraction"] == 0
            assert sums["ratio"] == sums["tokens"]
    for gradient in gradients[1:]:
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-14, atol=1e-15)
    if level == "none":
        expected = -(batch["weights"] * batch["advantages"])[:, None] * batch["mask"]
        torch.testing.assert_close(gradients[0], expected, rtol=1e-14, atol=1e-15)


def test_on_a_stale_policy_they_differ() -> None:
    batch = make(3, 40, 5)
    recipes = {
        name: Recipe(algorithm=name, clip_low=keys["clip_low"], clip_high=keys["clip_high"])
        for name, keys in ALGORITHMS.items()
    }
    gradients = {name: evaluate(recipe, batch)[1] for name, recipe in recipes.items()}
    for name in ("dr_grpo", "ppo"):  # they differ in advantage and weights only
        assert torch.equal(gradients.pop(name), gradients["grpo"])
    for one, other in itertools.combinations(gradients.values(), 2):
        assert (one - other).abs().max() > 1e-2


def one_token(ratio: float, advantage: float, algorithm: str, low: float, high: float) -> float:
    """The gradient in log π of one token, divided by its advantage."""
    _, gradient, _, _ = evaluate(
        Recipe(algorithm=algorithm, clip_low=low, clip_high=high),
        {
            "logprobs": torch.tensor([[math.log(0.5 * ratio)]], dtype=torch.float64),
            "old_logprobs": torch.tensor([[math.log(0.5)]], dtype=torch.float64),
            "entropy": torch.zeros(1, 1),
            "mask": torch.tensor([[True]]),
            "advantages": torch.tensor([advantage]),
            "weights": torch.tensor([1.0]),
        },
    )
    return -gradient.item() / advantage


def test_what_clipping_cuts() -> None:
    assert one_token(1.25, 1.0, "grpo", 0.2, 0.2) == 0
    assert one_token(1.25, 1.0, "grpo", 0.2, 0.28) == pytest.approx(1.25)  # clip-higher
    assert one_token(1.25, -1.0, "grpo", 0.2, 0.2) == pytest.approx(1.25)
    assert one_token(0.75, -1.0, "grpo", 0.2, 0.2) == 0
    assert one_token(0.75, 1.0, "grpo", 0.2, 0.2) == pytest.approx(0.75)


def test_cispo_cuts_the_weight_and_not_the_token() -> None:
    for advantage in (1.0, -1.0):
        assert one_token(1.25, advantage, "cispo", 0.2, 0.2) == pytest.approx(1.2)
        assert one_token(0.75, advantage, "cispo", 0.2, 0.2) == pytest.approx(0.8)
        assert one_token(0.01, advantage, "cispo", 1.0, 4.0) == pytest.approx(0.01)  # no lower bound
        assert one_token(1.99, advantage, "cispo", 1.0, 4.0) == pytest.approx(1.99)


# Splits, padding, rows that do not count


@given(recipes(), batches(), st.data())
def test_any_split_adds_up_to_the_whole(recipe: Recipe, batch: Batch, data: st.DataObject) -> None:
    rows = len(batch["weights"])
    part_of = data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    value, gradient, of_entropy, sums = evaluate(recipe, batch)
    total, split, split_of_entropy = 0.0, torch.zeros_like(gradient), torch.zeros_like(gradient)
    merged: dict[str, torch.Tensor] | None = None
    for part in sorted(set(part_of), reverse=True):
        index = [i for i in range(rows) if part_of[i] == part]
        # As narrow as its longest response, as a micro-batch is.
        width = max(1, int(batch["mask"][index].sum(1).max()))
        piece = {k: v[index] if v.dim() == 1 else v[index, :width] for k, v in batch.items()}
        one, g, h, more = evaluate(recipe, piece)
        total += one
        split[index, :width], split_of_entropy[index, :width] = g, h
        merged = more if merged is None else merge(merged, more)
    assert merged is not None
    assert total == pytest.approx(value, rel=1e-12, abs=1e-12)
    torch.testing.assert_close(split, gradient, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(split_of_entropy, of_entropy, rtol=1e-12, atol=1e-12)
    assert means(merged) == pytest.approx(means(sums), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("nonsense", [math.nan, math.inf, -math.inf, 1e300])
@given(recipes(), batches())
@settings(max_examples=50)
def test_padding_and_rows_of_weight_0_never_matter(nonsense: float, recipe: Recipe, batch: Batch) -> None:
    value, gradient, of_entropy, sums = evaluate(recipe, batch)
    outside = ~batch["mask"] | (batch["weights"] == 0)[:, None]
    assert not gradient[outside].any()
    assert not of_entropy[outside].any()
    dirty = batch | {key: batch[key].masked_fill(outside, nonsense) for key in PADDED}
    dirty["advantages"] = batch["advantages"].masked_fill(batch["weights"] == 0, nonsense)
    wide = {
        key: torch.nn.functional.pad(each, (0, 2), value=False if key == "mask" else nonsense)
        if each.dim() == 2
        else each
        for key, each in dirty.items()
    }
    width = gradient.shape[1]
    for each in (dirty, wide):
        again, g, h, more = evaluate(recipe, each)
        assert again == pytest.approx(value, rel=1e-12, abs=1e-12)
        torch.testing.assert_close(g[:, :width], gradient, rtol=1e-12, atol=0)
        torch.testing.assert_close(h[:, :width], of_entropy, rtol=1e-12, atol=0)
        assert not g[:, width:].any()
        assert means(more) == pytest.approx(means(sums), rel=1e-12, abs=1e-12)


def test_a_micro_batch_in_which_no_row_counts_is_zero() -> None:
    batch = make(5, 3, 4) | {"weights": torch.zeros(3)}
    recipe = Recipe(kl=0.1, entropy=0.1)
    value, gradient, _, sums = evaluate(recipe, batch)
    assert value == 0
    assert not gradient.any()
    assert set(means(sums).values()) == {0.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_comes_in_and_its_gradient_goes_out(dtype: torch.dtype) -> None:
    batch = make(2, 6, 5)
    low = batch | {key: batch[key].to(dtype) for key in PADDED}
    exact = {key: value.double() if key in PADDED else value for key, value in low.items()}
    recipe = Recipe(clip_low=0.2, clip_high=0.2, kl=0.1, entropy=0.1)
    value, gradient, _, _ = evaluate(recipe, low)
    expected, expected_gradient, _, _ = evaluate(recipe, exact)
    assert value == expected
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient, expected_gradient.to(dtype))


# What is needed, what is measured


def test_a_term_without_its_tensor_is_an_error() -> None:
    batch = make(1, 2, 3)
    for key, recipe in (
        ("reference_logprobs", Recipe(kl=0.1)),
        ("entropy", Recipe(entropy=0.1)),
        ("sampler_logprobs", Recipe(importance_sampling="token", importance_cap=2.0)),
    ):
        loss(recipe, **batch)
        with pytest.raises(ValueError, match=key):
            loss(recipe, **{k: v for k, v in batch.items() if k != key})
    with pytest.raises(ValueError, match="importance_cap"):
        loss(Recipe(importance_sampling="token"), **batch)
    # PPO takes KL off the rewards: it is none of the loss's business.
    loss(Recipe(algorithm="ppo", kl=0.1), **{k: v for k, v in batch.items() if k != "reference_logprobs"})


def test_what_is_measured_follows_from_what_is_given() -> None:
    batch = make(1, 2, 3)
    least = {key: batch[key] for key in ("logprobs", "mask", "advantages", "weights")}
    always = {"tokens", "clip_fraction", "ratio", "ratio_max"}
    assert set(loss(Recipe(), **least)[1]) == always
    whole = set(loss(Recipe(importance_sampling="token", importance_cap=2.0), **batch)[1])
    assert whole == always | {"mismatch", "mismatch_max", "importance_weight", "kl", "entropy"}


# Weights


def slow_weights(
    lengths: list[list[int]], rows: list[list[bool]], aggregation: str, longest: int
) -> list[list[float]]:
    problems = [
        [length for length, enters in zip(*group, strict=True) if enters]
        for group in zip(lengths, rows, strict=True)
    ]
    count = sum(len(group) for group in problems)
    out = []
    for group, enter, mine in zip(lengths, rows, problems, strict=True):
        row = []
        for length, enters in zip(group, enter, strict=True):
            divisor = {
                "token": sum(map(sum, problems)),
                "sequence": count * length,
                "prompt": sum(1 for other in problems if other) * sum(mine),
                "fixed_length": count * longest,
            }[aggregation]
            row.append(1 / divisor if enters and divisor else 0.0)
        out.append(row)
    return out


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@given(st.data(), st.integers(1, 5), st.integers(1, 5), st.integers(0, 1))
def test_weights_against_a_loop(
    aggregation: str, data: st.DataObject, problems: int, n: int, least: int
) -> None:
    lengths = data.draw(
        st.lists(
            st.lists(st.integers(least, 9), min_size=n, max_size=n), min_size=problems, max_size=problems
        )
    )
    kept = torch.tensor(data.draw(st.lists(st.booleans(), min_size=problems, max_size=problems)))
    rows = gradient_rows(kept, n, data.draw(st.integers(1, n)))
    weights = row_weights(torch.tensor(lengths), rows, aggregation, 9)
    expected = slow_weights(lengths, rows.tolist(), aggregation, 9)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)
    total = (weights * torch.tensor(lengths)).sum().item()
    if not kept.any():
        assert total == 0
    elif aggregation == "fixed_length":
        assert total <= 1 + 1e-12
    elif least:
        assert total == pytest.approx(1)


def test_aggregations_differ_in_whom_they_favour() -> None:
    """One problem with responses of 1 and 3 tokens, one with 2 and 10: what share of the loss is whose."""
    lengths, rows = torch.tensor([[1, 3], [2, 10]]), torch.ones(2, 2, dtype=torch.bool)
    share = {
        aggregation: (row_weights(lengths, rows, aggregation, 20) * lengths).flatten().tolist()
        for aggregation in AGGREGATIONS
    }
    assert share["token"] == pytest.approx([1 / 16, 3 / 16, 2 / 16, 10 / 16])
    assert share["sequence"] == pytest.approx([1 / 4] * 4)
    assert share["prompt"] == pytest.approx([1 / 8, 3 / 8, 1 / 12, 5 / 12])
    assert share["fixed_length"] == pytest.approx([1 / 80, 3 / 80, 2 / 80, 10 / 80])


def test_unknown_weights() -> None:
    lengths, rows = torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool)
    with pytest.raises(ValueError, match="no aggregation 'mean'"):
        row_weights(lengths, rows, "mean")
    with pytest.raises(ValueError, match="max_response_tokens"):
        row_weights(lengths, rows, "fixed_length")
