"""open-instruct's ``grpo_fast``: its metric names, and its settings for B_p and n.

``training_step`` counts steps; trackers may count rollouts instead (``episode``). ``scores`` is the reward.
Keys ``val/…`` belong to training, and keys ``eval/…`` to validation. ``eval/pass_at_1`` is the mean over a
prompt's samples, ``pass_at_<k>`` whether any of exactly k samples was right, and ``pass_at_<k>_unbiased`` the
unbiased best@k. Generation runs ``async_steps`` steps ahead.
"""

from __future__ import annotations

from isolaw.readers.frameworks.base import APART, Config, Fact, Facts, Framework, best, by_rules

_NAMES = {
    "scores": "reward",
    "policy/entropy_avg": "entropy",
    "objective/kl_avg": "kl",  # the plain estimate; later versions number their estimates from 0
    "objective/kl0_avg": "kl",
    "optim/grad_norm": "grad_norm",
    "val/sequence_lengths": "response_length",
    "val/num_total_tokens": "tokens",
    "val/num_step_tokens": "step_tokens",
}
_OWN = "real_batch_size_ratio|unsolved_batch_size_ratio|packed_ratio|val/num_step_tokens"
_NOT_KEPT = (
    r"episode|global_step|training_step|epoch|lr|(?:time|learner|actor|batch)/.*|(?:learner|actor)_tokens.*"
    r"|.*tokens_per_second(?:_\w{1,20})?|objective/kl\d_avg|val/(?:sequence_lengths|advantages)_.*|.*(?:_hist|_min|_max|_time|utilization)"
    r"|.*(?:_mfu|_mbu)"
)


def _facts(config: Config, facts: Facts) -> Facts:
    problems = facts["problems_per_batch"]
    if problems and config.is_true("active_sampling", "filter_zero_std_samples"):
        problems = problems.but("C does not count filtered groups without variance")
    data = None
    mixed = config.values.get("dataset_mixer_list")  # alternating names and shares
    if isinstance(mixed, list) and mixed and all(isinstance(name, str) for name in mixed[::2]):
        data = config.fact("dataset_mixer_list", "+".join(mixed[::2]))
    return {"problems_per_batch": problems, "on_policy": _on_policy(config), "problem_set": data}


def _on_policy(config: Config) -> Fact | None:
    ahead, older = config.count("async_steps", least=0), config.boolean("async_mode")
    for fact in (ahead, older):
        if fact and fact.value:
            return Fact(False, f"{fact.origin} = {fact.value}: {APART}")
    for fact in (config.count("num_mini_batches"), config.count("num_epochs")):
        if fact and fact.value > 1:
            return Fact(False, f"{fact.origin} = {fact.value}")
    synchronous = ahead or older
    return synchronous and Fact(True, f"{synchronous.origin} = {synchronous.value}")


FRAMEWORK = Framework(
    "open-instruct",
    by_rules(
        ("eval/scores_(?P<set>.+)", "", "reward"),
        ("eval/sequence_lengths", "validation", "response_length"),
        (r"eval/pass_at_(?!0*1_)(?P<k>\d{1,6})(?:_unbiased)?", "validation", best),
        (r"eval/(?!pass_at_0*1_unbiased\Z)(?P<name>.+)", "validation", ""),  # the same as pass_at_1
        ("(?!eval/)(?P<name>.+)", "train", ""),
        names=_NAMES,
        not_kept=_NOT_KEPT,
    ),
    own_keys=((_OWN,), ("training_step", "scores")),
    own_config=(("num_unique_prompts_rollout",),),
    settings={
        "rollouts_per_problem": ("num_samples_per_prompt_rollout",),
        "problems_per_batch": ("num_unique_prompts_rollout",),
        "seed": ("seed",),
        "lr": ("learning_rate",),
        "kl": ("beta",),
        "temperature": ("temperature",),
        "model": ("model_name_or_path",),
    },
    more_facts=_facts,
    step_keys=("training_step",),
    prefixed=False,
)
