"""Frameworks of few settings: the meaning of their metrics, and their settings for B_p and n.

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

NeMo-RL: all names have a prefix (``train/``, ``validation/``, ``timing/``, ``performance/``), and steps are
the tracker's steps. The validation at step 0 precedes training. A step is one batch of rollouts.

open-instruct's ``grpo_fast``: ``training_step`` counts steps; trackers may count rollouts instead
(``episode``). ``scores`` is the reward. Keys ``val/…`` belong to training, and keys ``eval/…`` to validation.
``eval/pass_at_1`` is the mean over a prompt's samples, ``pass_at_<k>`` whether any of exactly k samples was
right, and ``pass_at_<k>_unbiased`` the unbiased best@k. Generation runs ``async_steps`` steps ahead.

SkyRL: ``eval/all/avg_score`` is the mean reward of the evaluation's samples, and ``pass_at_<k>`` whether any
of exactly k samples was right. With several data sets, each has its own metrics next to ``all``.
``trainer/global_step`` counts batches of rollouts, and an evaluation at step 0 precedes training. The start
command decides whether a run is fully asynchronous; shared devices (``colocate_all``) rule that out.

tinker-cookbook's ``rl.train``: ``metrics.jsonl`` and ``config.json`` are in one folder. ``env/all/…``
describes the training batch, ``test/env/all/…`` the test set, ``test/env/<tag>/…`` a part of it, and
``<name>/env/all/…`` another evaluator. Steps count from 0. An evaluation in the record of step s measures the
policy after s updates, since it runs before the batch of that step.
"""

from __future__ import annotations

import re

from isolaw.readers.frameworks.base import APART, Config, Fact, Facts, Framework, best, by_rules, one_update

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


_NEMO_NAMES = {
    "mean_gen_tokens_per_sample": "response_length",
    "truncation_rate": "truncated_fraction",
    "approx_entropy": "entropy",
    "kl_penalty": "kl",
    "total_num_tokens": "step_tokens",
    "avg_length": "response_length",
}
_NEMO_OWN = (
    "train/(?:mean_gen_tokens_per_sample|token_mult_prob_error|gen_kl_error|global_valid_seqs|global_valid_toks"
    "|sampling_importance_ratio|probs_ratio_clamped)|timing/train/total_step_time"
)
_NEMO_NOT_KEPT = (
    r"lr|wd|global_valid_(?:seqs|toks)|histogram/.*|.*/(?:min|max|std|stddev)"
    r"|.*(?:_per_sec(?:_\w{1,20})?|_fp_utilization|_plot_sample|_time(?:_s)?)"
)


def _nemo_facts(config: Config, facts: Facts) -> Facts:
    n, problems = facts["rollouts_per_problem"], facts["problems_per_batch"]
    if not problems:
        return {}
    if config.is_true("grpo.use_dynamic_sampling"):
        problems = problems.but("with dynamic sampling, C does not count discarded rollouts")
    trained = config.count("policy.train_global_batch_size")
    apart = config.boolean("grpo.async_grpo.enabled", "async_grpo.enabled") or Fact(False, "")
    on_policy = one_update(n.value * problems.value, trained, None, apart) if n else None
    return {"problems_per_batch": problems, "on_policy": on_policy}


NEMO_RL = Framework(
    "NeMo-RL",
    by_rules(
        (r"validation/pass(?:[@_-]|_at_)?(?P<k>\d{1,6})", "validation", best),
        (r"(?P<set>train|validation)/(?P<name>.+)", "", ""),
        names=_NEMO_NAMES,
        not_kept=_NEMO_NOT_KEPT,
    ),
    own_keys=((_NEMO_OWN,),),
    own_config=(("grpo.num_prompts_per_step",),),
    settings={
        "rollouts_per_problem": ("grpo.num_generations_per_prompt",),
        "problems_per_batch": ("grpo.num_prompts_per_step",),
        "seed": ("grpo.seed",),
        "algorithm": ("grpo.adv_estimator.name",),
        "problem_set": ("data.dataset_name", "data.train.dataset_name"),
        "lr": ("policy.optimizer.kwargs.lr", "policy.megatron_cfg.optimizer.lr"),
        "kl": ("loss_fn.reference_policy_kl_penalty",),
        "temperature": ("policy.generation.temperature",),
        "model": ("policy.model_name",),
    },
    counts=("generated",),  # printed on its console
    more_facts=_nemo_facts,
    seconds_keys=("timing/train/total_step_time",),
)


