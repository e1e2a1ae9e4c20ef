"""Whatever rests on simulated runs says so first, in each of its forms; nothing else does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from golden.inputs import SWEEP

import isolaw as package
from isolaw.evidence import Simulated
from isolaw.report.figures import law_figure
from isolaw.runs import COLUMNS, Runs

Call = Callable[..., tuple[int, str, str]]
REAL = "examples/data/real-arithmetic.parquet"
DRAWS = ["--draws", "0"]
# Commands that write figures and pages; what all of them print is in tests/golden.
WRITTEN = {
    "report": ["{sweep}", "--out", "{new}.html", *DRAWS],
}
RECORDED = {
    "sweep": ["--out", "{sweep}"],
    "status": ["{sweep}"],
    "read": ["{sweep}"],
    "fit": ["{sweep}", *DRAWS],
    "predict": ["{law}", "--compute", "3e5"],
    "model-size": ["{sizes}", *DRAWS],
    "report": WRITTEN["report"],
}


def made(folder: Path, runs: Runs, rates: Runs) -> dict[str, Path]:
    """What the commands take, made of runs; ``folder / "sweep"`` holds them."""
    names = {"table": "runs.parquet", "csv": "runs.csv", "law": "law.json", "rates": "rates.parquet"}
    names |= {"points": "points.csv", "sizes": "sizes.csv"}
    places = {name: folder / file for name, file in names.items()} | {"sweep": folder / "sweep"}
    runs.to_parquet(places["table"])
    runs.to_pandas().to_csv(places["csv"], index=False)
    rates.to_parquet(places["rates"])
    law = package.fit(runs, draws=8)
    law.save(places["law"])
    frontier = law.frontier().assign(n_star=lambda t: 2 ** np.linspace(3, 6, len(t)))
    frontier.to_csv(places["points"], index=False)
    step = np.arange(1, 9)
    sizes = [
        pd.DataFrame(
            {"model_size": n, "step": step, "compute": 512 * step, "loss": (512.0 * step) ** (-n / 20)}
        )
        for n in (1, 3, 9)
    ]
    marked = {"simulated": True} if runs.simulated else {}
    pd.concat(sizes).assign(**marked).to_csv(places["sizes"], index=False)
    return places


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("simulated")
    (folder / "sweep.toml").write_text(SWEEP)
    runs = package.sweep(folder / "sweep.toml", folder / "sweep")
    rates = [
        Runs(runs.points.assign(run_id=runs.points["run_id"] + str(lr)), {
            run_id + str(lr): {**attribute, "lr": lr} for run_id, attribute in runs.attributes.items()
        })
        for lr in (0.1, 0.2)
    ]  # fmt: skip
    return made(folder, runs, Runs.concat(rates))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, simulated: dict[str, Path]) -> dict[str, Path]:
    """The same numbers as somebody's log of real runs, and a sweep that replays it."""
    folder = tmp_path_factory.mktemp("recorded")

    def real(table: Path) -> Runs:
        runs = Runs.from_parquet(table)
        return Runs(
            runs.points,
            {run_id: {**attribute, "backend": "real"} for run_id, attribute in runs.attributes.items()},
        )

    runs, rates = real(simulated["table"]), real(simulated["rates"])
    inline = {"executor": {"kind": "inline"}}
    package.sweep({"sweep": {"backend": "replay"}, "replay": {"source": runs}, **inline}, folder / "sweep")
    return made(folder, runs, rates)


