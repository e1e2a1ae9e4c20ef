"""Predict rewards beyond the runs with a pool of models, and add the uncertainty that none of them captures.

Within the range of the runs, the surface S (`isolaw.fits.surface.estimate`) describes rewards. Beyond their C
and n, every model is a guess. The anchor a of a point (an allocation and a budget) is the nearest log2 n,
log2 B_p and log C with runs. The point is h e-folds of C, and p doublings of n and B_p, away from its anchor.
The reward in draw d is

    r_d = m_d + e^(−h/λ) [S_d(a) − m_d(a)] + √h |Δ| (ρ g_d + ρ' g'_d) + √p σ g''_d

where the model m_d is one of

- the surface itself, extended linearly past the grid of n. The extension is flatter than the grid's edge if
  rewards rise, and steeper if they fall, since reward as a function of n has a single peak;
- a parametric surface, exponential or Hill (`isolaw.fits.surface.saturating`). The runs determine its error
  at the anchor. The second term corrects this error, and decays over λ e-folds.

Past the critical batch, a larger batch saves no more steps (the law is in `isolaw.fits.surface.saturating`).
There the surface's own extension falls by ω_d [S_d(a, C) − S_d(a, C/2)]. ω_d is the number of doublings of C
that are lost, a mean over the parametric surfaces, and the difference is the reward of a doubling of C.

If B_p varies independently of n, every model extends the surface's slope past the grid of B_p. Where rewards
rise, the slope is multiplied by −1 to 1, since no theory predicts how far they rise. Where they fall, it is
multiplied by 1 to 2.

**Each draw uses one model**, sampled with weights from backtests on the same observations. The backtests cut
all runs to a quarter or to half of their C, leave out the largest n, or leave out the largest B_p if it
varies independently. Each model forecasts the rewards at the ends of the runs, and its weight follows the
density of its errors. The density is tempered, since small budgets say little about large ones: one backtest
changes weights by at most a factor of e^`_MOST_NATS`, and weights become more equal with every e-fold beyond
the runs. The surface cannot level off, so its weight decays as e^−h. This is stacking by leave-future-out
validation (Bürkner, Gabry & Vehtari 2020, arXiv 1902.06281), with few futures.

**The uncertainty that no model captures** grows with the forecast change of reward Δ and with distance. g is
one standard normal number for all allocations; g' and g'' are correlated over `_ALIKE` doublings. ρ, ρ' and σ
are the sizes of the pool's backtest errors, with priors that count as one backtest, so failed forecasts widen
the intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.blas import each, one_blas_thread
from isolaw.fits.curves.learning_curves import SATURATING, SaturatingFamily
from isolaw.fits.selection import Floats, varies_in_batch
from isolaw.fits.surface.estimate import Surface, descend, evenly
from isolaw.fits.surface.process import Process
from isolaw.fits.surface.saturating import Likelihood, Saturating

Coordinates = tuple[Floats, Floats, Floats]  # log2 n, log2 B_p and log C of points, each (Q,)
_CUTS = (4.0, 2.0)  # a backtest ends each run at its C divided by one of these
_LEAST = 3  # fewest observations that each configuration keeps in a backtest
_LEVELS = 4  # fewest values of n, or of B_p, for a backtest that leaves out the largest
_CLOSE, _LEVEL = 0.006, 0.02  # tolerated forecast errors in units of reward: independent, and common to all
_TEMPER, _MOST_NATS = 4.0, 3.0
_FLOOR = 0.02  # smallest weight of a model
_FADES = 1.0  # loss of the surface's log odds per e-fold, as it cannot level off
_EVEN = 0.15  # rate per e-fold at which weights become equal
_RHO = (0.2, 0.3)  # prior of ρ (shared by all allocations) and ρ' (per allocation), worth one backtest
_SIGMA = 0.1  # prior of σ as a multiple of the standard deviation of rewards
_ALIKE = 2.5  # doublings over which g' and g'' are correlated
_LASTS = 1.5  # λ, e-folds
_OF_RUNS = ("o0", "o1", "noise", "gamma", "seed")  # hyperparameters of the variation between runs
_DIGITS = 2  # digits to which hyperparameters are rounded before chains use them
_STEPS = 15  # optimiser steps for a backtest's hyperparameters, starting from the fit to all runs


@dataclass(frozen=True)
class Backtest:
    """The models' forecasts from part of the observations, compared with the observed rewards."""

    name: str
    error: Floats  # forecast error of each model at each target, (K, T)
    change: Floats  # forecast change of reward from the anchor, (K, T)
    distance: Floats  # distance from the anchor in e-folds plus doublings, (T,)
    noise: Floats  # covariance of the observed rewards, (T, T)
    unit: float = 1.0  # unit of the reward
    across: bool = False  # whether the forecasts are for another n or B_p rather than for larger C

    @property
    def score(self) -> Floats:
        """Tempered log density of each model's errors relative to the best model, of shape (K,)."""
        covariance = self.noise + (_CLOSE * self.unit) ** 2 * np.eye(self.distance.size)
        covariance += (_LEVEL * self.unit) ** 2
        square = np.einsum("kt,kt->k", self.error, np.linalg.solve(covariance, self.error.T).T)
        return np.asarray(np.maximum(-0.5 * (square - square.min()) / _TEMPER, -_MOST_NATS))

    def spread(self, weights: Floats) -> Floats:
        """Return the squared errors of the pooled forecast in excess of noise, and their expected growth.

        The three values are the squared mean error, the mean square about the mean, and the factor that ρ² or
        σ² multiplies. The factor is h Δ² for a larger C, or doublings for another n or B_p.
        """
        error, change = weights @ self.error, weights @ self.change
        size = error.size
        if self.across:
            square = max(float(error @ error - np.trace(self.noise)) / size, 0.0)
            return np.array([square, square, self.distance.mean()])
        mean = max(float(error.mean()) ** 2 - float(self.noise.mean()), 0.0)
        centre = np.eye(size) - 1 / size
        left = float((centre @ error) @ (centre @ error) - np.trace(centre @ self.noise @ centre))
        return np.array([mean, max(left, 0.0) / (size - 1), np.mean(self.distance * change**2)])


