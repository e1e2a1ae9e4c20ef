"""TRL's GRPOTrainer: its metric names, old and new, and what its arguments say.

Names come bare (``reward``, ``eval_reward``: `trainer_state.json`, stdout) or as trackers get them
(``train/reward``, ``eval/reward``). ``step`` counts optimiser steps.

Since 0.18 a batch of ``generation_batch_size`` rollouts is generated for every ``steps_per_generation``
micro-steps and used ``num_iterations`` times, while an optimiser step takes ``gradient_accumulation_steps``
micro-steps. The rollouts generated for a step are, on average, generation_batch_size ·
gradient_accumulation_steps / (steps_per_generation · num_iterations), which is per_device_train_batch_size ·
devices · gradient_accumulation_steps / num_iterations. Neither the devices nor, in ``trainer_state.json``,
the accumulation is in the log. Before 0.15 the per-device batch counted prompts, later completions; only
arguments that came later tell.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from isolaw.readers.frameworks.base import Fact, Framework
from isolaw.readers.frameworks.configured import Configured, known

_NAMES = {
    "completions/mean_length": "response_length",
    "completion_length": "response_length",
    "completions/clipped_ratio": "truncated_fraction",
    "num_tokens": "tokens",
}
# With `reward`: what no other framework calls so, bare or after train/.
_OWN = ("completion_length", "completions/mean_length", "frac_reward_zero_std", "reward_std")
_NOT_KEPT = re.compile(
    r"(?:epoch|step|global_step|learning_rate|num_input_tokens_seen|total_flos|train_.*|.*runtime|.*_per_second"
    r"|.*_time|(?:.*_)?mem_.*|.*_loss|completions/.*|clip_ratio/.*(?:min|max)|.*/(?:min|max|std))",
    re.S,
)
# GRPOConfig did not have them while its batch counted prompts.
_NEWER = {
    *(
        "num_iterations",
        "steps_per_generation",
        "generation_batch_size",
        "epsilon",
        "scale_rewards",
        "loss_type",
    ),
    *("reward_weights", "sync_ref_model", "ds3_gather_for_generation", "log_completions", "vllm_mode"),
    *("mask_truncated_completions", "importance_sampling_level"),
}


def _parts(key: str) -> tuple[str, str]:
    """("train" or "validation", the bare name)."""
    for prefix in ("eval_", "eval/"):
        if key.startswith(prefix):
            return "validation", key.removeprefix(prefix)
    return "train", key.removeprefix("train/")


def metric(key: str) -> tuple[str, str] | None:
    """Return (eval_set, metric) of one of TRL's keys.

    >>> metric("reward"), metric("eval/rewards/accuracy_reward/mean"), metric("rewards/accuracy_reward")
    (('train', 'reward'), ('validation', 'rewards/accuracy_reward'), ('train', 'rewards/accuracy_reward'))
    >>> metric("train/completions/mean_length"), metric("epoch"), metric("train_loss")
    (('train', 'response_length'), None, None)
    """
    eval_set, name = _parts(key)
    if name in _NAMES:
        return eval_set, _NAMES[name]
    if not name or _NOT_KEPT.fullmatch(name):
        return None
    if name.startswith("rewards/"):
        name = name.removesuffix("/mean")
    return eval_set, name


def recognises(keys: Collection[str], config: Mapping[str, Any]) -> bool:
    """Return whether these metric keys, or this configuration, are those of TRL's GRPO."""
    names = {_parts(key)[1] for key in keys}
    if "reward" in names and (not names.isdisjoint(_OWN) or any(n.startswith("rewards/") for n in names)):
        return True
    return {"num_generations", "per_device_train_batch_size"} <= set(config)


def facts(config: Mapping[str, Any], config_source: str) -> dict[str, Fact]:
    """Return what TRL's arguments, or the little that the trainer's state holds of them, say of the run."""
    own = Configured(config, config_source)
    rollouts = _rollouts_per_step(own)
    return known(
        {
            "rollouts_per_problem": own.count("num_generations"),
            "rollouts_per_step": rollouts,
            "problems_per_batch": None if rollouts else _what_is_missing(own),
            "on_policy": _on_policy(own),
            "seed": own.count("seed", least=0),
            "problem_set": own.text("dataset_name"),
            "lr": own.number("learning_rate"),
            "kl": own.number("beta"),
            "entropy": own.number("entropy_coef"),
            "temperature": own.number("temperature"),
            "loss_type": own.text("loss_type"),
            "model": own.text("model_name_or_path", "model_config._name_or_path", "_name_or_path"),
            "logging_steps": own.count("logging_steps"),
        }
    )


def _rollouts_per_step(own: Configured) -> Fact | None:
    accumulated, iterations = own.count("gradient_accumulation_steps"), own.count("num_iterations")
    if accumulated is None:
        return None
    generated, steps = own.count("generation_batch_size"), own.count("steps_per_generation")
    device, devices = own.count("per_device_train_batch_size"), own.count("world_size", "num_processes")
    if generated and steps:
        above, below = [generated, accumulated], [steps]
    elif device and devices and not _NEWER.isdisjoint(own.config):
        above, below = [device, devices, accumulated], []
    else:
        return None
    if iterations:
        below.append(iterations)
    product, divisor = 1, 1
    for fact in above:
        product *= fact.value
    for fact in below:
        divisor *= fact.value
    said = " · ".join(_said(fact, own) for fact in above)
    under = " · ".join(_said(fact, own) for fact in below)
    rollouts = product // divisor if product % divisor == 0 else product / divisor
    return Fact(rollouts, f"{said}{f' / ({under})' if under else ''}{own.where}")


def _said(fact: Fact, own: Configured) -> str:
    return f"{fact.origin.removesuffix(own.where)} {fact.value}"


def _what_is_missing(own: Configured) -> Fact | None:
    """Not a fact (its value is None): its origin says what B_p would follow from."""
    device = own.count("per_device_train_batch_size", "train_batch_size")
    if device is None:
        return None
    accumulated = own.count("gradient_accumulation_steps")
    times = (
        f"gradient_accumulation_steps ({accumulated.value})" if accumulated else "gradient_accumulation_steps"
    )
    said = f"B_p = {device.origin} ({device.value}) · devices · {times} / n"
    if _NEWER.isdisjoint(own.config):
        said += "; not divided by n if TRL was older than 0.15, which counts prompts"
    return Fact(None, said)


def _on_policy(own: Configured) -> Fact | None:
    if not own.count("num_generations"):
        return None
    accumulated, steps = own.count("gradient_accumulation_steps"), own.count("steps_per_generation")
    iterations = own.count("num_iterations")
    if iterations and iterations.value > 1:
        return Fact(False, f"{iterations.origin} = {iterations.value}")
    said = f"num_iterations = 1{'' if iterations else ' (unless set)'}"
    if steps and accumulated:
        # Fewer steps a generation than are accumulated: several generations an update, all by one policy.
        same = accumulated.value % steps.value == 0
        return Fact(
            same,
            f"{said}, steps_per_generation = {steps.value}, gradient_accumulation_steps = "
            f"{accumulated.value}{own.where}",
        )
    if steps or own.count("generation_batch_size"):
        return None
    return Fact(True, f"{said}, steps_per_generation as gradient_accumulation_steps (unless set){own.where}")


FRAMEWORK = Framework("TRL", recognises, ("step", "train/global_step", "global_step"), metric, facts)
