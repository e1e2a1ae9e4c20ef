"""A polynomial over (log n, log B_p): how far one run of each configuration is from a smooth surface.

    f(u, v) = Σ_{i ≤ p} α_i u^i   (+ β_1 v + β_2 v² + β_3 u v where B_p varies),    u = log2 n, v = log2 B_p

Its degree p is one for every two measured doublings of n (2 to 4). What it leaves of single runs shows how
runs vary (`isolaw.fits.surface.bootstrap`); rewards are predicted by `isolaw.fits.surface.estimate`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isolaw.fits.selection import Configuration, Floats, varies_in_batch

_OCTAVES_PER_DEGREE = 2.0
_DEGREES = (2, 4)
_RANK = 1e-9  # share of the largest singular value; measured allocations stay far above it


def hat(configurations: Sequence[Configuration]) -> tuple[Floats, int]:
    """Return the projection of rewards on the surface, (N, N), and the degrees of freedom it leaves.

    Least squares is weighted by the number of runs.
    """
    u, v = np.array([c.place for c in configurations]).T
    if not varies_in_batch(u, v):
        v = np.zeros_like(u)
    terms = exponents(u, v)
    values = np.stack([(u - u.mean()) ** i * (v - v.mean()) ** j for i, j in terms], axis=1)
    root = np.sqrt([float(c.runs) for c in configurations])
    return values @ (np.linalg.pinv(values * root[:, None]) * root), len(configurations) - len(terms)


def exponents(u: Floats, v: Floats) -> list[tuple[int, int]]:
    """Return the exponents of (u, v) whose terms these points determine; the highest are left out first."""
    levels, batches = np.unique(u).size, np.unique(v).size
    # Five doublings are five, to whatever the logarithms of their ends are rounded.
    degree = int(np.clip(round(round(float(np.ptp(u)), 9) / _OCTAVES_PER_DEGREE), *_DEGREES))
    out = [(i, 0) for i in range(min(degree, levels - 1) + 1)]
    out += [(0, 1), (1, 1)] if batches > 1 else []
    out += [(0, 2)] if batches > 2 else []
    u, v = u - u.mean(), v - v.mean()
    while np.linalg.matrix_rank(np.stack([u**i * v**j for i, j in out], axis=1), rtol=_RANK) < len(out):
        out.remove(max(out, key=lambda e: (e[0] + e[1], e[0])))
    return out
