"""Metrics against brute force."""

from __future__ import annotations

import itertools
import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw import metrics
from isolaw.errors import InputError

CASES = [(K, c, k) for K in range(1, 9) for c in range(K + 1) for k in range(1, K + 1)]


@pytest.mark.parametrize(
    ("kind", "of_subset"), [("best", max), ("worst", min), ("avg", lambda s: sum(s) / len(s))]
)
def test_equals_the_mean_over_all_subsets(kind: str, of_subset) -> None:
    for K, c, k in CASES:
        answers = [1] * c + [0] * (K - c)
        expected = np.mean([of_subset(s) for s in combinations(answers, k)])
        got = metrics.per_problem(f"{kind}@{k}", [c], K)[0]
        assert got == pytest.approx(expected, abs=1e-12), (K, c, k)


@given(st.data())
def test_ordered_mirrored_and_averaged(data: st.DataObject) -> None:
    K = data.draw(st.integers(1, 2000))
    k = data.draw(st.integers(1, K))
    correct = np.array(data.draw(st.lists(st.integers(0, K), min_size=1, max_size=20)))
    best, avg, worst = (metrics.per_problem(f"{m}@{k}", correct, K) for m in ("best", "avg", "worst"))
    assert np.all((worst <= avg + 1e-12) & (avg <= best + 1e-12))
    assert np.all((worst >= 0) & (best <= 1))
    mirrored = metrics.per_problem(f"worst@{k}", K - correct, K)
    np.testing.assert_allclose(1 - best, mirrored, atol=1e-12)
    assert metrics.evaluate(f"best@{k}", correct, K) == pytest.approx(best.mean())


@pytest.mark.parametrize("name", ["avg@0", "avg", "mean@4", "best@-1", "best@4x", "avg@04"])
def test_unknown_names(name: str) -> None:
    assert metrics.parse(name) is None
    with pytest.raises(InputError, match=name):
        metrics.per_problem(name, [1], 4)


@pytest.mark.parametrize(("metric", "correct"), [("best@5", [1]), ("avg@4", [5]), ("avg@4", [-1])])
def test_counts_that_cannot_be(metric: str, correct: list[int]) -> None:
    with pytest.raises(InputError):
        metrics.per_problem(metric, correct, 4)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10), st.integers(1, 6))
def test_expectations_by_enumeration(p: list[float], k: int) -> None:
    """Over all 2^k outcomes of k independent samples."""
    expected = dict.fromkeys(("avg", "best", "worst"), 0.0)
    for x in p:
        for outcome in itertools.product((0, 1), repeat=k):
            probability = math.prod(x if right else 1 - x for right in outcome)
            expected["avg"] += probability * sum(outcome) / k
            expected["best"] += probability * max(outcome)
            expected["worst"] += probability * min(outcome)
    for kind, total in expected.items():
        assert metrics.expected(f"{kind}@{k}", p) == pytest.approx(total / len(p), abs=1e-12)


def test_expectations_are_what_samples_estimate() -> None:
    p = np.array([0.0, 0.1, 0.5, 1.0])
    correct = np.random.default_rng(0).binomial(16, p, size=(20_000, 4))
    for metric in ("avg@4", "best@4", "worst@4"):
        means = metrics.per_problem(metric, correct, 16).mean(axis=1)
        error = means.std() / np.sqrt(means.size)
        assert means.mean() == pytest.approx(metrics.expected(metric, p), abs=4 * error)


def test_expectation_of_an_unknown_metric() -> None:
    with pytest.raises(InputError, match="expected avg@k, best@k or worst@k"):
        metrics.expected("reward", [0.5])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_landscape_by_the_definitions(p: list[float]) -> None:
    got = metrics.landscape(p)
    assert got.zero_fraction == pytest.approx(sum(x < 0.02 for x in p) / len(p))
    mean_difference = sum(abs(x - y) for x in p for y in p) / len(p) ** 2
    mean = sum(p) / len(p)
    assert got.gini == pytest.approx(mean_difference / (2 * mean) if mean > 0 else 0.0, abs=1e-9)


def test_gini_of_known_sets() -> None:
    assert metrics.landscape([0.4] * 7).gini == pytest.approx(0)
    assert metrics.landscape([0.0] * 9 + [1.0]).gini == pytest.approx(0.9)