_OPEN_INSTRUCT_NAMES = {
    "scores": "reward",
    "policy/entropy_avg": "entropy",
    "objective/kl_avg": "kl",  # the plain estimate; later versions number their estimates from 0
    "objective/kl0_avg": "kl",
    "optim/grad_norm": "grad_norm",
    "val/sequence_lengths": "response_length",
    "val/num_total_tokens": "tokens",
    "val/num_step_tokens": "step_tokens",
}
_OPEN_INSTRUCT_OWN = "real_batch_size_ratio|unsolved_batch_size_ratio|packed_ratio|val/num_step_tokens"
_OPEN_INSTRUCT_NOT_KEPT = (
    r"episode|global_step|training_step|epoch|lr|(?:time|learner|actor|batch)/.*|(?:learner|actor)_tokens.*"
    r"|.*tokens_per_second(?:_\w{1,20})?|objective/kl\d_avg|val/(?:sequence_lengths|advantages)_.*|.*(?:_hist|_min|_max|_time|utilization)"
    r"|.*(?:_mfu|_mbu)"
)


def _open_instruct_facts(config: Config, facts: Facts) -> Facts:
    problems = facts["problems_per_batch"]
    if problems and config.is_true("active_sampling", "filter_zero_std_samples"):
        problems = problems.but("C does not count filtered groups without variance")
    data = None
    mixed = config.values.get("dataset_mixer_list")  # alternating names and shares
    if isinstance(mixed, list) and mixed and all(isinstance(name, str) for name in mixed[::2]):
        data = config.fact("dataset_mixer_list", "+".join(mixed[::2]))
    return {
        "problems_per_batch": problems,
        "on_policy": _open_instruct_on_policy(config),
        "problem_set": data,
    }


def _open_instruct_on_policy(config: Config) -> Fact | None:
    ahead, older = config.count("async_steps", least=0), config.boolean("async_mode")
    for fact in (ahead, older):
        if fact and fact.value:
            return Fact(False, f"{fact.origin} = {fact.value}: {APART}")
    for fact in (config.count("num_mini_batches"), config.count("num_epochs")):
        if fact and fact.value > 1:
            return Fact(False, f"{fact.origin} = {fact.value}")
    synchronous = ahead or older
    return synchronous and Fact(True, f"{synchronous.origin} = {synchronous.value}")


OPEN_INSTRUCT = Framework(
    "open-instruct",
    by_rules(
        ("eval/scores_(?P<set>.+)", "", "reward"),
        ("eval/sequence_lengths", "validation", "response_length"),
        (r"eval/pass_at_(?!0*1_)(?P<k>\d{1,6})(?:_unbiased)?", "validation", best),
        (r"eval/(?!pass_at_0*1_unbiased\Z)(?P<name>.+)", "validation", ""),  # the same as pass_at_1
        ("(?!eval/)(?P<name>.+)", "train", ""),
        names=_OPEN_INSTRUCT_NAMES,
        not_kept=_OPEN_INSTRUCT_NOT_KEPT,
    ),
    own_keys=((_OPEN_INSTRUCT_OWN,), ("training_step", "scores")),
    own_config=(("num_unique_prompts_rollout",),),
    settings={
        "rollouts_per_problem": ("num_samples_per_prompt_rollout",),
        "problems_per_batch": ("num_unique_prompts_rollout",),
        "seed": ("seed",),
        "lr": ("learning_rate",),
        "kl": ("beta",),
        "temperature": ("temperature",),
        "model": ("model_name_or_path",),
    },
    more_facts=_open_instruct_facts,
    step_keys=("training_step",),
    prefixed=False,
)


_SKYRL_NAMES = {
    "reward/avg_raw_reward": "reward",
    "policy/policy_entropy": "entropy",
    "policy/policy_kl": "kl",
    "loss/avg_kl": "kl",  # if the KL term is in the reward instead of the loss
    "policy/raw_grad_norm": "grad_norm",
    "policy/grad_norm": "grad_norm",
    "generate/avg_num_tokens": "response_length",
}
_SKYRL_OWN = (
    "reward/avg_raw_reward|policy/policy_entropy|loss/avg_final_rewards|generate/avg_num_tokens"
    r"|eval/.+/(?:avg_score|pass_at_\d{1,6})"
)
_SKYRL_NOT_KEPT = (
    r"(?:timing|trainer|vllm|ray|system|consumed)/.*|generate/.*|critic/.*|async/.*time.*|policy/(?:\w*lr|response_length)"
    r"|loss/kl_loss_coef|.*_(?:max|min|std|p90)"
)


def _skyrl_facts(config: Config, facts: Facts) -> Facts:
    out: dict[str, Fact | None] = {}
    if problems := facts["problems_per_batch"]:
        colocated = config.boolean("trainer.placement.colocate_all")
        out["on_policy"] = one_update(
            problems.value,
            config.count("trainer.policy_mini_batch_size"),
            config.count("trainer.update_epochs_per_batch"),
            Fact(False, colocated.origin) if colocated and colocated.value else None,
            what="problems",
        )
        if sampling := config.text("trainer.algorithm.dynamic_sampling.type"):
            caveat = f"dynamic sampling, {sampling.value}: C does not count discarded rollouts"
            out["problems_per_batch"] = problems.but(caveat)
    uses = [config.boolean(f"trainer.algorithm.use_kl_{where}") for where in ("loss", "in_reward")]
    if all(use is not None and not use.value for use in uses):
        out["kl"] = config.fact("trainer.algorithm.use_kl_loss and use_kl_in_reward = False", 0.0)
    return out


