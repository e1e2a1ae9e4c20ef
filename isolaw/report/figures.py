"""The chart of n*(C) as a figure for a paper.

`draw` renders a `Chart` of lines with matplotlib. Figures are plain `matplotlib.figure.Figure` objects: they
need no display and change no global state.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from isolaw.arguments import checked
from isolaw.evidence import Simulated, amount
from isolaw.fits.law import Law
from isolaw.report.page import law_charts
from isolaw.report.page.budgets import budgets
from isolaw.report.page.chart import Chart, palette

STYLE: Any = {
    "font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#e6e6e6", "grid.linewidth": 0.6, "axes.axisbelow": True,
}  # fmt: skip
_SIZE = (6.9, 3.6)  # inches: the width of two columns of a paper
_PIXELS_PER_POINT = 1.5  # of the page's lines, for one point of a figure's
_DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}


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
    if has_line:
        axes.plot(
            x, y, color=colours[style["color"]], lw=style["width"] / _PIXELS_PER_POINT, label=label,
            ls=_DASHES[style.get("dash", "solid")], alpha=trace.get("opacity"), rasterized=x.size > 5000,
        )  # fmt: skip
    if "markers" in trace["mode"]:
        colour = trace.get("marker", {}).get("color", style["color"])
        axes.scatter(x, y, s=14, c=colours[colour], label="_" if has_line else label, zorder=3)


def _label_of_n(axes: Axes, trace: Mapping[str, Any]) -> str:
    """Return the legend entry of the first curve of an n, which buttons of the page show; else nothing."""
    n = trace.get("meta", {}).get("n")
    label = "_" if n is None or "runs" in trace["meta"] else f"n = {n:,}"
    return "_" if label in axes.get_legend_handles_labels()[1] else label


def _draw_shape(axes: Axes, shape: Mapping[str, Any], colours: _Colours) -> None:
    line, label = shape["line"], shape.get("label", {})
    colour, style = colours[line["color"]], _DASHES[line.get("dash", "solid")]
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
