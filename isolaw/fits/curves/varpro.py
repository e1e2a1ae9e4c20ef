"""Solve least-squares problems by variable projection, for many data sets at once.

Given its shape parameters θ, every family is a line in a known function s:

    y ≈ low + slope · s(x; θ),   slope ≥ 0, s increasing in x

so low and slope have a closed form for each θ (Golub & Pereyra, SIAM J. Numer. Anal. 10, 1973). Only the one
or two shape parameters are searched: first on a grid, then by Levenberg–Marquardt with Kaufman's Jacobian
(BIT 15, 1975) from each of the grid's best local minima. No starting value is needed, and nothing is random.

    exp        s = 1 − exp(−x / τ)                     θ = ln τ
    hill       s = 1 / (1 + (x_mid / x)^B)             θ = ln x_mid, ln B
    logistic   s = 1 / (1 + exp(−k (x − x0)))          θ = x0, ln k
    power      s = −x^(−K)                             θ = K

``hill`` is ``logistic`` in ln x, with k = B. Parameters that appear as logarithms are positive. The ends of
the search range are bounds; a fit that stops on a bound has the status ``ON_BOUND``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.blas import each

Floats = NDArray[np.float64]

# The kernel's shape function of each family, and whether its variable u is ln x.
CODES = {"exp": (0, False), "hill": (1, True), "logistic": (1, False), "power": (2, True)}
_CHUNK = 64


class FitStatus(IntEnum):
    """The outcome of a fit, which the kernel stores as an integer."""

    CONVERGED = 0
    ON_BOUND = 1  # the shape stopped at an end of its search range
    NOT_IDENTIFIED = 2  # y does not rise with x, or a standard error exceeds the search range
    FAILED = 3  # the search ended without reaching a minimum


class SearchRange(NamedTuple):
    """The search range of one shape parameter θ, and the number of grid points in it."""

    low: float
    high: float
    points: int


@dataclass(frozen=True)
class Solution:
    """The results of fitting one curve family to D data sets."""

    # Coefficients of the line, (D,) each
    low: Floats
    slope: Floats
    shape: Floats  # θ, (D, dimensions)
    sse: Floats  # weighted sum of squared residuals, (D,)
    status: NDArray[np.int64]  # `FitStatus` of each fit, (D,)

    @property
    def undetermined(self) -> NDArray[np.bool_]:
        """A mask of shape (D,): True where the data do not determine the shape, for any reason."""
        return np.asarray(self.status != FitStatus.CONVERGED)


def varpro(
    x: Floats,
    y: Floats,
    weights: Floats,
    family: str,
    axes: Sequence[SearchRange],
    low: float | None = None,
) -> Solution:
    """Fit every data set by weighted least squares.

    ``x`` (P,) is common to all data sets. ``y`` and ``weights`` have shape (D, P), or (1, P) if all data sets
    share them; a weight of 0 leaves out a point. ``family`` is a key of `CODES`, and ``axes`` has a search
    range for each shape parameter. ``low`` is the level, or None to fit it.

    >>> x = np.linspace(0, 5, 30)
    >>> y = (0.7 - 0.4 * np.exp(-x / 1.3))[None]
    >>> s = varpro(x, y, np.ones_like(y), "exp", [SearchRange(-3, 3, 20)])
    >>> np.round([s.low[0], s.low[0] + s.slope[0], np.exp(s.shape[0, 0])], 6)
    array([0.3, 0.7, 1.3])
    """
    from isolaw.fits.curves.kernel import solve, values_on_grid  # Numba, which predictions do not need

    y, weights = (np.ascontiguousarray(array, dtype=np.float64) for array in (y, weights))
    grid = np.array(list(product(*(np.linspace(axis.low, axis.high, axis.points) for axis in axes))))
    index = np.arange(len(grid)).reshape([axis.points for axis in axes])
    neighbours = [
        np.take(index, np.clip(np.arange(size) + step, 0, size - 1), axis=dimension).ravel()
        for dimension, size in enumerate(index.shape)
        for step in (-1, 1)
    ]
    code, u = _kernel_variable(family, x)
    grid_arguments = (
        grid,
        values_on_grid(code, u, grid),
        np.stack(neighbours, axis=1),
        *np.array(axes, dtype=np.float64).T[:2].copy(),
    )
    rows = np.empty((max(len(y), len(weights)), 4 + len(axes)))
    arguments = code, u, y, weights, math.nan if low is None else low, *grid_arguments, rows
    if len(rows) <= _CHUNK:
        solve(0, len(rows), *arguments)
    else:
        starts = range(0, len(rows), _CHUNK)
        each(lambda start: solve(start, min(start + _CHUNK, len(rows)), *arguments), starts)
    return Solution(rows[:, 0], rows[:, 1], rows[:, 4:], rows[:, 2], rows[:, 3].astype(np.int64))


def basis(family: str, x: Floats, shape: Floats) -> Floats:
    """Return s(x; θ) for shapes (D, dimensions) and x (P,), as an array of shape (D, P)."""
    from isolaw.fits.curves.kernel import values_on_grid

    return np.asarray(values_on_grid(*_kernel_variable(family, x), np.ascontiguousarray(shape)))


def _kernel_variable(family: str, x: Floats) -> tuple[int, Floats]:
    """Return the code of the family's shape function, and u in the form that the kernel requires."""
    code, is_log = CODES[family]
    u = np.ascontiguousarray(x, dtype=np.float64)
    with np.errstate(divide="ignore"):
        return code, np.log(u) if is_log else u
