"""The figures of a law: reward against compute with the frontier, n*(C), and rewards at one compute."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from isolaw.arguments import checked
from isolaw.errors import Refused
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
    budget_ticks,
    n_colours,
    n_ticks,
    plain,
    save,
)
from isolaw.report.fitted_runs import PLACE, FittedRuns
from isolaw.report.text import law as text
from isolaw.report.text.numbers import number
from isolaw.report.text.prediction import at_the_end
from isolaw.runs import SYMBOL_OF, Runs, full_names
from isolaw.source import ReadKeywords, Source

_KINDS = ("png", "svg", "pdf")


@checked
def paper_figures(
    runs: Source, folder: str | Path, *, where: Mapping[str, Any] | None = None, **options: Any
) -> tuple[list[Path], dict[str, str]]:
    """Draw figures for a paper, as PNG, SVG and PDF in ``folder``: frontier, law, and rewards at one compute.

    ``where`` selects runs. ``options`` are other keywords of `isolaw.fit` (metric, eval_set, draws, …), and
    of `isolaw.read` if ``runs`` is a path or a DataFrame. Without ``hold``, isolaw chooses it from how B_p
    and n vary. Returns the paths of the files, and a dict with the reason for each figure that was not drawn,
    by its name.

    Raises
    ------
    Refused
        the runs support no figure.
    DataError
        the folder cannot be written.
    """
    reading: Any = {name: options.pop(name) for name in ReadKeywords.__annotations__ if name in options}
    from isolaw.readers.read import as_runs

    runs = as_runs(runs, options.get("metric"), **reading)
    keywords = {"metric": None, "eval_set": None, "hold": None, **options, "where": full_names(where or {})}
    return write_figures(FittedRuns.fitted_to(runs, keywords), folder)


def write_figures(study: FittedRuns, folder: str | Path) -> tuple[list[Path], dict[str, str]]:
    """Write the figures of `paper_figures` for runs and their law, and return the same."""
    drawn, reasons = {}, {}
    if study.law is None:
        reasons = dict.fromkeys(("frontier", "law"), study.refused)
    else:
        drawn = {"frontier": frontier_figure(study.law, study.runs), "law": law_figure(study.law)}
    try:
        drawn["rewards"] = rewards_figure(study)
    except Refused as error:
        reasons["rewards"] = str(error)
    if not drawn:
        raise Refused("the runs support no figure: " + "; ".join(f"{n}: {why}" for n, why in reasons.items()))
    return save(drawn, folder, _KINDS), reasons


def rewards_figure(study: FittedRuns) -> Figure:
    """Draw reward at one compute over n for each B_p, and over B_p for each n, with standard errors.

    An axis with one value has no panel. Raises `Refused` if all runs have the same n and B_p.
    """
    names = dict(zip(PLACE, ("B_p, problems per batch", "n, rollouts per problem"), strict=True))
    compute, table = study.finals()
    panels = [over for over in reversed(PLACE) if table[over].nunique() > 1]
    if not panels:
        raise Refused(f"all runs have n = {study.levels[0]} and B_p = {study.batches[0]}")
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN * (1.5 if len(panels) == 1 else 2.06), 2.9), layout="constrained")
        for i, over in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), i + 1)
            (held,) = {*PLACE} - {over}
            colour = n_colours(sorted(table[held].unique()))
            for value, line in table.sort_values(over).groupby(held):
                label = f"{names[held].partition(',')[0]} = {value:,}"
                axes.errorbar(line[over], line["value"], line["error"].fillna(0), fmt="o-", ms=3, lw=1,
                              color=colour.to_rgba(np.array(value)), capsize=2, label=label)  # fmt: skip
            n_ticks(axes, "x", sorted(table[over].unique()))
            axes.set_xlabel(names[over])
            axes.set_ylabel(plain(f"{study.metric} ({study.eval_set})"))
            title = f"reward over {names[over].partition(',')[0]} at C = {number(compute)}"
            axes.set_title(study.held.simulated.title(title), loc="left")
            axes.legend(frameon=False, fontsize=6, ncols=2)
    return figure


def frontier_figure(law: Law, runs: Runs | None = None) -> Figure:
    """Draw reward against compute: the checkpoints of ``runs``, the fitted rewards and the frontier."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN * 2, 3.6), layout="constrained")
        _draw_frontier(figure.add_subplot(), law, runs)
    return figure


