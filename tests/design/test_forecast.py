"""Plans: candidates within a budget, their times, their forecasts, and the recommended sweep file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import isolaw
from isolaw.design import forecast, sweep_file, truths
from isolaw.design.candidate_sweeps import DesignKind, shorter
from isolaw.design.clock import Clock
from isolaw.design.decisions import Decision, DecisionStage, Request
from isolaw.design.forecast import SweepForecast, spread
from isolaw.design.question import question
from isolaw.design.race import Race
from isolaw.errors import DataError, InputError, SpecError
from isolaw.fits.selection import Configuration
from isolaw.report.text.plan import document
from isolaw.step_cost import Cost, CostOrigin, StepPart

TARGET = 200_000
SWEEP = {
    "sweep": {"compute": TARGET, "seeds": 2},
    "grid": {"problems_per_batch": [32], "rollouts_per_problem": [8, 16, 32, 64, 128]},
    "problems": {"set": "easy", "n_validation": 300},
    "evaluation": {"points": 12},
}
COST = Cost(
    {"step": StepPart(10.0, 0.01)}, 1.0, "rollouts", CostOrigin.TABLE, gpus=4, evaluation_s=5.0, start_s=60.0
)


@pytest.fixture(autouse=True)
def two_truths(monkeypatch: pytest.MonkeyPatch) -> None:
    every = truths.presets
    monkeypatch.setattr(truths, "presets", lambda *args: every(*args)[:2])


def plan(**options) -> SweepForecast:
    return isolaw.plan(SWEEP, **{"spend": 0.5, "repetitions": 1, "jobs": 1, **options})


def test_candidates_are_within_the_spend() -> None:
    asked = question(SWEEP, spend="60%")
    found = {own.kind: own for own in asked.candidates()}
    assert set(found) == {DesignKind.RACE, DesignKind.GRID, DesignKind.ALL, DesignKind.HALF}
    assert found[DesignKind.GRID].cut_short(TARGET)
    assert found[DesignKind.ALL].name == "all n × 1"
    assert found[DesignKind.HALF].name == "every second n × 2"
    assert [n for _, n in found[DesignKind.HALF].cells] == [8, 32, 128]
    whole = {own.kind: own for own in question(SWEEP, spend=1.0).candidates()}
    assert set(whole) == {
        DesignKind.RACE,
        DesignKind.GRID,
        DesignKind.HALF,
    }  # all n with all seeds is the grid
    assert not whole[DesignKind.GRID].cut_short(TARGET)
    little = question(SWEEP, spend=int(2.5 * TARGET))
    assert DesignKind.RACE not in {own.kind for own in little.candidates()}  # a race needs three runs
    for own in little.candidates():
        (decision,) = [own.design.next([], [])]
        assert decision.cost <= 2.5 * TARGET


def test_runs_of_a_decision_go_in_parallel_and_decisions_one_after_the_other() -> None:
    clock = Clock(COST, 2, {(1, 100): [0, 1, 10, 20]})
    runs = tuple(Request(1, 100, seed, 1000) for seed in range(3))
    one = 60 + 10 * 11 + 3 * 5  # start, steps, evaluations at 0, 1, 10
    assert clock.time([Decision(DecisionStage.GRID, runs)]) == pytest.approx((3 * one, 2 * one))
    on = Decision(DecisionStage.SEEDS, (Request(1, 100, 0, 2000),))
    more = 60 + 10 * 11 + 5
    assert clock.time([Decision(DecisionStage.GRID, runs), on]) == pytest.approx(
        (3 * one + more, 2 * one + more)
    )


def test_hours_limit_rollouts_and_wall_time() -> None:
    asked = question(SWEEP, gpus=8, hours=1.0, cost=COST)
    assert asked.budget.clock is not None
    assert asked.budget.clock.places == 2
    assert asked.budget.rollouts < asked.grid
    for own in asked.candidates():
        if own.kind is not DesignKind.RACE:
            assert asked.budget.clock.time([own.design.next([], [])]).wall_s <= 3600
    twice = question(SWEEP, gpus=8, hours=2.0, cost=COST)
    assert twice.budget.rollouts == pytest.approx(2 * asked.budget.rollouts, abs=1)
    assert question(SWEEP, spend="8gpuh", cost=COST).budget.rollouts == asked.budget.rollouts


def test_a_race_that_takes_longer_than_the_hours_spends_less() -> None:
    asked = question(SWEEP, gpus=8, hours=10.0, cost=COST)
    (race,) = [own for own in asked.candidates() if own.kind is DesignKind.RACE]
    assert shorter(race, 36_000.0, asked.budget) is None
    less = shorter(race, 36_000 / 0.9, asked.budget)
    assert less is not None
    assert isinstance(less.design, Race)
    assert less.design.spend == int(asked.budget.rollouts * 0.9)
    assert shorter(race, 360_000.0, asked.budget) is None  # not three runs


def test_hours_without_a_cost_become_the_rate_that_they_require() -> None:
    asked = question(SWEEP, gpus=8, hours=48)
    assert asked.budget == question(SWEEP).budget
    found = plan(gpus=8, hours=48)
    assert found.recommended is not None
    rate = found.recommended.rollouts.value / (48 * 3600)
    assert document(found).data["required_rollouts_per_s"] == pytest.approx(rate)
    assert f"{rate / 8:.3g} rollouts/s on each of 8 GPUs" in "\n".join(document(found).lines())
    assert document(plan()).data["required_rollouts_per_s"] is None


def test_a_spend_in_gpu_hours_without_a_cost_names_the_three_ways_to_get_one() -> None:
    with pytest.raises(InputError, match=r"DIRECTORY(.|\n)*doctor --gpu(.|\n)*throughput.toml"):
        question(SWEEP, spend="384gpuh")
    with pytest.raises(InputError, match="at least 4, which a run needs"):
        question(SWEEP, gpus=2, hours=1, cost=COST)
    for hours in (float("nan"), float("inf"), 0.0):
        with pytest.raises(InputError, match="hours: found"):
            question(SWEEP, gpus=8, hours=hours)
    with pytest.raises(InputError, match="the number of GPUs has no effect"):
        question(SWEEP, gpus=8)
    for target in (1e30, float("nan"), 0.5):
        with pytest.raises(InputError, match="target: found"):
            question(SWEEP, target=target)
    with pytest.raises(InputError, match="a TOML file"):
        question(7)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least 1"):
        plan(repetitions=0)
    with pytest.raises(InputError, match="a share of the grid"):
        question(SWEEP, spend="much")


def test_what_is_wrong_with_the_file_is_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        "[sweep]\ncompute = 100\n[grid]\nlr = [1, 2]\nrollouts_per_problem = [8, 16]\n"
        "[evaluation]\nmetrics = ['avg@8']\n"
    )
    with pytest.raises(SpecError) as raised:
        question(file)
    assert "own.toml" in str(raised.value)
    assert {issue.where for issue in raised.value.issues} == {"sweep.compute"}
    with pytest.raises(SpecError) as raised:
        question(file, target=1e5)
    assert {issue.where for issue in raised.value.issues} == {"design.kind", "design.metric"}


def test_a_plan_is_deterministic_in_any_number_of_processes() -> None:
    found = plan()
    best = found.recommended
    assert best is not None
    assert best.loss.low <= best.loss.value <= best.loss.high
    assert best.rollouts.high <= found.question.budget.rollouts
    again = plan(jobs=2)
    assert [row.plays for row in again.rows] == [row.plays for row in found.rows]


def test_every_form_of_a_plan_says_that_it_is_simulated_and_on_what_it_rests(tmp_path: Path) -> None:
    found = plan(gpus=8, hours=3, cost=COST)
    lines = document(found).lines()
    assert lines[0].startswith("Simulated runs. isolaw played each sweep on ")
    assert "Unreliable" not in "\n".join(lines)
    assert sum(line.startswith("- ") for line in lines) >= 5
    data = document(found, price=2.0).data
    assert data["simulated"] is True
    assert len(data["assumptions"]) >= 5
    assert [own["weight"] for own in data["truths"]] == [0.5, 0.5]
    for own in data["designs"]:
        assert own["money"] == pytest.approx(2 * own["gpu_hours"]["value"])
        assert own["hours"]["value"] * 8 >= own["gpu_hours"]["value"] * 0.99
    assert found.recommended is not None
    sweep_file.write(found.question, found.recommended.candidate, tmp_path / "plan.toml")
    assert "simulated" in (tmp_path / "plan.toml").read_text().splitlines()[0]
    little = plan(spend=2 * TARGET)
    assert little.unreliable
    assert any(line.startswith("This plan is unreliable") for line in document(little).lines())


@pytest.mark.parametrize("kind", list(DesignKind))
def test_the_sweep_file_of_each_design_asks_for_its_runs(kind: DesignKind, tmp_path: Path) -> None:
    sweep = SWEEP | {"grid": {**SWEEP["grid"], "problems_per_batch": [8, 32]}}  # type: ignore[dict-item]
    asked = question(sweep, spend=0.55)
    (candidate,) = [own for own in asked.candidates() if own.kind is kind]
    path = tmp_path / "plan.toml"
    sweep_file.write(asked, candidate, path)
    sweep_file.write(asked, candidate, path)  # its own file is replaced
    from isolaw import resolve

    found = resolve.plan(isolaw.SweepSpec.read(path), tmp_path / "out")
    first = candidate.design.next([], [])
    runs = {(run.problems_per_batch, run.rollouts_per_problem, run.seed): run.compute for run in found.runs}
    assert runs == {request.run: request.compute for request in first.runs}
    if kind is DesignKind.RACE:
        assert found.adaptive is not None
        assert found.adaptive.race.spend == asked.budget.rollouts
    path.write_text("[sweep]\n")
    with pytest.raises(DataError, match="left unchanged"):
        sweep_file.check(path)


@pytest.mark.slow
def test_runs_of_the_user_weigh_truths_and_join_them() -> None:
    runs = isolaw.sweep({**SWEEP, "executor": {"kind": "inline"}})
    found = plan(runs=runs)
    assert (found.compared, found.from_runs) == (5, forecast.FROM_RUNS)
    assert found.weights[-forecast.FROM_RUNS :].sum() == pytest.approx(forecast.FROM_RUNS_WEIGHT)
    text = "\n".join(document(found).lines())
    assert "fitted to your runs" in text
    assert "effective number of truths" in text


@pytest.mark.slow
def test_runs_of_several_recipes_are_refused_until_one_is_chosen() -> None:
    grid = {**SWEEP["grid"], "lr": [0.01, 0.02]}  # type: ignore[dict-item]
    runs = isolaw.sweep({**SWEEP, "grid": grid, "executor": {"kind": "inline"}})
    with pytest.raises(DataError, match="lr"):
        plan(runs=runs)
    assert plan(runs=runs, where={"lr": 0.01}).compared == 5


def test_runs_in_percent_are_compared_as_shares_and_scores_are_refused() -> None:
    def known(*reward: float) -> list[Configuration]:
        compute, run = np.arange(float(len(reward))), np.zeros(len(reward), dtype=np.int64)
        return [Configuration(32, 8, compute, np.array(reward), run, (0,), 256.0)]

    shares, percent = (forecast._as_shares(known(*r), "avg@4", "x") for r in ((0.1, 0.6), (10.0, 60.0)))
    np.testing.assert_allclose(shares[0].reward, percent[0].reward)
    narrow = known(0.1, 0.12)  # any metric from 0 to 1 will do
    assert forecast._as_shares(narrow, "score", "x") == narrow
    with pytest.raises(DataError, match=r"x: found score from -1 to 3; expected shares"):
        forecast._as_shares(known(-1.0, 3.0), "score", "x")


def test_the_interval_is_a_predictive_one() -> None:
    even = np.full(39, 1 / 39)
    found = spread(np.arange(39.0), even)
    assert found == pytest.approx((19.0, 1.0, 37.0))  # 2 of 40 places below, 2 above
    assert spread(np.array([0.0, 5.0, 9.0]), np.array([0.5, 0.5, 0.0])).value == 2.5


def test_a_grid_of_three_runs_that_end_with_whole_batches_is_enough_for_a_race() -> None:
    grid = {**SWEEP["grid"], "rollouts_per_problem": [12, 48, 192]}
    three = {**SWEEP, "sweep": {**SWEEP["sweep"], "seeds": 1}, "grid": grid}
    asked = question(three, spend=1.0)
    assert asked.grid < 3 * asked.target
    assert {own.kind for own in asked.candidates()} >= {DesignKind.GRID, DesignKind.RACE}
