"""NeMo-RL: names under prefixes, steps of the tracker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isolaw.readers.frameworks.others import NEMO_RL as FRAMEWORK

metric = FRAMEWORK.metric

TRAIN = {
    "loss": -0.01, "grad_norm": 0.5, "mean_prompt_length": 100.0, "total_num_tokens": 9000.0,
    "lr": 5e-07, "wd": 0.01,
    "probs_ratio": 1.0, "kl_penalty": 0.003, "token_mult_prob_error": 1.01, "gen_kl_error": 0.001,
    "approx_entropy": 0.75,
    "sampling_importance_ratio": 1.0, "global_valid_seqs": 512.0, "mean_gen_tokens_per_sample": 612.5,
    "truncation_rate": 0.0625, "natural_termination_rate": 0.9375, "tokens_per_sec_per_gpu": 100.0,
    "gen_tokens_per_sample/max": 900.0,
}  # fmt: skip
OTHER = {
    "timing/train/total_step_time": 60.0,
    "performance/tokens_per_sec": 1.0,
    "timing/validation/total": 3.0,
}
STEPS = (1, 2)
TABLE = {
    ("train", "reward"): {1: 0.25, 2: 0.5},
    ("train", "step_seconds"): dict.fromkeys(STEPS, 60.0),
    ("train", "loss"): dict.fromkeys(STEPS, -0.01),
    ("train", "grad_norm"): dict.fromkeys(STEPS, 0.5),
    ("train", "mean_prompt_length"): dict.fromkeys(STEPS, 100.0),
    ("train", "step_tokens"): dict.fromkeys(STEPS, 9000.0),
    ("train", "probs_ratio"): dict.fromkeys(STEPS, 1.0),
    ("train", "kl"): dict.fromkeys(STEPS, 0.003),
    ("train", "token_mult_prob_error"): dict.fromkeys(STEPS, 1.01),
    ("train", "gen_kl_error"): dict.fromkeys(STEPS, 0.001),
    ("train", "entropy"): dict.fromkeys(STEPS, 0.75),
    ("train", "sampling_importance_ratio"): dict.fromkeys(STEPS, 1.0),
    ("train", "response_length"): dict.fromkeys(STEPS, 612.5),
    ("train", "truncated_fraction"): dict.fromkeys(STEPS, 0.0625),
    ("train", "natural_termination_rate"): dict.fromkeys(STEPS, 0.9375),
    ("validation", "accuracy"): {0: 0.125, 2: 0.25},
    ("validation", "response_length"): {0: 600.0, 2: 500.0},
}


def test_known_table(read_as: Callable[..., Any]) -> None:
    records = [(0, {"validation/accuracy": 0.125, "validation/avg_length": 600.0})]
    records += [
        (s, {**{f"train/{k}": v for k, v in TRAIN.items()}, "train/reward": s / 4, **OTHER}) for s in STEPS
    ]
    records.append((2, {"validation/accuracy": 0.25, "validation/avg_length": 500.0}))
    assert read_as(FRAMEWORK, records) == TABLE


def test_names() -> None:
    assert metric("validation/pass@8") == metric("validation/pass_at_8") == ("validation", "best@8")
    assert metric("validation/pass@1") == ("validation", "pass@1")
    for key in (
        "train/",
        "validation/",
        "train",
        "",
        "timing/train/x",
        "performance/x",
        "ray/node.0.gpu.0.util",
    ):
        assert metric(key) is None


CONFIG = {
    "grpo.num_prompts_per_step": 32, "grpo.num_generations_per_prompt": 16,
    "policy.train_global_batch_size": 512,
    "grpo.seed": 42, "policy.optimizer.kwargs.lr": 5e-06, "loss_fn.reference_policy_kl_penalty": 0.01,
    "policy.model_name": "Qwen/Qwen2.5-1.5B", "data.dataset_name": "OpenMathInstruct-2",
    "policy.generation.temperature": 1.0, "grpo.async_grpo.enabled": False,
}  # fmt: skip


def test_facts(split_of: Callable[..., Any]) -> None:
    assert FRAMEWORK.recognises([], CONFIG)
    assert split_of(FRAMEWORK, CONFIG) == (32, 16, 512)
    assert {name: fact.value for name, fact in FRAMEWORK.facts(CONFIG, "config.yaml").items()} == {
        "rollouts_per_problem": 16, "problems_per_batch": 32, "on_policy": True, "seed": 42,
        "lr": 5e-06, "kl": 0.01,
        "problem_set": "OpenMathInstruct-2", "temperature": 1.0, "model": "Qwen/Qwen2.5-1.5B",
    }  # fmt: skip
    assert FRAMEWORK.facts({}, "") == {}


@pytest.mark.parametrize(
    "change", [{"policy.train_global_batch_size": 256}, {"grpo.async_grpo.enabled": True}]
)
def test_off_policy(change: dict[str, Any]) -> None:
    assert FRAMEWORK.facts(CONFIG | change, "")["on_policy"].value is False


def test_dynamic_sampling_is_said() -> None:
    found = FRAMEWORK.facts(CONFIG | {"grpo.use_dynamic_sampling": True}, "")["problems_per_batch"]
    assert "does not count" in found.origin
