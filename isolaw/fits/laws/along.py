"""The parameters of a law, by least squares on n*, in every draw.

    θ = argmin Σ_C c(C) (log2 n*(C) − log2 law(C; θ))²

where c = −∂²r/∂(log2 n)² is the curvature of the surface at n*, the same in every draw: the sum is, to second
order, the reward that the law loses on average over log C. A censored point is a bound: it pulls only a
law that is on its wrong side.

Which law it is, is asked of the rewards (`isolaw.fits.laws.compare`). The parameters of greatest likelihood
that come with the answer are not those to quote: on simulated truth they put n* half a doubling too low, and
these do not (docs/statistics.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.frontier.trace import Path
from isolaw.fits.laws.compare import LAWS, derivatives
from isolaw.fits.laws.logistic import ALIKE, ROUNDING, fit_logistic
from isolaw.fits.selection import Floats
from isolaw.fits.surface.polynomial import FLAT, Surface

_ROUNDS = 12
_LEAST = 1e-3


def along(name: str, surface: Surface, path: Path) -> Floats:
    """Return θ of the law called ``name`` in each draw, (1 + D, P); of the logistic that of row 0, (1, 4).

    The law that is linear in n is fitted in n, its errors relative to n*, which is log2 n* to first order.

    Parameters
    ----------
    surface
        over n alone, defined at some compute.
    path
        its ridge.
    """
    x = np.log10(path.compute)
    if name == "logistic":  # whose draws are those of the document's b, L, k, x0
        law = fit_logistic(x, path.log2_n[:1], path.below[:1], path.above[:1])
        return np.stack([law.b, law.L, np.log(law.k), law.x0], axis=1)
    weight, value = np.broadcast_to(_curvature(surface, path), path.log2_n.shape), path.log2_n
    if name == "linear":
        value = np.exp2(value)
        weight = weight / value**2
    return _least_squares(x[:, None] ** np.arange(LAWS[name][0]), value, weight, path.below, path.above)


def _curvature(surface: Surface, path: Path) -> Floats:
    """c at each compute, over its largest; (X,). It is nowhere nothing, so that a law always has a fit."""
    known = np.flatnonzero(surface.defined)
    bend = np.einsum(
        "kt,kt->k", derivatives(surface, known, path.log2_n[0, known], 2), surface.coefficients[0, known]
    )
    c = np.zeros(path.compute.size)
    c[known] = np.maximum(-bend, 0.0)
    return np.maximum(c / c.max(), _LEAST) if c.max() > FLAT else np.ones(c.size)


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