class ModelPool:
    """A pool of reward models, which draws the reward at any allocation and budget.

    Within the range of the runs, its draws are the surface's draws.

    >>> import isolaw
    >>> runs = isolaw.sweep({"sweep": {"compute": 400_000, "seeds": 3},
    ...     "grid": {"rollouts_per_problem": [8, 32, 128, 512]}, "executor": {"kind": "inline"}})
    >>> pool = ModelPool(isolaw.fit(runs, draws=20).surface)
    >>> pool.rewards(np.array([10.0]), np.array([5.0]), np.array([1e6])).shape
    (21, 1)
    >>> sorted(pool.weights(0.0))
    ['exp', 'hill', 'surface']
    """

    def __init__(self, surface: Surface) -> None:
        self.surface = surface
        self.bounds = surface.bounds
        self.places, self.ends = surface.places, surface.process.observations.ends
        with one_blas_thread():
            self.backtests = _backtests(surface)
            self.members = _fitted(surface.process, surface.mode, surface.of_draw.size, surface.seed)

    @cached_property
    def _weights(self) -> Floats:
        """Weights of the models at the end of the runs, of shape (K,)."""
        score = sum((b.score for b in self.backtests), np.zeros(1 + len(SATURATING)))
        weights = np.maximum(np.exp(score - score.max()) / np.exp(score - score.max()).sum(), _FLOOR)
        return np.asarray(weights / weights.sum())

    @cached_property
    def rho(self) -> tuple[float, float]:
        """ρ for the error that all allocations share, and ρ' for the error of each allocation."""
        spreads = np.array([b.spread(self._weights) for b in self.backtests if not b.across]).reshape(-1, 3)
        room = spreads[:, 2].sum()
        usual = room / len(spreads) if room > 0 else 1.0  # the prior counts for one backtest
        common, alone = (
            (usual * prior**2 + seen) / (usual + room)
            for prior, seen in zip(_RHO, spreads[:, :2].sum(axis=0), strict=True)
        )
        return float(np.sqrt(common)), float(np.sqrt(alone))

    @cached_property
    def sigma(self) -> float:
        """σ, the standard deviation added beyond the grid of n and B_p, in reward per √doubling."""
        usual = _SIGMA * self.surface.process.scale
        spreads = np.array([b.spread(self._weights) for b in self.backtests if b.across]).reshape(-1, 3)
        return float(np.sqrt((usual**2 + spreads[:, 0].sum()) / (1 + spreads[:, 2].sum())))

    def weights(self, beyond: float) -> dict[str, float]:
        """Return the weight of each model at a C that is ``beyond`` e-folds past the runs."""
        fades = np.exp([-_FADES * max(beyond, 0.0), 0.0, 0.0])
        even = -np.expm1(-_EVEN * max(beyond, 0.0))
        shares = self._weights * fades
        shares = (1 - even) * shares / shares.sum() + even * fades / fades.sum()
        return dict(zip(("surface", *SATURATING), shares.tolist(), strict=True))

    def rewards(self, log2_n: Floats, log2_b: Floats, compute: Floats) -> Floats:
        """Return joint draws of the rewards at Q points.

        Returns an array of shape (1 + D, Q): the mean in row 0, then D draws.
        """
        draws, t = self.surface.of_draw.size, np.log(compute)
        u, v, until = anchors(self.places, self.ends, log2_n, log2_b, t)
        h, past = np.maximum(t - until, 0.0), np.hypot(log2_n - u, log2_b - v)
        at, anchor = (log2_n, log2_b, t), (u, v, until)
        drawn = slice(1, None) if draws else slice(None)
        lost = np.mean([m.lost(log2_n, log2_b) for m in self.members], axis=0)
        base, on, by_batch = _surface(self.surface, at, anchor, evenly(draws, (self.surface.seed, 3)), lost)
        changes = [(on - base)[drawn]]
        changes += [_change(m, base[drawn], at, anchor) + by_batch[drawn] for m in self.members]
        weights = np.array(list(self.weights(float((t - self.ends.max()).max())).values()))
        mean = base[:1] + weights @ np.array([c.mean(axis=0) for c in changes])
        if not draws:
            return np.clip(mean, *self.bounds)
        every = np.array(changes)  # (K, D, Q)
        member = np.searchsorted(np.cumsum(weights[:-1]), evenly(draws, (self.surface.seed, 4)), side="right")
        size = np.sqrt(h * np.einsum("k,kdq->q", weights, every**2) / draws)
        g = self._alike(log2_n, log2_b, draws)
        unknown = size * (self.rho[0] * g[0] + self.rho[1] * g[1]) + np.sqrt(past) * self.sigma * g[2]
        out = base[1:] + every[member, np.arange(draws)] + unknown
        return np.clip(np.vstack([mean, out]), *self.bounds)

    def _alike(self, log2_n: Floats, log2_b: Floats, draws: int) -> tuple[Floats, Floats, Floats]:
        """Draw the standard normal numbers g, of shape (D, 1), and g' and g'', of shape (D, Q)."""
        places, at = np.unique(np.round([log2_n, log2_b], 9), axis=1, return_inverse=True)
        apart = np.hypot(*(x[:, None] - x for x in places)) / _ALIKE
        root = np.linalg.cholesky(np.exp(-0.5 * apart**2) + 1e-9 * np.eye(places.shape[1]))
        z = np.random.default_rng((self.surface.seed, 5)).standard_normal((3, draws, places.shape[1]))
        return z[0, :, :1], (z[1] @ root.T)[:, at.ravel()], (z[2] @ root.T)[:, at.ravel()]


