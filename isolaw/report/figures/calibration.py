"""The figure of a calibration: measured rewards and the 90 % band of the ensemble's simulated rewards."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from isolaw.calibration.calibrate import BANDS, Calibration
from isolaw.calibration.simulation import SimulatedCell
from isolaw.errors import InputError, shown
from isolaw.fits.selection import Floats
from isolaw.report.figures.style import BLUE, RAMP, STYLE, check_replaceable, plain, save

_COLUMNS = 4
_KINDS = ("png", "svg", "pdf")


def calibration_figure(found: Calibration) -> Figure:
    """Draw one panel for each n: measured rewards as points, the ensemble's median and band by B_p."""
    seen = found.observed
    ends = np.cumsum([len(cell.steps) for cell in seen.protocol.cells])[:-1]
    parts = zip(
        seen.protocol.cells,
        np.split(seen.reward, ends),
        np.split(found.replayed, ends, axis=1),
        strict=True,
    )
    panels: dict[int, list[tuple[SimulatedCell, Floats, Floats]]] = {}
    for cell, reward, replayed in parts:
        panels.setdefault(cell.rollouts_per_problem, []).append((cell, reward, replayed))
    batches = sorted({cell.problems_per_batch for cell in seen.protocol.cells})
    norm = LogNorm(batches[0] / 1.5, batches[-1] * 1.5)
    colours = {
        b: BLUE if len(batches) == 1 else mpl.colors.to_hex(mpl.colormaps[RAMP](norm(b))) for b in batches
    }
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(1.2 + 2.1 * columns, 1.1 + 1.7 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axes, (n, own) in zip(grid.flat, sorted(panels.items()), strict=False):
            for cell, reward, replayed in own:
                _draw(axes, cell, reward, replayed, colours[cell.problems_per_batch])
            axes.set_title(f"n = {n:,}", loc="left", fontsize=8)
            axes.set_xscale("log")
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for axes in grid.flat[max(len(panels) - columns, 0) : len(panels)]:  # the lowest panel of each column
            axes.tick_params(labelbottom=True)
        figure.supxlabel("C, rollouts generated", fontsize=9)
        figure.supylabel(plain(f"{seen.metric} ({seen.eval_set})"), fontsize=9)
        figure.suptitle(
            found.simulated.title("measured rewards (points) and the 90 % band of the calibrated simulator"),
            fontsize=9, x=0.01, ha="left",
        )  # fmt: skip
        if len(batches) > 1:
            handles = [mpl.lines.Line2D([], [], color=colours[b], label=f"B_p = {b}") for b in batches]
            figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=7)
    return figure


def check(path: str | Path) -> None:
    """Raise `InputError` for an unsupported suffix, `DataError` for a file that isolaw did not write."""
    if Path(path).suffix[1:] not in _KINDS:
        raise InputError(
            f"--figure: found {shown(str(path))}; expected a file ending in .{', .'.join(_KINDS)}"
        )
    check_replaceable(Path(path))


def write_figure(found: Calibration, path: str | Path) -> Path:
    """Write the figure in the format given by the suffix of ``path``.

    Raises `InputError` for an unsupported suffix, and `DataError` if the file cannot be written.
    """
    check(path)
    path = Path(path)
    return save({path.stem: calibration_figure(found)}, path.parent, (path.suffix[1:],))[0]


def _draw(axes: Axes, cell: SimulatedCell, reward: Floats, replayed: Floats, colour: str) -> None:
    later = cell.compute > 0
    low, middle, high = np.quantile(replayed, (BANDS[0], 0.5, BANDS[1]), axis=0)[:, later]
    x = cell.compute[later]
    axes.fill_between(x, low, high, color=colour, alpha=0.18, lw=0)
    for edge in (low, high):  # keeps the bands of several B_p visible where they overlap
        axes.plot(x, edge, color=colour, lw=0.5, alpha=0.7)
    axes.plot(x, middle, color=colour, lw=1.0)
    axes.plot(x, reward[later], "o", ms=2.5, color=colour, mec="white", mew=0.3)
