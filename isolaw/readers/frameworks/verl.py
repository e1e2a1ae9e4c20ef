"""veRL and its descendants (EasyR1, DAPO's recipe, rLLM): their metric names, and settings for B_p and n.

Validation keys are ``val-core|val-aux/<data>/<variable>/<statistic>``. The variable ``acc`` is correctness:
its mean@N is avg@N, and best@k, worst@k and maj@k keep their names. Any other variable is a user-defined
reward, which need not be in [0, 1]: ``reward`` has ``reward@N`` and ``reward_best@k``. The older
``val/test_score/<data>`` is also such a reward, over a number of samples that is not in the log.

veRL draws best@k with replacement from its N samples. The result is biased low relative to pass@k, most
strongly if k is near N. At k = N, a problem solved by one of the N samples counts 0.63 instead of 1. Compare
veRL's best@k only with itself.

Batch sizes count prompts, including ``ppo_mini_batch_size`` (which veRL multiplies by n). Tokens are logged
per step as ``step_tokens``, prompts included.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from isolaw.readers.frameworks.base import Config, Fact, Facts, Framework, one_update
from isolaw.readers.literals import scalar
from isolaw.readers.raw_log import LARGEST_COUNT

_OWN = (
    "(?:val-core|val-aux|val/test_score|critic/score|critic/rewards|timing_per_token_ms|global_seqlen)/.*"
    "|actor/(?:ppo_kl|pg_clipfrac).*"
)
_STATISTIC = re.compile(r"(mean|best|worst|maj)(?:@|_at_)(\d{1,7})(/mean)?")  # MLflow does not allow @
# Search-R1 and its descendants; verl-agent and its descendants; RAGEN, whose problems are groups of
# environments.
_GROUP_SIZES = (
    *("actor_rollout_ref.rollout.n_agent", "env.rollout.n", "agent_grpo.n", "es_manager.train.group_size"),
)
# Settings with which a step trains on some of the prompts that it generates: DAPO's recipe, EasyR1, PRIME.
_FILTERS = (
    *("algorithm.filter_groups.enable", "algorithm.online_filtering"),
    *("data.filter_accuracy", "data.filter_truncated", "data.filter_truncate"),
)
# DeepScaleR and rLLM, before 0.2 and since. The number of prompts that they train on varies.
_REJECTIONS = ("trainer.rejection_sample", "rllm.rejection_sample.enable")
_MULTIPLIERS = ("trainer.rejection_sample_multiplier", "rllm.rejection_sample.multiplier")
_TRAINING = {
    "critic/score/mean": "reward",
    "critic/rewards/mean": "reward_with_kl",
    "actor/entropy": "entropy",
    "actor/entropy_loss": "entropy",
    "actor/kl_loss": "kl",  # relative to the reference model, in the loss or in the reward
    "actor/reward_kl_penalty": "kl",
    "critic/kl": "kl",
    "actor/ppo_kl": "ppo_kl",  # between the policies before and after the step
    "actor/grad_norm": "grad_norm",
    "response_length/mean": "response_length",
    "response_length/clip_ratio": "truncated_fraction",
    "perf/total_num_tokens": "step_tokens",
    "train/num_gen_batches": "num_gen_batches",
}
_NOT_KEPT = re.compile(
    r"(?:timing|perf|mfu|global_seqlen|prompt_length|num_turns|tool_call_counts|system)\w*/"
    r"|(?:actor|critic)/lr$|training/(?:global_step|epoch)$|.*/(?:max|min|std)$"
)


def _metric(key: str) -> tuple[str, str] | None:
    """Return the (eval_set, metric) of a veRL key, or None if the metric is not kept."""
    if key in _TRAINING:
        return "train", _TRAINING[key]
    section, _, rest = key.partition("/")
    if section in ("val-core", "val-aux"):
        return _validation(rest)
    if rest.startswith("generations"):  # a table of samples, of which W&B logs the size
        return None
    if section in ("validation", "eval", "test") and rest:  # keys of recipes
        return "validation", rest
    if section == "test_score" and rest:
        return rest, section
    if section == "val" and rest:
        data = rest.removeprefix("test_score/")
        return (data, "test_score") if data not in ("", rest) else ("validation", rest)
    if not rest or _NOT_KEPT.match(key) or section.startswith("val_"):
        return None
    return "train", key


def _validation(rest: str) -> tuple[str, str] | None:
    """Parse ``<data>/<variable>/mean@8`` or ``<data>/<variable>/best@4/mean``; data can have slashes."""
    parts = rest.rsplit("/", 3 if rest.endswith("/mean") else 2)
    if len(parts) == 4:
        parts = [*parts[:2], f"{parts[2]}/{parts[3]}"]
    match = _STATISTIC.fullmatch(parts[-1])
    if len(parts) != 3 or not parts[0] or not match or (match[1] == "mean") == bool(match[3]):
        return None
    data, variable, _ = parts
    name = "avg" if match[1] == "mean" else match[1]
    if variable != "acc":
        name = variable if name == "avg" else f"{variable}_{name}"
    return data, f"{name}@{int(match[2])}"


def _either(name: str) -> tuple[str, str]:
    """Return the names of a setting in EasyR1 and in veRL."""
    return f"worker.{name}", f"actor_rollout_ref.{name}"


def _facts(config: Config, facts: Facts) -> Facts:
    batch = _trained(config, facts["problems_per_batch"])
    mini = config.count("worker.actor.global_batch_size", "actor_rollout_ref.actor.ppo_mini_batch_size")
    passes = config.count(*_either("actor.ppo_epochs"))
    if config.count("es_manager.train.env_groups") or config.is_true(*_REJECTIONS):
        mini = None  # RAGEN counts trajectories here, after its filter; rejection leaves a varying number
    return {
        "problems_per_batch": _generated(config, batch) if batch else _asynchronous(config, mini),
        "rollouts_per_problem": _group(config, facts["rollouts_per_problem"]),
        "on_policy": one_update(batch.value, mini, passes, _apart(config), "prompts") if batch else None,
        "problem_set": _problem_set(config),
        "kl": _kl(config),
    }


def _group(config: Config, stated: Fact | None) -> Fact | None:
    """Return n. Multi-turn descendants have their own key for n and leave ``rollout.n`` at 1."""
    if stated is not None and stated.value > 1:
        return stated
    return config.count(*_GROUP_SIZES) or stated


def _dotted(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace the slashes of EasyR1's TensorBoard and of MLflow by dots, and parse values that are text."""
    if not any("/" in key for key in config):
        return config
    return {
        key.replace("/", "."): scalar(value) if isinstance(value, str) else value
        for key, value in config.items()
    }


