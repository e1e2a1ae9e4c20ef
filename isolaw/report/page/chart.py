"""The sections of the page, and their charts: traces and axes for plotly.js, a caption, a description.

Colours are names (``var(--n3)``, ``var(--accent)``) that the page resolves in its light or dark palette. Text
from data passes through `text`, since plotly.js interprets tags.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_hex

from isolaw.report.document import Table

_AXIS_MARGIN = 1.4  # the axis of n extends beyond the smallest and largest n by this factor
SILENT = {"hoverinfo": "skip", "showlegend": False}  # of a trace that shows no text and no legend entry


@dataclass(frozen=True)
class Chart:
    """A chart of the page.

    ``data`` and ``layout`` are for plotly.js. The ``meta`` of a trace can contain ``n`` and ``b``, which the
    page uses to show or hide the trace.
    """

    name: str  # also the file name of the SVG that a reader saves
    title: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    alt: str = ""  # for screen readers; the caption by default
    budget: bool = False  # whether the x axis marks the slider's budget
    height: int = 420  # in pixels

    def to_dict(self) -> dict[str, Any]:
        """Return the data that the page's script draws."""
        return {key: getattr(self, key) for key in ("name", "data", "layout", "budget", "height")}


@dataclass
class PageSection:
    """A section of the page: sentences, charts and tables."""

    name: str
    title: str
    lines: list[str] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


def text(value: object) -> str:
    """Escape text so that plotly.js shows it literally.

    >>> text("<b>a</b>")
    '&lt;b&gt;a&lt;/b&gt;'
    """
    return html.escape(str(value), quote=False)


def rounded(values: Iterable[float | None]) -> list[float | None]:
    """Round numbers to five significant digits; replace values that are not finite by None.

    >>> rounded([0.123456789, float("nan"), 1e6])
    [0.12346, None, 1000000]
    """
    short = (None if v is None or not math.isfinite(v) else float(f"{v:.5g}") for v in values)
    return [v if v is None or v != int(v) else int(v) for v in short]


def joined(segments: Sequence[Sequence[Any]]) -> list[Any]:
    """Join segments of a line, with a gap between consecutive segments.

    >>> joined([[1, 2], [3]])
    [1, 2, None, 3]
    """
    points: list[Any] = []
    for segment in segments:
        points += [None, *segment] if points else list(segment)
    return points


def line(x: Iterable[float], y: Iterable[float | None], style: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """Return a line trace with additional plotly.js keys."""
    return {"x": rounded(x), "y": rounded(y), "mode": "lines", "line": style, **keys}


def band(x: Any, low: Any, high: Any, **keys: Any) -> list[dict[str, Any]]:
    """Return two traces with the area between them filled; ``keys`` are keys of the upper one."""
    edge = {"width": 0, "color": "rgba(0,0,0,0)"}
    fill = {"fill": "tonexty", "fillcolor": "var(--band)"}
    return [line(x, low, edge, **SILENT), line(x, high, edge, **SILENT | fill | keys)]


def mark(x: float, label: str, colour: str, *, top: bool, on_left: bool, **style: Any) -> dict[str, Any]:
    """Return a vertical line with a label at its top or bottom end, on its left if ``on_left`` is true."""
    label_keys = {
        "text": label, "textangle": 0, "textposition": "end" if top else "start", "padding": 4,
        "yanchor": "top" if top else "bottom", "xanchor": "right" if on_left else "left",
        "font": {"size": 11, "color": colour},
    }  # fmt: skip
    line_keys = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x}
    return {**line_keys, "line": {"color": colour, "width": 1, **style}, "label": label_keys}


def n_colour(levels: Sequence[int], n: int) -> str:
    """Return the name of the colour of n."""
    return f"var(--n{list(levels).index(n)})"


def log_axis(title: str, values: Iterable[float]) -> dict[str, Any]:
    """Return a logarithmic axis for positive values. A short axis also has ticks between powers of ten."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.log10(min(positive)), math.log10(max(positive))
    margin = max((high - low) * 0.02, 0.01)
    is_long = high - low > 1.5
    ticks = {"dtick": 1, "exponentformat": "power"} if is_long else {"dtick": "D2", "tickformat": "~s"}
    return {
        "type": "log", "title": {"text": title}, "range": [low - margin, high + margin],
        "minor": {"ticks": "outside", "ticklen": 3}, **ticks,
    }  # fmt: skip


def n_axis(title: str, levels: Sequence[int]) -> dict[str, Any]:
    """Return a logarithmic axis with a tick at every n. It extends half a doubling beyond both ends."""
    margin = 0.5 * math.log10(2)
    ends = [math.log10(levels[0]) - margin, math.log10(levels[-1]) + margin]
    return {
        "type": "log", "title": {"text": title}, "range": ends, "tickmode": "array",
        "tickvals": list(levels), "ticktext": [f"{n:,}" for n in levels],
    }  # fmt: skip


def n_ends(levels: Iterable[float]) -> tuple[float, float]:
    """Return the limits of an axis of n that contains all these n."""
    n_values = list(levels)
    return min(n_values) / _AXIS_MARGIN, max(n_values) * _AXIS_MARGIN


def palette(levels: int) -> dict[str, dict[str, str]]:
    """Return the named colours of the light and the dark theme, for ``levels`` distinct n.

    The colours of n form a sequential scale for colour-blind readers (viridis), with more contrast for larger
    n. The colours of categories are from Okabe and Ito.
    """
    scale = mpl.colormaps["viridis"]
    shares = np.linspace(0, 1, levels) if levels > 1 else np.array([0.5])
    light = {f"n{i}": to_hex(scale(0.80 * (1 - share))) for i, share in enumerate(shares)}
    dark = {f"n{i}": to_hex(scale(0.32 + 0.66 * share)) for i, share in enumerate(shares)}
    return {"light": {**_LIGHT, **light}, "dark": {**_DARK, **dark}}


_LIGHT = {
    "paper": "#ffffff", "panel": "#f6f7f8", "text": "#1c1f24", "muted": "#5b626d", "line": "#dcdfe4",
    "grid": "#eceef1", "accent": "#1f5fa8", "band": "rgba(31, 95, 168, 0.16)", "mean": "#d55e00",
    "warn": "#a14a00", "bad": "#b3261e", "good": "#256b45",
    "map0": "#f4f6fa", "map1": "#b3cbe8", "map2": "#5b93d3",
}  # fmt: skip
_DARK = {
    "paper": "#131519", "panel": "#1b1e24", "text": "#e7e9ed", "muted": "#9aa2ae", "line": "#343942",
    "grid": "#262a31", "accent": "#7db2f0", "band": "rgba(125, 178, 240, 0.20)", "mean": "#f0914a",
    "warn": "#f0a860", "bad": "#f2897f", "good": "#7fcf9f",
    "map0": "#1b2029", "map1": "#27446b", "map2": "#3d72b4",
}  # fmt: skip
