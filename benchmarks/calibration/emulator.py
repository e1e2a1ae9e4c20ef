"""A Gaussian process that emulates the simulator, and the posterior of the simulator's constants.

Let x be the d coordinates of a simulated population, and z, of shape (K,), the principal components of its
rewards. A linear fit in x with coefficients β_k leaves residuals with standard deviation s_k in component k:

    z_k = β_k'(1, x) + s_k (f_k(x) + e_k),   f_k ~ GP(0, σ_k² r),   e_k ~ N(0, ν_k²)
    r(x, x') = exp(−½ Σ_i (x_i − x'_i)² / l_i²)

All components share the correlation r (Conti and O'Hagan 2010, J. Stat. Plan. Inference 140, 640), so a
single eigendecomposition serves them all. The length scales l, signal variances σ² and noise variances ν²
maximise the marginal likelihood of `_FITTED` simulations under log l ~ N(1, 1) and log ν² ~ N(−2, 4). Each
simulation has its own problems, rollouts and answers. ν² therefore measures how two sets of runs of one
population differ, including the level of a problem set that all configurations share. Let z₀ be the measured
rewards, and ẑ and v the mean and variance of the process at x. Then

    −2 log p(x | z₀) = |x|² + Σ_k (z₀ − ẑ)² / (v + s²ν² + δ²) + log (v + s²ν² + δ²)

(the synthetic likelihood of Wood 2010, Nature 466, 1102, with a process instead of repeated simulations, as
in Meeds and Welling 2014, arXiv 1401.2838). v grows away from simulations, including between simulations that
no polynomial joins, so constants that no round tried remain possible. δ is the model discrepancy in each
component: the part of the rewards that no constants of the mechanism reproduce (Kennedy and O'Hagan 2001,
JRSS B 63, 425). isolaw estimates δ from simulations j: the difference e_j = z₀ − z_j has the noise of two
sets of runs, and δ is the smallest value with

    5 % quantile over j of Σ_k e_jk² / (2 s²ν² + δ²) ≤ K
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq, minimize

from benchmarks.calibration.space import BOUND
from isolaw.simulators.model import Floats

COMPONENTS = 14
_MOST = 1200  # uses this many of the latest simulations; choosing the best ones would select for noise
_FITTED = 300
_STEPS = 40  # limit on the iterations of the search for l, σ² and ν²
_NEAREST = 0.05  # share of the simulations that determines δ
_LEAST = 1e-4  # lower end of the search for δ
_LENGTH, _NOISE, _NOISE_SD = 1.0, -2.0, 2.0  # prior of log l and log ν²


@dataclass(frozen=True)
class Emulator:
    """The Gaussian process after one round of a calibration.

    In the symbols of the module's docstring, ``measured`` is z₀ and ``noise2`` is s²ν², both of shape (K,),
    and ``discrepancy`` is δ. ``covariance``, of shape (P, P), is the covariance of the rewards over
    repetitions of the runs. `fit` computes the other fields.
    """

    points: Floats
    lengths: Floats
    plane: Floats
    weights: Floats
    axes: Floats
    shares: Floats
    signal2: Floats
    noise2: Floats
    measured: Floats
    discrepancy: float
    covariance: Floats

    @classmethod
    def fit(cls, x: Floats, rewards: Floats, measured: Floats, seed: int = 0) -> Emulator:
        """Fit the process to simulated rewards.

        ``rewards``, of shape (J, P), were simulated at the points ``x``, of shape (J, d). ``measured`` has
        shape (P,).
        """
        x, rewards = x[-_MOST:], rewards[-_MOST:]
        middle = rewards.mean(axis=0)
        components = min(COMPONENTS, len(measured))
        _, _, rows = np.linalg.svd(rewards - middle, full_matrices=False)
        basis = rows[:components].T
        z, z0 = (rewards - middle) @ basis, (measured - middle) @ basis
        flat = _with_one(x)
        plane = np.linalg.lstsq(flat, z, rcond=None)[0]
        left = z - flat @ plane
        scale = left.std(axis=0) + 1e-12
        some = np.random.default_rng(seed).permutation(len(x))[:_FITTED]
        lengths, signal2, noise2 = _most_likely(x[some], left[some] / scale)
        values, axes = np.linalg.eigh(correlation(x, x, lengths))
        shares = 1 / (np.maximum(values, 0)[:, None] + (noise2 / signal2)[None])
        weights = axes @ (shares * (axes.T @ left))
        signal2, noise2 = signal2 * scale**2, noise2 * scale**2
        discrepancy = _discrepancy((z0 - z) ** 2, 2 * noise2)
        rest = (rewards - middle - z @ basis.T).var(axis=0)
        covariance = (basis * noise2) @ basis.T + np.diag(rest)
        fitted = lengths, plane, weights, axes, shares, signal2, noise2
        return cls(x, *fitted, z0, discrepancy, covariance)

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the mean and variance of the components, without noise, at points of shape (J, d).

        Both arrays have shape (J, K).
        """
        near = correlation(x, self.points, self.lengths)
        known = (near @ self.axes) ** 2 @ self.shares
        return _with_one(x) @ self.plane + near @ self.weights, self.signal2 * np.maximum(1 - known, 0)

    def log_posterior(self, x: Floats) -> Floats:
        """Return the log posterior log p(x | z₀), up to a constant, at points of shape (J, d).

        The array has shape (J,).
        """
        mean, variance = self.predict(x)
        variance = variance + self.noise2 + self.discrepancy**2
        far = np.sum((self.measured - mean) ** 2 / variance + np.log(variance), axis=1)
        log = -0.5 * (np.sum(x**2, axis=1) + far)
        return np.where(np.abs(x).max(axis=1) <= BOUND, log, -np.inf)


