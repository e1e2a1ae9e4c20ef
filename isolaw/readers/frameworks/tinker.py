"""tinker-cookbook's ``rl.train``: its metric names, and its settings for B_p and n.

``metrics.jsonl`` and ``config.json`` are in one folder. ``env/all/…`` describes the training batch,
``test/env/all/…`` the test set, ``test/env/<tag>/…`` a part of the test set, and ``<name>/env/all/…`` another
evaluator. Steps count from 0. An evaluation in the record of step s measures the policy after s updates,
since it runs before the batch of that step.
"""

from __future__ import annotations

from isolaw.readers.frameworks.base import Config, Fact, Facts, Framework, by_rules

_NAMES = {
    "reward/total": "reward",
    "correct": "accuracy",
    "ac_tokens_per_turn": "response_length",
    "optim/entropy": "entropy",
    "optim/kl_sample_train_v1": "kl_sample_train",  # between sampler and trainer, not to the base model
    "kl_policy_base": "kl",
}
_OWN = "(?:[^/]+/)?env/all/(?:reward/total|ac_tokens_per_turn|by_group/.*)"
_NOT_KEPT = (
    "(?:time|progress|async|training_client|sampling_client)/.*|optim/(?:lr|kl_sample_train_v2)"
    "|.*tokens.*|total_.*|turns_per_episode|done_frac"
)


def _either(*names: str) -> tuple[str, ...]:
    """Return the names of a setting in the trainer's and in the data set's configuration."""
    return (*names, *(f"dataset_builder.{name}" for name in names))


def _facts(config: Config, _facts: Facts) -> Facts:
    """Return ``on_policy``: true if a batch makes one optimiser step, and nothing is asynchronous."""
    lag, steps = config.count("async_config.max_steps_off_policy", least=0), config.count("num_substeps")
    if lag:
        return {"on_policy": Fact(lag.value == 0, f"{lag.origin} = {lag.value}")}
    if steps and (steps.value > 1 or "async_config" in config.values):
        return {"on_policy": Fact(steps.value == 1, f"{steps.origin} = {steps.value}")}
    return {}


FRAMEWORK = Framework(
    "tinker-cookbook",
    by_rules(
        ("test/env/all/(?P<name>.+)", "validation", ""),
        ("test/env/(?P<set>[^/]+)/(?P<name>.+)", "", ""),
        ("(?P<set>[^/]+)/env/all/(?P<name>.+)", "", ""),
        ("env/all/(?P<name>.+)", "train", ""),
        ("(?P<name>(?!.*env/).+)", "train", ""),  # single tags of a batch are not kept
        names=_NAMES,
        not_kept=_NOT_KEPT,
    ),
    own_keys=((_OWN,),),
    own_config=((r"(?:dataset_builder\.)?groups_per_batch", r"(?:dataset_builder\.)?group_size"),),
    settings={
        "rollouts_per_problem": _either("group_size"),
        "problems_per_batch": (*_either("groups_per_batch"), "dataset_builder.batch_size"),
        "seed": _either("seed"),
        "problem_set": _either("dataset_name"),
        "lr": ("learning_rate",),
        "kl": ("kl_penalty_coef",),
        "temperature": ("temperature",),
        "loss_type": ("loss_fn",),
        "model": ("model_name",),
    },
    counts=("env/all/total_episodes",),
    more_facts=_facts,
    step_keys=("progress/batch", "training_client/step"),
    first_step=0,
    evaluates_first=True,
)
