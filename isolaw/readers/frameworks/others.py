"""Frameworks of few settings: AReaL, ART, isolaw's mirrors, mlx-lm-lora, nanochat, ROLL and torchforge.

AReaL (1.0): ``ppo_actor/task_reward/avg`` is the mean reward of the training batch, and
``eval-rollout/reward`` the mean reward of the evaluation after the update of the step. Trackers count steps
from 0, and the console from 1. By default AReaL generates rollouts while it trains
(``rollout.max_head_offpolicyness``).

ART (openpipe-art 0.5): ``history.jsonl`` in a model's folder, or W&B. A step is the number of a checkpoint,
i.e. of updates made. The user's code defines batch sizes; newer versions log the trajectories of a step.

isolaw: in the trackers to which `isolaw.trackers` mirrors its runs, the x axis is compute, and the update
step is a metric. Configuration keys start with ``isolaw.``.

mlx-lm-lora's GRPO (3.1 and older): values are means over ``steps_per_report`` iterations. An iteration uses
``batch_size`` prompts, and ``gradient_accumulation_steps`` iterations make an update. isolaw counts each
iteration as a step, so that compute is correct.

nanochat's chat_rl counts steps from 0 and evaluates before the update of a step. ``pass@k`` is over the first
k of its samples of a problem; a step trains on ``examples_per_step`` problems with ``num_samples`` rollouts
each. torchforge's names are paths of its code; its configuration does not contain B_p.

ROLL (0.3): its names resemble veRL's. ``val_correct/all/mean`` is the share of correct samples, and
``val_correct/<tag>/mean`` the share in a subset of them. Steps count from 0, and an evaluation runs before
the batch of its step. In the agentic pipeline, ``rollout_batch_size`` counts trajectories, and elsewhere
prompts.
"""

from __future__ import annotations

import re

from isolaw.readers.frameworks.base import Config, Fact, Facts, Framework, best, by_rules

_ACTOR = "(?:ppo|grpo)_actor"
_AREAL_NAMES = {
    "task_reward/avg": "reward",
    "seq_len/avg": "response_length",
    "entropy/avg": "entropy",
    "update/entropy/avg": "entropy",
    "update/grad_norm": "grad_norm",
    "kl_rewards/avg": "kl",
}
_AREAL_NOT_KEPT = (
    r"(?:timeperf|time_perf|version_stats)/.*"
    r"|.*(?:/(?:min|max|std)|n_(?:seqs|tokens|valid_tokens)|lr|__count)"
)


# Settings of AReaL before 0.5.2 and since, with which an update omits groups of the batch.
_AREAL_FILTERS = ("actor.dynamic_sampling", "dynamic_bs")


def _areal_facts(config: Config, facts: Facts) -> Facts:
    batch = facts["problems_per_batch"]
    if batch and config.is_true(*_AREAL_FILTERS):
        batch = batch.but("with dynamic sampling, an update omits groups of the batch; C counts them")
    return {"problems_per_batch": batch, "on_policy": _areal_on_policy(config)}


def _areal_on_policy(config: Config) -> Fact | None:
    """Return whether a batch makes one update, and no rollout comes from older weights."""
    lag = config.count("rollout.max_head_offpolicyness", least=0)
    updates = config.count("actor.ppo_n_minibatches")
    if lag is None or updates is None:
        return None
    origin = f"{lag.origin} = {lag.value}, {updates.origin} = {updates.value}"
    return Fact(lag.value == 0 and updates.value == 1, origin)


AREAL = Framework(
    "AReaL",
    by_rules(
        ("eval-rollout/(?P<name>.+)", "validation", ""),
        (f"{_ACTOR}/(?P<name>.+)", "train", ""),
        ("rollout/(?P<name>reward)", "train", "rollout_reward"),
        ("(?P<name>.+)", "train", ""),
        names=_AREAL_NAMES,
        not_kept=_AREAL_NOT_KEPT,
    ),
    own_keys=((f"{_ACTOR}/(?:task_reward/avg|n_seqs|correct_n_seqs|final_reward/avg)|eval-rollout/.+",),),
    own_config=((r"gconfig\.n_samples", r"train_dataset\.batch_size"),),
    settings={
        "rollouts_per_problem": ("gconfig.n_samples",),
        "problems_per_batch": ("train_dataset.batch_size",),
        "seed": ("seed",),
        "problem_set": ("train_dataset.path",),
        "lr": ("actor.optimizer.lr",),
        "kl": ("actor.kl_ctl",),
        "temperature": ("gconfig.temperature",),
        "model": ("actor.path",),
    },
    counts=("ppo_actor/n_seqs", "grpo_actor/n_seqs"),
    more_facts=_areal_facts,
    first_step=0,
)


ART = Framework(
    "ART",
    by_rules(
        ("val/(?P<name>.+)", "validation", ""),
        ("(?:train|loss)/(?P<name>.+)", "train", ""),
        names={"grad_norm": "grad_norm", "entropy": "entropy", "kl_div": "kl"},
        not_kept="learning_rate|num_.*|.*std_dev|loss",
    ),
    own_keys=(("(?:train|val)/exception_rate",), ("train/reward_std_dev", "train/reward")),
    counts=("data/step_num_trajectories",),
    step_keys=("training_step",),
    counted_by_trackers=False,
)


