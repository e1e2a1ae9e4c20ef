"""``isolaw report``: which law, what is refused, what is written."""

from __future__ import annotations

import html
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from isolaw import engine
from isolaw.config import SweepSpec
from isolaw.runs import Runs

Call = Callable[..., tuple[int, str, str]]
Make = Callable[..., Runs]
LEVELS = [8, 32, 128, 512]
TAN = "examples/data/tan_rollout_n_base"


@pytest.fixture
def table(synthetic: Make, tmp_path: Path) -> Path:
    path = tmp_path / "points.parquet"
    synthetic([(32, n) for n in LEVELS], noise=0.004).to_parquet(path)
    return path


@pytest.fixture
def sweep(tiny: Callable[..., SweepSpec], tmp_path: Path) -> Path:
    engine.sweep(
        tiny(grid={"rollouts_per_problem": [2, 4, 8]}, evaluation={"points": 20}), tmp_path / "sweep"
    )
    return tmp_path / "sweep"


@pytest.mark.nightly
@pytest.mark.slow
def test_json(isolaw: Call, table: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    mine = tmp_path / "mine.json"
    isolaw("fit", table, "--draws", 8, "--out", mine)
    code, out, _ = isolaw("report", table, "-o", page, "--draws", 8, "--compute", 3e6, "--json")
    assert code == 0
    said = json.loads(out)
    assert said["report"] == str(page)
    assert said["bytes"] == page.stat().st_size
    assert said["law"] == "fitted"
    text = page.read_text()
    assert f"isolaw report {table} -o {page} --draws 8 --compute" in text
    assert "metric='avg@4', eval_set='validation', hold='B_p'" in html.unescape(text)
    _, predicted, _ = isolaw("predict", mine, "--compute", 3e6, "--json")
    assert {**said["prediction"], "format": "isolaw.predict/1"} == json.loads(predicted)


@pytest.mark.slow
def test_hours_are_on_the_page(isolaw: Call, table: Path, tmp_path: Path) -> None:
    """As isolaw answer states them: the page opens at the rollouts that the hours buy."""
    page, cost = tmp_path / "report.html", ("--cost", "12/s@8,2.5/h")
    code, out, _ = isolaw("report", table, "-o", page, "--draws", 8, "--compute", "200gpuh", *cost)
    assert code == 0
    _, said, _ = isolaw("answer", table, "--draws", 8, "--compute", "200gpuh", *cost)
    line = next(line for line in said.splitlines() if line.startswith("Cost: "))
    assert line in out
    assert line.removeprefix("Cost: ") in html.unescape(page.read_text())


@pytest.mark.slow
def test_what_to_run_next_is_a_command_that_a_sweep_takes(isolaw: Call, sweep: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    code, out, _ = isolaw(
        "report", sweep, "-o", page, "--draws", 8, "--compute", "1e7"
    )  # far beyond the runs
    assert code == 0
    command = out[out.index("Next: ") :].splitlines()[1].strip()
    assert command.startswith("isolaw sweep ")
    assert command in html.unescape(page.read_text())
    words = [word for word in shlex.split(command)[1:] if word != "--dry-run"]
    assert isolaw(*words, "--dry-run")[0] == 0


def test_runs_without_a_law_have_a_page(isolaw: Call, synthetic: Make, tmp_path: Path) -> None:
    table, page = tmp_path / "two.parquet", tmp_path / "report.html"
    synthetic([(32, 8), (32, 16)]).to_parquet(table)
    code, out, err = isolaw("report", table, "-o", page, "--json")
    assert code == 0
    assert "note: there is no law: n*(C) needs at least three values of n" in err
    said = json.loads(out)
    assert (said["law"], said["prediction"]) == (None, None)
    assert said["refused"].startswith("n*(C) needs at least three values of n")
    assert "isolaw recommends no allocation yet" in page.read_text()


def test_nothing_else_is_written_over(isolaw: Call, table: Path, tmp_path: Path) -> None:
    mine = tmp_path / "notes.html"
    mine.write_text("mine")
    code, _, err = isolaw("report", table, "-o", mine)
    assert code == 2
    assert "exists and is not a report; it is left unchanged" in err
    assert mine.read_text() == "mine"
