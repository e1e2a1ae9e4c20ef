"""SkyRL: names, steps, and when a run is on-policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isolaw.readers.frameworks.others import SKYRL as FRAMEWORK

metric = FRAMEWORK.metric

TRAIN = {
    "reward/avg_pass_at_5": 0.75, "reward/mean_positive_reward": 0.4, "loss/avg_final_rewards": 0.4,
    "loss/avg_raw_advantages": 0.0, "generate/avg_num_tokens": 612.5, "generate/max_num_tokens": 900.0,
    "generate/batch_num_seq": 5120, "policy/final_loss": 0.01, "policy/policy_loss": 0.02,
    "policy/policy_lr": 1e-06,
    "policy/policy_entropy": 0.75, "policy/policy_kl": 0.003, "policy/grad_norm": 0.5,
    "policy/response_length": 900,
    "policy/rollout_train_logprobs_abs_diff_max": 0.1, "policy/rollout_train_logprobs_abs_diff_mean": 0.01,
    "trainer/epoch": 0, "timing/step": 60.0, "vllm/train/throughput": 9.0,
}  # fmt: skip
EVALUATION = {"eval/all/avg_score": 0.3, "eval/all/pass_at_8": 0.6, "eval/all/mean_positive_reward": 0.3,
              "eval/openai_gsm8k/avg_score": 0.35, "eval/openai_gsm8k/pass_at_1": 0.35,
              "eval/all/generate/avg_num_tokens": 500.0, "timing/eval_generate": 3.0}  # fmt: skip
STEPS = (1, 2)
TABLE = {
    ("train", "reward"): {1: 0.25, 2: 0.5},
    ("train", "step_seconds"): dict.fromkeys(STEPS, 60.0),
    ("train", "best@5"): dict.fromkeys(STEPS, 0.75),
    ("train", "reward/mean_positive_reward"): dict.fromkeys(STEPS, 0.4),
    ("train", "loss/avg_final_rewards"): dict.fromkeys(STEPS, 0.4),
    ("train", "loss/avg_raw_advantages"): dict.fromkeys(STEPS, 0.0),
    ("train", "response_length"): dict.fromkeys(STEPS, 612.5),
    ("train", "policy/final_loss"): dict.fromkeys(STEPS, 0.01),
    ("train", "policy/policy_loss"): dict.fromkeys(STEPS, 0.02),
    ("train", "entropy"): dict.fromkeys(STEPS, 0.75),
    ("train", "kl"): dict.fromkeys(STEPS, 0.003),
    ("train", "grad_norm"): dict.fromkeys(STEPS, 0.5),
    ("train", "policy/rollout_train_logprobs_abs_diff_mean"): dict.fromkeys(STEPS, 0.01),
    ("validation", "reward"): {0: 0.3, 2: 0.3},
    ("validation", "best@8"): {0: 0.6, 2: 0.6},
    ("validation", "response_length"): {0: 500.0, 2: 500.0},
    ("openai_gsm8k", "reward"): {0: 0.35, 2: 0.35},
    ("openai_gsm8k", "pass@1"): {0: 0.35, 2: 0.35},
}


@pytest.mark.parametrize("every", [1, 3])
def test_known_table(read_as: Callable[..., Any], every: int) -> None:
    """The step is the tracker's, or the global step among the values where that counts calls."""

    def train(step: int) -> dict[str, float]:
        return {**TRAIN, "reward/avg_raw_reward": step / 4, "trainer/global_step": step}

    first = EVALUATION if every == 1 else {**EVALUATION, "trainer/global_step": 0}
    records = [(0, first), (every, train(1)), (2 * every, {**train(2), **EVALUATION})]
    assert read_as(FRAMEWORK, records) == TABLE


def test_names() -> None:
    assert metric("loss/avg_kl") == ("train", "kl")
    assert metric("policy/raw_grad_norm") == ("train", "grad_norm")
    assert metric("eval/a/b/avg_score") == ("a/b", "reward")
    for key in ("", "trainer/epoch", "eval/all/mean_positive_reward", "loss/kl_loss_coef", "epoch"):
        assert metric(key) is None


CONFIG = {
    "trainer.train_batch_size": 1024, "generator.n_samples_per_prompt": 5,
    "trainer.policy_mini_batch_size": 1024,
    "trainer.update_epochs_per_batch": 1, "trainer.seed": 42, "trainer.policy.optimizer_config.lr": 1e-06,
    "trainer.algorithm.advantage_estimator": "grpo", "trainer.algorithm.use_kl_loss": True,
    "trainer.algorithm.use_kl_in_reward": False, "trainer.algorithm.kl_loss_coef": 0.001,
    "trainer.policy.model.path": "Qwen/Qwen2.5-1.5B", "trainer.placement.colocate_all": True,
    "generator.sampling_params.temperature": 1.0, "trainer.fully_async.max_staleness_steps": 4,
}  # fmt: skip


def test_facts(split_of: Callable[..., Any]) -> None:
    assert FRAMEWORK.recognises([], CONFIG)
    assert split_of(FRAMEWORK, CONFIG) == (1024, 5, 5120)
    assert {name: fact.value for name, fact in FRAMEWORK.facts(CONFIG, "config.yaml").items()} == {
        "rollouts_per_problem": 5, "problems_per_batch": 1024, "on_policy": True, "seed": 42,
        "algorithm": "grpo",
        "lr": 1e-06, "kl": 0.001, "temperature": 1.0, "model": "Qwen/Qwen2.5-1.5B",
    }  # fmt: skip
    assert FRAMEWORK.facts({}, "") == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"trainer.policy_mini_batch_size": 256}, False),
        ({"trainer.update_epochs_per_batch": 2}, False),
        ({"trainer.placement.colocate_all": False}, None),  # may have been fully asynchronous
        ({"trainer.placement.colocate_all": False, "trainer.policy_mini_batch_size": 256}, False),
    ],
)
def test_on_policy(change: dict[str, Any], expected: bool | None) -> None:
    fact = FRAMEWORK.facts(CONFIG | change, "").get("on_policy")
    assert (fact and fact.value) is expected


def test_kl_that_is_off() -> None:
    assert FRAMEWORK.facts(CONFIG | {"trainer.algorithm.use_kl_loss": False}, "")["kl"].value == 0


def test_dynamic_sampling_is_said() -> None:
    found = FRAMEWORK.facts(CONFIG | {"trainer.algorithm.dynamic_sampling.type": "filter"}, "")[
        "problems_per_batch"
    ]
    assert "does not count" in found.origin
