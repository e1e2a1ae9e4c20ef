"""SkyRL: its metric names, and its settings for B_p and n.

``eval/all/avg_score`` is the mean reward of the evaluation's samples, and ``pass_at_<k>`` whether any of
exactly k samples was right. With several data sets, each has its own metrics next to ``all``.
``trainer/global_step`` counts batches of rollouts, and an evaluation at step 0 precedes training. The start
command decides whether a run is fully asynchronous; shared devices (``colocate_all``) rule that out.
"""

from __future__ import annotations

from isolaw.readers.frameworks.base import Config, Fact, Facts, Framework, best, by_rules, one_update

_NAMES = {
    "reward/avg_raw_reward": "reward",
    "policy/policy_entropy": "entropy",
    "policy/policy_kl": "kl",
    "loss/avg_kl": "kl",  # if the KL term is in the reward instead of the loss
    "policy/raw_grad_norm": "grad_norm",
    "policy/grad_norm": "grad_norm",
    "generate/avg_num_tokens": "response_length",
}
_OWN = (
    "reward/avg_raw_reward|policy/policy_entropy|loss/avg_final_rewards|generate/avg_num_tokens"
    r"|eval/.+/(?:avg_score|pass_at_\d{1,6})"
)
_NOT_KEPT = (
    r"(?:timing|trainer|vllm|ray|system|consumed)/.*|generate/.*|critic/.*|async/.*time.*|policy/(?:\w*lr|response_length)"
    r"|loss/kl_loss_coef|.*_(?:max|min|std|p90)"
)


def _facts(config: Config, facts: Facts) -> Facts:
    out: dict[str, Fact | None] = {}
    if problems := facts["problems_per_batch"]:
        colocated = config.boolean("trainer.placement.colocate_all")
        out["on_policy"] = one_update(
            problems.value,
            config.count("trainer.policy_mini_batch_size"),
            config.count("trainer.update_epochs_per_batch"),
            Fact(False, colocated.origin) if colocated and colocated.value else None,
            what="problems",
        )
        if sampling := config.text("trainer.algorithm.dynamic_sampling.type"):
            caveat = f"dynamic sampling, {sampling.value}: C does not count discarded rollouts"
            out["problems_per_batch"] = problems.but(caveat)
    uses = [config.boolean(f"trainer.algorithm.use_kl_{where}") for where in ("loss", "in_reward")]
    if all(use is not None and not use.value for use in uses):
        out["kl"] = config.fact("trainer.algorithm.use_kl_loss and use_kl_in_reward = False", 0.0)
    return out


FRAMEWORK = Framework(
    "SkyRL",
    by_rules(
        (r"eval/(?:all|(?P<set>.+))/avg_score", "validation", "reward"),
        (r"eval/(?:all|(?P<set>.+))/pass_at_(?P<k>\d{1,6})", "validation", best),
        ("eval/all/generate/avg_num_tokens", "validation", "response_length"),
        (r"reward/avg_pass_at_(?P<k>\d{1,6})", "train", best),
        ("(?!eval/)(?P<name>.*/.*)", "train", ""),
        names=_NAMES,
        not_kept=_NOT_KEPT,
    ),
    own_keys=((_OWN,),),
    own_config=(("generator.n_samples_per_prompt", "trainer.train_batch_size"),),
    settings={
        "rollouts_per_problem": ("generator.n_samples_per_prompt",),
        "problems_per_batch": ("trainer.train_batch_size",),
        "seed": ("trainer.seed",),
        "algorithm": ("trainer.algorithm.advantage_estimator",),
        "lr": ("trainer.policy.optimizer_config.lr",),
        "kl": ("trainer.algorithm.kl_loss_coef",),
        "temperature": ("generator.sampling_params.temperature",),
        "model": ("trainer.policy.model.path",),
    },
    more_facts=_facts,
    step_keys=("trainer/global_step",),
    seconds_keys=("timing/step",),
)
