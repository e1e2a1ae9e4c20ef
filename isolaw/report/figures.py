"""The charts of the page as figures for a paper: n*(C), the runs with their frontier, rewards at one compute.

`draw` renders a `Chart` with matplotlib. Figures are plain `matplotlib.figure.Figure` objects: they need no
display and change no global state. Without dates, the same figure always gives the same file.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from isolaw.arguments import checked
from isolaw.errors import DataError, Refused
from isolaw.evidence import Simulated, amount
from isolaw.files import check_destination, replacing
from isolaw.fits.law import Law
from isolaw.report.fitted_runs import SHAPE_COLUMNS, FittedRuns
from isolaw.report.page import law_charts, run_charts
from isolaw.report.page.budgets import budgets
from isolaw.report.page.chart import Chart, palette
from isolaw.runs import ReadKeywords, Source, full_names

STYLE: Any = {
    "font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#e6e6e6", "grid.linewidth": 0.6, "axes.axisbelow": True, "svg.fonttype": "none",
    "svg.hashsalt": "isolaw", "pdf.fonttype": 42,
}  # fmt: skip
_SIZE = (6.9, 3.6)  # inches: the width of two columns of a paper
_PIXELS_PER_POINT = 1.5  # of the page's lines, for one point of a figure's
_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
_KINDS = ("png", "svg", "pdf")
_AUTHOR = "isolaw"  # the author of files that isolaw may replace
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Author": _AUTHOR},
    "svg": {"Date": None, "Creator": _AUTHOR},
    "pdf": {"CreationDate": None, "Author": _AUTHOR},
}


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
    read_keywords: Any = {name: options.pop(name) for name in ReadKeywords.__annotations__ if name in options}
    from isolaw.readers.read import as_runs

    runs = as_runs(runs, options.get("metric"), **read_keywords)
    keywords = {"metric": None, "eval_set": None, "hold": None, **options, "where": full_names(where or {})}
    return write_figures(FittedRuns.fitted_to(runs, keywords), folder)


def write_figures(study: FittedRuns, folder: str | Path) -> tuple[list[Path], dict[str, str]]:
    """Write the figures of `paper_figures` for runs and their law, and return the same."""
    simulated, figures, reasons = study.selected.simulated, {}, {}
    if study.law is None:
        reasons = dict.fromkeys(("frontier", "law"), study.no_law)
    else:
        predicted, run_ids = budgets(study.law, None), sorted(study.runs.points["run_id"].unique())
        frontier = law_charts.reward(study, run_ids, predicted)
        figures = {
            "frontier": draw(frontier, len(study.levels), simulated),
            "law": draw(law_charts.n_star(study.law, predicted), 1, simulated),
        }
    if any(study.metric_rows()[name].nunique() > 1 for name in SHAPE_COLUMNS):
        figures["rewards"] = draw(run_charts.grid(study), len(study.levels), simulated)
    else:
        reasons["rewards"] = f"all runs have n = {study.levels[0]} and B_p = {study.batches[0]}"
    if not figures:
        causes = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise Refused(f"the runs support no figure: {causes}")
    return save(figures, folder, _KINDS), reasons


@checked
def law_figure(law: Law) -> Figure:
    """Draw the chart of n*(C) that the page shows, with the n recommended at the end of the runs.

    With ``hold="B"`` the x axis is M, and with ``hold="n"`` the chart shows B_p*.
    """
    return draw(law_charts.n_star(law, budgets(law, None)), 1, law.document.simulated)


def draw(chart: Chart, levels: int, simulated: Simulated) -> Figure:
    """Draw a chart of the page, in the light palette for ``levels`` distinct n."""
    with mpl.rc_context(STYLE):
        figure = _Figure(figsize=_SIZE, layout="constrained")
        axes, colours = figure.add_subplot(), _Colours(levels)
        previous: dict[str, Any] = {}
        for trace in chart.data:
            if trace.get("type") == "heatmap":
                _draw_map(axes, trace, colours)
            else:
                _draw_trace(axes, trace, previous, colours)
            previous = trace
        for shape in chart.layout.get("shapes", ()):
            _draw_shape(axes, shape, colours)
        for axis_name in ("x", "y"):
            _draw_axis(axes, axis_name, chart.layout[f"{axis_name}axis"])  # type: ignore[arg-type]
        axes.set_title(simulated.title(_plain_text(chart.title)), loc="left")
        if entry_count := len(axes.get_legend_handles_labels()[0]):
            figure.legend(loc="outside lower center", ncols=min(entry_count, 7), frameon=False)
    return figure


class _Figure(Figure):
    """A figure that a notebook shows, also one that has not imported pyplot."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        image = io.BytesIO()
        self.savefig(image, dpi=2 * self.dpi)  # for screens of high resolution, at the usual size
        return image.getvalue(), dict(zip(("width", "height"), self.canvas.get_width_height(), strict=True))


class _Colours:
    """The colours that a chart names, such as ``var(--n3)``, for matplotlib."""

    def __init__(self, levels: int) -> None:
        self.palette = palette(levels)["light"]

    def __getitem__(self, name: str) -> Any:
        value = re.sub(r"var\(--(\w+)\)", lambda match: self.palette[match[1]], name)
        if not value.startswith("rgba"):
            return value
        *rgb, alpha = map(float, re.findall(r"[\d.]+", value))
        return (*(channel / 255 for channel in rgb), alpha)


