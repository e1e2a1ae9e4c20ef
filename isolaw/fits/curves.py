"""Learning curves: reward against compute, monotone and saturating.

    exp    R(C) = A − (A − R0) · exp(−C / τ)                saturating exponential (the default)
    hill   R(C) = R0 + (A − R0) / (1 + (C_mid / C)^B)       ScaleRL, arXiv 2510.13786

Both are R0 · (1 − s) + A · s with s rising from 0 at C = 0 to 1, so R0 and A are linear given the
shape (`isolaw.fits.solve`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from isolaw.fits.solve import Axis, Floats, Solution, varpro

_LEAST_POINTS = 5
_RISE_SEEN = 0.5


def _exp_basis(compute: Floats, shape: Floats) -> Floats:
    return np.asarray(-np.expm1(-compute / np.exp(shape)))


def _hill_basis(compute: Floats, shape: Floats) -> Floats:
    with np.errstate(divide="ignore"):  # log 0 = −inf: s = 0 at C = 0
        x = np.log(compute) - shape[..., :1]
    return np.asarray(expit(x * np.exp(shape[..., 1:])))


def _time_axis(compute: Floats) -> Axis:
    """ln τ (or ln C_mid) from well before the first positive checkpoint to far beyond the last."""
    positive = compute[compute > 0]
    low, high = math.log(positive.min() / 4), math.log(positive.max() * 30)
    return Axis(low, high, max(8, math.ceil((high - low) / 0.15)))


@dataclass(frozen=True)
class Family:
    """A family of learning curves: its basis, and the search ranges of its shape."""

    name: str
    shape_names: tuple[str, ...]
    basis: Callable[[Floats, Floats], Floats]
    axes: Callable[[Floats], list[Axis]]


FAMILIES = {
    "exp": Family("exp", ("tau",), _exp_basis, lambda c: [_time_axis(c)]),
    "hill": Family(
        "hill",
        ("C_mid", "B"),
        _hill_basis,
        lambda c: [_time_axis(c), Axis(math.log(0.25), math.log(8.0), 14)],
    ),
}


@dataclass(frozen=True)
class Curves:
    """D fitted curves of one configuration (the first on the data, the others on draws).

    Attributes
    ----------
    family
        key of `FAMILIES`.
    R0, A
        start and ceiling, shape (D,).
    shape
        logarithms of τ, or of (C_mid, B); shape (D, dimensions).
    open_ended
        the ceiling is not determined: the search stopped at the end of its range, or less than half of
        the rise from R0 to A was measured; (D,).
    rms
        root mean squared residual, (D,).
    """

    family: str
    R0: Floats
    A: Floats
    shape: Floats
    open_ended: NDArray[np.bool_]
    rms: Floats

    def __call__(self, compute: ArrayLike) -> Floats:
        """Return the reward at ``compute`` (X,), as (D, X)."""
        c = np.atleast_1d(np.asarray(compute, dtype=np.float64))
        s = FAMILIES[self.family].basis(c, self.shape[:, None, :])[:, 0, :]
        return self.R0[:, None] + (self.A - self.R0)[:, None] * s

    def parameters(self) -> dict[str, Floats]:
        """Return each parameter's values, (D,), by name."""
        shape = {name: np.exp(self.shape[:, i]) for i, name in enumerate(FAMILIES[self.family].shape_names)}
        return {"R0": self.R0, "A": self.A, **shape}

    @classmethod
    def from_parameters(cls, family: str, parameters: dict[str, Floats]) -> Curves:
        """Invert `parameters`."""
        names = FAMILIES[family].shape_names
        shape = np.stack([np.log(parameters[name]) for name in names], axis=1)
        size = len(shape)
        return cls(
            family,
            parameters["R0"],
            parameters["A"],
            shape,
            np.zeros(size, dtype=bool),
            np.full(size, np.nan),
        )


def fit_curves(compute: Floats, reward: Floats, weights: Floats, family: str = "exp") -> Curves:
    """Fit one configuration's curve to D weighted versions of its checkpoints.

    Parameters
    ----------
    compute
        (P,), in rollouts.
    reward
        (D, P), or (1, P) if only the weights differ.
    weights
        (D, P); zero leaves a checkpoint out.
    family
        ``exp`` or ``hill``.

    >>> C = np.geomspace(1e3, 1e6, 40)
    >>> R = (0.8 - 0.5 * np.exp(-C / 2e5))[None]
    >>> curve = fit_curves(C, R, np.ones_like(R))
    >>> {k: float(np.round(v[0], 1)) for k, v in curve.parameters().items()}
    {'R0': 0.3, 'A': 0.8, 'tau': 200000.0}
    """
    chosen = FAMILIES[family]
    s: Solution = varpro(compute, reward, weights, chosen.basis, chosen.axes(compute))
    total = np.maximum(weights.sum(axis=1), 1e-300)
    seen = chosen.basis(compute.max(keepdims=True), s.shape[:, None, :])[:, 0, 0]
    open_ended = s.on_bound | (seen < _RISE_SEEN)
    return Curves(family, s.low, s.high, s.shape, open_ended, np.sqrt(s.sse / total))


def enough_points(weights: Floats) -> NDArray[np.bool_]:
    """Return for each data set whether it has the five points that a curve needs."""
    return (weights > 0).sum(axis=-1) >= _LEAST_POINTS
