"""A polynomial over (log n, log B_p): how far one run of each configuration lies from a smooth surface.

    f(u, v) = Σ_{i ≤ p} α_i u^i   (+ β_1 v + β_2 v² + β_3 u v where B_p varies),    u = log2 n, v = log2 B_p

of one degree for every two doublings of n that were measured (2 to 4). What it leaves of single runs stands
for how runs vary (`isolaw.fits.surface.bootstrap`); rewards are predicted by `isolaw.fits.surface.estimate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isolaw.fits.selection import Configuration, Floats

_OCTAVES_PER_DEGREE = 2.0
_DEGREES = (2, 4)
# Of the largest singular value: measured allocations are far from this, what cancels is far below.
_RANK = 1e-9


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
