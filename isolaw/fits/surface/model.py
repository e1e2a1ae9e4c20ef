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
out. `PRIORS`, `CEILINGS` and `SLOPES` are set by hand, from what the real sweeps of docs/evidence.md showed.
Its column of learnt priors has none from the group that it judges.
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
SLOPES = ((0.0, 0.2), (0.0, 0.04))  # means and standard deviations of s0 and s1
_START, _STEP_0 = 0.3, 0.03  # standard deviation of R0 without evaluations at step 0, and the least with them
_SMOOTH_LENGTH, _CLOSENESS_LENGTH = 3.0, 2.5  # doublings over which δ1, and δ2 with s1, are alike
_SEED, _DRIFT = 4.0, 2.0  # e-folds over which half of a seed's effect, and a run's drift, persist
_BEND = 0.01  # distance from a bound, in the reward's unit, within which `Link` bends
_JITTER = 1e-8
_LEAST_SCALE = 1e-10  # smallest rise, over the bend, below which rewards count as equal
_MOST_LOG_X = 40.0  # largest |log x|
_LN2 = float(np.log(2))
_CENTRES = {name: centre for name, (centre, _) in PRIORS.items()} | {"seed": -np.inf}
_RUN_TERMS = ("run", "drift", "noise")
_UNIT_TERMS = ("common", "seed", *_RUN_TERMS)


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
    def for_rewards(cls, bounds: tuple[float, float], unit: float, rewards: Floats) -> Link:
        """Return the link of rewards of this unit. It bends less if all rewards are near a bound."""
        distance = min(float(rewards.max()) - bounds[0], bounds[1] - float(rewards.min()))
        return cls(*bounds, _BEND * unit if distance <= 0 else min(_BEND * unit, distance / 10))

    def rewards(self, z: Floats) -> Floats:
        """Return g(z)."""
        s = self.bend  # from 37 bends on, log(1 + e^x) is x in double precision
        if np.isfinite(self.high):
            x = (self.high - z) / s
            z = self.high - s * np.logaddexp(0, x, out=x, where=x < 37)
        if np.isfinite(self.low):
            x = (z - self.low) / s
            z = self.low + s * np.logaddexp(0, x, out=x, where=x < 37)
        return np.clip(z, self.low, self.high)  # removes rounding

    def inverse(self, rewards: Floats) -> tuple[Floats, Floats]:
        """Return z and dz/dr. Rewards within a fiftieth of the bend of a bound count as that far from it."""
        s, z, z_slope = self.bend, rewards, np.ones_like(rewards)
        if np.isfinite(self.low):
            x = np.maximum((z - self.low) / s, 0.02)
            z, z_slope = self.low + s * (x + np.log(-np.expm1(-x))), z_slope / -np.expm1(-x)
        if np.isfinite(self.high):
            x = np.maximum((self.high - z) / s, 0.02)
            z, z_slope = self.high - s * (x + np.log(-np.expm1(-x))), z_slope / -np.expm1(-x)
        return z, z_slope


class _Points(NamedTuple):
    """Q points (u, v, t). Coefficients of R0, the A and s0 are ``fixed`` + F ``learnt``, (Q, 5 or 8)."""

    u: Floats
    v: Floats
    t: Floats
    fixed: Floats
    learnt: Floats


class Kernels(NamedTuple):
    """The parts of the covariance of two sets of points that do not depend on θ, of shape (Q, Q')."""

    common: Floats
    smooth: Floats
    walk: Floats
    slopes: Floats


# Q points, and the parts of their covariance with the observations.
Places = tuple[_Points, Kernels]
_Given = tuple[Floats, Floats]  # F and the design at Q points, given θ


@dataclass(frozen=True)
class InitialReward:
    """The reward R0 before training, with its standard error; None for both if step 0 was not evaluated."""

    reward: float | None
    standard_error: float | None

    @classmethod
    def from_configurations(cls, configurations: Sequence[Configuration]) -> InitialReward:
        """Return the mean of all evaluations at step 0."""
        zero = np.concatenate([c.reward[c.compute <= 0] for c in configurations])
        if not zero.size:
            return cls(None, None)
        standard_error = float(zero.std() / np.sqrt(zero.size)) if zero.size > 1 else 0.0
        return cls(float(zero.mean()), standard_error)


