"""From an avg@16 histogram to success probabilities, and back."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from isolaw.simulators import problems

X = np.arange(17)


def blurred(p: np.ndarray) -> tuple[float, ...]:
    """The histogram that problems with these p would have, without chance."""
    return tuple(binom.pmf(X, 16, p[:, None]).mean(axis=0))


KNOWN = {
    "easy": np.linspace(0.3, 0.6, 200),
    "hard": 0.0625 * np.linspace(0, 1, 200) ** 2,
    "two kinds": np.repeat([0.1, 0.9], 50),
    "all": np.linspace(0.001, 0.999, 300),
}


@pytest.mark.parametrize("name", KNOWN)
def test_problems_have_the_histogram_again(name: str) -> None:
    shares = blurred(KNOWN[name])
    p, weights = problems._distribution(shares)
    assert weights.sum() == pytest.approx(1)
    assert weights.min() >= 0
    np.testing.assert_allclose(binom.pmf(X[:, None], 16, p) @ weights, shares, rtol=0, atol=3e-3)
    rng = np.random.default_rng(0)
    sampled = problems.sample_histogram(shares, rng, 200_000)
    again = np.bincount(rng.binomial(16, sampled), minlength=17) / sampled.size
    np.testing.assert_allclose(again, shares, rtol=0, atol=3e-3 + 4 * np.sqrt(0.25 / sampled.size))


@pytest.mark.parametrize("name", KNOWN)
def test_the_blur_of_sixteen_samples_is_taken_out(name: str) -> None:
    """The spread of p is that of the true p; counts over 16 alone would add the binomial's."""
    truth, shares = KNOWN[name], blurred(KNOWN[name])
    p, weights = problems._distribution(shares)
    mean = weights @ p
    assert mean == pytest.approx(truth.mean(), abs=1e-3)
    assert problems.histogram_mean(shares) == pytest.approx(truth.mean())
    deviation = np.sqrt(weights @ (p - mean) ** 2)
    counts = np.sqrt(np.dot(shares, (X / 16 - truth.mean()) ** 2))
    assert abs(deviation - truth.std()) < 0.15 * (counts - truth.std()) + 1e-3


def test_a_rounded_histogram_is_one() -> None:
    shares = [round(s, 4) for s in blurred(KNOWN["all"])]
    assert problems._histogram_fault(shares) == ""
    assert problems._distribution(tuple(shares))[1].sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([1.0], "17 shares"),
        ([0.5, *15 * [0.0], 0.4], "they sum to 0.9"),
        ([100 / 17] * 17, "between 0 and 1"),
        ([-0.5, 1.0, 0.5, *14 * [0.0]], "between 0 and 1"),
        ([float("nan"), *16 * [0.0]], "between 0 and 1"),
        ([0.0] * 17, "they sum to 0"),
    ],
    ids=str,
)
def test_what_is_no_histogram(shares: list[float], words: str) -> None:
    assert words in problems._histogram_fault(shares)
