"""TRL's GRPOTrainer, and verifiers' RLTrainer (0.1): their metric names and arguments.

Names are bare (``reward``, ``eval_reward``: `trainer_state.json`, stdout) or in the form for trackers
(``train/reward``, ``eval/reward``). ``step`` counts optimiser steps.

Since 0.18, a batch of ``generation_batch_size`` rollouts is generated for every ``steps_per_generation``
micro-steps and used ``num_iterations`` times. An optimiser step uses ``gradient_accumulation_steps``
micro-steps. The average number of rollouts generated for a step is generation_batch_size ·
gradient_accumulation_steps / (steps_per_generation · num_iterations), which equals
per_device_train_batch_size · devices · gradient_accumulation_steps / num_iterations. The log does not contain
the number of devices, and ``trainer_state.json`` does not contain the accumulation either. Before 0.15 the
per-device batch counted prompts, and later completions; only arguments introduced later show which.
RLTrainer's ``batch_size`` counts rollouts, and it generates one step ahead.
"""

from __future__ import annotations

import math
import re

from isolaw.readers.frameworks.base import APART, Config, Fact, Facts, Framework

_NAMES = {
    "completions/mean_length": "response_length",
    "completion_length": "response_length",
    "completions/clipped_ratio": "truncated_fraction",
    "tokens/completion": "response_length",  # RLTrainer's name
    "num_tokens": "tokens",
    "entropy/mean": "entropy",  # ms-swift's name
}
# Names that, with `reward`, no other framework uses, bare or after train/.
_OWN = (
    "completion_length|completions/mean_length|frac_reward_zero_std|reward_std|rewards/.*|advantage/absmean"
)
_PREFIX = "(?:train/|eval/|eval_)?"
_NOT_KEPT = re.compile(
    r"(?:epoch|step|global_step|learning_rate|num_input_tokens_seen|total_flos|train_.*|.*runtime|.*_per_second"
    r"|.*_time|(?:.*_)?mem_.*|.*_loss|completions/.*|clip_ratio/.*(?:min|max)|.*/(?:min|max|std)|memory\(GiB\)|train_speed\(.*"
    "|percentage|(?:timing|wall_clock|profiling)/.*)",
    re.S,
)
# Arguments that GRPOConfig did not have when its batch counted prompts.
_NEWER = {
    *("num_iterations", "steps_per_generation", "generation_batch_size", "epsilon", "scale_rewards"),
    *("loss_type", "reward_weights", "sync_ref_model", "ds3_gather_for_generation", "log_completions"),
    *("vllm_mode", "mask_truncated_completions", "importance_sampling_level"),
}


def _metric(key: str) -> tuple[str, str] | None:
    """Return the (eval_set, metric) of a TRL key, or None if the metric is not kept."""
    if key.startswith(("eval_", "eval/")):
        eval_set, name = "validation", key[5:]
    else:
        eval_set, name = "train", key.removeprefix("train/")
    if name in _NAMES:
        return eval_set, _NAMES[name]
    if not name or _NOT_KEPT.fullmatch(name):
        return None
    return eval_set, name.removesuffix("/mean") if name.startswith("rewards/") else name


