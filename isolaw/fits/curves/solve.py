"""Least squares by variable projection, for many data sets at once.

Every family here is a line once its shape θ is known:

    y ≈ low + slope · s(x; θ),   slope ≥ 0, s increasing in x

so low and slope have a closed form for each θ (Golub & Pereyra, SIAM J. Numer. Anal. 10, 1973), and
only one or two numbers are searched: on a grid, then by Levenberg–Marquardt with Kaufman's Jacobian
(BIT 15, 1975) from each of its best local minima. No starting value is needed and nothing is random.

    exp        s = 1 − exp(−x / τ)                     θ = ln τ
    hill       s = 1 / (1 + (x_mid / x)^B)             θ = ln x_mid, ln B
    logistic   s = 1 / (1 + exp(−k (x − x0)))          θ = ln k, x0
    power      s = −x^(−K)                             θ = K

Positive parameters are searched by their logarithms; the ends of the search are bounds, and a fit that
stops on one says so. The kernel is compiled once and kept on disk.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.curves.kernel import on_grid, solve

Floats = NDArray[np.float64]

CODES = {"exp": 0, "hill": 1, "logistic": 2, "power": 3}
_CHUNK = 64


class Status(IntEnum):
    """How a fit ended."""

    CONVERGED = 0
    ON_BOUND = 1
    """the shape stopped at an end of its search"""
    NOT_IDENTIFIED = 2
    """y does not rise with x, or a shape parameter's standard error is wider than its search"""
    FAILED = 3
    """no progress, and not at a minimum either"""


@dataclass(frozen=True)
class Axis:
    """The search range of one shape parameter (in the scale of the module's table)."""

    low: float
    high: float
    points: int


@dataclass(frozen=True)
class Solution:
    """The fits of D data sets.

    Attributes
    ----------
    low, slope
        the line's coefficients, (D,).
    shape
        θ, (D, dimensions).
    sse
        weighted sum of squared residuals, (D,); under the robust loss, with its last weights.
    status
        a `Status` each, (D,).
    """

    low: Floats
    slope: Floats
    shape: Floats
    sse: Floats
    status: NDArray[np.int64]

    @property
    def on_bound(self) -> NDArray[np.bool_]:
        """Where the shape is not determined, for whatever reason; (D,)."""
        return np.asarray(self.status != Status.CONVERGED)


def varpro(
    x: Floats,
    y: Floats,
    weights: Floats,
    family: str,
    axes: Sequence[Axis],
    low: float | None = None,
    robust: bool = False,
) -> Solution:
    """Fit every data set by weighted least squares.

    Parameters
    ----------
    x
        abscissae, common to all data sets, shape (P,).
    y
        ordinates, (D, P), or (1, P) if all data sets have the same.
    weights
        non-negative, (D, P) or (1, P); zero leaves a point out.
    family
        a key of `CODES`.
    axes
        one per shape parameter.
    low
        hold ``low`` at this value; None fits it.
    robust
        Huber's loss at a scale from the median absolute residual, by reweighting, in place of squares.

    >>> x = np.linspace(0, 5, 30)
    >>> y = (0.7 - 0.4 * np.exp(-x / 1.3))[None]
    >>> s = varpro(x, y, np.ones_like(y), "exp", [Axis(-3, 3, 20)])
    >>> np.round([s.low[0], s.low[0] + s.slope[0], np.exp(s.shape[0, 0])], 6)
    array([0.3, 0.7, 1.3])
    """
    code = CODES[family]
    x = np.ascontiguousarray(x, dtype=np.float64)
    y, weights = (np.ascontiguousarray(part, dtype=np.float64) for part in (y, weights))
    grid = np.array(list(product(*(np.linspace(a.low, a.high, a.points) for a in axes))))
    index = np.arange(len(grid)).reshape([a.points for a in axes])
    neighbours = [
        np.take(index, np.clip(np.arange(n) + step, 0, n - 1), axis=k).ravel()
        for k, n in enumerate(index.shape)
        for step in (-1, 1)
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_x = np.log(x)
    size = max(len(y), len(weights))
    out = np.empty((size, 4 + len(axes)))
    arguments: tuple[Any, ...] = (
        code,
        x,
        log_x,
        y,
        weights,
        np.nan if low is None else float(low),
        grid,
        on_grid(code, x, log_x, grid),
        np.stack(neighbours, axis=1),
        np.array([a.low for a in axes]),
        np.array([a.high for a in axes]),
        robust,
        out,
    )
    pieces = [(i, min(i + _CHUNK, size)) for i in range(0, size, _CHUNK)]
    if len(pieces) == 1:
        solve(0, size, *arguments)
    else:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # the kernel lets go of the GIL
            list(pool.map(lambda piece: solve(*piece, *arguments), pieces))
    return Solution(out[:, 0], out[:, 1], out[:, 4:], out[:, 2], out[:, 3].astype(np.int64))


def basis(family: str, x: Floats, shape: Floats) -> Floats:
    """Return s(x; θ), (D, P), for shapes (D, dimensions) and x (P,)."""
    x = np.ascontiguousarray(x, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_x = np.log(x)
    return np.asarray(on_grid(CODES[family], x, log_x, np.ascontiguousarray(shape)))
