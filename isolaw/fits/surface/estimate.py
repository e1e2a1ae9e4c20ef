"""Estimate the reward model, and draw the reward at any allocation and budget.

The hyperparameters θ of `isolaw.fits.surface.model` are drawn by adaptive importance sampling: Student t
proposals around the mode with the curvature there (Laplace), whose mean and covariance are then improved
with the weighted draws (Cappé et al. 2008, arXiv 0710.4242; all rounds are pooled). Given θ, rewards are
normal, and are drawn jointly. Draws of the reward, and of the n* and laws derived from them, thus reflect
uncertain rewards *and* uncertain θ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import lgamma

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve
from scipy.linalg.lapack import dtrtrs

from isolaw.fits.blas import each, one_blas_thread
from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.model import Kernels, Places, StructuralModel, build_model

_STARTS = ((-1.0, 0.0), (0.7, 0.0), (-0.5, -1.0), (-0.5, 1.0))  # τ and c, in deviations of the prior
_FARTHEST = 6.0  # limit on the search for θ, in standard deviations of the prior
_FIRST_STEPS, _LAST_STEPS = 20, 80  # optimiser steps from each start, and from the best result
_WIDEST = 1.5  # limit on the spread of an undetermined θ, in standard deviations of the prior
_STEP = 0.02  # of the numerical second derivatives
_DIGITS = 5  # of the mode, in standard deviations of the prior
_CANDIDATES, _ROUNDS, _TAIL = 128, 4, 6  # draws of θ in a round, rounds, and degrees of freedom of proposals
_ENOUGH, FEW = 30.0, 5.0  # effective draws of θ below which weights are flattened, and a law gets a flag
_THETA = 32  # θ that are kept
_LEAST_DRAWS = 2000  # of a prediction; 400 draws do not determine the second digit of a loss
_LEAST_VARIANCE = 1e-10


@dataclass(frozen=True)
class Surface:
    """Draws of the reward over (log n, log B_p, log C)."""

    model: StructuralModel  # the prior and the observations
    mode: Floats  # the most likely hyperparameters, (P,)
    theta: Floats  # draws of the hyperparameters, (H, P); the mode if there are no draws
    of_draw: NDArray[np.int64]  # index into ``theta`` for each draw, (D,)
    seed: int  # seed of the draws
    effective: float  # effective number of draws of θ, before weights were flattened; 0 without draws
    unit: float = 1.0  # unit of the reward (`isolaw.fits.metric`)
    _solutions: dict[int, tuple[Floats, Floats]] = field(default_factory=dict, repr=False)

    @property
    def places(self) -> Floats:
        """log2 n and log2 B_p of the configurations, of shape (N, 2)."""
        return self.model.observations.places

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest possible reward."""
        return self.model.link.low, self.model.link.high

    @property
    def run_deviation(self) -> float:
        """The standard deviation of a single run's reward about its configuration's mean."""
        p = self.model.by_name(self.mode)
        return float(self.model.scale * np.sqrt(np.exp(2 * p["run"]) + np.exp(2 * p["drift"])))

    def drawn(self) -> Surface:
        """Return the surface with as many draws as a prediction uses, or with none if it has none."""
        repeats = -(-_LEAST_DRAWS // max(self.of_draw.size, 1))
        return replace(self, of_draw=np.tile(self.of_draw, repeats))  # with the same θ, so the same solutions

    def rewards(self, log2_n: Floats, log2_b: Floats, compute: Floats) -> Floats:
        """Return joint draws of the rewards at Q points.

        Returns an array of shape (1 + D, Q): the mean in row 0, then D draws.
        """
        places, draws = self.model.locate(log2_n, log2_b, np.log(compute)), self.of_draw.size
        if not draws:
            return self.means(log2_n, log2_b, compute)[None]
        kernels, used = self.model.self_kernels(places), np.unique(self.of_draw)
        z = np.random.default_rng(self.seed).standard_normal((draws, log2_n.size))
        totals = np.zeros((1 + draws, log2_n.size))
        with one_blas_thread():
            size = max(log2_n.size, self.model.y.size)
            posteriors = each(lambda h: self._posterior_at(int(h), places, kernels), used, size)
            for h, (mean, root) in zip(used, posteriors, strict=True):
                of_theta = np.flatnonzero(self.of_draw == h)
                totals[1 + of_theta] = mean + z[of_theta] @ root.T
                totals[0] += mean * (of_theta.size / draws)
        return self.model.link.rewards(self.model.best_trend + self.model.scale * totals)

    def means(self, log2_n: Floats, log2_b: Floats, compute: Floats) -> Floats:
        """Return the mean rewards at Q points (Q,), row 0 of `rewards`, in much less time."""
        places = self.model.locate(log2_n, log2_b, np.log(compute))
        used, counts = np.unique(self.of_draw, return_counts=True) if self.of_draw.size else ([0], [1])
        with one_blas_thread():
            means = [self.model.posterior_mean(self.theta[h], places, self._solve(int(h))[1]) for h in used]
        mean = np.average(means, axis=0, weights=counts)
        return self.model.link.rewards(self.model.best_trend + self.model.scale * mean)

    def _solve(self, h: int) -> tuple[Floats, Floats]:
        """Return the root of the observations' covariance K given θ_h, and K⁻¹ y."""
        if h not in self._solutions:
            covariance, residual = self.model.data_covariance(self.theta[h])
            covariance[np.diag_indices_from(covariance)] += 1e-9 * covariance.max()
            root = np.linalg.cholesky(covariance)
            self._solutions[h] = np.asarray(root), np.asarray(cho_solve((root, True), residual))
        return self._solutions[h]

    def _posterior_at(self, h: int, places: Places, self_kernels: Kernels) -> tuple[Floats, Floats]:
        """Return the mean of z at Q points, and a matrix root of its covariance (Q, Q), given θ_h."""
        root, alpha = self._solve(h)
        mean, cross, covariance = self.model.prior_at(self.theta[h], places, self_kernels)
        half = dtrtrs(root.T, cross.T, lower=False, trans=True)[0]
        covariance -= half.T @ half
        variance = np.einsum("qq->q", covariance)
        variance += _LEAST_VARIANCE + 1e-9 * variance.max()
        try:
            return mean + cross @ alpha, np.asarray(np.linalg.cholesky(covariance))
        except np.linalg.LinAlgError:
            eigenvalues, eigenvectors = np.linalg.eigh(covariance)
            return mean + cross @ alpha, eigenvectors * np.sqrt(np.maximum(eigenvalues, 0.0))


def estimate(
    configurations: Sequence[Configuration],
    draws: int,
    seed: int = 0,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    unit: float = 1.0,
) -> Surface:
    """Fit the model to runs of at least one n, with checkpoints after step 0.

    ``seed`` is the seed of the ``draws``. Without draws, the surface is the mean at the most likely θ.
    ``bounds`` contains the smallest and the largest possible reward; ``unit`` is the reward's unit.
    """
    with one_blas_thread():
        model = build_model(configurations, bounds, unit)
        mode = _mode(model)
        if not draws:
            return Surface(model, mode, mode[None], np.empty(0, dtype=np.int64), seed, 0.0, unit)
        theta, weights, effective = _sample_posterior(model, mode, seed)
    quantiles = (np.arange(_THETA) + 0.5) / _THETA
    indices = np.minimum(np.searchsorted(np.cumsum(weights), quantiles), len(theta) - 1)
    used, theta_index = np.unique(indices, return_inverse=True)
    return Surface(model, mode, theta[used], theta_index[np.arange(draws) % _THETA], seed, effective, unit)


def _mode(model: StructuralModel) -> Floats:
    """Return the most likely θ, searched from several starts and then from the best result."""
    from scipy.optimize import minimize  # imported here since predictions from a law do not need it

    centre, unit = model.prior.T

    def loss(z: Floats) -> tuple[float, Floats]:
        # A line search can reach values at which θ overflows; no optimum is this far from the centre.
        value, slope = model.loss_and_slope(centre + unit * np.clip(z, -_FARTHEST, _FARTHEST))
        return value, slope * unit

    def search(z: Floats, steps: int) -> tuple[float, Floats]:
        optimum = minimize(loss, z, jac=True, method="L-BFGS-B", options={"maxiter": steps})
        return float(optimum.fun), np.asarray(optimum.x)

    starts = np.zeros((len(_STARTS), centre.size))
    starts[:, [model.names.index("tau"), model.names.index("critical")]] = _STARTS
    optima = each(lambda z: search(z, _FIRST_STEPS), starts, model.y.size)
    z = search(min(optima, key=lambda optimum: optimum[0])[1], _LAST_STEPS)[1]
    # A Newton step removes what remains of the search's path, which differs between processors.
    root = _root(model, z)
    polished = z - root @ root @ loss(z)[1]
    z = polished if loss(polished)[0] < loss(z)[0] else z
    return np.asarray(centre + unit * np.clip(z, -_FARTHEST, _FARTHEST).round(_DIGITS))


def _root(model: StructuralModel, z: Floats) -> Floats:
    """Return a root of the inverse of the loss's second derivatives, in units of the prior's deviations.

    The symmetric root is the same on every processor, unlike eigenvectors' signs and order.
    """
    centre, unit = model.prior.T
    neighbours = z + _STEP * np.concatenate([np.eye(z.size), -np.eye(z.size)])
    evaluations = each(lambda z: model.loss_and_slope(centre + unit * z), neighbours, model.y.size)
    slopes = np.array([slope * unit for _, slope in evaluations])
    hessian = (slopes[: z.size] - slopes[z.size :]) / (2 * _STEP)
    eigenvalues, eigenvectors = np.linalg.eigh((hessian + hessian.T) / 2)
    return np.asarray((eigenvectors / np.sqrt(np.maximum(eigenvalues, _WIDEST**-2))) @ eigenvectors.T)


def _sample_posterior(model: StructuralModel, mode: Floats, seed: int) -> tuple[Floats, Floats, float]:
    """Draw θ and return the draws (H, P), their weights (H,), and their effective number.

    The effective number is 1 / Σ w² (Kish). The weights are capped at √H times their mean, and flattened,
    w^a with a < 1, if the effective number is below `_ENOUGH`.
    """
    centre, unit = model.prior.T
    mean, size = (mode - centre) / unit, mode.size
    root = _root(model, mean)
    rng = np.random.default_rng(seed)
    draws, logs = np.empty((0, size)), np.empty(0)
    weights, effective = np.empty(0), 0.0
    for _ in range(_ROUNDS):
        half_noise = rng.standard_normal((_CANDIDATES // 2, size))
        half_noise *= np.sqrt(_TAIL / rng.chisquare(_TAIL, len(half_noise)))[:, None]
        noise = np.concatenate([half_noise, -half_noise])
        z = mean + noise @ root.T
        density = -0.5 * (_TAIL + size) * np.log1p(np.sum(noise**2, axis=1) / _TAIL)
        density += lgamma((_TAIL + size) / 2) - float(np.linalg.slogdet(root)[1])
        logs = np.append(logs, -np.array(each(model.loss, centre + unit * z, model.y.size)) - density)
        draws = np.vstack([draws, z])
        weights = _capped_weights(logs)
        effective = 1 / float(weights @ weights)
        if effective > 2 * _ENOUGH:
            break
        mean = weights @ draws
        deviations = draws - mean
        fraction = effective / (effective + size)  # few draws hardly determine a covariance
        covariance = fraction * (deviations.T * weights) @ deviations + (1 - fraction) * root @ root.T
        root = np.asarray(np.linalg.cholesky(covariance))
    for power in np.linspace(0.9, 0.1, 9) if effective < _ENOUGH else ():
        weights = _capped_weights(power * logs)
        if weights @ weights <= 1 / _ENOUGH:
            break
    return centre + unit * draws, weights, effective


def _capped_weights(log_weights: Floats) -> Floats:
    """Return normalised weights from their logarithms, each at most √H times their mean (Ionides 2008)."""
    weights = np.exp(log_weights - log_weights.max())
    weights = np.minimum(weights, weights.mean() * np.sqrt(weights.size))
    return np.asarray(weights / weights.sum())
