"""Draw random numbers several times faster than NumPy does if each draw has its own parameters."""

from __future__ import annotations

import numba
import numpy as np

_FEW = 8  # largest n for which single draws are fastest
_LARGE = 30.0  # mean above which NumPy's method (BTPE) is faster


@numba.njit(cache=True, nogil=True)
def successes(rng, n, p):  # type: ignore[no-untyped-def]
    """Draw once from Binomial(n, p).

    The method is inversion as in NumPy (Kachitvichyanukul and Schmeiser 1988, BINV), but q^n is computed by
    repeated squaring, since the logarithm and exponential in NumPy dominate the time if every draw has its
    own p.
    """
    if n <= _FEW:
        count = 0
        for _ in range(n):
            count += rng.random() < p
        return count
    is_swapped = p > 0.5
    small = 1.0 - p if is_swapped else p
    if n * small >= _LARGE:
        return rng.binomial(n, p)
    q = 1.0 - small
    chance, power, exponent = 1.0, q, n
    while exponent:
        if exponent & 1:
            chance *= power
        power *= power
        exponent >>= 1
    odds = small / q
    u = rng.random()
    k = 0
    while u > chance and k < n:
        u -= chance
        k += 1
        chance *= odds * (n - k + 1) / k
    return n - k if is_swapped else k


@numba.njit(cache=True, nogil=True)
def binomial(rng, n, p):  # type: ignore[no-untyped-def]
    """Draw once from Binomial(n, p_i) for each i, and return an array of shape (V,).

    >>> binomial(np.random.default_rng(0), 4, np.array([0.0, 1.0])).tolist()
    [0, 4]
    """
    draws = np.empty(p.size, dtype=np.int64)
    for i in range(p.size):
        draws[i] = successes(rng, n, p[i])
    return draws


@numba.njit(cache=True, nogil=True)
def permutations(rng, count, size):  # type: ignore[no-untyped-def]
    """Return random permutations of 0 … size − 1 (Fisher and Yates), as an array of shape (count, size).

    >>> sorted(permutations(np.random.default_rng(0), 1, 4)[0].tolist())
    [0, 1, 2, 3]
    """
    rows = np.empty((count, size), dtype=np.int64)
    for row in range(count):
        for i in range(size):
            j = int(rng.random() * (i + 1))
            rows[row, i] = rows[row, j]
            rows[row, j] = i
    return rows
