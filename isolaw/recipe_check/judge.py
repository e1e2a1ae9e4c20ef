"""Compare the rewards of recipes, and test which differences exceed noise.

The reward of recipe k with seed s is ``r_ks = μ_k + σ_s + ε_ks``. Here μ_k is the recipe's mean, σ_s the
effect shared by all runs of a seed (problems, their order, evaluations), and ε_ks noise. For K recipes and S
seeds, the variance of ε is estimated from all rewards together, where a dot replaces an index that is
averaged::

    v = Σ_ks (r_ks − r_k· − r_·s + r_··)² / ((K − 1)(S − 1))

and recipes a and b differ if ::

    |r_a· − r_b·| > t √(2 v / S)

where t is the 97.5 % point of Student's t with (K − 1)(S − 1) degrees of freedom (Fisher's least significant
difference in a randomized block design). Otherwise, or with one seed, the comparison is undecided.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from scipy.stats import t as student

LEVEL = 0.95
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Judged(Generic[K]):
    """The mean reward of each recipe, with the standard error and the least significant difference.

    The standard error and the difference are None if the noise cannot be estimated, e.g. with one seed.
    """

    mean: dict[K, float]
    error: float | None
    least: float | None

    def better(self, one: K, other: K) -> bool:
        """Return whether ``one`` is significantly better than ``other``."""
        return self.least is not None and self.mean[one] - self.mean[other] > self.least

    def undecided(self, one: K) -> list[K]:
        """Return the other recipes that do not differ significantly from ``one``."""
        others = [key for key in self.mean if key != one]
        return [key for key in others if not (self.better(one, key) or self.better(key, one))]


def judge(rewards: Mapping[K, Mapping[int, float]], unstable: Collection[K] = ()) -> Judged[K]:
    """Judge ``rewards``, which maps each recipe to its reward by seed. All recipes must have the same seeds.

    The noise is estimated without the ``unstable`` recipes, whose rewards scatter more.

    >>> found = judge({"on": {0: 0.50, 1: 0.53}, "off": {0: 0.40, 1: 0.43}, "both": {0: 0.49, 1: 0.53}})
    >>> found.better("on", "off"), found.undecided("on")
    (True, ['both'])
    """
    mean = {key: float(np.mean(list(own.values()))) for key, own in rewards.items()}
    steady = [key for key in rewards if key not in unstable]
    table = np.array([[rewards[key][seed] for seed in sorted(rewards[key])] for key in steady])
    if table.ndim != 2 or min(table.shape) < 2:
        return Judged(mean, None, None)
    rest = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    error = float(np.sqrt(np.sum(rest**2) / freedom / table.shape[1]))
    least = float(student.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(2) * error)
    return Judged(mean, error, least)
