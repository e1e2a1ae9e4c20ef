"""The figures: they draw the charts of the page, for every hold and for laws that were refused."""

from __future__ import annotations

import warnings
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from shared_laws import LEVELS, SharedLaws

import isolaw
from isolaw.errors import DataError, Refused
from isolaw.report.figures import draw, law_figure, paper_figures, save, write_figures
from isolaw.report.fitted_runs import FittedRuns
from isolaw.report.page import law_charts, run_charts
from isolaw.report.page.budgets import Budgets, budgets
from isolaw.report.page.chart import Chart
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


# They differ from the others in what is drawn, and not in how a figure is made of it.
VARIANTS = ("hill", "paper, refused", "no draws", "narrow")


@pytest.fixture(
    scope="module",
    params=[pytest.param(c, marks=[pytest.mark.nightly] * (c in VARIANTS)) for c in (*SHARED, *CASES)],
)
def study(request: pytest.FixtureRequest, synthetic: Make, shared: SharedLaws) -> FittedRuns:
    if (name := request.param) in SHARED:
        return FittedRuns.of(shared.law(SHARED[name]), shared.runs(SHARED[name]))
    data, options = CASES[name]
    runs = synthetic([(32, n) for n in LEVELS], noise=0.004, **data)
    return FittedRuns.of(isolaw.fit(runs, **({"draws": 8} | options)), runs)


@pytest.fixture(scope="module")
def predicted(study: FittedRuns) -> Budgets:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return budgets(study.law, None)


def same(chart: Chart, figure: Figure) -> None:
    """The lines, bands, marks, names and axes of a figure are those of the chart."""
    figure.draw_without_rendering()
    axes = figure.axes[0]
    traces = [t for t in chart.data if "fill" not in t and t.get("type") != "heatmap"]
    lines = [t for t in traces if "lines" in t["mode"] and t["line"]["width"]]
    marks = [shape for shape in chart.layout.get("shapes", ()) if shape["type"] == "line"]
    assert len(axes.lines) == len(lines) + len(marks)
    for line, trace in zip(axes.lines, lines, strict=False):
        for key, values in zip("xy", line.get_data(), strict=True):
            assert np.array_equal(np.asarray(values, float), np.array(trace[key], float), equal_nan=True)
    named = {trace["name"] for trace in chart.data if trace.get("showlegend")}
    assert named <= {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    assert [shape["label"]["text"] for shape in marks] == [
        text.get_text() for text in axes.texts if text.get_color() != "black"
    ]
    for which in "xy":
        layout = chart.layout[f"{which}axis"]
        assert getattr(axes, f"get_{which}label")() == layout["title"]["text"]
        if layout.get("type") == "log":
            ends = getattr(axes, f"get_{which}lim")()
            assert ends == pytest.approx(10.0 ** np.array(layout.get("range", np.log10(ends))))


@pytest.mark.slow
def test_a_figure_is_the_chart_of_the_page(study: FittedRuns, predicted: Budgets) -> None:
    simulated, run_ids = study.runs.simulated, sorted(study.runs.points["run_id"].unique())
    for chart in (
        law_charts.n_star(study.law, predicted), law_charts.reward(study, run_ids, predicted),
        run_charts.grid(study),
    ):  # fmt: skip
        same(chart, draw(chart, len(study.levels), simulated))


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("study", ["B_p"], indirect=True)
def test_the_same_law_gives_the_same_files(study: FittedRuns, tmp_path: Path) -> None:
    first, second = (write_figures(study, tmp_path / name)[0] for name in ("a", "b"))
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(DataError, match="taken: cannot write figures"):
        write_figures(study, tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"
    shown = study.law.plot()
    assert shown.axes[0].get_title("left") == law_figure(study.law).axes[0].get_title("left")
    image, size = shown._repr_png_()  # in a notebook that has not imported pyplot
    assert (image[:4], size) == (b"\x89PNG", {"width": 690, "height": 360})


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
    named = Runs(runs.points.assign(metric=r"acc$\frac$"), runs.attributes)
    law = isolaw.fit(named, metric=r"acc$\frac$", draws=0)
    assert len(write_figures(FittedRuns.of(law, named), tmp_path)[0]) == 3


@pytest.mark.slow
def test_a_paper_has_all_kinds(shared: SharedLaws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isolaw.report.figures._KINDS", ("png", "svg", "pdf"))
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


def test_what_runs_do_not_support_is_named_with_the_reason(synthetic: Make, tmp_path: Path) -> None:
    paths, reasons = paper_figures(synthetic([(32, 8), (32, 16)]), tmp_path)
    assert {path.stem for path in paths} == {"rewards"}
    assert reasons.keys() == {"frontier", "law"}
    with pytest.raises(Refused, match=r"no figure: frontier: .*; rewards: all runs have n = 8"):
        paper_figures(synthetic([(32, 8)]), tmp_path / "none")
    assert not (tmp_path / "none").exists()
