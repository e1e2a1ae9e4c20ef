"""Detect the signs of an unhealthy run, each in one diagnostic.

A diagnostic y_1 … y_T is judged by its *levels*, which are means over windows of w neighbouring evaluations,

    L_i = mean(y_i … y_{i+w−1}),   w = max(3, T / 10)

Values are clipped to 4 σ from the window's median, so a single outlier or dip cannot be a sign. σ is the
residual scatter of y_i − (y_{i−1} + y_{i+1}) / 2, which is insensitive to a trend (Gasser, Sroka &
Jennen-Steinmetz, Biometrika 73, 1986). σ is at least the binomial error of an evaluation, √(y (1 − y) /
(problems · samples)).

- *reward drawn down*: the reward ends below its peak by more than noise and by more than a quarter of its
  rise. Noise is z · σ √(2/w), with z at 1 % over all windows that can contain the peak. In a *reward
  collapse*, the reward ends at half of its peak or less.
- *entropy collapse*: the entropy ends at a twentieth of its start. With R = b − a·e^H for reward R, entropy H
  and constants a and b (Cui et al., arXiv 2505.22617), hardly any reward is then left to gain.
- *entropy explosion*: the entropy reaches ten times its start. A base model starts at .3 to 1 nat per token,
  and no text has 3 or more.
- *explosion* of the KL or gradient norm: it reaches a hundred times its level at a quarter of the steps. KL
  grows as the square of the distance that parameters moved, which grows at most linearly in steps, so KL in a
  healthy run can reach sixteen times this level.
- *truncated responses*: the share is 15 % or more at the end. 10–15 % typically destabilised training at
  scale (ScaleRL, arXiv 2510.13786, appendix). Many base models start above this share and then fall below it.

Response length is not a sign, since it grows and shrinks in healthy runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.special import ndtri

Floats = NDArray[np.float64]
LEAST_EVALUATIONS = 6  # two windows that share no evaluation
FALSE_ALARMS = 0.01  # rate if the error is known; up to 4 % if it is estimated from ten evaluations
DRAWN_DOWN = 0.25  # smallest fall, as a share of the rise
COLLAPSE = 0.5  # smallest fall of a collapse, as a share of the peak
LEAST_FALL = 0.05  # smallest fall, as a share of the peak, if the reward hardly rose
ENTROPY_COLLAPSE = 0.05
ENTROPY_EXPLOSION = 10.0
EXPLOSION = 100.0
WARM_UP = 10  # first steps, in which the learning rate rises and KL grows faster than quadratically
TRUNCATED = 0.15
_LEAST_WINDOW = 3
_OUTLIER = 4.0
_MAD = 1.4826


@dataclass(frozen=True)
class Sign:
    """A sign of an unhealthy run: the step at which it began, and the two levels that it compares."""

    name: str  # one of the names in the module's docstring
    step: int  # the last step of the window in which the sign began
    # The two levels whose difference is the sign.
    before: float
    after: float


def sign(metric: str, steps: Floats, values: Floats, error: float = 0.0) -> Sign | None:
    """Return the sign in one diagnostic of one run, or None if the diagnostic is healthy.

    ``metric`` is ``entropy``, ``kl``, ``grad_norm`` or ``truncated_fraction``; any other name is a reward.
    ``steps`` and ``values`` have shape (T,), in order of steps, with T at least `LEAST_EVALUATIONS`.
    ``error`` is the standard error of one evaluation, or 0 if it is unknown.

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
    """Return a sign if the reward ends significantly below its peak, and None otherwise."""
    candidates = levels.size - width  # windows that share no evaluation with the last
    top = int(np.argmax(levels[:candidates]))
    peak, rise = levels[top], levels[top] - min(first, levels[0])
    noise = -float(ndtri(FALSE_ALARMS / candidates)) * sigma * math.sqrt(2 / width)
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
    """Return a sign that lasts to the end of the run, with the step at which it began, or None."""
    if not wrong[-1]:
        return None
    right = np.flatnonzero(~wrong)
    return _sign(name, ends[right[-1] + 1 if right.size else 0], before, levels[-1])


def _sign(name: str, step: float, before: float, after: float) -> Sign:
    return Sign(name, int(step), float(before), float(after))
