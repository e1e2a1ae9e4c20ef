"""OpenRLHF: its metric names and its arguments, flat or (since 0.10) in sections.

Trackers get ``train/…`` and ``eval/…``; the console prints ``Global step 12: {…}`` with bare names.
``rollout_batch_size`` counts prompts, ``train_batch_size`` rollouts; a global step is one batch of rollouts,
however many optimiser steps it makes. ``eval_<data>_pass1`` is the mean over the samples of a prompt,
``eval_<data>_pass<k>`` whether any of exactly k was right. W&B keeps sections as the text
``namespace(batch_size=128, …)``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from isolaw.readers.configs import scalar
from isolaw.readers.frameworks.base import Fact, Framework
from isolaw.readers.frameworks.configured import Configured, known, one_update

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
_OWN = {"rollout/reward_mean", "actor_lr", "logprobs_diff"}
_EVALUATION = re.compile(
    r"(?:eval/)?eval_(?:(.+)_)?(pass(\d{1,6})|response_length_mean|truncated_rate)", re.S
)
_EVALUATED = {"response_length_mean": "response_length", "truncated_rate": "truncated_fraction"}
_NOT_KEPT = re.compile(
    r"timing/.*|(?:actor|critic)_lr|global_step|epoch|total_length|.*generated_samples", re.S
)
_FIELD = re.compile(r"(\w{1,60})=")


def metric(key: str) -> tuple[str, str] | None:
    """Return (eval_set, metric) of one of OpenRLHF's keys.

    >>> metric("train/rollout/reward_mean"), metric("eval/eval_aime24_pass1"), metric("eval_aime24_pass8")
    (('train', 'reward'), ('aime24', 'pass@1'), ('aime24', 'best@8'))
    >>> metric("train/kl"), metric("train/actor_lr"), metric("train/timing/ppo_train")
    (('train', 'kl'), None, None)
    """
    found = _EVALUATION.fullmatch(key)
    if found:
        data, name, k = found[1] or "validation", found[2], found[3]
        if k:
            return data, "pass@1" if int(k) == 1 else f"best@{int(k)}"
        return data, _EVALUATED[name]
    if key.startswith(("eval/", "eval_")):
        return None
    name = key.removeprefix("train/")
    if name in _NAMES:
        return "train", _NAMES[name]
    return None if not name or _NOT_KEPT.fullmatch(name) else ("train", name)


def recognises(keys: Collection[str], config: Mapping[str, Any]) -> bool:
    """Return whether these metric keys, or this configuration, are OpenRLHF's."""
    if any(key.removeprefix("train/") in _OWN or key.startswith("eval/eval_") for key in keys):
        return True
    own = _flat(config)
    return {"rollout.n_samples_per_prompt", "train.batch_size"} <= set(own) or {
        "n_samples_per_prompt",
        "rollout_batch_size",
        "micro_rollout_batch_size",
    } <= set(own)


def facts(config: Mapping[str, Any], config_source: str) -> dict[str, Fact]:
    """Return what OpenRLHF's arguments say of the run."""
    own = Configured(_flat(config), config_source)
    n = own.count("rollout.n_samples_per_prompt", "n_samples_per_prompt")
    problems = own.count("rollout.batch_size", "rollout_batch_size")
    if problems and (own.says("algo.dynamic_filtering_enable") or own.says("dynamic_filtering")):
        problems = Fact(
            problems.value, f"{problems.origin} (dynamic filtering: what it discards is not counted)"
        )
    on_policy = None
    if n and problems:
        on_policy = one_update(
            n.value * problems.value,
            own.count("train.batch_size", "train_batch_size"),
            own.count("train.max_epochs", "max_epochs"),
            own.truth("train.async_enable", "async_train") or Fact(False, ""),
        )
    return known(
        {
            "rollouts_per_problem": n,
            "problems_per_batch": problems,
            "on_policy": on_policy,
            "seed": own.count("train.seed", "seed", least=0),
            "algorithm": own.text("algo.advantage.estimator", "advantage_estimator"),
            "problem_set": own.text("data.prompt_dataset", "prompt_data"),
            "lr": own.number("actor.adam.lr", "actor.muon.lr", "actor_learning_rate"),
            "kl": own.number("algo.kl.init_coef", "init_kl_coef"),
            "entropy": own.number("actor.entropy_coef", "entropy_loss_coef"),
            "temperature": own.number("rollout.temperature", "temperature"),
            "model": own.text("actor.model_name_or_path", "pretrain"),
        }
    )


def _flat(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration with the sections that came as text."""
    texts = {k: v for k, v in config.items() if isinstance(v, str) and v.startswith("namespace(")}
    if not texts:
        return config
    out = dict(config)
    for section, text in texts.items():
        out.update(_namespace(section, text))
    return out


def _namespace(section: str, text: str) -> dict[str, Any]:
    """Read a printed ``SimpleNamespace``, also one within another; nothing is evaluated.

    >>> _namespace("actor", "namespace(adam=namespace(lr=1e-06, betas=[0.9, 0.95]), name='a, b', n=8)")
    {'actor.adam.lr': 1e-06, 'actor.adam.betas': '[0.9, 0.95]', 'actor.name': 'a, b', 'actor.n': 8}
    """
    out: dict[str, Any] = {}
    inside = [section]
    at = len("namespace(")
    while at < len(text) and inside and len(inside) < 20:
        if text[at] == ")":
            inside.pop()
            at += 1
        elif text[at] in ", ":
            at += 1
        elif (field := _FIELD.match(text, at)) is None:
            break
        elif text.startswith("namespace(", field.end()):
            inside.append(field[1])
            at = field.end() + len("namespace(")
        else:
            at = _end_of_value(text, field.end())
            value = text[field.end() : at]
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            out[".".join([*inside, field[1]])] = value[1:-1] if quoted else scalar(value)
    return out


def _end_of_value(text: str, at: int) -> int:
    """Where a value ends: at a comma or bracket of its own level."""
    open_, quote = 0, ""
    while at < len(text):
        sign = text[at]
        if quote:
            at += sign == "\\"
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            open_ += 1
        elif sign in ",)]}":
            if not open_:
                break
            open_ -= sign != ","
        at += 1
    return min(at, len(text))


FRAMEWORK = Framework("OpenRLHF", recognises, ("train/global_step", "eval/global_step"), metric, facts)
