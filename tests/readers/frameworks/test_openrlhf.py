"""OpenRLHF: names of trackers and of the console, arguments flat, in sections, and as W&B keeps those."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.readers.frameworks.openrlhf import FRAMEWORK

metric = FRAMEWORK.metric

# train_step's status, openrlhf 0.11.
STATUS = {
    "policy_loss": 0.01, "actor_lr": 5e-07, "actor_grad_norm": 0.5, "ppo_clip_ratio": 0.001, "ppo_kl": 1e-05,
    "kl": 0.02, "logprobs_diff": 0.001, "entropy_loss": 0.75, "return": 0.2, "total_length": 900.0,
    "rollout/reward_std": 0.4, "rollout/response_length_mean": 612.5, "rollout/truncated_rate": 0.0625,
    "rollout/num_samples": 1024.0, "timing/make_experience": 10.5, "timing/step_total": 90.0,
}  # fmt: skip
EVALUATION = {
    "eval_aime24_pass1": 0.25, "eval_aime24_pass8": 0.5, "eval_math_500_pass1": 0.7,
    "eval_num_samples": 240.0,
    "eval_aime24_response_length_mean": 700.0, "eval_aime24_truncated_rate": 0.1, "eval_truncated_rate": 0.2,
}  # fmt: skip
TABLE = {
    ("train", "reward"): {1: 0.125, 2: 0.25},
    ("train", "response_length"): dict.fromkeys((1, 2), 612.5),
    ("train", "truncated_fraction"): dict.fromkeys((1, 2), 0.0625),
    ("train", "step_rollouts"): dict.fromkeys((1, 2), 1024.0),
    ("train", "rollout/reward_std"): dict.fromkeys((1, 2), 0.4),
    ("train", "kl"): dict.fromkeys((1, 2), 0.02),
    ("train", "ppo_kl"): dict.fromkeys((1, 2), 1e-05),
    ("train", "entropy"): dict.fromkeys((1, 2), 0.75),
    ("train", "grad_norm"): dict.fromkeys((1, 2), 0.5),
    ("train", "policy_loss"): dict.fromkeys((1, 2), 0.01),
    ("train", "ppo_clip_ratio"): dict.fromkeys((1, 2), 0.001),
    ("train", "logprobs_diff"): dict.fromkeys((1, 2), 0.001),
    ("train", "return"): dict.fromkeys((1, 2), 0.2),
    ("aime24", "pass@1"): {2: 0.25},
    ("aime24", "best@8"): {2: 0.5},
    ("math_500", "pass@1"): {2: 0.7},
    ("aime24", "response_length"): {2: 700.0},
    ("aime24", "truncated_fraction"): {2: 0.1},
    ("validation", "truncated_fraction"): {2: 0.2},
}


def status(step: int) -> dict[str, float]:
    return {**STATUS, "rollout/reward_mean": step / 8}


def test_wandb(read_as: Callable[..., Any]) -> None:
    """Its own step counts calls; the global step is among the values."""
    records = [
        (2 * step, {f"train/{key}": value for key, value in {**status(step), "global_step": step}.items()})
        for step in (1, 2)
    ]
    records.append((5, {f"eval/{key}": value for key, value in {**EVALUATION, "global_step": 2}.items()}))
    assert read_as(FRAMEWORK, records) == TABLE


def test_console(read_as: Callable[..., Any]) -> None:
    assert read_as(FRAMEWORK, [(1, status(1)), (2, status(2)), (2, EVALUATION)]) == TABLE


def test_older_names() -> None:
    assert metric("train/reward") == ("train", "reward")
    assert metric("train/response_length") == ("train", "response_length")
    assert FRAMEWORK.recognises(["train/reward", "train/return", "train/actor_lr"], {})
    for key in (
        "train/global_step",
        "eval/global_step",
        "eval/epoch",
        "train/generated_samples",
        "",
        "train/",
    ):
        assert metric(key) is None


FLAT = {
    "rollout_batch_size": 128, "n_samples_per_prompt": 8, "train_batch_size": 1024,
    "micro_rollout_batch_size": 4,
    "micro_train_batch_size": 2, "max_epochs": 1, "async_train": False, "init_kl_coef": 0.001, "seed": 42,
    "actor_learning_rate": 5e-07, "pretrain": "Qwen/Qwen2.5-7B", "advantage_estimator": "group_norm",
    "prompt_data": "OpenRLHF/prompt-collection", "dynamic_filtering": False, "temperature": 1.0,
}  # fmt: skip
SECTIONS = {
    "rollout.batch_size": 128, "rollout.n_samples_per_prompt": 8, "train.batch_size": 1024,
    "train.max_epochs": 1,
    "rollout.micro_batch_size": 4, "train.async_enable": False, "algo.kl.init_coef": 0.001, "train.seed": 42,
    "actor.adam.lr": 5e-07, "actor.model_name_or_path": "Qwen/Qwen2.5-7B", "rollout.temperature": 1.0,
    "algo.advantage.estimator": "group_norm", "data.prompt_dataset": "OpenRLHF/prompt-collection",
}  # fmt: skip
KNOWN = {
    "rollouts_per_problem": 8, "problems_per_batch": 128, "on_policy": True, "seed": 42,
    "algorithm": "group_norm",
    "problem_set": "OpenRLHF/prompt-collection", "lr": 5e-07, "kl": 0.001, "temperature": 1.0,
    "model": "Qwen/Qwen2.5-7B",
}  # fmt: skip


def namespaces() -> dict[str, Any]:
    """As W&B writes ``args.__dict__`` of nested namespaces: their repr."""
    root: dict[str, Any] = {}
    for key, value in SECTIONS.items():
        section, *inner, name = key.split(".")
        place = root.setdefault(section, SimpleNamespace())
        for part in inner:
            if not hasattr(place, part):
                setattr(place, part, SimpleNamespace())
            place = getattr(place, part)
        setattr(place, name, value)
    root["rollout"].stop = ["a, b)", "it's"]
    return {section: repr(place) for section, place in root.items()} | {"local_rank": -1}


@pytest.mark.parametrize("config", [FLAT, SECTIONS, namespaces()], ids=["flat", "sections", "wandb"])
def test_facts(config: dict[str, Any], split_of: Callable[..., Any]) -> None:
    assert FRAMEWORK.recognises([], config)
    assert {name: fact.value for name, fact in FRAMEWORK.facts(config, "c.yaml").items()} == KNOWN
    assert split_of(FRAMEWORK, config) == (128, 8, 1024)


@pytest.mark.parametrize(
    "change", [{"train.batch_size": 512}, {"train.max_epochs": 2}, {"train.async_enable": True}]
)
def test_off_policy(change: dict[str, Any]) -> None:
    assert FRAMEWORK.facts(SECTIONS | change, "")["on_policy"].value is False


def test_dynamic_filtering_is_said() -> None:
    found = FRAMEWORK.facts(SECTIONS | {"algo.dynamic_filtering_enable": True}, "c")["problems_per_batch"]
    assert found.value == 128
    assert "does not count" in found.origin


def test_unknown() -> None:
    assert FRAMEWORK.facts({}, "") == {}
    assert not FRAMEWORK.recognises(["train/loss", "loss"], {"train_batch_size": 8})


def test_hostile_namespaces() -> None:
    size = 100_000
    for text in (
        "namespace(a=" * size,
        "namespace(" + "a=(" * size,
        "namespace(a='" + "\\" * size,
        "namespace(,",
    ):
        began = time.process_time()
        FRAMEWORK.facts({"rollout": text, "x": "namespace(" + "a" * size}, "")
        assert time.process_time() - began < 10


@given(st.text(max_size=100))
def test_any_namespace(text: str) -> None:
    FRAMEWORK.facts({"rollout": f"namespace({text}"}, "")
