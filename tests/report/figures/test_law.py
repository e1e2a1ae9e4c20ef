"""The two figures, for every setting and for laws that were refused."""

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

import isolaw
from isolaw.errors import DataError
from isolaw.fits.law import Law
from isolaw.report.figures.law import frontier_figure, law_figure, write_figures
from isolaw.report.figures.style import save
from isolaw.report.text import law as law_text
from isolaw.runs import Runs

Make = Callable[..., Runs]
LEVELS = [8, 32, 128, 512]


@pytest.fixture(autouse=True)
def _no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def worse_with_n(_b: int, n: int, compute: Any) -> Any:
    return 0.3 + (0.3 - 0.01 * np.log2(n)) * (1 - np.exp(-compute / 1e5))


CASES: dict[str, tuple[list[tuple[int, int]], dict[str, Any], dict[str, Any]]] = {
    "fixed-bp": ([(32, n) for n in LEVELS], {}, {}),
    "fixed-b": ([(1024 // n, n) for n in LEVELS], {}, {"hold": "B"}),
    "joint": ([(b, n) for b in (16, 32) for n in LEVELS], {}, {"hold": "nothing"}),
    "hill": ([(32, n) for n in LEVELS], {}, {"curve": "hill"}),
    "paper": ([(32, n) for n in LEVELS], {}, {"method": "paper"}),
    "refused": ([(32, n) for n in LEVELS], {"reward": worse_with_n}, {}),
    "paper, refused": ([(32, n) for n in LEVELS], {"reward": worse_with_n}, {"method": "paper"}),
    "no draws": ([(32, n) for n in LEVELS], {}, {"draws": 0}),
    "narrow": ([(32, n) for n in LEVELS], {"zero": False, "start": 6e5}, {"draws": 60}),
    "not from zero": ([(32, n) for n in LEVELS], {"zero": False, "compute": lambda b, n: 200 * b * n}, {}),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, synthetic: Make) -> tuple[str, Law, Runs]:
    pairs, data, options = CASES[request.param]
    runs = synthetic(pairs, noise=0.004, **data)
    return request.param, isolaw.fit(runs, **({"draws": 15} | options)), runs


def texts(figure: Figure) -> str:
    axes = figure.axes[0]
    return " | ".join([axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel()])


def labels(figure: Figure) -> list[str]:
    return [t.get_text() for legend in figure.legends for t in legend.get_texts()]


def test_law_figure(case: tuple[str, Law, Runs]) -> None:
    name, law, _ = case
    figure = law_figure(law)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert axes.get_yscale() == "log"
    assert axes.get_xscale() == "log"
    assert "n*, rollouts per problem" in texts(figure)
    assert ("M, update steps" if name == "fixed-b" else "C, rollouts generated") in texts(figure)
    points = next(line for line in axes.lines if str(line.get_label()) == "measured n, highest")
    frontier = law.document.frontier
    known = [(p.x, p.n_star_strict) for p in frontier if not p.censored]
    assert list(zip(*points.get_data(), strict=True)) == known
    shown = labels(figure)
    paper = law.document.method == "paper"
    assert ("the same, where n* is only a bound" in shown) == any(p.censored for p in frontier)
    preferred = law_text.preferred(law.document)
    known = preferred is not None and not (paper and law.logistic is None)
    assert [text for text in shown if text.startswith("law (")] == (
        [f"law ({law_text.law_name(preferred or '')})"] if known else []
    )
    drawn = len(law.draws) > 1
    assert ("95 % of draws (pointwise)" in shown) == (paper and law.logistic is not None and drawn)
    intervals = any(p.n_star.interval for p in frontier)
    assert ("95 % of draws, at each C" in shown) == (not paper and intervals)
    assert ("95 % of draws, at all C" in shown) == (not paper and intervals)
    assert ("n*" in shown) == (not paper)


def test_the_drawn_ridge_is_the_ridge(case: tuple[str, Law, Runs]) -> None:
    _, law, _ = case
    if law.document.method == "paper":
        return
    lines = law_figure(law).axes[0].lines
    ridge = next(own for own in lines if own.get_label() == "n*")
    x, y = (np.asarray(v, dtype=float) for v in ridge.get_data())
    assert y.tolist() == [p.n_star.value for p in law.document.frontier]
    edges = [line for line in lines if line.get_linestyle() == ":"]
    assert len(edges) in (0, 2)
    for side, line in enumerate(edges):
        drawn = np.asarray(line.get_ydata(), dtype=float)
        for at, point in zip(drawn, law.document.frontier, strict=True):
            end = point.band[side]
            # An open end leaves the page.
            assert at == end if end is not None else not 8 / 1.6 <= at <= 512 * 1.8
    assert x.tolist() == [p.x for p in law.document.frontier]


def test_the_drawn_law_is_the_law(case: tuple[str, Law, Runs]) -> None:
    name, law, _ = case
    lines = [own for own in law_figure(law).axes[0].lines if str(own.get_label()).startswith("law (")]
    preferred = law_text.preferred(law.document)
    if preferred is None or (law.document.method == "paper" and law.logistic is None):
        assert lines == []
        return
    x, y = (np.asarray(v, dtype=float) for v in lines[0].get_data())
    at = x if name == "fixed-b" else np.log10(x)
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
    assert ("M, update steps" if name == "fixed-b" else "C, rollouts generated") in texts(figure)
    scale = 1 / 1024 if name == "fixed-b" else 1.0
    curves = [line for line in axes.lines if len(np.atleast_1d(line.get_xdata())) == 200]
    assert len(curves) == len(law.document.grid)
    for line, entry in zip(curves, law.document.grid, strict=True):
        assert max(line.get_xdata()) == pytest.approx(entry.measured[1] * scale)
    segments = [line for line in axes.lines if line.get_linewidth() == 4]
    assert len(segments) == len(law.document.frontier) - 1
    dots = [line for line in axes.lines if line.get_marker() == "."]
    assert len(dots) == (len(law.document.grid) if with_runs else 0)
    if with_runs:
        assert (
            sum(len(np.atleast_1d(line.get_xdata())) for line in dots) == (runs.points["compute"] > 0).sum()
        )


@pytest.mark.parametrize("case", ["fixed-bp", "refused"], indirect=True)
def test_files(case: tuple[str, Law, Runs], tmp_path: Path) -> None:
    _, law, runs = case
    paths = write_figures(law, runs, tmp_path / "new" / "folder")
    assert [p.name for p in paths] == ["frontier.png", "frontier.svg", "law.png", "law.svg"]
    for path in paths:
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
            assert path.stat().st_size > 10_000
        else:
            assert ET.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_same_law_gives_the_same_files(synthetic: Make, tmp_path: Path) -> None:
    law = isolaw.fit(synthetic([(32, n) for n in LEVELS]), draws=5)
    first, second = (write_figures(law, None, tmp_path / name) for name in ("a", "b"))
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_censored_points_are_drawn_apart(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in LEVELS], compute=lambda b, n: 200 * b * n)
    law = isolaw.fit(runs, draws=5)
    lines = law_figure(law).axes[0].lines
    censored = next(own for own in lines if "only a bound" in str(own.get_label()))
    assert len(censored.get_xdata()) == sum(p.censored for p in law.document.frontier)
    assert censored.get_markerfacecolor() == "white"


def test_plot_is_the_law_figure(synthetic: Make) -> None:
    law = isolaw.fit(synthetic([(32, n) for n in LEVELS]), draws=5)
    assert isinstance(law.plot(), Figure)
    assert texts(law.plot()) == texts(law_figure(law))


def test_a_folder_that_is_a_file(synthetic: Make, tmp_path: Path) -> None:
    law = isolaw.fit(synthetic([(32, n) for n in LEVELS]), draws=5)
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(DataError, match="taken: cannot write figures"):
        write_figures(law, None, tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_only_the_runs_that_were_fitted_are_drawn(synthetic: Make) -> None:
    """Runs of another lr, which --where left out, are not among the points."""
    runs = synthetic([(32, n) for n in LEVELS], noise=0.004)
    other = runs.points.assign(run_id=runs.points["run_id"] + "-other", value=runs.points["value"] / 2)
    lr = {run_id: {"lr": 1.0} for run_id in runs.points["run_id"].unique()}
    lr |= {run_id: {"lr": 2.0} for run_id in other["run_id"].unique()}
    both = Runs(pd.concat([runs.points, other], ignore_index=True), lr)
    law = isolaw.fit(both, where={"lr": 1.0}, draws=15)
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
    assert len(write_figures(law, named, tmp_path)) == 4
