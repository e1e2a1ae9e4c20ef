"""slime: three counts of steps from 0, names, and what its arguments say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isolaw.readers.frameworks.slime import FRAMEWORK

metric = FRAMEWORK.metric

ROLLOUT = {"rollout/rewards": 0.0, "rollout/response_lengths": 612.5, "rollout/total_lengths": 700.0,
           "rollout/truncated": 0.0625, "rollout/log_probs": -0.4, "rollout/ref_log_probs": -0.41,
           "rollout/advantages": 0.0}  # fmt: skip
PERF = {"rollout/repetition_frac": 0.0, "rollout/zero_std/count_0": 3, "perf/rollout_time": 60.0,
        "rollout/response_len/max": 900.0}  # fmt: skip
TRAIN = {"train/loss": 0.01, "train/pg_loss": 0.02, "train/entropy_loss": 0.75, "train/pg_clipfrac": 0.001,
         "train/ppo_kl": 1e-05, "train/kl_loss": 0.003, "train/grad_norm": 0.5,
         "train/lr-pg_0": 1e-06}  # fmt: skip
UPDATES = (1, 2, 3)
TABLE = {
    ("train", "reward"): {1: 0.25, 2: 0.5, 3: 0.75},
    ("train", "response_length"): dict.fromkeys(UPDATES, 612.5),
    ("train", "truncated_fraction"): dict.fromkeys(UPDATES, 0.0625),
    ("train", "rollout/log_probs"): dict.fromkeys(UPDATES, -0.4),
    ("train", "rollout/ref_log_probs"): dict.fromkeys(UPDATES, -0.41),
    ("train", "rollout/repetition_frac"): dict.fromkeys(UPDATES, 0.0),
    ("train", "rollout/zero_std/count_0"): dict.fromkeys(UPDATES, 3.0),
    ("train", "best@4"): dict.fromkeys(UPDATES, 0.9),
    ("train", "train/loss"): dict.fromkeys(UPDATES, 0.01),
    ("train", "train/pg_loss"): dict.fromkeys(UPDATES, 0.02),
    ("train", "entropy"): dict.fromkeys(UPDATES, 0.75),
    ("train", "train/pg_clipfrac"): dict.fromkeys(UPDATES, 0.001),
    ("train", "train/ppo_kl"): dict.fromkeys(UPDATES, 1e-05),
    ("train", "kl"): dict.fromkeys(UPDATES, 0.003),
    ("train", "grad_norm"): dict.fromkeys(UPDATES, 0.5),
    ("aime-2024", "reward"): {0: 0.125, 2: 0.375},  # before training, and after the second update
    ("aime-2024", "best@8"): {0: 0.25, 2: 0.5},
    ("aime-2024", "pass@1"): {0: 0.125, 2: 0.375},
    ("aime-2024", "truncated_fraction"): {0: 0.5, 2: 0.25},
    ("aime-2024", "response_length"): {0: 700.0, 2: 650.0},
}


def evaluation(score: float, best: float, cut: float, length: float) -> dict[str, float]:
    return {"eval/aime-2024": score, "eval/aime-2024-pass@1": score, "eval/aime-2024-pass@8": best,
            "eval/aime-2024-truncated_ratio": cut, "eval/aime-2024/response_len/mean": length,
            "eval/aime-2024/response_len/max": 999.0}  # fmt: skip


def records(keyed: bool) -> list[tuple[float, dict[str, float]]]:
    """A console numbers each dictionary; W&B counts calls, and each has its own step among the values."""
    out: list[tuple[float, dict[str, float]]] = []

    def add(kind: str, step: int, values: dict[str, float]) -> None:
        out.append((len(out), {**values, f"{kind}/step": step}) if keyed else (step, values))

    add("eval", 0, evaluation(0.125, 0.25, 0.5, 700.0))
    for step in range(3):
        add("rollout", step, PERF)
        add("rollout", step, {**ROLLOUT, "rollout/raw_reward": (step + 1) / 4})
        add("rollout", step, {"passrate/pass@4": 0.9})
        add("train", step, TRAIN)
        if step == 1:
            add("eval", step, evaluation(0.375, 0.5, 0.25, 650.0))
    return out


@pytest.mark.parametrize("keyed", [False, True], ids=["console", "wandb"])
def test_known_table(read_as: Callable[..., Any], keyed: bool) -> None:
    assert read_as(FRAMEWORK, records(keyed)) == TABLE


def test_names() -> None:
    assert metric("rollout/response_len/mean") == ("train", "response_length")
    assert metric("eval/aime-pass_at_8") == ("aime", "best@8")  # as MLflow allows
    for key in ("eval/step", "eval/", "train/step", "rollout/step", "perf/x", "multi_turn/x", "", "loss"):
        assert metric(key) is None


CONFIG = {
    "rollout_batch_size": 32, "n_samples_per_prompt": 8, "global_batch_size": 256,
    "num_steps_per_rollout": None,
    "colocate": True, "hf_checkpoint": "/models/Qwen3-4B", "lr": 1e-06, "use_kl_loss": True,
    "kl_loss_coef": 0.001,
    "kl_coef": 0.0, "entropy_coef": 0.0, "rollout_seed": 42, "seed": 1234, "advantage_estimator": "grpo",
    "prompt_data": "/data/dapo-math-17k.jsonl", "rollout_temperature": 0.8,
    "wandb_always_use_train_step": False,
    "dynamic_sampling_filter_path": None,
}  # fmt: skip


def test_facts(split_of: Callable[..., Any]) -> None:
    assert FRAMEWORK.recognises([], CONFIG)
    assert split_of(FRAMEWORK, CONFIG) == (32, 8, 256)
    assert {name: fact.value for name, fact in FRAMEWORK.facts(CONFIG, "config.yaml").items()} == {
        "rollouts_per_problem": 8, "problems_per_batch": 32, "on_policy": True, "seed": 42,
        "algorithm": "grpo",
        "problem_set": "/data/dapo-math-17k.jsonl", "lr": 1e-06, "kl": 0.001, "entropy": 0.0,
        "temperature": 0.8,
        "model": "/models/Qwen3-4B",
    }  # fmt: skip
    dashed = {key.replace("_", "-"): value for key, value in CONFIG.items()}
    assert FRAMEWORK.recognises([], dashed)
    assert split_of(FRAMEWORK, dashed) == (32, 8, 256)
    assert FRAMEWORK.facts({}, "") == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"global_batch_size": 64}, False),
        ({"num_steps_per_rollout": 4}, False),
        ({"num_steps_per_rollout": 1, "global_batch_size": None}, True),
        ({"colocate": False}, None),  # may have been train_async.py
        ({"global_batch_size": None}, None),
    ],
)
def test_on_policy(change: dict[str, Any], expected: bool | None) -> None:
    fact = FRAMEWORK.facts(CONFIG | change, "").get("on_policy")
    assert (fact and fact.value) is expected


def test_steps_that_are_optimiser_steps(split_of: Callable[..., Any]) -> None:
    config = CONFIG | {"wandb_always_use_train_step": True, "global_batch_size": 64}
    assert split_of(FRAMEWORK, config) == (8, 8, 64)


def test_dynamic_sampling_is_said() -> None:
    found = FRAMEWORK.facts(CONFIG | {"dynamic_sampling_filter_path": "a.b"}, "")["problems_per_batch"]
    assert "does not count" in found.origin