@pytest.mark.slow
@pytest.mark.parametrize("command", WRITTEN)
def test_simulated(
    isolaw: Call,
    simulated: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    words = [word.format(**simulated, new=tmp_path / "new") for word in WRITTEN[command]]
    _, out, err = isolaw(*command.split()[:1], *words)
    assert out.startswith("Simulated runs."), out + err
    drawn, pages = [*tmp_path.rglob("*.svg")], [*tmp_path.rglob("*.html")]
    assert drawn or command == "report"
    assert bool(pages) == (command == "report")
    for file in drawn:
        assert ">simulated runs: " in file.read_text(), file
    for file in pages:
        assert "<title>simulated runs: " in file.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("command", RECORDED)
def test_recorded(isolaw: Call, recorded: dict[str, Path], tmp_path: Path, command: str) -> None:
    words = [word.format(**recorded, new=tmp_path / "new") for word in RECORDED[command]]
    _, out, err = isolaw(*command.split()[:1], *words)
    assert out, err
    assert "simulated" not in out.lower()
    for file in tmp_path.rglob("*.svg"):
        assert "simulated" not in file.read_text(), file
    for file in tmp_path.rglob("*.html"):
        assert "simulated runs" not in file.read_text()
    if command != "report":
        assert json.loads(isolaw(*command.split()[:1], *words, "--json")[1])["simulated"] is False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backends", "said", "value"),
    [
        (["bandit", "real"], "Simulated runs. ", True),
        pytest.param([None], "", False, marks=pytest.mark.nightly),  # of a log that says nothing
    ],
    ids=["mixed", "unknown"],
)
def test_a_replay_is_what_it_replays(
    isolaw: Call,
    simulated: dict[str, Path],
    tmp_path: Path,
    backends: list[str | None],
    said: str,
    value: Any,
) -> None:
    runs = Runs.from_parquet(simulated["table"])
    seeds = runs.table()["seed"]
    for run_id, attribute in runs.attributes.items():
        attribute["backend"] = backends[seeds[run_id] % len(backends)]
    runs.to_parquet(tmp_path / "runs.parquet")
    (tmp_path / "sweep.toml").write_text(
        f'[sweep]\nbackend = "replay"\n[replay]\nsource = "{tmp_path}/runs.parquet"\n'
        '[executor]\nkind = "inline"\n'
    )
    out = tmp_path / "sweep"
    for command in (["sweep", tmp_path / "sweep.toml", "--out", out], ["status", out], ["read", out]):
        code, text, err = isolaw(*command)
        assert code == 0, err
        assert text.splitlines()[0].startswith(said.strip())
        assert said or "simulated" not in text.lower()
        again = [*command[:-1], tmp_path / "again"] if command[0] == "sweep" else command
        assert json.loads(isolaw(*again, "--json")[1])["simulated"] == value
    for backend in filter(None, backends):  # a law is of runs of one backend
        law = package.fit(out, where={"backend": backend}, draws=0)
        assert law.document.simulated is (Simulated.YES if backend == "bandit" else Simulated.NO)


def test_some_runs_are_simulated(isolaw: Call, simulated: dict[str, Path], tmp_path: Path) -> None:
    runs = package.read(simulated["sweep"])
    few = Runs(runs.points, dict(list(runs.attributes.items())[:2]))
    assert few.simulated is Simulated.YES
    assert repr(few).startswith("<Runs: simulated runs: ")
    law = package.fit(few, draws=0)
    assert law.summary().startswith("Simulated runs. ")
    law.save(tmp_path / "law.json")
    code, out, err = isolaw("predict", tmp_path / "law.json", "--compute", "3e5", "--json")
    assert code == 0, err
    assert json.loads(out)["simulated"] is True


@pytest.mark.slow
def test_python(simulated: dict[str, Path], tmp_path: Path) -> None:
    runs, law = package.read(simulated["sweep"]), package.Law.load(simulated["law"])
    assert runs.simulated is Simulated.YES
    prediction = law.predict(3e5)
    for shown in (repr(runs), repr(law)):
        assert "simulated runs: " in shown
    assert runs._repr_html_().startswith("<div>Simulated runs. ")
    for shown in (law._repr_html_(), prediction._repr_html_()):
        assert shown.startswith("<section>\n<p>Simulated runs. ")
    assert law.summary().startswith("Simulated runs. ")
    for document in (law.to_dict(), prediction.to_dict(), package.status(simulated["sweep"])):
        assert document["simulated"] is True
    for table in (runs.to_pandas(), law.frontier()):
        assert table["simulated"].all()
    assert package.read(runs.to_pandas()).simulated is Simulated.YES
    assert law_figure(law).axes[0].get_title("left").startswith("simulated runs: ")
    page = package.answer(runs, 3e5, draws=4).write_page(tmp_path / "report.html").read_text()
    assert "<title>simulated runs: " in page
    assert '"simulated":"simulated runs"' in page  # for the charts that a reader saves
    assert set(runs.points.columns) == set(COLUMNS)


def test_real_runs_in_the_examples() -> None:
    runs = package.read(REAL)
    assert runs.simulated is Simulated.NO
    assert "simulated" not in runs.to_pandas()
    law = package.fit(runs, where={"problem_set": "hard"}, draws=0)
    assert "simulated" not in law.summary() + repr(law) + law_figure(law).axes[0].get_title("left")
