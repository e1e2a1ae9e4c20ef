"""open-instruct's ``grpo_fast``: its metric names, and where B_p and n stand.

``training_step`` counts steps; trackers may count rollouts instead (``episode``). ``scores`` is the reward;
``val/…`` is of training, not of validation, which is ``eval/…``. ``eval/pass_at_1`` is the mean over a
prompt's samples, ``pass_at_<k>`` whether any of exactly k was right, ``pass_at_<k>_unbiased`` the unbiased
best@k. It generates ``async_steps`` steps ahead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from isolaw.readers.frameworks.base import Fact, Framework
from isolaw.readers.frameworks.configured import Configured, known

_NAMES = {
    "scores": "reward",
    "policy/entropy_avg": "entropy",
    "objective/kl_avg": "kl",  # the plain estimate; later versions number their estimates from 0
    "objective/kl0_avg": "kl",
    "optim/grad_norm": "grad_norm",
    "val/sequence_lengths": "response_length",
    "val/num_total_tokens": "tokens",
    "val/num_step_tokens": "step_tokens",
    "eval/scores": "reward",
    "eval/sequence_lengths": "response_length",
}
_OWN = ("real_batch_size_ratio", "unsolved_batch_size_ratio", "packed_ratio", "val/num_step_tokens")
_PASS = re.compile(r"eval/pass_at_(\d{1,6})(_unbiased)?")
_PER_DATA = re.compile(r"eval/scores_(.+)", re.S)
_NOT_KEPT = re.compile(
    r"episode|global_step|training_step|epoch|lr|(?:time|learner|actor|batch)/.*|(?:eval/)?(?:learner|actor)_tokens.*"
    r"|.*tokens_per_second(?:_\w{1,20})?|objective/kl\d_avg|val/(?:sequence_lengths|advantages)_.*|.*(?:_hist|_min|_max|_time|utilization)"
    r"|.*(?:_mfu|_mbu)",
    re.S,
)


def metric(key: str) -> tuple[str, str] | None:
    """Return (eval_set, metric) of one of open-instruct's keys.

    >>> metric("scores"), metric("eval/pass_at_8_unbiased"), metric("val/sequence_lengths")
    (('train', 'reward'), ('validation', 'best@8'), ('train', 'response_length'))
    >>> metric("eval/scores"), metric("eval/objective/verifiable_correct_rate"), metric("time/total")
    (('validation', 'reward'), ('validation', 'objective/verifiable_correct_rate'), None)
    """
    eval_set = "validation" if key.startswith("eval/") else "train"
    if key in _NAMES:
        return eval_set, _NAMES[key]
    found = _PASS.fullmatch(key)
    if found:
        k = int(found[1])
        if k == 1:
            return None if found[2] else ("validation", "pass@1")  # the two are one number
        return "validation", f"best@{k}"
    found = _PER_DATA.fullmatch(key)
    if found:
        return found[1], "reward"
    name = key.removeprefix("eval/")
    return None if not name or _NOT_KEPT.fullmatch(key) else (eval_set, name)


def recognises(keys: Collection[str], config: Mapping[str, Any]) -> bool:
    """Return whether these metric keys, or this configuration, are open-instruct's."""
    if not set(_OWN).isdisjoint(keys) or {"training_step", "scores"} <= set(keys):
        return True
    return "num_unique_prompts_rollout" in config


def facts(config: Mapping[str, Any], config_source: str) -> dict[str, Fact]:
    """Return what open-instruct's arguments say of the run."""
    own = Configured(config, config_source)
    problems = own.count("num_unique_prompts_rollout")
    if problems and (own.says("active_sampling") or own.says("filter_zero_std_samples")):
        problems = Fact(
            problems.value, f"{problems.origin} (groups without variance are filtered: not counted)"
        )
    return known(
        {
            "rollouts_per_problem": own.count("num_samples_per_prompt_rollout"),
            "problems_per_batch": problems,
            "on_policy": _on_policy(own),
            "seed": own.count("seed", least=0),
            "problem_set": _problem_set(own),
            "lr": own.number("learning_rate"),
            "kl": own.number("beta"),
            "temperature": own.number("temperature"),
            "model": own.text("model_name_or_path"),
        }
    )


def _on_policy(own: Configured) -> Fact | None:
    ahead, older = own.count("async_steps", least=0), own.truth("async_mode")
    for fact in (ahead, older):
        if fact and fact.value:
            return Fact(
                False, f"{fact.origin} = {fact.value}: rollouts are generated while the policy is trained"
            )
    for fact in (own.count("num_mini_batches"), own.count("num_epochs")):
        if fact and fact.value > 1:
            return Fact(False, f"{fact.origin} = {fact.value}")
    said = ahead or older
    return said and Fact(True, f"{said.origin} = {said.value}")


def _problem_set(own: Configured) -> Fact | None:
    """The data sets of ``dataset_mixer_list``: names and shares in turn."""
    mixed = own.config.get("dataset_mixer_list")
    if not isinstance(mixed, list) or not mixed or not all(isinstance(name, str) for name in mixed[::2]):
        return None
    return own.fact("dataset_mixer_list", "+".join(mixed[::2]))


FRAMEWORK = Framework("open-instruct", recognises, ("training_step",), metric, facts)
