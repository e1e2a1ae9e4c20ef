"""Solve the least-squares problem of the model-size law, for many versions of the losses at once.

    Σ_N mean (10^E(N) · X^(−K(N)) − L)²

where K(N) = κ (1 + N0/N_m) / (1 + N0/N) and N_m is the largest size. Given K(N), the models are linear in one
number per size, 10^E(N), which is projected out (Golub & Pereyra, SIAM J. Numer. Anal. 10, 1973) with
Kaufman's Jacobian (BIT 15, 1975). Levenberg–Marquardt then searches κ and ln N0. Without saturation, K_max
and N0 diverge together while κ = K(N_m) does not, so κ replaces K_max in the search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from isolaw.fits.selection import Floats
from isolaw.fits.studies.model_size.curves import SizeCurves

_BEYOND = 30.0
_ITERATIONS = 200
_GAIN = 1e-15
_MOST_DECADES = 100.0  # limit on the change of a fitted curve over a size's checkpoints
_MOST_DAMPED = 1e8
_LN10 = float(np.log(10.0))
_TINY = 1e-300


class SizeFits(NamedTuple):
    """D fits. κ, ln N0 and the objective have shape (D,); K(N) and E(N) have shape (D, S)."""

    kappa: Floats
    log_n0: Floats
    K: Floats
    E: Floats
    sse: Floats


class _At(NamedTuple):
    """The model, residuals and derivatives at one (κ, ln N0)."""

    K: Floats
    slope: Floats  # ∂K/∂ln N0
    linear: Floats  # 10^E, with log10 X centred for each size
    residual: Floats
    jacobian: Floats  # ∂residual/∂K, with ``linear`` projected out
    sse: Floats


def bounds(sizes: Floats) -> tuple[float, float]:
    """Return the search range of ln N0.

    Below this range, all sizes have the same K within 3 %; above it, K ∝ N within 3 %.
    """
    return float(np.log(sizes[0] / _BEYOND)), float(np.log(sizes[-1] * _BEYOND))


def exponents(kappa: Floats, log_n0: Floats, size: Floats, largest: float) -> tuple[Floats, Floats]:
    """Return K and ∂K/∂ln N0 at the sizes in ``size`` (S,), as two arrays of shape (D, S)."""
    n0 = np.exp(log_n0)[:, None]
    K = kappa[:, None] * (1 + n0 / largest) / (1 + n0 / size)
    return K, K * (n0 / (largest + n0) - n0 / (size + n0))


class SizeProblem:
    """The least-squares problem of one set of curves."""

    def __init__(self, curves: SizeCurves) -> None:
        count = np.bincount(curves.of).astype(np.float64)
        log_x = np.log10(curves.x)
        self.sizes, self.of = curves.sizes, curves.of
        self.centre = np.bincount(curves.of, log_x) / count
        self.z = log_x - self.centre[curves.of]
        self.weight = 1.0 / count[curves.of]
        self.steepest = _MOST_DECADES / np.abs(self.z).max()
        self.first = np.searchsorted(curves.of, np.arange(count.size))

    def best(self, y: Floats, starts: Sequence[tuple[float, float]]) -> SizeFits:
        """Return the best fit to each row of L in ``y`` (D, P) over all ``starts`` of (κ, ln N0)."""
        best = self._descend(y, *starts[0])
        for start in starts[1:]:
            other = self._descend(y, *start)
            better = other.sse < best.sse
            best = SizeFits(
                *(
                    np.where(better if a.ndim == 1 else better[:, None], a, b)
                    for a, b in zip(other, best, strict=True)
                )
            )
        return best

    def curve(self, fits: SizeFits) -> Floats:
        """Return the fitted loss L of each fit at the P checkpoints, as an array of shape (D, P)."""
        log_x = self.z + self.centre[self.of]
        # An outlying draw can have extreme values; its L only has to stay finite.
        return 10.0 ** np.clip(fits.E[:, self.of] - fits.K[:, self.of] * log_x, -100.0, 100.0)

    def bend(self, y: Floats, fits: SizeFits) -> Floats:
        """Return the relative change of K per decade of X, as an array of shape (D,).

        The change is free, but equal for all sizes. It is estimated by one Gauss–Newton step from the law
        towards log10 L = E − K (z + β z²), where z is the centred log10 X, and E and K of every size are
        free. The change is 2 β, which is 0 under the law.
        """
        fitted = self.curve(fits)
        residual = y - fitted
        basis = [np.atleast_2d(fitted * self.z**power) for power in range(3)]
        for i, vector in enumerate(basis):  # Gram–Schmidt within each size
            for other in basis[:i]:
                share = self._total(other * vector) / np.maximum(self._total(other**2), _TINY)
                vector = vector - share[:, self.of] * other
            basis[i] = vector
        along = -_LN10 * fits.K[:, self.of] * basis[2]
        norm = np.maximum((self.weight * along**2).sum(axis=1), _TINY)
        return np.asarray(2.0 * (self.weight * residual * along).sum(axis=1) / norm)

    def _total(self, values: Floats) -> Floats:
        """Return the weighted sums over each size's checkpoints, as an array of shape (D, S)."""
        return np.add.reduceat(self.weight * values, self.first, axis=1)

    def _at(self, y: Floats, kappa: Floats, log_n0: Floats) -> _At:
        K, slope = exponents(kappa, log_n0, self.sizes, self.sizes[-1])
        falling = -K[:, self.of] * self.z
        power = 10.0**falling
        norm = self._total(power * power)
        linear = np.maximum(self._total(power * y) / norm, _TINY)
        fitted = linear[:, self.of] * power
        residual = fitted - y
        moved = -_LN10 * self.z * fitted
        jacobian = moved - power * (self._total(power * moved) / norm)[:, self.of]
        return _At(K, slope, linear, residual, jacobian, (self.weight * residual**2).sum(axis=1))

    def _descend(self, y: Floats, kappa0: float, log_n0: float) -> SizeFits:
        low, high = bounds(self.sizes)
        kappa, v = np.full(len(y), kappa0), np.full(len(y), log_n0)
        here, damping = self._at(y, kappa, v), np.full(len(y), 1e-3)
        live = np.arange(len(y))
        for _ in range(_ITERATIONS):
            now = _At(*(part[live] for part in here))
            curvature = self._total(now.jacobian**2)
            pull = self._total(now.jacobian * now.residual)
            along = exponents(np.ones(live.size), v[live], self.sizes, self.sizes[-1])[0]  # ∂K/∂κ
            g1, g2 = (pull * along).sum(axis=1), (pull * now.slope).sum(axis=1)
            h11 = (curvature * along**2).sum(axis=1)
            h12 = (curvature * along * now.slope).sum(axis=1)
            h22 = (curvature * now.slope**2).sum(axis=1)
            at_low, at_high = v[live] <= low, v[live] >= high
            held = (at_low & (g2 > 0)) | (at_high & (g2 < 0))  # the descent points outside the bound
            g2, h12, h22 = np.where(held, 0, g2), np.where(held, 0, h12), np.where(held, 1, h22)
            a, b = h11 * (1 + damping[live]) + _TINY, h22 * (1 + damping[live]) + _TINY
            det = np.maximum(a * b - h12**2, _TINY)
            step, step_v = (b * g1 - h12 * g2) / det, (a * g2 - h12 * g1) / det
            tried = np.clip(kappa[live] - step, -self.steepest, self.steepest)
            tried_v = np.clip(v[live] - step_v, low, high)
            there = self._at(y[live], tried, tried_v)
            better = there.sse < now.sse
            won, lost = live[better], live[~better]
            kappa[won], v[won] = tried[better], tried_v[better]
            for old, new in zip(here, there, strict=True):
                old[won] = new[better]
            damping[won] = np.maximum(damping[won] / 5, 1e-12)
            damping[lost] *= 5
            expected = step * g1 + step_v * g2
            live = live[(expected > _GAIN * now.sse) & (damping[live] < _MOST_DAMPED)]
            if not live.size:
                break
        level = np.log10(here.linear) + here.K * self.centre
        return SizeFits(kappa, v, here.K, level, here.sse)
