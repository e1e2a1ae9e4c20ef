"""Compute intervals from a profile likelihood: the likelihood's maximum while one combination is fixed.

The interval of g·θ, a linear combination of P parameters with weights g, contains every value v for which ::

    2 (ℓ_max − ℓ(v)) ≤ R log(1 + t² / ν),      ℓ(v) = max { ℓ(θ) : g·θ = v }

with R observations, ν degrees of freedom, and t the 97.5 % point of Student's distribution. For the mean of
normal numbers with unknown standard deviation, and for any linear parameter of a least-squares fit, this is
exactly Student's interval. As an F statistic, the likelihood ratio tests several combinations at once. An end
outside the search range is open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from scipy.stats import f as fisher
from scipy.stats import t as student

from isolaw.evidence import LEVEL, Quantity, Status
from isolaw.fits.selection import Floats

LEAST_FREEDOM = 2
_FAR = math.log(100.0)  # default limit on the distance of an end from the estimate
_CLOSE = 0.01  # accuracy of an end
_TRIES = 24  # most steps of the search for an end
_PENALTY = 50.0  # factor of the squared distance from the bounds
_LEAST_CURVATURE = 1e-2
_STEP = 1e-4  # of the numerical second derivatives


class Profile:
    """The maximum of a likelihood, with intervals and tests from its profile.

    ``loss`` returns −ℓ(θ) and its gradient. ``bounds`` (P, 2) contains the smallest and the largest value of
    each parameter. The search begins at each of the ``starts``. ``observations`` is R, and ``freedom`` is ν.

    >>> x = np.array([1.0, 2.0, 4.0, 5.0])
    >>> def normal(theta):
    ...     z = (x - theta[0]) / math.exp(theta[1])
    ...     return 0.5 * z @ z + 4 * theta[1], np.array([-z.sum() / math.exp(theta[1]), 4 - z @ z])
    >>> bounds = np.array([(-np.inf, np.inf)] * 2)  # of the mean and of the deviation's logarithm
    >>> mean = Profile(normal, bounds, [np.zeros(2)], 4, 3).quantity(np.array([1.0, 0.0]))
    >>> low, high = student.interval(0.95, 3, 3.0, x.std(ddof=1) / 2)
    >>> bool(abs(mean.interval[0] - low) < 0.02 and abs(mean.interval[1] - high) < 0.02)
    True
    """

    def __init__(
        self,
        loss: Callable[[Floats], tuple[float, Floats]],
        bounds: Floats,
        starts: Sequence[Floats],
        observations: int,
        freedom: int,
    ) -> None:
        self._loss, self._bounds, self._starts = loss, bounds, starts
        self.observations, self.freedom = observations, freedom

    @cached_property
    def theta(self) -> Floats:
        """The parameters with the highest likelihood, an array of shape (P,)."""
        return self._maximum[1]

    def quantity(self, g: Floats, limits: tuple[float, float] | None = None) -> Quantity:
        """Return the combination g·θ of parameters, with an interval whose ends are within ``limits``."""
        value = float(g @ self.theta)
        low, high = limits or (value - _FAR, value + _FAR)
        if self.freedom < LEAST_FREEDOM or not low < value < high:
            return Quantity(value, None, "not_identified")
        ends = self._interval_end(g, value, low), self._interval_end(g, value, high)
        if ends == (None, None):
            return Quantity(value, None, "not_identified")
        status: Status = "ok"
        if None in ends:
            status = "upper_bound" if ends[0] is None else "lower_bound"
        return Quantity(value, ends, status)

    def p_value(self, g: Floats, values: Floats) -> float:
        """Return the p-value of the hypothesis that F combinations, the rows of g (F, P), have ``values``."""
        ratio = 2 * max(self._constrained(g, values, self.theta)[0] - self._maximum[0], 0.0)
        statistic = math.expm1(ratio / self.observations) * self.freedom / len(g)
        return float(fisher.sf(statistic, len(g), self.freedom))

    @cached_property
    def _maximum(self) -> tuple[float, Floats]:
        best = min((self._minimise(start) for start in self._starts), key=lambda optimum: optimum[0])
        return self._minimise(best[1])  # BFGS can stop early; it begins again without its Hessian

    def _interval_end(self, g: Floats, value: float, limit: float) -> float | None:
        """Return the value between the estimate and ``limit`` at which the likelihood becomes too low.

        Returns None if it is still high enough at ``limit``. The square root of twice the fall in log
        likelihood is nearly linear in the distance, so the secant method converges fast.
        """
        t = float(student.ppf((1 + LEVEL) / 2, self.freedom))
        max_fall = math.sqrt(self.observations * math.log1p(t**2 / self.freedom))
        farthest = abs(limit - value)
        distance = min(t * math.sqrt(max(float(g @ self._inverse_hessian @ g), _CLOSE**2)), farthest)
        inside, outside, start = (0.0, 0.0), (farthest, math.inf), self.theta
        for _ in range(_TRIES):
            fixed_value = value + math.copysign(distance, limit - value)
            loss, theta = self._constrained(g[None], np.array([fixed_value]), start)
            root_fall = math.sqrt(2 * max(loss - self._maximum[0], 0.0))
            if root_fall >= max_fall:
                outside = (distance, root_fall)
            elif distance >= farthest:
                return None
            else:
                inside, start = (distance, root_fall), theta
            if outside[0] - inside[0] < _CLOSE:
                break
            if math.isinf(outside[1]):
                distance = min(distance * min(max(1.05 * max_fall / max(root_fall, 0.1), 1.2), 4.0), farthest)
            else:
                fraction = (max_fall - inside[1]) / (outside[1] - inside[1])
                distance = inside[0] + min(max(fraction, 0.1), 0.9) * (outside[0] - inside[0])
        return value + math.copysign((inside[0] + outside[0]) / 2, limit - value)

    def _constrained(self, g: Floats, values: Floats, start: Floats) -> tuple[float, Floats]:
        """Return the smallest loss while the combinations g θ equal ``values``, and its θ."""
        nearest = start + np.linalg.pinv(g) @ (values - g @ start)
        return self._minimise(nearest, np.linalg.svd(g)[2][len(g) :].T)

    @cached_property
    def _inverse_hessian(self) -> Floats:
        """The approximate inverse Hessian at the maximum, with which later searches need fewer steps."""
        slopes = [
            (self._loss(self.theta + step)[1] - self._loss(self.theta - step)[1]) / (2 * _STEP)
            for step in _STEP * np.eye(self.theta.size)
        ]
        curvature = np.array(slopes)
        eigenvalues, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
        return np.asarray((vectors / np.maximum(eigenvalues, _LEAST_CURVATURE)) @ vectors.T)

    def _minimise(self, start: Floats, directions: Floats | None = None) -> tuple[float, Floats]:
        """Return the smallest loss in the given directions from a start, and its θ.

        A parameter beyond its bounds is clipped, and its distance from the bounds increases the loss.
        """
        from scipy.optimize import minimize

        basis = np.eye(start.size) if directions is None else directions

        def penalised(z: Floats) -> tuple[float, Floats]:
            theta = start + basis @ z
            clipped = np.clip(theta, *self._bounds.T)
            excess = theta - clipped
            value, slope = self._loss(clipped)
            gradient = np.where(excess == 0, slope, 2 * _PENALTY * excess)
            return value + _PENALTY * float(excess @ excess), basis.T @ gradient

        options: dict[str, Any] = {"maxiter": 400, "gtol": 1e-4}
        if directions is not None:
            inverse = np.linalg.inv(basis.T @ np.linalg.inv(self._inverse_hessian) @ basis)
            options["hess_inv0"] = (inverse + inverse.T) / 2
        optimum = minimize(penalised, np.zeros(basis.shape[1]), jac=True, method="BFGS", options=options)
        return float(optimum.fun), np.clip(start + basis @ optimum.x, *self._bounds.T)
