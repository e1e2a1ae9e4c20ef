"""What a chart of the page is: traces and axes for plotly.js, a caption, and its text for those who hear it.

Colours are names (``var(--n3)``, ``var(--accent)``) that the page looks up in its light or dark palette.
Text from data goes into plotly.js through `text`, since plotly.js reads tags in it.
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

_DIGITS = 5


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes
    ----------
    name
        of its element, and of the SVG that it is saved as.
    title, caption
        what it shows, and how to read it.
    alt
        the same for a screen reader, with the numbers that matter.
    data, layout
        for plotly.js. A trace's ``meta`` may hold ``n`` and ``b``, by which the page shows and hides it.
    budget
        whether the slider's budget is marked on the x axis.
    height
        in pixels.
    """

    name: str
    title: str
    caption: str
    alt: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    budget: bool = False
    height: int = 420
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return what the page's script draws from."""
        return {
            "name": self.name,
            "data": self.data,
            "layout": self.layout,
            "budget": self.budget,
            "height": self.height,
        }


def text(value: object) -> str:
    """Return a text that plotly.js shows as it is.

    >>> text("<b>a</b>")
    '&lt;b&gt;a&lt;/b&gt;'
    """
    return html.escape(str(value), quote=False)


def rounded(values: Iterable[float | None]) -> list[float | None]:
    """Return numbers with five digits, None for what is not finite.

    >>> rounded([0.123456789, float("nan"), 1e6])
    [0.12346, None, 1000000]
    """
    out: list[float | None] = []
    for value in values:
        if value is None or not math.isfinite(value):
            out.append(None)
        else:
            short = float(f"{value:.{_DIGITS}g}")
            out.append(int(short) if short == int(short) else short)
    return out


def joined(pieces: Sequence[Sequence[Any]]) -> list[Any]:
    """Return pieces of a line one after the other, a gap between them.

    >>> joined([[1, 2], [3]])
    [1, 2, None, 3]
    """
    out: list[Any] = []
    for piece in pieces:
        out += [None, *piece] if out else list(piece)
    return out


def n_colour(levels: Sequence[int], n: int) -> str:
    """Return the name of the colour of n."""
    return f"var(--n{list(levels).index(n)})"


def log_axis(title: str, values: Iterable[float]) -> dict[str, Any]:
    """Return a logarithmic axis over positive values; short ones with ticks between the powers."""
    known = [v for v in values if v > 0] or [1.0]
    low, high = math.log10(min(known)), math.log10(max(known))
    margin = max((high - low) * 0.02, 0.01)
    ticks = (
        {"dtick": 1, "exponentformat": "power"} if high - low > 1.5 else {"dtick": "D2", "tickformat": "~s"}
    )
    minor = {"ticks": "outside", "ticklen": 3}
    return {
        "type": "log",
        "title": {"text": title},
        "range": [low - margin, high + margin],
        "minor": minor,
        **ticks,
    }


def n_axis(title: str, levels: Sequence[int], room: float = 0.5) -> dict[str, Any]:
    """Return a logarithmic axis with a tick at every n; ``room`` beyond the ends in doublings."""
    ends = math.log10(levels[0]) - room * math.log10(2), math.log10(levels[-1]) + room * math.log10(2)
    named = [f"{n:,}" for n in levels]
    return {
        "type": "log", "title": {"text": title}, "range": list(ends), "tickmode": "array",
        "tickvals": list(levels), "ticktext": named,
    }  # fmt: skip


def palette(levels: int) -> dict[str, dict[str, str]]:
    """Return the colours of both themes by name; ``levels`` is the number of n.

    n is on a sequential scale that colour-blind eyes keep apart (viridis), the larger the stronger against
    the page; what is told apart by kind has Okabe and Ito's colours.
    """
    scale = mpl.colormaps["viridis"]
    shares = np.linspace(0, 1, levels) if levels > 1 else np.array([0.5])
    light = {f"n{i}": to_hex(scale(0.80 * (1 - s))) for i, s in enumerate(shares)}
    dark = {f"n{i}": to_hex(scale(0.32 + 0.66 * s)) for i, s in enumerate(shares)}
    return {"light": {**_LIGHT, **light}, "dark": {**_DARK, **dark}}


_LIGHT = {
    "paper": "#ffffff", "panel": "#f6f7f8", "text": "#1c1f24", "muted": "#5b626d", "line": "#dcdfe4",
    "grid": "#eceef1", "accent": "#1f5fa8", "band": "rgba(31, 95, 168, 0.16)", "warn": "#a14a00",
    "bad": "#b3261e", "good": "#256b45", "map0": "#f4f6fa", "map1": "#b3cbe8", "map2": "#5b93d3",
    "k0": "#0072b2", "k1": "#d55e00", "k2": "#008262", "k3": "#a8518a",
}  # fmt: skip
_DARK = {
    "paper": "#131519", "panel": "#1b1e24", "text": "#e7e9ed", "muted": "#9aa2ae", "line": "#343942",
    "grid": "#262a31", "accent": "#7db2f0", "band": "rgba(125, 178, 240, 0.20)", "warn": "#f0a860",
    "bad": "#f2897f", "good": "#7fcf9f", "map0": "#1b2029", "map1": "#27446b", "map2": "#3d72b4",
    "k0": "#56b4e9", "k1": "#f0914a", "k2": "#3fc79e", "k3": "#dd9cc6",
}  # fmt: skip
