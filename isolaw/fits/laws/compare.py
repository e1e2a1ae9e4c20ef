"""Which law does n* follow? Laws compared by likelihood on rewards, and by what they lose.

    constant        n* = n0
    linear          n* = α + β log10 C
    power           log2 n* = α + β log10 C
    logistic        log2 n* = b + L / (1 + exp(−k (log10 C − log10 C0)))
    non-monotone    log2 n* = α + β log10 C + γ (log10 C)²

*Likelihood.* A law claims that along it reward has no slope in log n. The surface's slopes at the law's
n, at a few computes, are linear in rewards and so nearly normal, with the covariance Σ that the draws
show on the ridge; minus twice the log-likelihood of a law θ is χ²(θ) = s(θ)ᵀ Σ⁻¹ s(θ), its parameters are
those that minimise it, and AIC = χ² + 2 parameters. Where curves have levelled off, slopes at neighbouring
computes differ by the curves' form alone, which the draws share; so Σ also holds the slope a twentieth of a
doubling off the ridge, at each compute by itself: no law is asked to pass nearer. (Points on a computed
frontier are deterministic functions of a few curves, so how closely a law passes by them says nothing.)

The parameters to quote are those of `isolaw.fits.laws.along`.

*Loss.* A law names an n at each compute; its regret there is the surface's highest reward less that of its n.
Held out: the law from all seeds but one, judged on the surface of that one. The held-out maximum is itself
noisy, so all laws look worse than they are by the same amount; their differences are fair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import expit

from isolaw.fits.frontier.trace import TOLERANCE, Frontier, Path
from isolaw.fits.law_document import Comparison, ConstantRule, Regret
from isolaw.fits.selection import Floats
from isolaw.fits.surface.polynomial import Ridge, Surface

_KNOTS = 6
LEAST_KNOTS = 3
_A_TURN = 0.5  # doublings of n
_NEAR = 0.05  # doublings of n: nearer than that no law has to pass
_AS_GOOD = 2.0  # of AIC: a simpler law within this of the best is preferred


def _logistic(x: Floats, t: Floats) -> Floats:
    return np.asarray(t[0] + t[1] * expit(np.exp(np.clip(t[2], -20, 20)) * (x - t[3])))


def _linear(x: Floats, t: Floats) -> Floats:
    return np.asarray(np.log2(np.maximum(t[0] + t[1] * x, 1e-3)))


# Each law as log2 n*(log10 C; θ), the simplest first.
LAWS: dict[str, tuple[int, Callable[[Floats, Floats], Floats]]] = {
    "constant": (1, lambda x, t: np.full_like(x, t[0])),
    "power": (2, lambda x, t: np.asarray(t[0] + t[1] * x)),
    "linear": (2, _linear),
    "non-monotone": (3, lambda x, t: np.asarray(t[0] + t[1] * x + t[2] * x * x)),
    "logistic": (4, _logistic),
}


@dataclass(frozen=True)
class Fitted:
    """A law with parameters θ and −2 log-likelihood."""

    name: str
    theta: Floats
    chi2: float

    def __call__(self, log10_c: Floats) -> Floats:
        """log2 n* at log10 C."""
        return LAWS[self.name][1](log10_c, self.theta)

    @property
    def aic(self) -> float:
        """χ² + 2 parameters."""
        return self.chi2 + 2 * LAWS[self.name][0]


def nearest_level(
    log2_n: Floats, levels: NDArray[np.int64], allowed: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Return the index of the measured n nearest in log2; ``allowed`` (levels, …) restricts it.

    Half way between two it is the smaller.

    >>> nearest_level(np.array([3.4, 3.5, 3.6]), np.array([8, 16]))
    array([0, 0, 1])
    """
    distance = np.abs(np.log2(levels).reshape((-1,) + (1,) * log2_n.ndim) - log2_n).round(9)
    if allowed is not None:
        distance = np.where(allowed, distance, np.inf)
    return np.asarray(distance.argmin(axis=0))


def knots(surface: Surface) -> NDArray[np.int64]:
    """Return indices of a few computes at which the surface is defined."""
    known = np.flatnonzero(surface.defined)
    if known.size < 2:
        return known
    return known[np.unique(np.linspace(0, known.size - 1, _KNOTS).round().astype(int))]


