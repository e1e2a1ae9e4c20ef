"""Compiled draws have the distributions of NumPy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from isolaw.simulators.draws import binomial, permutations


@pytest.mark.parametrize("n", [1, 4, 16, 200])
def test_binomial(n: int) -> None:
    p = np.repeat([0.0, 0.02, 0.3, 0.9, 1.0], 20_000)
    for group, q in zip(binomial(np.random.default_rng(n), n, p).reshape(5, -1), p[::20_000], strict=True):
        counts = np.bincount(group, minlength=n + 1)
        expected = stats.binom.pmf(np.arange(n + 1), n, q) * group.size
        likely = expected > 5
        assert counts[~likely].sum() <= expected[~likely].sum() + 5 * np.sqrt(expected[~likely].sum()) + 1e-9
        if likely.sum() > 1:
            chi2 = np.sum((counts - expected)[likely] ** 2 / expected[likely])
            assert stats.chi2.sf(chi2, likely.sum()) > 1e-3


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_permutation_is_equally_likely(size: int) -> None:
    drawn = permutations(np.random.default_rng(0), 24_000, size)
    assert np.all(np.sort(drawn, axis=1) == np.arange(size))
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert counts.size == math.factorial(size)
    assert size == 1 or stats.chisquare(counts).pvalue > 1e-3


def test_permutations_do_not_depend_on_how_they_are_asked_for() -> None:
    at_once = permutations(np.random.default_rng(0), 5, 30)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(at_once, np.concatenate([permutations(rng, k, 30) for k in (2, 0, 3)]))
