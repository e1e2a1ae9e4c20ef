"""The next step: a purchase within the budget, whose price is of its runs, and the same one everywhere."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shared_laws import REACH, SharedLaws

import isolaw
from isolaw import engine
from isolaw.cli import run
from isolaw.errors import InputError
from isolaw.fits.allocations import reached_compute
from isolaw.fits.flags import Code, flags_with
from isolaw.fits.law import Law
from isolaw.fits.next_step import NextStep, RunsToTrain, _information, with_command
from isolaw.report.text.prediction import _verdict as verdict
from isolaw.report.text.prediction import at_the_end
from isolaw.step_cost import Cost, CostOrigin, StepPart

COST = Cost({"generate": StepPart(20.0, 1e-3)}, 100.0, "tokens", CostOrigin.RATE, gpus=8)
# The joint surface takes longest to predict.
LAWS = 4 * ("surface B_p", "paper B_p", "surface B") + ("paper nothing", "surface nothing")
Make = Callable[..., Any]


def situations(count: int) -> list[tuple[str, float, dict[str, Any]]]:
    """Laws, budgets, limits and costs at random, from a sixteenth to 100 times the compute of the runs."""
    draw = random.Random(58)
    return [
        (
            draw.choice(LAWS),
            REACH * 10 ** draw.uniform(-1.2, 2),
            {
                "max_batch_rollouts": draw.choice([None, None, 2048, 16_384]),
                "cost": draw.choice([None, COST, replace(COST, price=2.5)]),
            },
        )
        for _ in range(count)
    ]


@pytest.mark.slow
def test_the_runs_and_the_final_run_cost_at_most_the_budget(shared: SharedLaws, synthetic: Make) -> None:
    """In 60 random situations, and with noisy runs; the price of the step is the price of its runs."""
    noisy = isolaw.fit(synthetic([(32, n) for n in (8, 32, 128, 512)], seeds=2, noise=0.06), draws=100)
    cases = [(shared.law(name), budget, limits) for name, budget, limits in situations(60)]
    cases += [(noisy, budget, {"cost": COST, "max_batch_rollouts": 65_536}) for budget in (4e6, 8e6)]
    kinds = set()
    for law, budget, limits in cases:
        prediction = law.predict(budget, **limits)
        step, final = prediction.next, prediction.next.final
        kinds.add((bool(step.runs), final is not None))
        assert step.rollouts == sum(one.rollouts for one in step.runs)
        total = step.rollouts + (0 if final is None else final.compute)
        assert total <= prediction.compute or "more than the budget" in str(step)
        if final is not None:  # the final run is the recommended one, with the steps that the rest pays for
            assert (final.problems_per_batch, final.rollouts_per_problem) == (prediction.B_p, prediction.n)
            assert final.batch_rollouts > prediction.compute - total
        if step.runs and limits["cost"]:
            hours = sum(COST.gpu_hours(*one.key, one.steps - one.start).value for one in step.runs)
            assert step.cost.gpu_hours.value == pytest.approx(hours)
            assert (step.cost.money is None) == (limits["cost"].price is None)
        if step.runs and limits["max_batch_rollouts"]:
            assert all(one.batch_rollouts <= limits["max_batch_rollouts"] for one in step.runs)
    assert kinds >= {(True, True), (True, False), (False, True)}


def test_a_budget_in_hours_pays_for_the_step_too(shared: SharedLaws) -> None:
    for name in ("surface B_p", "surface nothing"):
        for hours in (20, 200, 2000):
            prediction = shared.law(name).predict(f"{hours}gpuh", cost=replace(COST, price=2.0))
            step = prediction.next
            if step.runs:
                assert step.cost.gpu_hours.value == pytest.approx(step.spent * 8 / 3600)
                rest = (
                    0.0
                    if step.final is None
                    else COST.gpu_hours(*prediction_key(step), step.final.steps).value
                )
                assert step.cost.gpu_hours.value + rest <= hours


def prediction_key(step: Any) -> tuple[int, int]:
    return step.final.problems_per_batch, step.final.rollouts_per_problem


def test_no_run_is_bought_that_cannot_pay(shared: SharedLaws) -> None:
    """With an expected loss below the tolerance, the budget is spent."""
    prediction = shared.law("paper B_p").predict(9e5)
    assert prediction.loss <= prediction.tolerance
    assert str(prediction.next) == "No further run is needed; spend the budget."
    assert prediction.next.final == prediction.allocation


@pytest.mark.slow
@pytest.mark.parametrize("hold", [pytest.param("one", marks=pytest.mark.nightly), "several"])
def test_one_answer(synthetic: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], hold: str) -> None:
    """fit, predict, answer, report, their JSON and Python: one allocation, loss and next step."""
    batches = [32] if hold == "one" else [16, 32, 64]
    places = [(b, n) for b in batches for n in (8, 32, 128)]
    limit = {"attributes": {"max_batch_rollouts": 4096, "n_train_problems": 500}}
    runs = synthetic(places, noise=0.004, between=0.004, seeds=2, **limit)
    table, file = tmp_path / "runs.parquet", tmp_path / "law.json"
    runs.to_parquet(table)
    question = ["--compute", "2.5M", "--json"]

    def printed(*words: str) -> Any:
        code = run([*words, *question])
        assert code in (0, None)
        return json.loads(capsys.readouterr().out)

    assert run(["fit", str(table), "--out", str(file), "--draws", "20"]) in (0, None)
    law = Law.load(file)
    assert law.document.hold == ("B_p" if hold == "one" else "nothing")
    assert capsys.readouterr().out.splitlines()[:3] == verdict(at_the_end(law))
    python = law.predict(2.5e6)
    assert python.allocation.batch_rollouts <= 4096
    answer = isolaw.answer(runs, 2.5e6, draws=20)
    answers = [
        printed("predict", str(file)),
        printed("answer", str(table), "--draws", "20"),
        printed("report", str(table), "--draws", "20", "--out", str(tmp_path / "r.html"))["prediction"],
        answer.to_dict(),
        python.to_dict(),
    ]
    names = ("rollouts_per_problem", "problems_per_batch", "steps", "expected_loss", "epochs", "next")
    for one in answers:
        assert {name: one[name] for name in names} == {name: answers[0][name] for name in names}
    assert answer.lines()[:3] == str(python).splitlines()[:3]


@pytest.mark.parametrize("mean", [-0.02, -0.004, 0.003])
@pytest.mark.parametrize("noise", [1e-9, 1e-4, 1.0])
def test_what_a_run_is_worth_is_what_choosing_after_it_wins(mean: float, noise: float) -> None:
    """Simulated: of a true difference and a measurement, choose by the posterior mean, and by chance."""
    rng = np.random.default_rng(0)
    true, other = rng.standard_normal((2, 400_000)) * 0.01
    difference, measured = mean + true, 0.6 * true + other + 0.5
    seen = measured + rng.standard_normal(true.size) * noise**0.5
    slope, start = np.polyfit(seen, difference, 1)  # the posterior mean of joint Gaussians
    won = np.where(start + slope * seen > 0, difference, 0.0).mean() - max(difference.mean(), 0.0)
    assert _information(difference, measured, noise) == pytest.approx(won, abs=3e-5)
    assert 0 <= won + 3e-5 <= np.maximum(difference, 0).mean() + 3e-5


@pytest.mark.parametrize("name", ["surface B_p", "surface B"])
def test_more_compute_loses_no_reward_without_a_word(shared: SharedLaws, name: str) -> None:
    law, highest = shared.law(name), 0.0
    for budget in REACH * np.geomspace(1.0, 9.0, 6):
        prediction = law.predict(float(budget))
        said = flags_with(prediction.flags, Code.NO_GAIN)
        assert prediction.reward.value >= highest - prediction.tolerance / 2 or said
        highest = max(highest, prediction.reward.value)


def test_python_as_people_use_it(shared: SharedLaws) -> None:
    law = shared.law("surface nothing")
    reach = reached_compute(law.document.grid)
    both = law.rewards(n=[32, 128], problems_per_batch=16, compute="2x")
    assert both.shape[1] == 2
    one = law.rewards(n=32, problems_per_batch=16, compute=2 * reach)
    assert one.ndim == 1
    assert one[0] == pytest.approx(both[0, 0])
    table = law.residuals()
    assert (table["reward"] - table["fitted"]).abs().max() == table["residual"].abs().max() < 0.05
    with pytest.raises(InputError, match="the law has several B_p"):
        law.rewards(n=32, compute=1e6)
    shapes = isolaw.compare_shapes(
        shared.runs("surface B_p"), "32x8", {"B_p": 32, "n": 128}, compute="1x", draws=10
    )
    assert (shapes.shapes, repr(shapes)) == (((32, 8), (32, 128)), str(shapes))


def test_the_answer_is_settings_of_the_trainer(synthetic: Make) -> None:
    runs = synthetic([(32, n) for n in (8, 32, 128)], attributes={"framework": "veRL"})
    prediction = isolaw.fit(runs, draws=10).predict(1e6)
    settings = f"data.train_batch_size=32 actor_rollout_ref.rollout.n={prediction.n} "
    assert prediction.overrides.startswith(settings)
    assert prediction.overrides.endswith(f"trainer.total_training_steps={prediction.M}")
    assert f"veRL: {prediction.overrides}" in str(prediction).splitlines()
    assert prediction.to_dict()["overrides"] == prediction.overrides


def test_another_seed_is_one_that_the_configuration_lacks(
    shared: SharedLaws, tiny: Any, tmp_path: Path
) -> None:
    document = replace(shared.law("surface B_p").document, sources=(str(tmp_path),))

    def command(n: int) -> str:
        step = NextStep("", runs=(RunsToTrain(8, n, 0, 100, another_seed=True),))
        return with_command(step, document).command

    engine.sweep(tiny(), tmp_path)
    part = tiny(sweep={"seeds": [5], "compute": 10_000}, grid={"rollouts_per_problem": [4]})
    list(engine.execute(engine.resolve_sweep(part, tmp_path, continued=True), tmp_path))
    assert "sweep.seeds=[2]" in command(16)
    assert "sweep.seeds=[6]" in command(4)
    assert "sweep.seeds=[0]" in command(2)
