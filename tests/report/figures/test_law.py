"""The figures, for every hold and for laws that were refused."""

from __future__ import annotations

import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from shared_laws import LEVELS, SharedLaws

import isolaw
from isolaw.errors import DataError, Refused
from isolaw.fits.allocations import reached
from isolaw.fits.law import Law
from isolaw.report.figures.law import frontier_figure, law_figure, paper_figures, rewards_figure
from isolaw.report.figures.style import save
from isolaw.report.fitted_runs import FittedRuns
from isolaw.report.text import law as law_text
from isolaw.report.text import numbers
from isolaw.runs import Runs

Make = Callable[..., Runs]


@pytest.fixture(autouse=True)
def _no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def worse_with_n(_b: int, n: int, compute: Any) -> Any:
    return 0.3 + (0.3 - 0.01 * np.log2(n)) * (1 - np.exp(-compute / 1e5))


SHARED = {name.partition(" ")[2]: name for name in ("surface B_p", "surface B", "surface nothing")}
SHARED["paper"] = "paper B_p"
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hill": ({}, {"curve": "hill"}),
    "refused": ({"reward": worse_with_n}, {}),
    "paper, refused": ({"reward": worse_with_n}, {"method": "paper"}),
    "no draws": ({}, {"draws": 0}),
    "narrow": ({"zero": False, "start": 6e5}, {"draws": 60}),
    "not from zero": ({"zero": False, "compute": lambda b, n: 200 * b * n}, {}),
}


@pytest.fixture(scope="module", params=[*SHARED, *CASES])
def case(request: pytest.FixtureRequest, synthetic: Make, shared: SharedLaws) -> tuple[str, Law, Runs]:
    name = request.param
    if name in SHARED:
        return name, shared.law(SHARED[name]), shared.runs(SHARED[name])
    data, options = CASES[name]
    runs = synthetic([(32, n) for n in LEVELS], noise=0.004, **data)
    return name, isolaw.fit(runs, **({"draws": 8} | options)), runs


