"""What the metric keys of each framework are called in the data model."""

from __future__ import annotations

import pytest

from isolaw.readers.frameworks import named

NAMES: dict[str, dict[str, tuple[str, str] | None]] = {
    "isolaw": {
        "validation/avg@4": ("validation", "avg@4"),
        "validation/avg_at_4": ("validation", "avg@4"),
        "isolaw/wall_s": None,
    },
    "NeMo-RL": {
        "train/reward": ("train", "reward"),
        "validation/accuracy": ("validation", "accuracy"),
        "validation/pass@8": ("validation", "best@8"),
        "train/mean_gen_tokens_per_sample": ("train", "response_length"),
        "timing/train/total_step_time": None,
        "train/lr": None,
    },
    "open-instruct": {
        "scores": ("train", "reward"),
        "eval/pass_at_8_unbiased": ("validation", "best@8"),
        "val/sequence_lengths": ("train", "response_length"),
        "eval/scores": ("validation", "reward"),
        "eval/objective/verifiable_correct_rate": ("validation", "objective/verifiable_correct_rate"),
        "time/total": None,
    },
    "OpenRLHF": {
        "train/rollout/reward_mean": ("train", "reward"),
        "eval/eval_aime24_pass1": ("aime24", "pass@1"),
        "eval_aime24_pass8": ("aime24", "best@8"),
        "train/kl": ("train", "kl"),
        "train/actor_lr": None,
        "train/timing/ppo_train": None,
    },
    "prime-rl": {
        "train/agg/effective/agent/reward/mean": ("train", "reward"),
        "eval/aime24/effective/agent/pass@8": ("aime24", "best@8"),
        "reward/all/mean": ("train", "reward"),
        "eval/math500/avg@4": ("math500", "avg@4"),
        "time/step": None,
    },
    "SkyRL": {
        "eval/all/avg_score": ("validation", "reward"),
        "eval/aime24/pass_at_8": ("aime24", "best@8"),
        "reward/avg_raw_reward": ("train", "reward"),
        "policy/policy_kl": ("train", "kl"),
        "timing/step": None,
        "trainer/global_step": None,
    },
    "slime": {
        "rollout/raw_reward": ("train", "reward"),
        "eval/aime": ("aime", "reward"),
        "eval/aime-pass@8": ("aime", "best@8"),
        "train/ppo_kl": ("train", "train/ppo_kl"),
        "rollout/step": None,
        "perf/rollout_time": None,
    },
    "TRL": {
        "reward": ("train", "reward"),
        "eval/rewards/accuracy_reward/mean": ("validation", "rewards/accuracy_reward"),
        "rewards/accuracy_reward": ("train", "rewards/accuracy_reward"),
        "train/completions/mean_length": ("train", "response_length"),
        "epoch": None,
        "train_loss": None,
    },
    "tinker-cookbook": {
        "env/all/reward/total": ("train", "reward"),
        "test/env/all/correct": ("validation", "accuracy"),
        "aime/env/all/correct": ("aime", "accuracy"),
        "env/gsm8k/correct": None,
        "env/all/total_ac_tokens": None,
        "progress/batch": None,
    },
    "veRL": {
        "test_score/openai/gsm8k": ("openai/gsm8k", "test_score"),
        "eval/success_rate": ("validation", "success_rate"),
        "validation/acc": ("validation", "acc"),
        "val-core/openai/gsm8k/acc/mean@8": ("openai/gsm8k", "avg@8"),
        "val-aux/aime24/acc/best@4/mean": ("aime24", "best@4"),
        "val-core/kk_logic/reward/mean@1": ("kk_logic", "reward@1"),
        "val/test_score/logic": ("logic", "test_score"),
        "critic/score/mean": ("train", "reward"),
        "val-aux/aime24/acc/std@8": None,
        "timing_s/gen": None,
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    framework = named(name)
    assert {key: framework.metric(key) for key in NAMES[name]} == NAMES[name]