@checked
def law_figure(law: Law) -> Figure:
    """Draw n* and the law against C on log axes, with the n recommended at the end of the runs.

    With ``hold="B"`` the x axis is M.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(COLUMN * 1.5, 3.6), layout="constrained")
        _draw_n_star(figure.add_subplot(), law)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _draw_frontier(axes: Axes, law: Law, runs: Runs | None) -> None:
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
    budget_ticks(axes)
    axes.set_xlabel(text.axis(document))
    axes.set_ylabel(plain(f"{document.metric} ({document.eval_set})"))
    axes.set_title(_title(document, "reward and the compute-optimal frontier"), loc="left")
    bar = axes.figure.colorbar(colour, ax=axes, label="n, rollouts per problem", pad=0.01)
    bar.ax.yaxis.set_major_locator(FixedLocator([float(n) for n in levels]))
    bar.ax.yaxis.set_major_formatter(ScalarFormatter())
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.outline.set_visible(False)  # type: ignore[operator]


def _draw_n_star(axes: Axes, law: Law) -> None:
    document, levels = law.document, law.levels
    x = np.array([p.x for p in document.frontier])
    paper = document.method == "paper"
    if paper:
        points = [(p.x, p.n_star_strict) for p in document.frontier if not p.censored]
        axes.plot(*np.array(points).reshape(-1, 2).T, "o", ms=3, color=BLUE, label="n*, measured", zorder=4)
    else:
        at, n, low, high = stars(law)
        axes.fill_between(at, low, high, color=BLUE, alpha=0.18, lw=0, zorder=1)
        axes.plot(at, n, color=BLUE, lw=1.6, label="n* (band: 95 % of draws)", zorder=3)
    _draw_law(axes, law, x, band=paper)
    _draw_recommended(axes, law, of_reward=False)
    for edge in (levels[0], levels[-1]):
        axes.axhline(edge, color=GREY, lw=0.8, ls="--", zorder=1)
    axes.annotate(
        "largest n measured", (0, levels[-1]), xycoords=("axes fraction", "data"), xytext=(3, 3),
        textcoords="offset points", color=GREY, fontsize=7,
    )  # fmt: skip
    budget_ticks(axes)
    n_ticks(axes, "y", levels)
    best = at_the_end(law)
    shown = None if best is None else best.B_p if document.axis == "problems_per_batch" else best.n
    axes.set_ylim(*n_ends([*levels.tolist(), *([shown] if shown else [])]))
    axes.set_xlabel(text.axis(document))
    axes.set_ylabel("n*, rollouts per problem")
    axes.set_title(_title(document, "the best n for a budget"), loc="left")


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
    study = FittedRuns.of(law, runs)
    rows = study.fitted()
    rows = rows.assign(x=study.x(rows)).query("x > 0")
    for entry in law.document.grid:
        b, n = entry.problems_per_batch, entry.rollouts_per_problem
        row = rows[(rows["problems_per_batch"] == b) & (rows["rollouts_per_problem"] == n)]
        axes.plot(
            row["x"], row["value"], ".", ms=2, color=colour.to_rgba(np.array(n)), alpha=0.35, zorder=1,
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
    fixed = ", ".join(f"{SYMBOL_OF.get(name, name)} = {value}" for name, value in document.fixed.items())
    title = document.simulated.title(title)
    return plain(f"{title} ({fixed})") if fixed else title
