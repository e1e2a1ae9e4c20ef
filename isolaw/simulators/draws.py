"""Random draws that NumPy has too, but several times slower in the form needed here."""

from __future__ import annotations

import numba
import numpy as np

_FEW = 8  # rollouts that are drawn fastest one by one
_LARGE = 30.0  # mean from which NumPy's method (BTPE) is the faster one


@numba.njit(cache=True, nogil=True)
def successes(rng, n, p):  # type: ignore[no-untyped-def]
    """Draw from Binomial(n, p).

    Inversion as in NumPy (Kachitvichyanukul and Schmeiser 1988, BINV), with q^n by squaring rather than by
    a logarithm and an exponential, which take most of the time where every draw has a p of its own.
    """
    if n <= _FEW:
        right = 0
        for _ in range(n):
            right += rng.random() < p
        return right
    swapped = p > 0.5
    small = 1.0 - p if swapped else p
    if n * small >= _LARGE:
        return rng.binomial(n, p)
    q = 1.0 - small
    chance, power, left = 1.0, q, n
    while left:
        if left & 1:
            chance *= power
        power *= power
        left >>= 1
    odds = small / q
    u = rng.random()
    k = 0
    while u > chance and k < n:
        u -= chance
        k += 1
        chance *= odds * (n - k + 1) / k
    return n - k if swapped else k


@numba.njit(cache=True, nogil=True)
def binomial(rng, n, p):  # type: ignore[no-untyped-def]
    """Draw Binomial(n, p_i) for each i, shape (V,).

    >>> binomial(np.random.default_rng(0), 4, np.array([0.0, 1.0])).tolist()
    [0, 4]
    """
    out = np.empty(p.size, dtype=np.int64)
    for i in range(p.size):
        out[i] = successes(rng, n, p[i])
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
