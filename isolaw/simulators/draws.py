"""Random draws that NumPy has too, but several times slower in the form needed here."""

from __future__ import annotations

import numba
import numpy as np

_MANY = 16  # samples; fewer are drawn faster one by one


@numba.njit(cache=True, nogil=True)
def binomial(rng, n, p):  # type: ignore[no-untyped-def]
    """Draw Binomial(n, p_i) for each i, shape (V,); NumPy sets up its method anew for every p.

    >>> binomial(np.random.default_rng(0), 4, np.array([0.0, 1.0])).tolist()
    [0, 4]
    """
    out = np.zeros(p.size, dtype=np.int64)
    for i in range(p.size):
        if n > _MANY:
            out[i] = rng.binomial(n, p[i])
        else:
            for _ in range(n):
                out[i] += rng.random() < p[i]
    return out


@numba.njit(cache=True, nogil=True)
def permutations(rng, count, size):  # type: ignore[no-untyped-def]
    """Draw permutations of 0 … size − 1 one after the other, shape (count, size), by Fisher and Yates.

    >>> sorted(permutations(np.random.default_rng(0), 1, 4)[0].tolist())
    [0, 1, 2, 3]
    """
    out = np.empty((count, size), dtype=np.int64)
    for c in range(count):
        for i in range(size):
            j = int(rng.random() * (i + 1))
            out[c, i] = out[c, j]
            out[c, j] = i
    return out
