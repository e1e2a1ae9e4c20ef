"""``isolaw report`` and ``isolaw figures``: which law, what is refused, what is written."""

from __future__ import annotations

import importlib
import json
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


@pytest.fixture(autouse=True)
def _few_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slider has three stops to the decade: each is a prediction."""
    module = importlib.import_module("isolaw.report.page.budgets")  # its function has its name
    monkeypatch.setattr(module, "_E24", (1.0, 2.0, 5.0))


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


def test_it_says_the_answer_and_where_the_page_is(isolaw: Call, table: Path, tmp_path: Path) -> None:
    page = tmp_path / "out" / "report.html"
    code, out, err = isolaw("report", table, "-o", page, "--draws", 20)
    assert code == 0
    assert "note: fitted avg@4 on validation, B_p held, method surface" in err
    assert out.startswith("For a budget of C = ")
    assert out.splitlines()[-1] == f"Report: {page}"
    text = page.read_text()
    assert f"isolaw report {table} -o {page} --draws 20" in text
    assert "--metric avg@4 --eval-set validation --hold B_p" in text


def test_json(isolaw: Call, table: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    _, _, _ = isolaw("fit", table, "--draws", 20, "--out", tmp_path / "mine.json")
    code, out, _ = isolaw("report", table, "-o", page, "--draws", 20, "--compute", 3e6, "--json")
    assert code == 0
    said = json.loads(out)
    assert said["report"] == str(page)
    assert said["bytes"] == page.stat().st_size
    assert said["law"] == "fitted"
    _, predicted, _ = isolaw("predict", tmp_path / "mine.json", "--compute", 3e6, "--json")
    assert {**said["prediction"], "format": "isolaw.predict/1"} == json.loads(predicted)
    assert said["format"] == "isolaw.report/1"


@pytest.mark.slow
def test_the_law_beside_a_sweep_is_used_while_it_is_of_its_runs(
    isolaw: Call, sweep: Path, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    law = sweep / "law.json"
    assert isolaw("fit", sweep, "--out", law, "--draws", 11)[0] == 0
    code, _, err = isolaw("report", sweep, "-o", page)
    assert code == 0
    assert f"note: the law is {law}" in err
    assert "--draws 11" in page.read_text()
    _, _, err = isolaw("report", sweep, "-o", page, "--draws", 12)  # an option of a fit: fitted anew
    assert "note: fitted" in err
    assert "--draws 12" in page.read_text()
    assert isolaw("sweep", "--out", sweep, "--set", "sweep.compute=4e4")[0] == 0
    code, out, err = isolaw("report", sweep, "-o", page, "--json")
    assert code == 0
    assert "was fitted to other runs, so" in err
    assert json.loads(out)["law"] == "fitted"
    code, _, err = isolaw("report", sweep, "-o", page, "--law", law)
    assert code == 2
    assert "fitted to other runs" in err
    code, _, err = isolaw("report", sweep, "-o", page, "--law", law, "--metric", "avg@4")
    assert code == 2
    assert "--metric does not go with --law" in err


def test_what_to_run_next_is_a_command_that_a_sweep_takes(isolaw: Call, sweep: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    code, out, _ = isolaw("report", sweep, "-o", page, "--draws", 20)
    assert code == 0
    assert "Next: Run 3 seeds of every configuration." in out
    assert f"isolaw sweep --out {sweep} --set sweep.seeds=3" in page.read_text()
    code, _, err = isolaw("sweep", "--out", sweep, "--set", "sweep.seeds=3", "--dry-run")
    assert code == 0
    assert "3 to do" in err


def test_runs_without_a_law_have_a_page(isolaw: Call, synthetic: Make, tmp_path: Path) -> None:
    table, page = tmp_path / "two.parquet", tmp_path / "report.html"
    synthetic([(32, 8), (32, 16)]).to_parquet(table)
    code, out, err = isolaw("report", table, "-o", page, "--json")
    assert code == 0
    assert "note: no law: n*(C) needs curves" in err
    said = json.loads(out)
    assert (said["law"], said["prediction"]) == (None, None)
    assert said["refused"].startswith("n*(C) needs curves")
    assert "isolaw recommends no allocation yet" in page.read_text()


def test_nothing_else_is_written_over(isolaw: Call, table: Path, tmp_path: Path) -> None:
    mine = tmp_path / "notes.html"
    mine.write_text("mine")
    code, _, err = isolaw("report", table, "-o", mine)
    assert code == 2
    assert "exists and is not a report; it is left unchanged" in err
    assert mine.read_text() == "mine"
    code, _, err = isolaw("report", table)
    assert code == 2
    assert "--out" in err


def test_mixed_runs_are_asked_about_as_by_fit(isolaw: Call, tmp_path: Path) -> None:
    real = "examples/data/real-arithmetic.parquet"
    code, _, err = isolaw("report", real, "-o", tmp_path / "r.html")
    assert code == 2
    assert "Choose with --where problem_set=easy" in err
    code, _, _ = isolaw(
        "report", real, "-o", tmp_path / "r.html", "--where", "problem_set=hard", "--draws", 20
    )
    assert code == 0
    assert "--where problem_set=hard" in (tmp_path / "r.html").read_text()


def test_the_backtest_may_be_asked_for_elsewhere(isolaw: Call, table: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert isolaw("report", table, "-o", page, "--draws", 20, "--fit-below", 6e5)[0] == 0
    assert "checkpoints up to C = 6e5" in page.read_text()
    before = page.read_text()
    code, _, err = isolaw("report", table, "-o", page, "--draws", 20, "--fit-below", 1)
    assert code == 2
    assert "fit_below: found 1; expected a measured compute" in err
    assert page.read_text() == before


@pytest.mark.slow
def test_figures(isolaw: Call, tmp_path: Path) -> None:
    source = (f"{TAN}.csv", "--mapping", f"{TAN}.toml", "--draws", 20)
    code, out, err = isolaw("report", *source, "--figures", tmp_path / "f")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines()] == ["frontier", "law"]
    assert out.splitlines()[0] == f"frontier: {tmp_path / 'f' / 'frontier'} (png, svg, pdf)"
    assert "not drawn: joint: all runs have B_p = 512; add runs with other B_p" in err


def test_figures_as_json(isolaw: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isolaw.report.figures.paper.KINDS", ("png", "svg"))
    source = (f"{TAN}.csv", "--mapping", f"{TAN}.toml", "--draws", 20)
    code, out, _ = isolaw("report", *source, "--figures", tmp_path / "f", "--json")
    assert code == 0
    said = json.loads(out)
    assert {Path(file).name for file in said["figures"]} == {
        "frontier.png",
        "frontier.svg",
        "law.png",
        "law.svg",
    }
    assert set(said["not_drawn"]) == {"fixed-b", "joint", "best-worst", "tokens", "d-sweep"}


def test_no_figure_at_all(isolaw: Call, synthetic: Make, tmp_path: Path) -> None:
    synthetic([(32, 8)]).to_parquet(tmp_path / "one.parquet")
    code, _, err = isolaw("report", tmp_path / "one.parquet", "--figures", tmp_path / "f")
    assert code == 1
    assert "the runs support no figure" in err
    code, _, err = isolaw("report", tmp_path / "one.parquet", "--figures", tmp_path / "one.parquet")
    assert code == 2
    assert "expected a directory" in err
    code, _, err = isolaw("report", tmp_path / "one.parquet")
    assert code == 2
    assert "expected --out FILE.html, --figures [FOLDER], or both" in err
    code, _, err = isolaw("report", tmp_path / "one.parquet", "--hold", "B", "--figures")
    assert code == 2
    assert "--hold is about the page, and requires --out" in err
