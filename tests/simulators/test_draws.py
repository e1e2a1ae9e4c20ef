"""Compiled draws have the distributions of NumPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from isolaw.simulators.draws import binomial, permutations


@pytest.mark.parametrize("n", [1, 4, 8, 9, 16, 63, 64, 200, 2048])
def test_binomial(n: int) -> None:
    """All ways to draw: one by one, inversion from either side, and NumPy's own for a large mean."""
    each, ps = 40_000, [0.0, 1e-4, 0.02, 0.3, 0.5, 0.9, 0.999, 1.0]
    drawn = binomial(np.random.default_rng(n), n, np.repeat(ps, each)).reshape(len(ps), each)
    assert drawn.min() >= 0
    assert drawn.max() <= n
    for group, p in zip(drawn, ps, strict=True):
        counts = np.bincount(group, minlength=n + 1)
        expected = stats.binom.pmf(np.arange(n + 1), n, p) * each
        often = expected > 5
        seen, due = (
            np.append(counts[often], counts[~often].sum()),
            np.append(expected[often], expected[~often].sum()),
        )
        assert seen[-1] <= due[-1] + 5 * np.sqrt(due[-1]) + 1e-6
        if often.sum() > 1:
            assert stats.chi2.sf(np.sum((seen - due)[:-1] ** 2 / due[:-1]), often.sum() - 1) > 1e-3


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_permutation_is_equally_likely(size: int) -> None:
    drawn = permutations(np.random.default_rng(0), 24_000, size)
    assert np.all(np.sort(drawn, axis=1) == np.arange(size))
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert counts.size == math.factorial(size)
    assert size == 1 or stats.chisquare(counts).pvalue > 1e-3


def test_permutations_do_not_depend_on_the_number_of_calls() -> None:
    at_once = permutations(np.random.default_rng(0), 5, 30)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(at_once, np.concatenate([permutations(rng, k, 30) for k in (2, 0, 3)]))