def _isolaw_metric(key: str) -> tuple[str, str] | None:
    """Return the (eval_set, metric) of a key that isolaw wrote, or None for any other key."""
    eval_set, slash, name = key.partition("/")
    if not slash or eval_set == "isolaw":
        return None
    return eval_set, re.sub(r"_at_(?=\d)", "@", name)  # MLflow accepts no @


def _isolaw_facts(config: Config, _facts: Facts) -> Facts:
    """Return the facts in a configuration that already has isolaw's own names."""
    keys = {key.removeprefix("isolaw."): key for key in config.values if key.startswith("isolaw.")}
    return {name: config.fact(key, config.values[key]) for name, key in keys.items() if name != "run_id"}


ISOLAW = Framework(
    "isolaw",
    _isolaw_metric,
    own_keys=(("isolaw/step",),),
    own_config=(("isolaw.run_id",),),
    more_facts=_isolaw_facts,
    step_keys=("isolaw/step",),
)


def _mlx_facts(config: Config, facts: Facts) -> Facts:
    problems, parts = facts["problems_per_batch"], config.count("gradient_accumulation_steps")
    if problems and parts and parts.value > 1:
        problems = problems.but(f"of an iteration, of which {parts.value} make an update")
    return {"problems_per_batch": problems}


MLX_LM_LORA = Framework(
    "mlx-lm-lora",
    by_rules(
        ("train_(?P<name>.+)", "train", ""),
        ("val_(?P<name>.+)", "validation", ""),
        names={"total_rewards_mean": "reward", "average_generated_tokens": "response_length", "kl": "kl"},
        not_kept=".*_(?:std|coverage)|(?:loss|learning_rate|trained_tokens|min_.*|max_.*|hit_.*|grouped_.*|clip_.*|peak_mem(?:ory)?|time|took|.*/sec)",
    ),
    own_keys=(("train_total_rewards_mean",),),
    own_config=(("group_size", "grpo_loss_type"),),
    settings={
        "rollouts_per_problem": ("group_size",),
        "problems_per_batch": ("batch_size",),
        "seed": ("seed",),
        "problem_set": ("data",),
        "lr": ("learning_rate",),
        "kl": ("beta",),
        "temperature": ("temperature",),
        "model": ("model",),
    },
    more_facts=_mlx_facts,
)

NANOCHAT = Framework(
    "nanochat",
    by_rules(
        (r"pass@(?P<k>\d{1,6})", "validation", best),
        (r"(?P<name>reward|sequence_length)", "train", ""),
        names={"sequence_length": "response_length"},
        not_kept="",
    ),
    own_keys=(("reward", "sequence_length"), (r"pass@\d+", "sequence_length|sequences_per_step")),
    own_config=(("examples_per_step", "num_samples", "device_batch_size"),),
    settings={
        "rollouts_per_problem": ("num_samples",),
        "problems_per_batch": ("examples_per_step",),
        "temperature": ("temperature",),
    },
    counts=("sequences_per_step",),
    step_keys=("step",),
    first_step=0,
    evaluates_first=True,
)
TORCHFORGE = Framework(
    "torchforge",
    by_rules(
        ("reward/evaluate_response/avg_total_reward", "train", "reward"),
        (r"(?P<set>eval\w*)/(?P<name>.+)", "", ""),
        (r"(?P<name>(?:reward|grpo_loss|loss|generator|rl_trainer|buffer|dataset)/.+)", "train", ""),
        names={"grpo_loss/kl_divergence_mean": "kl"},
        not_kept=r".*(?:_s|_gb|/count_.*|/sum_.*|/std_.*|/max_.*|/min_.*)",
    ),
    own_keys=((r"(?:reward/evaluate_response|grpo_loss|rl_trainer)/.*",),),
    settings={"rollouts_per_problem": ("group_size",), "model": ("model",)},
)

_ROLL_NAMES = {
    "critic/score/mean": "reward",
    "critic/rewards/mean": "reward_with_kl",
    "tokens/response_length/mean": "response_length",
    "critic/entropy/mean": "entropy",
    "actor/total_grad_norm": "grad_norm",
}


def _roll_facts(config: Config, facts: Facts) -> Facts:
    group = config.count("train_env_manager.group_size")
    if not group:
        return {}
    batch = facts["problems_per_batch"]
    return {"rollouts_per_problem": group, "rollouts_per_step": batch, "problems_per_batch": None}


ROLL = Framework(
    "ROLL",
    by_rules(
        ("val_correct/(?:all|(?P<set>.+))/mean", "validation", "accuracy"),
        ("val_score/(?:all|(?P<set>.+))/mean", "validation", "reward"),
        ("val/score/mean", "validation", "reward"),
        ("val/(?P<name>.+)", "validation", ""),
        ("(?P<name>.+)", "train", ""),
        names=_ROLL_NAMES,
        not_kept=r"(?:time|system|memory)/.*|.*/(?:min|max|std)|.*/lr",
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
    more_facts=_roll_facts,
    first_step=0,
    evaluates_first=True,
)