def _trained(config: Config, batch: Fact | None) -> Fact | None:
    """Return the prompts that a step trains on. Without a filter: all of the data loader."""
    loaded = config.count("data.gen_batch_size")
    filtered = config.is_true(*_FILTERS, *_REJECTIONS)
    if batch is None or loaded is None or loaded.value == batch.value or filtered:
        return batch
    return loaded.but(f"veRL before 0.4 ignores this setting and uses {batch.origin}, {batch.value}")


def _asynchronous(config: Config, mini: Fact | None) -> Fact | None:
    """Return a fact with the value None, whose origin gives the formula for B_p without batches."""
    batches = config.count("async_training.require_batches")
    if mini is None or batches is None:
        return None
    return Fact(None, f"B_p = {mini.origin} ({mini.value}) · {batches.origin} ({batches.value})")


def _generated(config: Config, trained: Fact) -> Fact:
    """Return the prompts that a step generates, or the least number of them if a filter discards some."""
    rejects = config.is_true(*_REJECTIONS)
    stated = config.count("data.gen_batch_size", "data.mini_rollout_batch_size")
    times = config.number("data.oversample_factor", *(_MULTIPLIERS if rejects else ()))
    if stated is None and times and 1 < times.value < LARGEST_COUNT:
        stated = Fact(int(trained.value * times.value), f"{trained.origin} · {times.origin}")
    stated = stated or trained
    if stated.value < trained.value:
        batches = math.ceil(trained.value / stated.value)
        stated = Fact(batches * stated.value, f"{batches} · {stated.origin}")
    if stated.value == trained.value and not (rejects or config.is_true(*_FILTERS)):
        return trained
    return stated.but(
        "with dynamic sampling, a step generates this number or more (num_gen_batches) and trains on "
        f"{'some' if rejects else trained.value} prompts; C counts only this number"
    )


