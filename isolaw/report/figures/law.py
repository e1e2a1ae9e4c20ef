"""The two figures of a law: reward against compute with the frontier, and n*(C)."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from isolaw.arguments import checked
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.law import Law
from isolaw.report.figures.series import fitted_curves, law_line, n_ends, stars, steps_scale
from isolaw.report.figures.style import (
    BLUE,
    COLUMN,
    GREY,
    ORANGE,
    PALE,
    STYLE,
    n_colours,
    n_ticks,
    plain,
)
from isolaw.report.study import Study
from isolaw.report.text import law as text
from isolaw.report.text.numbers import number
from isolaw.report.text.prediction import at_the_end
from isolaw.runs import SYMBOLS, Runs

_SYMBOLS = {name: symbol for symbol, name in SYMBOLS.items()}


def frontier_figure(law: Law, runs: Runs | None = None) -> Figure:
    """Draw reward against compute: the checkpoints of ``runs``, the fitted rewards and the frontier."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN * 2, 3.6), layout="constrained")
        draw_frontier(figure.add_subplot(), law, runs)
    return figure


@checked
def law_figure(law: Law) -> Figure:
    """Draw n* and the law against C on log axes, with the n recommended at the end of the runs.

    With ``hold="B"`` the x axis is M.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN * 1.5, 3.6), layout="constrained")
        draw_n_star(figure.add_subplot(), law)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_frontier(axes: Axes, law: Law, runs: Runs | None = None) -> None:
    """Draw `frontier_figure` on ``axes``, next to a colour bar for n."""
    document = law.document
    levels = law.levels
    colour = n_colours(levels)
    if runs is not None:
        _draw_checkpoints(axes, law, runs, colour)
    for entry, curve in zip(document.grid, fitted_curves(law), strict=True):
        tint = colour.to_rgba(np.array(entry.rollouts_per_problem))
        axes.plot(*curve, color=tint, lw=1.0, alpha=0.8, zorder=2)
    frontier = document.frontier
    axes.plot(
        [p.x for p in frontier], np.array([p.reward.value for p in frontier], np.float64),
        color="black", lw=2, label="frontier", zorder=3,
    )  # fmt: skip
    _draw_recommended(axes, law, of_reward=True)
    axes.legend(frameon=False, loc="lower right")
    axes.set_xscale("log")
    axes.set_xlabel(text.axis(document))
    axes.set_ylabel(plain(f"{document.metric} ({document.eval_set})"))
    axes.set_title(_title(document, "reward and the compute-optimal frontier"), loc="left")
    bar = axes.figure.colorbar(colour, ax=axes, label="n, rollouts per problem", pad=0.01)
    bar.ax.yaxis.set_major_locator(FixedLocator([float(n) for n in levels]))
    bar.ax.yaxis.set_major_formatter(ScalarFormatter())
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.outline.set_visible(False)  # type: ignore[operator]


def draw_n_star(axes: Axes, law: Law) -> None:
    """Draw `law_figure` on ``axes``, without its legend."""
    document, levels = law.document, law.levels
    x = np.array([p.x for p in document.frontier])
    paper = document.method == "paper"
    if paper:
        points = [(p.x, p.n_star_strict) for p in document.frontier if not p.censored]
        axes.plot(*np.array(points).reshape(-1, 2).T, "o", ms=3, color=BLUE, label="n*, measured", zorder=4)
    else:
        draw_stars(axes, law, BLUE, "n* (band: 95 % of draws)")
    _draw_law(axes, law, x, band=paper)
    _draw_recommended(axes, law, of_reward=False)
    for edge in (levels[0], levels[-1]):
        axes.axhline(edge, color=GREY, lw=0.8, ls="--", zorder=1)
    axes.annotate(
        "largest n measured", (0, levels[-1]), xycoords=("axes fraction", "data"), xytext=(3, 3),
        textcoords="offset points", color=GREY, fontsize=7,
    )  # fmt: skip
    axes.set_xscale("log")
    n_ticks(axes, "y", levels)
    axes.set_ylim(*n_ends(levels))
    axes.set_xlabel(text.axis(document))
    axes.set_ylabel("n*, rollouts per problem")
    axes.set_title(_title(document, "the best n for a budget"), loc="left")


def draw_stars(axes: Axes, law: Law, colour: Any, label: str) -> None:
    """Draw n* and the band of its interval."""
    x, n, low, high = stars(law)
    axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0, zorder=1)
    axes.plot(x, n, color=colour, lw=1.6, label=label, zorder=3)


def _draw_recommended(axes: Axes, law: Law, of_reward: bool) -> None:
    """Mark the allocation recommended at the end of the runs, at its reward or at its n (or B_p)."""
    best, document = at_the_end(law), law.document
    if best is None:
        return
    symbol, n = ("B_p", best.B_p) if document.axis == "problems_per_batch" else ("n", best.n)
    y = best.reward.value if of_reward else n
    if y is not None:
        label = f"recommended at C = {number(best.compute)}: {symbol} = {n}"
        axes.plot(best.compute / steps_scale(document), y, "o", ms=5, color=ORANGE, label=label, zorder=5)


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
