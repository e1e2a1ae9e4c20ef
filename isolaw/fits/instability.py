"""The signs of an unhealthy run, each in one diagnostic.

A diagnostic y_1 … y_T is judged by its *levels*, means over w neighbouring evaluations,

    L_i = mean(y_i … y_{i+w−1}),   w = max(3, T / 10)

in which a value counts as at most 4 σ from the median of its window, so that one outlier or one dip
decides nothing. σ is the residual scatter, from y_i − (y_{i−1} + y_{i+1}) / 2, which a trend leaves
alone (Gasser, Sroka & Jennen-Steinmetz, Biometrika 73, 1986), and never less than the binomial error
of the evaluation, √(y (1 − y) / (problems · samples)).

- *reward drawn down*: at the end reward is below its peak by more than noise (z · σ √(2/w), z at 1 %
  over all windows that may hold the peak) and by a quarter of its rise; *reward collapse*: by half of
  the peak.
- *entropy collapse*: entropy ends at a twentieth of its start, where by R = b − a·e^H (Cui et al., arXiv
  2505.22617) hardly any reward is left to gain.
- *entropy explosion*: ten times its start. A base model begins at .3 to 1 nat a token, and no text
  has 3 or more.
- *explosion* of KL or the gradient's norm: a hundred times its level at a quarter of the steps. KL
  grows as the square of the way that the parameters have gone, and that at most as the number of
  steps: sixteen times is what a healthy run may reach.
- *truncated responses*: 15 % or more at the end. 10–15 % typically destabilised training at scale
  (ScaleRL, arXiv 2510.13786, appendix), and many a base model begins above and comes down.

A response's length alone is no sign: it grows and shrinks in healthy runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.stats import norm

Floats = NDArray[np.float64]
LEAST_EVALUATIONS = 6  # two windows that share none
FALSE_ALARMS = 0.01  # where the error is known; up to 4 % where ten evaluations must tell it
DRAWN_DOWN = 0.25  # of the rise
COLLAPSE = 0.5  # of the peak
LEAST_FALL = 0.05  # of the peak, where reward hardly rose
ENTROPY_COLLAPSE = 0.05
ENTROPY_EXPLOSION = 10.0
EXPLOSION = 100.0
WARM_UP = 10  # steps: while the learning rate rises, KL grows faster than the square
TRUNCATED = 0.15
_LEAST_WINDOW = 3
_OUTLIER = 4.0
_MAD = 1.4826


@dataclass(frozen=True)
class Sign:
    """What is wrong with a diagnostic."""

    name: str  # as in the module's docstring
    step: int  # the last step of the window in which it began
    # the levels compared
    before: float
    after: float


def sign(metric: str, steps: Floats, values: Floats, error: float = 0.0) -> Sign | None:
    """Return what is wrong with one diagnostic of one run, None if nothing is.

    ``metric`` is ``entropy``, ``kl``, ``grad_norm`` or ``truncated_fraction``; any other name is a reward.
    ``steps`` and ``values`` are (T,), in order of steps, with T at least `LEAST_EVALUATIONS`; ``error`` is
    the standard error of one evaluation, 0 where it is not known.

    >>> reward = np.array([.3, .4, .5, .6, .6, .6, .4, .3, .2, .1, .1, .1])
    >>> found = sign("avg@4", np.arange(12.0), reward)
    >>> found.name, found.step, round(found.before, 2), round(found.after, 2)
    ('reward collapse', 7, 0.6, 0.1)
    """
    width = max(_LEAST_WINDOW, math.ceil(values.size / 10))
    bends = values[1:-1] - (values[:-2] + values[2:]) / 2
    scatter = _MAD * float(np.median(np.abs(bends))) * math.sqrt(2 / 3)
    sigma = max(scatter, error)
    windows = sliding_window_view(values, width)
    middle = np.median(windows, axis=1, keepdims=True)
    levels = np.clip(windows, middle - _OUTLIER * sigma, middle + _OUTLIER * sigma).mean(axis=1)
    ends = steps[width - 1 :]
    if metric == "entropy":
        return _entropy(ends, levels)
    if metric in ("kl", "grad_norm"):
        return _explosion(metric, ends, levels, sigma / math.sqrt(width))
    if metric == "truncated_fraction":
        return _lasting("truncated responses", ends, levels, levels[0], levels >= TRUNCATED)
    return _fall(ends, levels, float(values[0]), sigma, width)


def _fall(ends: Floats, levels: Floats, first: float, sigma: float, width: int) -> Sign | None:
    """Reward that ends below its peak."""
    candidates = levels.size - width  # windows that share no evaluation with the last
    top = int(np.argmax(levels[:candidates]))
    peak, rise = levels[top], levels[top] - min(first, levels[0])
    noise = norm.isf(FALSE_ALARMS / candidates) * sigma * math.sqrt(2 / width)
    below = peak - levels > max(noise, DRAWN_DOWN * rise, LEAST_FALL * abs(peak))
    below[: top + 1] = False
    name = "reward collapse" if levels[-1] <= (1 - COLLAPSE) * peak else "reward drawn down"
    return _lasting(name, ends, levels, peak, below)


def _entropy(ends: Floats, levels: Floats) -> Sign | None:
    if levels[0] <= 0:
        return None
    high = np.flatnonzero(levels >= ENTROPY_EXPLOSION * levels[0])
    if high.size:
        return _sign("entropy explosion", ends[high[0]], levels[0], levels[high].max())
    return _lasting("entropy collapse", ends, levels, levels[0], levels <= ENTROPY_COLLAPSE * levels[0])


def _explosion(metric: str, ends: Floats, levels: Floats, noise: float) -> Sign | None:
    quarter = np.searchsorted(ends, ends / 4, side="right") - 1
    before = np.maximum(levels[quarter], noise)
    known = (quarter >= 0) & (ends[quarter] >= WARM_UP) & (before > 0)
    high = np.flatnonzero(known & (levels >= EXPLOSION * before))
    if not high.size:
        return None
    return _sign(f"{metric} explosion", ends[high[0]], before[high[0]], levels[high].max())


def _lasting(name: str, ends: Floats, levels: Floats, before: float, wrong: NDArray[np.bool_]) -> Sign | None:
    """A sign that lasts to the end, from where it never lets up again."""
    if not wrong[-1]:
        return None
    right = np.flatnonzero(~wrong)
    return _sign(name, ends[right[-1] + 1 if right.size else 0], before, levels[-1])


def _sign(name: str, step: float, before: float, after: float) -> Sign:
    return Sign(name, int(step), float(before), float(after))
