"""ART (openpipe-art 0.5): ``history.jsonl`` in a model's folder, or W&B.

A step is the number of a checkpoint, i.e. of updates made. The user's code defines batch sizes; newer
versions log the number of trajectories in each step.
"""

from __future__ import annotations

from isolaw.readers.frameworks.base import Framework, by_rules

FRAMEWORK = Framework(
    "ART",
    by_rules(
        ("val/(?P<name>.+)", "validation", ""),
        ("(?:train|loss)/(?P<name>.+)", "train", ""),
        names={"grad_norm": "grad_norm", "entropy": "entropy", "kl_div": "kl"},
        not_kept="learning_rate|num_.*|.*std_dev|loss",
    ),
    own_keys=(("(?:train|val)/exception_rate",), ("train/reward_std_dev", "train/reward")),
    counts=("data/step_num_trajectories",),
    step_keys=("training_step",),
    counted_by_trackers=False,
)
