"""SkyRL: its metric names, and where B_p and n stand.

``eval/all/avg_score`` is the mean reward of the evaluation's samples, ``pass_at_<k>`` whether any of exactly
k was right; with several data sets each has its own beside ``all``. ``trainer/global_step`` counts batches of
rollouts, and an evaluation at step 0 is before training. Whether a run was fully asynchronous is decided by
how it is started; sharing devices (``colocate_all``) rules it out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from isolaw.readers.frameworks.base import Fact, Framework
from isolaw.readers.frameworks.configured import Configured, known, one_update

_NAMES = {
    "reward/avg_raw_reward": "reward",
    "policy/policy_entropy": "entropy",
    "policy/policy_kl": "kl",
    "loss/avg_kl": "kl",  # where it is in the reward, not in the loss
    "policy/raw_grad_norm": "grad_norm",
    "policy/grad_norm": "grad_norm",
    "generate/avg_num_tokens": "response_length",
}
_OWN = ("reward/avg_raw_reward", "policy/policy_entropy", "loss/avg_final_rewards", "generate/avg_num_tokens")
_EVALUATION = re.compile(r"eval/(.+)/(avg_score|pass_at_(\d{1,6}))", re.S)
_PASS = re.compile(r"reward/avg_pass_at_(\d{1,6})")
_NOT_KEPT = re.compile(
    r"(?:timing|trainer|vllm|ray|system|consumed)/.*|generate/.*|critic/.*|async/.*time.*|policy/(?:\w*lr|response_length)"
    r"|loss/kl_loss_coef|.*_(?:max|min|std|p90)",
    re.S,
)


def metric(key: str) -> tuple[str, str] | None:
    """Return (eval_set, metric) of one of SkyRL's keys.

    >>> metric("eval/all/avg_score"), metric("eval/aime24/pass_at_8"), metric("reward/avg_raw_reward")
    (('validation', 'reward'), ('aime24', 'best@8'), ('train', 'reward'))
    >>> metric("policy/policy_kl"), metric("timing/step"), metric("trainer/global_step")
    (('train', 'kl'), None, None)
    """
    if key in _NAMES:
        return "train", _NAMES[key]
    found = _EVALUATION.fullmatch(key)
    if found:
        data = "validation" if found[1] == "all" else found[1]
        return data, "reward" if not found[3] else _best(found[3])
    if key == "eval/all/generate/avg_num_tokens":
        return "validation", "response_length"
    found = _PASS.fullmatch(key)
    if found:
        return "train", _best(found[1])
    if "/" not in key or key.startswith("eval/") or _NOT_KEPT.fullmatch(key):
        return None
    return "train", key


def _best(k: str) -> str:
    return "pass@1" if int(k) == 1 else f"best@{int(k)}"


def recognises(keys: Collection[str], config: Mapping[str, Any]) -> bool:
    """Return whether these metric keys, or this configuration, are SkyRL's."""
    if any(key in _OWN or (key.startswith("eval/") and _EVALUATION.fullmatch(key)) for key in keys):
        return True
    return {"generator.n_samples_per_prompt", "trainer.train_batch_size"} <= set(config)


def facts(config: Mapping[str, Any], config_source: str) -> dict[str, Fact]:
    """Return what SkyRL's configuration says of the run."""
    own = Configured(config, config_source)
    n, problems = own.count("generator.n_samples_per_prompt"), own.count("trainer.train_batch_size")
    sampling = own.text("trainer.algorithm.dynamic_sampling.type")
    if problems and sampling:
        problems = Fact(
            problems.value,
            f"{problems.origin} (dynamic sampling, {sampling.value}: what it discards is not counted)",
        )
    colocated = own.truth("trainer.placement.colocate_all")
    on_policy = None
    if problems:
        on_policy = one_update(
            problems.value,
            own.count("trainer.policy_mini_batch_size"),
            own.count("trainer.update_epochs_per_batch"),
            Fact(False, colocated.origin) if colocated and colocated.value else None,
            what="problems",
        )
    return known(
        {
            "rollouts_per_problem": n,
            "problems_per_batch": problems,
            "on_policy": on_policy,
            "seed": own.count("trainer.seed", least=0),
            "algorithm": own.text("trainer.algorithm.advantage_estimator"),
            "lr": own.number("trainer.policy.optimizer_config.lr"),
            "kl": _kl(own),
            "temperature": own.number("generator.sampling_params.temperature"),
            "model": own.text("trainer.policy.model.path"),
        }
    )


def _kl(own: Configured) -> Fact | None:
    """The coefficient, 0 where neither the loss nor the reward uses it."""
    uses = [own.truth(f"trainer.algorithm.use_kl_{where}") for where in ("loss", "in_reward")]
    if all(use is not None and not use.value for use in uses):
        return own.fact("trainer.algorithm.use_kl_loss and use_kl_in_reward = False", 0.0)
    return own.number("trainer.algorithm.kl_loss_coef")


FRAMEWORK = Framework("SkyRL", recognises, ("trainer/global_step",), metric, facts)
