"""Advice from published results: what the table ships, and what is recommended from it."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import curve_fit
from scipy.stats import t

from benchmarks import published as made
from isolaw import Advice, advise
from isolaw.design.advice import Caveat
from isolaw.design.published import FILE, SOURCES, Basis
from isolaw.errors import SpecError

DATA = Path(__file__).parents[2] / "examples" / "data"
BY_KEY = {source.key: source for source in SOURCES}
BUDGETS = [int(budget) for budget in np.geomspace(300, 1e9, 60)]
KNOWN = {"difficulty": "easy", "model_size": 7.0}


def shipped(*keys: str) -> list[dict[str, str]]:
    with FILE.open() as file:
        return [row for row in csv.DictReader(file) if row["source"] in keys]


def same(found: list[dict[str, str]], expected: list[dict[str, str]], rel: float) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a["source"] == b["source"]
        for key in set(a) - {"source"}:
            assert bool(a[key]) == bool(b[key]), (a, b)
            if a[key]:
                assert float(a[key]) == pytest.approx(float(b[key]), rel=rel), (key, a, b)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_table_is_that_of_the_figures() -> None:
    """If this fails: python -m benchmarks.published."""
    keys = [source.key for source in SOURCES if source.basis is not Basis.RUNS]
    same(shipped(*keys), made.written(made.figures()), 2e-3)


@pytest.mark.numbers
@pytest.mark.slow
def test_the_table_is_that_of_the_runs() -> None:
    """If this fails: python -m benchmarks.published."""
    keys = [source.key for source in SOURCES if source.basis is Basis.RUNS]
    same(shipped(*keys), made.written(made.fits()), 0.1)  # n* is on eighths of a doubling


def test_sources_are_what_the_files_show() -> None:
    columns = {
        "isocompute-joint": ("nstar_joint_easy.csv", "n_star"),
        "isocompute-32": ("nstar_fixedBp_easy.csv", "n_star"),
        "isocompute-curves": ("frontier_curves_appx_fixBprob_easy.csv", "n"),
        "tan": ("tan_rollout_n_base.csv", "rollout_n"),
    }
    for key, (file, column) in columns.items():
        n = pd.read_csv(DATA / file)[column]
        assert (n.min(), n.max()) == BY_KEY[key].n
    curves = pd.read_csv(DATA / columns["isocompute-curves"][0])
    assert tuple(sorted(curves["B_p"].unique())) == BY_KEY["isocompute-curves"].batches
    runs = pd.read_parquet(DATA / "real-arithmetic.parquet")
    assert set(runs["problems_per_batch"]) == set(BY_KEY["arithmetic-hard"].batches)
    assert (runs["rollouts_per_problem"].min(), runs["rollouts_per_problem"].max()) == BY_KEY[
        "arithmetic-hard"
    ].n
    assert {row["source"] for row in shipped(*BY_KEY)} == set(BY_KEY)


@pytest.mark.parametrize(
    ("key", "file", "column"),
    [
        ("isocompute-joint", "nstar_joint_easy.csv", "compute_rollouts_snapped"),
        ("isocompute-32", "nstar_fixedBp_easy.csv", "compute_rollouts"),
    ],
)
def test_points_by_another_least_squares(key: str, file: str, column: str) -> None:
    """n* and its prediction interval, from scipy: θ by least squares, the interval by the delta method."""
    table = pd.read_csv(DATA / file)
    x, y = np.log10(table[column].to_numpy()), np.log2(table["n_star"].to_numpy())

    def law(x: np.ndarray, b: float, rise: float, k: float, x0: float) -> np.ndarray:
        return b + rise / (1 + np.exp(-k * (x - x0)))

    theta, covariance = curve_fit(law, x, y, [3.0, 6.0, 6.0, 6.0])
    for compute in (1.3e6, 2.2e6, 5e6):
        at = math.log10(compute)
        jacobian = np.array([
            (law(at, *(theta + step)) - law(at, *(theta - step))) / 2e-5 for step in np.eye(4) * 1e-5
        ])  # fmt: skip
        noise = np.sum((y - law(x, *theta)) ** 2) / (y.size - 4)
        half = t.ppf(0.975, y.size - 4) * math.sqrt(jacobian @ covariance @ jacobian + noise)
        n = BY_KEY[key].at(compute).n
        assert n.value == pytest.approx(2 ** law(at, *theta), rel=0.04)
        assert n.low == pytest.approx(2 ** (law(at, *theta) - half), rel=0.05)
        assert n.high == pytest.approx(2 ** (law(at, *theta) + half), rel=0.05)


def test_curves_cross_where_they_are_published_to() -> None:
    table = pd.read_csv(DATA / "frontier_crossovers_easy.csv")
    table = table[(table["figure"] == "appx_fixBprob_easy") & (table["crossover_compute_rollouts"] > 8e5)]
    assert len(table) > 10
    for row in table.itertuples():
        source, compute = BY_KEY["isocompute-curves"], row.crossover_compute_rollouts
        assert source.at(compute / 1.09, row.B_p).n.value == pytest.approx(row.n_from)
        assert source.at(compute * 1.09, row.B_p).n.value == pytest.approx(row.n_to)


def test_the_real_sweep_crosses_where_its_means_do() -> None:
    """Tan et al.: at the top of the ranges shared by n = 4 and 8, and by 8 and 16, the means are alike."""
    tan = BY_KEY["tan"]
    assert 4 < tan.at(1.6e5).n.value < 8
    assert 8 < tan.at(2.6e5).n.value < 16
    assert tan.range()[1] < 8.6e5  # beyond, n = 32 alone was measured


def counting(found: Advice) -> list[str]:
    return [reading.source.key for reading in found.readings if reading.counts]


def test_the_starting_point_is_within_its_range_and_budget() -> None:
    for budget in BUDGETS:
        found = advise(budget, **KNOWN)
        assert (found.start is None) == (not counting(found))
        if found.start is None:
            continue
        a, n = found.start.allocation, found.start.n
        assert 0 < a.compute <= budget < a.compute + a.batch_rollouts
        assert a.rollouts_per_problem / n.value == pytest.approx(1, abs=0.42)  # the nearest power of two
        for item in (reading.n for reading in found.readings if reading.counts):
            assert (n.low or 0) <= item.value <= (n.high or math.inf)
            assert n.high is None or item.high is None or item.high <= n.high


def test_n_never_falls_with_the_budget() -> None:
    """What the bounds of a source that ends before C rest on."""
    for source in SOURCES:
        for batch in source.batches or (None,):
            low, high = source.range()
            n = [source.at(c, batch).n.value for c in np.geomspace(low, high, 50)]
            assert np.all(np.diff(n) >= -1e-9), source.key
    starts = [own.start for budget in BUDGETS if (own := advise(budget, **KNOWN)).start]
    levels = [start.allocation.rollouts_per_problem for start in starts]
    assert levels == sorted(levels)
    assert (levels[0], levels[-1]) == (4, 512)


def test_beyond_every_source_there_is_a_bound_and_no_number() -> None:
    far = advise(1e9, **KNOWN)
    assert far.start is None
    assert far.nearest.source.key == "isocompute-joint"
    assert far.nearest.compute == 1e7
    assert far.nearest.n.high is None
    assert far.nearest.n.value == pytest.approx(512)
    assert 200 < far.nearest.n.low < 300
    early = advise(1000, **KNOWN)
    assert early.start is None
    assert early.nearest.source.key == "tan"
    assert early.nearest.n.low is None
    assert early.sweeps == ()  # too little for three n


def test_another_difficulty_and_a_tiny_model_do_not_count() -> None:
    hard = advise(1e6, "hard", 7)
    assert hard.start is None
    assert any(reading.covers for reading in hard.readings)
    assert hard.sweeps[0].spec.problems.difficulty == "hard"
    assert counting(advise(5e4, "easy", 1.3e-4)) == ["arithmetic-easy"]
    assert counting(advise(5e4, "hard", 1.3e-4)) == ["arithmetic-hard"]
    assert counting(advise(2e5, "easy", 7)) == ["isocompute-joint", "isocompute-32", "tan"]


def test_batches() -> None:
    """B_p by the drawn rewards: at 1e6 three are alike, at 3e6 the smallest is best; else nobody compared."""
    middle, late, early = (advise(c, **KNOWN) for c in (1e6, 3e6, 3e5))
    assert (middle.start.batch.value, middle.start.batch.low, middle.start.batch.high) == (64, None, 128)
    assert (late.start.batch.value, late.start.batch.low, late.start.batch.high) == (32, None, 32)
    assert Caveat.BATCH_NOT_COMPARED in early.caveats
    assert Caveat.BATCH_NOT_COMPARED not in {*middle.caveats, *late.caveats}
    capped = advise(1e7, max_batch_rollouts=4096, **KNOWN)
    assert capped.start.allocation.batch_rollouts == 4096
    assert Caveat.BATCH_LIMIT in capped.caveats
    for most in (2, 3, 40, 1000):
        assert 0 < advise(1e6, max_batch_rollouts=most).start.allocation.batch_rollouts <= most


def test_what_is_unknown() -> None:
    assert {Caveat.DIFFICULTY_UNKNOWN, Caveat.SIZE_UNKNOWN} <= set(advise(3e5).caveats)
    assert Caveat.ONE_PUBLICATION in advise(2e6).caveats
    assert Caveat.ONE_PUBLICATION not in advise(3e5).caveats


def test_all_mistakes_at_once() -> None:
    with pytest.raises(SpecError) as raised:
        advise(math.nan, "medium", 0, 1, 2.5)  # type: ignore[arg-type]
    assert [issue.where for issue in raised.value.issues] == [
        "budget", "difficulty", "model_size", "max_batch_rollouts", "n_train_problems",
    ]  # fmt: skip


def test_a_batch_has_no_more_problems_than_there_are_and_numbers_may_be_numpys() -> None:
    found = advise(np.int64(1_000_000), "easy", 7, n_train_problems=np.int64(10))
    assert found.start is not None
    assert found.start.allocation.problems_per_batch == 10
    assert found.case.budget == 1_000_000
