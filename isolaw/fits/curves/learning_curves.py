"""Fit learning curves: the reward R as a monotone, saturating function of compute C.

    exp    R(C) = A − (A − R0) · exp(−C / τ)                saturating exponential
    hill   R(C) = R0 + (A − R0) / (1 + (C_mid / C)^B)       ScaleRL, arXiv 2510.13786
    power  R(C) = 1 − e^E · C^(−K)                          Tan et al., arXiv 2509.25300

R0 is the reward at C = 0, and A is the ceiling. τ and C_mid are scales of compute, B and K exponents, and E
is a log error. ``exp`` and ``hill`` equal R0 · (1 − s) + A · s, where s rises from 0 to 1, so R0 and A are
linear given the shape (`isolaw.fits.curves.varpro`). ``power`` has a ceiling of 1 and is undefined at C = 0.

A curve can be fitted to all checkpoints, or only to *record points*: the first checkpoint in each higher bin
of reward (arXiv 2603.12151, section 4). This selection favours high values, so record points overestimate a
noisy curve. ``records="off"`` fits all checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isolaw.fits.curves.varpro import Floats, SearchRange, basis, varpro

WIDTH = 0.005  # width of the bins of record points
_LEAST_POINTS = 5
_LEAST_RISE = 0.5
_NO_ERROR = 1e-300  # floor of e^E, so that E of a power law without error is finite and can be saved


def _time_range(compute: Floats) -> SearchRange:
    """Return the search range of ln τ (or ln C_mid).

    The range extends from below the first positive checkpoint to far beyond the last checkpoint.
    """
    positive = compute[compute > 0]
    low, high = math.log(positive.min() / 4), math.log(positive.max() * 30)
    return SearchRange(low, high, max(8, math.ceil((high - low) / 0.5)))


@dataclass(frozen=True)
class CurveFamily:
    """A family of learning curves: its parameters, the search ranges of its shape, and its level if fixed."""

    parameters: tuple[str, ...]
    axes: Callable[[Floats], list[SearchRange]]
    low: float | None = None


FAMILIES = {
    "exp": CurveFamily(("R0", "A", "tau"), lambda c: [_time_range(c)]),
    "hill": CurveFamily(
        ("R0", "A", "C_mid", "B"), lambda c: [_time_range(c), SearchRange(math.log(0.1), math.log(8.0), 9)]
    ),
    "power": CurveFamily(("E", "K"), lambda c: [SearchRange(1e-4, 3.0, 24)], low=1.0),
}


@dataclass(frozen=True)
class Curves:
    """D fitted curves of one configuration. The first fits the data, the others fit the draws."""

    family: str  # key of `FAMILIES`
    # R(C) = low + slope · s(C; shape): R0 and A − R0, or 1 and e^E for ``power``. Shape (D,) each.
    low: Floats
    slope: Floats
    shape: Floats  # ln τ for ``exp``, ln C_mid and ln B for ``hill``, K for ``power``, (D, dimensions)
    status: NDArray[np.int64]  # `isolaw.fits.curves.varpro.FitStatus` of each fit, (D,)
    # True if the ceiling is undetermined, (D,), because the fit did not converge inside its search range, or
    # less than half of the rise from R0 to A was measured.
    open_ended: NDArray[np.bool_]
    rms: Floats  # root mean squared residual, (D,)

    def __call__(self, compute: ArrayLike) -> Floats:
        """Return the reward of each curve at ``compute`` (X,), as an array of shape (D, X)."""
        c = np.atleast_1d(np.asarray(compute, dtype=np.float64))
        return self.low[:, None] + self.slope[:, None] * basis(self.family, c, self.shape)

    @property
    def A(self) -> Floats:
        """The ceiling A that the reward of each curve approaches, of shape (D,)."""
        return self.low if self.family == "power" else self.low + self.slope

    def parameters(self) -> dict[str, Floats]:
        """Return the parameters by name, each as an array of shape (D,)."""
        if self.family == "power":
            return {"E": np.log(np.maximum(self.slope, _NO_ERROR)), "K": self.shape[:, 0]}
        shape = {n: np.exp(self.shape[:, i]) for i, n in enumerate(FAMILIES[self.family].parameters[2:])}
        return {"R0": self.low, "A": self.low + self.slope, **shape}

    @classmethod
    def from_parameters(cls, family: str, parameters: dict[str, Floats]) -> Curves:
        """Return the curves with the given ``parameters``, in the form that `parameters` returns."""
        if family == "power":
            low, slope = np.ones_like(parameters["E"]), np.exp(parameters["E"])
            shape = parameters["K"][:, None]
        else:
            low, slope = parameters["R0"], parameters["A"] - parameters["R0"]
            shape = np.stack([np.log(parameters[n]) for n in FAMILIES[family].parameters[2:]], axis=1)
        unfitted = np.zeros(len(shape), dtype=np.int64)
        return cls(family, low, slope, shape, unfitted, unfitted > 0, np.full(len(shape), np.nan))


def fit_curves(compute: Floats, reward: Floats, weights: Floats, family: str = "exp") -> Curves:
    """Fit one configuration's curve to D weighted versions of its checkpoints.

    ``compute`` (P,) is in rollouts. ``reward`` and ``weights`` have shape (D, P), or (1, P) if all versions
    share them. A weight of 0 leaves out a checkpoint; ``power`` leaves out C = 0.

    >>> C = np.geomspace(1e3, 1e6, 40)
    >>> R = (0.8 - 0.5 * np.exp(-C / 2e5))[None]
    >>> curve = fit_curves(C, R, np.ones_like(R))
    >>> {k: float(np.round(v[0], 1)) for k, v in curve.parameters().items()}
    {'R0': 0.3, 'A': 0.8, 'tau': 200000.0}
    """
    curve_family = FAMILIES[family]
    if family == "power":
        positive = compute > 0
        compute, weights = compute[positive], weights[:, positive]
        reward = reward[:, positive]
    s = varpro(compute, reward, weights, family, curve_family.axes(compute), curve_family.low)
    total_weight = np.maximum(weights.sum(axis=1), 1e-300)
    open_ended = s.undetermined
    if family != "power":
        open_ended = open_ended | (basis(family, compute.max(keepdims=True), s.shape)[:, 0] < _LEAST_RISE)
    return Curves(family, s.low, s.slope, s.shape, s.status, open_ended, np.sqrt(s.sse / total_weight))


def enough_points(weights: Floats) -> NDArray[np.bool_]:
    """Return a mask of the data sets that have the five points that a curve needs."""
    return (weights > 0).sum(axis=-1) >= _LEAST_POINTS


def record_mask(reward: Floats, width: float = WIDTH) -> NDArray[np.bool_]:
    """Return a mask of the checkpoints that are record points.

    With bins floor((value + ε) / w) of width w, where ε = 2e-7 w allows for rounding, a run keeps the
    checkpoints in bins above all earlier bins. ``reward`` has shape (..., checkpoints), in order of compute;
    leading axes are separate curves. ``width`` is w, in units of reward.

    >>> record_mask(np.array([0.500, 0.503, 0.506, 0.499, 0.512]))
    array([ True, False,  True, False,  True])
    """
    bins = np.floor((reward + 1e-9 * (width / WIDTH)) / width)
    highest = np.maximum.accumulate(bins, axis=-1)
    mask = np.ones(reward.shape, dtype=bool)
    mask[..., 1:] = bins[..., 1:] > highest[..., :-1]
    return mask
