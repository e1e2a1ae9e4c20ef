"""Extrapolate a learning curve beyond its checkpoints with a pool of curve families.

    exp, hill    saturating curves (`isolaw.fits.curves.learning_curves`)
    line         R(C) = a + b log C, the early part of a rise

Up to the last checkpoint, at compute E, the curve is the Hill fit. Beyond E, in draw d,

    r_d(C) = hill_d(E) + m_d(C) − m_d(E) + √h ρ |m(C) − m(E)| g_d,    h = log(C / E)

where m_d is the curve of one family, fitted to the draw's checkpoints, m is the mean over families, and g_d
is a standard normal number. A family's weight combines two terms. The first is the Gaussian likelihood of the
checkpoints with Schwarz's (1978) penalty on parameters. The second measures the errors of two backtests, in
which checkpoints up to E/2 and E/4 predict the last ones. Both terms are tempered, since neighbouring
checkpoints are dependent, and an early part of a curve says little about a late part. ρ is the size of the
pool's backtest errors relative to the predicted change, with a prior that counts as one backtest. A curve
that did not continue as predicted thus gets a wide interval. The ceiling pools only the two saturating
families.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np

from isolaw.fits.curves.learning_curves import FAMILIES, SATURATING, Curves, enough_points, fit_curves
from isolaw.fits.curves.varpro import Floats

_LINE_PARAMETERS = 2  # number of parameters of ``line``
_TEMPER = 8.0
_MOST_NATS = 1.0  # largest reduction of a family's log weight by one backtest
_CUTS = (2.0, 4.0)
_TARGET_SHARE = 0.8  # checkpoints past this share of the last compute are backtest targets
_CLOSE = 0.04  # smaller forecast errors hardly reduce a weight; in units of reward
_RHO = 0.3
_NO_ERROR = 1e-12
_LEAST_WEIGHT = 0.1  # smallest weight with which a family affects whether the ceiling counts as determined


@dataclass(frozen=True)
class LogLine:
    """A learning curve R = a + b log C, with D draws of a and b."""

    # a and b, (D,) each
    level: Floats
    slope: Floats

    def __call__(self, compute: Floats | float) -> Floats:
        """Return the reward of each draw at ``compute`` (X,), as an array of shape (D, X)."""
        return self.level[:, None] + self.slope[:, None] * np.log(np.atleast_1d(compute))


@dataclass(frozen=True)
class PooledCurve:
    """An extrapolated learning curve with D draws. Row 0 is the fit to the data.

    >>> C = np.geomspace(1e3, 1e6, 40)
    >>> curve = pooled(C, (0.8 - 0.5 / (1 + (C / 2e5) ** 1.2))[None], np.ones((1, 40)))
    >>> max(curve.weights, key=curve.weights.get), round(float(curve(4e6)[0]), 3)
    ('hill', 0.787)
    """

    end: float  # C of the last checkpoint
    fits: dict[str, Curves | LogLine]
    weights: dict[str, float]
    rho: float
    # Seed of the choice of families, which compared curves share, and seed of g, which each curve has itself.
    seed: tuple[int, int]
    bounds: tuple[float, float]

    def __call__(self, compute: float) -> Floats:
        """Return the reward at one compute, as an array of the estimate and D draws."""
        rewards = self.fits["hill"](min(compute, self.end))[:, 0]
        if compute <= self.end:
            return np.clip(rewards, *self.bounds)
        changes = np.array([fit(compute)[:, 0] - fit(self.end)[:, 0] for fit in self.fits.values()])
        weights = np.array(list(self.weights.values()))
        return self._draw(rewards, changes, weights, np.sqrt(np.log(compute / self.end)))

    def ceiling(self) -> tuple[Floats, bool]:
        """Return the ceiling of the estimate and of D draws, and whether the checkpoints determine it."""
        fits = [fit for fit in self.fits.values() if isinstance(fit, Curves)]
        weights = np.array([self.weights[name] for name in SATURATING])
        is_determined = bool(weights.sum() >= self.weights["line"])
        weights = weights / weights.sum() if weights.sum() > 0 else np.full(2, 0.5)
        pairs = zip(fits, weights, strict=True)
        is_determined &= not any(fit.open_ended[0] and weight >= _LEAST_WEIGHT for fit, weight in pairs)
        changes = np.array([fit.A - fit(self.end)[:, 0] for fit in fits])
        return self._draw(self.fits["hill"](self.end)[:, 0], changes, weights, 1.0), is_determined

    def _draw(self, base: Floats, changes: Floats, weights: Floats, noise_scale: float) -> Floats:
        """Add to ``base``, in each draw, the change under one family and the noise ρ √h |mean change| g."""
        draws = base.size - 1
        choice, noise = (np.random.default_rng((7, key)) for key in self.seed)
        quantiles = choice.permutation((np.arange(draws) + 0.5) / max(draws, 1))
        family = np.searchsorted(np.cumsum(weights)[:-1], quantiles, side="right")
        mean_change = float(weights @ changes[:, 0])
        rewards = base + np.append(mean_change, changes[family, np.arange(1, draws + 1)])
        rewards[1:] += self.rho * noise_scale * abs(mean_change) * noise.standard_normal(draws)
        return np.clip(rewards, *self.bounds)


def pooled(
    compute: Floats,
    reward: Floats,
    weights: Floats,
    seed: int = 0,
    bounds: tuple[float, float] = (-np.inf, np.inf),
    unit: float = 1.0,
) -> PooledCurve:
    """Fit all curve families to a configuration's checkpoints, for the estimate and D draws.

    ``compute`` has shape (P,), and ``reward`` (1 + D, P). ``weights`` (1, P) contains the number of runs that
    each checkpoint averages. ``bounds`` contains the smallest and the largest possible reward; ``unit`` is
    the reward's unit.
    """
    fits = _fit_families(compute, reward, weights)
    after_start = compute > 0
    c, y, w = compute[after_start], reward[0, after_start], weights[0, after_start]
    w = w / w.mean()
    sse = np.array([np.sum(w * (fit(c)[0] - y) ** 2) for fit in fits.values()])
    scale = max(float(np.sum(w * (y - y.mean()) ** 2)), _NO_ERROR)
    parameters = np.array([*(len(FAMILIES[name].parameters) for name in SATURATING), _LINE_PARAMETERS])
    likelihood = -0.5 * c.size * np.log(np.maximum(sse / scale, _NO_ERROR))
    score = (likelihood - 0.5 * parameters * np.log(c.size)) / _TEMPER
    noise = float(sse.min()) / max(c.size - 3, 1)
    is_late = c >= _TARGET_SHARE * c[-1]
    errors, changes, horizons = [], [], []
    for cut in _CUTS:
        is_early = compute <= compute[-1] / cut
        if not enough_points(is_early[None].astype(float))[0]:
            continue
        early_fits = _fit_families(compute[is_early], reward[:1, is_early], weights[:, is_early])
        end = compute[is_early][-1]
        errors.append([float((fit(c[is_late])[0] - y[is_late]).mean()) for fit in early_fits.values()])
        changes.append([float((fit(c[is_late])[0] - fit(end)[0]).mean()) for fit in early_fits.values()])
        horizons.append(float(np.log(c[is_late] / end).mean()))
    error_variance = noise / is_late.sum()
    for error in np.square(errors):
        score += np.maximum(
            -0.5 * (error - error.min()) / (error_variance + (_CLOSE * unit) ** 2) / _TEMPER, -_MOST_NATS
        )
    shares = np.exp(score - score.max())
    shares /= shares.sum()
    rho = _RHO
    if errors:
        excess = np.maximum((np.array(errors) @ shares) ** 2 - error_variance, 0.0)
        room = np.array(horizons) * (np.array(changes) @ shares) ** 2
        usual = max(float(room.mean()), _NO_ERROR)
        rho = float(np.sqrt((usual * _RHO**2 + excess.sum()) / (usual + room.sum())))
    # The second seed depends on the data, so a curve never differs from a copy of itself, in any order.
    streams = seed, zlib.crc32(np.round(reward[0] / unit, 6).tobytes())
    return PooledCurve(
        float(compute[-1]), fits, dict(zip(fits, shares.tolist(), strict=True)), rho, streams, bounds
    )


def _fit_families(compute: Floats, reward: Floats, weights: Floats) -> dict[str, Curves | LogLine]:
    fits: dict[str, Curves | LogLine] = {
        name: fit_curves(compute, reward, weights, name) for name in SATURATING
    }
    is_trained = compute > 0
    terms = np.stack([np.ones(is_trained.sum()), np.log(compute[is_trained])], axis=1)
    root = np.sqrt(weights[0, is_trained])[:, None]
    level, slope = (np.linalg.pinv(terms * root) * root.T) @ reward[:, is_trained].T
    return {**fits, "line": LogLine(level, slope)}
