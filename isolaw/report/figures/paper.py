"""The figures of arXiv 2603.12151, drawn from any runs; figures that the runs do not support get a reason.

File names and titles use the paper's numbers. The paper's Figures 2 to 7 are Figures 5 to 10 of its project
page (https://compute-optimal-rl-llm-scaling.github.io). The last two figures of this module have no number in
the paper's main text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isolaw.arguments import checked
from isolaw.errors import IsolawError, Refused
from isolaw.fits.law import Law
from isolaw.fits.metric import choose
from isolaw.fits.pipeline import fit
from isolaw.report.figures.law import draw_frontier, draw_n_star, draw_stars, frontier_figure, law_figure
from isolaw.report.figures.series import n_ends, stars
from isolaw.report.figures.style import BLUE, COLUMN, GREY, ORANGE, STYLE, n_colours, n_ticks, plain, save
from isolaw.report.fitted_runs import PLACE, FittedRuns
from isolaw.report.text.law import axis
from isolaw.report.text.numbers import number
from isolaw.report.text.prediction import predicted
from isolaw.runs import Runs, full_names
from isolaw.source import ReadKeywords, Source

KINDS = ("png", "svg", "pdf")
_BUDGETS = 30
_D = "n_train_problems"


@dataclass(frozen=True)
class Material:
    """The input of all figures: runs, values fixed in every fit, and other keywords of `isolaw.fit`."""

    runs: Runs
    fixed: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def law(self, hold: str, x: str = "compute", fixed: Mapping[str, Any] | None = None) -> Law:
        """Fit a law for one ``hold``."""
        keywords: dict[str, Any] = {
            "hold": hold,
            "x": x,
            "where": {**self.fixed, **(fixed or {})},
        }
        return fit(self.runs, **keywords, **self.options)

    @cached_property
    def at_one_batch(self) -> Law:
        """The law at one B_p. Two figures use it."""
        return self.law("B_p")


@checked
def paper_figures(
    runs: Source, folder: str | Path, *, where: Mapping[str, Any] | None = None, **options: Any
) -> tuple[list[Path], dict[str, str]]:
    """Draw the figures of arXiv 2603.12151 from runs, as PNG, SVG and PDF in ``folder``.

    ``where`` selects runs in every fit. ``options`` are other keywords of `isolaw.fit` (metric, eval_set,
    draws, …), and of `isolaw.read` if ``runs`` is a path or a DataFrame. Returns the paths of the files, and
    a dict with the reason for each figure that was not drawn, by its name.

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
    material = Material(runs, full_names(where or {}), options)
    drawn: dict[str, Figure] = {}
    reasons: dict[str, str] = {}
    for name, draw in FIGURES.items():
        try:
            with mpl.rc_context(STYLE):
                drawn[name] = draw(material)
        except IsolawError as error:
            reasons[name] = str(error)
    if not drawn:
        raise Refused("the runs support no figure: " + "; ".join(f"{n}: {why}" for n, why in reasons.items()))
    return save(drawn, folder, KINDS), reasons


