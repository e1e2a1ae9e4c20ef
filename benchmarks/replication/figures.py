"""One figure for each finding, drawn from the document of a battery."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from isolaw.report.figures import STYLE

_COLOURS = ("#0072b2", "#d55e00", "#548235", "#7f6000")
_C, _M = "C, rollouts generated", "M, update steps"
Picture = Mapping[str, Any]
Floats = NDArray[np.float64]


def write(document: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Write the figures to ``figures/F1.png`` and so on below ``folder``, and return their paths."""
    folder = Path(folder) / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures(document).items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=160)
    return paths


def figures(document: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the figures, keyed by finding."""
    drawn = {}
    with mpl.rc_context(STYLE):
        for name, picture in document["pictures"].items():
            panels = _panels(name, picture)
            figure = Figure(figsize=(min(3.5 * len(panels) + 1.2, 9.6), 3.4), layout="constrained")
            all_axes: Any = np.atleast_1d(figure.subplots(1, len(panels)))
            for axes, panel in zip(all_axes, panels, strict=True):
                _draw(axes, *panel)
            all_axes[0].legend(frameon=False, fontsize=7)
            shown = [f for f in document["findings"] if f["finding"] in _SHOWN.get(name, (name,))]
            verdicts = "   ".join(f"{f['finding']} {f['set']}: {f['verdict']}" for f in shown)
            figure.suptitle(f"simulated runs: {verdicts}", x=0.01, ha="left", fontsize=8, color="#404040")
            drawn[name] = figure
    return drawn


# Findings that are drawn in the figure of another finding.
_SHOWN = {"F1": ("F1", "F1 lr"), "F4": ("F4a", "F4b", "F4c")}


@dataclass(frozen=True)
class _Style:
    """The style of a figure: log2 n* over a budget, or a quantity ``y`` over n or M.

    If the title contains {}, each problem set gets its own panel. ``names`` and ``label`` are for the curves.
    """

    title: str
    y: str = ""
    x: str = _C
    names: Mapping[str, str] = field(default_factory=dict)
    label: str = "{}"
    from_zero: bool = False
    ramp: bool = False


_STYLES = {
    "F1": _Style(
        "the best n for a budget, {} set",
        names={"sqrt": "lr ∝ √B", "retuned": "η re-tuned at each n and C"},
    ),
    "F2": _Style("reward at the largest C, less the best", "avg@4 less its best", label="{} set"),
    "F3": _Style("at the largest C, {} set", "metric less its best"),
    "F4 B_p": _Style("easy set, largest C", "avg@4", label="B_p = {}", ramp=True),
    "F4 n": _Style("B = {batch:,}, {} set", x=_M),
    "F5a": _Style(
        "one problem: the best n for a budget", names={"constant": "constant lr", "sqrt": "lr ∝ √n"}
    ),
    "F5b": _Style("pass@1 at the largest C, {} set", "share with p < 0.02; Gini", from_zero=True),
    "F6": _Style("the best n for a budget by training set size, easy set", label="D = {}", ramp=True),
    "F7": _Style("{} set", "avg@4", _M),
}
_Panel = tuple[_Style, str, Picture]  # style, title, and picture with labelled curves


def _panels(name: str, p: Picture) -> list[_Panel]:
    if name == "F4":
        each = {name: {"": curve} for name, curve in p["curves"].items()}
        by_batch, along = {**p, "curves": p["batches"]}, {**p, "curves": each, "levels": p["fixed_levels"]}
        return [*_panels("F4 B_p", by_batch), *_panels("F4 n", along)]
    style = _STYLES[name]

    def labelled(curves: Picture) -> Picture:
        return {**p, "curves": {style.names.get(k, style.label.format(k)): c for k, c in curves.items()}}

    if "{}" not in style.title:
        return [(style, style.title, labelled(p["curves"]))]
    batch = p.get("batch", 0)
    return [
        (style, style.title.format(name, batch=batch), labelled(curves))
        for name, curves in p["curves"].items()
    ]


def _draw(axes: Axes, style: _Style, title: str, p: Picture) -> None:
    levels, curves, star = p.get("levels", ()), p["curves"], not style.y
    by_n = bool(levels) and not star
    colours: Any = mpl.colormaps["viridis_r"](np.linspace(0.1, 0.9, len(curves))) if style.ramp else _COLOURS
    for colour, (label, curve) in zip(colours, curves.items(), strict=False):
        x = levels if by_n else p["x"]
        value, low, high = (_numbers(curve[key], star) for key in ("value", "low", "high"))
        axes.plot(x, value, "o-", ms=2.5, lw=1.2, color=colour, label=label)
        axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
    if by_n:
        axes.set_xscale("log", base=2)
        axes.set_xticks(levels, labels=map(str, levels))
        axes.tick_params(axis="x", rotation=45)
    else:
        axes.set_xscale("log")
    if star:  # n* is unknown beyond the ends of the grid
        axes.set_yscale("log", base=2)
        axes.set_yticks(levels, labels=map(str, levels))
        for edge in (levels[0], levels[-1]):
            axes.axhline(edge, color="#7f7f7f", lw=0.8, ls="--", zorder=1)
        axes.set_ylim(levels[0] / 1.5, levels[-1] * 1.5)
    if style.from_zero:
        axes.set_ylim(bottom=0)
    axes.set_title(title, loc="left", fontsize=8)
    axes.set_xlabel("n, rollouts per problem" if by_n else style.x, fontsize=8)
    axes.set_ylabel(style.y or "n*", fontsize=8)
    axes.tick_params(labelsize=7)


def _numbers(values: Sequence[float | None], log2: bool) -> Floats:
    out = np.array([np.nan if v is None else v for v in values], dtype=float)
    return np.exp2(np.clip(out, -2, 30)) if log2 else out
