"""prime-rl's names in three generations, and its configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isolaw.readers.frameworks import find
from isolaw.readers.frameworks.prime_rl import FRAMEWORK
from isolaw.readers.read import read

metric = FRAMEWORK.metric

RL = {
    "max_steps": 100,
    "trainer.optim.lr": 3e-6,
    "orchestrator.optim.lr": 1e-4,
    "orchestrator.model.name": "Qwen/Qwen3-4B",
    "orchestrator.batch_size": 512,
    "orchestrator.group_size": 16,
    "orchestrator.max_off_policy_steps": 8,
    "orchestrator.train.sampling.temperature": 1.0,
    "orchestrator.train.env.0.name": "reverse-text",
    "orchestrator.algorithms.0.id": "grpo",
}


def values(config: dict[str, Any]) -> dict[str, Any]:
    return {name: fact.value for name, fact in FRAMEWORK.facts(config, "rl.toml").items()}


@pytest.mark.parametrize(
    ("key", "target"),
    [
        ("train/agg/effective/agent/reward/mean", ("train", "reward")),
        ("train/agg/effective/reward/mean", ("train", "reward")),
        ("train/agg/effective/agent/num_output_tokens/mean", ("train", "response_length")),
        ("train/agg/all/agent/is_truncated/mean", ("train", "truncated_fraction")),
        ("train/agg/all/agent/reward/mean", None),
        ("train/agg/effective/agent/timing/agent/model/mean", None),
        ("train/reverse-text/effective/agent/reward/mean", None),
        ("reward/all/mean", ("train", "reward")),
        ("reward/mean", ("train", "reward")),
        ("reward/all/max", None),
        ("entropy/all/mean", ("train", "entropy")),
        ("entropy/all/std", None),
        ("mismatch_kl/all/mean", ("train", "mismatch_kl")),
        ("optim/grad_norm", ("train", "grad_norm")),
        ("optim/lr", None),
        ("is_truncated/all/mean", ("train", "truncated_fraction")),
        ("decode_len/all/mean", ("train", "response_length")),
        ("progress/total_tokens", ("train", "tokens")),
        ("progress/rollouts", ("train", "step_rollouts")),
        ("progress/problems", None),
        ("time/step", None),
        ("loss/mean", ("train", "loss/mean")),
        ("eval/aime24/effective/agent/avg@16", ("aime24", "avg@16")),
        ("eval/aime24/effective/agent/pass@8", ("aime24", "best@8")),
        ("eval/aime24/all/agent/avg@16", None),
        ("eval/math500/avg@1", ("math500", "avg@1")),
        ("eval/math500/pass@4", ("math500", "best@4")),
        ("eval/math500/policy_version", None),
        ("eval//avg@1", None),
        ("step", None),
        ("", None),
    ],
)
def test_metric(key: str, target: tuple[str, str] | None) -> None:
    assert metric(key) == target


@pytest.mark.parametrize(
    ("keys", "config", "own"),
    [
        (["train/agg/effective/agent/reward/mean"], {}, True),
        (["eval/aime24/effective/agent/avg@16"], {}, True),
        (["reward/all/mean"], {}, True),
        (["mismatch_kl/mean"], {}, True),
        (["progress/total_problems"], {}, True),
        ([], RL, True),
        (["reward/mean", "loss/mean", "step"], {}, False),
        ([], {"group_size": 8, "batch_size": 64}, False),
    ],
)
def test_recognises(keys: list[str], config: dict[str, Any], own: bool) -> None:
    assert (find(keys, config) is FRAMEWORK) == own


def test_facts() -> None:
    assert values(RL) == {
        "rollouts_per_problem": 16,
        "rollouts_per_step": 512,
        "on_policy": False,
        "algorithm": "grpo",
        "problem_set": "reverse-text",
        "lr": 3e-6,
        "temperature": 1.0,
        "model": "Qwen/Qwen3-4B",
    }
    assert (
        FRAMEWORK.facts(RL, "rl.toml")["on_policy"].origin
        == "orchestrator.max_off_policy_steps in rl.toml = 8"
    )


def test_the_orchestrators_own_file_and_older_names() -> None:
    older = {"batch_size": 128, "rollouts_per_example": 8, "environment.id": "x", "seed": 42}
    assert values(older) == {
        "rollouts_per_problem": 8,
        "rollouts_per_step": 128,
        "on_policy": False,
        "seed": 42,
    }


@pytest.mark.parametrize(
    ("changes", "on_policy"),
    [
        ({}, False),
        ({"orchestrator.max_off_policy_steps": 0}, True),
        ({"max_async_level": 0}, True),  # it then waits for the policy, whatever the other says
        ({"max_async_level": 1}, False),
        ({"orchestrator.max_off_policy_steps": None}, False),
    ],
)
def test_on_policy(changes: dict[str, Any], on_policy: bool) -> None:
    assert values({**RL, **changes})["on_policy"] is on_policy


@pytest.mark.parametrize(("sizes", "n"), [((8, 8), 8), ((8, 16), None), ((), 16)])
def test_environments_may_have_a_group_size_of_their_own(sizes: tuple[int, ...], n: int | None) -> None:
    own = {f"orchestrator.train.env.{i}.group_size": size for i, size in enumerate(sizes)}
    assert values({**RL, **own}).get("rollouts_per_problem") == n


def test_what_filters_discard_is_said() -> None:
    assert "filters discard" in FRAMEWORK.facts(RL, "rl.toml")["rollouts_per_step"].origin


def test_a_whole_run(tmp_path: Path) -> None:
    """Trainer's and orchestrator's lines in one file, which lies two folders inside the run's."""
    resolved = tmp_path / "run/configs/latest/resolved"
    resolved.mkdir(parents=True)
    (resolved / "rl.json").write_text(
        json.dumps({"orchestrator": {"batch_size": 64, "group_size": 8, "train": {"env": [{"name": "e"}]}}})
    )
    log = tmp_path / "run/monitors/file/metrics.jsonl"
    log.parent.mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    for step in range(1, 5):
        rows.append({"step": step, "time": 1.75e9 + step, "train/agg/effective/agent/reward/mean": step / 8})
        rows.append({"step": step, "time": 1.75e9 + step + 0.5, "optim/grad_norm": 0.5, "optim/lr": 1e-6})
        rows.append({"step": None, "time": 1.75e9 + step, "inference/agg/running_requests": 3})
    rows.append({"step": 4, "time": 1.75e9 + 9, "eval/aime24/effective/agent/avg@4": 0.25})
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = read(log).to_pandas()
    assert set(table["rollouts_per_problem"]) == {8}
    assert set(table["problems_per_batch"]) == {8}
    rewards = table[table["metric"] == "reward"]
    assert list(rewards["value"]) == [0.125, 0.25, 0.375, 0.5]
    assert list(rewards["compute"]) == [64, 128, 192, 256]
    assert list(table[table["eval_set"] == "aime24"]["metric"]) == ["avg@4"]