def anchors(places: Floats, ends: Floats, log2_n: Floats, log2_b: Floats, t: Floats) -> Coordinates:
    """Return each point's anchor: the nearest log2 n, log2 B_p and log C that have runs.

    Each of the three arrays has shape (Q,). Between configurations, the last C with runs is a weighted mean
    over the neighbouring configurations.
    """
    (low_n, low_b), (high_n, high_b) = places.min(axis=0), places.max(axis=0)
    u, v = np.clip(log2_n, low_n, high_n), np.clip(log2_b, low_b, high_b)
    near = 1 / ((u[:, None] - places[:, 0]) ** 2 + (v[:, None] - places[:, 1]) ** 2 + 1e-3) ** 2
    return u, v, np.minimum(t, near @ ends / near.sum(axis=1))


def _change(member: Saturating, base: Floats, at: Coordinates, anchor: Coordinates) -> Floats:
    """Return the change of reward from the anchor under a parametric model m.

    The change is m_d + e^(−h/λ) [S_d(a) − m_d(a)] − S_d(a), of shape (D, Q), and ``base`` is S_d(a). If B_p
    varies independently of n, m is evaluated at the anchor's B_p.
    """
    there = member.rewards(anchor[0], anchor[1], np.exp(anchor[2]))
    misses = -np.expm1(-np.maximum(at[2] - anchor[2], 0.0) / _LASTS) * (base - there)
    log2_b = anchor[1] if member.plane else at[1]
    return member.rewards(at[0], log2_b, np.exp(at[2])) - there - misses