def fit_laws(surface: Surface, path: Path) -> dict[str, Fitted]:
    """Fit every law to the surface's slopes; needs draws (for their covariance) and a defined surface.

    Only for surfaces over n alone. Laws with more parameters than knots are left out, and so is a parabola
    that does not turn round among the measured computes: it says no more than a law that rises.
    """
    at = knots(surface)
    draws = surface.coefficients.shape[0] - 1
    if draws < 10 * _KNOTS or at.size < LEAST_KNOTS:
        return {}
    x = np.log10(path.compute[at])
    ends = [surface.plane[0][surface.measured[:, i]] for i in at]
    low, high = np.array([e.min() for e in ends]), np.array([e.max() for e in ends])
    coefficients = surface.coefficients[:, at]
    centred = coefficients[1:] - coefficients[1:].mean(axis=0)

    ridge = np.clip(path.log2_n[0, at], low, high)
    basis = derivatives(surface, at, ridge, 1)
    spread = np.einsum("kt,dkt->dk", basis, centred)
    bend = np.einsum("kt,kt->k", derivatives(surface, at, ridge, 2), coefficients[0])
    covariance = spread.T @ spread / (draws - 1) + np.diag((_NEAR * bend) ** 2)
    covariance += np.eye(at.size) * (1e-6 * np.trace(covariance) / at.size + 1e-30)
    root = np.linalg.cholesky(np.linalg.inv(covariance)).T

    def whitened(log2_n: Floats) -> Floats:
        """Slopes in log n at log2_n, over a root of their covariance."""
        u = np.clip(log2_n, low, high)
        s = np.einsum("kt,kt->k", derivatives(surface, at, u, 1), coefficients[0])
        # At an end of what was measured, a law that lies beyond agrees with a slope towards it.
        s = np.where((log2_n >= high) & (s > 0) | (log2_n <= low) & (s < 0), 0.0, s)
        return np.asarray(root @ s)

    out: dict[str, Fitted] = {}
    for name, (size, law) in LAWS.items():
        if size > at.size:
            continue
        best: Fitted | None = None
        for start in [*_starts(name, x, ridge), *_contained(name, out, float(x.mean()))]:
            # The chi-square's covariance moves with θ; a few digits are all that a comparison needs.
            found = least_squares(lambda t, f=law: whitened(f(x, t)), start, x_scale="jac", max_nfev=60)
            if best is None or 2 * found.cost < best.chi2:
                best = Fitted(name, found.x, float(2 * found.cost))
        if best is not None and (name != "non-monotone" or _turns(best(np.linspace(x[0], x[-1], 50)))):
            out[name] = best
    return out


def _turns(log2_n: Floats) -> bool:
    """Whether n* goes up and down by at least half a doubling each."""
    steps = np.diff(log2_n)
    return bool(min(steps[steps > 0].sum(), -steps[steps < 0].sum()) > _A_TURN)


def _starts(name: str, x: Floats, log2_n: Floats) -> list[Floats]:
    """Least squares on the ridge, where that is a line; a few midpoints for the logistic."""
    if name == "constant":
        return [np.array([v]) for v in (log2_n.mean(), log2_n.min(), log2_n.max())]
    if name == "power":
        return [np.polyfit(x, log2_n, 1)[::-1], np.array([log2_n.mean(), 0.0])]
    if name == "linear":
        return [np.polyfit(x, np.exp2(log2_n), 1)[::-1], np.array([np.exp2(log2_n.mean()), 0.0])]
    if name == "non-monotone":
        return [np.polyfit(x, log2_n, 2)[::-1], np.array([log2_n.mean(), 0.0, 0.0])]
    rise = max(float(np.ptp(log2_n)), 0.5)
    return [
        np.array([log2_n.min(), rise, math.log(steep / np.ptp(x)), middle])
        for steep in (4.0, 12.0)
        for middle in np.quantile(x, [0.25, 0.5, 0.75])
    ]


def _contained(name: str, simpler: Mapping[str, Fitted], middle: float) -> list[Floats]:
    """A simpler law in the parameters of this one: no law fits worse than one that it contains."""
    if name == "constant":
        return []
    if name == "non-monotone":
        return [np.append(simpler["power"].theta, 0.0)]
    n = float(np.clip(simpler["constant"].theta[0], -20, 20))
    return [np.array({"power": [n, 0.0], "linear": [2**n, 0.0], "logistic": [n, 0.0, 0.0, middle]}[name])]


