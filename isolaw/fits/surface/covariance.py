"""Compute the covariance of rewards between allocations and budgets.

The equations are in `isolaw.fits.surface.process`. Hyperparameters θ are passed by name, on their natural
scales. Covariances are in units of the variance of rewards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.selection import Floats

_STEP = 10.0  # correlation length along log C of the step and of the rough part, in e-folds
_ROUGH = 2.0  # correlation length of the rough part over n and B_p, in doublings
_LEVEL = 25.0  # prior variance of the trend's level: large, so the level is free
_BEFORE = 3.0  # the trend begins this many e-folds before the first checkpoint
_TURN = 0.5  # standard deviation of a slope change past the last checkpoint, as a multiple of s

Theta = Mapping[str, float]


@dataclass(frozen=True)
class Points:
    """Coordinates of the Q points at which the surface is evaluated."""

    # log2 n, log2 B_p and log C. Each array has shape (Q,).
    u: Floats
    v: Floats
    t: Floats
    shift: Floats  # the t that ρ multiplies; it grows more slowly than t past the last checkpoint
    learnt: Floats  # g(t)
    ahead: Floats  # e-folds from the last checkpoint of any run to t; 0 if t is not past it
    below: NDArray[np.bool_]  # whether the point is on the low-n side of the step
    # The last observed position along the trend, and the share of progress that counts past this position.
    most: Floats | float = np.inf
    beyond: float = 1.0


class Pairs:
    """All pairs of a point in ``a`` and a point in ``b``.

    Without ``b``, each point in ``a`` is paired with itself and with the points before it. With A points in
    ``a`` and B in ``b``, arrays over pairs have shape (A, B). Without ``b`` their shape is (A (A + 1) / 2,),
    and `matrix` expands them to (A, A).
    """

    def __init__(self, a: Points, b: Points | None = None) -> None:
        self.a, self.b, self._whole = a, a if b is None else b, b is not None
        b = self.b
        self.lower = np.tril_indices(a.t.size)  # indices of each pair's two points, if there is no b
        self.shifted = self.difference(a.shift, b.shift)
        self.learnt = self.product(a.learnt, b.learnt)  # g g'
        # Persistent parts: g g' e^(−|t − t'| / 10). For the step, the value is 0 unless both points are on
        # its low side.
        self.lasting = np.exp(-np.abs(self.difference(a.t, b.t)) / _STEP) * self.learnt
        self.step = self.product(a.below.astype(np.float64), b.below.astype(np.float64)) * self.lasting
        self.turning = _TURN**2 * self.product(a.ahead, b.ahead)  # covariance of slope changes, over s²

    def left(self, values: Floats) -> Floats:
        """Return the value of each pair's first point, given values (A,) of the points in ``a``."""
        return values[:, None] if self._whole else values[self.lower[0]]

    def right(self, values: Floats) -> Floats:
        """Return the value of each pair's second point, given values (B,) of the points in ``b``."""
        return values if self._whole else values[self.lower[1]]

    def difference(self, of_a: Floats, of_b: Floats) -> Floats:
        """Return each pair's difference: the value of the first point minus the value of the second."""
        return self.left(of_a) - self.right(of_b)

    def product(self, of_a: Floats, of_b: Floats) -> Floats:
        """Return the product of the values of each pair's two points."""
        return self.left(of_a) * self.right(of_b)

    def matrix(self, values: Floats) -> Floats:
        """Return the pairs' values as a matrix of shape (A, B)."""
        if self._whole:
            return values
        i, j = self.lower
        out = np.empty((self.a.t.size,) * 2)
        out[i, j] = out[j, i] = values
        return out

    @cached_property
    def rough_in_n(self) -> Floats:
        """The rough part's covariance without B_p: g g' e^(−|t − t'| / 10 − |u − u'| / 2)."""
        return self.lasting * np.exp(-np.abs(self.difference(self.a.u, self.b.u)) / _ROUGH)

    @cached_property
    def rough(self) -> Floats:
        """The rough part's covariance for each pair if B_p varies independently of n."""
        return self.rough_in_n * np.exp(-np.abs(self.difference(self.a.v, self.b.v)) / _ROUGH)


def matern(distance: Floats) -> tuple[Floats, Floats]:
    """Return the Matérn function of order 5/2 and its negative slope divided by the distance h.

    The function is (1 + r + r²/3) e^−r with r = √5 |h|.

    >>> [round(float(v), 3) for v in matern(np.array(0.0))]
    [1.0, 1.667]
    """
    r = np.sqrt(5.0) * np.abs(distance)
    falls = np.exp(-r)
    return (1 + r + r * r / 3) * falls, 5 / 3 * (1 + r) * falls


