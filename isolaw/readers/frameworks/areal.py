"""AReaL: its metric names, and its settings for B_p and n (areal 1.0).

``ppo_actor/task_reward/avg`` is the mean reward of the training batch, and ``eval-rollout/reward`` the mean
reward of the evaluation after the update of the step. Trackers count steps from 0, and the console from 1. By
default AReaL generates rollouts while it trains (``rollout.max_head_offpolicyness``).
"""

from __future__ import annotations

from isolaw.readers.frameworks.base import Config, Fact, Facts, Framework, by_rules

_ACTOR = "(?:ppo|grpo)_actor"
_NAMES = {
    "task_reward/avg": "reward",
    "seq_len/avg": "response_length",
    "entropy/avg": "entropy",
    "update/entropy/avg": "entropy",
    "update/grad_norm": "grad_norm",
    "kl_rewards/avg": "kl",
}
_NOT_KEPT = (
    r"(?:timeperf|time_perf|version_stats)/.*"
    r"|.*(?:/(?:min|max|std)|n_(?:seqs|tokens|valid_tokens)|lr|__count)"
)


# Settings of AReaL before 0.5.2 and since, with which an update omits groups of the batch.
_FILTERS = ("actor.dynamic_sampling", "dynamic_bs")


def _facts(config: Config, facts: Facts) -> Facts:
    batch = facts["problems_per_batch"]
    if batch and config.is_true(*_FILTERS):
        batch = batch.but("with dynamic sampling, an update omits groups of the batch; C counts them")
    return {"problems_per_batch": batch, "on_policy": _on_policy(config)}


def _on_policy(config: Config) -> Fact | None:
    """Return whether a batch makes one update, and no rollout comes from older weights."""
    lag = config.count("rollout.max_head_offpolicyness", least=0)
    updates = config.count("actor.ppo_n_minibatches")
    if lag is None or updates is None:
        return None
    origin = f"{lag.origin} = {lag.value}, {updates.origin} = {updates.value}"
    return Fact(lag.value == 0 and updates.value == 1, origin)


FRAMEWORK = Framework(
    "AReaL",
    by_rules(
        ("eval-rollout/(?P<name>.+)", "validation", ""),
        (f"{_ACTOR}/(?P<name>.+)", "train", ""),
        ("rollout/(?P<name>reward)", "train", "rollout_reward"),
        ("(?P<name>.+)", "train", ""),
        names=_NAMES,
        not_kept=_NOT_KEPT,
    ),
    own_keys=((f"{_ACTOR}/(?:task_reward/avg|n_seqs|correct_n_seqs|final_reward/avg)|eval-rollout/.+",),),
    own_config=((r"gconfig\.n_samples", r"train_dataset\.batch_size"),),
    settings={
        "rollouts_per_problem": ("gconfig.n_samples",),
        "problems_per_batch": ("train_dataset.batch_size",),
        "seed": ("seed",),
        "problem_set": ("train_dataset.path",),
        "lr": ("actor.optimizer.lr",),
        "kl": ("actor.kl_ctl",),
        "temperature": ("gconfig.temperature",),
        "model": ("actor.path",),
    },
    counts=("ppo_actor/n_seqs", "grpo_actor/n_seqs"),
    more_facts=_facts,
    first_step=0,
)