def _draw_trace(axes: Axes, trace: Mapping[str, Any], previous: Mapping[str, Any], colours: _Colours) -> None:
    x, y = (np.array(trace[key], dtype=np.float64) for key in "xy")
    label = _plain_text(trace["name"]) if trace.get("showlegend") else _label_of_n(axes, trace)
    if "fill" in trace:  # the area to the trace before it
        lower = np.array(previous["y"], dtype=np.float64)
        axes.fill_between(x, lower, y, color=colours[trace["fillcolor"]], lw=0, label=label)
        return
    style = trace["line"]
    has_line = "lines" in trace["mode"] and style["width"] > 0
    if "error_y" in trace:
        errors = np.array(trace["error_y"]["array"], dtype=np.float64)
        axes.vlines(x, y - errors, y + errors, color=colours[style["color"]], lw=0.8)
    if has_line:
        axes.plot(
            x, y, color=colours[style["color"]], lw=style["width"] / _PIXELS_PER_POINT, label=label,
            ls=_DASHES[style.get("dash", "solid")], alpha=trace.get("opacity"), rasterized=x.size > 5000,
        )  # fmt: skip
    if "markers" in trace["mode"]:
        colour = trace.get("marker", {}).get("color", style["color"])
        tints = [colours[name] for name in colour] if isinstance(colour, list) else colours[colour]
        axes.scatter(x, y, s=14, c=tints, label="_" if has_line else label, zorder=3)


def _label_of_n(axes: Axes, trace: Mapping[str, Any]) -> str:
    """Return the legend entry of the first curve of an n, which buttons of the page show; else nothing."""
    n = trace.get("meta", {}).get("n")
    label = "_" if n is None or "runs" in trace["meta"] else f"n = {n:,}"
    return "_" if label in axes.get_legend_handles_labels()[1] else label


def _draw_map(axes: Axes, trace: Mapping[str, Any], colours: _Colours) -> None:
    values = np.array(trace["z"], dtype=np.float64)
    colour_map = mpl.colors.LinearSegmentedColormap.from_list(
        "map", [(position, colours[colour]) for position, colour in trace["colorscale"]]
    )
    axes.pcolormesh(np.arange(values.shape[1]), np.arange(values.shape[0]), values, cmap=colour_map)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            axes.text(column, row, f"{value:.3f}", ha="center", va="center", fontsize=6)
    for axis_name, names in (("x", trace["x"]), ("y", trace["y"])):
        axis = getattr(axes, f"{axis_name}axis")
        axis.set_ticks(range(len(names)), labels=[*names])
    axes.grid(visible=False)


def _draw_shape(axes: Axes, shape: Mapping[str, Any], colours: _Colours) -> None:
    line, label = shape["line"], shape.get("label", {})
    colour, style = colours[line["color"]], _DASHES[line.get("dash", "solid")]
    if shape["type"] == "rect":
        corner, size = (shape["x0"], shape["y0"]), (shape["x1"] - shape["x0"], shape["y1"] - shape["y0"])
        axes.add_patch(mpl.patches.Rectangle(corner, *size, fill=False, ec=colour, lw=1.2))
        return
    if shape.get("xref") == "paper":  # a horizontal line
        axes.axhline(shape["y0"], color=colour, lw=0.8, ls=style)
        position, units = (0.01, shape["y0"]), ("axes fraction", "data")
    else:
        axes.axvline(shape["x0"], color=colour, lw=0.8, ls=style)
        position = (shape["x0"], 1.0 if label["yanchor"] == "top" else 0.0)
        units = ("data", "axes fraction")
    axes.annotate(
        _plain_text(label["text"]), position, xycoords=units,
        xytext=(-3 if label.get("xanchor") == "right" else 3, -3 if label["yanchor"] == "top" else 3),
        textcoords="offset points", ha=label.get("xanchor", "left"), va=label["yanchor"], color=colour,
        fontsize=7,
    )  # fmt: skip


def _draw_axis(axes: Axes, axis_name: Literal["x", "y"], layout: Mapping[str, Any]) -> None:
    axes.set(**{f"{axis_name}label": _plain_text(layout["title"]["text"])})
    axis = getattr(axes, f"{axis_name}axis")
    if layout.get("type") == "log":
        axes.set(**{f"{axis_name}scale": "log"})
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))
        if "tickvals" in layout:
            axis.set_ticks(layout["tickvals"], labels=layout["ticktext"])
            axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
    if "range" in layout:
        axes.set(**{f"{axis_name}lim": 10.0 ** np.array(layout["range"])})


def _plain_text(text: str) -> str:
    """Return text of a chart, without formulas of matplotlib and without escapes for plotly.js.

    >>> _plain_text("acc$ &lt;")
    'acc\\\\$ <'
    """
    return html.unescape(text).replace("$", r"\$")


def save(
    figures: Mapping[str, Figure], folder: str | Path, kinds: Sequence[str], replace: bool = False
) -> list[Path]:
    """Write each figure in each format and return the paths. The same figure always gives the same bytes.

    Unless ``replace`` is true, isolaw replaces only its own figures. Raises `DataError` if another file has
    the name of a figure, or if the folder cannot be written.
    """
    folder = Path(folder)
    paths = {(name, kind): folder / f"{name}.{kind}" for name in figures for kind in kinds}
    for path in paths.values():
        check_destination(path)
    try:
        others = [path for path in paths.values() if not (replace or not path.exists() or _is_ours(path))]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot write figures ({error.strerror or error})") from None
    if others:
        names = ", ".join(map(str, others))
        raise DataError(f"{names}: exists and is not a figure of isolaw; it is left unchanged")
    for (name, kind), path in paths.items():
        with mpl.rc_context(STYLE), replacing(path) as temporary:
            figures[name].savefig(temporary, format=kind, dpi=160, metadata=_METADATA.get(kind))
    return list(paths.values())


def _is_ours(path: Path) -> bool:
    return path.is_file() and (path.stat().st_size == 0 or _AUTHOR.encode() in path.read_bytes())
