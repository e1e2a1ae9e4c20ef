"""The figures: they draw the charts of the page, for every hold and for laws that were refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from shared_laws import LEVELS, SharedLaws

import isolaw
from isolaw.report.figures import draw, law_figure
from isolaw.report.fitted_runs import FittedRuns
from isolaw.report.page import law_charts
from isolaw.report.page.budgets import Budgets, budgets
from isolaw.report.page.chart import Chart
from isolaw.runs import Runs

Make = Callable[..., Runs]


def fitted(law: isolaw.Law, runs: Runs) -> FittedRuns:
    return FittedRuns(runs, law.document.metric, law.document.eval_set, law)


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
        return fitted(shared.law(SHARED[name]), shared.runs(SHARED[name]))
    data, options = CASES[name]
    runs = synthetic([(32, n) for n in LEVELS], noise=0.004, **data)
    return fitted(isolaw.fit(runs, **({"draws": 8} | options)), runs)


@pytest.fixture(scope="module")
def predicted(study: FittedRuns) -> Budgets:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return budgets(study.law, None)


def same(chart: Chart, figure: Figure) -> None:
    """The lines, bands, marks, names and axes of a figure are those of the chart."""
    figure.draw_without_rendering()
    axes = figure.axes[0]
    traces = [t for t in chart.data if "fill" not in t]
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
    for chart in (law_charts.n_star(study.law, predicted), law_charts.reward(study, run_ids, predicted)):
        same(chart, draw(chart, len(study.levels), simulated))


@pytest.mark.slow
@pytest.mark.parametrize("study", ["B_p"], indirect=True)
def test_a_law_and_a_notebook_show_it(study: FittedRuns) -> None:
    shown = study.law.plot()
    assert shown.axes[0].get_title("left") == law_figure(study.law).axes[0].get_title("left")
    image, size = shown._repr_png_()  # in a notebook that has not imported pyplot
    assert (image[:4], size) == (b"\x89PNG", {"width": 690, "height": 360})


def test_a_dollar_sign_in_a_name_begins_no_formula(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in LEVELS], noise=0.004)
    named = Runs(runs.points.assign(metric=r"acc$\frac$"), runs.attributes)
    law = isolaw.fit(named, metric=r"acc$\frac$", draws=0)
    chart = law_charts.reward(fitted(law, named), sorted(named.points["run_id"].unique()), None)
    draw(chart, len(LEVELS), named.simulated).draw_without_rendering()
