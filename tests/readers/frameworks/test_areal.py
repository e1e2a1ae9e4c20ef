"""AReaL, as areal 1.0.4 logs (`areal/utils/stats_logger.py`, `examples/math/gsm8k_grpo.yaml`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isolaw.readers.frameworks.others import AREAL as FRAMEWORK

RECORDS = [
    (0, {"ppo_actor/task_reward/avg": 0.25, "ppo_actor/n_seqs": 64.0, "eval-rollout/reward": 0.5,
         "ppo_actor/seq_len/avg": 300.0, "ppo_actor/update/grad_norm": 0.1, "timeperf/rollout": 9.0}),
    (1, {"ppo_actor/task_reward/avg": 0.5, "ppo_actor/n_seqs": 64.0, "ppo_actor/task_reward/max": 1.0}),
]  # fmt: skip
CONFIG = {
    "gconfig.n_samples": 4, "train_dataset.batch_size": 16, "actor.optimizer.lr": 1.7e-5, "seed": 1,
    "rollout.max_head_offpolicyness": 2, "actor.ppo_n_minibatches": 1, "actor.path": "m",
}  # fmt: skip


def test_metrics(read_as: Callable[..., Any], split_of: Callable[..., Any]) -> None:
    table = read_as(FRAMEWORK, RECORDS)
    assert table[("train", "reward")] == {1: 0.25, 2: 0.5}
    assert table[("validation", "reward")] == {1: 0.5}
    assert set(table) == {
        ("train", "reward"), ("validation", "reward"), ("train", "response_length"), ("train", "grad_norm")
    }  # fmt: skip
    assert split_of(FRAMEWORK, CONFIG) == (16, 4, 64)


def test_it_generates_while_it_trains() -> None:
    assert FRAMEWORK.facts(CONFIG, "config.yaml")["on_policy"].value is False
    alone = CONFIG | {"rollout.max_head_offpolicyness": 0}
    assert FRAMEWORK.facts(alone, "config.yaml")["on_policy"].value is True


@pytest.mark.parametrize("setting", ["actor.dynamic_sampling", "dynamic_bs"])  # before 0.5.2, and since
def test_omitted_groups_are_noted(setting: str) -> None:
    found = FRAMEWORK.facts(CONFIG | {setting: True}, "config.yaml")["problems_per_batch"]
    assert (found.value, "omits groups" in found.origin) == (16, True)
    assert "omits" not in FRAMEWORK.facts(CONFIG | {setting: False}, "c")["problems_per_batch"].origin
