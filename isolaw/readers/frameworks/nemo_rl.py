"""NeMo-RL: its metric names, and its settings for B_p and n.

All names have a prefix (``train/``, ``validation/``, ``timing/``, ``performance/``), and steps are the
tracker's steps. The validation at step 0 precedes training. A step is one batch of rollouts.
"""

from __future__ import annotations

from isolaw.readers.frameworks.base import Config, Fact, Facts, Framework, best, by_rules, one_update

_NAMES = {
    "mean_gen_tokens_per_sample": "response_length",
    "truncation_rate": "truncated_fraction",
    "approx_entropy": "entropy",
    "kl_penalty": "kl",
    "total_num_tokens": "step_tokens",
    "avg_length": "response_length",
}
_OWN = (
    "train/(?:mean_gen_tokens_per_sample|token_mult_prob_error|gen_kl_error|global_valid_seqs|global_valid_toks"
    "|sampling_importance_ratio|probs_ratio_clamped)|timing/train/total_step_time"
)
_NOT_KEPT = (
    r"lr|wd|global_valid_(?:seqs|toks)|histogram/.*|.*/(?:min|max|std|stddev)"
    r"|.*(?:_per_sec(?:_\w{1,20})?|_fp_utilization|_plot_sample|_time(?:_s)?)"
)


def _facts(config: Config, facts: Facts) -> Facts:
    n, problems = facts["rollouts_per_problem"], facts["problems_per_batch"]
    if not problems:
        return {}
    if config.is_true("grpo.use_dynamic_sampling"):
        problems = problems.but("with dynamic sampling, C does not count discarded rollouts")
    trained = config.count("policy.train_global_batch_size")
    apart = config.boolean("grpo.async_grpo.enabled", "async_grpo.enabled") or Fact(False, "")
    on_policy = one_update(n.value * problems.value, trained, None, apart) if n else None
    return {"problems_per_batch": problems, "on_policy": on_policy}


FRAMEWORK = Framework(
    "NeMo-RL",
    by_rules(
        (r"validation/pass(?:[@_-]|_at_)?(?P<k>\d{1,6})", "validation", best),
        (r"(?P<set>train|validation)/(?P<name>.+)", "", ""),
        names=_NAMES,
        not_kept=_NOT_KEPT,
    ),
    own_keys=((_OWN,),),
    own_config=(("grpo.num_prompts_per_step",),),
    settings={
        "rollouts_per_problem": ("grpo.num_generations_per_prompt",),
        "problems_per_batch": ("grpo.num_prompts_per_step",),
        "seed": ("grpo.seed",),
        "algorithm": ("grpo.adv_estimator.name",),
        "problem_set": ("data.dataset_name", "data.train.dataset_name"),
        "lr": ("policy.optimizer.kwargs.lr", "policy.megatron_cfg.optimizer.lr"),
        "kl": ("loss_fn.reference_policy_kl_penalty",),
        "temperature": ("policy.generation.temperature",),
        "model": ("policy.model_name",),
    },
    counts=("generated",),  # printed on its console
    more_facts=_facts,
    seconds_keys=("timing/train/total_step_time",),
)
