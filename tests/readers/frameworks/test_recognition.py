"""No framework's keys, or configuration, are taken for another's."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.readers.frameworks import FRAMEWORKS, find, known

KEYS = {
    "isolaw": [["isolaw/step", "isolaw/wall_s", "validation/avg@4", "train/entropy"]],
    "ROLL": [
        ["critic/score/mean", "critic/rewards/mean", "tokens/response_length/mean", "actor/kl_loss",
         "val_correct/all/mean", "val_correct/math/mean", "system/tps", "time/step_total"],
        ["critic/score/mean", "tokens/response_length/mean", "system/samples", "val/score/mean"],
    ],
    "veRL": [
        ["training/global_step", "critic/score/mean", "actor/ppo_kl", "actor/grad_norm",
        "response_length/mean",
         "val-core/openai/gsm8k/acc/mean@8", "perf/total_num_tokens", "timing_s/gen"],
        ["val/test_score/logic", "actor/entropy_loss", "actor/pg_clipfrac"],
    ],
    "tinker-cookbook": [
        ["progress/batch", "optim/lr", "optim/entropy", "env/all/reward/total", "env/all/correct",
         "env/all/by_group/frac_mixed", "test/env/all/correct", "time/total"],
    ],
    "prime-rl": [
        ["step", "reward/all/mean", "entropy/all/mean", "mismatch_kl/all/mean", "optim/grad_norm",
        "eval/aime24/avg@4"],
        ["train/agg/effective/agent/reward/mean", "eval/aime24/effective/agent/pass@8", "train/lr"],
    ],
    "SkyRL": [
        ["trainer/global_step", "reward/avg_raw_reward", "eval/all/avg_score", "eval/all/pass_at_8",
         "policy/policy_entropy", "policy/policy_kl", "generate/avg_num_tokens", "loss/avg_kl",
         "timing/step"],
        ["eval/gsm8k/avg_score", "trainer/global_step"],
    ],
    "slime": [
        ["rollout/step", "rollout/raw_reward", "rollout/response_lengths", "rollout/log_probs",
        "train/ppo_kl",
         "train/grad_norm", "train/kl_loss", "train/loss", "eval/aime", "eval/aime-pass@8",
         "passrate/pass@4"],
    ],
    "NeMo-RL": [
        ["train/reward", "train/loss", "train/grad_norm", "train/mean_gen_tokens_per_sample", "train/lr",
         "train/token_mult_prob_error", "train/gen_kl_error", "validation/accuracy",
         "timing/train/total_step_time"],
        # As TRL's trackers call a reward; with what no GRPOTrainer logs.
        ["train/reward", "train/loss", "train/global_valid_seqs", "validation/accuracy"],
    ],
    "open-instruct": [
        ["training_step", "episode", "scores", "eval/scores", "eval/pass_at_1", "objective/kl0_avg",
        "val/ratio",
         "policy/entropy_avg", "val/sequence_lengths", "real_batch_size_ratio", "lr"],
    ],
    "OpenRLHF": [
        ["train/global_step", "train/rollout/reward_mean", "train/rollout/reward_std", "train/reward",
        "train/kl",
         "train/actor_lr", "train/policy_loss", "train/response_length", "eval/eval_aime24_pass1"],
        ["policy_loss", "actor_lr", "reward", "return", "rollout/reward_mean", "kl"],
        ["train/reward", "train/return", "train/actor_lr", "train/response_length"],
    ],
    "AReaL": [
        ["ppo_actor/task_reward/avg", "ppo_actor/n_seqs", "ppo_actor/update/grad_norm", "rollout/reward",
         "eval-rollout/reward", "timeperf/rollout"],
        ["grpo_actor/task_reward/avg", "grpo_actor/seq_len/avg"],
    ],
    "ART": [
        ["train/reward", "train/exception_rate", "train/reward_std_dev", "training_step", "recorded_at",
         "time/wall_clock_sec", "data/step_num_trajectories"],
        ["val/reward", "val/exception_rate", "val/reward_std_dev"],
    ],
    "mlx-lm-lora": [["train_loss", "train_total_rewards_mean", "train_kl", "train_accuracy_mean"]],
    "nanochat": [["step", "reward", "sequence_length"], ["pass@1", "pass@2", "sequences_per_step"]],
    "torchforge": [["reward/evaluate_response/avg_total_reward", "grpo_loss/kl_divergence_mean"]],
    "TRL": [
        ["loss", "grad_norm", "learning_rate", "reward", "reward_std", "completion_length", "kl", "epoch",
         "rewards/format"],
        ["loss", "grad_norm", "learning_rate", "num_tokens", "reward", "reward_std",
        "frac_reward_zero_std", "entropy",
         "completions/mean_length", "rewards/format/mean", "eval_reward", "eval_rewards/format/mean",
         "epoch"],
        ["train/loss", "train/reward", "train/reward_std", "train/global_step", "train/grad_norm",
        "train/entropy",
         "train/completions/mean_length", "train/rewards/format/mean", "eval/reward", "eval/loss",
         "train/epoch"],
    ],
}  # fmt: skip
CONFIGS: dict[str, list[dict[str, Any]]] = {
    "isolaw": [{"isolaw.run_id": "ab", "isolaw.rollouts_per_problem": 8}],
    "veRL": [
        {"actor_rollout_ref.rollout.n": 8, "data.train_batch_size": 256, "trainer.nnodes": 1},
    ],
    "EasyR1": [{"worker.rollout.n": 5, "data.rollout_batch_size": 512}],
    "tinker-cookbook": [
        {"dataset_builder.groups_per_batch": 32, "dataset_builder.group_size": 8, "num_substeps": 1},
        {"groups_per_batch": 32, "group_size": 8},
    ],
    "prime-rl": [{"orchestrator.batch_size": 512, "orchestrator.group_size": 16, "max_steps": 100}],
    "SkyRL": [{"trainer.train_batch_size": 1024, "generator.n_samples_per_prompt": 5, "trainer.seed": 42}],
    "slime": [
        {"rollout_batch_size": 32, "n_samples_per_prompt": 8, "global_batch_size": 256, "hf_checkpoint": "m"},
        {"rollout-batch-size": 32, "n-samples-per-prompt": 8, "hf-checkpoint": "m", "seed": 1},
    ],
    "NeMo-RL": [{"grpo.num_prompts_per_step": 32, "grpo.num_generations_per_prompt": 16,
    "policy.model_name": "m"}],
    "open-instruct": [{"num_unique_prompts_rollout": 32, "num_samples_per_prompt_rollout": 16, "beta": 0.0}],
    "OpenRLHF": [
        {"rollout_batch_size": 128, "n_samples_per_prompt": 8, "train_batch_size": 1024,
        "micro_rollout_batch_size": 4},
        {"rollout.batch_size": 128, "rollout.n_samples_per_prompt": 8, "train.batch_size": 1024},
        {"rollout": "namespace(batch_size=128, n_samples_per_prompt=8)",
        "train": "namespace(batch_size=1024)"},
    ],
    "ROLL": [
        {"rollout_batch_size": 64, "num_return_sequences_in_group": 8, "adv_estimator": "grpo"},
        {"rollout_batch_size": 128, "train_env_manager.group_size": 8, "pretrain": "m"},
    ],
    "AReaL": [{"gconfig.n_samples": 4, "train_dataset.batch_size": 256, "actor.path": "m", "seed": 1}],
    "ART": [],
    "mlx-lm-lora": [{"group_size": 4, "batch_size": 2, "grpo_loss_type": "grpo", "beta": 0.1}],
    "nanochat": [{"examples_per_step": 16, "num_samples": 16, "device_batch_size": 8}],
    "torchforge": [],
    "TRL": [{"per_device_train_batch_size": 6, "num_generations": 8, "learning_rate": 1e-06, "seed": 42}],
}  # fmt: skip


def claimed(keys: list[str], config: dict[str, Any]) -> list[str]:
    names = [framework.name for framework in known() if framework.recognises(keys, config)]
    return names[:1] if names[1:] == ["veRL"] else names  # ROLL and EasyR1 took over names of veRL


def test_every_framework_is_here() -> None:
    assert set(CONFIGS) == {framework.name for framework in known()} == set(FRAMEWORKS)
    assert {*KEYS, "EasyR1"} == set(CONFIGS)  # whose keys are those of veRL


@pytest.mark.parametrize(("name", "i"), [(name, i) for name in KEYS for i in range(len(KEYS[name]))])
def test_keys(name: str, i: int) -> None:
    found = find(KEYS[name][i], {})
    assert found is not None
    assert found.name == name
    assert claimed(KEYS[name][i], {}) == [name]


@pytest.mark.parametrize(("name", "i"), [(name, i) for name in CONFIGS for i in range(len(CONFIGS[name]))])
def test_configurations(name: str, i: int) -> None:
    assert claimed([], CONFIGS[name][i]) == [name]


@pytest.mark.parametrize("name", KEYS)
def test_keys_with_their_configuration(name: str) -> None:
    for keys in KEYS[name]:
        for config in CONFIGS[name]:
            assert claimed(keys, config) == [name]


@pytest.mark.parametrize(
    "keys",
    [
        [],
        ["loss", "reward", "epoch"],
        ["train/loss", "train/reward", "train/global_step"],
        ["eval/accuracy", "loss"],
        ["step", "reward", "kl", "entropy"],
        ["episode_reward", "rollout/ep_rew_mean", "train/approx_kl"],  # Stable-Baselines3
        ["train_loss", "val_loss", "lr-AdamW"],  # Lightning
        ["rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "loss"],  # TRL's DPO
    ],
)
def test_what_several_share_is_nobodys(keys: list[str]) -> None:
    assert claimed(keys, {}) == []


PIECES = st.sampled_from(
    sorted({part for lists in KEYS.values() for keys in lists for key in keys for part in key.split("/")})
)


@given(st.lists(st.lists(PIECES | st.text(max_size=8), max_size=5).map("/".join), max_size=6))
def test_any_keys(keys: list[str]) -> None:
    for framework in known():
        framework.recognises(keys, {})
        for key in keys:
            target = framework.metric(key)
            assert target is None or (all(isinstance(part, str) for part in target) and len(target) == 2)
            assert target is None or all(target) or framework.name == "isolaw"  # which wrote them itself


VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.integers())
)
SETTINGS = sorted({key for configs in CONFIGS.values() for config in configs for key in config})


@given(st.dictionaries(st.sampled_from(SETTINGS) | st.text(max_size=9), VALUES))
def test_any_configuration(config: dict[str, Any]) -> None:
    for framework in known():
        framework.recognises([], config)
        for name, fact in framework.facts(config, "config.yaml").items():
            assert isinstance(name, str)
            assert isinstance(fact.origin, str)


@pytest.mark.parametrize(
    "long", ["a" * 300_000, "a/" * 150_000, "_time" * 60_000, "eval/" + "-pass@1" * 40_000]
)
def test_long_keys_cost_little(long: str) -> None:
    began = time.process_time()
    for framework in known():
        for key in (long, f"{long}!", f"train/{long}!", f"eval/{long}!", f"val/{long}!", f"actor/{long}!"):
            framework.metric(key)
            framework.recognises([key], {})
    assert time.process_time() - began < 25
