"""ROLL, as version 0.3 logs (`roll/pipeline/rlvr/rlvr_pipeline.py`, `roll/pipeline/agentic`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isolaw.readers.frameworks.others import ROLL as FRAMEWORK

RECORDS = [
    (0, {"val_correct/all/mean": 0.125, "val_correct/math/mean": 0.25, "critic/score/mean": 0.3,
         "tokens/response_length/mean": 99.0, "time/step_total": 5.0, "critic/score/max": 1.0}),
    (1, {"critic/score/mean": 0.4, "tokens/response_length/mean": 98.0}),
    (2, {"val_correct/all/mean": 0.5, "critic/score/mean": 0.6, "tokens/response_length/mean": 97.0}),
]  # fmt: skip


def test_an_evaluation_is_of_the_policy_before_the_steps_batch(read_as: Callable[..., Any]) -> None:
    table = read_as(FRAMEWORK, RECORDS)
    assert table[("train", "reward")] == {1: 0.3, 2: 0.4, 3: 0.6}
    assert table[("validation", "accuracy")] == {0: 0.125, 2: 0.5}
    assert table[("math", "accuracy")] == {0: 0.25}
    assert len(table) == 4


def test_a_batch_counts_prompts_or_trajectories(split_of: Callable[..., Any]) -> None:
    prompts = {"rollout_batch_size": 64, "num_return_sequences_in_group": 8}
    assert split_of(FRAMEWORK, prompts) == (64, 8, 512)
    trajectories = {"rollout_batch_size": 64, "train_env_manager.group_size": 8}
    assert split_of(FRAMEWORK, trajectories) == (8, 8, 64)
