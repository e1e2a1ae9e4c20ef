"""PPO against loops over single tokens, and against TRL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from isolaw.backends.real.algorithms import objective
from isolaw.backends.real.train import ppo
from isolaw.config import Recipe

Rows = list[list[float]]


@st.composite
def rows_of(draw: Callable[..., Any]) -> dict[str, Any]:
    """A batch in plain lists: rows of 0 to 5 tokens."""
    lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    number = st.floats(-2, 2)
    names = ("values", "old_values", "penalties", "logprobs", "old_logprobs")
    rows = {name: [draw(st.lists(number, min_size=n, max_size=n)) for n in lengths] for name in names}
    per_row = {name: [draw(number) for _ in lengths] for name in ("rewards", "weights")}
    return {"lengths": lengths, **rows, **per_row}


def padded(rows: Rows, nonsense: float = 0.0) -> torch.Tensor:
    """Rows as (R, T), padded with nonsense."""
    width = max([1, *map(len, rows)])
    return torch.tensor([row + [nonsense] * (width - len(row)) for row in rows], dtype=torch.float64)


def double(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def slow_targets(batch: dict[str, Any], gamma: float, lam: float) -> tuple[Rows, Rows]:
    """Advantages as the sum over all later one-step errors, and the critic's targets."""
    advantages, returns = [], []
    for values, penalties, reward in zip(
        batch["old_values"], batch["penalties"], batch["rewards"], strict=True
    ):
        n = len(values)
        rewards = [-penalty for penalty in penalties]
        if n:
            rewards[-1] += reward
        errors = [rewards[t] + (gamma * values[t + 1] if t + 1 < n else 0.0) - values[t] for t in range(n)]
        own = [sum((gamma * lam) ** (s - t) * errors[s] for s in range(t, n)) for t in range(n)]
        advantages.append(own)
        returns.append([a + v for a, v in zip(own, values, strict=True)])
    return advantages, returns


@given(rows_of(), st.sampled_from([1.0, 0.9, 0.0]), st.sampled_from([1.0, 0.95, 0.0]))
def test_advantages_are_the_sums_of_errors(batch: dict[str, Any], gamma: float, lam: float) -> None:
    mask = padded([[1.0] * n for n in batch["lengths"]]).bool()
    rewards = ppo._token_rewards(double(batch["rewards"]), mask, padded(batch["penalties"], torch.nan))
    found = ppo._gae(rewards, padded(batch["old_values"]), gamma, lam)
    expected, _ = slow_targets(batch, gamma, lam)
    torch.testing.assert_close(found, padded(expected), rtol=1e-10, atol=1e-10)


def test_with_lambda_1_the_target_is_the_reward_to_come_and_with_0_one_step() -> None:
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.2, 0.7, 0.4]]).double()
    whole = ppo._gae(rewards, values, 0.5, 1.0) + values
    torch.testing.assert_close(whole, torch.tensor([[0.25, 0.5, 1.0]]).double())
    step = ppo._gae(rewards, values, 0.5, 0.0) + values
    torch.testing.assert_close(step, torch.tensor([[0.35, 0.2, 1.0]]).double())


@given(rows_of(), st.sampled_from([None, 0.1, 0.5]))
def test_the_critics_loss_and_gradient_against_a_loop(batch: dict[str, Any], clip: float | None) -> None:
    _, returns = slow_targets(batch, 0.9, 0.95)
    expected, gradient, clipped, tokens = 0.0, [], 0, sum(batch["lengths"])
    for i, n in enumerate(batch["lengths"]):
        slopes = []
        for t in range(n):
            v, old, target = batch["values"][i][t], batch["old_values"][i][t], returns[i][t]
            loss, slope = (v - target) ** 2 / 2, v - target
            within = v if clip is None else min(max(v, old - clip), old + clip)
            # Not at the kinks, where v is on a bound or both losses are equal.
            assume(clip is None or abs(abs(v - old) - clip) > 1e-9)
            assume(within == v or abs(abs(within - target) - abs(v - target)) > 1e-9)
            if (within - target) ** 2 / 2 > loss:
                loss, slope = (within - target) ** 2 / 2, 0.0
                clipped += 1
            expected += batch["weights"][i] * loss
            slopes.append(batch["weights"][i] * slope)
        gradient.append(slopes)
    mask = padded([[1.0] * n for n in batch["lengths"]]).bool()
    values = padded(batch["values"], torch.nan).requires_grad_()
    others = (padded(batch["old_values"], torch.nan), padded(returns, torch.nan))
    found, sums = ppo._value_loss(values, *others, mask, double(batch["weights"]), clip)
    found.backward()
    assert found.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)
    torch.testing.assert_close(values.grad, padded(gradient), rtol=1e-10, atol=1e-12)
    measured = objective.means(sums)
    assert measured["value_clip_fraction"] == pytest.approx(clipped / max(tokens, 1))
    assert measured["critic_value"] == pytest.approx(
        sum(map(sum, batch["values"])) / max(tokens, 1), abs=1e-12
    )


