"""veRL's names and EasyR1's: metrics, facts, and whole runs read from their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isolaw.errors import InputError
from isolaw.readers.frameworks import find
from isolaw.readers.frameworks.verl import FRAMEWORK
from isolaw.readers.frameworks.verl import _metric as metric
from isolaw.readers.read import read

REAL = Path(__file__).parents[4] / "shared/data/logs/verl_console/logic-rl-output.log"

VERL = {
    "data.train_batch_size": 512,
    "data.train_files": "/data/gsm8k/train.parquet",
    "actor_rollout_ref.rollout.n": 8,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 512,
    "actor_rollout_ref.actor.ppo_epochs": 1,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B",
    "algorithm.adv_estimator": "grpo",
    "algorithm.use_kl_in_reward": False,
}
EASYR1 = {
    "data.rollout_batch_size": 512,
    "data.train_files": "hiyouga/math12k@train",
    "data.seed": 1,
    "worker.rollout.n": 5,
    "worker.actor.global_batch_size": 128,
    "worker.actor.optim.lr": 1e-6,
    "worker.actor.model.model_path": "Qwen/Qwen2.5-7B-Instruct",
    "algorithm.adv_estimator": "grpo",
    "algorithm.disable_kl": False,
    "algorithm.kl_coef": 0.01,
}


def values(config: dict[str, Any]) -> dict[str, Any]:
    return {name: fact.value for name, fact in FRAMEWORK.facts(config, "config.yaml").items()}


# Names


@pytest.mark.parametrize(
    ("key", "target"),
    [
        ("val-core/openai/gsm8k/acc/mean@1", ("openai/gsm8k", "avg@1")),
        ("val-core/HuggingFaceH4/aime_2024/acc/mean@32", ("HuggingFaceH4/aime_2024", "avg@32")),
        ("val-core/math_dapo/acc/best@32/mean", ("math_dapo", "best@32")),
        ("val-aux/math_dapo/acc/worst@2/mean", ("math_dapo", "worst@2")),
        ("val-core/math_dapo/acc/maj@32/mean", ("math_dapo", "maj@32")),
        ("val-core/math_dapo/acc/mean_at_32", ("math_dapo", "avg@32")),  # through MLflow
        ("val-aux/math_dapo/acc/best_at_4/mean", ("math_dapo", "best@4")),
        ("val-core/kk_logic/reward/mean@1", ("kk_logic", "reward@1")),
        ("val-aux/kk_logic/reward/best@4/mean", ("kk_logic", "reward_best@4")),
        ("val-aux/kk_logic/format/mean@4", ("kk_logic", "format@4")),
        ("val-aux/a/acc/std@32", None),
        ("val-aux/a/acc/best@4/std", None),
        ("val-aux/a/acc/mean@4/mean", None),
        ("val-aux/a/acc/best@4", None),
        ("val-aux/num_turns/mean", None),
        ("val-core/acc/mean@1", None),
        ("val/test_score/logic_assignment", ("logic_assignment", "test_score")),
        ("val/test_score/openai/gsm8k", ("openai/gsm8k", "test_score")),
        ("val/reward_score", ("validation", "reward_score")),
        ("val/accuracy_reward", ("validation", "accuracy_reward")),
        ("val_response_length/mean", None),
        ("critic/score/mean", ("train", "reward")),
        ("critic/rewards/mean", ("train", "reward_with_kl")),
        ("critic/score/max", None),
        ("reward/overall", ("train", "reward/overall")),
        ("actor/entropy", ("train", "entropy")),
        ("actor/entropy_loss", ("train", "entropy")),
        ("actor/kl_loss", ("train", "kl")),
        ("actor/ppo_kl", ("train", "ppo_kl")),
        ("actor/grad_norm", ("train", "grad_norm")),
        ("actor/pg_clipfrac", ("train", "actor/pg_clipfrac")),
        ("actor/lr", None),
        ("response_length/mean", ("train", "response_length")),
        ("response_length/clip_ratio", ("train", "truncated_fraction")),
        ("prompt_length/mean", None),
        ("perf/total_num_tokens", ("train", "step_tokens")),
        ("perf/mfu/actor", None),
        ("mfu/actor", None),
        ("timing_s/gen", None),
        ("timing_per_token_ms/gen", None),
        ("global_seqlen/min", None),
        ("training/global_step", None),
        ("training/epoch", None),
        ("train/num_gen_batches", ("train", "num_gen_batches")),
        ("_runtime", None),
        ("", None),
        ("/", None),
        ("val/", None),
    ],
)
def test_metric(key: str, target: tuple[str, str] | None) -> None:
    assert metric(key) == target


@pytest.mark.parametrize(
    ("keys", "config", "name"),
    [
        (["critic/score/mean"], {}, "veRL"),
        (["val-core/a/acc/mean@1"], {}, "veRL"),
        (["val/test_score/a"], {}, "veRL"),
        ([], VERL, "veRL"),
        ([], EASYR1, "EasyR1"),
        (["critic/score/mean"], EASYR1, "EasyR1"),
        ([], {"actor_rollout_ref/rollout/n": "8"}, "veRL"),
        (["loss", "reward", "step", "train/reward"], {}, ""),
        (["a/b"], {"n": 8, "data.seed": 1}, ""),
    ],
)
def test_recognises(keys: list[str], config: dict[str, Any], name: str) -> None:
    assert getattr(find(keys, config), "name", "") == name


# Facts


def test_facts_of_verl() -> None:
    assert values(VERL) == {
        "rollouts_per_problem": 8,
        "problems_per_batch": 512,
        "on_policy": True,
        "algorithm": "grpo",
        "problem_set": "gsm8k",
        "lr": 1e-6,
        "kl": 0.001,
        "entropy": 0,
        "temperature": 1.0,
        "model": "Qwen/Qwen2.5-7B",
    }
    found = FRAMEWORK.facts(VERL, "config.yaml")
    assert found["rollouts_per_problem"].origin == "actor_rollout_ref.rollout.n in config.yaml"
    assert "ppo_mini_batch_size" in found["on_policy"].origin


@pytest.mark.parametrize(
    "other", [{"actor_rollout_ref.rollout.n_agent": 5}, {"env.rollout.n": "5"}, {"agent_grpo.n": 5}]
)
def test_descendants_have_their_group_size_elsewhere(other: dict[str, Any]) -> None:
    single = {**VERL, "actor_rollout_ref.rollout.n": 1}
    assert values({**single, **other})["rollouts_per_problem"] == 5
    assert values(single)["rollouts_per_problem"] == 1
    assert values({**VERL, **other})["rollouts_per_problem"] == values(VERL)["rollouts_per_problem"]


def test_ragens_problems_are_groups_of_environments() -> None:
    """As `config/base.yaml` of RAGEN has them."""
    ragen = {**VERL, "actor_rollout_ref.rollout.n": 1, "data.train_batch_size": None, "seed.train": 10_000}
    ragen |= {"es_manager.train.env_groups": 8, "es_manager.train.group_size": 16, "data.seed": None}
    found = values(ragen)
    assert [found[name] for name in ("problems_per_batch", "rollouts_per_problem", "seed")] == [8, 16, 10_000]
    assert "on_policy" not in found


def test_facts_of_easyr1() -> None:
    assert values(EASYR1) == {
        "rollouts_per_problem": 5,
        "problems_per_batch": 512,
        "on_policy": False,  # four updates a batch
        "seed": 1,
        "algorithm": "grpo",
        "problem_set": "hiyouga/math12k",
        "lr": 1e-6,
        "kl": 0.01,
        "model": "Qwen/Qwen2.5-7B-Instruct",
    }
    assert values({**EASYR1, "worker.actor.global_batch_size": 512})["on_policy"] is True
    assert values({**EASYR1, "algorithm.disable_kl": True})["kl"] == 0


def test_facts_through_mlflow() -> None:
    """Slashes for dots, and texts for numbers."""
    config = {key.replace(".", "/"): str(value) for key, value in VERL.items()}
    config |= {"data/train_files/0": "/data/gsm8k/train.parquet", "data/train_files/list_len": "1"}
    del config["data/train_files"]
    assert values(config) == values(VERL)


@pytest.mark.parametrize(
    ("changes", "on_policy"),
    [
        ({"actor_rollout_ref.actor.ppo_mini_batch_size": 128}, False),
        ({"actor_rollout_ref.actor.ppo_epochs": 2}, False),
        ({"actor_rollout_ref.hybrid_engine": False}, False),
        ({"actor_rollout_ref.hybrid_engine": True}, True),
        ({"async_training.staleness_threshold": 0.5}, False),
        ({"actor_rollout_ref.rollout.mode": "async"}, True),  # how requests are served, not when
        ({"actor_rollout_ref.actor.ppo_epochs": None}, True),
        ({"actor_rollout_ref.actor.ppo_mini_batch_size": None}, None),
        ({"data.train_batch_size": None}, None),
    ],
)
def test_on_policy(changes: dict[str, Any], on_policy: bool | None) -> None:
    assert values({**VERL, **changes}).get("on_policy") == on_policy


@pytest.mark.parametrize(
    ("changes", "kl"),
    [
        ({"actor_rollout_ref.actor.use_kl_loss": False}, 0),
        ({"actor_rollout_ref.actor.use_kl_loss": False, "algorithm.use_kl_in_reward": True}, 0.005),
        ({"actor_rollout_ref.actor.use_kl_loss": False, "algorithm.use_kl_in_reward": None}, 0),
    ],
)
def test_kl(changes: dict[str, Any], kl: float) -> None:
    assert values({**VERL, "algorithm.kl_ctrl.kl_coef": 0.005, **changes})["kl"] == kl


def test_kl_of_the_older_versions() -> None:
    """KL in the reward could not be switched off, but for the loss."""
    older = {k: v for k, v in VERL.items() if "kl" not in k} | {"algorithm.kl_ctrl.kl_coef": 0.005}
    assert values(older)["kl"] == 0.005


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["/data/gsm8k/train.parquet", "/data/math/train.parquet"], "gsm8k+math"),
        ("['/data/gsm8k/train.parquet', '/data/math/train.parquet']", "gsm8k+math"),
        ("~/dapo-math-17k.parquet", "dapo-math-17k"),
        ("train.parquet", "train"),
        ([], None),
        ([1], None),
        (None, None),
    ],
)
def test_problem_set(files: Any, name: str | None) -> None:
    assert values({**VERL, "data.train_files": files}).get("problem_set") == name


def test_dynamic_sampling_is_said() -> None:
    found = FRAMEWORK.facts(
        {**VERL, "algorithm.filter_groups.enable": True, "data.gen_batch_size": 1536}, "c"
    )
    assert found["problems_per_batch"].value == 1536
    assert "num_gen_batches" in found["problems_per_batch"].origin
    assert "trains on 512" in found["problems_per_batch"].origin
    assert found["on_policy"].value is True


def test_fully_asynchronous_training_has_no_batch() -> None:
    """`fully_async_policy` requires train_batch_size = 0 and gen_batch_size = 1."""
    config = VERL | {
        "data.train_batch_size": 0,
        "data.gen_batch_size": 1,
        "async_training.require_batches": 4,
    }
    hint = FRAMEWORK.facts(config, "")["problems_per_batch"]
    assert hint.value is None
    assert (
        hint.origin
        == "B_p = actor_rollout_ref.actor.ppo_mini_batch_size (512) · async_training.require_batches (4)"
    )


def test_without_a_filter_the_data_loader_has_the_size_of_the_batch() -> None:
    """`verl/trainer/ppo/ray_trainer.py` and DAPO's recipe train on all prompts of the data loader."""
    found = FRAMEWORK.facts(
        VERL | {"data.gen_batch_size": 1024, "algorithm.filter_groups.enable": False}, "c"
    )
    assert found["problems_per_batch"].value == 1024
    assert (
        "before 0.4 ignores this setting and uses data.train_batch_size" in found["problems_per_batch"].origin
    )
    assert found["on_policy"].value is False
    assert "512 prompts per update" in found["on_policy"].origin
    assert values(VERL | {"data.gen_batch_size": 512}) == values(VERL)