def _facts(config: Config, facts: Facts) -> Facts:
    if config.count("rollouts_per_example"):
        ahead = Fact(False, f"verifiers' RLTrainer: {APART}")
        return {"rollouts_per_step": config.count("batch_size"), "on_policy": ahead}
    rollouts = _rollouts_per_step(config)
    if rollouts and config.is_true("dynamic_sample"):  # of ms-swift
        rollouts = rollouts.but("with dynamic sampling, C does not count discarded rollouts")
    n, generated = facts["rollouts_per_problem"], config.count("generation_batch_size")
    updates = None
    if n and generated and rollouts and rollouts.value % n.value and generated.value % rollouts.value == 0:
        # A group feeds several updates.
        updates = Fact(generated.value // rollouts.value, f"{generated.origin} / rollouts per step")
    return {
        "updates_per_batch": updates,
        "rollouts_per_step": rollouts,
        "problems_per_batch": None if rollouts else _what_is_missing(config),
        "on_policy": _on_policy(config) if facts["rollouts_per_problem"] else None,
    }


def _rollouts_per_step(config: Config) -> Fact | None:
    total = config.count("total_train_batch_size")
    accumulated, iterations = config.count("gradient_accumulation_steps"), config.count("num_iterations")
    generated, steps = config.count("generation_batch_size"), config.count("steps_per_generation")
    device, devices = (
        config.count("per_device_train_batch_size"),
        config.count("world_size", "num_processes", "global_world_size"),
    )
    newer = not _NEWER.isdisjoint(config.values)
    if accumulated and generated and steps:
        above, below = [generated, accumulated], [steps]
    elif total and newer:  # the total includes devices and accumulation
        above, below = [total], []
    elif accumulated and device and devices and newer:
        above, below = [device, devices, accumulated], []
    else:
        return None
    below += [iterations] if iterations else []
    product, divisor = (math.prod(fact.value for fact in facts) for facts in (above, below))
    over, under = (
        " · ".join(f"{fact.origin.removesuffix(config.where)} {fact.value}" for fact in facts)
        for facts in (above, below)
    )
    rollouts = product // divisor if product % divisor == 0 else product / divisor
    return Fact(rollouts, f"{over}{f' / ({under})' if under else ''}{config.where}")


def _what_is_missing(config: Config) -> Fact | None:
    """Return a fact with the value None, whose origin gives the formula for B_p."""
    device = config.count("per_device_train_batch_size", "train_batch_size")
    if device is None:
        return None
    if total := config.count("total_train_batch_size"):
        origin = f"B_p = {total.origin} ({total.value}) / n"
        return Fact(None, f"{origin}; not divided by n if TRL was older than 0.15, which counts prompts")
    accumulated = config.count("gradient_accumulation_steps")
    times = f" ({accumulated.value})" if accumulated else ""
    origin = f"B_p = {device.origin} ({device.value}) · devices · gradient_accumulation_steps{times} / n"
    origin += "; if this is below 1, set rollouts_per_step instead of B_p"
    if _NEWER.isdisjoint(config.values):
        origin += "; not divided by n if TRL was older than 0.15, which counts prompts"
    return Fact(None, origin)


def _on_policy(config: Config) -> Fact | None:
    accumulated, steps = config.count("gradient_accumulation_steps"), config.count("steps_per_generation")
    iterations = config.count("num_iterations")
    if iterations and iterations.value > 1:
        return Fact(False, f"{iterations.origin} = {iterations.value}")
    once = f"num_iterations = 1{'' if iterations else ' (unless set)'}"
    if steps and accumulated:
        # If fewer steps per generation than are accumulated, an update has several generations, all by one
        # policy.
        same = accumulated.value % steps.value == 0
        sizes = f"steps_per_generation = {steps.value}, gradient_accumulation_steps = {accumulated.value}"
        return Fact(same, f"{once}, {sizes}{config.where}")
    if steps or config.count("generation_batch_size"):
        return None
    return Fact(
        True, f"{once}, steps_per_generation as gradient_accumulation_steps (unless set){config.where}"
    )


FRAMEWORK = Framework(
    "TRL",
    _metric,
    own_keys=(
        (f"{_PREFIX}reward", f"{_PREFIX}(?:{_OWN})"),
        # For exports of single panels: names that only GRPOTrainer logs, or the Trainer's callback with it.
        ("(?:train|eval)/reward", "train/global_step", "train/learning_rate"),
        ("(?:train/|eval/|eval_)(?:completions/.*|completion_length|frac_reward_zero_std|rewards/.*/mean)",),
    ),
    own_config=(
        ("num_generations", "per_device_train_batch_size"),
        ("rollouts_per_example", "micro_batch_size", "per_device_train_batch_size"),
    ),
    settings={
        "rollouts_per_problem": ("num_generations", "rollouts_per_example"),
        "seed": ("seed",),
        "problem_set": ("dataset_name",),
        "lr": ("learning_rate",),
        "kl": ("beta",),
        "entropy": ("entropy_coef",),
        "temperature": ("temperature",),
        "loss_type": ("loss_type",),
        "model": ("model_name_or_path", "model_config._name_or_path", "_name_or_path"),
        "logging_steps": ("logging_steps",),
    },
    more_facts=_facts,
    step_keys=("step", "train/global_step", "global_step"),
    counted_by_trackers=False,
    seconds_keys=("step_time", "train/step_time"),
)
