"""slime (and its fork miles): its metric names, and its settings for B_p and n.

``rollout/…``, ``passrate/…`` and ``eval/…`` are counted by rollout batch, from 0. ``train/…`` is counted by
optimiser step, which is the same if a batch makes one step. With ``wandb_always_use_train_step``, all are
counted by optimiser step. ``eval/<data>`` is the mean reward of the samples, and ``pass@k`` the unbiased
best@k. An evaluation at 0 precedes training, and any other follows the update of its batch. Arguments are
written with dashes or underscores.
"""

from __future__ import annotations

from isolaw.readers.frameworks.base import Config, Fact, Facts, Framework, best, by_rules, one_update

_NAMES = {
    "rollout/raw_reward": "reward",
    "rollout/response_len/mean": "response_length",
    "rollout/response_lengths": "response_length",
    "rollout/truncated_ratio": "truncated_fraction",
    "rollout/truncated": "truncated_fraction",
    "train/entropy_loss": "entropy",
    "train/kl_loss": "kl",
    "train/grad_norm": "grad_norm",
}
_OWN = "rollout/(?:raw_reward|response_lengths|log_probs|ref_log_probs)|train/lr-pg_0"
_NOT_KEPT = (
    r"rollout/(?:step|rewards|total_lengths|advantages|returns)|train/(?:step|lr-.*|mtp_.*)|(?:perf|multi_turn)/.*"
    r"|.*/(?:max|min|median|std)|.*_time(?:/mean)?"
)


def _facts(config: Config, facts: Facts) -> Facts:
    n, problems = facts["rollouts_per_problem"], facts["problems_per_batch"]
    trained, updates = config.count("global_batch_size"), config.count("num_steps_per_rollout")
    out: dict[str, Fact | None] = {}
    if n and problems:
        batch = n.value * problems.value
        if updates and batch % updates.value == 0:
            trained = Fact(batch // updates.value, f"num_steps_per_rollout = {updates.value}{config.where}")
        colocated = config.boolean("colocate")
        apart = Fact(False, colocated.origin) if colocated and colocated.value else None
        out["on_policy"] = one_update(batch, trained, None, apart)
    if problems and config.text("dynamic_sampling_filter_path"):
        out["problems_per_batch"] = problems.but("with dynamic sampling, C does not count discarded rollouts")
    if trained and n and config.is_true("wandb_always_use_train_step"):
        origin = (
            f"{trained.origin}; wandb_always_use_train_step is on, so each logged step is an optimiser step"
        )
        out["rollouts_per_step"] = Fact(trained.value, origin)
        out["problems_per_batch"] = None  # of an update: several share the problems of a batch
    if not config.is_true("use_kl_loss"):
        out["kl"] = config.number("kl_coef")
    return out


FRAMEWORK = Framework(
    "slime",
    by_rules(
        (r"(?:passrate/|eval/(?P<set>.+)-)pass(?:@|_at_)(?P<k>\d{1,6})", "train", best),
        ("eval/(?P<set>.*)[-/]truncated_ratio", "", "truncated_fraction"),
        ("eval/(?P<set>.*)/response_len/mean", "", "response_length"),
        (r"eval/(?!step\Z)(?P<set>[^/]+)", "", "reward"),
        ("(?P<name>(?:rollout|train)/.*)", "train", ""),
        names=_NAMES,
        not_kept=_NOT_KEPT,
    ),
    own_keys=((_OWN,),),
    own_config=(("rollout_batch_size", "n_samples_per_prompt", "hf_checkpoint"),),
    settings={
        "rollouts_per_problem": ("n_samples_per_prompt",),
        "problems_per_batch": ("rollout_batch_size",),
        "seed": ("rollout_seed", "seed"),
        "algorithm": ("advantage_estimator",),
        "problem_set": ("prompt_data",),
        "lr": ("lr",),
        "kl": ("kl_loss_coef",),
        "entropy": ("entropy_coef",),
        "temperature": ("rollout_temperature",),
        "model": ("hf_checkpoint",),
    },
    more_facts=_facts,
    step_keys=("rollout/step", "eval/step", "train/step"),
    first_step=0,
    flat=lambda config: {key.replace("-", "_"): value for key, value in config.items()},
)
