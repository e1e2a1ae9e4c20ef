"""Rollouts to a target, the critical batch and the rule of the lr, on runs with a known truth."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import approx_fprime

from benchmarks import critical_batch
from isolaw.errors import InputError, Refused
from isolaw.fits.studies.target_model import TargetData, TargetModel
from isolaw.fits.studies.targets import crossing, to_target
from isolaw.runs import Runs
from isolaw.step_cost import Cost, CostOrigin, StepPart

pytestmark = pytest.mark.numbers

CRITICAL, LEAST, LR = 100.0, 20_000.0, 1e-6
BATCHES = (4, 16, 64, 256, 1024)


def needed(b: int, n: int, lr: float, beta: float = 0.0) -> float:
    """Rollouts for half of the rise, in closed form; the best lr is 1e-6 √B_p n^β."""
    away = math.log(lr / (LR * b**0.5 * n**beta))
    return LEAST * (1 + b / CRITICAL) * math.cosh(away)


def simulated(
    ns: tuple[int, ...] = (8,), beta: float = 0.0, end: float = 1e6, spread: float = 0.15, seed: int = 0
) -> Runs:
    """Runs whose reward is .2 + .6 x / (1 + x), x = C / N: at .5 after N rollouts."""
    rng = np.random.default_rng(seed)
    rows, attributes = [], {}
    compute = np.append(0.0, np.geomspace(2_000, end, 60))
    for b in BATCHES:
        for n in ns:
            for factor in (0.25, 0.5, 1.0, 2.0, 4.0):
                lr = LR * b**0.5 * n**beta * factor
                x = compute / (needed(b, n, lr, beta) * math.exp(rng.normal(0, spread)))
                run = f"{b}x{n}x{factor}"
                value = 0.2 + 0.6 * x / (1 + x) + rng.normal(0, 0.005, compute.size)
                shape = {"run_id": run, "problems_per_batch": b, "rollouts_per_problem": n}
                own = {"compute": compute.round(), "step": range(61), "value": value}
                rows.append(pd.DataFrame({**shape, **own}))
                attributes[run] = {"lr": lr}
    whole = {"problem_set": "easy", "algorithm": "grpo", "seed": 0, "eval_set": "validation"}
    return Runs(pd.concat(rows).assign(metric="avg@4", **whole), attributes)


@pytest.fixture(scope="module")
def found() -> Any:
    return to_target(simulated(), [0.44, 0.5])


def test_the_critical_batch_and_the_least_rollouts_are_those_of_the_truth(found: Any) -> None:
    at = {batch.target: batch for batch in found.critical}
    for target, share in ((0.44, 2 / 3), (0.5, 1.0)):  # of N: x / (1 + x) = (T − .2) / .6
        own = at[target]
        for q, truth in (
            (own.problems_per_batch, CRITICAL),
            (own.rollouts, share * LEAST),
            (own.steps, share * LEAST / CRITICAL / 8),
        ):
            low, high = q.interval
            assert low < truth < high < 2.5 * low


@pytest.mark.slow
def test_the_exponent_of_the_lr_and_the_rules_that_n_alone_tells_apart(found: Any) -> None:
    low, high = found.lr.alpha[0].interval
    assert low < 0.5 < high < low + 0.25
    assert set(found.lr.supported) == {"sqrt", "sqrt_problems"}  # which one n cannot tell apart
    assert found.lr.beta == ()
    law = to_target(simulated((4, 16, 64), spread=0.1), [0.5]).lr
    assert law is not None
    assert law.supported == ["sqrt_problems"]
    assert abs(law.beta[0].value or 0.0) < 0.1
    best = {choice.key: choice.lr for choice in law.choices}
    assert best[64, 16] == pytest.approx(8 * LR, rel=0.25)
    law = to_target(simulated((4, 16, 64), beta=0.5, spread=0.1), [0.5]).lr
    assert law is not None
    assert law.supported == ["sqrt"]


def test_a_target_that_few_runs_reach_is_a_bound_and_one_that_none_reaches_is_refused() -> None:
    runs = simulated(end=30_000)
    own = to_target(runs, [0.3, 0.7])
    none = [c for c in own.critical if c.target == 0.7]
    assert [(c.reached, c.problems_per_batch.status) for c in none] == [(0, "refused")]
    assert any(flag.code == "censored" for flag in own.flags)
    assert {row.rollouts.status for row in own.rows if row.target == 0.7} == {"lower_bound"}
    with pytest.raises(Refused, match=r"no run reaches avg@4 = 0\.7 in two evaluations"):
        to_target(runs, [0.7])
    with pytest.raises(InputError, match=r"found 0\.1, nan; expected rewards above 0\.199"):
        to_target(runs, [0.1, math.nan])


def test_one_lucky_evaluation_and_a_collapse_after_the_peak() -> None:
    compute = np.arange(0.0, 4000.0, 100.0)
    rising = np.minimum(compute / 4000, 0.5)
    lucky = rising.copy()
    lucky[5] = 0.9
    assert crossing(compute, rising, 0.4) == pytest.approx(1600)
    assert crossing(compute, lucky, 0.4) == pytest.approx(1600, rel=0.15)
    assert math.isnan(crossing(compute, lucky, 0.6))
    fallen = np.where(compute > 2500, 0.0, rising)
    assert crossing(compute, fallen, 0.4) == pytest.approx(1600)


def test_runs_of_a_configuration_are_pooled_and_cost_hours(synthetic: Callable[..., Runs]) -> None:
    def reward(b: int, _n: int, compute: Any) -> Any:
        return 0.2 + 0.6 * compute / (compute + LEAST * (1 + b / CRITICAL))

    runs = synthetic([(b, 8) for b in BATCHES], reward, between=0.02, noise=0.002)
    ten = Cost({"all": StepPart(10.0, 0.0)}, 1.0, "rollouts", CostOrigin.RATE, gpus=4, batches=(1, 2))
    own = to_target(runs, [0.5], cost=ten)
    assert [row.runs for row in own.rows] == [3] * len(BATCHES)
    for row in own.rows:
        each = [
            crossing(p["compute"].to_numpy(float), p["value"].to_numpy(float), 0.5)
            for _, p in runs.points[runs.points["problems_per_batch"] == row.problems_per_batch]
            .sort_values("compute")
            .groupby("run_id")
        ]
        assert row.rollouts.value == pytest.approx(math.exp(np.log(each).mean()))
        assert row.rollouts.interval is not None
        assert row.steps.value == pytest.approx(row.rollouts.value / row.problems_per_batch / 8)
        assert row.spent is not None
        assert row.spent.to_dict()["gpu_hours"]["value"] == pytest.approx(
            max(round(row.steps.value), 1) * 40 / 3600
        )
    assert own.lr is None  # one lr


def test_recipes_have_levels_of_their_own() -> None:
    runs = simulated()
    slow = [r for r in runs.attributes if int(r.partition("x")[0]) in (16, 256)]
    points = runs.points.copy()
    at = points["run_id"].isin(slow)
    points.loc[at, "compute"] *= 3
    attributes = {
        r: {**attribute, "kl": 0.1 if r in slow else 0.0} for r, attribute in runs.attributes.items()
    }
    own = to_target(Runs(points, attributes), [0.5])
    assert CRITICAL / 2 < (own.critical[0].problems_per_batch.value or 0.0) < 2 * CRITICAL
    assert any(flag.code == "blocks" for flag in own.flags)


@pytest.mark.parametrize("form", ["critical", "cells"])
def test_the_gradient_is_that_of_the_likelihood(form: Any) -> None:
    rng = np.random.default_rng(3)
    b = np.repeat([4.0, 16.0, 64.0, 256.0], 3)
    lr = np.sqrt(b) * np.tile([0.5, 1.0, 2.0], 4)
    log_n = np.log1p(b / 60)[:, None] + rng.normal([10, 11], 0.3, (12, 2))
    reached = log_n < 12
    n, block = np.full(12, 8.0), np.tile([0, 1], 6)
    before = ~reached & (rng.random(reached.shape) < 0.5)
    model = TargetModel(TargetData(np.array([0.4, 0.6]), log_n, reached, b, n, lr, block, before), form)
    assert 0 < reached.mean() < 1
    theta = model.theta + rng.normal(0, 0.05, len(model.names))
    slope = approx_fprime(theta, lambda x: model.loss_and_slope(x)[0], 1e-6)
    assert model.loss_and_slope(theta)[1] == pytest.approx(slope, rel=0.02, abs=0.02)


def test_the_table_of_the_page_is_the_one_that_was_measured() -> None:
    found = json.loads(critical_batch.SUMMARY.read_text())
    assert "\n".join(critical_batch.table(found)) in critical_batch.DOCS.read_text()
    table, curves = critical_batch.runs()
    own = TargetModel(critical_batch.data(table, curves, critical_batch.TARGETS), "critical")
    for row in found["steady"]:
        critical = math.exp(critical_batch.log_critical(own, row["target"]))
        assert critical == pytest.approx(row["isolaw"]["value"], rel=0.01)
        assert critical_batch.usual(table, curves, row["target"]) == pytest.approx(row["usual"], rel=0.01)
