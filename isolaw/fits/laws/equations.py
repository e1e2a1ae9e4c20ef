"""Define the candidate laws of n*(C), and fit them in every draw.

    constant        n* = n0
    power           log2 n* = α + β log10 C
    linear          n* = α + β log10 C
    non-monotone    log2 n* = α + β log10 C + γ (log10 C)²
    logistic        log2 n* = b + L / (1 + exp(−k (log10 C − log10 C0))),   L, k ≥ 0

C is compute; with ``hold="B"``, M replaces log10 C. The logistic law is from the paper (arXiv
2603.12151, section 4; its plotted curves confirm log10), with floor b, rise L, steepness k and midpoint C0.

In every draw, a law's parameters θ minimise

    Σ_C c(C) (log2 n*(C) − log2 law(C; θ))²

where c = −∂²r/∂(log2 n)² is the curvature of the mean surface r at n*. To second order, this sum is the
reward that the law loses, averaged over log C. The logistic law uses c = 1. A point that is only a bound
affects the fit only if the law violates the bound.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from isolaw.evidence import interval
from isolaw.fits.curves.varpro import SearchRange, varpro
from isolaw.fits.document.schema import LawDocument, LawEntry
from isolaw.fits.frontier import NStarPath
from isolaw.fits.selection import Floats
from isolaw.runs import SYMBOL_OF


def signed(value: float) -> str:
    """Return a number as text with three significant digits and a true minus sign."""
    return f"{value:.3g}".replace("-", "−")


def form_equation(law: str, document: LawDocument) -> str:
    """Return the equation of a law with the names of its parameters instead of numbers."""
    x, squared = _x_symbols(document)
    return LAWS[law].equation.format(x=x, x2=squared)


def parameters(law: str, entry: LawEntry) -> str:
    """Return a law's parameters and their 95 % intervals as text, or an empty string if θ is unknown."""
    form, texts = LAWS[law], []
    for i, (name, value) in enumerate(zip(form.parameters, entry.theta, strict=False)):
        values = (value, *entry.interval[i]) if entry.interval else (value,)
        estimate, *ends = (signed(form.natural.get(name, float)(v)) for v in values)
        texts.append(f"{name} = {estimate}" + (f" ({ends[0]} to {ends[1]})" if ends else ""))
    return ", ".join(texts)


def _x_symbols(document: LawDocument) -> tuple[str, str]:
    """Return the symbols of the law's variable and of its square."""
    return ("log10 C", "(log10 C)²") if document.x.log10 else ("M", "M²")


def preferred(document: LawDocument) -> str | None:
    """Return the name of the preferred law, or None if no law is preferred.

    For the method ``paper``, it is the logistic law.
    """
    return "logistic" if document.method == "paper" else document.comparison.preferred


def equation(document: LawDocument) -> str:
    """Return the equation of the preferred law with fitted numbers, or "" if no law is preferred."""
    name = preferred(document)
    law = document.comparison.laws.get(name or "")
    if name == "logistic":  # includes the method paper, which compares no laws
        values = [document.params[p].value for p in LAWS[name].parameters]
        return "" if None in values else _with_numbers(name, document, [v for v in values if v is not None])
    if name is None or law is None or not law.theta:
        return ""
    theta, intervals, n = law.theta, law.interval, SYMBOL_OF[document.axis]
    if name == "constant":
        suffix = f" ({interval([2**e for e in intervals[0]])})" if intervals else ""
        return f"{n}* = {2 ** theta[0]:.3g}{suffix}"
    if name == "power" and document.x.log10:  # log2 n* = α + β log10 C
        suffix = f" (exponent, {interval([e * math.log10(2) for e in intervals[1]])})" if intervals else ""
        return f"{n}* = {2 ** theta[0]:.3g} C^{theta[1] * math.log10(2):.3g}{suffix}"
    form = LAWS[name]
    return _with_numbers(
        name, document, [form.natural.get(p, float)(t) for p, t in zip(form.parameters, theta, strict=True)]
    )


def _with_numbers(law: str, document: LawDocument, values: Sequence[float]) -> str:
    """Return a law's equation with numbers for its parameters."""
    numbers = dict(zip(LAWS[law].parameters, map(signed, values), strict=True))
    names = "|".join(sorted(numbers, key=len, reverse=True))
    text = re.sub(rf"(?<!\w)({names})(?!\w)", lambda m: numbers[m[0]], LAWS[law].equation)
    x, squared = _x_symbols(document)
    text = text.replace("n*", f"{SYMBOL_OF[document.axis]}*")
    return text.format(x=x, x2=squared).replace("+ −", "− ").replace("− −", "+ ")


