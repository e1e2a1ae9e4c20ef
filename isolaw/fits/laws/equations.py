"""The laws that n* may follow, and their fit to n*(C) in every draw.

    constant        n* = n0
    power           log2 n* = α + β log10 C
    linear          n* = α + β log10 C
    non-monotone    log2 n* = α + β log10 C + γ (log10 C)²
    logistic        log2 n* = b + L / (1 + exp(−k (log10 C − log10 C0))),   L, k ≥ 0

C is compute; in the setting ``fixed-b`` M replaces log10 C. The logistic is the paper's (arXiv 2603.12151,
section 4; log10 was checked against its drawn curves), with floor b, rise L, steepness k, midpoint C0.

In every draw, a law's parameters θ minimise

    Σ_C c(C) (log2 n*(C) − log2 law(C; θ))²

where c = −∂²r/∂(log2 n)² is the curvature of the mean surface r at n*. To second order this is the reward
that the law loses, averaged over log C. The logistic uses c = 1. A point that is only a bound pulls a law
only if the law is on its wrong side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from isolaw.fits.curves.varpro import SearchRange, varpro
from isolaw.fits.frontier import Path
from isolaw.fits.selection import Floats

Bools = NDArray[np.bool_]
Fit = Callable[
    [NDArray[np.int64], Bools], tuple[Floats, Floats]
]  # θ and fitted values of rows, by used points
_ROUNDS = 12
_LEAST_N = 1e-3
_ROUNDING = 1e-9  # doublings: a bound is broken only by more than this
_ALIKE = 1e-12  # losses closer than this are equal; many are, if most points are only bounds
_STEEPNESS = (1.0, 400.0)  # k times the range of x: from nearly straight to a step between two points


def logistic(x: ArrayLike, b: ArrayLike, L: ArrayLike, k: ArrayLike, x0: ArrayLike) -> Floats:
    """Return log2 n* of the logistic law; arguments broadcast.

    >>> float(logistic(6.0, b=3.0, L=6.0, k=7.0, x0=6.0))
    6.0
    """
    x, b, L, k, x0 = (np.asarray(value, dtype=np.float64) for value in (x, b, L, k, x0))
    return np.asarray(b + L * expit(k * (x - x0)))


@dataclass(frozen=True)
class LawForm:
    """A law: its equation, its fit, and what texts say of it. `LAWS` holds all of them.

    Attributes
    ----------
    log2_n
        log2 n* at x (X,) for θ (D, P), as (D, X).
    fit
        θ in each draw, (1 + D, P), given x (X,), n*(C) and weights c (X,).
    equation, parameters
        the equation with names for θ and ``{x}``, ``{x2}`` for x and its square; the names.
    words
        the form in words, ``{x}`` for log C or M.
    natural
        how a parameter is shown whose transform is fitted.
    label
        the name in texts, by default that of `LAWS`.
    contains
        simpler laws that are special cases; this one must beat them to be preferred.
    rises
        whether n* rises without end.
    turns
        whether n* may fall; such a law says nothing beyond the data.
    """

    log2_n: Callable[[Floats, Floats], Floats]
    fit: Callable[[Floats, Path, Floats], Floats]
    equation: str
    parameters: tuple[str, ...]
    words: str
    natural: Mapping[str, Callable[[float], float]] = field(default_factory=dict)
    label: str = ""
    contains: tuple[str, ...] = ("constant",)
    rises: bool = False
    turns: bool = False


def fit_law(name: str, x: Floats, path: Path, weight: Floats) -> Floats:
    """Return θ of the law in each draw, (1 + D, P); for the logistic b, L, log k, x0.

    ``x`` (X,) is log10 C, or M with B fixed; ``path`` has n* and ``weight`` (X,) has c there.
    """
    return LAWS[name].fit(x, path, weight)


def _logistic_of(x: Floats, path: Path, _: Floats) -> Floats:
    law = fit_logistic(x, path.log2_n, path.below, path.above)
    return np.stack([law.b, law.L, np.log(np.maximum(law.k, 1e-12)), law.x0], axis=1)


def _linear_of(x: Floats, path: Path, weight: Floats) -> Floats:
    """Fit in n with errors relative to n*, which to first order are errors in log2 n*."""
    n = np.exp2(path.log2_n)
    return _polynomial(2, x, path, n, weight / n**2)


def _polynomial(terms: int, x: Floats, path: Path, value: Floats, weights: Floats) -> Floats:
    """Return θ of a polynomial with that many terms, by weighted least squares."""
    powers = x[:, None] ** np.arange(terms)

    def fit(rows: NDArray[np.int64], used: Bools) -> tuple[Floats, Floats]:
        own = weights[rows] * used
        normal = np.einsum("xp,dx,xq->dpq", powers, own, powers)
        inverse = np.linalg.pinv(normal, hermitian=True)
        theta = np.einsum("dpq,xq,dx->dp", inverse, powers, own * value[rows])
        return theta, theta @ powers.T

    return _one_sided(fit, value, path.below, path.above, weights)


def _in_log2_n(terms: int) -> Callable[[Floats, Path, Floats], Floats]:
    def fit(x: Floats, path: Path, weight: Floats) -> Floats:
        return _polynomial(terms, x, path, path.log2_n, np.broadcast_to(weight, path.log2_n.shape))

    return fit


# The simplest law first. To add a law, add an entry.
LAWS: dict[str, LawForm] = {
    "constant": LawForm(
        lambda x, t: np.repeat(t[:, :1], x.size, axis=1), _in_log2_n(1),
        "n* = n0", ("n0",), "a constant n", {"n0": lambda v: 2**v}, contains=(),
    ),
    "power": LawForm(
        lambda x, t: np.asarray(t[:, :1] + t[:, 1:2] * x), _in_log2_n(2),
        "log2 n* = α + β {x}", ("α", "β"), "n doubling at a constant rate in {x}", rises=True,
    ),
    "linear": LawForm(
        lambda x, t: np.log2(np.maximum(t[:, :1] + t[:, 1:2] * x, _LEAST_N)), _linear_of,
        "n* = α + β {x}", ("α", "β"), "n linear in {x}", rises=True,
    ),
    "non-monotone": LawForm(
        lambda x, t: np.asarray(t[:, :1] + t[:, 1:2] * x + t[:, 2:3] * x * x), _in_log2_n(3),
        "log2 n* = α + β {x} + γ {x2}", ("α", "β", "γ"), "log n quadratic in {x}",
        label="quadratic", contains=("constant", "power"), turns=True,  # the label claims no fall
    ),
    "logistic": LawForm(
        lambda x, t: logistic(x, t[:, :1], t[:, 1:2], np.exp(t[:, 2:3]), t[:, 3:4]), _logistic_of,
        "log2 n* = b + L / (1 + exp(−k ({x} − x0)))", ("b", "L", "k", "x0"), "a logistic in {x}",
        {"k": math.exp},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Logistic:
    """D fitted logistic laws of log2 n* as a function of x, which is log10 C or M."""

    # Floor, rise, steepness and midpoint, each (D,).
    b: Floats
    L: Floats
    k: Floats
    x0: Floats
    on_bound: Bools  # whether the points leave steepness or midpoint undetermined, (D,)

    def __call__(self, x: ArrayLike) -> Floats:
        """Return log2 n* of each of D laws at x (X,), (D, X)."""
        return logistic(np.atleast_1d(x), *(v[:, None] for v in (self.b, self.L, self.k, self.x0)))


def fit_logistic(
    x: Floats, log2_n: Floats, below: Bools | None = None, above: Bools | None = None
) -> Logistic:
    """Fit D logistic laws by least squares.

    ``x`` (X,) is log10 C or M, not all equal; ``log2_n`` (D, X) is log2 n* of each data set. ``below`` and
    ``above`` (D, X) mark values that are only a lower (upper) bound; a value with both marks is ignored.

    >>> x = np.linspace(5, 7, 50)
    >>> y = (3 + 6 / (1 + np.exp(-7 * (x - 6.1))))[None]
    >>> law = fit_logistic(x, y)
    >>> [round(float(v[0]), 3) for v in (law.b, law.L, law.k, law.x0)]
    [3.0, 6.0, 7.0, 6.1]
    """
    span = float(np.ptp(x))
    axes = [
        SearchRange(math.log(_STEEPNESS[0] / span), math.log(_STEEPNESS[1] / span), 9),
        SearchRange(float(x.min()) - span / 2, float(x.max()) + span / 2, 41),
    ]
    nowhere = np.zeros(log2_n.shape, dtype=bool)

    def fit(rows: NDArray[np.int64], used: Bools) -> tuple[Floats, Floats]:
        s = varpro(x, log2_n[rows], used.astype(np.float64), "logistic", axes)
        law = Logistic(s.low, s.slope, np.exp(s.shape[:, 0]), s.shape[:, 1], s.undetermined)
        return np.stack([law.b, law.L, law.k, law.x0, law.on_bound], axis=1), law(x)

    below, above = nowhere if below is None else below, nowhere if above is None else above
    b, L, k, x0, on_bound = _one_sided(fit, log2_n, below, above, np.ones(log2_n.shape)).T
    return Logistic(b, L, k, x0, on_bound.astype(bool))


def _one_sided(fit: Fit, value: Floats, below: Bools, above: Bools, weight: Floats) -> Floats:
    """Return θ (D, P) by least squares, where a bound that is satisfied costs nothing.

    Violated bounds join the fit and satisfied ones leave it, until nothing changes.
    """
    used = ~(below | above)
    used |= ~used.any(axis=1, keepdims=True)  # if all points are bounds, start from their values
    rows, least = np.arange(len(value)), np.full(len(value), np.inf)
    theta = np.empty(0)
    for _ in range(_ROUNDS):
        own, fitted = fit(rows, used[rows])
        theta = theta if theta.size else own.copy()
        over, under = fitted > value[rows] - _ROUNDING, fitted < value[rows] + _ROUNDING
        kept = (below[rows] & (above[rows] | over)) | (above[rows] & under)
        # An outlying draw's law may lie anywhere; its loss only has to stay finite.
        off = np.clip(np.where(kept, 0.0, fitted - value[rows]), -1e100, 1e100)
        loss = np.sum(weight[rows] * off**2, axis=1)
        better = loss < least[rows] - _ALIKE
        theta[rows[better]], least[rows[better]] = own[better], loss[better]
        changed = (kept == used[rows]).any(axis=1) & ~kept.all(axis=1)
        rows = rows[changed]
        if not rows.size:
            break
        used[rows] = ~kept[changed]
    return theta
