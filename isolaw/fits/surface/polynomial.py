"""The surface method: reward as a smooth function of log n, and its ridge n*(C).

At each compute the learning curves give a reward for each configuration; runs being noisy, these
scatter about a smooth function of the allocation,

    r_c(C) = f_C(u, v) + δ_c,    u = log2 n, v = log2 B_p
    f_C = Σ_{i ≤ p} α_i(C) u^i   (+ β_1(C) v + β_2(C) v² + β_3(C) u v where B_p varies)

a polynomial in log n of one degree for every two doublings that were measured (2 to 4): a quadratic
would be biased, since reward falls faster on the side where steps run out. n*(C) is the continuous
argmax of f_C over the n measured at C; where that is an end of them, it is a bound.

It is the ridge of a mixed model in two stages: all dependence on C is in the curves, and what a run
has of its own is in δ (`isolaw.fits.surface.bootstrap`), whose variance is pooled over configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from isolaw.fits.curves.families import Curves, fit_curves
from isolaw.fits.selection import Configuration, Floats

_OCTAVES_PER_DEGREE = 2.0
_DEGREES = (2, 4)
_FINE = 8  # points for each doubling of n, refined by a parabola
_FINE_B = 2
FLAT = 1e-9  # of the reward: a surface that varies less is flat, but for rounding
_RANK = (
    1e-9  # of the largest singular value: measured allocations are far from this, what cancels is far below
)
LEAST_LEVELS = 3


def highest(values: Floats, axis: int) -> NDArray[np.int64]:
    """Return the index of the largest value along an axis; of equals, but for rounding, the first.

    >>> int(highest(np.array([0.1, 0.3, 0.1 + 0.2]), 0))
    1
    """
    top = values.max(axis=axis, keepdims=True)
    return np.asarray((values >= top - FLAT * np.abs(top)).argmax(axis=axis))


@dataclass(frozen=True)
class Terms:
    """The polynomial's terms, as exponents of (u, v), about a centre."""

    centre: tuple[float, float]
    exponents: tuple[tuple[int, int], ...]

    def __call__(self, log2_n: Floats, log2_b: Floats) -> Floats:
        """Return the terms at points (G,), as (G, T)."""
        u, v = log2_n - self.centre[0], log2_b - self.centre[1]
        return np.stack([u**i * v**j for i, j in self.exponents], axis=1)

    @classmethod
    def of(cls, log2_n: Floats, log2_b: Floats) -> Terms:
        """Choose the terms that configurations at these points determine, the highest left out first."""
        levels = np.unique(log2_n)
        octaves = float(np.ptp(levels)) if levels.size else 0.0
        # Five doublings are five whatever the logarithms of their ends are rounded to.
        degree = int(np.clip(round(round(octaves, 9) / _OCTAVES_PER_DEGREE), *_DEGREES))
        exponents = [(i, 0) for i in range(min(degree, levels.size - 1) + 1)]
        batches = np.unique(log2_b).size
        exponents += [(0, 1)] if batches > 1 else []
        exponents += [(0, 2)] if batches > 2 else []
        exponents += [(1, 1)] if batches > 1 else []
        centre = (float(log2_n.mean()), float(log2_b.mean())) if log2_n.size else (0.0, 0.0)
        while exponents:
            chosen = cls(centre, tuple(exponents))
            if np.linalg.matrix_rank(chosen(log2_n, log2_b), rtol=_RANK) == len(exponents):
                return chosen
            exponents.remove(max(exponents, key=lambda e: (e[0] + e[1], e[0])))
        return cls(centre, ((0, 0),))


def _positions(configurations: Sequence[Configuration]) -> tuple[Floats, Floats]:
    n = np.log2([float(c.rollouts_per_problem) for c in configurations])
    return n, np.log2([float(c.problems_per_batch) for c in configurations])


def _inverse(terms: Terms, configurations: Sequence[Configuration], fixed_b: bool) -> Floats:
    """The map from rewards to coefficients, (T, N): least squares weighted by the number of runs."""
    n, b = _positions(configurations)
    if fixed_b:
        b = np.zeros_like(n)
    root = np.sqrt([float(c.runs) for c in configurations])
    return np.asarray(np.linalg.pinv(terms(n, b) * root[:, None]) * root)


