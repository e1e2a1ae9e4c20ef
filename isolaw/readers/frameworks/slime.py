"""slime (and its fork miles): its metric names, and where B_p and n stand.

``rollout/…``, ``passrate/…`` and ``eval/…`` are counted by rollout batch, from 0; ``train/…`` by optimiser
step, which is the same where a batch makes one. ``wandb_always_use_train_step`` counts all by optimiser step.
``eval/<data>`` is the mean reward of its samples, ``pass@k`` the unbiased best@k. An evaluation at 0 is
before training, any other after that batch's update.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from isolaw.readers.frameworks.base import Fact, Framework
from isolaw.readers.frameworks.configured import Configured, known, one_update

_NAMES = {
    "rollout/raw_reward": "reward",
    "rollout/response_len/mean": "response_length",
    "rollout/response_lengths": "response_length",
    "rollout/truncated_ratio": "truncated_fraction",
    "rollout/truncated": "truncated_fraction",
    "train/entropy_loss": "entropy",
    "train/kl_loss": "kl",
    "train/grad_norm": "grad_norm",
}
_EVALUATED = {
    "-truncated_ratio": "truncated_fraction",
    "/truncated_ratio": "truncated_fraction",
    "/response_len/mean": "response_length",
}
_OWN = (
    "rollout/raw_reward",
    "rollout/response_lengths",
    "rollout/log_probs",
    "rollout/ref_log_probs",
    "train/lr-pg_0",
)
_PASS = re.compile(r"(?:passrate/|eval/(.+)-)pass(?:@|_at_)(\d{1,6})", re.S)
_NOT_KEPT = re.compile(
    r"rollout/(?:step|rewards|total_lengths|advantages|returns)|train/(?:step|lr-.*|mtp_.*)|(?:perf|multi_turn)/.*"
    r"|.*/(?:max|min|median|std)|.*_time(?:/mean)?",
    re.S,
)
_SECTIONS = ("rollout/", "train/")


def metric(key: str) -> tuple[str, str] | None:
    """Return (eval_set, metric) of one of slime's keys.

    >>> metric("rollout/raw_reward"), metric("eval/aime"), metric("eval/aime-pass@8")
    (('train', 'reward'), ('aime', 'reward'), ('aime', 'best@8'))
    >>> metric("train/ppo_kl"), metric("rollout/step"), metric("perf/rollout_time")
    (('train', 'train/ppo_kl'), None, None)
    """
    if key in _NAMES:
        return "train", _NAMES[key]
    found = _PASS.fullmatch(key)
    if found:
        return found[1] or "train", "pass@1" if int(found[2]) == 1 else f"best@{int(found[2])}"
    if key.startswith("eval/"):
        return _evaluation(key.removeprefix("eval/"))
    if not key.startswith(_SECTIONS) or _NOT_KEPT.fullmatch(key):
        return None
    return "train", key


def _evaluation(name: str) -> tuple[str, str] | None:
    for ending, ours in _EVALUATED.items():
        if name.endswith(ending):
            return name.removesuffix(ending), ours
    return None if name in ("", "step") or "/" in name else (name, "reward")


def recognises(keys: Collection[str], config: Mapping[str, Any]) -> bool:
    """Return whether these metric keys, or this configuration, are slime's."""
    if any(key in _OWN for key in keys):
        return True
    names = {key.replace("-", "_") for key in config}
    return {"rollout_batch_size", "n_samples_per_prompt", "hf_checkpoint"} <= names


def facts(config: Mapping[str, Any], config_source: str) -> dict[str, Fact]:
    """Return what slime's arguments say of the run, written with dashes or underscores."""
    own = Configured({key.replace("-", "_"): value for key, value in config.items()}, config_source)
    n, problems = own.count("n_samples_per_prompt"), own.count("rollout_batch_size")
    if problems and own.text("dynamic_sampling_filter_path"):
        problems = Fact(
            problems.value, f"{problems.origin} (dynamic sampling: what it discards is not counted)"
        )
    trained, updates = own.count("global_batch_size"), own.count("num_steps_per_rollout")
    colocated = own.truth("colocate")
    on_policy = rollouts = None
    if n and problems:
        batch = n.value * problems.value
        if updates and batch % updates.value == 0:
            trained = Fact(batch // updates.value, f"num_steps_per_rollout = {updates.value}{own.where}")
        on_policy = one_update(
            batch, trained, None, Fact(False, colocated.origin) if colocated and colocated.value else None
        )
    if trained and n and own.says("wandb_always_use_train_step"):
        rollouts = Fact(
            trained.value, f"{trained.origin}; wandb_always_use_train_step: steps are optimiser steps"
        )
        problems = None  # of an update: what a batch has is shared among several
    return known(
        {
            "rollouts_per_problem": n,
            "problems_per_batch": problems,
            "rollouts_per_step": rollouts,
            "on_policy": on_policy,
            "seed": own.count("rollout_seed", "seed", least=0),
            "algorithm": own.text("advantage_estimator"),
            "problem_set": own.text("prompt_data"),
            "lr": own.number("lr"),
            "kl": own.number("kl_loss_coef") if own.says("use_kl_loss") else own.number("kl_coef"),
            "entropy": own.number("entropy_coef"),
            "temperature": own.number("rollout_temperature"),
            "model": own.text("hf_checkpoint"),
        }
    )


FRAMEWORK = Framework(
    "slime", recognises, ("rollout/step", "eval/step", "train/step"), metric, facts, first_step=0
)
