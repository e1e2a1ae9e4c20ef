"""ROLL: its metric names, and its settings for B_p and n (ROLL 0.3).

Its names resemble veRL's. ``val_correct/all/mean`` is the share of correct samples, and
``val_correct/<tag>/mean`` the share in a subset of them. Steps count from 0, and an evaluation runs before
the batch of its step. In the agentic pipeline, ``rollout_batch_size`` counts trajectories, and elsewhere
prompts.
"""

from __future__ import annotations

from isolaw.readers.frameworks.base import Config, Facts, Framework, by_rules

_NAMES = {
    "critic/score/mean": "reward",
    "critic/rewards/mean": "reward_with_kl",
    "tokens/response_length/mean": "response_length",
    "critic/entropy/mean": "entropy",
    "actor/total_grad_norm": "grad_norm",
}
_NOT_KEPT = r"(?:time|system|memory)/.*|.*/(?:min|max|std)|.*/lr"


def _facts(config: Config, facts: Facts) -> Facts:
    group = config.count("train_env_manager.group_size")
    if not group:
        return {}
    batch = facts["problems_per_batch"]
    return {"rollouts_per_problem": group, "rollouts_per_step": batch, "problems_per_batch": None}


FRAMEWORK = Framework(
    "ROLL",
    by_rules(
        ("val_correct/(?:all|(?P<set>.+))/mean", "validation", "accuracy"),
        ("val_score/(?:all|(?P<set>.+))/mean", "validation", "reward"),
        ("val/score/mean", "validation", "reward"),
        ("val/(?P<name>.+)", "validation", ""),
        ("(?P<name>.+)", "train", ""),
        names=_NAMES,
        not_kept=_NOT_KEPT,
    ),
    own_keys=(
        ("val_correct/.+|system/(?:samples|batch_add_count)",),
        ("tokens/response_length/mean", "critic/score/mean"),
    ),
    own_config=(
        ("rollout_batch_size", r"actor_infer\.generating_args\.num_return_sequences"),
        ("rollout_batch_size", r"train_env_manager\.group_size"),
        ("rollout_batch_size", "num_return_sequences_in_group"),
    ),
    settings={
        "rollouts_per_problem": (
            "num_return_sequences_in_group",
            "actor_infer.generating_args.num_return_sequences",
        ),
        "problems_per_batch": ("rollout_batch_size",),
        "seed": ("seed",),
        "algorithm": ("adv_estimator",),
        "lr": ("actor_train.training_args.learning_rate",),
        "kl": ("init_kl_coef",),
        "temperature": ("actor_infer.generating_args.temperature",),
        "model": ("pretrain",),
    },
    more_facts=_facts,
    first_step=0,
    evaluates_first=True,
)