SKYRL = Framework(
    "SkyRL",
    by_rules(
        (r"eval/(?:all|(?P<set>.+))/avg_score", "validation", "reward"),
        (r"eval/(?:all|(?P<set>.+))/pass_at_(?P<k>\d{1,6})", "validation", best),
        ("eval/all/generate/avg_num_tokens", "validation", "response_length"),
        (r"reward/avg_pass_at_(?P<k>\d{1,6})", "train", best),
        ("(?!eval/)(?P<name>.*/.*)", "train", ""),
        names=_SKYRL_NAMES,
        not_kept=_SKYRL_NOT_KEPT,
    ),
    own_keys=((_SKYRL_OWN,),),
    own_config=(("generator.n_samples_per_prompt", "trainer.train_batch_size"),),
    settings={
        "rollouts_per_problem": ("generator.n_samples_per_prompt",),
        "problems_per_batch": ("trainer.train_batch_size",),
        "seed": ("trainer.seed",),
        "algorithm": ("trainer.algorithm.advantage_estimator",),
        "lr": ("trainer.policy.optimizer_config.lr",),
        "kl": ("trainer.algorithm.kl_loss_coef",),
        "temperature": ("generator.sampling_params.temperature",),
        "model": ("trainer.policy.model.path",),
    },
    more_facts=_skyrl_facts,
    step_keys=("trainer/global_step",),
    seconds_keys=("timing/step",),
)


_TINKER_NAMES = {
    "reward/total": "reward",
    "correct": "accuracy",
    "ac_tokens_per_turn": "response_length",
    "optim/entropy": "entropy",
    "optim/kl_sample_train_v1": "kl_sample_train",  # between sampler and trainer, not to the base model
    "kl_policy_base": "kl",
}
_TINKER_OWN = "(?:[^/]+/)?env/all/(?:reward/total|ac_tokens_per_turn|by_group/.*)"
_TINKER_NOT_KEPT = (
    "(?:time|progress|async|training_client|sampling_client)/.*|optim/(?:lr|kl_sample_train_v2)"
    "|.*tokens.*|total_.*|turns_per_episode|done_frac"
)


def _tinker_either(*names: str) -> tuple[str, ...]:
    """Return the names of a setting in the trainer's and in the data set's configuration."""
    return (*names, *(f"dataset_builder.{name}" for name in names))


def _tinker_facts(config: Config, _tinker_facts: Facts) -> Facts:
    """Return ``on_policy``: true if a batch makes one optimiser step, and nothing is asynchronous."""
    lag, steps = config.count("async_config.max_steps_off_policy", least=0), config.count("num_substeps")
    if lag:
        return {"on_policy": Fact(lag.value == 0, f"{lag.origin} = {lag.value}")}
    if steps and (steps.value > 1 or "async_config" in config.values):
        return {"on_policy": Fact(steps.value == 1, f"{steps.origin} = {steps.value}")}
    return {}


TINKER_COOKBOOK = Framework(
    "tinker-cookbook",
    by_rules(
        ("test/env/all/(?P<name>.+)", "validation", ""),
        ("test/env/(?P<set>[^/]+)/(?P<name>.+)", "", ""),
        ("(?P<set>[^/]+)/env/all/(?P<name>.+)", "", ""),
        ("env/all/(?P<name>.+)", "train", ""),
        ("(?P<name>(?!.*env/).+)", "train", ""),  # single tags of a batch are not kept
        names=_TINKER_NAMES,
        not_kept=_TINKER_NOT_KEPT,
    ),
    own_keys=((_TINKER_OWN,),),
    own_config=((r"(?:dataset_builder\.)?groups_per_batch", r"(?:dataset_builder\.)?group_size"),),
    settings={
        "rollouts_per_problem": _tinker_either("group_size"),
        "problems_per_batch": (*_tinker_either("groups_per_batch"), "dataset_builder.batch_size"),
        "seed": _tinker_either("seed"),
        "problem_set": _tinker_either("dataset_name"),
        "lr": ("learning_rate",),
        "kl": ("kl_penalty_coef",),
        "temperature": ("temperature",),
        "loss_type": ("loss_fn",),
        "model": ("model_name",),
    },
    counts=("env/all/total_episodes",),
    more_facts=_tinker_facts,
    step_keys=("progress/batch", "training_client/step"),
    first_step=0,
    evaluates_first=True,
)
