"""Whatever rests on simulated runs says so first, in each of its forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import isolaw as package
from isolaw.report.figures.law import frontier_figure, law_figure
from isolaw.runs import Runs

SWEEP = {
    "sweep": {"compute": 200_000, "seeds": 2},
    "grid": {"problems_per_batch": [8], "rollouts_per_problem": [4, 8, 16, 32]},
    "problems": {"n_train": 100, "n_validation": 100},
    "evaluation": {"points": 20},
    "executor": {"kind": "inline"},
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulated") / "sweep"
    runs = package.sweep(SWEEP, out)
    package.fit(runs, bootstrap=20).save(out.with_name("law.json"))
    return out


def first(text: str) -> str:
    return text.splitlines()[0].lower()


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "{sweep}"],
        ["fit", "{sweep}", "--bootstrap", "20"],
        ["predict", "{law}", "--compute", "3e5"],
        ["predict", "{law}", "--compute", "9e9"],
        ["backtest", "{sweep}", "--fit-below", "5e4", "--bootstrap", "20"],
        ["compare", "{sweep}", "{sweep}/points.parquet"],
        ["report", "{sweep}", "--out", "{out}", "--bootstrap", "20"],
    ],
    ids=lambda own: own[0],
)
def test_every_command(isolaw, sweep: Path, tmp_path: Path, arguments: list[str]) -> None:
    places = {"sweep": sweep, "law": sweep.with_name("law.json"), "out": tmp_path / "report.html"}
    own = [argument.format(**places) for argument in arguments]
    _, out, err = isolaw(*own)
    assert "simulated" in first(out), err
    if arguments[0] != "report":
        _, out, _ = isolaw(*own, "--json")
        assert "simulated" in out
    else:
        page = (tmp_path / "report.html").read_text()
        assert "simulated" in page[page.index("<title>") : page.index("</title>")]


def test_python_figures_and_tables(sweep: Path, tmp_path: Path) -> None:
    runs = package.read(sweep)
    assert runs.simulated
    runs.to_parquet(tmp_path / "runs.parquet")
    assert Runs.from_parquet(tmp_path / "runs.parquet").simulated
    law = package.Law.load(sweep.with_name("law.json"))
    assert "simulated" in first(law.summary())
    assert "simulated" in json.dumps(law.predict(3e5).to_dict())
    for figure in (law_figure(law), frontier_figure(law, runs)):
        assert "simulated" in figure.axes[0].get_title("left")


def test_recorded_runs_are_not_called_so(isolaw) -> None:
    real = "examples/data/real-arithmetic.parquet"
    code, out, _ = isolaw("fit", real, "--fixed", "problem_set=hard", "--bootstrap", "20", "--json")
    assert code == 0
    assert "simulated" not in out
