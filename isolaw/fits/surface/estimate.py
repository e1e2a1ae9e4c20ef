"""Estimate the surface, and draw the reward at any allocation and budget.

The hyperparameters θ of `isolaw.fits.surface.process` are drawn from their posterior. The posterior is
approximated by a normal distribution around the mode (Laplace) and corrected by importance weights. Given θ,
rewards are normal with known mean and covariance. Draws of the reward, and of the n* and laws derived from
them, thus reflect uncertain rewards *and* uncertain θ.

Past the last checkpoint of any run, the shift of allocations with C (ρ) and the rise of g continue at a share
of their rate. Each θ has its own shares between 0 and 1, and its own position of the step χ within the gap
between two n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, solve_triangular
from scipy.special import chdtrc

from isolaw.fits.blas import each, one_blas_thread
from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.covariance import Pairs, Points
from isolaw.fits.surface.observations import observe
from isolaw.fits.surface.process import Process

_FARTHEST = 20.0  # limit on the search for θ, in standard deviations of the prior
_STARTS: tuple[dict[str, float], ...] = (
    {"l_u": 2.0},
    {"l_u": 5.0, "rho": 0.6},
    {"l_u": 5.0, "rho": -0.6},
    {"l_u": 4.0, "a": 0.5, "base": 0.5},  # the gradient vanishes for amplitudes near 0
    {"l_u": 4.0, "step": np.nan},  # NaN stands for the largest difference between neighbouring n
)
SHARES = 3  # number of shares of each θ (see `Surface.shares`)
_SOON, _LONG = 12, 60  # optimiser steps from each start, and from the best result
_CANDIDATES, _FEWER = 48, 24  # number of θ drawn, with few and with at least _MANY observations
_MANY = 150
_SEARCHED = 75  # with more configurations, θ is first searched on a subset
_WIDEST = 1.5  # limit on the spread of an undetermined θ, in standard deviations of the prior
_STEP = 1e-2
_LEAST_VARIANCE = 1e-9
_FALSE_ALARMS = 0.01
_PREDICTED = 2000  # fewest draws of a prediction; 400 draws do not determine the second digit of a loss


@dataclass(frozen=True)
class Surface:
    """Draws of the reward over (log n, log B_p, log C)."""

    process: Process  # the prior and the observations
    mode: Floats  # the most likely hyperparameters, (P,)
    theta: Floats  # hyperparameters, (H, P)
    # Three shares in (0, 1) for each θ, (H, 3): the share of the shift that continues past the last
    # checkpoint, the share of the rise, and the position of the step in its gap.
    shares: Floats
    of_draw: NDArray[np.int64]  # index into ``theta`` for each draw, (D,)
    seed: int  # seed of the draws
    misfit: float = 1.0  # factor by which draws are wider than the process implies; 1 if it fits
    bounds: tuple[float, float] = (-np.inf, np.inf)  # smallest and largest possible reward
    unit: float = 1.0  # unit of the reward (`isolaw.fits.metric`)
    _known: dict[int, tuple[Floats, Floats]] = field(default_factory=dict, repr=False, init=False)

    @classmethod
    def at_mode(
        cls,
        process: Process,
        mode: Floats,
        seed: int,
        misfit: float = 1.0,
        bounds: tuple[float, float] = (-np.inf, np.inf),
        unit: float = 1.0,
    ) -> Surface:
        """Return a surface without draws: its mean at the most likely θ."""
        middle, nothing = np.full((1, SHARES), 0.5), np.empty(0, dtype=np.int64)
        return cls(process, mode, mode[None], middle, nothing, seed, misfit, bounds, unit)

    @property
    def places(self) -> Floats:
        """log2 n and log2 B_p of the configurations, of shape (N, 2)."""
        return self.process.observations.places

    def drawn(self) -> Surface:
        """Return the surface with the larger number of draws that a prediction uses.

        A surface without draws is returned unchanged.
        """
        size = self.of_draw.size
        if not size:
            return self
        out = replace(self, of_draw=np.repeat(self.of_draw, -(-_PREDICTED // size)))
        object.__setattr__(out, "_known", self._known)  # the same θ and observations
        return out

    def rewards(self, log2_n: Floats, log2_b: Floats, compute: Floats) -> Floats:
        """Return joint draws of the rewards at Q points.

        Returns an array of shape (1 + D, Q): the mean in row 0, then D draws. The rewards exclude the effects
        of the seeds that were run, so they hold for any seed.
        """
        draws, size = self.of_draw.size, log2_n.size
        z = np.random.default_rng(self.seed).standard_normal((draws, size))
        out = np.zeros((1 + draws, size))
        used = np.unique(self.of_draw) if draws else np.arange(1)
        with one_blas_thread():
            given = each(lambda h: self._given(int(h), log2_n, log2_b, np.log(compute)), used)
            for h, (mean, root) in zip(used, given, strict=True):
                rows = np.flatnonzero(self.of_draw == h)
                out[1 + rows] = mean + self.misfit * z[rows] @ root.T
                out[0] += mean * (rows.size / draws if draws else 1.0)
        return np.clip(self.process.centre + self.process.scale * out, *self.bounds)

    def _given(self, h: int, u: Floats, v: Floats, t: Floats) -> tuple[Floats, Floats]:
        """Return the mean of the process at Q points, and a matrix root of its covariance, given θ_h.

        The mean has shape (Q,), and the root (Q, Q).
        """
        process, p = self.process, self.process.named(self.theta[h])
        if h not in self._known:
            root = np.asarray(np.linalg.cholesky(process.observed(p)))
            self._known[h] = root, np.asarray(cho_solve((root, True), process.y))
        root, alpha = self._known[h]
        shifts, rises, cut = self.shares[h]
        low, high = process.gap
        ahead = np.maximum(t - process.end, 0.0)
        shift = np.minimum(t, process.end) + shifts * ahead
        below = u <= low + (high - low) * cut
        t = np.maximum(t, process.start)
        most = process.covariance.gone(p, process.points)[0].max() + ahead
        at = Points(u, v, t, shift, process.learnt(t, rises), ahead, below, most, rises)
        across = process.covariance(p, Pairs(at, process.points))
        half = solve_triangular(root, across.T, lower=True)
        among = Pairs(at)
        covariance = among.matrix(process.covariance(p, among)) - half.T @ half
        covariance[np.diag_indices_from(covariance)] += _LEAST_VARIANCE + 1e-9 * np.diag(covariance).max()
        try:
            return across @ alpha, np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            value, vector = np.linalg.eigh(covariance)
            return across @ alpha, vector * np.sqrt(np.maximum(value, 0.0))


def estimate(
    configurations: Sequence[Configuration],
    draws: int,
    seed: int = 0,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    unit: float = 1.0,
) -> Surface:
    """Fit the surface to runs of at least one n, with checkpoints after step 0.

    ``seed`` is the seed of the ``draws``. Without draws, the surface is the mean at the most likely θ.
    ``bounds`` contains the smallest and the largest possible reward; ``unit`` is the reward's unit.
    """
    with one_blas_thread():
        process = Process(observe(configurations))
        mode = _mode(process, configurations)
        misfit = lack_of_fit(process, mode)[0]
        if not draws:
            return Surface.at_mode(process, mode, seed, misfit, bounds, unit)
        theta, weights = _candidates(process, mode, seed)
    positions = (np.arange(draws) + 0.5) / draws
    of_draw = np.minimum(np.searchsorted(np.cumsum(weights), positions), len(theta) - 1)
    shares = np.stack([evenly(len(theta), (seed, i)) for i in range(SHARES)], axis=1)
    return Surface(process, mode, theta, shares, of_draw, seed, misfit, bounds, unit)


def evenly(size: int, seed: tuple[int, int]) -> Floats:
    """Return evenly spaced numbers between 0 and 1, in an order determined by ``seed``."""
    return np.random.default_rng(seed).permutation((np.arange(size) + 0.5) / max(size, 1))


def lack_of_fit(process: Process, theta: Floats) -> tuple[float, int | None]:
    """Return the factor by which draws must widen, and the index of the worst-fitting configuration.

    The index is None if all configurations fit. Each configuration is predicted from all others. Let e be its
    prediction error with covariance S, and y the observations with covariance K. Then eᵀ S⁻¹ e is χ² with one
    degree of freedom per observation, where S = [K⁻¹]_cc⁻¹ and e = S [K⁻¹ y]_c (Rasmussen & Williams 2006,
    5.4.2). If the total χ² per degree of freedom is significantly above 1 (at 1 %), draws widen by its square
    root. A configuration does not fit if its own χ² is significant at 1 % over all configurations.
    """
    inverse = np.linalg.inv(process.observed(process.named(theta)))
    alpha = inverse @ process.y
    o = process.observations
    size = len(o.places)
    left, freedom = np.zeros(size), np.bincount(o.place, minlength=size)
    for place in range(size):
        rows = np.flatnonzero(o.place == place)
        left[place] = alpha[rows] @ np.linalg.solve(inverse[np.ix_(rows, rows)], alpha[rows])
    own_p = chdtrc(freedom, left)
    furthest = int(((left - freedom) / np.sqrt(freedom)).argmax())  # breaks ties if all p-values are 0
    worst = furthest if own_p.min() < _FALSE_ALARMS / size else None
    total = left.sum() / freedom.sum()
    wide = chdtrc(freedom.sum(), left.sum()) < _FALSE_ALARMS
    return float(np.sqrt(total)) if wide else 1.0, worst


def _mode(process: Process, configurations: Sequence[Configuration]) -> Floats:
    """Return the most likely θ, searched from several starts and then from the best result.

    With many configurations, the search begins on a subset of them and is then refined on all.
    """
    centre, unit = process.prior.T

    def search(z: Floats, steps: int) -> tuple[float, Floats]:
        return descend(process, centre, z, np.ones(z.size, dtype=bool), steps)

    if len(configurations) > _SEARCHED:
        part = configurations[:: -(-len(configurations) // _SEARCHED)]
        few = Process(observe(part))
        known = dict(zip(few.names, _mode(few, part), strict=True))
        theta = np.array([known.get(n, c) for n, c in zip(process.names, centre, strict=True)])
        return np.asarray(centre + unit * search((theta - centre) / unit, _SOON)[1])
    starts = []
    for start in _STARTS:
        theta = process.prior[:, 0].copy()
        for name, value in start.items():
            value = max(process.height, 1e-3) if np.isnan(value) else value
            theta[process.names.index(name)] = value if name == "rho" else np.log(value)
        starts.append((theta - centre) / unit)
    optima = each(lambda z: search(z, _SOON), starts)
    return np.asarray(centre + unit * search(min(optima, key=lambda f: f[0])[1], _LONG)[1])


def descend(
    process: Process, origin: Floats, z: Floats, free: NDArray[np.bool_], steps: int, ftol: float = 1e-7
) -> tuple[float, Floats]:
    """Search for the most likely ``free`` hyperparameters, and return the loss and their z.

    z is the distance from ``origin`` in units of the prior's deviations, in which all directions have one
    scale.
    """
    from scipy.optimize import minimize  # imported here since most predictions do not need it

    unit = process.prior[free, 1]

    def loss(z: Floats) -> tuple[float, Floats]:
        theta = origin.copy()
        # A line search can reach values at which θ overflows; no optimum is this far from the origin.
        theta[free] += unit * np.clip(z, -_FARTHEST, _FARTHEST)
        value, slope = process.loss_and_slope(theta)
        return value, slope[free] * unit

    options = {"maxiter": steps, "ftol": ftol}
    optimum = minimize(loss, z, jac=True, method="L-BFGS-B", options=options)
    return float(optimum.fun), np.asarray(optimum.x)


def _candidates(process: Process, mode: Floats, seed: int) -> tuple[Floats, Floats]:
    """Draw θ around the mode and return the draws (H, P) with their importance weights (H,)."""
    here = process.loss_and_slope(mode)[1]
    beside = each(process.loss_and_slope, mode + _STEP * np.eye(mode.size))
    hessian = np.array([(slope - here) / _STEP for _, slope in beside])
    value, vector = np.linalg.eigh((hessian + hessian.T) / 2)
    # The symmetric root is the same on every processor, unlike eigenvectors' signs and order.
    deviation = (vector / np.sqrt(np.maximum(value, _WIDEST**-2))) @ vector.T
    size = _CANDIDATES if process.y.size < _MANY else _FEWER
    half = np.random.default_rng(seed).standard_normal((size // 2, mode.size))
    z = np.concatenate([half, -half])
    theta = mode + z @ deviation
    log_weight = 0.5 * np.sum(z**2, axis=1) - np.array(each(process.loss, theta))
    weights = np.exp(log_weight - log_weight.max())
    weights = np.minimum(weights, weights.mean() * np.sqrt(size))  # limits the share of draws of any single θ
    return theta, weights / weights.sum()