def _fixed_b(material: Material) -> Figure:
    law = material.law("B")
    batch = law.document.fixed["batch_rollouts"]
    figure, axes = _frontier_and_n_star(material, law, [*law.levels, *(batch // law.levels)])
    x, n, *_ = stars(law)
    axes.plot(x, batch / n, color=ORANGE, lw=1.6, label="B_p* = B / n*")
    _finish(axes, law, f"the best split of B = {batch:,}", "n*, B_p*")
    return figure


def _joint(material: Material) -> Figure:
    law = material.law("nothing")
    batches = sorted({g.problems_per_batch for g in law.document.grid})
    if len(batches) < 2:
        raise Refused(f"all runs have B_p = {batches[0]}; add runs with other B_p")
    figure, axes = _frontier_and_n_star(material, law, [*law.levels, *batches])
    axes.step(*_chosen(law), where="mid", color=ORANGE, lw=1.6, label="B_p that loses least")
    _finish(axes, law, "the best n and B_p for a budget", "n*, B_p")
    return figure


def _frontier_and_n_star(material: Material, law: Law, ticks: Sequence[int]) -> tuple[Figure, Axes]:
    """Draw the frontier on the left and n* on the right; return the figure and the axes of n*."""
    figure, (left, right) = _panels(2)
    draw_frontier(left, law, material.runs)
    draw_stars(right, law, BLUE, "n*")
    every = np.unique(ticks)
    n_ticks(right, "y", every)
    right.set_ylim(*n_ends(every))
    return figure, right


def _chosen(law: Law) -> tuple[list[float], list[int]]:
    """Return the budgets along the frontier that have a recommendation, and the recommended B_p of each."""
    budgets, chosen = [], []
    x = [p.x for p in law.document.frontier]
    for budget in np.geomspace(min(x), max(x), _BUDGETS):
        found = predicted(law, float(budget))
        if found is not None and found.B_p is not None:
            chosen.append(found.B_p)
            budgets.append(float(budget))
    return budgets, chosen


def _study(material: Material) -> FittedRuns:
    metric, eval_set, _ = choose(material.runs, *(material.options.get(k) for k in ("metric", "eval_set")))
    return FittedRuns(material.runs, metric, eval_set, fixed=dict(material.fixed))


def _best_worst(material: Material) -> Figure:
    study = _study(material)
    names = study.best_and_worst()
    if not names:
        raise Refused(f"best@k and worst@k were not both measured on {study.eval_set}")
    b = study.one_batch()
    figure, panels = _panels(2)
    colour = n_colours(study.levels)
    for axes, name in zip(panels, names, strict=True):
        compute, table = study.finals(name, b)
        n = table["rollouts_per_problem"].tolist()
        places = np.arange(len(n))
        error = table["error"].fillna(0)
        axes.bar(places, table["value"], yerr=error, color=[colour.to_rgba(v) for v in n], width=0.75,
                 error_kw={"lw": 0.8, "ecolor": GREY})  # fmt: skip
        low, high = (table["value"] - error).min(), (table["value"] + error).max()
        axes.set_ylim(max(low - 0.4 * (high - low) - 1e-3, 0), high + 0.1 * (high - low) + 1e-3)
        axes.set_xticks(places, [f"{v:,}" for v in n])
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("n, rollouts per problem")
        axes.set_ylabel(plain(name))
        title = f"{plain(name)} at C = {number(compute)}, B_p = {b}"
        axes.set_title(study.held.simulated.title(title), loc="left")
    return figure


def _sensitivity(material: Material) -> Figure:
    """Draw reward at one compute over B_p for each n, and over n for each B_p, with standard errors."""
    study = _study(material)
    if len(study.batches) < 2 or len(study.levels) < 2:
        held = f"B_p = {study.batches[0]}" if len(study.batches) < 2 else f"n = {study.levels[0]}"
        raise Refused(f"all runs have {held}; add runs with another value")
    compute, table = study.finals()
    figure, panels = _panels(2)
    names = dict(zip(PLACE, ("B_p, problems per batch", "n, rollouts per problem"), strict=True))
    for axes, (over, held) in zip(panels, (tuple(names), tuple(names)[::-1]), strict=True):
        colour = n_colours(sorted(table[held].unique()))
        for value, own in table.sort_values(over).groupby(held):
            label = f"{'n' if held == 'rollouts_per_problem' else 'B_p'} = {value:,}"
            tint = colour.to_rgba(np.array(value))
            axes.errorbar(own[over], own["value"], own["error"].fillna(0), fmt="o-", ms=3, lw=1, color=tint,
                          capsize=2, label=label)  # fmt: skip
        n_ticks(axes, "x", sorted(table[over].unique()))
        axes.set_xlabel(names[over])
        axes.set_ylabel(plain(f"{study.metric} ({study.eval_set})"))
        title = f"reward over {names[over].partition(',')[0]} at C = {number(compute)}"
        axes.set_title(study.held.simulated.title(title), loc="left")
        axes.legend(frameon=False, fontsize=6, ncols=2)
    return figure


def _tokens(material: Material) -> Figure:
    if material.runs.points["tokens"].isna().all():
        raise Refused("the runs did not record tokens")
    law = material.law("B_p", x="tokens")
    figure, (left, right) = _panels(2)
    draw_frontier(left, law, material.runs)
    draw_n_star(right, law)
    right.legend(frameon=False)
    return figure


def _d_sweep(material: Material) -> Figure:
    table = material.runs.table()
    sizes = sorted({int(v) for v in table[_D].dropna()}) if _D in table else []
    if len(sizes) < 2:
        raise Refused("all runs have the same number of training problems, n_train_problems")
    figure, (axes,) = _panels(1)
    colour = n_colours(np.array(sizes))
    laws = {size: material.law("B_p", fixed={_D: size}) for size in sizes}
    for size, law in laws.items():
        draw_stars(axes, law, colour.to_rgba(np.array(size)), f"D = {size:,}")
    levels = np.unique(np.concatenate([law.levels for law in laws.values()]))
    n_ticks(axes, "y", levels)
    axes.set_ylim(*n_ends(levels))
    _finish(
        axes, laws[sizes[0]], "the best n by the number of training problems D", "n*, rollouts per problem"
    )
    return figure


FIGURES: dict[str, Callable[[Material], Figure]] = {
    "frontier": lambda material: frontier_figure(material.at_one_batch, material.runs),
    "law": lambda material: law_figure(material.at_one_batch),
    "best-worst": _best_worst,
    "fixed-b": _fixed_b,
    "sensitivity": _sensitivity,
    "joint": _joint,
    "tokens": _tokens,
    "d-sweep": _d_sweep,
}


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with one or two panels, sized for one or both columns of a two-column page."""
    figure = Figure(figsize=(COLUMN * (1.5 if count == 1 else 2.06), 2.9), layout="constrained")
    return figure, [figure.add_subplot(1, count, i + 1) for i in range(count)]


def _finish(axes: Axes, law: Law, title: str, y: str) -> None:
    axes.set_xscale("log")
    axes.set_xlabel(axis(law.document))
    axes.set_ylabel(y)
    title = law.document.simulated.title(f"{title} (bands: 95 % intervals)")
    axes.set_title(title, loc="left", wrap=True)
    axes.legend(frameon=False)
