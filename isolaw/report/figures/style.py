"""The style of figures, the axis of n, and the code that saves figures.

Figures are plain `matplotlib.figure.Figure` objects: they need no display and change no global state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, ScalarFormatter

from isolaw.errors import DataError
from isolaw.evidence import amount
from isolaw.files import check_destination, replacing

STYLE: Any = {
    "font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": "#e6e6e6", "grid.linewidth": 0.6, "axes.axisbelow": True, "svg.fonttype": "none",
    "svg.hashsalt": "isolaw", "pdf.fonttype": 42,
}  # fmt: skip
# The colors of Okabe and Ito, which are distinguishable for color-blind readers. PALE is a tint of BLUE.
BLUE, ORANGE, PALE, GREY = "#0072b2", "#d55e00", "#9dc8e4", "#7f7f7f"
RAMP = "viridis_r"
COLUMN = 3.35  # inches: one column of a two-column paper; two columns and their gap are 6.9
_DPI = 160
# Without a date, the same figure gives the same file. The author field marks files that isolaw may replace.
_MARK = "isolaw"
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Author": _MARK},
    "svg": {"Date": None, "Creator": _MARK},
    "pdf": {"CreationDate": None, "Author": _MARK},
}
Levels = Sequence[int] | np.ndarray[Any, Any]


def n_colours(levels: Levels) -> ScalarMappable:
    """Return a map from n to its colour."""
    return ScalarMappable(LogNorm(levels[0] / 1.2, levels[-1] * 1.2), mpl.colormaps[RAMP])


def n_ticks(axes: Axes, which: Literal["x", "y"], levels: Levels) -> None:
    """Make an axis logarithmic, with a tick at every measured n or B_p."""
    axes.set_yscale("log", base=2) if which == "y" else axes.set_xscale("log", base=2)
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(FixedLocator([float(n) for n in levels]))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_formatter(NullFormatter())


def budget_ticks(axes: Axes) -> None:
    """Make the x axis, of budgets, logarithmic, with ticks that people read, such as 200k and 5M."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def plain(text: str) -> str:
    """Escape the dollar signs of text from data, so that matplotlib does not render formulas.

    >>> plain("acc$")
    'acc\\\\$'
    """
    return text.replace("$", r"\$")


def save(
    figures: Mapping[str, Figure], folder: str | Path, kinds: Sequence[str], replace: bool = False
) -> list[Path]:
    """Write each figure in each format and return the paths. The same figure always gives the same bytes.

    Unless ``replace`` is true, isolaw replaces only its own figures. Raises `DataError` if another file has
    the name of a figure, or if the folder cannot be written.
    """
    folder = Path(folder)
    paths = {(name, kind): folder / f"{name}.{kind}" for name in figures for kind in kinds}
    try:
        if not replace:
            check_replaceable(*paths.values())
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot write figures ({error.strerror or error})") from None
    for (name, kind), path in paths.items():
        with mpl.rc_context(STYLE), replacing(path) as temporary:
            figures[name].savefig(temporary, format=kind, dpi=_DPI, metadata=_METADATA.get(kind))
    return list(paths.values())


def check_replaceable(*paths: Path) -> None:
    """Raise `DataError` for existing files that are not figures from isolaw, and for paths inside a sweep."""
    for path in paths:
        check_destination(path)
    foreign = [path for path in paths if path.exists() and not _is_ours(path)]
    if foreign:
        listed = ", ".join(map(str, foreign))
        raise DataError(f"{listed}: exists and is not a figure of isolaw; it is left unchanged")


def _is_ours(path: Path) -> bool:
    return path.is_file() and (path.stat().st_size == 0 or _MARK.encode() in path.read_bytes())
