"""prime-rl: its metric names, old and new, and its settings for B_p and n.

There are three generations of reward names: ``train/agg/effective/<agent>/reward/mean``, ``reward/all/mean``
and ``reward/mean``. Evaluations are ``eval/<env>/effective/<agent>/avg@k`` or ``eval/<env>/avg@k``.
``effective`` rollouts were trained on; isolaw takes health metrics from ``all`` rollouts. ``batch_size``
counts rollouts, and ``pass@k`` is the unbiased best@k. prime-rl generates rollouts while it trains, unless
``max_off_policy_steps`` (formerly ``max_async_level``) is 0.
"""

from __future__ import annotations

import re

from isolaw.readers.frameworks.base import Config, Fact, Facts, Framework, by_rules

_OWN = (
    r"(?:train|eval)/[^/]+/(?:effective|all)/.*|(?:entropy|reward|is_truncated)/all/mean"
    r"|mismatch_kl/(?:all/)?mean|progress/(?:total_)?(?:problems|samples|rollouts)"
)
_NAMES = {
    "reward/all/mean": "reward",
    "reward/mean": "reward",
    "entropy/all/mean": "entropy",
    "entropy/mean": "entropy",
    "mismatch_kl/all/mean": "mismatch_kl",  # between trainer and sampler, not relative to the base model
    "mismatch_kl/mean": "mismatch_kl",
    "optim/grad_norm": "grad_norm",
    "is_truncated/all/mean": "truncated_fraction",
    "is_truncated/mean": "truncated_fraction",
    "decode_len/all/mean": "response_length",
    "completion_len/mean": "response_length",
    "progress/total_tokens": "tokens",
    "progress/tokens": "step_tokens",
    "progress/rollouts": "step_rollouts",
    "scheduler/cancelled_rollouts": "dropped_rollouts",  # too old, or cancelled when a new policy came
    "batch/cancelled_rollouts": "dropped_rollouts",
}
_GROUP_SIZE = re.compile(r"(?:orchestrator\.)?(?:train\.)?env\.\d+\.(?:group_size|rollouts_per_example)")
# eval/<env>/[effective/][<agent>/]; evaluations of "all" include failed rollouts.
_EVALUATION = "eval/(?P<set>[^/]+)/(?:effective/)?(?:(?!all/)[^/]*/)?"
_NOT_KEPT = (
    r"(?:time|timing|perf|inference|dispatcher|system|event_loop_lag|progress|batch|watcher|scheduler)/.*"
    r"|optim/lr|.*/(?:max|min|std)|.*/(?:timing|error)/.*"
)


def _either(*names: str) -> tuple[str, ...]:
    """Return the names of an orchestrator setting in ``rl.toml`` and in the orchestrator's own file."""
    return tuple(name for key in names for name in (f"orchestrator.{key}", key))


def _facts(config: Config, facts: Facts) -> Facts:
    batch = facts["rollouts_per_step"]
    lag = config.count(*_either("max_async_level", "max_off_policy_steps"), least=0)
    on_policy = Fact(
        False, "prime-rl generates rollouts while it trains, unless its configuration disables this"
    )
    if lag:
        on_policy = Fact(lag.value == 0, f"{lag.origin} = {lag.value}")
    # Environments can have their own group sizes; n is a single number only if all sizes are equal.
    sizes = [config.count(key) for key in config.values if _GROUP_SIZE.fullmatch(key)]
    n = sizes[0] if sizes else facts["rollouts_per_problem"]
    return {
        "rollouts_per_problem": n if len({size and size.value for size in sizes}) < 2 else None,
        "rollouts_per_step": batch and batch.but("C does not count rollouts that filters discard"),
        "on_policy": on_policy,
        "problem_set": _environments(config),
    }


def _environments(config: Config) -> Fact | None:
    for table in _either("train.env", "env"):
        facts = [
            config.text(*(f"{table}.{i}.{name}" for name in ("name", "taskset.id", "id"))) for i in range(20)
        ]
        if names := [fact.value for fact in facts if fact]:
            return config.fact(table, "+".join(names))
    return None


FRAMEWORK = Framework(
    "prime-rl",
    by_rules(
        (rf"{_EVALUATION}avg(?:@|_at_)(?P<k>\d{{1,6}})", "", "avg@{}".format),
        (rf"{_EVALUATION}pass(?:@|_at_)(?P<k>\d{{1,6}})", "", "best@{}".format),
        ("train/agg/effective/(?:[^/]*/)?reward/mean", "train", "reward"),
        ("train/agg/effective/(?:[^/]*/)?num_output_tokens/mean", "train", "response_length"),
        ("train/agg/all/(?:[^/]*/)?is_truncated/mean", "train", "truncated_fraction"),
        ("(?!(?:eval|train)/)(?P<name>[^/]*/.+)", "train", ""),
        names=_NAMES,
        not_kept=_NOT_KEPT,
    ),
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
    seconds_keys=("time/step",),
)
