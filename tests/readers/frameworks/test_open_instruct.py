"""open-instruct's grpo_fast: names, steps beside episodes, and how far generation runs ahead."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isolaw.readers.frameworks.others import OPEN_INSTRUCT as FRAMEWORK
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.survey import survey

metric = FRAMEWORK.metric

TRAIN = {
    "epoch": 0.1, "lr": 1e-06, "objective/kl0_avg": 0.003, "objective/kl1_avg": 0.1, "objective/kl2_avg": 0.2,
    "loss/policy_avg": 0.01, "loss/kl_avg": 0.0, "policy/clipfrac_avg": 0.001, "policy/entropy_avg": 0.75,
    "val/ratio": 1.0, "val/sequence_lengths": 612.5, "val/sequence_lengths_min": 3.0, "val/stop_rate": 0.9,
    "val/num_total_tokens": 9000.0, "val/num_step_tokens": 4500.0, "val/advantages_mean": 0.0,
    "val/total_reward_groups": 32.0, "real_batch_size_ratio": 1.0, "unsolved_batch_size_ratio": 0.5,
    "objective/verifiable_correct_rate": 0.4, "time/total": 60.0, "learner_tokens_per_second_step": 9.0,
    "actor/mfu": 0.2, "batch/filtered_prompts": 3.0,
}  # fmt: skip
EVALUATION = {
    "eval/scores": 3.0, "eval/sequence_lengths": 500.0, "eval/sequence_lengths_max": 900.0,
    "eval/stop_rate": 0.95,
    "eval/objective/verifiable_correct_rate": 0.3, "eval/pass_at_1": 0.3, "eval/pass_at_1_unbiased": 0.3,
    "eval/pass_at_4_unbiased": 0.6, "eval/actor_tokens_per_second": 9.0, "eval/scores_gsm8k": 4.0,
}  # fmt: skip
STEPS = (1, 2)
TABLE = {
    ("train", "reward"): {1: 2.5, 2: 5.0},
    ("train", "kl"): dict.fromkeys(STEPS, 0.003),
    ("train", "loss/policy_avg"): dict.fromkeys(STEPS, 0.01),
    ("train", "loss/kl_avg"): dict.fromkeys(STEPS, 0.0),
    ("train", "policy/clipfrac_avg"): dict.fromkeys(STEPS, 0.001),
    ("train", "entropy"): dict.fromkeys(STEPS, 0.75),
    ("train", "val/ratio"): dict.fromkeys(STEPS, 1.0),
    ("train", "response_length"): dict.fromkeys(STEPS, 612.5),
    ("train", "val/stop_rate"): dict.fromkeys(STEPS, 0.9),
    ("train", "tokens"): dict.fromkeys(STEPS, 9000.0),
    ("train", "step_tokens"): dict.fromkeys(STEPS, 4500.0),
    ("train", "val/total_reward_groups"): dict.fromkeys(STEPS, 32.0),
    ("train", "real_batch_size_ratio"): dict.fromkeys(STEPS, 1.0),
    ("train", "unsolved_batch_size_ratio"): dict.fromkeys(STEPS, 0.5),
    ("train", "objective/verifiable_correct_rate"): dict.fromkeys(STEPS, 0.4),
    ("validation", "reward"): {2: 3.0},
    ("validation", "response_length"): {2: 500.0},
    ("validation", "stop_rate"): {2: 0.95},
    ("validation", "objective/verifiable_correct_rate"): {2: 0.3},
    ("validation", "pass@1"): {2: 0.3},
    ("validation", "best@4"): {2: 0.6},
    ("gsm8k", "reward"): {2: 4.0},
}


def train(step: int) -> dict[str, float]:
    return {
        **TRAIN,
        "scores": step * 2.5,
        "training_step": step,
        "episode": 512 * step,
        "global_step": 512 * step,
    }


def test_by_training_step(read_as: Callable[..., Any]) -> None:
    assert read_as(FRAMEWORK, [(1, train(1)), (2, train(2)), (2, EVALUATION)]) == TABLE


def test_by_episode(read_as: Callable[..., Any]) -> None:
    """Earlier versions gave trackers the episode; the step is among the values, joined to an evaluation's."""
    assert read_as(FRAMEWORK, [(512, train(1)), (1024, train(2) | EVALUATION)]) == TABLE


def test_names() -> None:
    assert metric("objective/kl_avg") == ("train", "kl")
    for key in ("episode", "training_step", "global_step", "lr", "time/total", "objective/kl3_avg", "epoch"):
        assert metric(key) is None


CONFIG = {
    "num_unique_prompts_rollout": 32, "num_samples_per_prompt_rollout": 16, "num_mini_batches": 1,
    "num_epochs": 1,
    "async_steps": 1, "learning_rate": 5e-07, "beta": 0.01, "seed": 1, "temperature": 1.0,
    "model_name_or_path": "allenai/Olmo-3-7B", "dataset_mixer_list": ["ai2/math", "1.0", "ai2/if", "0.5"],
}  # fmt: skip


def test_facts(split_of: Callable[..., Any]) -> None:
    assert FRAMEWORK.recognises([], CONFIG)
    assert split_of(FRAMEWORK, CONFIG) == (32, 16, 512)
    assert {name: fact.value for name, fact in FRAMEWORK.facts(CONFIG, "config.yaml").items()} == {
        "rollouts_per_problem": 16, "problems_per_batch": 32, "on_policy": False, "seed": 1,
        "lr": 5e-07, "kl": 0.01,
        "problem_set": "ai2/math+ai2/if", "temperature": 1.0, "model": "allenai/Olmo-3-7B",
    }  # fmt: skip
    assert FRAMEWORK.facts({}, "") == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"async_steps": 0}, True),
        ({"async_steps": 0, "num_mini_batches": 2}, False),
        ({"async_steps": 0, "num_epochs": 4}, False),
        ({"async_steps": None, "async_mode": True}, False),
        ({"async_steps": None, "async_mode": False}, True),
        ({"async_steps": None}, None),
    ],
)
def test_on_policy(change: dict[str, Any], expected: bool | None) -> None:
    fact = FRAMEWORK.facts(CONFIG | change, "").get("on_policy")
    assert (fact and fact.value) is expected


def test_filtering_is_said() -> None:
    found = FRAMEWORK.facts(CONFIG | {"active_sampling": True}, "")["problems_per_batch"]
    assert "does not count" in found.origin


def test_episodes_that_contradict_are_asked(tmp_path: Path) -> None:
    """``episode`` counts rollouts, of which a step has 64 here."""
    path = tmp_path / "run.jsonl"
    rows = (
        {"training_step": s, "episode": 64 * s, "scores": 0.5, "val/x": 1, "eval/y": 2} for s in range(1, 5)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (own,) = survey([path], HowToRead.of(set=["n=4"])).candidates
    assert (own.facts["problems_per_batch"].value, own.metrics["train"]["val/x"]) == (16, 4)
    (own,) = survey([path], HowToRead.of(set=["n=4", "B_p=8"])).candidates
    assert own.needs == ["n", "B_p"]
    assert "64 (episode, by step)" in own.message
