"""NeMo-RL: its metric names, and where B_p and n stand.

All names have a prefix (``train/``, ``validation/``, ``timing/``, ``performance/``), steps are the
tracker's. Validation at step 0 is before training. A step is one batch of rollouts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from isolaw.readers.frameworks.base import Fact, Framework
from isolaw.readers.frameworks.configured import Configured, known, one_update

_NAMES = {
    "mean_gen_tokens_per_sample": "response_length",
    "truncation_rate": "truncated_fraction",
    "approx_entropy": "entropy",
    "kl_penalty": "kl",
    "total_num_tokens": "step_tokens",
    "avg_length": "response_length",
}
_OWN = {
    f"train/{name}"
    for name in (
        *("mean_gen_tokens_per_sample", "token_mult_prob_error", "gen_kl_error", "global_valid_seqs"),
        *("global_valid_toks", "sampling_importance_ratio", "probs_ratio_clamped"),
    )
} | {"timing/train/total_step_time"}
_PASS = re.compile(r"pass(?:[@_-]|_at_)?(\d{1,6})")
_NOT_KEPT = re.compile(
    r"lr|wd|global_valid_(?:seqs|toks)|histogram/.*|.*(?:_per_sec(?:_\w{1,20})?|_fp_utilization|_plot_sample|_time(?:_s)?)|.*/(?:min|max|std|stddev)",
    re.S,
)


def metric(key: str) -> tuple[str, str] | None:
    """Return (eval_set, metric) of one of NeMo-RL's keys.

    >>> metric("train/reward"), metric("validation/accuracy"), metric("validation/pass@8")
    (('train', 'reward'), ('validation', 'accuracy'), ('validation', 'best@8'))
    >>> metric("train/mean_gen_tokens_per_sample"), metric("timing/train/total_step_time"), metric("train/lr")
    (('train', 'response_length'), None, None)
    """
    section, _, name = key.partition("/")
    if section not in ("train", "validation") or not name or _NOT_KEPT.fullmatch(name):
        return None
    found = _PASS.fullmatch(name) if section == "validation" else None
    if found:
        return section, "pass@1" if int(found[1]) == 1 else f"best@{int(found[1])}"
    return section, _NAMES.get(name, name)


def recognises(keys: Collection[str], config: Mapping[str, Any]) -> bool:
    """Return whether these metric keys, or this configuration, are NeMo-RL's."""
    return not _OWN.isdisjoint(keys) or "grpo.num_prompts_per_step" in config


def facts(config: Mapping[str, Any], config_source: str) -> dict[str, Fact]:
    """Return what NeMo-RL's configuration says of the run."""
    own = Configured(config, config_source)
    n, problems = own.count("grpo.num_generations_per_prompt"), own.count("grpo.num_prompts_per_step")
    if problems and own.says("grpo.use_dynamic_sampling"):
        problems = Fact(
            problems.value, f"{problems.origin} (dynamic sampling: what it discards is not counted)"
        )
    on_policy = None
    if n and problems:
        on_policy = one_update(
            n.value * problems.value,
            own.count("policy.train_global_batch_size"),
            None,
            own.truth("grpo.async_grpo.enabled", "async_grpo.enabled") or Fact(False, ""),
        )
    return known(
        {
            "rollouts_per_problem": n,
            "problems_per_batch": problems,
            "on_policy": on_policy,
            "seed": own.count("grpo.seed", least=0),
            "algorithm": own.text("grpo.adv_estimator.name"),
            "problem_set": own.text("data.dataset_name", "data.train.dataset_name"),
            "lr": own.number("policy.optimizer.kwargs.lr", "policy.megatron_cfg.optimizer.lr"),
            "kl": own.number("loss_fn.reference_policy_kl_penalty"),
            "temperature": own.number("policy.generation.temperature"),
            "model": own.text("policy.model_name"),
        }
    )


FRAMEWORK = Framework("NeMo-RL", recognises, (), metric, facts)
