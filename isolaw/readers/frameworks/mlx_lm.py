"""mlx-lm-lora's GRPO: its metric names, and its settings for B_p and n (mlx-lm-lora 3.1 and older).

Values are means over ``steps_per_report`` iterations. An iteration uses ``batch_size`` prompts, and
``gradient_accumulation_steps`` iterations make an update. isolaw counts each iteration as a step, so that
compute is correct.
"""

from __future__ import annotations

from isolaw.readers.frameworks.base import Config, Facts, Framework, by_rules

_NAMES = {"total_rewards_mean": "reward", "average_generated_tokens": "response_length", "kl": "kl"}


def _facts(config: Config, facts: Facts) -> Facts:
    problems, parts = facts["problems_per_batch"], config.count("gradient_accumulation_steps")
    if problems and parts and parts.value > 1:
        problems = problems.but(f"of an iteration, of which {parts.value} make an update")
    return {"problems_per_batch": problems}


FRAMEWORK = Framework(
    "mlx-lm-lora",
    by_rules(
        ("train_(?P<name>.+)", "train", ""),
        ("val_(?P<name>.+)", "validation", ""),
        names=_NAMES,
        not_kept=".*_(?:std|coverage)|(?:loss|learning_rate|trained_tokens|min_.*|max_.*|hit_.*|grouped_.*|clip_.*|peak_mem(?:ory)?|time|took|.*/sec)",
    ),
    own_keys=(("train_total_rewards_mean",),),
    own_config=(("group_size", "grpo_loss_type"),),
    settings={
        "rollouts_per_problem": ("group_size",),
        "problems_per_batch": ("batch_size",),
        "seed": ("seed",),
        "problem_set": ("data",),
        "lr": ("learning_rate",),
        "kl": ("beta",),
        "temperature": ("temperature",),
        "model": ("model",),
    },
    more_facts=_facts,
)
