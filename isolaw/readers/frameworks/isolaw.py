"""isolaw's own runs, as it mirrors them to trackers (`isolaw.trackers`).

There the x axis is compute; the update step is a metric. The configuration is under ``isolaw.``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from isolaw.readers.frameworks.base import Fact, Framework

_OWN = "isolaw"


def recognises(keys: Collection[str], config: Mapping[str, Any]) -> bool:
    """Return whether these are a mirror's keys, or its configuration."""
    return f"{_OWN}/step" in keys or f"{_OWN}.run_id" in config


def metric(key: str) -> tuple[str, str] | None:
    """Return (eval_set, metric).

    >>> metric("validation/avg@4"), metric("validation/avg_at_4"), metric("isolaw/wall_s")
    (('validation', 'avg@4'), ('validation', 'avg@4'), None)
    """
    eval_set, slash, name = key.partition("/")
    if not slash or eval_set == _OWN:
        return None
    return eval_set, re.sub(r"_at_(?=\d)", "@", name)  # MLflow accepts no @


def facts(config: Mapping[str, Any], config_source: str) -> dict[str, Fact]:
    """Return what the mirror wrote of the run: everything under our own names."""
    return {
        key.removeprefix(f"{_OWN}."): Fact(value, f"{key} in {config_source}")
        for key, value in config.items()
        if key.startswith(f"{_OWN}.") and key != f"{_OWN}.run_id"
    }


FRAMEWORK = Framework(
    name="isolaw",
    recognises=recognises,
    step_keys=(f"{_OWN}/step",),
    metric=metric,
    facts=facts,
)