def integrated(pairs: Pairs, a: Floats, b: Floats, length: float) -> tuple[Floats, Floats]:
    """Return the covariance I of pairs of times, and its derivative dI/d log ℓ.

    The times ``a`` (A,) and ``b`` (B,) are at least 0. I is the covariance of the integral from 0 of an
    Ornstein–Uhlenbeck process with variance 1 and length ℓ:
    ℓ² [2 min(x, y) + e^−x + e^−y − 1 − e^−|x − y|] with x = a/ℓ, y = b/ℓ.
    """
    x, y = a / length, b / length
    fx, fy = np.exp(-x), np.exp(-y)
    apart, least = np.abs(pairs.difference(x, y)), 2 * np.minimum(pairs.left(x), pairs.right(y))
    together = np.exp(-apart)
    value = length**2 * (least + pairs.left(fx - 1) + pairs.right(fy) - together)
    slope = 2 * value + length**2 * (pairs.left(x * fx) + pairs.right(y * fy) - least - apart * together)
    return value, slope


def _by_times(pairs: Pairs, a: Floats, b: Floats, length: float) -> tuple[Floats, Floats]:
    """Return the derivatives of I with respect to the times a and b.

    dI/da = ℓ [1 − sign(x − y) (1 − e^−|x − y|) − e^−x]; dI/db swaps the roles of a and b.
    """
    x, y = a / length, b / length
    apart = pairs.difference(x, y)
    turned = np.sign(apart) * -np.expm1(-np.abs(apart))
    return (length * (1 - turned - pairs.left(np.exp(-x))), length * (1 + turned - pairs.right(np.exp(-y))))


@dataclass(frozen=True)
class Covariance:
    """The covariance of rewards as a function of θ and pairs of points."""

    start: float  # the smallest log C
    middle: tuple[float, float]  # middle of log2 n and of log2 B_p
    plane: bool  # whether B_p varies independently of n

    def __call__(self, p: Theta, pairs: Pairs, slopes: dict[str, Floats] | None = None) -> Floats:
        """Return the covariance of each pair, and add its derivatives with respect to θ to ``slopes``."""
        a, b = pairs.a, pairs.b
        (gone_a, of_a), (gone_b, of_b) = self.gone(p, a), self.gone(p, b)
        trend, trend_slope = integrated(pairs, gone_a, gone_b, p["l_m"])
        going, going_slope = integrated(pairs, a.t - self.start, b.t - self.start, p["l"])
        h_u = pairs.difference(*((x.u - p["rho"] * x.shift) / p["l_u"] for x in (a, b)))
        along, falls = matern(h_u)
        if self.plane:
            h_v = pairs.difference(*((x.v - p["rho_b"] * x.shift) / p["l_v"] for x in (a, b)))
            along_v, falls_v = matern(h_v)
            falls_v *= along
            falls, along = falls * along_v, along * along_v
        rough = pairs.rough if self.plane else pairs.rough_in_n
        going = going + pairs.turning
        over_t = p["a"] ** 2 + p["s"] ** 2 * going
        base = p["base"] ** 2 + pairs.learnt * over_t
        if slopes is not None:
            learnt = along * pairs.learnt
            by_a, by_b = _by_times(pairs, gone_a, gone_b, p["l_m"])
            moved = [
                p["s_m"] ** 2 * (by_a * pairs.left(i) + by_b * pairs.right(j))
                for i, j in zip(of_a, of_b, strict=True)
            ]
            slopes |= {
                "s_m": 2 * p["s_m"] ** 2 * trend,
                "l_m": p["s_m"] ** 2 * trend_slope,
                "delay": moved[0],
                "base": 2 * p["base"] ** 2 * along,
                "a": 2 * p["a"] ** 2 * learnt,
                "s": 2 * p["s"] ** 2 * learnt * going,
                "l": p["s"] ** 2 * learnt * going_slope,
                "l_u": falls * base * h_u**2,
                "rho": falls * base * h_u / p["l_u"] * pairs.shifted,
                "rough": 2 * p["rough"] ** 2 * rough,
                "step": 2 * p["step"] ** 2 * pairs.step,
            }
            if self.plane:
                slopes |= {
                    "delay_b": moved[1],
                    "l_v": falls_v * base * h_v**2,
                    "rho_b": falls_v * base * h_v / p["l_v"] * pairs.shifted,
                }
        local = p["step"] ** 2 * pairs.step + p["rough"] ** 2 * rough
        return np.asarray(_LEVEL + p["s_m"] ** 2 * trend + along * base + local)

    def gone(self, p: Theta, at: Points) -> tuple[Floats, list[Floats]]:
        """Return each point's position along the trend, and its derivatives with respect to the delays.

        Positions are in e-folds of C, and each array has shape (Q,).
        """
        slopes = [self.middle[0] - at.u, self.middle[1] - at.v][: 1 + self.plane]
        gone = at.t - self.start + _BEFORE
        for name, slope in zip(("delay", "delay_b"), slopes, strict=False):
            gone = gone + p[name] * slope
        begun = gone > 0
        gone = np.where(begun, gone, 0.0) - (1 - at.beyond) * np.maximum(gone - at.most, 0.0)
        return gone, [slope * begun for slope in slopes]
