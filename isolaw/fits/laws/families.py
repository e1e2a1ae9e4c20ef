"""The laws that n* may follow, each once.

    constant        n* = n0
    power           log2 n* = α + β log10 C
    linear          n* = α + β log10 C
    non-monotone    log2 n* = α + β log10 C + γ (log10 C)²
    logistic        log2 n* = b + L / (1 + exp(−k (log10 C − log10 C0)))

θ of a law minimises, in every draw,

    Σ_C c(C) (log2 n*(C) − log2 law(C; θ))²

where c = −∂²r/∂(log2 n)² is the curvature of the mean surface at n*: to second order that is the reward
that the law loses, on average over log C. A point that is a bound pulls only a law that is on its wrong side.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.frontier.trace import Path
from isolaw.fits.laws.logistic import ALIKE, ROUNDING, fit_logistic
from isolaw.fits.selection import Floats

Function = Callable[[Floats, Floats], Floats]
_ROUNDS = 12
_LEAST_N = 1e-3


def _logistic(x: Floats, t: Floats) -> Floats:
    z = np.clip(np.exp(t[:, 2:3]) * (x - t[:, 3:4]), -500, 500)
    return np.asarray(t[:, :1] + t[:, 1:2] / (1 + np.exp(-z)))


# log2 n* at x = log10 C (X,) for θ (D, P), as (D, X); the simplest first.
LAWS: dict[str, Function] = {
    "constant": lambda x, t: np.repeat(t[:, :1], x.size, axis=1),
    "power": lambda x, t: np.asarray(t[:, :1] + t[:, 1:2] * x),
    "linear": lambda x, t: np.log2(np.maximum(t[:, :1] + t[:, 1:2] * x, _LEAST_N)),
    "non-monotone": lambda x, t: np.asarray(t[:, :1] + t[:, 1:2] * x + t[:, 2:3] * x * x),
    "logistic": _logistic,
}
RISING = ("power", "linear")  # for ever, where they rise
_TERMS = {"constant": 1, "power": 2, "linear": 2, "non-monotone": 3}


def fit_law(name: str, x: Floats, path: Path, weight: Floats) -> Floats:
    """Return θ of the law in each draw, (1 + D, P); of the logistic b, L, log k, x0.

    The law that is linear in n is fitted in n, its errors relative to n*, which is log2 n* to first order.

    Parameters
    ----------
    x
        log10 C, (X,).
    path
        n* at those C.
    weight
        c at those C, (X,).
    """
    if name == "logistic":
        law = fit_logistic(x, path.log2_n, path.below, path.above)
        return np.stack([law.b, law.L, np.log(np.maximum(law.k, 1e-12)), law.x0], axis=1)
    value = path.log2_n
    weights = np.broadcast_to(weight, value.shape)
    if name == "linear":
        value = np.exp2(value)
        weights = weights / value**2
    return _least_squares(x[:, None] ** np.arange(_TERMS[name]), value, weights, path.below, path.above)


def _least_squares(
    terms: Floats, value: Floats, weight: Floats, below: NDArray[np.bool_], above: NDArray[np.bool_]
) -> Floats:
    """Fit ``terms`` (X, P) to each row of ``value`` (D, X), where bounds that are kept cost nothing; (D, P).

    Bounds that are broken join the fit and those that are kept leave it, until nothing changes.
    """
    bound = below | above
    # A row of nothing but bounds starts from their values.
    used = ~bound | bound.all(axis=1, keepdims=True)
    out, least = np.zeros((len(value), terms.shape[1])), np.full(len(value), np.inf)
    for _ in range(_ROUNDS):
        own = weight * used
        normal = np.einsum("xp,dx,xq->dpq", terms, own, terms)
        theta = np.einsum("dpq,xq,dx->dp", np.linalg.pinv(normal, hermitian=True), terms, own * value)
        fitted = theta @ terms.T
        kept = (below & (above | (fitted > value - ROUNDING))) | (above & (fitted < value + ROUNDING))
        loss = np.sum(weight * np.where(kept, 0.0, fitted - value) ** 2, axis=1)
        better = loss < least - ALIKE
        out[better], least[better] = theta[better], loss[better]
        wanted = ~bound | ~kept
        if (wanted == used).all():
            break
        used = np.where(wanted.any(axis=1, keepdims=True), wanted, used)
    return out