def _apart(config: Config) -> Fact:
    """Return whether generation runs in parallel to training (fully asynchronous or one-step-off)."""
    for key in config.values:
        if key.startswith("async_training."):
            return config.fact(key, True)
    hybrid = "actor_rollout_ref.hybrid_engine"
    return config.fact(f"{hybrid} = False", config.values.get(hybrid) is False)


def _kl(config: Config) -> Fact | None:
    """Return the KL coefficient in effect, in the loss or in the reward; 0 if neither is used."""
    if config.is_true("algorithm.disable_kl"):
        return config.fact("algorithm.disable_kl", 0.0)
    if "algorithm.kl_coef" in config.values:  # EasyR1 has one coefficient for both
        return config.number("algorithm.kl_coef")
    in_loss, in_reward = "actor_rollout_ref.actor.use_kl_loss", "algorithm.use_kl_in_reward"
    if config.is_true(in_loss):
        return config.number("actor_rollout_ref.actor.kl_loss_coef")
    if config.is_true(in_reward) or in_reward not in config.values:  # older versions have no such switch
        return config.number("algorithm.kl_ctrl.kl_coef")
    return config.fact(f"{in_loss} and {in_reward} = False", 0.0) if in_loss in config.values else None


def _problem_set(config: Config) -> Fact | None:
    files = config.values.get("data.train_files")
    if isinstance(files, str):
        files = files.strip("[]").split(",") if files.startswith("[") else [files]
    if files is None:  # MLflow numbers the entries of a list
        files = [config.values.get(f"data.train_files.{i}") for i in range(20)]
        files = [file for file in files if file is not None]
    if not isinstance(files, list) or not files or not all(isinstance(file, str) for file in files):
        return None
    names = dict.fromkeys(_named(file.strip(" '\"")) for file in files)
    return config.fact("data.train_files", "+".join(names)) if all(names) else None


def _named(file: str) -> str:
    """Return the name of a problem set: the name of its file, or of the folder if the file's name is generic.

    >>> [_named(f) for f in ("/data/gsm8k/train.parquet", "/data/dapo-17k.parquet", "org/math12k@train")]
    ['gsm8k', 'dapo-17k', 'org/math12k']
    """
    if "@" in file and not file.startswith(("/", ".", "~")):
        return file.partition("@")[0]
    path = PurePosixPath(file)
    return path.parent.name or path.stem if path.stem in ("train", "training", "data") else path.stem


FRAMEWORK = Framework(
    "veRL",
    _metric,
    own_keys=((_OWN,),),
    own_config=(("actor_rollout_ref.rollout.n",),),
    settings={
        "seed": ("data.seed", "seed.train"),
        "algorithm": ("algorithm.adv_estimator",),
        "model": ("actor_rollout_ref.model.path", "worker.actor.model.model_path"),
        "rollouts_per_problem": _either("rollout.n"),
        "problems_per_batch": (
            *("es_manager.train.env_groups", "data.rollout_batch_size", "data.train_batch_size"),
        ),
        "problem_set": ("data.train_files",),
        "lr": _either("actor.optim.lr"),
        "kl": ("algorithm.kl_coef",),
        "entropy": _either("actor.entropy_coeff"),
        "temperature": _either("rollout.temperature"),
    },
    more_facts=_facts,
    step_keys=("training/global_step",),
    flat=_dotted,
    seconds_keys=("timing_s/step",),
)
EASYR1 = replace(
    FRAMEWORK, name="EasyR1", own_keys=(), own_config=(("worker.rollout.n", "data.rollout_batch_size"),)
)
