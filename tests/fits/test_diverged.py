"""Runs whose reward becomes NaN: used up to there, named, and no reason to go further that way."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import isolaw
from isolaw.allocation import Cell
from isolaw.fits.allocations import past_divergence
from isolaw.fits.flags import Code, flags_with
from isolaw.fits.health import health
from isolaw.runs import Runs

pytestmark = pytest.mark.numbers

Make = Callable[..., Runs]
LEVELS = [8, 32, 128, 512]


def diverging(runs: Runs, after: float = 1e5, **where: Any) -> Runs:
    """The runs, those that ``where`` names with NaN after C = ``after``."""
    table = runs.to_pandas()
    lost = table["compute"] > after
    for column, values in where.items():
        lost &= table[column].isin(values)
    table.loc[lost, "value"] = math.nan
    return Runs(table, runs.attributes)


def rising(synthetic: Make, **options: Any) -> Runs:
    return synthetic([(32, n) for n in LEVELS], noise=0.002, **options)


def texts(law: isolaw.Law, code: Code) -> list[str]:
    return [flag.text for flag in flags_with(law.predict(2e6).flags, code)]


def test_nothing_beyond_an_end_that_diverged(synthetic: Make) -> None:
    law = isolaw.fit(diverging(rising(synthetic), rollouts_per_problem=[512]), draws=20)
    (flag,) = flags_with(law.document.flags, Code.DIVERGED)
    assert "3 of 3 runs of B_p = 32, n = 512, after step 6" in flag.text
    prediction = law.predict(2e6)
    assert prediction.n == 128  # at 1e6, n = 512 was the best before it diverged
    assert all(run.rollouts_per_problem <= 128 for run in prediction.next.runs)
    assert (prediction.compared or (0, 0))[1] == 128
    assert "recommends no configuration" in texts(law, Code.DIVERGED)[0]
    assert texts(law, Code.DIVERGED)[0].endswith("; a smaller lr may train stably")


@pytest.mark.parametrize(
    ("diverged", "past", "sound"),
    [
        ([(32, 512)], [(32, 256), (32, 512), (32, 1024)], [(32, 4), (32, 128), (64, 64)]),
        ([(32, 8)], [(32, 16), (32, 8), (32, 4)], [(32, 1024), (32, 32)]),
        ([(32, 32)], [(32, 32)], [(32, 4), (32, 1024)]),  # others beyond it did not diverge
        ([(32, n) for n in LEVELS], [(32, 4), (32, 64), (32, 1024)], []),
    ],
)
def test_an_end_that_diverged_closes_its_own_side_alone(diverged, past, sound) -> None:
    cells = [Cell(32, n) for n in LEVELS]
    document: Any = SimpleNamespace(grid=cells, diverged=[Cell(*cell) for cell in diverged])
    assert all(past_divergence(document, *cell) for cell in past)
    assert not any(past_divergence(document, *cell) for cell in sound)


def test_the_end_stays_closed_if_the_runs_are_too_short_for_a_curve(synthetic: Make) -> None:
    law = isolaw.fit(diverging(rising(synthetic), 4e4, rollouts_per_problem=[512]), draws=20)
    assert 512 not in {entry.rollouts_per_problem for entry in law.document.grid}
    assert "n = 512, after step 2" in texts(law, Code.DIVERGED)[0]
    assert (law.predict(2e6).compared or (0, 0))[1] == 128


@pytest.mark.slow
def test_one_of_three_seeds_does_not_condemn_its_configuration(synthetic: Make) -> None:
    law = isolaw.fit(diverging(rising(synthetic), rollouts_per_problem=[512], seed=[1]), draws=20)
    assert law.document.diverged == ()
    (text,) = texts(law, Code.DIVERGED)
    assert "1 of 3 runs" in text
    assert "assume that runs do not diverge" in text
    assert law.predict(2e6).n in (512, 768, 1024, 1536, 2048)


@pytest.mark.slow
def test_the_end_of_the_batches(synthetic: Make) -> None:
    grid = [(b, n) for b in (8, 16, 32) for n in (8, 32, 128)]
    runs = diverging(synthetic(grid, noise=0.002, seeds=2), problems_per_batch=[32])
    prediction = isolaw.fit(runs, hold="nothing", draws=20).predict(2e6)
    assert prediction.compared_batches is not None
    assert prediction.compared_batches[1] == 16


def test_if_all_runs_diverge_nothing_beyond_them_is_proposed(synthetic: Make) -> None:
    law = isolaw.fit(diverging(rising(synthetic), 5e5), draws=20)
    prediction = law.predict(2e6)
    assert 8 <= (prediction.n or 0) <= 512
    assert all(8 <= run.rollouts_per_problem <= 512 for run in prediction.next.runs)
    assert "keeps these configurations" in texts(law, Code.DIVERGED)[0]


def test_a_diverged_run_is_unhealthy(synthetic: Make) -> None:
    runs = diverging(rising(synthetic), rollouts_per_problem=[512], seed=[0])
    (ill,) = [verdict for verdict in health(runs) if verdict.signs]
    assert (ill.rollouts_per_problem, ill.seed) == (512, 0)
    assert ill.reasons[0].startswith("divergence (avg@4 on validation from")


@pytest.mark.slow
def test_the_finite_part_is_the_same_as_without_the_rest(synthetic: Make) -> None:
    runs = diverging(rising(synthetic), rollouts_per_problem=[512])
    laws = [isolaw.fit(value, draws=5) for value in (runs, Runs(runs.points, runs.attributes))]
    assert laws[0].document.frontier == laws[1].document.frontier


def test_divergence_survives_files_and_selections(synthetic: Make, tmp_path: Path) -> None:
    runs = diverging(rising(synthetic), rollouts_per_problem=[512])
    ids = list(runs.points["run_id"].unique())
    runs.to_parquet(tmp_path / "runs.parquet")
    parts = [runs.select(ids[:5]), runs.select(ids[5:])]
    for again in (isolaw.read(tmp_path / "runs.parquet"), Runs.concat(parts), Runs(runs.to_pandas())):
        assert again.diverged["run_id"].tolist() == runs.diverged["run_id"].tolist() != []
    law = isolaw.fit(runs, draws=5)
    law.save(tmp_path / "law.json")
    assert isolaw.Law.load(tmp_path / "law.json").document.diverged == law.document.diverged


@pytest.mark.parametrize("cell", ["nan", ""])
def test_a_table_says_nan_or_leaves_the_cells_empty(tmp_path: Path, cell: str) -> None:
    rows = ["B_p,n,seed,step,acc"]
    for n in (4, 8, 16):
        last = 6 if n == 16 else 20
        rows += [f"32,{n},0,{m},{0.2 + 0.01 * m + n / 1000 if m <= last else cell}" for m in range(1, 21)]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    runs = isolaw.read(tmp_path / "t.csv", metric="acc")
    assert runs.diverged[["rollouts_per_problem", "step"]].to_numpy().tolist() == [[16, 7]]
    assert any("takes the empty cells at the end for NaN" in note for note in runs.notes) == (cell == "")


def test_empty_cells_that_are_not_nan(tmp_path: Path) -> None:
    """An evaluation every fifth step, and a table with the same steps for runs of one compute."""
    rows = ["B_p,n,seed,step,loss,acc"]
    for n, last in ((4, 40), (8, 20), (16, 10)):
        rows += [f"32,{n},0,{m},1,{0.2 + m / 100 if m <= last and m % 5 == 0 else ''}" for m in range(1, 49)]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    runs = isolaw.read(tmp_path / "t.csv", set={"eval_set": "validation"}, metric="acc")
    assert runs.diverged.empty
