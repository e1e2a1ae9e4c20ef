"""What an ensemble earns at a budget, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isolaw
from isolaw.calibration.ahead import FARTHEST, RewardForecast, forecast
from isolaw.calibration.disagreement import disagreements
from isolaw.calibration.discrepancy import Discrepancy
from isolaw.calibration.splits import extended, predict_by_simulation
from isolaw.errors import InputError, Refused
from isolaw.fits.cell import Cell
from isolaw.fits.flags import Code
from isolaw.fits.law import Law
from isolaw.fits.predict import Prediction, rewards
from isolaw.fits.prediction import Option
from isolaw.report.text.simulation import document
from isolaw.runs import Runs
from isolaw.simulators.presets import Preset, read_preset
from isolaw.step_cost import Cost, CostOrigin, StepPart

CELLS = ((8, 4), (8, 8), (8, 16), (8, 32))


@pytest.fixture(scope="module")
def preset(preset_file: Path) -> Preset:
    return read_preset(preset_file)


@pytest.fixture(scope="module")
def law(synthetic: Callable[..., Runs]) -> Law:
    runs = synthetic(CELLS, noise=0.003, between=0.002, checkpoints=20, compute=2e5)
    return isolaw.fit(runs, draws=40)


def codes(found: Prediction) -> set[str]:
    return {flag.code for flag in found.flags}


def split(option: Option) -> tuple[int, int]:
    return option.allocation.problems_per_batch, option.allocation.rollouts_per_problem


def test_a_forecast(preset: Preset) -> None:
    found = forecast(preset, 20_000, [(8, 32), (8, 4)], jobs=1)
    assert found.cells == ((8, 4), (8, 32))
    assert found.steps == (625, 78)
    assert found.rewards.shape[:2] == (4, 2)
    assert found.compute[-1] == pytest.approx(20_000)
    starts = np.isfinite(found.rewards).argmax(axis=2)
    assert (starts[:, 0] < starts[:, 1]).all()  # no reward before a first step
    assert ((found.final > 0) & (found.final < 1)).all()
    np.testing.assert_array_equal(found.rewards, forecast(preset, 20_000, found.cells, jobs=2).rewards)


def test_the_discrepancy_is_of_members_and_cells(preset: Preset) -> None:
    """It widens what members say; where runs ended above the ensemble, a forecast begins above it."""
    poor = replace(preset, provenance={**preset.provenance, "discrepancy": 0.01})
    cells = [(8, 32), (8, 4)]
    ahead, without = (forecast(own, 20_000, cells, jobs=1) for own in (poor, preset))
    away = (ahead.rewards - without.rewards)[:, :, -1]
    assert away.std(axis=0) == pytest.approx(0.01, rel=0.8)
    np.testing.assert_allclose(away.mean(axis=0), 0, atol=1e-12)
    ends = Discrepancy(0.01, np.array([0.03]), np.log([[20_000, 32, 8]])).to_dict()
    shifted = forecast(replace(poor, left=ends), 20_000, cells, jobs=1)
    above = (shifted.rewards - without.rewards).mean(axis=0)[:, -1]
    near = np.exp(-np.log(8) / 1.0)  # n = 4 from n = 32
    assert above == pytest.approx([0.03 * near, 0.03], rel=1e-3)


def test_a_damaged_discrepancy_is_named_before_anything_is_simulated(preset: Preset) -> None:
    whole = Discrepancy(0.01, np.array([0.03]), np.log([[20_000, 32, 8]])).to_dict()
    for wrong in ({"left": [0.1, 0.2]}, {"compute": [0.0]}, {"lengths": [1.0]}, {"noise": "none"}):
        with pytest.raises(InputError, match=r"preset\.toml: \[discrepancy\] is damaged"):
            forecast(replace(preset, left={**whole, **wrong}), 20_000, CELLS)


def test_a_budget_in_other_units_has_other_rollouts_in_each_cell(preset: Preset) -> None:
    """Half as many rollouts are those of half the budget, where nothing else is random."""
    one, half = forecast(preset, 20_000, CELLS[:1]), forecast(preset, 40_000, CELLS[:1], rates=[0.5])
    assert one.steps == half.steps
    np.testing.assert_allclose(one.final, half.final)
    with pytest.raises(InputError, match="at least a step of each cell, 32"):
        forecast(preset, 31, CELLS[:1])


@pytest.mark.parametrize(
    ("measured", "more"),
    [
        ({(32, 8), (32, 16)}, {(32, 32), (32, 64)}),
        ({(32, 8), (16, 16)}, {(8, 32), (4, 64)}),  # one B
        ({(2, 8), (1, 16)}, set()),
        ({(8, 8), (8, 16), (4, 8)}, {(8, 32), (8, 64), (4, 16), (4, 32)}),
        ({(3, 5)}, {(3, 10), (3, 20)}),
    ],
)
def test_configurations_beyond_the_measured_ones(
    measured: set[tuple[int, int]], more: set[tuple[int, int]]
) -> None:
    assert extended(measured) == measured | more


def test_a_prediction_of_a_preset_alone(preset_file: Path) -> None:
    found = isolaw.predict_by_simulation(preset_file, 4e5, jobs=1)
    assert {*map(split, found.options)} == {*CELLS, (8, 64), (8, 128)}
    assert [o.measured for o in found.options if split(o)[1] > 32] == [False, False]
    losses = [option.expected_loss for option in found.options]
    assert losses == sorted(losses)
    assert found.n is not None
    assert 400_000 // (8 * found.n) == found.M
    assert found.epochs == pytest.approx(8 * found.M / 100)
    assert Code.EXTRAPOLATION in codes(found)
    data = found.to_dict()
    assert (data["simulated"], data["method"], data["law"]) == (True, "simulate", None)
    assert data.keys() == isolaw.Prediction.to_dict(replace(found, preset=None)).keys()  # those of a law
    low, high = data["reward"]["interval"]
    assert low <= data["reward"]["value"] <= high
    assert data["b_star"] == {"value": 8.0, "interval": None, "status": "ok"}
    text = document(found).lines()
    assert text[0].startswith(
        "Simulated runs. This prediction is from a calibrated simulator: preset preset with 4 members"
    )
    assert any("not measured" in line for line in text)


def test_limits(preset: Preset) -> None:
    capped = predict_by_simulation(preset, 1e5, max_batch_rollouts=64, jobs=1)
    assert {*map(split, capped.options)} == {(8, 4), (8, 8)}
    assert Code.EXTRAPOLATION not in codes(capped)
    fewer = predict_by_simulation(preset, 1e5, max_batch_rollouts=64, n_train_problems=10, jobs=1)
    assert fewer.epochs == pytest.approx(10 * capped.epochs * fewer.M / capped.M)
    assert fewer.reward.value < capped.reward.value  # ten problems teach less than a hundred
    with pytest.raises(Refused, match=r"1,000 times the largest measured compute .* at most 100 times"):
        predict_by_simulation(preset, 2e8)
    assert preset.measured * FARTHEST == 2e7
    for wrong in (0.5, float("nan")):
        with pytest.raises(InputError, match="expected a number of rollouts"):
            predict_by_simulation(preset, wrong)
    with pytest.raises(InputError, match="a cap of 16 rollouts does not allow a step"):
        predict_by_simulation(preset, 1e5, max_batch_rollouts=16)
    with pytest.raises(InputError, match="n_train_problems: found 0"):
        predict_by_simulation(preset, 1e5, n_train_problems=0)


def test_hours_pay_for_other_computes(preset: Preset) -> None:
    cost = Cost({"step": StepPart(1.0, 0.001)}, 1.0, "rollouts", CostOrigin.TABLE, gpus=2)
    found = predict_by_simulation(preset, "0.2h", cost=cost, price=2.0, jobs=1)
    steps = {split(option): option.allocation.steps for option in found.options}
    for (b, n), made in steps.items():
        assert made == int(720 / (1 + 0.001 * b * n))
    data = found.to_dict()
    assert (data["unit"], data["budget"], data["compute"]) == ("seconds", "0.2h", 720)
    assert data["cost"]["hours"]["value"] <= 0.2
    with pytest.raises(InputError, match="requires the cost of a step"):
        predict_by_simulation(preset, "0.2h")


def test_a_preset_that_misses_its_runs_says_so(preset: Preset) -> None:
    poor = replace(preset, provenance={**preset.provenance, "discrepancy": 0.02})
    assert Code.PRESET_MISFIT in codes(predict_by_simulation(poor, 2e4, jobs=1))
    assert Code.PRESET_MISFIT not in codes(predict_by_simulation(preset, 2e4, jobs=1))


def test_a_preset_whose_ensemble_missed_its_runs_says_so(preset: Preset) -> None:
    far = replace(preset, provenance={**preset.provenance, "error": 0.05, "noise": 0.007})
    found = predict_by_simulation(far, 2e4, jobs=1)
    assert any(
        "differs from its runs by 7.1 times the noise of the runs" in flag.text for flag in found.flags
    )


def test_runs_that_ended_before_others_are_named(preset: Preset) -> None:
    cells = [[8, 4], [8, 32]]
    apart = replace(preset, provenance={**preset.provenance, "cells": cells, "ends": [2e3, 2e5]})
    found = predict_by_simulation(apart, 2e4, jobs=1)
    texts = [flag.text for flag in found.flags if flag.code == Code.EXTRAPOLATION]
    assert texts == [
        "runs of B_p = 8, n = 4 (to 2,000) ended before others; isolaw continues them up to 10 times as far"
    ]
    alike = replace(apart, provenance={**apart.provenance, "ends": [2e4, 2e5]})
    assert Code.EXTRAPOLATION not in codes(predict_by_simulation(alike, 2e4, jobs=1))


def test_a_preset_of_runs_that_learned_nothing_says_so(preset: Preset) -> None:
    still = replace(preset, provenance={**preset.provenance, "moved": False})
    assert Code.HARDLY_MOVED in codes(predict_by_simulation(still, 2e4, jobs=1))
    assert Code.HARDLY_MOVED not in codes(predict_by_simulation(preset, 2e4, jobs=1))


def test_methods_that_agree_and_disagree(law: Law) -> None:
    compute, preset = 2e5, Preset("p", "easy", 1, {}, {}, (), {})
    found = law.predict(compute)
    a = found.allocation
    assert a is not None
    cells = tuple(sorted({*CELLS, (a.problems_per_batch, a.rollouts_per_problem)}))
    rates = dict.fromkeys(cells, 1.0)
    drawn = rewards(law, [Cell(*key) for key in cells], np.full(len(cells), compute))[1:]

    def flags(simulated: Any) -> dict[str, str]:
        steps = (1,) * len(cells)
        ahead = RewardForecast(preset, cells, np.array([compute]), np.asarray(simulated)[:, :, None], steps)
        return {flag.code: flag.text for flag in disagreements(ahead, law, found, rates)}

    assert flags(drawn) == {}
    (shifted,) = flags(drawn + 0.3).items()
    assert shifted[0] == Code.REWARDS_DISAGREE
    assert shifted[1].startswith(f"in {len(cells)} of {len(cells)} configurations")
    turned = flags([[0.6 if cell == (8, 4) else 0.3 for cell in cells]] * 5)
    assert "(B_p = 8, n = 4) is within 0.005 of the best in 0 % of the law's" in turned[Code.CHOICES_DISAGREE]
    far = law.predict(1e9)
    assert far.allocation is None
    found = far
    assert flags(drawn + 0.3) == {}


def test_a_law_next_to_a_preset(preset: Preset, law: Law) -> None:
    found = predict_by_simulation(preset, 2e5, law, jobs=1)
    assert found.law is not None
    assert found.law.allocation == law.predict(2e5).allocation
    assert found.to_dict()["law"]["options"]
    assert "The fitted law:" in document(found).lines()
    best = replace(law.document, metric="best@4")
    with pytest.raises(InputError, match="found the reward best@4"):
        predict_by_simulation(preset, 2e5, Law(best, law.draws))
    tokens = replace(law.document, x=replace(law.document.x, unit="tokens"))
    with pytest.raises(InputError, match="found budgets in tokens"):
        predict_by_simulation(preset, 2e5, Law(tokens, law.draws))