def hat(configurations: Sequence[Configuration]) -> tuple[Floats, int]:
    """Return the projection of rewards on the surface, (N, N), and the degrees of freedom it leaves."""
    n, b = _plane(configurations)
    terms = Terms.of(n, b)
    projection = terms(n, b) @ _inverse(terms, configurations, not b.any())
    return projection, len(configurations) - len(terms.exponents)


def _plane(configurations: Sequence[Configuration]) -> tuple[Floats, Floats]:
    """(u, v) of configurations; v is 0 where B_p does not vary on its own (fixed B_p, or fixed B)."""
    n, b = _positions(configurations)
    if np.unique(b).size == 1 or np.unique(np.round(n + b, 9)).size == 1:
        b = np.zeros_like(n)
    return n, b


@dataclass(frozen=True)
class Surface:
    """Rewards of 1 + D draws over allocations, at X computes.

    Attributes
    ----------
    coefficients
        (1 + D, X, T); zero where ``defined`` is not.
    terms
        the polynomial's terms.
    defined
        whether at least three n were measured at a compute, (X,).
    grid
        points (u, v) among which the ridge is sought, each (G,).
    inside
        which of them lie among what was measured at a compute, (X, G).
    """

    coefficients: Floats
    terms: list[Terms]
    defined: NDArray[np.bool_]
    grid: tuple[Floats, Floats]
    inside: NDArray[np.bool_]
    plane: tuple[Floats, Floats]
    measured: NDArray[np.bool_]

    @property
    def estimate(self) -> Surface:
        """The surface of the data alone."""
        return replace(self, coefficients=self.coefficients[:1])

    def at(self, log2_n: Floats, log2_b: Floats) -> Floats:
        """Return rewards at points (G,), as (1 + D, X, G)."""
        out = np.empty((*self.coefficients.shape[:2], log2_n.size))
        for x, terms in enumerate(self.terms):
            basis = terms(log2_n, log2_b)
            out[:, x] = self.coefficients[:, x, : basis.shape[1]] @ basis.T
        return out

    def ridge(self) -> Ridge:
        """Return where each draw's surface is highest."""
        u, v = self.grid
        draws, size = self.coefficients.shape[:2]
        log2_n, log2_b, reward = (np.full((draws, size), np.nan) for _ in range(3))
        below, above = (np.ones((draws, size), dtype=bool) for _ in range(2))
        on_grid: dict[int, Floats] = {}  # computes at which the same were measured share their terms
        for x in np.flatnonzero(self.defined):
            inside = np.flatnonzero(self.inside[x])
            terms = self.terms[x]
            if id(terms) not in on_grid:
                on_grid[id(terms)] = terms(u[inside], v[inside]).T
            coefficients = self.coefficients[:, x, : len(terms.exponents)]
            values = coefficients @ on_grid[id(terms)]
            best = highest(values, 1)
            ends = self.plane[0][self.measured[:, x]]

            def value(n: Floats, b: Floats, terms: Terms = terms, a: Floats = coefficients) -> Floats:
                return np.asarray(np.einsum("dt,dt->d", a, terms(n, b)))

            n, b = u[inside][best], v[inside][best]
            if np.ptp(v):
                b, _ = _refined(partial(value, n), b, 1 / _FINE_B, v[inside].min(), v[inside].max())
            along = partial(lambda value, b, n: value(n, b), value, b)
            log2_b[:, x] = b
            log2_n[:, x], reward[:, x] = _refined(along, n, 1 / _FINE, ends.min(), ends.max())
            top, bottom = values.max(axis=1), values.min(axis=1)
            flat = top - bottom <= FLAT * np.maximum(np.abs(top), np.abs(bottom))
            below[:, x] = flat | (log2_n[:, x] >= ends.max() - 1e-9)
            above[:, x] = flat | (log2_n[:, x] <= ends.min() + 1e-9)
        return Ridge(log2_n, log2_b, reward, below, above)