@pytest.fixture(scope="module")
def figure(case: tuple[str, Law, Runs]) -> Figure:
    """The figure of the law, drawn once for all tests that read it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return law_figure(case[1])


def texts(figure: Figure) -> str:
    axes = figure.axes[0]
    return " | ".join([axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()])


def labels(figure: Figure) -> list[str]:
    return [t.get_text() for legend in figure.legends for t in legend.get_texts()]


def test_law_figure(case: tuple[str, Law, Runs], figure: Figure) -> None:
    name, law, _ = case
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert axes.get_yscale() == "log"
    assert axes.get_xscale() == "log"
    assert "n*, rollouts per problem" in texts(figure)
    assert ("M, update steps" if name == "B" else "C, rollouts generated") in texts(figure)
    frontier = law.document.frontier
    shown = labels(figure)
    paper = law.document.method == "paper"
    best = law.predict(reached(law.document.grid))
    told = f"recommended at C = {numbers.number(best.compute)}: n = {best.n}"
    assert (told in shown) == bool(best.options)
    if paper:
        points = next(line for line in axes.lines if line.get_label() == "n*, measured")
        assert list(zip(*points.get_data(), strict=True)) == [
            (p.x, p.n_star_strict) for p in frontier if not p.censored
        ]
    preferred = law_text.preferred(law.document)
    known = preferred is not None and not (paper and law.logistic is None)
    assert [text for text in shown if text.startswith("law (")] == (
        [f"law ({law_text.law_name(preferred or '')})"] if known else []
    )
    drawn = len(law.draws) > 1
    assert ("95 % of draws (pointwise)" in shown) == (paper and law.logistic is not None and drawn)
    assert ("n* (band: 95 % of draws)" in shown) == (not paper)


def test_the_drawn_n_star_follows_the_ridge(case: tuple[str, Law, Runs], figure: Figure) -> None:
    """Within a cell of the grid of n on which it is found; and its band within the axis."""
    _, law, _ = case
    if law.document.method == "paper":
        return
    axes = figure.axes[0]
    line = next(own for own in axes.lines if str(own.get_label()).startswith("n* ("))
    x, y = (np.asarray(v, dtype=float) for v in line.get_data())
    known = [p for p in law.document.frontier if p.n_star.status not in ("refused", "not_identified")]
    assert x.tolist() == [p.x for p in known]
    for n, point in zip(y, known, strict=True):
        assert abs(np.log2(n / point.n_star.value)) <= 0.5
    low, high = axes.get_ylim()
    for vertices in (path.vertices for own in axes.collections for path in own.get_paths()):
        drawn = vertices[np.isfinite(vertices[:, 1]), 1]
        assert np.all((drawn >= low * (1 - 1e-9)) & (drawn <= high * (1 + 1e-9)))


def test_the_drawn_law_is_the_law(case: tuple[str, Law, Runs], figure: Figure) -> None:
    name, law, _ = case
    lines = [own for own in figure.axes[0].lines if str(own.get_label()).startswith("law (")]
    preferred = law_text.preferred(law.document)
    if preferred is None or (law.document.method == "paper" and law.logistic is None):
        assert lines == []
        return
    x, y = (np.asarray(v, dtype=float) for v in lines[0].get_data())
    at = x if name == "B" else np.log10(x)
    if law.document.method == "paper":
        expected = law.logistic(at)[0]
    else:
        a, *b = law.document.comparison.laws[preferred].theta
        expected = {
            "constant": lambda: np.full(x.size, a),
            "power": lambda: a + b[0] * at,
            "linear": lambda: np.log2(np.maximum(a + b[0] * at, 1e-3)),
            "non-monotone": lambda: a + b[0] * at + b[1] * at**2,
            "logistic": lambda: a + b[0] / (1 + np.exp(-np.exp(b[1]) * (at - b[2]))),
        }[preferred]()
    np.testing.assert_allclose(y, 2 ** np.clip(expected, -20, 60))


def test_no_law_is_drawn_that_draws_do_not_prefer(synthetic: Make) -> None:
    law = isolaw.fit(synthetic([(32, n) for n in LEVELS], noise=0.003, seeds=2), draws=15)
    assert not any(text.startswith("law (") for text in labels(law_figure(law)))


@pytest.mark.parametrize("with_runs", [True, False])
def test_frontier_figure(case: tuple[str, Law, Runs], with_runs: bool) -> None:
    name, law, runs = case
    figure = frontier_figure(law, runs if with_runs else None)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert "avg@4 (validation)" in texts(figure)
    assert ("M, update steps" if name == "B" else "C, rollouts generated") in texts(figure)
    scale = 1 / 1024 if name == "B" else 1.0
    curves = [line for line in axes.lines if line.get_linewidth() == 1.0 and line.get_marker() == "None"]
    assert len(curves) == len(law.document.grid)
    ends = [entry.measured[1] * scale for entry in law.document.grid]
    for line, end in zip(curves, ends, strict=True):
        assert max(line.get_xdata()) <= end * (1 + 1e-6)
        assert max(line.get_xdata()) >= end * 0.9
    frontier = next(line for line in axes.lines if line.get_label() == "frontier")
    assert list(frontier.get_xdata()) == [p.x for p in law.document.frontier]
    assert list(frontier.get_ydata()) == [p.reward.value for p in law.document.frontier]
    dots = [line for line in axes.lines if line.get_marker() == "."]
    assert len(dots) == (len(law.document.grid) if with_runs else 0)
    if with_runs:
        assert (
            sum(len(np.atleast_1d(line.get_xdata())) for line in dots) == (runs.points["compute"] > 0).sum()
        )


def written(law: Law, runs: Runs | None, folder: Path) -> list[Path]:
    """Both figures of a law, as files."""
    return save({"frontier": frontier_figure(law, runs), "law": law_figure(law)}, folder, ("png", "svg"))


@pytest.mark.parametrize("case", ["B_p", "refused"], indirect=True)
def test_files(case: tuple[str, Law, Runs], tmp_path: Path) -> None:
    _, law, runs = case
    paths = written(law, runs, tmp_path / "new" / "folder")
    assert [p.name for p in paths] == ["frontier.png", "frontier.svg", "law.png", "law.svg"]
    for path in paths:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
            assert path.stat().st_size > 10_000
        else:
            assert ET.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_same_law_gives_the_same_files(shared: SharedLaws, tmp_path: Path) -> None:
    law = shared.law("surface B_p")
    first, second = (written(law, None, tmp_path / name) for name in ("a", "b"))
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_plot_is_the_law_figure(shared: SharedLaws) -> None:
    law = shared.law("surface B_p")
    assert isinstance(law.plot(), Figure)
    assert texts(law.plot()) == texts(law_figure(law))


def test_a_folder_that_is_a_file(shared: SharedLaws, tmp_path: Path) -> None:
    law = shared.law("surface B_p")
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(DataError, match="taken: cannot write figures"):
        written(law, None, tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_only_the_runs_that_were_fitted_are_drawn(synthetic: Make) -> None:
    """Runs of another lr, which --where left out, are not among the points."""
    runs = synthetic([(32, n) for n in LEVELS], noise=0.004, checkpoints=15)
    other = runs.points.assign(run_id=runs.points["run_id"] + "-other", value=runs.points["value"] / 2)
    lr = {run_id: {"lr": 1.0} for run_id in runs.points["run_id"].unique()}
    lr |= {run_id: {"lr": 2.0} for run_id in other["run_id"].unique()}
    both = Runs(pd.concat([runs.points, other], ignore_index=True), lr)
    law = isolaw.fit(both, where={"lr": 1.0}, draws=0)
    drawn = [line for line in frontier_figure(law, both).axes[0].lines if line.get_marker() == "."]
    assert sum(len(line.get_xdata()) for line in drawn) == (runs.points["compute"] > 0).sum()


def test_what_is_no_figure_of_ours_is_not_written_over(tmp_path: Path) -> None:
    figure, other = Figure(), Figure()
    other.add_subplot()
    kinds = ("png", "svg", "pdf")
    paths = save({"law": figure}, tmp_path, kinds)
    before = [path.read_bytes() for path in paths]
    assert save({"law": other}, tmp_path, kinds) == paths
    assert all(path.read_bytes() != former for path, former in zip(paths, before, strict=True))
    (tmp_path / "law.svg").write_text("mine")
    (tmp_path / "new.png").mkdir()
    with pytest.raises(DataError, match=r"new\.png.*: exists and is not a figure of isolaw"):
        save({"law": figure, "new": figure}, tmp_path, kinds)
    assert (tmp_path / "law.svg").read_text() == "mine"
    assert not (tmp_path / "new.svg").exists()


def test_a_dollar_sign_in_a_name_begins_no_formula(synthetic: Make, tmp_path: Path) -> None:
    runs = synthetic([(32, n) for n in LEVELS], noise=0.004)
    points = runs.points.assign(metric=r"acc$\frac$")
    named = Runs(points, runs.attributes)
    law = isolaw.fit(named, metric=r"acc$\frac$", draws=0)
    assert len(written(law, named, tmp_path)) == 4


def test_a_paper_has_all_kinds(shared: SharedLaws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isolaw.report.figures.law._KINDS", ("png", "svg", "pdf"))
    paths, reasons = paper_figures(shared.runs("paper nothing"), tmp_path / "new", draws=8, method="paper")
    assert reasons == {}
    kinds = ("png", "svg", "pdf")
    assert {p.name for p in paths} == {f"{n}.{k}" for n in ("frontier", "law", "rewards") for k in kinds}
    heads = {".png": b"\x89PNG\r\n\x1a\n", ".pdf": b"%PDF-"}
    for path in paths:
        if path.suffix == ".svg":
            assert ET.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        else:
            assert path.read_bytes().startswith(heads[path.suffix])
        assert path.stat().st_size > 4_000


def test_rewards_are_the_final_ones_over_n_and_over_b_p(shared: SharedLaws) -> None:
    study = FittedRuns(shared.runs("surface nothing"), "avg@4", "validation")
    figure = rewards_figure(study)
    table = study.finals()[1].set_index(["problems_per_batch", "rollouts_per_problem"])
    for axes, over_n in zip(figure.axes, (True, False), strict=True):
        for drawn in axes.containers:
            held = int(str(drawn.get_label()).split(" = ")[1])
            for x, y in zip(*drawn.lines[0].get_data(), strict=True):
                place = (held, int(x)) if over_n else (int(x), held)
                assert y == pytest.approx(table.loc[place, "value"])
        assert len(axes.containers) == table.index.get_level_values(0 if over_n else 1).nunique()
    at_one = rewards_figure(FittedRuns(shared.runs("surface B_p"), "avg@4", "validation"))
    assert [axes.get_xlabel() for axes in at_one.axes] == ["n, rollouts per problem"]


def test_what_runs_do_not_support_is_named_with_the_reason(synthetic: Make, tmp_path: Path) -> None:
    paths, reasons = paper_figures(synthetic([(32, 8), (32, 16)]), tmp_path)
    assert {path.stem for path in paths} == {"rewards"}
    assert reasons.keys() == {"frontier", "law"}
    with pytest.raises(Refused, match=r"no figure: frontier: .*; rewards: all runs have n = 8"):
        paper_figures(synthetic([(32, 8)]), tmp_path / "none")
    assert not (tmp_path / "none").exists()
