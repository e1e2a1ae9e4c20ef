"""A picture for each finding of `isolaw findings`, drawn from its document alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator, ScalarFormatter

from isolaw.errors import DataError
from isolaw.report.figures.law import DPI, GREY, STYLE

_COLOURS = ("#1f4e79", "#c55a11", "#548235", "#7f6000")
_RAMP = "viridis_r"
_C, _M, _N = "C, rollouts generated", "M, update steps", "n, rollouts per problem"
Series = Mapping[str, Any]


def write(document: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Write ``figures/F1.png`` and so on below ``folder``; return the paths.

    Raises
    ------
    DataError
        the folder cannot be written.
    """
    target = Path(folder) / "figures"
    out = []
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, figure in figures(document).items():
            out.append(target / f"{name}.png")
            with mpl.rc_context(STYLE):
                figure.savefig(out[-1], dpi=DPI)
    except OSError as error:
        raise DataError(f"{target}: figures cannot be written ({error.strerror or error})") from None
    return out


def figures(document: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the pictures by the finding that they show."""
    drawn = {}
    with mpl.rc_context(STYLE):
        for name, picture in document["pictures"].items():
            verdicts = [f for f in document["findings"] if f["finding"].rstrip("abc") == name.rstrip("abc")]
            if name in ("F5a", "F5b"):
                verdicts = [f for f in verdicts if f["finding"] == name]
            if name == "F1":
                verdicts += [f for f in document["findings"] if f["finding"] == "F1 lr"]
            drawn[name] = _DRAW[name](picture)
            said = "   ".join(f"{f['finding']} {f['set']}: {f['verdict']}" for f in verdicts)
            drawn[name].suptitle(said, x=0.01, ha="left", fontsize=8, color="#404040")
    return drawn


def _rises(picture: Series) -> Figure:
    figure, axes = _panels(picture["curves"])
    names = {"sqrt": "lr ∝ √B", "retuned": "η re-tuned at each n and C"}
    for ax, (name, curves) in zip(axes, picture["curves"].items(), strict=True):
        for colour, (key, curve) in zip(_COLOURS, curves.items(), strict=False):
            _log2(ax, picture["x"], curve, names[key], colour)
        _n_axis(ax, picture["levels"], "y", edges=True)
        _titled(ax, f"the best n for a budget, {name} set", _C, "n*")
    axes[0].legend(frameon=False, fontsize=7)
    return figure


def _harder(picture: Series) -> Figure:
    figure, (ax,) = _panels([""])
    for colour, (name, curve) in zip(_COLOURS, picture["curves"].items(), strict=False):
        _line(ax, picture["levels"], curve, f"{name} set", colour)
    _n_axis(ax, picture["levels"], "x")
    _titled(ax, "reward at the largest C, less the best", _N, "avg@4 less its best")
    ax.legend(frameon=False, fontsize=7)
    return figure


def _sharpening(picture: Series) -> Figure:
    figure, axes = _panels(picture["curves"])
    for ax, (name, curves) in zip(axes, picture["curves"].items(), strict=True):
        for colour, (metric, curve) in zip(_COLOURS, curves.items(), strict=False):
            _line(ax, picture["levels"], curve, metric, colour)
        _n_axis(ax, picture["levels"], "x")
        _titled(ax, f"at the largest C, {name} set", _N, "metric less its best")
    axes[0].legend(frameon=False, fontsize=7)
    return figure


def _batches(picture: Series) -> Figure:
    figure, axes = _panels("abc")
    _ramp(axes[0], picture["levels"], picture["batches"], "B_p = {}")
    _n_axis(axes[0], picture["levels"], "x")
    _titled(axes[0], "easy set, largest C", _N, "avg@4")
    for ax, (name, curve) in zip(axes[1:], picture["curves"].items(), strict=True):
        _log2(ax, picture["x"], curve, "", _COLOURS[0])
        _n_axis(ax, picture["fixed_levels"], "y", edges=True)
        _titled(ax, f"B = {picture['batch']:,}, {name} set", _M, "n*")
    return figure


def _alone(picture: Series) -> Figure:
    figure, (ax,) = _panels([""])
    names = {"constant": "constant lr", "sqrt": "lr ∝ √n"}
    for colour, (rule, curve) in zip(_COLOURS, picture["curves"].items(), strict=False):
        _log2(ax, picture["x"], curve, names[rule], colour)
    _n_axis(ax, picture["levels"], "y", edges=True)
    _titled(ax, "one problem: the best n for a budget", _C, "n*")
    ax.legend(frameon=False, fontsize=7)
    return figure


def _landscape(picture: Series) -> Figure:
    figure, axes = _panels(picture["curves"])
    for ax, (name, curves) in zip(axes, picture["curves"].items(), strict=True):
        for colour, (label, curve) in zip(_COLOURS, curves.items(), strict=False):
            _line(ax, picture["levels"], curve, label, colour)
        _n_axis(ax, picture["levels"], "x")
        ax.set_ylim(bottom=0)
        _titled(ax, f"pass@1 at the largest C, {name} set", _N, "share with p < 0.02; Gini")
    axes[0].legend(frameon=False, fontsize=7)
    return figure


def _sizes(picture: Series) -> Figure:
    figure, (ax,) = _panels([""])
    colours = mpl.colormaps[_RAMP](np.linspace(0.1, 0.9, len(picture["curves"])))
    for colour, (d, curve) in zip(colours, picture["curves"].items(), strict=True):
        _log2(ax, picture["x"], curve, f"D = {d}", colour)
    _n_axis(ax, picture["levels"], "y", edges=True)
    _titled(ax, "the best n for a budget by training set size, easy set", _C, "n*")
    ax.legend(frameon=False, fontsize=7)
    return figure


def _decoupled(picture: Series) -> Figure:
    figure, axes = _panels(picture["curves"])
    for ax, (name, curves) in zip(axes, picture["curves"].items(), strict=True):
        for colour, (label, curve) in zip(_COLOURS, curves.items(), strict=False):
            _line(ax, picture["x"], curve, label, colour)
        ax.set_xscale("log")
        _titled(ax, f"{name} set", _M, "avg@4")
    axes[0].legend(frameon=False, fontsize=7)
    return figure


_DRAW: dict[str, Callable[[Series], Figure]] = {
    "F1": _rises,
    "F2": _harder,
    "F3": _sharpening,
    "F4": _batches,
    "F5a": _alone,
    "F5b": _landscape,
    "F6": _sizes,
    "F7": _decoupled,
}


def _panels(names: Any) -> tuple[Figure, list[Axes]]:
    count = len(names)
    figure = Figure(figsize=(min(3.5 * count + 1.2, 9.6), 3.4), layout="constrained")
    return figure, list(np.atleast_1d(figure.subplots(1, count)))


def _titled(ax: Axes, title: str, x: str, y: str) -> None:
    ax.set_title(title, loc="left", fontsize=8)
    ax.set_xlabel(x, fontsize=8)
    ax.set_ylabel(y, fontsize=8)
    ax.tick_params(labelsize=7)


def _numbers(curve: Series, key: str) -> np.ndarray[Any, Any]:
    return np.array([np.nan if v is None else v for v in curve[key]], dtype=float)


def _line(ax: Axes, x: Sequence[float], curve: Series, label: str, colour: Any) -> None:
    """A curve over seeds with its 95 % interval."""
    ax.plot(x, _numbers(curve, "value"), "o-", ms=2.5, lw=1.2, color=colour, label=label)
    ax.fill_between(x, _numbers(curve, "low"), _numbers(curve, "high"), color=colour, alpha=0.18, lw=0)


def _log2(ax: Axes, x: Sequence[float], curve: Series, label: str, colour: Any) -> None:
    """n* along a budget; the curve holds log2 n*."""
    _line(ax, x, {k: np.exp2(np.clip(_numbers(curve, k), -2, 30)) for k in curve}, label, colour)
    ax.set_xscale("log")


def _ramp(ax: Axes, x: Sequence[float], curves: Series, label: str) -> None:
    colours = mpl.colormaps[_RAMP](np.linspace(0.1, 0.9, len(curves)))
    for colour, (key, curve) in zip(colours, curves.items(), strict=True):
        _line(ax, x, curve, label.format(key), colour)
    ax.legend(frameon=False, fontsize=7)


def _n_axis(ax: Axes, levels: Sequence[int], which: str, edges: bool = False) -> None:
    """A log axis with the grid's n as ticks; ``edges`` marks its ends, beyond which n* is not known."""
    axis = ax.xaxis if which == "x" else ax.yaxis
    (ax.set_xscale if which == "x" else ax.set_yscale)("log", base=2)
    axis.set_major_locator(FixedLocator([float(n) for n in levels]))
    axis.set_major_formatter(ScalarFormatter())
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    if which == "x":
        for tick in ax.get_xticklabels():
            tick.set_rotation(45)
    if edges:
        for edge in (levels[0], levels[-1]):
            ax.axhline(edge, color=GREY, lw=0.8, ls="--", zorder=1)
        ax.set_ylim(levels[0] / 1.5, levels[-1] * 1.5)
