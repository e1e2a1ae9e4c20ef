"""The paper's figures: each from runs that can carry it, and the reasons of those that cannot be drawn."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from isolaw.errors import Refused
from isolaw.report.figures import paper
from isolaw.report.figures.paper import FIGURES, Material, paper_figures
from isolaw.report.figures.series import stars
from isolaw.report.fitted_runs import common_compute, final_rewards
from isolaw.runs import Runs

Make = Callable[..., Runs]
LEVELS = [8, 32, 128, 512]
QUICK: dict[str, Any] = {"draws": 8}


def everything(synthetic: Make) -> Runs:
    """Runs over n and B_p that also recorded best@4, worst@4 and tokens."""
    places = [(b, n) for b in (4, 16, 64) for n in LEVELS[:3]]
    runs = synthetic(places, noise=0.004, compute=4e6, start=4e4, seeds=2, checkpoints=12)
    points = runs.points.assign(tokens=lambda t: t["compute"] * 100)
    best = points.assign(metric="best@4", value=points["value"] + 0.1 - 1e-4 * points["rollouts_per_problem"])
    worst = points.assign(metric="worst@4", value=points["value"] - 0.1)
    return Runs(pd.concat([points, best, worst], ignore_index=True))


@pytest.fixture
def few_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that is recommended at four budgets instead of thirty: each is a prediction."""
    monkeypatch.setattr(paper, "_BUDGETS", 4)


@pytest.mark.slow
@pytest.mark.usefixtures("few_predictions")
def test_all_that_these_runs_can_carry(synthetic: Make, tmp_path: Path) -> None:
    paths, reasons = paper_figures(everything(synthetic), tmp_path / "new", **QUICK)
    assert list(FIGURES) == [
        "frontier", "law", "best-worst", "fixed-b",
        "sensitivity", "joint", "tokens", "d-sweep",
    ]  # fmt: skip
    assert reasons == {"d-sweep": "all runs have the same number of training problems, n_train_problems"}
    assert {p.name for p in paths} == {
        f"{n}.{k}" for n in FIGURES if n != "d-sweep" for k in ("png", "svg", "pdf")
    }
    heads = {"png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-"}
    for path in paths:
        if path.suffix == ".svg":
            assert ET.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        else:
            assert path.read_bytes().startswith(heads[path.suffix[1:]])
        assert path.stat().st_size > 4_000


def test_the_sweep_of_d(synthetic: Make) -> None:
    parts = {
        d: synthetic([(32, n) for n in LEVELS], attributes={"n_train_problems": d}, rng=d) for d in (100, 900)
    }
    tables = [p.points.assign(run_id=[f"{d}-{r}" for r in p.points["run_id"]]) for d, p in parts.items()]
    facts = {f"{d}-{r}": a for d, p in parts.items() for r, a in p.attributes.items()}
    both = Material(Runs(pd.concat(tables, ignore_index=True), facts), options=QUICK)
    lines = FIGURES["d-sweep"](both).axes[0].lines
    assert [line.get_label() for line in lines] == ["D = 100", "D = 900"]
    law = both.law("B_p", fixed={"n_train_problems": 900})
    assert list(lines[1].get_ydata()) == list(stars(law)[1])
    with pytest.raises(Exception, match="the runs differ in n_train_problems"):
        FIGURES["law"](both)