Bools = NDArray[np.bool_]
# Maps rows and a mask of used points to θ and fitted values.
Fit = Callable[[NDArray[np.int64], Bools], tuple[Floats, Floats]]
_MOST_ROUNDS = 12
_LEAST_N = 1e-3
_ROUNDING = 1e-9  # a law violates a bound only by more than this, in doublings
_ALIKE = 1e-12  # losses that differ by less are equal; ties are common if most points are only bounds
_STEEPNESS = (1.0, 400.0)  # range of k times the range of x: from nearly straight to a step between points


def logistic(x: ArrayLike, b: ArrayLike, L: ArrayLike, k: ArrayLike, x0: ArrayLike) -> Floats:
    """Return log2 n* of the logistic law. The arguments broadcast.

    >>> float(logistic(6.0, b=3.0, L=6.0, k=7.0, x0=6.0))
    6.0
    """
    x, b, L, k, x0 = (np.asarray(value, dtype=np.float64) for value in (x, b, L, k, x0))
    return np.asarray(b + L * expit(k * (x - x0)))


@dataclass(frozen=True)
class LawForm:
    """The form of a law: its equation, its fit, and its names in texts. `LAWS` contains all forms.

    Attributes
    ----------
    log2_n
        function that returns log2 n* at x (X,) for θ (D, P), with shape (D, X).
    fit
        function that returns θ in each draw, (1 + D, P), given x (X,), n*(C) and weights c (X,). x is log10
        C, or M with fixed B. For the logistic law, θ is b, L, log k and x0.
    equation, parameters
        the equation with names for θ, and ``{x}`` and ``{x2}`` for x and its square; the names of θ.
    words
        the form in words, with ``{x}`` for log C or M and ``{n}`` for n or B_p.
    natural
        functions that convert fitted parameters to the values that isolaw shows.
    label
        the name in texts, by default the key in `LAWS`.
    contains
        simpler laws that are special cases; to be preferred, this law must beat all of them.
    rises
        whether n* rises without limit.
    turns
        whether n* can fall; such a law predicts nothing beyond the data.
    """

    log2_n: Callable[[Floats, Floats], Floats]
    fit: Callable[[Floats, NStarPath, Floats], Floats]
    equation: str
    parameters: tuple[str, ...]
    words: str
    natural: Mapping[str, Callable[[float], float]] = field(default_factory=dict)
    label: str = ""
    contains: tuple[str, ...] = ("constant",)
    rises: bool = False
    turns: bool = False


def _logistic_theta(x: Floats, path: NStarPath, _: Floats) -> Floats:
    return fit_logistic(x, path.log2_n, path.below, path.above).theta


def _fit_linear(x: Floats, path: NStarPath, weight: Floats) -> Floats:
    """Fit the linear law with errors relative to n*, which to first order equal errors in log2 n*."""
    n = np.exp2(path.log2_n)
    return _polynomial(2, x, path, n, weight / n**2)


def _polynomial(terms: int, x: Floats, path: NStarPath, value: Floats, weights: Floats) -> Floats:
    """Return θ of a polynomial with this number of terms, fitted by weighted least squares."""
    powers = x[:, None] ** np.arange(terms)

    def fit(draws: NDArray[np.int64], is_used: Bools) -> tuple[Floats, Floats]:
        weight = weights[draws] * is_used
        normal = np.einsum("xp,dx,xq->dpq", powers, weight, powers)
        inverse = np.linalg.pinv(normal, hermitian=True)
        theta = np.einsum("dpq,xq,dx->dp", inverse, powers, weight * value[draws])
        return theta, theta @ powers.T

    return _fit_with_bounds(fit, value, path.below, path.above, weights)


def _log2_polynomial(terms: int) -> Callable[[Floats, NStarPath, Floats], Floats]:
    def fit(x: Floats, path: NStarPath, weight: Floats) -> Floats:
        return _polynomial(terms, x, path, path.log2_n, np.broadcast_to(weight, path.log2_n.shape))

    return fit


