"""The reward over n, B_p and C: learning curves with common parameters, and a Gaussian discrepancy.

u = log2 n and v = log2 B_p are measured from the middle of the grid, t = log C, and h is the number of
e-folds of C past the end of the runs. The reward of an allocation, in units of the rise S seen so far, is

    r = R0 (1 − F) + A F + δ0(t) + F [δ1(u, v) + δ2(u, v, t)] + h [s0 + s1(u, v)]
    A = A0 + A1 u + A2 u² + A3 v + A4 v² + A5 u v
    F = 1 − (1 + w x)^(−1/w),    x = (C / τ)^b,    log b = b0 + b1 u
    log2 τ = τ0 + κ ũ + (1 − κ) log2(1 + 2^(ũ − c)),    ũ = u + λ v

- F is the share of the rise that was learnt by C. Its shape lies between an exponential (w → 0; arXiv
  2603.12151, section 4) and a Hill curve (w = 1; arXiv 2510.13786).
- τ grows by κ doublings per doubling of the batch below the critical batch c, and doubles with it beyond
  (McCandlish et al. 2018, arXiv 1812.06162, eq. 2.11).
- Ceilings rise or fall with n. Their slope A1 and curvature A2 have priors with mean zero or nearly so.
- δ1 is smooth (Matérn 5/2). δ0 and δ2 are random walks in log C, so differences persist beyond the runs
  instead of fading, while their uncertainty grows. s0 and s1 allow for slopes that end or begin past the
  runs. A structural mean with such a discrepancy is that of Kennedy & O'Hagan (2001).
- The mean over runs adds the effects of seeds (shared by all allocations), of runs (constant and drifting)
  and of checkpoints (`isolaw.fits.surface.observations`).

Rewards with bounds, such as shares, are transformed first: r = g(z), where z is unbounded, and g is the
identity except within a hundredth of a bound, where it bends to stay inside (`Link`).

Given θ = (τ, κ, c, λ, b0, b1, w, sizes of δ and noise), all else is linear and Gaussian, and is integrated
out. `PRIORS`, `CEILINGS` and `SLOPES` are set by hand, from what five groups of real sweeps showed; the other
groups of docs/evidence.md judge them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.special import expit, polygamma

from isolaw.fits.selection import Configuration, Floats, varies_in_batch
from isolaw.fits.surface.observations import Observations, observe

# Centre and standard deviation of each hyperparameter. tau to w describe F; the others are logarithms.
PRIORS = {
    "tau": (0.0, 1.4),  # log of τ over two thirds of the runs' C
    "kappa": (0.15, 0.3),
    "critical": (1.0, 3.0),  # c, in doublings from the middle of the grid
    "across": (1.0, 0.3),  # λ
    "b": (-0.2, 0.4),
    "b_u": (0.0, 0.1),
    "w": (0.0, 0.8),
    "ceilings": (0.0, 0.7),  # factor of the standard deviations of A1 to A5
    "common": (-3.9, 1.0),  # δ0 per √e-fold
    "smooth": (-3.9, 0.8),  # δ1
    "walk": (-3.9, 1.0),  # δ2 per √e-fold
    "run": (-4.6, 1.5),
    "drift": (-4.6, 1.5),
    "noise": (-3.9, 1.5),
    "seed": (0.0, 1.0),  # the standard deviation depends on the number of seeds
}
# Means and standard deviations of the rise to A0 past the best reward so far, of A1, and of A2.
CEILINGS = ((0.8, 1.2), (-0.005, 0.04), (-0.017, 0.011))
SLOPES = ((0.0, 0.15), (0.0, 0.06))  # means and standard deviations of s0 and s1
_START, _STEP_0 = 0.3, 0.03  # standard deviation of R0 without evaluations at step 0, and the least with them
_SMOOTH, _ALIKE = 3.0, 2.5  # doublings over which δ1, and δ2 with s1, are alike
_SEED, _DRIFT = 4.0, 2.0  # e-folds over which half of a seed's effect, and a run's drift, persist
_BEND = 0.01  # distance from a bound, in the reward's unit, within which `Link` bends
_JITTER = 1e-8
_LEAST_SCALE = 1e-10  # smallest rise, over the bend, below which rewards count as equal
_FAR = 40.0  # largest |log x|
_LN2 = float(np.log(2))
_ADDED = ("common", "seed", "run", "drift", "noise")


def _matern(distance: Floats) -> Floats:
    """Return the Matérn covariance of order 5/2 at distances in units of its length."""
    x = np.sqrt(5) * distance
    return np.asarray((1 + x + x**2 / 3) * np.exp(-x))


@dataclass(frozen=True)
class Link:
    """The transformation r = g(z) of unbounded z to rewards between two bounds.

    Near an upper bound H, g(z) = H − s log(1 + e^((H − z) / s)), where s is the ``bend``. A lower bound is
    its mirror image. Bounds can be infinite.

    >>> link = Link(0.0, 1.0, 0.01)
    >>> link.rewards(np.array([-0.5, 0.5, 0.98, 2.0])).round(3).tolist()
    [0.0, 0.5, 0.979, 1.0]
    """

    low: float
    high: float
    bend: float

    @classmethod
    def of(cls, bounds: tuple[float, float], unit: float, rewards: Floats) -> Link:
        """Return the link of rewards of this unit. It bends less if all rewards are near a bound."""
        near = min(float(rewards.max()) - bounds[0], bounds[1] - float(rewards.min()))
        return cls(*bounds, _BEND * unit if near <= 0 else min(_BEND * unit, near / 10))

    def rewards(self, z: Floats) -> Floats:
        """Return g(z)."""
        s = self.bend
        if np.isfinite(self.high):
            z = self.high - s * np.logaddexp(0, (self.high - z) / s)
        if np.isfinite(self.low):
            z = self.low + s * np.logaddexp(0, (z - self.low) / s)
        return np.clip(z, self.low, self.high)  # removes rounding

    def inverse(self, rewards: Floats) -> tuple[Floats, Floats]:
        """Return z and dz/dr. Rewards within a fiftieth of the bend of a bound count as that far from it."""
        s, z, slope = self.bend, rewards, np.ones_like(rewards)
        if np.isfinite(self.low):
            x = np.maximum((z - self.low) / s, 0.02)
            z, slope = self.low + s * (x + np.log(-np.expm1(-x))), slope / -np.expm1(-x)
        if np.isfinite(self.high):
            x = np.maximum((self.high - z) / s, 0.02)
            z, slope = self.high - s * (x + np.log(-np.expm1(-x))), slope / -np.expm1(-x)
        return z, slope


class _Points(NamedTuple):
    """Q points (u, v, t), with the e-folds past the runs and the terms of the ceiling, (Q, 3 or 6)."""

    u: Floats
    v: Floats
    t: Floats
    past: Floats
    terms: Floats


class Kernels(NamedTuple):
    """The parts of the covariance of two sets of points that do not depend on θ, of shape (Q, Q')."""

    common: Floats
    smooth: Floats
    walk: Floats
    slopes: Floats


# Q points, and the parts of their covariance with the observations.
Places = tuple[_Points, Kernels]


@dataclass(frozen=True)
class Start:
    """The reward R0 before training, with its standard error; None for both if step 0 was not evaluated."""

    reward: float | None
    error: float | None

    @classmethod
    def of(cls, configurations: Sequence[Configuration]) -> Start:
        """Return the mean of all evaluations at step 0."""
        zero = np.concatenate([c.reward[c.compute <= 0] for c in configurations])
        if not zero.size:
            return cls(None, None)
        error = float(zero.std() / np.sqrt(zero.size)) if zero.size > 1 else 0.0
        return cls(float(zero.mean()), error)


class StructuralModel:
    """The reward model given observations: its prior, likelihood, and posterior mean given θ.

    ``names`` lists the hyperparameters θ that these observations involve, and ``prior`` (P, 2) their centres
    and standard deviations.
    """

    def __init__(self, observations: Observations, start: Start, link: Link) -> None:
        self.observations, self.start, self.link = observations, start, link
        o = observations
        z, slope = link.inverse(o.reward)
        self.plane = varies_in_batch(o.log2_n, o.log2_b)
        self.middle = tuple((float(x.min()) + float(x.max())) / 2 for x in o.places.T)
        trend = link.inverse(o.trend)[0]
        # The rise so far, but not less than half of the differences between all observations.
        self.scale = max(float(np.ptp(trend)), float(np.ptp(z)) / 2, _LEAST_SCALE * link.bend)
        self.centre = float(trend.max())
        self.y = (z - self.centre) / self.scale
        self.slope = slope / self.scale
        self.first, self.end = float(o.t.min()), float(o.t.max())
        self.mean, self.deviation = self._linear(trend[0])
        absent = set() if np.ptp(o.log2_b) else {"across"}
        if o.seed_variance == 0:
            absent.add("seed")
        freedom = max(np.unique(o.run_seed).size - 1, 1)  # the standard error of a log standard deviation:
        priors = PRIORS | {"seed": (0.0, float(np.sqrt(polygamma(1, freedom / 2)) / 2))}
        self.names = [name for name in priors if name not in absent]
        self.prior = np.array([priors[name] for name in self.names])
        self.points = self._points(o.log2_n, o.log2_b, o.t)
        self.kernels = self._kernels(self.points, self.points)

    def _linear(self, first: float) -> tuple[Floats, Floats]:
        """Return the prior mean and standard deviation of R0, A0 to A2 (to A5 on a plane), and s0."""
        at, error = first, _START
        if self.start.reward is not None and self.start.error is not None:
            at = float(self.link.inverse(np.array([self.start.reward]))[0][0])
            error = max(self.start.error / self.scale, _STEP_0)
        rows = [((at - self.centre) / self.scale, error), *CEILINGS]
        if self.plane:
            rows += [*CEILINGS[1:], (0.0, CEILINGS[2][1])]
        mean, deviation = np.array([*rows, SLOPES[0]]).T
        return mean, deviation

    def _points(self, log2_n: Floats, log2_b: Floats, t: Floats) -> _Points:
        u, v = log2_n - self.middle[0], log2_b - self.middle[1]
        terms = [np.ones_like(u), u, u**2, *([v, v**2, u * v] if self.plane else [])]
        return _Points(u, v, t, np.maximum(t - self.end, 0.0), np.stack(terms, axis=1))

    def _kernels(self, a: _Points, b: _Points) -> Kernels:
        du = np.abs(a.u[:, None] - b.u)
        dv = np.abs(a.v[:, None] - b.v) if self.plane else np.zeros_like(du)
        near = np.exp(-np.hypot(du, dv) / _ALIKE)
        walked = np.minimum(*(np.maximum(t - self.first, 0.0) for t in (a.t[:, None], b.t)))
        slopes = SLOPES[1][1] ** 2 * a.past[:, None] * b.past * near
        return Kernels(walked, _matern(du / _SMOOTH) * _matern(dv / _SMOOTH), walked * near, slopes)

    def named(self, theta: Floats) -> dict[str, float]:
        """Return θ by name. Hyperparameters that are not in ``names`` get values that have no effect."""
        centres = {name: centre for name, (centre, _) in PRIORS.items()} | {"seed": -np.inf}
        return centres | dict(zip(self.names, theta.tolist(), strict=True))

    def _log_x(self, p: dict[str, float], a: _Points) -> tuple[Floats, Floats, Floats, Floats]:
        """Return log x at Q points, and b, ũ and log(1 + 2^(ũ − c)), of which it consists.

        τ is relative to the middle of the grid.
        """
        across, c, b = a.u + p["across"] * a.v, p["critical"], np.exp(p["b"] + p["b_u"] * a.u)
        past = np.logaddexp(0, _LN2 * (across - c)) - np.logaddexp(0, -_LN2 * c)
        log_tau = self.end + np.log(2 / 3) + p["tau"] + p["kappa"] * _LN2 * across + (1 - p["kappa"]) * past
        return b * (a.t - log_tau), b, across, past

    def _learnt(self, p: dict[str, float], a: _Points) -> Floats:
        """Return F at Q points."""
        x, w = np.exp(np.clip(self._log_x(p, a)[0], -_FAR, _FAR)), np.exp(p["w"])
        return np.asarray(-np.expm1(-np.log1p(w * x) / w))

    def _learnt_slopes(self, p: dict[str, float], a: _Points) -> dict[str, Floats]:
        """Return the derivatives of F at Q points with respect to its parameters."""
        log_x, b, across, past = self._log_x(p, a)
        c = p["critical"]
        beyond = expit(_LN2 * (across - c))  # τ grows with the batch beyond c
        slopes = {
            "tau": -b,
            "kappa": -b * (_LN2 * across - past),
            "critical": -b * (1 - p["kappa"]) * _LN2 * (expit(-_LN2 * c) - beyond),
            "across": -b * _LN2 * a.v * (p["kappa"] + (1 - p["kappa"]) * beyond),
            "b": log_x,
            "b_u": log_x * a.u,
        }
        x, w = np.exp(np.clip(log_x, -_FAR, _FAR)), np.exp(p["w"])
        left = np.exp(-np.log1p(w * x) / w)  # 1 − F
        of_log_x = np.where(np.abs(log_x) < _FAR, left * x / (1 + w * x), 0.0)
        out = {name: of_log_x * slope for name, slope in slopes.items()}
        return out | {"w": left * (x / (1 + w * x) - np.log1p(w * x) / w)}

    @staticmethod
    def _design(learnt: Floats, a: _Points) -> Floats:
        """Return the coefficients of R0, the A and s0 in the reward, of shape (Q, 5 or 8)."""
        return np.column_stack([1 - learnt, learnt[:, None] * a.terms, a.past])

    def _variance(self, p: dict[str, float]) -> Floats:
        """Return the prior variances of R0, the A and s0, of shape (5,) or (8,)."""
        out = self.deviation**2
        out[2:-1] *= np.exp(2 * p["ceilings"])
        return out

    @staticmethod
    def _across(p: dict[str, float], k: Kernels, learnt: Floats, others: Floats) -> Floats:
        """Return the covariance of F (δ1 + δ2), given F at both sets of points."""
        out = np.exp(2 * p["smooth"]) * k.smooth
        out += np.exp(2 * p["walk"]) * k.walk
        out *= others
        out *= learnt[:, None]
        return np.asarray(out)

    @cached_property
    def _added(self) -> Floats:
        """Return the covariances of δ0 and of each kind of noise per unit of their sizes, (5, O, O)."""
        o = self.observations
        apart, scaled = np.abs(o.t[:, None] - o.t), self.slope[:, None] * self.slope
        shared = o.combined @ np.eye(o.run_seed.max() + 1)[o.run_seed]
        of_runs = scaled * self.scale**2 * (o.combined @ o.combined.T)
        looks = (o.combined / np.maximum(o.counts[:, o.bin].T, 1.0)) @ o.combined.T
        return np.array([
            self.kernels.common,
            o.seed_variance * scaled * (1 + _matern(apart / _SEED)) / 2 * (shared @ shared.T),
            of_runs,
            of_runs * np.exp(-apart / _DRIFT),
            scaled * self.scale**2 * looks * (o.bin[:, None] == o.bin),
        ])  # fmt: skip

    def observed(self, theta: Floats) -> tuple[Floats, Floats]:
        """Return the covariance of the observations given θ, and their distance from the prior mean.

        Both are in units of ``scale``, of shape (O, O) and (O,).
        """
        p, k = self.named(theta), self.kernels
        learnt = self._learnt(p, self.points)
        design = self._design(learnt, self.points)
        out = np.tensordot([np.exp(2 * p[name]) for name in _ADDED], self._added, 1)
        out += k.slopes
        out += (design * self._variance(p)) @ design.T
        out += self._across(p, k, learnt, learnt)
        np.einsum("oo->o", out)[:] += _JITTER
        return out, self.y - design @ self.mean

    def at(self, log2_n: Floats, log2_b: Floats, t: Floats) -> Places:
        """Return Q points as `predicted` takes them, with all that does not depend on θ."""
        points = self._points(log2_n, log2_b, t)
        return points, self._kernels(points, self.points)

    def among(self, places: Places) -> Kernels:
        """Return the parts of the covariance of Q points with each other."""
        return self._kernels(places[0], places[0])

    def posterior_mean(self, theta: Floats, places: Places, alpha: Floats) -> Floats:
        """Return the mean of z (Q,) given θ and the observations, in units of ``scale``.

        ``alpha`` is K⁻¹ times the observations' distance from the prior mean (see `observed`).
        """
        p, (at, k) = self.named(theta), places
        learnt, of_data = self._learnt(p, at), self._learnt(p, self.points)
        linear = self.mean + self._variance(p) * (self._design(of_data, self.points).T @ alpha)
        common, smooth, walk = (np.exp(2 * p[name]) for name in ("common", "smooth", "walk"))
        along = smooth * (k.smooth @ (of_data * alpha)) + walk * (k.walk @ (of_data * alpha))
        alone = common * (k.common @ alpha) + k.slopes @ alpha
        return np.asarray(self._design(learnt, at) @ linear + alone + learnt * along)

    def predicted(self, theta: Floats, places: Places, among: Kernels) -> tuple[Floats, Floats, Floats]:
        """Return the prior of z at Q points given θ, in units of ``scale``.

        Returns its mean (Q,), its covariance with the observations (Q, O), and its covariance (Q, Q).
        """
        p, (at, with_data) = self.named(theta), places
        learnt = self._learnt(p, at)
        design = self._design(learnt, at)
        out = []
        for other, k in ((self.points, with_data), (at, among)):
            share = learnt if other is at else self._learnt(p, other)
            covariance = np.exp(2 * p["common"]) * k.common
            covariance += k.slopes
            covariance += (design * self._variance(p)) @ self._design(share, other).T
            covariance += self._across(p, k, learnt, share)
            out.append(covariance)
        return design @ self.mean, out[0], out[1]

    def loss(self, theta: Floats) -> float:
        """Return the negative log posterior of θ (P,), up to a constant."""
        covariance, left = self.observed(theta)
        root, failed = dpotrf(covariance.T, lower=True, clean=False, overwrite_a=True)
        if failed:
            return 1e10
        away = (theta - self.prior[:, 0]) / self.prior[:, 1]
        value = 0.5 * left @ dpotrs(root, left, lower=True)[0] + np.log(np.diag(root)).sum()
        return float(value + 0.5 * away @ away + self._of_residuals(self.named(theta))[0])

    def loss_and_slope(self, theta: Floats) -> tuple[float, Floats]:
        """Return the negative log posterior of θ, equal to `loss`, and its gradient (P,).

        With W = K⁻¹ − α αᵀ and α = K⁻¹ y, the gradient is ½ tr(W dK) − αᵀ dm. F enters K and m, so the chain
        rule needs ∂/∂F once, and the derivatives of F itself.
        """
        covariance, left = self.observed(theta)
        root, failed = dpotrf(covariance.T, lower=True, overwrite_a=True)
        if failed:
            return 1e10, np.zeros_like(theta)
        alpha = dpotrs(root, left, lower=True)[0]
        value = 0.5 * left @ alpha + np.log(np.diag(root)).sum()
        inverse = dpotri(root, lower=True, overwrite_c=True)[0]
        inward = inverse + inverse.T  # W, as the upper triangle of the inverse is 0
        np.einsum("oo->o", inward)[:] /= 2
        inward -= alpha[:, None] * alpha
        p, a, k = self.named(theta), self.points, self.kernels
        learnt, variance = self._learnt(p, a), self._variance(p)
        design = self._design(learnt, a)
        by_design = inward @ design
        slope = dict(zip(_ADDED, np.tensordot(self._added, inward, 2), strict=True))
        slope["ceilings"] = np.vdot(by_design[:, 2:-1], design[:, 2:-1] * variance[2:-1])
        change = np.column_stack([-np.ones_like(learnt), a.terms, np.zeros_like(learnt)])
        of_share = np.sum(by_design * change * variance, axis=1) - alpha * (change @ self.mean)
        for name, kernel in (("smooth", k.smooth), ("walk", k.walk)):
            along = np.einsum("ij,ij,j->i", inward, kernel, learnt)
            slope[name] = learnt @ along
            of_share += np.exp(2 * p[name]) * along
        slope |= {name: np.exp(2 * p[name]) * slope[name] for name in (*_ADDED, "smooth", "walk")}
        slope |= {name: of_share @ part for name, part in self._learnt_slopes(p, a).items()}
        of_residuals, more = self._of_residuals(p)
        away = (theta - self.prior[:, 0]) / self.prior[:, 1]
        total = np.array([slope[name] + more.get(name, 0.0) for name in self.names])
        return float(value + of_residuals + 0.5 * away @ away), total + away / self.prior[:, 1]

    @cached_property
    def _patterns(self) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """The runs' residuals, in G groups of runs with equal numbers of checkpoints in each of K bins.

        Returns the numbers of runs (G,), which bins have checkpoints (G, K), the numbers of checkpoints
        (G, K), infinite where there are none, the correlation of drift between bins (K, K), and the sums of
        squares of residuals over ``scale`` (G, K, K).
        """
        o = self.observations
        known = ~np.isnan(o.residuals)
        counts, group = np.unique(np.where(known, o.counts, 0.0), axis=0, return_inverse=True)
        group = group.ravel()  # NumPy 2.0 returns a column
        slope = np.zeros((len(o.places), o.counts.shape[1]))
        slope[o.place, o.bin] = self.slope
        left = np.where(known, o.residuals, 0.0) * slope[o.run_place]
        squares = np.array([left[group == g].T @ left[group == g] for g in range(len(counts))])
        size = np.bincount(o.bin, minlength=counts.shape[1])
        at = np.bincount(o.bin, o.t, counts.shape[1]) / np.maximum(size, 1)
        drift = np.exp(-np.abs(at[:, None] - at) / _DRIFT)
        looks = np.where(counts > 0, counts, np.inf)
        return np.bincount(group).astype(np.float64), (counts > 0).astype(np.float64), looks, drift, squares

    def _of_residuals(self, p: dict[str, float]) -> tuple[float, dict[str, float]]:
        """Return the negative log likelihood of the runs' residuals and its derivatives.

        Residuals have fewer degrees of freedom than entries, which makes them smaller than the runs' effects.
        Each residual therefore counts as ``freedom`` observations.
        """
        nu = self.observations.freedom
        if not nu:
            return 0.0, {}
        runs, known, looks, alike, squares = self._patterns
        run, drift, noise = (np.exp(2 * p[name]) for name in ("run", "drift", "noise"))
        # In bins without checkpoints, the covariance is the unit matrix, which adds nothing.
        both = known[:, :, None] * known[:, None]
        covariance = (run + drift * alike) * both
        np.einsum("gkk->gk", covariance)[:] += np.where(known, noise / looks + _JITTER, 1.0)
        root = np.linalg.cholesky(covariance)
        half = np.linalg.inv(root)
        inverse = half.transpose(0, 2, 1) @ half
        value = nu * runs @ np.log(np.einsum("gkk->gk", root)).sum(axis=1) + 0.5 * np.vdot(inverse, squares)
        inward = (nu * runs[:, None, None] * inverse - inverse @ squares @ inverse) * both
        return float(value), {
            "run": run * inward.sum(),
            "drift": drift * np.vdot(inward.sum(axis=0), alike),
            "noise": noise * np.vdot(np.einsum("gkk->gk", inward), 1 / looks),
        }

    def run_variance(self, theta: Floats) -> float:
        """Return the variance of a run's reward about the mean over runs of all seeds, given θ."""
        p, o = self.named(theta), self.observations
        of_run = sum(np.exp(2 * p[name]) for name in ("run", "drift", "noise")) * self.scale**2
        return float(of_run + np.exp(2 * p["seed"]) * o.seed_variance)


def model_of(
    configurations: Sequence[Configuration], bounds: tuple[float, float], unit: float
) -> StructuralModel:
    """Return the model of configurations with rewards of this unit between these bounds."""
    observations = observe(configurations)
    return StructuralModel(observations, Start.of(configurations), Link.of(bounds, unit, observations.reward))