@pytest.mark.parametrize(
    ("base", "changes", "batch", "caveat", "on_policy"),
    [
        (VERL, {"algorithm.filter_groups.enable": True}, 512, "trains on 512", True),
        (
            VERL,
            {"algorithm.filter_groups.enable": True, "data.gen_batch_size": 200},
            600,
            "3 · data.gen_",
            True,
        ),
        (EASYR1, {"algorithm.online_filtering": True}, 512, "trains on 512", False),
        (
            EASYR1,
            {"algorithm.online_filtering": True, "data.mini_rollout_batch_size": 256},
            512,
            "2 · ",
            False,
        ),
        (EASYR1, {"algorithm.online_filtering": True, "data.mini_rollout_batch_size": 768}, 768, "", False),
        (VERL, {"data.filter_accuracy": True, "data.oversample_factor": 4.0}, 2048, "trains on 512", True),
        (VERL, {"data.oversample_factor": 4.0}, 2048, "trains on 512", True),
        (
            VERL,
            {"trainer.rejection_sample": True, "trainer.rejection_sample_multiplier": 2},
            1024,
            "some",
            None,
        ),
        (VERL, {"rllm.rejection_sample.enable": True, "data.gen_batch_size": 1024}, 1024, "some", None),
    ],
)
def test_discarded_prompts_are_noted(
    base: dict[str, Any], changes: dict[str, Any], batch: int, caveat: str, on_policy: bool | None
) -> None:
    found = FRAMEWORK.facts({**base, **changes}, "c")
    assert found["problems_per_batch"].value == batch
    assert caveat in found["problems_per_batch"].origin
    assert "C counts only this number" in found["problems_per_batch"].origin
    assert values({**base, **changes}).get("on_policy") is on_policy


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (EASYR1, {"data.mini_rollout_batch_size": 256, "algorithm.online_filtering": False}),
        (VERL, {"trainer.rejection_sample": False, "trainer.rejection_sample_multiplier": 2}),
        (VERL, {"data.oversample_factor": 1.0, "data.filter_accuracy": False}),
        (VERL, {"data.oversample_factor": 1e308}),
    ],
)
def test_nothing_is_discarded(base: dict[str, Any], changes: dict[str, Any]) -> None:
    assert FRAMEWORK.facts({**base, **changes}, "c") == FRAMEWORK.facts(base, "c")


