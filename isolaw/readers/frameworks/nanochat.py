"""nanochat's chat_rl and torchforge's GRPO: their metric names, and nanochat's settings for B_p and n.

nanochat counts steps from 0 and evaluates before the update of a step. ``pass@k`` is over the first k of its
samples of a problem; a step trains on ``examples_per_step`` problems with ``num_samples`` rollouts each.
torchforge's names are paths of its code; its configuration does not contain B_p.
"""

from __future__ import annotations

from isolaw.readers.frameworks.base import Framework, best, by_rules

FRAMEWORK = Framework(
    "nanochat",
    by_rules(
        (r"pass@(?P<k>\d{1,6})", "validation", best),
        (r"(?P<name>reward|sequence_length)", "train", ""),
        names={"sequence_length": "response_length"},
        not_kept="",
    ),
    own_keys=(("reward", "sequence_length"), (r"pass@\d+", "sequence_length|sequences_per_step")),
    own_config=(("examples_per_step", "num_samples", "device_batch_size"),),
    settings={
        "rollouts_per_problem": ("num_samples",),
        "problems_per_batch": ("examples_per_step",),
        "temperature": ("temperature",),
    },
    counts=("sequences_per_step",),
    step_keys=("step",),
    first_step=0,
    evaluates_first=True,
)
TORCHFORGE = Framework(
    "torchforge",
    by_rules(
        ("reward/evaluate_response/avg_total_reward", "train", "reward"),
        (r"(?P<set>eval\w*)/(?P<name>.+)", "", ""),
        (r"(?P<name>(?:reward|grpo_loss|loss|generator|rl_trainer|buffer|dataset)/.+)", "train", ""),
        names={"grpo_loss/kl_divergence_mean": "kl"},
        not_kept=r".*(?:_s|_gb|/count_.*|/sum_.*|/std_.*|/max_.*|/min_.*)",
    ),
    own_keys=((r"(?:reward/evaluate_response|grpo_loss|rl_trainer)/.*",),),
    settings={"rollouts_per_problem": ("group_size",), "model": ("model",)},
)
