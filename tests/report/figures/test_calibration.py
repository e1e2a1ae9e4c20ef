"""The figure of a calibration: a panel for each n, with every measured reward after the first step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from isolaw.calibration.calibrate import calibrate
from isolaw.errors import DataError
from isolaw.report.figures.calibration import calibration_figure, write_figure
from isolaw.runs import Runs


@pytest.mark.usefixtures("quick_calibration")
def test_panels(synthetic: Callable[..., Runs], tmp_path: Path) -> None:
    cells = [(8, 4), (8, 16), (16, 4)]
    found = calibrate(synthetic(cells, seeds=1, checkpoints=8, compute=20_000), jobs=1)
    figure = calibration_figure(found)
    assert [axes.get_title("left") for axes in figure.axes] == ["n = 4", "n = 16"]
    title = figure.get_suptitle()
    assert title.startswith("partly simulated runs: measured rewards")  # only the bands are simulated
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["B_p = 8", "B_p = 16"]
    drawn = [
        line.get_ydata() for axes in figure.axes for line in axes.get_lines() if line.get_marker() == "o"
    ]
    steps = np.concatenate([cell.steps for cell in found.observed.protocol.cells])
    assert sorted(np.concatenate(drawn)) == pytest.approx(sorted(found.observed.reward[steps > 0]))
    path = write_figure(found, tmp_path / "fit.svg")
    assert "n = 16" in path.read_text()
    write_figure(found, path)  # its own is replaced
    (tmp_path / "mine.png").write_bytes(b"somebody's")
    with pytest.raises(DataError, match=r"mine\.png: exists and is not a figure of isolaw"):
        write_figure(found, tmp_path / "mine.png")