def _surface(
    surface: Surface, at: Coordinates, anchor: Coordinates, turns: Floats, lost: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return rewards of the surface's mean and draws at the anchors and at the points.

    Past the grid of n, rewards follow the line through the last two measured n. Its slope is multiplied by 0
    to 1 if rewards rise, and by 1 to 2 if they fall; ``turns`` gives a share for each draw. ``lost`` contains
    the doublings of C lost past the critical batch, of shape (D, Q), or (1, Q) without draws. The third array
    is the change of reward due to a B_p past its grid, if B_p varies independently of n. Each array has shape
    (1 + D, Q).
    """
    o = surface.process.observations  # a backtest observes fewer levels than ``places`` lists
    u, v, _ = anchor
    inner, ahead = _inwards(np.unique(o.log2_n), at[0], u)
    places = [np.stack(anchor), np.stack([u, v, at[2]])]
    plane = varies_in_batch(o.log2_n, o.log2_b)
    if plane:
        inner_v, ahead_v = _inwards(np.unique(o.log2_b), at[1], v)
        places += [np.stack([inner, v, at[2]]), np.stack([u, inner_v, at[2]])]
    else:
        with np.errstate(divide="ignore", invalid="ignore"):  # with fixed B, B_p follows from n
            along = np.where(inner == u, 0.0, (at[1] - v) / ahead)
        half = np.where(at[0] + at[1] > u + v + 1e-9, np.log(2), 0.0)  # whether or not anything is lost there
        places += [np.stack([inner, v - along, at[2]]), np.stack([u, v, at[2] - half])]
    distinct, where = np.unique(np.round(np.concatenate(places, axis=1), 9), axis=1, return_inverse=True)
    reward = surface.rewards(distinct[0], distinct[1], np.exp(distinct[2]))[:, where.ravel()]
    base, end, before, other = np.split(reward, 4, axis=1)
    turn = np.append(0.5, turns)[: len(end), None]
    slope = (end - before) * ahead
    out = end + np.where(slope > 0, turn, 1 + turn) * slope
    if not plane:
        lost = np.vstack([lost.mean(axis=0), lost])[: len(end)]
        return base, out - lost * np.maximum(end - other, 0.0), np.zeros_like(base)
    slope = (end - other) * ahead_v
    by_batch = np.where(slope > 0, 2 * turn - 1, 1 + turn) * slope
    return base, out + by_batch, by_batch


def _inwards(levels: Floats, at: Floats, edge: Floats) -> tuple[Floats, Floats]:
    """Return the level one step inside the nearest end of the grid, and each point's distance past that end.

    The distance is a multiple of the gap between these two levels. Inside the grid, the level is the point's
    ``edge`` and the distance is 0.

    >>> inner, ahead = _inwards(np.array([3.0, 5.0, 7.0]), np.array([4.0, 8.0]), np.array([4.0, 7.0]))
    >>> inner.tolist(), ahead.tolist()
    ([4.0, 5.0], [0.0, 0.5])
    """
    inner = np.where(at > edge, levels[-2:][0], np.where(at < edge, levels[:2][-1], edge))
    with np.errstate(divide="ignore", invalid="ignore"):
        return inner, np.where(inner == edge, 0.0, (at - edge) / (edge - inner))


def _fitted(process: Process, theta: Floats, draws: int, seed: int) -> list[Saturating]:
    """Fit the parametric surfaces and return ``draws`` draws of each, or the most likely one for 0 draws."""
    # Rounded, so that differences between processors in a search cannot change the chains.
    noise = process.noise(process.named(np.round(theta, _DIGITS)))

    def fitted(family: SaturatingFamily) -> Saturating:
        likelihood = Likelihood(process.observations, noise, family, process.centre, process.scale)
        return likelihood.draws(draws, seed) if draws else likelihood.surface(likelihood.most_likely()[None])

    return each(fitted, SATURATING)


def _backtests(surface: Surface) -> list[Backtest]:
    """Return the results of all backtests that these observations allow."""
    o = surface.process.observations
    last = o.t >= o.ends[o.place] - 1e-9
    out = []
    cuts = {f"C / {cut:g}": o.t <= o.ends[o.place] - np.log(cut) for cut in _CUTS}
    for name, kept in cuts.items():
        if np.bincount(o.place[kept], minlength=len(o.places)).min() >= _LEAST:
            out += [_backtest(surface, name, kept, last)]
    axes = {"n": o.log2_n} | ({"B_p": o.log2_b} if varies_in_batch(o.log2_n, o.log2_b) else {})
    for axis, along in axes.items():
        levels = np.unique(along)
        if levels.size >= _LEVELS:
            largest = along == levels[-1]
            name = f"{axis} < {2 ** levels[-1]:g}"
            out.append(_backtest(surface, name, ~largest, last & largest, across=True))
    return out


def _backtest(
    surface: Surface, name: str, kept: NDArray[np.bool_], target: NDArray[np.bool_], across: bool = False
) -> Backtest:
    """Fit every model to the ``kept`` observations, and forecast the observations in ``target``."""
    full, scale = surface.process, surface.process.scale
    o = full.observations
    part = Process(o.only(kept))
    mode = _mode_from(part, dict(zip(full.names, surface.mode, strict=True)))
    surface_at_mode = Surface.at_mode(part, mode, surface.seed, bounds=surface.bounds, unit=surface.unit)
    at = o.log2_n[target], o.log2_b[target], o.t[target]
    anchor = anchors(o.places[np.unique(o.place[kept])], part.observations.ends, *at)
    members = _fitted(part, mode, 0, surface.seed)
    lost = np.mean([m.lost(at[0], at[1]) for m in members], axis=0)
    base, on, by_batch = (values[0] for values in _surface(surface_at_mode, at, anchor, np.empty(0), lost))
    change = np.array([on - base, *(_change(m, base[None], at, anchor)[0] + by_batch for m in members)])
    noise = full.noise(full.named(surface.mode))[np.ix_(target, target)] * scale**2
    h = np.maximum(at[2] - anchor[2], 0.0) + np.hypot(at[0] - anchor[0], at[1] - anchor[1])
    return Backtest(name, base + change - o.reward[target], change, h, noise, surface.unit, across)


def _mode_from(process: Process, theta: dict[str, float]) -> Floats:
    """Return the most likely hyperparameters for part of the observations, starting from the full fit.

    The hyperparameters of variation between runs stay fixed, since a stored law lacks the residuals that
    determine them.
    """
    start = np.array([theta.get(n, c) for n, c in zip(process.names, process.prior[:, 0], strict=True)])
    free = np.array([name not in _OF_RUNS for name in process.names])
    z = descend(process, start, np.zeros(int(free.sum())), free, _STEPS, ftol=1e-6)[1]
    start[free] += process.prior[free, 1] * z
    return start
