"""Members of a calibrated preset as the truths of a plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import isolaw
from isolaw.calibration.discrepancy import Discrepancy
from isolaw.design import ensemble
from isolaw.design.ensemble import PARTS, decomposed, truths_of
from isolaw.errors import InputError, Refused
from isolaw.report.text.plan import document
from isolaw.simulators.presets import read_preset

CELLS = [(8, 32), (8, 4), (8, 8)]
SWEEP = {
    "sweep": {"compute": 40_000, "seeds": 2},
    "grid": {"problems_per_batch": [8], "rollouts_per_problem": [4, 16, 32]},
    "evaluation": {"points": 8},
}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble, "MEMBERS", 2)
    monkeypatch.setattr(ensemble, "SEEDS", 4)


def test_truths_of_an_ensemble(preset_file: Path) -> None:
    shares: list[float] = []
    found = truths_of(read_preset(preset_file), CELLS, 30_000, 1, shares.append)
    assert [truth.name for truth in found] == ["preset 0", "preset 3"]
    assert shares[-1] == 1.0
    for truth in found:
        assert truth.cells == tuple(CELLS)  # in the order asked for
        assert (truth.compute[0], truth.compute[-1]) == (0.0, pytest.approx(30_000))
        shape = len(CELLS), truth.compute.size
        assert truth.mean.shape == truth.own.shape == truth.spread.shape == shape
        assert truth.shared.shape == (PARTS, *shape)
        assert ((truth.mean > 0) & (truth.mean < 1)).all()
        assert truth.mean[:, 0] == pytest.approx(3 / 7, abs=0.05)  # beta(3,4), before training
        assert np.ptp(truth.mean[:, 0]) < 1e-12  # of the same problems
        assert ((truth.spread >= 0) & (truth.spread <= 1)).all()
        assert truth.spread[:, 0] == pytest.approx(7 / 8, abs=0.05)  # ν / (ν + 1)
    ordered = truths_of(read_preset(preset_file), sorted(CELLS), 30_000, 2)
    np.testing.assert_array_equal(ordered[0].mean, found[0].mean[[1, 2, 0]])


def test_what_the_ensemble_left_of_the_runs_is_in_the_truths(preset_file: Path) -> None:
    """Where the runs ended above the ensemble its truths do, less in other cells; not before training."""
    preset = read_preset(preset_file)
    ends = Discrepancy(0.01, np.array([0.03]), np.log([[30_000, 32, 8]])).to_dict()
    poor = replace(preset, provenance={**preset.provenance, "discrepancy": 0.01}, left=ends)
    smooth, found = (np.array([t.mean for t in truths_of(p, CELLS, 30_000, 1)]) for p in (preset, poor))
    above = (found - smooth).mean(axis=0)
    near = np.exp(-np.log([1, 8, 4]))  # of n = 32, 4, 8, from n = 32
    np.testing.assert_array_equal(above[:, 0], 0)
    assert above[:, -1] == pytest.approx(0.03 * near, rel=1e-3)
    assert np.ptp(found - smooth, axis=0)[1, -1] == pytest.approx(0.02, rel=1)
    damaged = replace(poor, left={**ends, "lengths": [1.0]})
    with pytest.raises(InputError, match=r"\[discrepancy\] is damaged"):
        truths_of(damaged, CELLS, 30_000, 1)


def test_parts_of_the_variance() -> None:
    """Rewards of z f + σ e: the first part is f, what is left is σ."""
    rng = np.random.default_rng(0)
    f = np.linspace(0.01, 0.03, 40).reshape(2, 20)
    rewards = 0.5 + rng.standard_normal((300, 1, 1)) * f + 0.002 * rng.standard_normal((300, 2, 20))
    mean, shared, own = decomposed(rewards)
    assert mean == pytest.approx(np.full((2, 20), 0.5), abs=0.006)
    assert np.abs(shared[0]) == pytest.approx(f, rel=0.15)
    assert own == pytest.approx(np.full((2, 20), 0.002), rel=0.12)


def test_a_plan_on_a_preset(preset_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble, "MEMBERS", 1)
    found = isolaw.plan(SWEEP, preset=preset_file, spend=0.6, repetitions=1, jobs=1)
    assert [truth.name for truth in found.truths] == ["preset 0"]
    assert found.recommended is not None
    text = "\n".join(document(found).lines())
    assert "on 1 simulated truth of preset preset" in text
    assert "1 of 4 members of preset preset" in text
    assert "problem set" not in text
    data = document(found).data
    assert (data["preset"], data["simulated"]) == ("preset", True)


def test_refusals(preset_file: Path) -> None:
    with pytest.raises(InputError, match="both a preset and runs; expected one of them"):
        isolaw.plan(SWEEP, preset=preset_file, runs="nowhere")
    with pytest.raises(Refused, match="times the largest measured compute"):
        isolaw.plan(SWEEP, preset=preset_file, target=1e8, spend=0.6, jobs=1)
