"""What commands share."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from isolaw.cli.common import announce_compilation, progress_bar, repeated


def test_compilation_is_announced_until_it_has_been_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "lately_installed" / "__pycache__"
    cache.mkdir(parents=True)
    (cache.parent / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    (cache / "another.step-1.py311.nbi").touch()
    announce_compilation("lately_installed.model", "simulator")
    assert "compiling the simulator, once after an installation" in capsys.readouterr().err
    (cache / "model.step-1.py311.nbi").touch()
    announce_compilation("lately_installed.model", "simulator")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("module", ["isolaw.fits.curves.kernel", "isolaw.simulators.interference"])
def test_a_kernel_that_is_announced_leaves_what_is_looked_for(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np

    from isolaw.fits.curves.learning_curves import fit_curves
    from isolaw.simulators.interference import PRESETS, create
    from isolaw.simulators.model import Update
    from isolaw.simulators.problems import difficulty
    from isolaw.simulators.tabular import log_softmax

    log_softmax(np.zeros(2), np.zeros(2))
    create(PRESETS[next(iter(PRESETS))], difficulty("easy"), 0, 8, 8).advance(
        np.zeros((1, 4), dtype=np.int64), Update(4, 0.1), np.random.default_rng(0)
    )
    c = np.geomspace(1, 100, 8)
    fit_curves(c, 1 - np.exp(-c / 20)[None], np.ones((1, 8)), "exp")
    announce_compilation(module)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_progress_is_a_line_at_most_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 61.0, 62.0, 180.0])
    monkeypatch.setattr("isolaw.cli.common.time.monotonic", lambda: next(clock))
    with progress_bar("starting", 200.0) as update:
        for advance in (1.0, 49.0, 50.0, 50.0):
            update(advance=advance, description="1/4 runs")
    assert capsys.readouterr().err.splitlines() == [
        "1/4 runs: 25 %, about 3 min left",
        "1/4 runs: 75 %, about 60 s left",
    ]


def test_a_log_is_not_silent_between_two_checkpoints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("isolaw.cli.common._EVERY", 0.0)
    monkeypatch.setattr("isolaw.cli.common._SILENCE", 0.02)
    with progress_bar("starting", 200.0) as update, repeated(update):
        update(advance=50.0, description="0/4 runs")
        lines: list[str] = []
        until = time.monotonic() + 30
        while len(lines) < 3 and time.monotonic() < until:
            time.sleep(0.01)
            lines += capsys.readouterr().err.splitlines()
    assert len(lines) >= 3
    assert all(line.startswith("0/4 runs: 25 %, about ") for line in lines)