def refit(name: str, compute: Floats, ridge: Ridge, near: Fitted) -> Floats:
    """log2 n*(C) of a law of this form by least squares on a ridge's first row, (X,)."""
    x = np.log10(compute)
    known = ~np.isnan(ridge.log2_n[0])
    law = LAWS[name][1]
    starts = [near.theta, *_starts(name, x[known], ridge.log2_n[0, known])]
    fits = [
        least_squares(lambda t: law(x[known], t) - ridge.log2_n[0, known], s, max_nfev=50) for s in starts
    ]
    return law(x, min(fits, key=lambda f: f.cost).x)


def derivatives(surface: Surface, at: NDArray[np.int64], log2_n: Floats, order: int) -> Floats:
    """Return the terms' derivatives by u = log2 n at some computes, padded to all coefficients, (K, T)."""
    out = np.zeros((at.size, surface.coefficients.shape[2]))
    for row, x, value in zip(out, at, log2_n, strict=True):
        terms = surface.terms[x]
        u = value - terms.centre[0]
        for term, (i, _) in enumerate(terms.exponents):
            row[term] = math.perm(i, order) * u ** (i - order) if i >= order else 0.0
    return out


def regret(surface: Surface, log2_n: Floats, log2_b: Floats | None = None) -> Floats:
    """What n (X,) loses at each compute on the surface's first row, within what was measured; (X,)."""
    out = np.full(log2_n.size, np.nan)
    best = surface.estimate.ridge().reward[0]
    for x in np.flatnonzero(surface.defined):
        ends = surface.plane[0][surface.measured[:, x]]
        u = np.clip(log2_n[x : x + 1], ends.min(), ends.max())
        v = np.zeros(1) if log2_b is None else log2_b[x : x + 1]
        terms = surface.terms[x]
        value = terms(u, v)[0] @ surface.coefficients[0, x, : len(terms.exponents)]
        out[x] = max(best[x] - value, 0.0)
    return out


def summary(losses: Floats) -> Regret | None:
    """Mean and largest of the losses that are known."""
    known = losses[~np.isnan(losses)]
    return Regret(float(known.mean()), float(known.max())) if known.size else None


def preferred(fitted: dict[str, Fitted]) -> str | None:
    """Return the law with the fewest parameters among those within 2 of the least AIC."""
    if not fitted:
        return None
    least = min(f.aic for f in fitted.values())
    return next(name for name, f in fitted.items() if f.aic <= least + _AS_GOOD)


def rules(frontier: Frontier, law_log2_n: Floats | None) -> Comparison:
    """Compare the logistic law and the best constant n with the envelope of the curves (``paper``).

    Parameters
    ----------
    frontier
        row 0 is used.
    law_log2_n
        the law at the frontier's compute, (X,); None when it was refused.
    """
    # Only where the neighbours of n* were measured: elsewhere every rule is right by default.
    shown = ~frontier.alone[0]
    if not shown.any():
        return Comparison(constant=None, logistic=None, monotone=True, verdict="no law")
    reward, best = frontier.reward[0][:, shown], frontier.best[0][shown]
    measured = np.isfinite(reward)
    columns = np.arange(best.size)
    throughout = np.flatnonzero(measured.all(axis=1))

    def losses(log2_n: Floats) -> Floats:
        level = nearest_level(log2_n, frontier.levels, measured)
        return np.asarray(best - reward[level, columns])

    constants = {int(n): losses(np.full(columns.size, np.log2(n))) for n in frontier.levels[throughout]}
    n = min(constants, key=lambda n: round(float(constants[n].mean()), 12)) if constants else None
    constant = None if n is None else ConstantRule(float(constants[n].mean()), float(constants[n].max()), n)
    logistic = None if law_log2_n is None else summary(losses(law_log2_n[shown]))
    monotone = not falls(frontier)
    return Comparison(constant, logistic, monotone, _verdict(constant, logistic, monotone))


def falls(frontier: Frontier) -> bool:
    """Return whether n* comes down again by more than the tolerance in reward can excuse."""
    strict, reward = frontier.strict[0], frontier.reward[0]
    highest = 0
    for x in np.flatnonzero(~frontier.censored[0]):
        if strict[x] < highest and reward[strict[x], x] - reward[highest, x] > TOLERANCE:
            return True
        highest = max(highest, int(strict[x]))
    return False


def _verdict(constant: ConstantRule | None, logistic: Regret | None, monotone: bool) -> str:
    if constant is not None and constant.max_regret <= TOLERANCE:
        return "constant"
    if logistic is None or (constant is not None and logistic.mean_regret >= constant.mean_regret):
        return "no law"
    if not monotone and logistic.max_regret > TOLERANCE:
        return "no law"
    return "logistic"
