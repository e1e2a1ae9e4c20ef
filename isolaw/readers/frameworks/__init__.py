"""The names of each framework: the meaning of its metrics, and its settings for B_p and n."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from isolaw.errors import InputError, unknown
from isolaw.readers.frameworks.base import Framework

# Framework name for users → its module, imported on demand; the most specific first.
FRAMEWORKS: dict[str, str] = {
    "isolaw": "isolaw.readers.frameworks.others",
    "ROLL": "isolaw.readers.frameworks.others",  # before veRL, whose names it shares
    "EasyR1": "isolaw.readers.frameworks.verl",  # likewise; only its configuration tells them apart
    "veRL": "isolaw.readers.frameworks.verl",
    "tinker-cookbook": "isolaw.readers.frameworks.others",
    "prime-rl": "isolaw.readers.frameworks.prime_rl",
    "SkyRL": "isolaw.readers.frameworks.others",
    "slime": "isolaw.readers.frameworks.slime",
    "NeMo-RL": "isolaw.readers.frameworks.others",
    "open-instruct": "isolaw.readers.frameworks.others",
    "OpenRLHF": "isolaw.readers.frameworks.openrlhf",
    "AReaL": "isolaw.readers.frameworks.others",
    "ART": "isolaw.readers.frameworks.others",
    "mlx-lm-lora": "isolaw.readers.frameworks.others",
    "nanochat": "isolaw.readers.frameworks.others",
    "torchforge": "isolaw.readers.frameworks.others",
    "TRL": "isolaw.readers.frameworks.trl",
}


def known() -> Iterator[Framework]:
    """Yield all frameworks in the order in which isolaw tries them."""
    for name, module in FRAMEWORKS.items():
        its = importlib.import_module(module)
        yield getattr(its, name.upper().replace("-", "_"), None) or its.FRAMEWORK


def find(keys: Collection[str], config: Mapping[str, Any]) -> Framework | None:
    """Return the framework that writes these metric keys or this configuration, or None if unknown."""
    return next((framework for framework in known() if framework.recognises(keys, config)), None)


def possible(keys: Collection[str]) -> list[Framework]:
    """Return the frameworks that could have written these keys, since one of the keys is a reward to them.

    If some of these frameworks also use one of the keys to count steps, return only those frameworks.
    """
    rewards = {("train", "reward"), ("validation", "reward")}
    frameworks = (framework for framework in known() if framework.own_keys)
    matching = [each for each in frameworks if not rewards.isdisjoint(map(each.target, keys))]
    return [framework for framework in matching if not set(framework.step_keys).isdisjoint(keys)] or matching


# The last two belong to TRL.
_OF_TRAINING = ("train/", "train_", "training/", "training_", "rewards/", "completions/")


def of_training(key: str) -> bool:
    """Return whether a metric's key alone shows that the metric is measured on training batches.

    >>> [of_training(key) for key in ("critic/score/mean", "train/acc", "train_acc", "val/acc", "acc")]
    [True, True, True, False, False]
    """
    if key.lower().startswith(_OF_TRAINING):
        return True
    framework = find([key], {})
    target = framework.target(key) if framework else None
    return target is not None and target[0] == "train"


def named(name: str) -> Framework:
    """Return the framework called ``name``, in any case, or raise an `InputError` that lists all names."""
    for framework in known():
        if framework.name.lower() == name.lower():
            return framework
    raise InputError(f"framework: {unknown('framework', name, FRAMEWORKS, 'expected')}")
