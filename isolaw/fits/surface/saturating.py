"""Fit a parametric surface: learning curves whose rate and ceiling vary smoothly with n and B_p.

    r(u, v, C) = R0 + (A − R0) f((C / τ)^b),    f(x) = 1 − e^−x (exponential) or x / (1 + x) (Hill)
    A = ceiling − a 2^−αu − q u² − d v²
    log τ = τ0 + τ1 u + τ2 v,    log b = b0 + b1 u

r is the reward, R0 its start, A its ceiling, τ its scale of compute C and b its exponent. u and v are log2 n
and log2 B_p measured from the middle of the grid, and the other letters are constants. If B_p varies
independently of n, u + σ v replaces u in A, since a larger batch of problems needs fewer rollouts of each. A
larger n starts later (τ1) and ends higher (α), or lower if it costs more than it gains (q). These are the
curves of arXiv 2603.12151, section 4, and of arXiv 2510.13786, with parameters shared over configurations.

While a doubling of the batch B = B_p n saves steps, it costs less than twice the compute, and x = τ1 / ln 2
is below 1. If the compute to a reward grows as B + B_crit (McCandlish et al. 2018, arXiv 1812.06162,
eq. 2.11), then x = B / (B + B_crit). So the critical batch B_crit lies log2((1 − x) / x) doublings past the
largest measured B. Beyond it, τ doubles with B: at w doublings past the largest measured B,

    log τ = τ0 + τ1 u + τ2 v + (ln 2 − τ1) max(w − max(log2((1 − x) / x), 0), 0)    for 0 < x < 1

If B_p varies independently of n, this last term is 0.

The surface is fitted to the same observations as the Gaussian process, with the same covariance plus a
misfit. The misfit is correlated over e-folds of C and doublings of n, and its size is marginalised. Draws
come from emcee (Foreman-Mackey et al. 2013, arXiv 1202.3665), started at the most likely parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from isolaw.fits.curves.learning_curves import SaturatingFamily
from isolaw.fits.selection import Floats, varies_in_batch
from isolaw.fits.surface.covariance import matern
from isolaw.fits.surface.observations import Observations

_NAMES = ("start", "rise", "a", "alpha", "q", "tau", "tau_u", "b", "b_u")
_IN_BATCH = ("tau_v", "sigma", "d")
_MISFITS = np.array([0.01, 0.02, 0.04, 0.08, 0.16, 0.32])  # sizes of the misfit, over the SD of rewards
_USUAL_MISFIT = (0.04, 1.0)  # prior of the misfit's size: centre, and standard deviation of its logarithm
_ALONG, _ACROSS = 2.0, 2.0  # correlation lengths of the misfit: e-folds, and doublings
_WALKERS, _BURN, _KEPT, _EVERY = 48, 200, 300, 25
_FARTHEST = 5.0  # limit on parameters, in standard deviations of the prior
_EXPONENT = 40.0
_DIFFERENCE = 2.0**-26  # step of numerical derivatives, relative to parameters above 1
_JITTER = 1e-8


@dataclass(frozen=True)
class Saturating:
    """A parametric reward surface, with draws of its constants."""

    family: SaturatingFamily
    theta: Floats  # draws of the constants, (D, P), or one row with the most likely constants
    middle: tuple[float, float]
    plane: bool
    centre: float
    scale: float
    largest: float  # log2 of the largest measured B

    def rewards(self, log2_n: Floats, log2_b: Floats, compute: Floats) -> Floats:
        """Return the reward of every draw at Q points, as an array of shape (D, Q)."""
        u, v = log2_n - self.middle[0], log2_b - self.middle[1]
        t = np.log(compute) - np.log(2) * self.lost(log2_n, log2_b)
        return self.centre + self.scale * curve(self.family, self.theta, u, v, t, self.plane)

    def lost(self, log2_n: Floats, log2_b: Floats) -> Floats:
        """Return by how many doublings τ is larger past the critical batch, as an array of shape (D, Q)."""
        if self.plane:
            return np.zeros((len(self.theta), log2_n.size))
        x = self.theta[:, _NAMES.index("tau_u"), None] / np.log(2)
        past = np.maximum(log2_n + log2_b - self.largest, 0.0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ahead = np.where(x > 0, np.maximum(np.log2((1 - x) / x), 0.0), np.inf)
        return np.where(x < 1, (1 - x) * np.maximum(past - ahead, 0.0), 0.0)


def curve(family: SaturatingFamily, theta: Floats, u: Floats, v: Floats, t: Floats, plane: bool) -> Floats:
    """Evaluate the equation for θ (D, P) at points (Q,), and return an array of shape (D, Q).

    Values are in units of the rewards' standard deviation.
    """
    start, rise, a, alpha, q, tau, tau_u, b, b_u = theta.T[: len(_NAMES), :, None]
    log_tau, across = tau + tau_u * u, u
    ceiling = start + np.exp(rise)
    if plane:
        tau_v, sigma, d = theta.T[len(_NAMES) :, :, None]
        log_tau, across = log_tau + tau_v * v, u + sigma * v
        ceiling = ceiling - np.exp(d) * v**2
    power = np.clip(-np.exp(alpha) * across, -_EXPONENT, _EXPONENT)
    ceiling = ceiling - np.exp(a) * np.exp2(power) - np.exp(q) * across**2
    x = np.exp(np.clip(np.exp(b + b_u * u) * (t - log_tau), -_EXPONENT, _EXPONENT))
    return np.asarray(start + (ceiling - start) * (-np.expm1(-x) if family == "exp" else x / (1 + x)))


class Likelihood:
    """The posterior density of θ given observations and the covariance of their noise."""

    def __init__(
        self, observations: Observations, noise: Floats, family: SaturatingFamily, centre: float, scale: float
    ) -> None:
        o, self.family, self.centre, self.scale = observations, family, centre, scale
        self.plane = varies_in_batch(o.log2_n, o.log2_b)
        self.middle = tuple((float(x.min()) + float(x.max())) / 2 for x in o.places.T)
        self.largest = float((o.log2_n + o.log2_b).max())
        self.u, self.v = o.log2_n - self.middle[0], o.log2_b - self.middle[1]
        self.t, self.y = o.t, (o.reward - centre) / scale
        apart = np.abs(self.t[:, None] - self.t) / _ALONG
        beside = np.hypot(self.u[:, None] - self.u, self.v[:, None] - self.v) / _ACROSS
        alike = matern(apart)[0] * matern(beside)[0]
        # In this basis the noise is the identity and the misfit is diagonal, for every size of the misfit.
        root = np.linalg.cholesky(noise + _JITTER * np.eye(o.t.size))
        half = solve_triangular(root, alike, lower=True)
        size, basis = np.linalg.eigh(solve_triangular(root, half.T, lower=True))
        self.whiten = basis.T @ solve_triangular(root, np.eye(o.t.size), lower=True)
        self.variance = 1 + _MISFITS[:, None] ** 2 * np.maximum(size, 0.0)  # (misfits, O)
        usual = (np.log(_MISFITS / _USUAL_MISFIT[0]) / _USUAL_MISFIT[1]) ** 2
        self.log_det = 0.5 * np.log(self.variance).sum(axis=1) + 0.5 * usual
        self.prior = self._prior()

    def _prior(self) -> Floats:
        """Return the prior's centre and SD for each θ, scaled by the range of rewards, as an array (P, 2)."""
        low, high = float(self.y.min()), float(self.y.max())
        span = max(high - low, 0.1)
        first, last = float(self.t.min()), float(self.t.max())
        out = {
            "start": (low, 0.3 * span),
            "rise": (np.log(1.3 * span), 0.6),
            "a": (np.log(0.1 * span), 1.5),
            "alpha": (np.log(0.5), 0.7),
            "q": (np.log(0.002 * span), 2.0),
            "tau": ((first + 2 * last) / 3, 2.0),
            "tau_u": (0.2, 0.4),
            "b": (-0.2, 0.5),
            "b_u": (0.0, 0.1),
            "tau_v": (0.1, 0.4),
            "sigma": (0.3, 0.5),
            "d": (np.log(0.01 * span), 1.5),
        }
        return np.array([out[name] for name in (*_NAMES, *(_IN_BATCH if self.plane else ()))])

    def __call__(self, z: Floats) -> Floats:
        """Return the log posterior density of z (W, P), up to a constant.

        z is θ in units of its prior's standard deviations.
        """
        theta = self.prior[:, 0] + self.prior[:, 1] * np.clip(z, -_FARTHEST, _FARTHEST)
        left = self.y - curve(self.family, theta, self.u, self.v, self.t, self.plane)
        square = (1 / self.variance) @ ((left @ self.whiten.T) ** 2).T
        by_misfit = -0.5 * square - self.log_det[:, None]
        top = by_misfit.max(axis=0)
        out = top + np.log(np.exp(by_misfit - top).sum(axis=0)) - 0.5 * np.einsum("wp,wp->w", z, z)
        return np.where(np.abs(z).max(axis=1) > _FARTHEST, -np.inf, out)

    def most_likely(self) -> Floats:
        """Return the z with the highest density among several least-squares fits at the usual misfit."""
        from scipy.optimize import least_squares

        usual = self.variance[int(np.abs(np.log(_MISFITS / _USUAL_MISFIT[0])).argmin())]
        whiten = self.whiten / np.sqrt(usual)[:, None]

        def residuals(z: Floats) -> Floats:
            theta = self.prior[:, 0] + self.prior[:, 1] * np.atleast_2d(z)
            left = self.y - curve(self.family, theta, self.u, self.v, self.t, self.plane)
            return np.concatenate([left @ whiten.T, np.atleast_2d(z)], axis=1).reshape(*z.shape[:-1], -1)

        def slopes(z: Floats) -> Floats:
            # One call evaluates all differences; SciPy makes one call per parameter, which takes most time.
            # The steps go towards 0, so they stay inside the box.
            ahead = z + _DIFFERENCE * np.diag(np.maximum(np.abs(z), 1.0) * np.where(z > 0, -1.0, 1.0))
            return ((residuals(ahead) - residuals(z)) / np.diag(ahead - z)[:, None]).T

        solutions = []
        for tau, q in ((0.0, 0.0), (-1.0, 2.0), (1.0, 0.0)):
            start = np.zeros(len(self.prior))
            start[5], start[4] = tau, q
            box = (-_FARTHEST + 0.1, _FARTHEST - 0.1)
            solutions.append(least_squares(residuals, start, slopes, box, x_scale=1.0, max_nfev=60).x)
        density = self(np.array(solutions))
        return np.asarray(solutions[int(density.argmax())])

    def surface(self, z: Floats) -> Saturating:
        """Return the surface with the constants that correspond to z (W, P)."""
        theta = self.prior[:, 0] + self.prior[:, 1] * z
        u, v = self.middle
        return Saturating(self.family, theta, (u, v), self.plane, self.centre, self.scale, self.largest)

    def draws(self, size: int, seed: int) -> Saturating:
        """Return ``size`` draws of the surface from its posterior, by MCMC."""
        import emcee

        rng = np.random.default_rng(seed)
        mode = np.round(self.most_likely(), 1)  # rounded, since the search differs between processors
        start = np.clip(mode + 0.05 * rng.standard_normal((_WALKERS, mode.size)), -4.9, 4.9)
        sampler = emcee.EnsembleSampler(_WALKERS, mode.size, self, vectorize=True)
        state = np.random.RandomState(rng.integers(2**31)).get_state()
        sampler.random_state = state
        sampler.run_mcmc(emcee.State(start, random_state=state), _BURN + _KEPT)
        chain = sampler.get_chain(discard=_BURN, thin=_EVERY, flat=True)
        chosen: NDArray[np.int64] = rng.permutation(np.arange(size) % len(chain))
        return self.surface(chain[chosen])
