"""Determine the unit of a reward, by which isolaw scales its constants, such as the tolerance of 0.005.

The constants are chosen for shares of problems, which have the unit 1. Accuracies in percent have the unit
100. The unit of any other metric is a power of ten, chosen so that its learning curves span more than 0.2 and
at most 2 units. Therefore

- a metric times 10^k has 10^k times the unit, and a metric plus a constant has the same unit;
- scores between −1 and 1 have the unit 1, and the tolerance is a round number;
- the tolerance is 0.25 % to 2.5 % of the range of the curves.

A metric in [0, 1] whose name is not an accuracy has the unit 1, unless its curves span less than ten
tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.selection import Configuration, Floats
from isolaw.metrics import is_accuracy

PERCENT = 100.0
_MOST = 2.0  # largest span of the curves, in units
_ROUNDING = 1e-9
_NARROW = 10 * TOLERANCE


def unit_of(metric: str, configurations: Sequence[Configuration]) -> float:
    """Return the unit of a metric, a power of ten.

    >>> def unit(metric, *reward):
    ...     compute, run = np.arange(2.0), np.zeros(2, int)
    ...     return unit_of(metric, [Configuration(32, 8, compute, np.array(reward), run, (0,), 256.0)])
    >>> unit("avg@4", 0.0, 0.02), unit("avg@4", 12.0, 64.0), unit("score", -0.4, 0.9), unit("return", 80, 450)
    (1.0, 100.0, 1.0, 1000.0)
    >>> unit("score", 0.1, 0.2), unit("score", 0.001, 0.004), unit("score", 50.001, 50.004)
    (1.0, 0.01, 0.01)
    """
    lowest, highest = _usual([c.reward for c in configurations])
    first, last = _usual([c.mean for c in configurations])
    span = last - first
    if is_accuracy(metric) and lowest >= -_MOST and highest <= PERCENT:
        return PERCENT if highest > _MOST else 1.0  # estimates of a share can be slightly outside [0, 1]
    if lowest >= 0 and highest <= 1 and span >= _NARROW:
        return 1.0
    return 1.0 if span == 0 else 10.0 ** math.ceil(math.log10(span / _MOST) - _ROUNDING)


def bounds(metric: str, configurations: Sequence[Configuration]) -> tuple[float, float]:
    """Return the smallest and the largest possible reward: 0 and 1 (or 100) for shares of problems.

    >>> c = Configuration(32, 8, np.arange(2.0), np.array([0.1, 0.5]), np.zeros(2, int), (0,), 256.0)
    >>> bounds("avg@4", [c]), bounds("val_acc", [c]), bounds("score", [c])
    ((0.0, 1.0), (0.0, 1.0), (-inf, inf))
    """
    lowest = min(float(c.reward.min()) for c in configurations)
    highest = max(float(c.reward.max()) for c in configurations)
    unit = unit_of(metric, configurations)
    share = is_accuracy(metric) and unit in (1.0, PERCENT) and lowest >= 0 and highest <= unit
    return (0.0, unit) if share else (-math.inf, math.inf)


def _usual(rewards: Sequence[Floats]) -> tuple[float, float]:
    """Return the 1st and 99th percentiles of the rewards, so that outliers cannot determine the unit."""
    values = np.concatenate([reward.ravel() for reward in rewards])
    return float(np.quantile(values, 0.01, method="lower")), float(np.quantile(values, 0.99, method="higher"))