def correlation(x: Floats, other: Floats, lengths: Floats) -> Floats:
    """Return the correlation r between points of shape (J, d) and (L, d), as an array of shape (J, L).

    >>> correlation(np.zeros((1, 2)), np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([2.0, 1.0])).round(3)
    array([[1.   , 0.607]])
    """
    a, b = x / lengths, other / lengths
    square = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    return np.asarray(np.exp(-0.5 * np.maximum(square, 0)))


def _with_one(x: Floats) -> Floats:
    return np.concatenate([np.ones((len(x), 1)), x], axis=1)


def _most_likely(x: Floats, z: Floats) -> tuple[Floats, Floats, Floats]:
    """Return l, σ² and ν² that maximise the marginal likelihood of z at x.

    x has shape (J, d) and z has shape (J, K). l has shape (d,); σ² and ν² have shape (K,).
    """
    d, components = x.shape[1], z.shape[1]
    square = (x[:, None] - x[None]) ** 2

    def minus_log(parameters: Floats) -> tuple[float, Floats]:
        lengths, signal2, noise2 = np.split(np.exp(parameters), [d, d + components])
        r = np.exp(-0.5 * (square / lengths**2).sum(axis=-1))
        values, axes = np.linalg.eigh(r)
        values = np.maximum(values, 0)[:, None]
        variance = signal2 * values + noise2
        turned = axes.T @ z
        a = turned / variance
        length, noise = parameters[:d] - _LENGTH, (parameters[d + components :] - _NOISE) / _NOISE_SD
        value = 0.5 * (np.sum(turned * a + np.log(variance)) + length @ length + noise @ noise)
        of_r = (axes * (signal2 / variance).sum(axis=1)) @ axes.T - (axes @ (a * signal2)) @ (axes @ a).T
        gradient = (
            length + [0.5 * np.sum(of_r * r * square[:, :, i]) / lengths[i] ** 2 for i in range(d)],
            0.5 * signal2 * np.sum(values / variance - values * a**2, axis=0),
            0.5 * noise2 * np.sum(1 / variance - a**2, axis=0) + noise / _NOISE_SD,
        )
        return float(value), np.concatenate(gradient)

    start = np.repeat([_LENGTH, 0.0, _NOISE], [d, components, components])
    bounds = [(-1, 4)] * d + [(-6, 6)] * components + [(-12, 1)] * components
    best = minimize(minus_log, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _STEPS})
    lengths, signal2, noise2 = np.split(np.exp(best.x), [d, d + components])
    return lengths, signal2, noise2


def _discrepancy(square: Floats, variance: Floats) -> float:
    """Return δ, given the squared differences between measured and simulated rewards, of shape (J, K).

    ``variance``, of shape (K,), is the variance of these differences if δ is 0.
    """

    def excess(log_delta: float) -> float:
        sums = np.sum(square / (variance + np.exp(2 * log_delta)), axis=1)
        return float(np.quantile(sums, _NEAREST)) - variance.size

    least, most = np.log(_LEAST), np.log(np.sqrt(square.max()) + 1)
    return 0.0 if excess(least) <= 0 else float(np.exp(brentq(excess, least, most)))
