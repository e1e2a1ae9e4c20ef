"""isolaw's own runs, as `isolaw.trackers` mirrors them to trackers.

In the trackers, the x axis is compute, and the update step is a metric. Configuration keys start with
``isolaw.``.
"""

from __future__ import annotations

import re

from isolaw.readers.frameworks.base import Config, Facts, Framework


def metric(key: str) -> tuple[str, str] | None:
    """Return the (eval_set, metric) of a key that isolaw wrote, or None for any other key."""
    eval_set, slash, name = key.partition("/")
    if not slash or eval_set == "isolaw":
        return None
    return eval_set, re.sub(r"_at_(?=\d)", "@", name)  # MLflow accepts no @


def _facts(config: Config, _facts: Facts) -> Facts:
    """Return the facts in a configuration that already has isolaw's own names."""
    keys = {key.removeprefix("isolaw."): key for key in config.values if key.startswith("isolaw.")}
    return {name: config.fact(key, config.values[key]) for name, key in keys.items() if name != "run_id"}


FRAMEWORK = Framework(
    "isolaw",
    metric,
    own_keys=(("isolaw/step",),),
    own_config=(("isolaw.run_id",),),
    more_facts=_facts,
    step_keys=("isolaw/step",),
)
