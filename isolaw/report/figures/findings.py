"""A figure for each finding of `isolaw findings`, drawn from its document alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isolaw.report.figures.style import BLUE, GREY, ORANGE, RAMP, STYLE, n_ticks, save

_COLOURS = (BLUE, ORANGE, "#548235", "#7f6000")
_C, _M, _N = "C, rollouts generated", "M, update steps", "n, rollouts per problem"
Picture = Mapping[str, Any]
Floats = np.ndarray[Any, Any]


def write(document: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Write ``figures/F1.png`` and so on below ``folder``, and return the paths; may raise `DataError`."""
    return save(figures(document), Path(folder) / "figures", ("png",), replace=True)


def figures(document: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the figures by the name of their finding."""
    drawn = {}
    with mpl.rc_context(STYLE):
        for name, picture in document["pictures"].items():
            drawn[name] = _figure(_PANELS[name](picture))
            own = [f for f in document["findings"] if f["finding"] in _SHOWN.get(name, (name,))]
            verdicts = "   ".join(f"{f['finding']} {f['set']}: {f['verdict']}" for f in own)
            drawn[name].suptitle(verdicts, x=0.01, ha="left", fontsize=8, color="#404040")
    return drawn


# The findings in a figure of another name.
_SHOWN = {"F1": ("F1", "F1 lr"), "F4": ("F4a", "F4b", "F4c")}


@dataclass(frozen=True)
class _Panel:
    """One panel: curves by label over ``x``.

    ``levels`` are the grid's n. With ``star`` the curves are log2 n* over a budget, and the y axis has the n;
    else the x axis has them, unless ``levels`` is empty.
    """

    title: str
    x_label: str
    y_label: str
    x: Sequence[float]
    curves: Mapping[str, Picture]
    levels: Sequence[int] = ()
    star: bool = False
    from_zero: bool = False
    ramp: bool = False


def _stars(
    p: Picture, title: str, curves: Mapping[str, Picture], x_label: str = _C, ramp: bool = False
) -> _Panel:
    levels = p.get("fixed_levels", p["levels"])
    return _Panel(title, x_label, "n*", p["x"], curves, levels, star=True, ramp=ramp)


def _by_n(p: Picture, title: str, y: str, curves: Mapping[str, Picture], **more: bool) -> _Panel:
    return _Panel(title, _N, y, p["levels"], curves, p["levels"], **more)


def _renamed(curves: Mapping[str, Picture], **names: str) -> dict[str, Picture]:
    return {names[key]: curve for key, curve in curves.items()}


def _rises(p: Picture) -> list[_Panel]:
    names = {"sqrt": "lr ∝ √B", "retuned": "η re-tuned at each n and C"}
    return [
        _stars(p, f"the best n for a budget, {name} set", _renamed(curves, **names))
        for name, curves in p["curves"].items()
    ]


def _harder(p: Picture) -> list[_Panel]:
    curves = {f"{name} set": curve for name, curve in p["curves"].items()}
    return [_by_n(p, "reward at the largest C, less the best", "avg@4 less its best", curves)]


def _sharpening(p: Picture) -> list[_Panel]:
    return [
        _by_n(p, f"at the largest C, {name} set", "metric less its best", curves)
        for name, curves in p["curves"].items()
    ]


def _batches(p: Picture) -> list[_Panel]:
    by_batch = {f"B_p = {b}": curve for b, curve in p["batches"].items()}
    stars = [
        _stars(p, f"B = {p['batch']:,}, {name} set", {"": curve}, _M) for name, curve in p["curves"].items()
    ]
    return [_by_n(p, "easy set, largest C", "avg@4", by_batch, ramp=True), *stars]


def _alone(p: Picture) -> list[_Panel]:
    curves = _renamed(p["curves"], constant="constant lr", sqrt="lr ∝ √n")
    return [_stars(p, "one problem: the best n for a budget", curves)]


def _landscape(p: Picture) -> list[_Panel]:
    return [
        _by_n(p, f"pass@1 at the largest C, {name} set", "share with p < 0.02; Gini", curves, from_zero=True)
        for name, curves in p["curves"].items()
    ]


def _sizes(p: Picture) -> list[_Panel]:
    curves = {f"D = {d}": curve for d, curve in p["curves"].items()}
    return [_stars(p, "the best n for a budget by training set size, easy set", curves, ramp=True)]


def _decoupled(p: Picture) -> list[_Panel]:
    return [_Panel(f"{name} set", _M, "avg@4", p["x"], curves) for name, curves in p["curves"].items()]


_PANELS: dict[str, Callable[[Picture], list[_Panel]]] = {
    "F1": _rises, "F2": _harder, "F3": _sharpening, "F4": _batches, "F5a": _alone, "F5b": _landscape,
    "F6": _sizes, "F7": _decoupled,
}  # fmt: skip


def _figure(panels: Sequence[_Panel]) -> Figure:
    count = len(panels)
    figure = Figure(figsize=(min(3.5 * count + 1.2, 9.6), 3.4), layout="constrained")
    all_axes: Iterable[Axes] = np.atleast_1d(figure.subplots(1, count))
    for i, (axes, panel) in enumerate(zip(all_axes, panels, strict=True)):
        _draw(axes, panel)
        if i == 0:
            axes.legend(frameon=False, fontsize=7)
    return figure


def _draw(axes: Axes, panel: _Panel) -> None:
    colours: Any = _COLOURS
    if panel.ramp:
        colours = mpl.colormaps[RAMP](np.linspace(0.1, 0.9, len(panel.curves)))
    for colour, (label, curve) in zip(colours, panel.curves.items(), strict=False):
        value, low, high = (_numbers(curve[key], panel.star) for key in ("value", "low", "high"))
        axes.plot(panel.x, value, "o-", ms=2.5, lw=1.2, color=colour, label=label)
        axes.fill_between(panel.x, low, high, color=colour, alpha=0.18, lw=0)
    if panel.star or not panel.levels:
        axes.set_xscale("log")
    if panel.star:  # n* is not known beyond the ends of the grid
        n_ticks(axes, "y", panel.levels)
        for edge in (panel.levels[0], panel.levels[-1]):
            axes.axhline(edge, color=GREY, lw=0.8, ls="--", zorder=1)
        axes.set_ylim(panel.levels[0] / 1.5, panel.levels[-1] * 1.5)
    elif panel.levels:
        n_ticks(axes, "x", panel.levels)
        axes.tick_params(axis="x", rotation=45)
    if panel.from_zero:
        axes.set_ylim(bottom=0)
    axes.set_title(panel.title, loc="left", fontsize=8)
    axes.set_xlabel(panel.x_label, fontsize=8)
    axes.set_ylabel(panel.y_label, fontsize=8)
    axes.tick_params(labelsize=7)


def _numbers(values: Sequence[float | None], log2: bool) -> Floats:
    out = np.array([np.nan if v is None else v for v in values], dtype=float)
    return np.exp2(np.clip(out, -2, 30)) if log2 else out
