"""A quadratic in the constants that stands for the simulator, and the posterior it gives.

Around the constants that matter, what a simulation measures is regressed on them. With x the coordinates of a
population (d of them), φ(x) its 1 + d + d (d + 1) / 2 monomials up to the second degree, and z (K,) the
principal components of the simulated rewards,

    z = B'φ(x) + e,   e ~ N(0, Σ)

by ridge regression, each simulation weighted by how near its x is to the current posterior: by x alone, never
by how well its rewards agree, which would select lucky noise. Each simulation has problems, rollouts and
answers of its own, so Σ is what two sets of runs of one population differ by, and what the quadratic lacks;
levels of a problem set that all configurations share are in it as such. Then, with z₀ the measured rewards,

    −2 log p(x | z₀) = |x|² + e'(h Σ + δ²)⁻¹e + log |h Σ + δ²|,   e = z₀ − B'φ(x),   h = 1 + φ'(Φ'WΦ)⁻¹φ

(the synthetic likelihood of Wood 2010, Nature 466, 1102, with a regression in place of repeated simulations,
as in Meeds and Welling 2014, arXiv 1401.2838). h is the regression's own uncertainty, which grows away from
the simulations. δ is the discrepancy: what the mechanism cannot measure with any constants, in each component
(Kennedy and O'Hagan 2001, JRSS B 63, 425). It comes from simulations and not from their regression, which may
promise what no constants keep: with z_j what simulation j measures, e_j = z₀ − z_j has the noise of two sets
of runs, and δ is the least with

    5 % quantile over j of e_j'(2 Σ + δ²)⁻¹e_j ≤ K

So early rounds, none of whose simulations is near, give wide posteriors. Where the mechanism misses what was
measured by δ, constants count as alike that differ by less: a factor on Σ in the place of δ would forgive the
large features of the curves as much as the small ones, of which Σ is sure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from isolaw.calibration.space import BOUND
from isolaw.simulators.model import Floats

COMPONENTS = 14
_RIDGE = 1e-2
_NEAREST = 0.05  # share of the simulations
_LEAST_NOISE = 1e-4  # of a component


def monomials(x: Floats) -> Floats:
    """Return φ, shape (J, 1 + d + d (d + 1) / 2), of points (J, d).

    >>> monomials(np.array([[2.0, 3.0]])).tolist()
    [[1.0, 2.0, 3.0, 4.0, 6.0, 9.0]]
    """
    i, j = np.triu_indices(x.shape[1])
    return np.concatenate([np.ones((len(x), 1)), x, x[:, i] * x[:, j]], axis=1)


@dataclass(frozen=True)
class Emulator:
    """The regression at one stage of a calibration.

    In units of Σ's eigenvectors: ``measured`` is z₀ (K,), ``noise2`` (K,) their variances.
    ``discrepancy`` is δ, ``residual`` what of the measured rewards no component has (root mean square).
    """

    centre: Floats
    scale: Floats
    coefficients: Floats
    inverse: Floats
    noise2: Floats
    measured: Floats
    residual: float
    discrepancy: float

    @classmethod
    def fit(cls, x: Floats, rewards: Floats, weights: Floats, measured: Floats) -> Emulator:
        """Regress ``rewards`` (J, P) on the points ``x`` (J, d), with weights (J,); ``measured`` is (P,)."""
        w = weights / weights.mean()
        centre = np.average(x, axis=0, weights=w)
        scale = np.sqrt(np.average((x - centre) ** 2, axis=0, weights=w)) + 1e-9
        middle = np.average(rewards, axis=0, weights=w)
        components = min(COMPONENTS, len(measured))
        _, _, rows = np.linalg.svd((rewards - middle) * np.sqrt(w)[:, None], full_matrices=False)
        basis = rows[:components].T
        z, z0 = (rewards - middle) @ basis, (measured - middle) @ basis
        phi = monomials((x - centre) / scale)
        ridge = np.full(phi.shape[1], _RIDGE * w.sum())
        ridge[0] = 0.0
        gram = (phi * w[:, None]).T @ phi
        inverse = np.linalg.inv(gram + np.diag(ridge))
        coefficients = inverse @ (phi * w[:, None]).T @ z
        left = z - phi @ coefficients
        freedom = 1 - min(np.trace(inverse @ gram) / effective(w), 0.8)
        covariance = (left * w[:, None]).T @ left / (w.sum() * freedom)
        covariance += np.eye(components) * _LEAST_NOISE**2
        residual = float(np.sqrt(np.mean((measured - middle - basis @ z0) ** 2)))
        noise2, axes = np.linalg.eigh(covariance)
        z0, z = z0 @ axes, z @ axes
        discrepancy = _discrepancy((z0 - z) ** 2, 2 * noise2)
        return cls(centre, scale, coefficients @ axes, inverse, noise2, z0, residual, discrepancy)

    def error(self, x: Floats) -> tuple[Floats, Floats]:
        """Return e (J, K) and h (J,) of points (J, d)."""
        phi = monomials((x - self.centre) / self.scale)
        h = 1 + np.einsum("ij,jk,ik->i", phi, self.inverse, phi)
        return self.measured - phi @ self.coefficients, h

    def log_posterior(self, x: Floats) -> Floats:
        """Return log p(x | z₀) up to a constant, of points (J, d), shape (J,)."""
        error, h = self.error(x)
        variance = h[:, None] * self.noise2 + self.discrepancy**2
        far = np.sum(error**2 / variance + np.log(variance), axis=1)
        found = -0.5 * (np.sum(x**2, axis=1) + far)
        return np.where(np.abs(x).max(axis=1) <= BOUND, found, -np.inf)


def _discrepancy(square: Floats, variance: Floats) -> float:
    """δ of the squared differences (J, K) of simulations, which have ``variance`` (K,) without it."""

    def excess(log_delta: float) -> float:
        found = np.sum(square / (variance + np.exp(2 * log_delta)), axis=1)
        return float(np.quantile(found, _NEAREST)) - variance.size

    least, most = np.log(_LEAST_NOISE), np.log(np.sqrt(square.max()) + 1)
    return 0.0 if excess(least) <= 0 else float(np.exp(brentq(excess, least, most)))


def effective(weights: Floats) -> float:
    """Return (Σ w)² / Σ w², the number of equally weighted points that say as much."""
    return float(weights.sum() ** 2 / np.sum(weights**2))
