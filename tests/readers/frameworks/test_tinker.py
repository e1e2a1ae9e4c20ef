"""tinker-cookbook: names, steps, B_p and n.

As `rl/train.py` and `utils/ml_log.py` of github.com/thinking-machines-lab/tinker-cookbook write them;
``logs/`` of github.com/sushantmehta-code/tinker-cookbook is a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import isolaw
from isolaw.readers.frameworks.others import TINKER_COOKBOOK as FRAMEWORK

METRICS = {
    "env/all/ac_tokens_per_turn": 210.5, "env/all/ob_tokens_per_turn": 90.0, "env/all/total_episodes": 256,
    "env/all/turns_per_episode": 1.0, "env/all/total_turns": 256, "env/all/total_ac_tokens": 53888,
    "env/all/by_group/frac_mixed": 0.5, "env/all/format": 0.75, "env/gsm8k/correct": 0.5,
    "optim/lr": 4e-05, "optim/entropy": 0.25, "optim/kl_sample_train_v1": 0.001,
    "optim/kl_sample_train_v2": 0.002, "progress/done_frac": 0.1, "time/total": 30.5,
}  # fmt: skip
TEST = {"test/env/all/correct": 0.25, "test/env/all/reward/total": 0.2, "test/env/all/total_episodes": 500}
CONFIG: dict[str, Any] = {
    "learning_rate": 4e-05,
    "dataset_builder": {"batch_size": 32, "group_size": 8, "model_name_for_tokenizer": "m", "seed": 3},
    "model_name": "meta-llama/Llama-3.1-8B-Instruct",
    "async_config": None,
    "num_substeps": 1,
    "kl_penalty_coef": 0.0,
    "temperature": 1.0,
    "loss_fn": "importance_sampling",
    "evaluator_builders": [],
}


def write(folder: Path, config: dict[str, Any] = CONFIG) -> Path:
    """As `JsonLogger` does: the metrics a line each, the configuration over several lines."""
    folder.mkdir()
    records = []
    for step in range(4):
        record = {"step": step, "progress/batch": step, **METRICS, "env/all/reward/total": step / 8}
        records.append(record | {"env/all/correct": step / 4} | (TEST if step % 2 == 0 else {}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(item) + "\n" for item in records))
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def curve(runs: isolaw.Runs, eval_set: str, metric: str) -> dict[int, float]:
    points = runs.points[(runs.points["eval_set"] == eval_set) & (runs.points["metric"] == metric)]
    return dict(zip(points["compute"], points["value"], strict=True))


def test_a_folder_is_a_run(tmp_path: Path) -> None:
    runs = isolaw.read(write(tmp_path / "math-n8"))
    batch = 32 * 8
    assert curve(runs, "train", "reward") == {(step + 1) * batch: step / 8 for step in range(4)}
    assert curve(runs, "train", "accuracy") == {(step + 1) * batch: step / 4 for step in range(4)}
    # An evaluation runs before the batch of its record.
    assert curve(runs, "validation", "accuracy") == {0: 0.25, 2 * batch: 0.25}
    assert curve(runs, "validation", "reward") == {0: 0.2, 2 * batch: 0.2}
    assert set(runs.points["metric"]) == {
        "reward", "accuracy", "response_length", "entropy", "kl_sample_train", "by_group/frac_mixed",
        "format",
    }  # fmt: skip
    row = runs.points.iloc[0]
    assert (row["problems_per_batch"], row["rollouts_per_problem"], row["seed"]) == (32, 8, 3)
    (attributes,) = runs.attributes.values()
    assert attributes["on_policy"] is True
    assert attributes["lr"] == 4e-05


def test_a_part_of_the_test_set_is_an_evaluation_set(tmp_path: Path) -> None:
    folder = write(tmp_path / "n8")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 4, "progress/batch": 4, "test/env/math500/correct": 0.75}) + "\n")
    runs = isolaw.read(folder)
    assert curve(runs, "math500", "accuracy") == {4 * 32 * 8: 0.75}
    assert "gsm8k" not in set(runs.points["eval_set"])  # a part of the training batch


@pytest.mark.parametrize(
    ("change", "on_policy"),
    [
        ({"num_substeps": 2}, False),
        ({"async_config": {"max_steps_off_policy": 1, "groups_per_batch": 32}}, False),
    ],
)
def test_on_policy(change: dict[str, Any], on_policy: bool, tmp_path: Path) -> None:
    runs = isolaw.read(write(tmp_path / "run", {**CONFIG, **change}))
    assert next(iter(runs.attributes.values()))["on_policy"] is on_policy


@pytest.mark.parametrize(
    "config",
    [
        {"groups_per_batch": 64, "group_size": 16},
        {"dataset_builder.groups_per_batch": 64, "dataset_builder.group_size": 16},
        {"dataset_builder.batch_size": 64, "dataset_builder.group_size": 16},
    ],
)
def test_the_batch(config: dict[str, Any], split_of: Callable[..., Any]) -> None:
    assert split_of(FRAMEWORK, config) == (64, 16, 1024)


def test_evaluations_of_an_asynchronous_run(read_as: Callable[..., Any]) -> None:
    """They have a record of their own, at the updates made."""
    records = [
        (0, {"env/all/reward/total": 0.5}),
        (1, TEST),
        (1, {"env/all/reward/total": 0.75}),
        (2, {"aime/env/all/correct": 0.5}),
    ]
    table = read_as(FRAMEWORK, records)
    assert table["train", "reward"] == {1: 0.5, 2: 0.75}
    assert table["validation", "accuracy"] == {1: 0.25}
    assert table["aime", "accuracy"] == {2: 0.5}
