"""A law's two figures: reward against compute with its frontier, and n*(C)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from isolaw.fits.document.schema import FrontierPoint, LawDocument
from isolaw.fits.law import Law
from isolaw.report.figures.series import closed, fitted_curve, law_line, n_stars
from isolaw.report.figures.style import BLUE, GREY, PALE, STYLE, n_colours, n_ticks, plain, save
from isolaw.report.study import Study
from isolaw.report.text import law as text
from isolaw.runs import Runs

_SYMBOLS = {"problems_per_batch": "B_p", "batch_rollouts": "B"}


def frontier_figure(law: Law, runs: Runs | None = None) -> Figure:
    """Draw reward against compute: the checkpoints of ``runs``, fitted curves, the frontier."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        draw_frontier(figure.add_subplot(), law, runs)
    return figure


def law_figure(law: Law) -> Figure:
    """Draw n* against C in log-log (against M for ``fixed-b``): points, law, band, grid edges."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        draw_n_star(figure.add_subplot(), law)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=7)
    return figure


def draw_frontier(axes: Axes, law: Law, runs: Runs | None = None) -> None:
    """Draw `frontier_figure` on axes, with a colour bar for n beside them."""
    document = law.document
    levels = law.levels
    colour = n_colours(levels)
    if runs is not None:
        _draw_checkpoints(axes, law, runs, colour)
    for entry in document.grid:
        tint = colour.to_rgba(np.array(entry.rollouts_per_problem))
        axes.plot(*fitted_curve(law, entry), color=tint, lw=1.0, alpha=0.8, zorder=2)
    _draw_frontier(axes, document, colour)
    low = document.x.range[0]
    axes.axvline(low, color=GREY, lw=0.8, ls=":", zorder=1)
    axes.annotate(
        "frontier from here", (low, 1), xycoords=("data", "axes fraction"), xytext=(3, -2),
        textcoords="offset points", color=GREY, fontsize=7, va="top",
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel(text.axis(document))
    axes.set_ylabel(plain(f"{document.metric} ({document.eval_set})"))
    axes.set_title(_title(document, "reward and the compute-optimal frontier"), loc="left", fontsize=9)
    bar = axes.figure.colorbar(colour, ax=axes, label="n, rollouts per problem", pad=0.01)
    bar.ax.yaxis.set_major_locator(FixedLocator([float(n) for n in levels]))
    bar.ax.yaxis.set_major_formatter(ScalarFormatter())
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.outline.set_visible(False)  # type: ignore[operator]


def draw_n_star(axes: Axes, law: Law) -> None:
    """Draw `law_figure` on axes, without its legend."""
    document = law.document
    frontier = document.frontier
    x = np.array([p.x for p in frontier])
    strict = np.array([p.n_star_strict for p in frontier])
    censored = np.array([p.censored for p in frontier])
    levels = law.levels
    surface = document.method == "surface"
    _draw_law(axes, law, x, band=not surface)
    if surface:
        _draw_ridge(axes, frontier, x, levels)
    size = 2.5 if surface else 4
    axes.plot(
        x[~censored], strict[~censored], "o", ms=size, color=BLUE,
        label="measured n, highest", zorder=4,
    )  # fmt: skip
    if censored.any():
        axes.plot(
            x[censored], strict[censored], "o", ms=size, mfc="white", mec=BLUE, mew=0.8,
            label="the same, where n* is only a bound", zorder=4,
        )  # fmt: skip
    for edge in (levels[0], levels[-1]):
        axes.axhline(edge, color=GREY, lw=0.8, ls="--", zorder=1)
    axes.annotate(
        "largest n measured", (0, levels[-1]), xycoords=("axes fraction", "data"), xytext=(3, 3),
        textcoords="offset points", color=GREY, fontsize=7,
    )  # fmt: skip
    axes.set_ylim(levels[0] / 1.6, levels[-1] * 1.8)
    n_ticks(axes, "y", levels)
    axes.set_xscale("log")
    axes.set_xlabel(text.axis(document))
    axes.set_ylabel("n*, rollouts per problem")
    axes.set_title(_title(document, "the best n for a budget"), loc="left", fontsize=9)


def write_figures(law: Law, runs: Runs | None, folder: str | Path) -> list[Path]:
    """Write both figures as PNG and SVG into ``folder`` and return the paths; may raise `DataError`."""
    return save({"frontier": frontier_figure(law, runs), "law": law_figure(law)}, folder, ("png", "svg"))


def _draw_checkpoints(axes: Axes, law: Law, runs: Runs, colour: ScalarMappable) -> None:
    study = Study.of(law, runs)
    rows = study.fitted()
    rows = rows.assign(x=study.x(rows)).query("x > 0")
    for entry in law.document.grid:
        b, n = entry.problems_per_batch, entry.rollouts_per_problem
        own = rows[(rows["problems_per_batch"] == b) & (rows["rollouts_per_problem"] == n)]
        axes.plot(
            own["x"], own["value"], ".", ms=2, color=colour.to_rgba(np.array(n)), alpha=0.35, zorder=1,
            rasterized=len(rows) > 5000,
        )  # fmt: skip


def _draw_frontier(axes: Axes, document: LawDocument, colour: ScalarMappable) -> None:
    frontier = document.frontier
    for left, right in itertools.pairwise(frontier):
        axes.plot(
            [left.x, right.x], np.array([left.reward.value, right.reward.value], np.float64),
            color=colour.to_rgba(np.array(left.n_star_strict)), lw=4, solid_capstyle="butt",
            alpha=0.45 if left.censored else 1.0, zorder=3,
        )  # fmt: skip


def _draw_ridge(
    axes: Axes, frontier: Sequence[FrontierPoint], x: np.ndarray[Any, Any], levels: np.ndarray[Any, Any]
) -> None:
    """n*(C) of the surface, with its pointwise and its simultaneous band; open ends leave the page."""
    if any(p.n_star.interval for p in frontier):
        low, high = closed([p.n_star.interval for p in frontier], levels)
        axes.fill_between(
            x, low, high, color=PALE, alpha=0.4, lw=0, label="95 % of draws, at each C", zorder=1
        )
        for edge, label in zip(
            closed([p.band for p in frontier], levels), ("95 % of draws, at all C", None), strict=True
        ):
            axes.plot(x, edge, color=PALE, lw=0.8, ls=":", label=label, zorder=1)
    axes.plot(x, n_stars(frontier), color=BLUE, lw=1.6, label="n*", zorder=3)


def _draw_law(axes: Axes, law: Law, x: np.ndarray[Any, Any], band: bool) -> None:
    fine = np.geomspace(x.min(), x.max(), 300)
    n, ends = law_line(law, fine)
    if n is None:
        return
    if band and ends is not None:
        axes.fill_between(
            fine, *ends, color=PALE, alpha=0.4, lw=0, label="95 % of draws (pointwise)", zorder=1
        )
    colour, width, dashes = (BLUE, 1.6, "-") if band else ("#404040", 1.0, "--")
    label = f"law ({text.law_name(text.preferred(law.document) or '')})"
    axes.plot(fine, n, color=colour, lw=width, ls=dashes, label=label, zorder=3)


def _title(document: LawDocument, title: str) -> str:
    fixed = ", ".join(f"{_SYMBOLS.get(name, name)} = {value}" for name, value in document.fixed.items())
    title = document.simulated.title(title)
    return plain(f"{title} ({fixed})") if fixed else title