@given(rows_of())
def test_the_policys_term_has_an_advantage_for_each_token(batch: dict[str, Any]) -> None:
    mask = padded([[1.0] * n for n in batch["lengths"]]).bool()
    recipe = Recipe(algorithm="ppo", clip_low=0.2, clip_high=0.3)
    logp, old, a = (padded(batch[name], torch.nan) for name in ("logprobs", "old_logprobs", "values"))
    weights = double(batch["weights"])
    found, _ = objective.loss(
        recipe, logprobs=logp, old_logprobs=old, mask=mask, advantages=a, weights=weights
    )
    one = [
        objective.loss(
            recipe, logprobs=logp[i : i + 1, t : t + 1], old_logprobs=old[i : i + 1, t : t + 1],
            mask=mask[i : i + 1, t : t + 1], advantages=a[i, t : t + 1], weights=weights[i : i + 1],
        )[0].item()
        for i, n in enumerate(batch["lengths"]) for t in range(n)
    ]  # fmt: skip
    assert found.item() == pytest.approx(sum(one), rel=1e-10, abs=1e-12)


TRL = json.loads(Path(__file__).with_name("trl_ppo.json").read_text())


@pytest.mark.parametrize("case", [name for name in TRL if name != "config"])
def test_it_is_trls(case: str) -> None:
    """`trl_ppo` has the commands that wrote TRL's numbers."""
    config, found = TRL["config"], TRL[case]["found"]
    batch = {name: torch.tensor(value) for name, value in TRL[case]["batch"].items()}
    mask, old_values = batch["mask"], batch["old_values"]
    kl = config["kl_coef"] * (batch["old_logprobs"] - batch["reference_logprobs"])
    rewards = ppo._token_rewards(batch["scores"], mask, kl)
    raw = ppo._gae(rewards, old_values, config["gamma"], config["lam"])
    returns = (raw + old_values).masked_fill(~mask, 0.0)
    advantages = ppo._whiten(raw, mask, float(raw[mask].mean()), float(raw[mask].var()))
    weights = objective.row_weights(mask.sum(1)[:, None], torch.ones(len(mask), 1).bool(), "token")[:, 0]
    recipe = Recipe(algorithm="ppo", clip_low=config["cliprange"], clip_high=config["cliprange"])
    logprobs, values = (batch[name].clone().requires_grad_() for name in ("logprobs", "values"))
    policy, sums = objective.loss(
        recipe,
        logprobs=logprobs,
        old_logprobs=batch["old_logprobs"],
        mask=mask,
        advantages=advantages,
        weights=weights,
    )
    value, more = ppo._value_loss(values, old_values, returns, mask, weights, config["cliprange_value"])
    (policy + value).backward()
    mine = {"rewards": rewards, "advantages": advantages, "returns": returns, "policy_loss": policy}
    mine |= {"value_loss": value, "policy_gradient": logprobs.grad, "value_gradient": values.grad}
    assert mine.keys() == found.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor.detach().float(), torch.tensor(found[name]), rtol=1e-5, atol=1e-7)
    # The batch has what can go wrong: ratios and values that are clipped, and others.
    assert 0.1 < objective.means(sums)["clip_fraction"] < 0.9
    assert 0.1 < objective.means(more)["value_clip_fraction"] < 0.9
