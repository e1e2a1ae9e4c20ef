"""prime-rl: its metric names, old and new, and where B_p and n are.

Three generations of names: ``train/agg/effective/<agent>/reward/mean``, ``reward/all/mean`` and
``reward/mean``; evaluations are ``eval/<env>/effective/<agent>/avg@k``, or ``eval/<env>/avg@k``. Rollouts are
``effective`` where they were trained on; ``all`` of them is used for what says how healthy they are. Its
``batch_size`` counts rollouts, its ``pass@k`` is the unbiased best@k. It generates while it trains, unless
``max_off_policy_steps`` (before it: ``max_async_level``) is 0.
"""

from __future__ import annotations

import re

from isolaw.readers.frameworks.base import Config, Fact, Facts, Framework

_OWN = (
    r"(?:train|eval)/[^/]+/(?:effective|all)/.*|(?:entropy|reward|is_truncated)/all/mean"
    r"|mismatch_kl/(?:all/)?mean|progress/(?:total_)?(?:problems|samples|rollouts)"
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
# train/agg/<subset>/[<agent>/]<name>
_AGGREGATE = {
    "effective": {"reward/mean": "reward", "num_output_tokens/mean": "response_length"},
    "all": {"is_truncated/mean": "truncated_fraction"},
}
# eval/<env>/[effective/][<agent>/]avg@k; evaluations of "all" include rollouts that failed.
_EVALUATION = re.compile(r"([^/]+)/(?:effective/)?(?:(?!all/)[^/]*/)?(avg|pass)(?:@|_at_)(\d{1,6})", re.S)
_GROUP_SIZE = re.compile(r"(?:orchestrator\.)?(?:train\.)?env\.\d+\.(?:group_size|rollouts_per_example)")
_NOT_KEPT = re.compile(
    r"(?:time|timing|perf|inference|dispatcher|system|event_loop_lag|progress|batch|watcher|scheduler)/"
    r"|optim/lr$|.*/(?:max|min|std)$|.*/(?:timing|error)/"
)


def metric(key: str) -> tuple[str, str] | None:
    """Return (eval_set, metric) of one of prime-rl's keys."""
    if key in _TRAINING:
        return "train", _TRAINING[key]
    scope, _, rest = key.partition("/")
    if scope == "eval":
        found = _EVALUATION.fullmatch(rest)
        return (found[1], f"{'best' if found[2] == 'pass' else 'avg'}@{int(found[3])}") if found else None
    if scope == "train":  # train/<env>: its parts of the aggregate
        subset, _, name = rest.removeprefix("agg/").partition("/")
        wanted = _AGGREGATE.get(subset, {}) if rest.startswith("agg/") else {}
        ours = wanted.get(name) or wanted.get(name.partition("/")[2])  # without and with an agent
        return ("train", ours) if ours else None
    return None if not rest or _NOT_KEPT.match(key) else ("train", key)


def _either(*names: str) -> tuple[str, ...]:
    """Settings of the orchestrator, in ``rl.toml`` and in the orchestrator's own file."""
    return tuple(name for own in names for name in (f"orchestrator.{own}", own))


def _facts(config: Config, facts: Facts) -> Facts:
    batch = facts["rollouts_per_step"]
    lag = config.count(*_either("max_async_level", "max_off_policy_steps"), least=0)
    if lag is None:
        on_policy = Fact(False, "prime-rl generates while it trains, unless its configuration says otherwise")
    else:
        on_policy = Fact(lag.value == 0, f"{lag.origin} = {lag.value}")
    # Environments may have a group size of their own; n is one number only where they agree.
    sizes = [config.count(key) for key in config.values if _GROUP_SIZE.fullmatch(key)]
    n = sizes[0] if sizes else facts["rollouts_per_problem"]
    return {
        "rollouts_per_problem": n if len({size and size.value for size in sizes}) < 2 else None,
        "rollouts_per_step": batch and batch.but("what filters discard is not counted"),
        "on_policy": on_policy,
        "problem_set": _environments(config),
    }


def _environments(config: Config) -> Fact | None:
    for table in _either("train.env", "env"):
        found = [
            config.text(*(f"{table}.{i}.{name}" for name in ("name", "taskset.id", "id"))) for i in range(20)
        ]
        if names := [fact.value for fact in found if fact]:
            return config.fact(table, "+".join(names))
    return None


FRAMEWORK = Framework(
    "prime-rl",
    metric,
    own_keys=((_OWN,),),
    own_config=((r"orchestrator\..*(?:group_size|rollouts_per_example)",),),
    settings={
        "rollouts_per_problem": _either("group_size", "rollouts_per_example"),
        "rollouts_per_step": _either("batch_size"),
        "seed": _either("seed"),
        "algorithm": _either("algorithms.0.id", "algo.type"),
        "lr": ("trainer.optim.lr", "optim.lr"),
        "temperature": _either("train.sampling.temperature", "sampling.temperature"),
        "model": _either("model.name"),
    },
    more_facts=_facts,
    step_keys=("step",),
)