def test_fixed_b_draws_a_pair(synthetic: Make) -> None:
    material = Material(synthetic([(1024 // n, n) for n in LEVELS], noise=0.004), options=QUICK)
    figure = FIGURES["fixed-b"](material)
    right = next(axes for axes in figure.axes if "the best split" in axes.get_title(loc="left"))
    n, b = (np.asarray(line.get_ydata(), dtype=float) for line in right.lines)
    np.testing.assert_allclose(n * b, 1024)
    assert right.get_xlabel() == "M, update steps"


@pytest.mark.usefixtures("few_predictions")
def test_joint_draws_the_batch_that_is_recommended(synthetic: Make) -> None:
    material = Material(everything(synthetic), options=QUICK)
    right = next(a for a in FIGURES["joint"](material).axes if "n and B_p" in a.get_title(loc="left"))
    step = next(line for line in right.lines if line.get_label() == "B_p that loses least")
    law = material.law("nothing")
    for budget, b in zip(*step.get_data(), strict=True):
        assert law.predict(float(budget)).allocation.problems_per_batch == b


def test_bars_are_the_final_rewards(synthetic: Make) -> None:
    runs = everything(synthetic)
    figure = FIGURES["best-worst"](Material(runs, options=QUICK))
    rows = runs.points[(runs.points["metric"] == "worst@4") & (runs.points["problems_per_batch"] == 4)]
    table = final_rewards(rows, common_compute(rows))
    bars = figure.axes[1].containers[-1]
    assert [bar.get_height() for bar in bars] == pytest.approx(table["value"].tolist())


def test_sensitivity_draws_the_final_rewards_both_ways(synthetic: Make) -> None:
    runs = everything(synthetic)
    figure = FIGURES["sensitivity"](Material(runs, options=QUICK))
    rows = runs.points[runs.points["metric"] == "avg@4"]
    table = final_rewards(rows, common_compute(rows)).set_index(
        ["problems_per_batch", "rollouts_per_problem"]
    )
    for axes, turned in zip(figure.axes, (False, True), strict=True):
        for own in axes.containers:
            held = int(str(own.get_label()).split(" = ")[1])
            for x, y in zip(*own.lines[0].get_data(), strict=True):
                place = (held, int(x)) if turned else (int(x), held)
                assert y == pytest.approx(table.loc[place, "value"])
        assert len(axes.containers) == table.index.get_level_values(0 if turned else 1).nunique()


def test_tokens_are_on_the_axis(synthetic: Make) -> None:
    figure = FIGURES["tokens"](Material(everything(synthetic), options=QUICK))
    left, right = (axes for axes in figure.axes if axes.get_title(loc="left"))
    assert left.get_xlabel() == right.get_xlabel() == "C, tokens"
    assert left.get_xlim()[1] > 4e8  # a hundred tokens for each of 4e6 rollouts
    dots = [line for line in left.lines if line.get_marker() == "."]
    assert max(float(max(line.get_xdata())) for line in dots) == pytest.approx(4e8, rel=0.01)


def test_reasons(synthetic: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "KINDS", ("png",))
    _, reasons = paper_figures(synthetic([(32, n) for n in LEVELS]), tmp_path, **QUICK)
    assert reasons["joint"] == "all runs have B_p = 32; add runs with other B_p"
    assert reasons["tokens"] == "the runs did not record tokens"
    assert reasons["best-worst"] == "best@k and worst@k were not both measured on validation"
    assert reasons["fixed-b"].startswith("n*(C) needs curves of at least 3 different")
    assert reasons["sensitivity"] == "all runs have B_p = 32; add runs with another value"
    assert set(reasons) == {
        "best-worst",
        "fixed-b",
        "sensitivity",
        "joint",
        *("tokens", "d-sweep"),
    }
    assert {path.stem for path in tmp_path.iterdir()} == {"frontier", "law"}


def test_nothing_to_draw(synthetic: Make, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"the runs support no figure: frontier: .*; d-sweep: "):
        paper_figures(synthetic([(32, 8)]), tmp_path / "none", **QUICK)
    assert not (tmp_path / "none").exists()


def test_the_same_runs_give_the_same_files(
    synthetic: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = synthetic([(32, n) for n in LEVELS])
    monkeypatch.setattr(paper, "FIGURES", {"law": FIGURES["law"]})
    first, second = (paper_figures(runs, tmp_path / name, **QUICK)[0] for name in "ab")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_finals_compare_runs_that_end_a_batch_apart() -> None:
    rows = pd.DataFrame(
        {
            "run_id": list("aabbcc"),
            "problems_per_batch": 1,
            "rollouts_per_problem": [8, 8, 16, 16, 16, 16],
            "compute": [500, 1040, 512, 1024, 400, 1024],
            "value": [0.1, 0.4, 0.2, 0.6, 0.3, 0.8],
        }
    )
    assert common_compute(rows) == 1024
    table = final_rewards(rows, 1024)
    assert table["value"].tolist() == pytest.approx([0.4, 0.7])
    assert table["runs"].tolist() == [1, 2]
    assert np.isnan(table["error"][0])
    assert table["error"][1] == pytest.approx(0.1)  # 0.2 / √2 / √2


def test_a_configuration_that_broke_off_does_not_decide_where_all_are_compared() -> None:
    rows = pd.DataFrame(
        {"run_id": list("ab"), "problems_per_batch": 1, "rollouts_per_problem": [8, 16], "value": 0.5}
    ).assign(compute=[10, 1000])
    assert common_compute(rows) == 1000
    assert final_rewards(rows, 1000)["rollouts_per_problem"].tolist() == [16]