@dataclass(frozen=True)
class Ridge:
    """n* of 1 + D draws at X computes, each (1 + D, X).

    Attributes
    ----------
    log2_n, log2_b
        the argmax; NaN where fewer than three n were measured; ``log2_b`` is 0 where B_p was held.
    reward
        the surface there.
    below, above
        where log2_n is only a lower (upper) bound, being an end of what was measured; both where it is not
        known: it is not defined, or the surface is flat.
    """

    log2_n: Floats
    log2_b: Floats
    reward: Floats
    below: NDArray[np.bool_]
    above: NDArray[np.bool_]


def _refined(
    value: Callable[[Floats], Floats], at: Floats, step: float, low: float, high: float
) -> tuple[Floats, Floats]:
    """Move each argmax to the top of the parabola through it and its neighbours; return it and its value."""
    before, here, after = value(at - step), value(at), value(at + step)
    bend = before - 2 * here + after
    bends = bend < -FLAT * step**2 * np.abs(here)  # by more than rounding: else there is no top to move to
    moved = np.where(bends, 0.5 * (before - after) / np.where(bends, bend, 1.0), 0.0)
    top = np.clip(at + step * np.clip(moved, -1, 1), low, high)
    reward = value(top)
    better = reward >= here
    return np.where(better, top, at), np.where(better, reward, here)


def fit_surface(
    configurations: Sequence[Configuration], values: Floats, measured: NDArray[np.bool_]
) -> Surface:
    """Fit a surface at each compute.

    Parameters
    ----------
    configurations
        N of them.
    values
        rewards of their curves, (1 + D, N, X).
    measured
        which of them compete at a compute, (N, X).
    """
    n, b = _plane(configurations)
    size = values.shape[2]
    fine_n = np.arange(n.min(), n.max() + 1e-9, 1 / _FINE)
    fine_n = np.append(fine_n, n.max()) if n.max() - fine_n[-1] > 1e-9 else fine_n
    fine_b = np.arange(b.min(), b.max() + 1e-9, 1 / _FINE_B)
    u, v = (part.ravel() for part in np.meshgrid(fine_n, fine_b, indexing="ij"))
    most = len(Terms.of(n, b).exponents)
    coefficients = np.zeros((values.shape[0], size, most))
    inside = np.zeros((size, u.size), dtype=bool)
    defined = np.zeros(size, dtype=bool)
    all_terms: list[Terms] = []
    known: dict[bytes, tuple[Terms, Floats, NDArray[np.bool_]]] = {}
    for x in range(size):
        mask = measured[:, x]
        key = mask.tobytes()
        if key not in known:
            chosen = [c for c, m in zip(configurations, mask, strict=True) if m]
            terms = Terms.of(n[mask], b[mask])
            inverse = _inverse(terms, chosen, not b.any()) if chosen else np.zeros((1, 0))
            known[key] = terms, inverse, _inside(u, v, n[mask], b[mask])
        terms, inverse, inside[x] = known[key]
        all_terms.append(terms)
        defined[x] = np.unique(n[mask]).size >= LEAST_LEVELS
        coefficients[:, x, : len(terms.exponents)] = values[:, mask, x] @ inverse.T
    return Surface(coefficients, all_terms, defined, (u, v), inside, (n, b), measured)


def _inside(u: Floats, v: Floats, n: Floats, b: Floats) -> NDArray[np.bool_]:
    """Points among the measured ones: within their n and B_p, and no larger or smaller batch."""
    if not n.size:
        return np.zeros(u.size, dtype=bool)
    out = (u >= n.min() - 1e-9) & (u <= n.max() + 1e-9) & (v >= b.min() - 1e-9) & (v <= b.max() + 1e-9)
    return np.asarray(out & (u + v <= (n + b).max() + 1e-9) & (u + v >= (n + b).min() - 1e-9))


def surface_through(
    configurations: list[Configuration], curves: list[Curves], compute: NDArray[np.float64]
) -> Surface:
    """Return the surface through learning curves, at ``compute`` (X,)."""
    values = np.stack([curve(compute) for curve in curves], axis=1)
    measured = np.array([c.covers(compute) for c in configurations])
    return fit_surface(configurations, values, measured)


def surface_of(configurations: list[Configuration], family: str, compute: NDArray[np.float64]) -> Surface:
    """Return the surface of the data alone, at ``compute`` (X,)."""
    curves = [fit_curves(c.checkpoints, c.mean[None], c.looks[None], family) for c in configurations]
    return surface_through(configurations, curves, compute)