class StructuralModel:
    """The reward model given observations: its prior, likelihood, and posterior mean given θ.

    ``names`` lists the hyperparameters θ that these observations involve, and ``prior`` (P, 2) their centres
    and standard deviations.
    """

    def __init__(self, observations: Observations, start: InitialReward, link: Link) -> None:
        self.observations, self.start, self.link = observations, start, link
        data = observations
        z, link_slope = link.inverse(data.reward)
        self.is_plane = varies_in_batch(data.log2_n, data.log2_b)
        self.middle = tuple((float(x.min()) + float(x.max())) / 2 for x in data.places.T)
        trend = link.inverse(data.trend)[0]
        # The rise so far, but not less than half of the differences between all observations.
        self.scale = max(float(np.ptp(trend)), float(np.ptp(z)) / 2, _LEAST_SCALE * link.bend)
        self.best_trend = float(trend.max())
        self.y = (z - self.best_trend) / self.scale
        self.link_slope = link_slope / self.scale
        self.first_t, self.last_t = float(data.t.min()), float(data.t.max())
        self.linear_prior_mean, self.linear_prior_deviation = self._linear(trend[0])
        unused = set() if np.ptp(data.log2_b) else {"across"}
        if data.seed_variance == 0:
            unused.add("seed")
        freedom = max(np.unique(data.run_seed).size - 1, 1)  # the standard error of a log standard deviation:
        priors = PRIORS | {"seed": (0.0, float(np.sqrt(polygamma(1, freedom / 2)) / 2))}
        self.names = [name for name in priors if name not in unused]
        self.prior = np.array([priors[name] for name in self.names])
        self.points = self._points(data.log2_n, data.log2_b, data.t)
        self.kernels = self._kernels(self.points, self.points)

    def _linear(self, first_trend: float) -> tuple[Floats, Floats]:
        """Return the prior mean and standard deviation of R0, A0 to A2 (to A5 on a plane), and s0."""
        start, error = first_trend, _START
        if self.start.reward is not None and self.start.standard_error is not None:
            start = float(self.link.inverse(np.array([self.start.reward]))[0][0])
            error = max(self.start.standard_error / self.scale, _STEP_0)
        moments = [((start - self.best_trend) / self.scale, error), *CEILINGS]
        if self.is_plane:
            moments += [*CEILINGS[1:], (0.0, CEILINGS[2][1])]
        mean, deviation = np.array([*moments, SLOPES[0]]).T
        return mean, deviation

    def _points(self, log2_n: Floats, log2_b: Floats, t: Floats) -> _Points:
        u, v = log2_n - self.middle[0], log2_b - self.middle[1]
        one, in_batch = np.ones_like(u), [v, v**2, u * v] if self.is_plane else []
        learnt = np.stack([-one, one, u, u**2, *in_batch, 0 * u], axis=1)
        fixed = np.zeros_like(learnt)
        fixed[:, 0], fixed[:, -1] = 1.0, np.maximum(t - self.last_t, 0.0)
        return _Points(u, v, t, fixed, learnt)

    def _kernels(self, a: _Points, b: _Points) -> Kernels:
        du = np.abs(a.u[:, None] - b.u)
        dv = np.abs(a.v[:, None] - b.v) if self.is_plane else np.zeros_like(du)
        closeness = np.exp(-np.hypot(du, dv) / _CLOSENESS_LENGTH)
        walk = np.minimum(*(np.maximum(t - self.first_t, 0.0) for t in (a.t[:, None], b.t)))
        slopes = SLOPES[1][1] ** 2 * a.fixed[:, -1:] * b.fixed[:, -1] * closeness  # e-folds past the runs
        smooth = _matern(du / _SMOOTH_LENGTH) * _matern(dv / _SMOOTH_LENGTH)
        return Kernels(walk, smooth, walk * closeness, slopes)

    def by_name(self, theta: Floats) -> dict[str, float]:
        """Return p: θ by name. Hyperparameters that are not in ``names`` get values that have no effect."""
        return _CENTRES | dict(zip(self.names, theta.tolist(), strict=True))

    def _log_x(self, p: dict[str, float], points: _Points) -> tuple[Floats, Floats, Floats, Floats]:
        """Return log x at Q points, and b, ũ and log(1 + 2^(ũ − c)), of which it consists.

        τ is relative to the middle of the grid.
        """
        batch, c, b = points.u + p["across"] * points.v, p["critical"], np.exp(p["b"] + p["b_u"] * points.u)
        excess = np.logaddexp(0, _LN2 * (batch - c)) - np.logaddexp(0, -_LN2 * c)
        log_tau = (
            self.last_t + np.log(2 / 3) + p["tau"] + p["kappa"] * _LN2 * batch + (1 - p["kappa"]) * excess
        )
        return b * (points.t - log_tau), b, batch, excess

    def _learnt(self, p: dict[str, float], points: _Points) -> Floats:
        """Return F at Q points."""
        x, w = np.exp(np.clip(self._log_x(p, points)[0], -_MOST_LOG_X, _MOST_LOG_X)), np.exp(p["w"])
        return np.asarray(-np.expm1(-np.log1p(w * x) / w))

    def _learnt_and_slopes(self, p: dict[str, float], points: _Points) -> tuple[Floats, dict[str, Floats]]:
        """Return F at Q points and its derivatives with respect to its parameters."""
        log_x, b, batch, excess = self._log_x(p, points)
        c = p["critical"]
        above_critical = expit(_LN2 * (batch - c))  # τ grows with the batch beyond c
        slopes = {
            "tau": -b,
            "kappa": -b * (_LN2 * batch - excess),
            "critical": -b * (1 - p["kappa"]) * _LN2 * (expit(-_LN2 * c) - above_critical),
            "across": -b * _LN2 * points.v * (p["kappa"] + (1 - p["kappa"]) * above_critical),
            "b": log_x,
            "b_u": log_x * points.u,
        }
        x, w = np.exp(np.clip(log_x, -_MOST_LOG_X, _MOST_LOG_X)), np.exp(p["w"])
        log_unlearnt, growth = -np.log1p(w * x) / w, x / (1 + w * x)
        unlearnt = np.exp(log_unlearnt)  # 1 − F
        log_x_slope = np.where(np.abs(log_x) < _MOST_LOG_X, unlearnt * growth, 0.0)
        learnt_slopes = {name: log_x_slope * slope for name, slope in slopes.items()}
        return -np.expm1(log_unlearnt), learnt_slopes | {"w": unlearnt * (growth + log_unlearnt)}

    @staticmethod
    def _design(learnt: Floats, points: _Points) -> Floats:
        """Return the coefficients of R0, the A and s0 in the reward, of shape (Q, 5 or 8)."""
        return np.asarray(points.fixed + learnt[:, None] * points.learnt)

    def _variance(self, p: dict[str, float]) -> Floats:
        """Return the prior variances of R0, the A and s0, of shape (5,) or (8,)."""
        variance = self.linear_prior_deviation**2
        variance[2:-1] *= np.exp(2 * p["ceilings"])
        return variance

    def _covariance(self, p: dict[str, float], kernels: Kernels, at: _Given, other: _Given) -> Floats:
        """Return the covariance of z at two sets of points, without δ0 and noise."""
        (learnt, design), (other_learnt, other_design) = at, other
        covariance = np.exp(2 * p["smooth"]) * kernels.smooth
        covariance += np.exp(2 * p["walk"]) * kernels.walk
        covariance *= other_learnt
        covariance *= learnt[:, None]
        covariance += kernels.slopes
        covariance += (design * self._variance(p)) @ other_design.T
        return np.asarray(covariance)

    @cached_property
    def _unit_covariances(self) -> Floats:
        """Return the covariances of δ0 and of each kind of noise per unit of their sizes, (5, O · O)."""
        data = self.observations
        distance, unit_scale = np.abs(data.t[:, None] - data.t), self.link_slope[:, None] * self.link_slope
        by_seed = data.combined @ np.eye(data.run_seed.max() + 1)[data.run_seed]
        run_covariance = unit_scale * self.scale**2 * (data.combined @ data.combined.T)
        noise_covariance = (data.combined / np.maximum(data.counts[:, data.bin].T, 1.0)) @ data.combined.T
        return np.array([
            self.kernels.common,
            data.seed_variance * unit_scale * (1 + _matern(distance / _SEED)) / 2 * (by_seed @ by_seed.T),
            run_covariance,
            run_covariance * np.exp(-distance / _DRIFT),
            unit_scale * self.scale**2 * noise_covariance * (data.bin[:, None] == data.bin),
        ]).reshape(len(_UNIT_TERMS), -1)  # fmt: skip

    def data_covariance(self, theta: Floats) -> tuple[Floats, Floats]:
        """Return the covariance of the observations given θ, and their distance from the prior mean.

        Both are in units of ``scale``, of shape (O, O) and (O,).
        """
        p = self.by_name(theta)
        return self._observed(p, learnt := self._learnt(p, self.points), self._design(learnt, self.points))

    def _observed(self, p: dict[str, float], learnt: Floats, design: Floats) -> tuple[Floats, Floats]:
        """Return what `data_covariance` does, given F and the design."""
        sizes = np.exp([2 * p[name] for name in _UNIT_TERMS])
        covariance = self._covariance(p, self.kernels, (learnt, design), (learnt, design))
        covariance += (sizes @ self._unit_covariances).reshape(covariance.shape)
        np.einsum("oo->o", covariance)[:] += _JITTER
        return covariance, self.y - design @ self.linear_prior_mean

    def locate(self, log2_n: Floats, log2_b: Floats, t: Floats) -> Places:
        """Return Q points as `prior_at` takes them, with all that does not depend on θ."""
        points = self._points(log2_n, log2_b, t)
        return points, self._kernels(points, self.points)

    def self_kernels(self, places: Places) -> Kernels:
        """Return the parts of the covariance of Q points with each other."""
        return self._kernels(places[0], places[0])

    def posterior_mean(self, theta: Floats, places: Places, alpha: Floats) -> Floats:
        """Return the mean of z (Q,) given θ and the observations, in units of ``scale``.

        ``alpha`` is K⁻¹ times the observations' distance from the prior mean (see `data_covariance`).
        """
        p, (points, k) = self.by_name(theta), places
        learnt, data_learnt = self._learnt(p, points), self._learnt(p, self.points)
        data_design = self._design(data_learnt, self.points)
        linear = self.linear_prior_mean + self._variance(p) * (data_design.T @ alpha)
        common, smooth, walk = (np.exp(2 * p[name]) for name in ("common", "smooth", "walk"))
        shape_terms = smooth * (k.smooth @ (data_learnt * alpha)) + walk * (k.walk @ (data_learnt * alpha))
        other_terms = common * (k.common @ alpha) + k.slopes @ alpha
        return np.asarray(self._design(learnt, points) @ linear + other_terms + learnt * shape_terms)

    def prior_at(self, theta: Floats, places: Places, self_kernels: Kernels) -> tuple[Floats, Floats, Floats]:
        """Return the prior of z at Q points given θ, in units of ``scale``.

        Returns its mean (Q,), its covariance with the observations (Q, O), and its covariance (Q, Q).
        """
        p, (points, data_kernels) = self.by_name(theta), places
        at, data = ((f := self._learnt(p, q), self._design(f, q)) for q in (points, self.points))
        cross = self._covariance(p, data_kernels, at, data)
        cross += np.exp(2 * p["common"]) * data_kernels.common
        covariance = self._covariance(p, self_kernels, at, at)
        covariance += np.exp(2 * p["common"]) * self_kernels.common
        return at[1] @ self.linear_prior_mean, cross, covariance

    def loss(self, theta: Floats) -> float:
        """Return the negative log posterior of θ (P,), up to a constant."""
        covariance, residual = self.data_covariance(theta)
        root, failed = dpotrf(covariance.T, lower=True, clean=False, overwrite_a=True)
        if failed:
            return 1e10
        offset = (theta - self.prior[:, 0]) / self.prior[:, 1]
        value = 0.5 * residual @ dpotrs(root, residual, lower=True)[0] + np.log(np.diag(root)).sum()
        return float(value + 0.5 * offset @ offset + self._residual_loss(self.by_name(theta))[0])

    def loss_and_slope(self, theta: Floats) -> tuple[float, Floats]:
        """Return the negative log posterior of θ, equal to `loss`, and its gradient (P,).

        With W = K⁻¹ − α αᵀ and α = K⁻¹ y, the gradient is ½ tr(W dK) − αᵀ dm. F enters K and m, so the chain
        rule needs ∂/∂F once, and the derivatives of F itself.
        """
        p, points, kernels = self.by_name(theta), self.points, self.kernels
        learnt, learnt_slopes = self._learnt_and_slopes(p, points)
        design, variance = self._design(learnt, points), self._variance(p)
        covariance, residual = self._observed(p, learnt, design)
        root, failed = dpotrf(covariance.T, lower=True, overwrite_a=True)
        if failed:
            return 1e10, np.zeros_like(theta)
        alpha = dpotrs(root, residual, lower=True)[0]
        value = 0.5 * residual @ alpha + np.log(np.einsum("oo->o", root)).sum()
        inverse = dpotri(root, lower=True, overwrite_c=True)[0]
        weights = inverse + inverse.T  # W, as the upper triangle of the inverse is 0
        np.einsum("oo->o", weights)[:] /= 2
        weights -= alpha[:, None] * alpha
        by_design = weights @ design
        gradient = dict(zip(_UNIT_TERMS, self._unit_covariances @ weights.ravel(), strict=True))
        gradient["ceilings"] = np.vdot(by_design[:, 2:-1], design[:, 2:-1] * variance[2:-1])
        learnt_slope = (by_design * points.learnt) @ variance
        learnt_slope -= alpha * (points.learnt @ self.linear_prior_mean)
        for name, kernel in (("smooth", kernels.smooth), ("walk", kernels.walk)):
            by_learnt = np.einsum("ij,ij,j->i", weights, kernel, learnt)
            gradient[name] = learnt @ by_learnt
            learnt_slope += np.exp(2 * p[name]) * by_learnt
        gradient |= {name: np.exp(2 * p[name]) * gradient[name] for name in (*_UNIT_TERMS, "smooth", "walk")}
        gradient |= {name: learnt_slope @ change for name, change in learnt_slopes.items()}
        residual_loss, residual_slope = self._residual_loss(p)
        offset = (theta - self.prior[:, 0]) / self.prior[:, 1]
        total = np.array([gradient[name] + residual_slope.get(name, 0.0) for name in self.names])
        return float(value + residual_loss + 0.5 * offset @ offset), total + offset / self.prior[:, 1]

    @cached_property
    def _patterns(self) -> tuple[Floats, Floats, Floats, Floats]:
        """The runs' residuals, in G groups of runs with equal numbers of checkpoints in each of K bins.

        Returns the numbers of runs (G,), their covariances per unit of each of `_RUN_TERMS` (3, G · K · K),
        what else these contain (G, K, K), and the sums of squares of residuals over ``scale`` (G, K, K). In
        bins without checkpoints, the covariance is the unit matrix, which adds nothing.
        """
        data = self.observations
        is_measured = ~np.isnan(data.residuals)
        counts, group = np.unique(np.where(is_measured, data.counts, 0.0), axis=0, return_inverse=True)
        group = group.ravel()  # NumPy 2.0 returns a column
        link_slope = np.zeros((len(data.places), data.counts.shape[1]))
        link_slope[data.place, data.bin] = self.link_slope
        residuals = np.where(is_measured, data.residuals, 0.0) * link_slope[data.run_place]
        squares = np.array([residuals[group == g].T @ residuals[group == g] for g in range(len(counts))])
        bin_sizes = np.bincount(data.bin, minlength=counts.shape[1])
        mean_t = np.bincount(data.bin, data.t, counts.shape[1]) / np.maximum(bin_sizes, 1)
        drift = np.exp(-np.abs(mean_t[:, None] - mean_t) / _DRIFT)
        known, unit_matrix = counts > 0, np.eye(counts.shape[1])
        both_known = known[:, :, None] & known[:, None]
        noise = unit_matrix / np.where(known, counts, np.inf)[:, None]
        per_unit = np.array([both_known, both_known * drift, noise]).reshape(len(_RUN_TERMS), -1)
        rest = unit_matrix * np.where(known, _JITTER, 1.0)[:, None]
        return np.bincount(group).astype(np.float64), per_unit, rest, squares

    def _residual_loss(self, p: dict[str, float]) -> tuple[float, dict[str, float]]:
        """Return the negative log likelihood of the runs' residuals and its derivatives.

        Residuals have fewer degrees of freedom than entries, which makes them smaller than the runs' effects.
        Each residual therefore counts as ``freedom`` observations.
        """
        freedom = self.observations.freedom
        if not freedom:
            return 0.0, {}
        runs, per_unit, rest, squares = self._patterns
        sizes = np.exp([2 * p[name] for name in _RUN_TERMS])
        root = np.linalg.cholesky((sizes @ per_unit).reshape(rest.shape) + rest)
        inverse_root = np.linalg.inv(root)
        inverse = inverse_root.transpose(0, 2, 1) @ inverse_root
        log_roots = np.log(np.einsum("gkk->gk", root)).sum(axis=1)
        value = freedom * runs @ log_roots + 0.5 * np.vdot(inverse, squares)
        weights = freedom * runs[:, None, None] * inverse - inverse @ squares @ inverse
        return float(value), dict(zip(_RUN_TERMS, sizes * (per_unit @ weights.ravel()), strict=True))


def build_model(
    configurations: Sequence[Configuration], bounds: tuple[float, float], unit: float
) -> StructuralModel:
    """Return the model of configurations with rewards of this unit between these bounds."""
    observations = observe(configurations)
    link = Link.for_rewards(bounds, unit, observations.reward)
    return StructuralModel(observations, InitialReward.from_configurations(configurations), link)
