"""prime-rl: its metric names, old and new, and where B_p and n stand.

Three generations of names: ``train/agg/effective/<agent>/reward/mean``, ``reward/all/mean`` and
``reward/mean``; evaluations are ``eval/<env>/effective/<agent>/avg@k``, or ``eval/<env>/avg@k``. Rollouts are
``effective`` where they were trained on; ``all`` of them is used for what says how healthy they are. Its
``batch_size`` counts rollouts, its ``pass@k`` is the unbiased best@k. It generates while it trains, unless
``max_off_policy_steps`` (before it: ``max_async_level``) is 0.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from isolaw.readers.frameworks.base import Fact, Framework
from isolaw.readers.frameworks.configured import Configured, known

_OWN = re.compile(
    r"(?:train|eval)/[^/]+/(?:effective|all)/|(?:entropy|reward|is_truncated)/all/mean$"
    r"|mismatch_kl/(?:all/)?mean$|progress/(?:total_)?(?:problems|samples|rollouts)$"
)
_TRAINING = {
    "reward/all/mean": "reward",
    "reward/mean": "reward",
    "entropy/all/mean": "entropy",
    "entropy/mean": "entropy",
    "mismatch_kl/all/mean": "mismatch_kl",  # between trainer and sampler, not to the base model
    "mismatch_kl/mean": "mismatch_kl",
    "optim/grad_norm": "grad_norm",
    "is_truncated/all/mean": "truncated_fraction",
    "is_truncated/mean": "truncated_fraction",
    "decode_len/all/mean": "response_length",
    "completion_len/mean": "response_length",
    "progress/total_tokens": "tokens",
    "progress/tokens": "step_tokens",
    "progress/rollouts": "step_rollouts",
}
# <scope>/<subset>/[<agent>/]<rest>; the parts of it that have a name of ours.
_TRACE = {"reward/mean": "reward", "num_output_tokens/mean": "response_length"}
_ALL = {"is_truncated/mean": "truncated_fraction"}
_SCORE = re.compile(r"(avg|pass)(?:@|_at_)(\d{1,6})")
_GROUP_SIZE = re.compile(r"(?:orchestrator\.)?(?:train\.)?env\.\d+\.(?:group_size|rollouts_per_example)")
_NOT_KEPT = re.compile(
    r"(?:time|timing|perf|inference|dispatcher|system|event_loop_lag|progress|batch|watcher|scheduler)/"
    r"|optim/lr$|.*/(?:max|min|std)$|.*/(?:timing|error)/"
)


def metric(key: str) -> tuple[str, str] | None:
    """Return (eval_set, metric) of one of prime-rl's keys.

    >>> metric("train/agg/effective/agent/reward/mean"), metric("eval/aime24/effective/agent/pass@8")
    (('train', 'reward'), ('aime24', 'best@8'))
    >>> metric("reward/all/mean"), metric("eval/math500/avg@4"), metric("time/step")
    (('train', 'reward'), ('math500', 'avg@4'), None)
    """
    if key in _TRAINING:
        return "train", _TRAINING[key]
    scope, _, rest = key.partition("/")
    if scope == "eval":
        return _evaluation(rest)
    if scope == "train" and rest.startswith("agg/"):
        return _aggregate(rest.removeprefix("agg/"))
    if not rest or _NOT_KEPT.match(key) or scope == "train":  # train/<env>: its parts of the aggregate
        return None
    return "train", key


def _evaluation(rest: str) -> tuple[str, str] | None:
    env, _, name = rest.partition("/")
    for subset in ("effective", "all"):
        if name.startswith(f"{subset}/"):
            if subset == "all":
                return None  # with the rollouts that failed
            name = name.removeprefix("effective/")
    found = _SCORE.fullmatch(name.rpartition("/")[2])
    if not found or not env or name.count("/") > 1:
        return None
    return env, f"{'best' if found[1] == 'pass' else 'avg'}@{int(found[2])}"


def _aggregate(rest: str) -> tuple[str, str] | None:
    subset, _, name = rest.partition("/")
    wanted = {"effective": _TRACE, "all": _ALL}.get(subset, {})
    for form in (name, name.partition("/")[2]):  # without and with an agent
        if form in wanted:
            return "train", wanted[form]
    return None


def recognises(keys: Collection[str], config: Mapping[str, Any]) -> bool:
    """Return whether these metric keys, or this configuration, are prime-rl's."""
    return any(_OWN.match(key) for key in keys) or any(
        key.startswith("orchestrator.") and key.endswith(("group_size", "rollouts_per_example"))
        for key in config
    )


def facts(config: Mapping[str, Any], config_source: str) -> dict[str, Fact]:
    """Return what prime-rl's configuration (``rl.toml``, or the orchestrator's) says of the run."""
    own = Configured(config, config_source)
    lag = own.count(*_either("max_async_level"), *_either("max_off_policy_steps"), least=0)
    return known(
        {
            "rollouts_per_problem": _group_size(own),
            "rollouts_per_step": _trained_on(own.count(*_either("batch_size"))),
            "on_policy": _on_policy(lag),
            "seed": own.count(*_either("seed"), least=0),
            "algorithm": own.text(*_either("algorithms.0.id"), *_either("algo.type")),
            "problem_set": _environments(own),
            "lr": own.number("trainer.optim.lr", "optim.lr"),
            "temperature": own.number(
                *_either("train.sampling.temperature"), *_either("sampling.temperature")
            ),
            "model": own.text(*_either("model.name")),
        }
    )


def _either(name: str) -> tuple[str, str]:
    """A setting of the orchestrator's, in ``rl.toml`` and in the orchestrator's own file."""
    return f"orchestrator.{name}", name


def _group_size(own: Configured) -> Fact | None:
    """Environments may have one of their own; n is one number only where they agree."""
    names = [key for key in own.config if _GROUP_SIZE.fullmatch(key)]
    sizes = [own.count(name) for name in names]
    if len({size and size.value for size in sizes}) > 1:
        return None
    return sizes[0] if sizes else own.count(*_either("group_size"), *_either("rollouts_per_example"))


def _trained_on(batch: Fact | None) -> Fact | None:
    """Its batch is what a step is trained on; what filters discard was generated beside it."""
    return batch and Fact(batch.value, f"{batch.origin} (what filters discard is not counted)")


def _on_policy(lag: Fact | None) -> Fact:
    if lag is None:
        return Fact(False, "prime-rl generates while it trains, unless its configuration says otherwise")
    return Fact(lag.value == 0, f"{lag.origin} = {lag.value}")


def _environments(own: Configured) -> Fact | None:
    for table in (*_either("train.env"), *_either("env")):
        found = [
            own.text(*(f"{table}.{i}.{name}" for name in ("name", "taskset.id", "id"))) for i in range(20)
        ]
        if names := [fact.value for fact in found if fact]:
            return own.fact(table, "+".join(names))
    return None


FRAMEWORK = Framework("prime-rl", recognises, ("step",), metric, facts)
