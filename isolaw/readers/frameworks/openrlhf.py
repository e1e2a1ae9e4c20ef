"""OpenRLHF: its metric names and its arguments, which are flat or (since 0.10) in sections.

Trackers get ``train/…`` and ``eval/…``; the console prints ``Global step 12: {…}`` with bare names.
``rollout_batch_size`` counts prompts, and ``train_batch_size`` rollouts. A global step is one batch of
rollouts, regardless of its number of optimiser steps. ``eval_<data>_pass1`` is the mean over the samples of a
prompt, and ``eval_<data>_pass<k>`` whether any of exactly k samples was right. W&B stores sections as the
text ``namespace(batch_size=128, …)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isolaw.readers.frameworks.base import Config, Fact, Facts, Framework, best, by_rules, one_update
from isolaw.readers.literals import parse_namespace

_NAMES = {
    "rollout/reward_mean": "reward",
    "reward": "reward",
    "rollout/response_length_mean": "response_length",
    "response_length": "response_length",
    "rollout/truncated_rate": "truncated_fraction",
    "actor_grad_norm": "grad_norm",
    "entropy_loss": "entropy",
    "rollout/num_samples": "step_rollouts",
}
_OWN = "(?:train/)?(?:rollout/reward_mean|actor_lr|logprobs_diff)|eval/eval_.*"
_EVALUATION = "(?:eval/)?eval_(?:(?P<set>.+)_)?"
_NOT_KEPT = "timing/.*|(?:actor|critic)_lr|global_step|epoch|total_length|.*generated_samples"


def _facts(config: Config, facts: Facts) -> Facts:
    n, problems = facts["rollouts_per_problem"], facts["problems_per_batch"]
    if not problems:
        return {}
    if config.is_true("algo.dynamic_filtering_enable", "dynamic_filtering"):
        problems = problems.but("with dynamic filtering, C does not count discarded rollouts")
    trained = config.count("train.batch_size", "train_batch_size")
    passes = config.count("train.max_epochs", "max_epochs")
    apart = config.boolean("train.async_enable", "async_train") or Fact(False, "")
    on_policy = one_update(n.value * problems.value, trained, passes, apart) if n else None
    return {"problems_per_batch": problems, "on_policy": on_policy}


def _flat(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration, with sections parsed that W&B stores as text."""
    out = dict(config)
    for section, text in config.items():
        if isinstance(text, str) and text.startswith("namespace("):
            out.update(parse_namespace(section, text))
    return out


FRAMEWORK = Framework(
    "OpenRLHF",
    by_rules(
        (rf"{_EVALUATION}pass(?P<k>\d{{1,6}})", "validation", best),
        (f"{_EVALUATION}response_length_mean", "validation", "response_length"),
        (f"{_EVALUATION}truncated_rate", "validation", "truncated_fraction"),
        (r"(?!eval[/_])(?:train/)?+(?P<name>.+)", "train", ""),
        names=_NAMES,
        not_kept=_NOT_KEPT,
    ),
    own_keys=((_OWN,),),
    own_config=(
        ("rollout.n_samples_per_prompt", "train.batch_size"),
        ("n_samples_per_prompt", "rollout_batch_size", "micro_rollout_batch_size"),
    ),
    settings={
        "rollouts_per_problem": ("rollout.n_samples_per_prompt", "n_samples_per_prompt"),
        "problems_per_batch": ("rollout.batch_size", "rollout_batch_size"),
        "seed": ("train.seed", "seed"),
        "algorithm": ("algo.advantage.estimator", "advantage_estimator"),
        "problem_set": ("data.prompt_dataset", "prompt_data"),
        "lr": ("actor.adam.lr", "actor.muon.lr", "actor_learning_rate"),
        "kl": ("algo.kl.init_coef", "init_kl_coef"),
        "entropy": ("actor.entropy_coef", "entropy_loss_coef"),
        "temperature": ("rollout.temperature", "temperature"),
        "model": ("actor.model_name_or_path", "pretrain"),
    },
    more_facts=_facts,
    step_keys=("train/global_step", "eval/global_step"),
    flat=_flat,
)