# In order of simplicity. To add a law, add an entry.
LAWS: dict[str, LawForm] = {
    "constant": LawForm(
        lambda x, t: np.repeat(t[:, :1], x.size, axis=1), _log2_polynomial(1),
        "n* = n0", ("n0",), "a constant {n}", {"n0": lambda v: 2**v}, contains=(),
    ),
    "power": LawForm(
        lambda x, t: np.asarray(t[:, :1] + t[:, 1:2] * x), _log2_polynomial(2),
        "log2 n* = α + β {x}", ("α", "β"), "{n} doubling at a constant rate in {x}", rises=True,
    ),
    "linear": LawForm(
        lambda x, t: np.log2(np.maximum(t[:, :1] + t[:, 1:2] * x, _LEAST_N)), _fit_linear,
        "n* = α + β {x}", ("α", "β"), "{n} linear in {x}", rises=True,
    ),
    "non-monotone": LawForm(
        lambda x, t: np.asarray(t[:, :1] + t[:, 1:2] * x + t[:, 2:3] * x * x), _log2_polynomial(3),
        "log2 n* = α + β {x} + γ {x2}", ("α", "β", "γ"), "log {n} quadratic in {x}",
        label="quadratic", contains=("constant", "power"), turns=True,  # the label does not imply a fall
    ),
    "logistic": LawForm(
        lambda x, t: logistic(x, t[:, :1], t[:, 1:2], np.exp(t[:, 2:3]), t[:, 3:4]), _logistic_theta,
        "log2 n* = b + L / (1 + exp(−k ({x} − x0)))", ("b", "L", "k", "x0"), "a logistic in {x}",
        {"k": math.exp},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Logistic:
    """D fitted logistic laws of log2 n* as a function of x, where x is log10 C or M."""

    # Floor, rise, steepness and midpoint, (D,) each.
    b: Floats
    L: Floats
    k: Floats
    x0: Floats
    on_bound: Bools  # whether the points leave steepness or midpoint undetermined, (D,)

    @property
    def theta(self) -> Floats:
        """b, L, log k and x0, (D, 4)."""
        return np.stack([self.b, self.L, np.log(np.maximum(self.k, 1e-12)), self.x0], axis=1)

    def __call__(self, x: ArrayLike) -> Floats:
        """Return log2 n* of each law at x (X,), as an array of shape (D, X)."""
        return logistic(np.atleast_1d(x), *(v[:, None] for v in (self.b, self.L, self.k, self.x0)))


def fit_logistic(
    x: Floats, log2_n: Floats, below: Bools | None = None, above: Bools | None = None
) -> Logistic:
    """Fit D logistic laws by least squares.

    ``x`` (X,) is log10 C or M; its values must not all be equal. ``log2_n`` (D, X) is log2 n* of each data
    set. ``below`` (``above``), of shape (D, X), marks values that are only a lower (upper) bound; a value
    with both marks is ignored.

    >>> x = np.linspace(5, 7, 50)
    >>> y = (3 + 6 / (1 + np.exp(-7 * (x - 6.1))))[None]
    >>> law = fit_logistic(x, y)
    >>> [round(float(v[0]), 3) for v in (law.b, law.L, law.k, law.x0)]
    [3.0, 6.0, 7.0, 6.1]
    """
    span = float(np.ptp(x))
    search_ranges = [
        SearchRange(float(x.min()) - span / 2, float(x.max()) + span / 2, 41),
        SearchRange(math.log(_STEEPNESS[0] / span), math.log(_STEEPNESS[1] / span), 9),
    ]
    no_bounds = np.zeros(log2_n.shape, dtype=bool)

    def fit(draws: NDArray[np.int64], is_used: Bools) -> tuple[Floats, Floats]:
        fits = varpro(x, log2_n[draws], is_used.astype(np.float64), "logistic", search_ranges)
        law = Logistic(fits.low, fits.slope, np.exp(fits.shape[:, 1]), fits.shape[:, 0], fits.undetermined)
        return np.stack([law.b, law.L, law.k, law.x0, law.on_bound], axis=1), law(x)

    below, above = no_bounds if below is None else below, no_bounds if above is None else above
    b, L, k, x0, on_bound = _fit_with_bounds(fit, log2_n, below, above, np.ones(log2_n.shape)).T
    return Logistic(b, L, k, x0, on_bound.astype(bool))


def _fit_with_bounds(fit: Fit, value: Floats, below: Bools, above: Bools, weight: Floats) -> Floats:
    """Return θ (D, P), fitted by least squares in which satisfied bounds have no loss.

    Violated bounds join the fit and satisfied bounds leave it until no bound changes.
    """
    is_used = ~(below | above)
    is_used |= ~is_used.any(axis=1, keepdims=True)  # if all points are bounds, start from their values
    draws, least_loss = np.arange(len(value)), np.full(len(value), np.inf)
    theta = np.empty(0)
    for _ in range(_MOST_ROUNDS):
        candidate, fitted = fit(draws, is_used[draws])
        theta = theta if theta.size else candidate.copy()
        law_above, law_below = fitted > value[draws] - _ROUNDING, fitted < value[draws] + _ROUNDING
        is_satisfied = (below[draws] & (above[draws] | law_above)) | (above[draws] & law_below)
        # The law of an outlying draw can have extreme values; its loss only has to stay finite.
        errors = np.clip(np.where(is_satisfied, 0.0, fitted - value[draws]), -1e100, 1e100)
        loss = np.sum(weight[draws] * errors**2, axis=1)
        is_better = loss < least_loss[draws] - _ALIKE
        theta[draws[is_better]], least_loss[draws[is_better]] = candidate[is_better], loss[is_better]
        changed = (is_satisfied == is_used[draws]).any(axis=1) & ~is_satisfied.all(axis=1)
        draws = draws[changed]
        if not draws.size:
            break
        is_used[draws] = ~is_satisfied[changed]
    return theta