@pytest.mark.parametrize("value", [None, "", "many", -1, 0, 1.5, True, [8], 10**400, float("nan")])
def test_what_is_no_count_is_no_fact(value: Any) -> None:
    found = values({**VERL, "actor_rollout_ref.rollout.n": value, "data.train_batch_size": value})
    assert "rollouts_per_problem" not in found
    assert "problems_per_batch" not in found


# Whole runs


def test_a_directory_of_runs(tmp_path: Path) -> None:
    """The file logger's JSONL beside Hydra's configuration, one run a directory."""
    for n in (4, 8):
        folder = tmp_path / f"n{n}"
        (folder / ".hydra").mkdir(parents=True)
        (folder / ".hydra/config.yaml").write_text(
            f"data: {{train_batch_size: 16, train_files: /d/gsm8k/train.parquet, seed: 3}}\n"
            f"actor_rollout_ref:\n  rollout: {{n: {n}}}\n"
            "  actor: {ppo_mini_batch_size: '${data.train_batch_size}', ppo_epochs: 1, optim: {lr: 1e-6}}\n"
            "algorithm: {adv_estimator: grpo}\n"
        )
        rows = [{"step": 0, "data": {"val-core/gsm8k/acc/mean@4": 0.25}}]
        for step in range(1, 6):
            data = {"critic/score/mean": step / 10, "training/global_step": step, "timing_s/gen": 31.0}
            rows.append({"step": step, "data": data | {"val-core/gsm8k/acc/mean@4": 0.25 + step * n / 100}})
        (folder / "gsm8k_grpo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = read(tmp_path).to_pandas()
    assert set(table["problems_per_batch"]) == {16}
    assert set(table["seed"]) == {3}
    assert set(table["problem_set"]) == {"gsm8k"}
    own = table[(table["rollouts_per_problem"] == 8) & (table["metric"] == "avg@4")]
    assert list(own["step"]) == [0, 1, 2, 3, 4, 5]
    assert list(own["compute"]) == [0, 128, 256, 384, 512, 640]
    assert list(own["value"]) == pytest.approx([0.25, 0.33, 0.41, 0.49, 0.57, 0.65])


@pytest.mark.skipif(not REAL.exists(), reason="the shared sample logs are not there")
def test_the_real_excerpt_says_what_is_missing() -> None:
    with pytest.raises(InputError, match=r"(?s)B_p unknown.*set=\{"):
        read(REAL)
    table = read(REAL, set=["n=8", "B_p=8"]).to_pandas()
    assert set(table["eval_set"]) == {"train", "logic_assignment"}
    rewards = table[(table["metric"] == "reward") & (table["eval_set"] == "train")]
    assert list(rewards["step"]) == list(range(1, 10))
    assert list(rewards["compute"]) == [64 * step for step in range(1, 10)]
    assert list(rewards["value"])[:3] == [0.094, 0.047, 0.062]
