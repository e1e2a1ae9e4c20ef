"""Dead groups: the unbiased estimate, and intervals that hold the truth whatever the pass rates are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from isolaw.errors import DataError, InputError
from isolaw.fits.studies.dead_groups import dead_groups, read_counts

pytestmark = pytest.mark.numbers

ROOT = Path(__file__).parents[3]
K = 16
TRUTHS: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "easy": lambda rng, size: rng.beta(2.0, 3.0, size),
    "many unsolvable": lambda rng, size: np.where(rng.random(size) < 0.3, 0.0, rng.beta(1, 2, size)),
    "two kinds": lambda rng, size: np.where(rng.random(size) < 0.5, 0.1, 0.9),  # no beta distribution
}
NIGHT = [pytest.mark.slow, pytest.mark.nightly]


def share(p: np.ndarray, n: int) -> float:
    return float(np.mean(p**n + (1 - p) ** n))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["many unsolvable", *(pytest.param(name, marks=NIGHT) for name in ("easy", "two kinds"))]
)
def test_intervals_hold_the_truth_below_and_above_the_samples(name: str) -> None:
    sizes, repetitions = (2, 8, 16, 32, 128), 40
    rng = np.random.default_rng(0)
    every = TRUTHS[name](rng, 200_000)
    held = dict.fromkeys(sizes, 0)
    means = dict.fromkeys(sizes, 0.0)
    plugged = dict.fromkeys(sizes, 0.0)
    for seed in range(repetitions):
        p = TRUTHS[name](rng, 300)
        found = dead_groups(rng.binomial(K, p), K, sizes, seed)
        for own in found.sizes:
            n = own.rollouts_per_problem
            assert own.dead.value is not None
            assert own.dead.interval is not None
            low, high = own.dead.interval
            held[n] += (low or 0.0) <= share(every, n) <= (1.0 if high is None else high)
            means[n] += own.dead.value / repetitions
            plugged[n] += own.plugged_in / repetitions
            assert own.wrong + own.right == pytest.approx(own.dead.value, abs=0.25 if n > K else 1e-9)
    assert min(held.values()) >= 0.85 * repetitions
    for n in (2, 8, 16):  # no bias where n ≤ k; to put c / k for p has one
        assert means[n] == pytest.approx(share(every, n), abs=0.01)
        assert plugged[n] > share(every, n) + 0.005


def test_sixteen_samples_tell_the_dead_groups_of_all_samples() -> None:
    """Real evaluations: a part of the samples forecasts n = 32, which all of them measure."""
    correct, samples = read_counts(ROOT / "examples" / "data" / "real-arithmetic-problems.parquet")
    assert (correct.size, samples.min()) == (315, 48)
    (measured,) = dead_groups(correct, samples, [32]).sizes
    first = np.random.default_rng(0).hypergeometric(correct, samples - correct, K)
    (forecast,) = dead_groups(first, K, [32]).sizes
    assert (measured.basis, forecast.basis) == ("unbiased", "model")
    assert forecast.dead.value == pytest.approx(measured.dead.value, abs=0.03)
    assert forecast.dead.interval is not None
    low, high = forecast.dead.interval
    assert low is not None
    assert high is not None
    assert low <= (measured.dead.value or 0.0) <= high


def test_closed_forms() -> None:
    found = dead_groups([0, 1, 2], [2, 2, 2], [2])
    assert found.sizes[0].dead.value == pytest.approx(2 / 3)
    assert (found.sizes[0].wrong, found.sizes[0].right) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert found.sizes[0].per_thousand_rollouts == pytest.approx(500 / 3)


def test_tables_and_what_is_none(tmp_path: Path) -> None:
    split = tmp_path / "counts.jsonl"
    split.write_text(
        '{"id": "a", "samples": 16, "correct": 0}\n{"id": "b", "samples": 16, "correct": 3}\n'
        '{"id": "a", "samples": 128, "correct": 5}\n'
    )
    assert [own.tolist() for own in read_counts(split)] == [[0, 3], [16, 16]]
    table = tmp_path / "own.csv"
    columns = {"problem_id": ["x", "x", "y", "y"], "step": [0, 0, 0, 9], "correct": [1, 2, 0, 4]}
    pd.DataFrame({**columns, "samples": 4}).to_csv(table, index=False)
    assert [own.tolist() for own in read_counts(table)] == [[3, 0], [8, 4]]
    table.write_text("correct,samples\n1,4\n5,4\n")
    with pytest.raises(DataError, match=r"1 of 2 rows .*, e\.g\. correct = 5 of samples = 4 \(row 2\)"):
        read_counts(table)
    table.write_text("right,samples\n1,4\n")
    with pytest.raises(DataError, match="no column correct; found right, samples"):
        read_counts(table)
    with pytest.raises(InputError, match="groups of 1"):
        dead_groups([1], 4, [1])
