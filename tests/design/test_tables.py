"""The tables of docs/race.md are of this version."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from isolaw.backends.bandit import _Bandit
from isolaw.fits import SURFACE

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.designs import race


@pytest.mark.parametrize("designs", [race.DESIGNS, race.JOINT])
def test_the_page_has_the_measured_table_of_this_version_or_none(designs: tuple[str, ...]) -> None:
    page = race.DOCS.read_text()
    if not race.SUMMARY.exists():
        assert "| design |" not in page
        return
    found = json.loads(race.SUMMARY.read_text())
    assert (found["surface"], found["simulator"]) == (SURFACE, _Bandit.version)
    assert {row["design"] for row in found["rows"]} >= set(designs)
    assert "\n".join(race.lines(found, designs)) in page


def test_designs_play_on_the_runs_of_a_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid and a race choose the configuration with the highest reward, and the race spends less."""
    monkeypatch.setattr(race.Preset, "run", _run)
    truth = race.Preset("easy", 0, 0)
    designs = race._designs(0)
    for name in ("grid", "race"):
        last = race.play(designs[name], truth)[-1]
        assert last.best == (32, 64)
    assert last.spent < race.GRID / 2


def _run(truth: race.Preset, key: tuple[int, int, int]) -> tuple:
    """A run whose reward is highest at n = 64, with a little noise of its seed."""
    b, n, seed = key
    compute = np.unique(np.append(0, np.geomspace(b * n, race.TARGET, 30) // (b * n) * b * n))
    learnt = compute / (compute + 3e5)
    noise = 0.002 * np.random.default_rng([n, seed]).standard_normal(compute.size)
    return compute, 0.4 + learnt * (0.3 - 0.02 * abs(np.log2(n / 64))) + noise
