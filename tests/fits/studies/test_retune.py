"""n*(C) with lr chosen anew: the right one, and not by luck."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from isolaw.errors import DataError, Refused
from isolaw.fits.studies.retune import retune
from isolaw.runs import Runs

pytestmark = pytest.mark.numbers

LRS, NS, SEEDS = (0.01, 0.02, 0.04), (8, 32), 4
LOOKS = 12


def table(
    reward: Callable[[int, float, np.ndarray], np.ndarray],
    noise: float = 0.0,
    seeds: int = SEEDS,
    **more: Any,
) -> Runs:
    """Runs with reward(n, compute, lr) and noise of their own at every look."""
    rng = np.random.default_rng(0)
    rows, attributes = [], {}
    for n in NS:
        for lr in LRS:
            for seed in range(seeds):
                name = f"{n} {lr} {seed}"
                attributes[name] = {"lr": lr, "kl": 0.0, **more}
                step = np.arange(LOOKS) * 10
                value = reward(n, lr, step * 32 * n) + noise * rng.standard_normal(LOOKS)
                rows.append(
                    pd.DataFrame(
                        {
                            "run_id": name, "problem_set": "easy", "algorithm": "grpo",
                            "problems_per_batch": 32, "rollouts_per_problem": n, "seed": seed,
                            "step": step, "compute": step * 32 * n, "eval_set": "validation",
                            "metric": "avg@4", "value": value,
                        }
                    )
                )  # fmt: skip
    return Runs(pd.concat(rows), attributes, "table")


def annealed(n: int, lr: float, compute: np.ndarray) -> np.ndarray:
    """Fast with a large lr at first, better with a small one later; n makes no difference."""
    steps = compute / (32 * n)
    return 0.8 - 3 * lr - 0.5 * np.exp(-steps * lr)


def test_every_budget_has_its_best_lr() -> None:
    tuned = retune(table(annealed), "avg@4", "validation")
    points = tuned.runs.points
    assert len(tuned.runs) == len(NS) * SEEDS
    assert tuned.runs.table().columns.tolist().count("lr") == 0
    for n in NS:
        best = np.max([annealed(n, lr, np.arange(LOOKS) * 320 * n) for lr in LRS], axis=0)
        for _, run in points[points["rollouts_per_problem"] == n].groupby("run_id"):
            np.testing.assert_allclose(run["value"], best)
            np.testing.assert_array_equal(run["compute"], np.arange(LOOKS) * 320 * n)
    expected = [max(LRS, key=lambda lr: annealed(n, lr, np.array([110 * 32 * n]))[0]) for n in NS]
    assert tuned.chosen["lr"].tolist() == expected
    assert tuned.chosen["edge"].tolist() == [lr in (LRS[0], LRS[-1]) for lr in expected]
    assert tuned.best == expected[0]


def test_luck_earns_nothing() -> None:
    """All lr are equally good here: the best of three noisy means would be above the truth, this is not."""
    noise = 0.1
    runs = table(lambda n, lr, c: np.full(c.shape, 0.5), noise=noise, seeds=30)
    tuned = retune(runs, "avg@4", "validation").runs.points["value"]
    error = noise / np.sqrt(len(tuned))
    assert abs(tuned.mean() - 0.5) < 4 * error
    per_lr = runs.points.merge(runs.table()[["lr"]], left_on="run_id", right_index=True)
    naive = per_lr.groupby(["rollouts_per_problem", "step", "lr"])["value"].mean().groupby(level=[0, 1]).max()
    assert naive.mean() - 0.5 > 4 * error


def test_a_seed_is_judged_on_the_choice_of_the_others() -> None:
    """Seed 0 is best at 0.01 by far, all others a little better at 0.04: they choose for it."""

    def one(values: pd.DataFrame) -> pd.DataFrame:
        values = values.copy()
        lr = values["run_id"].str.split().str[1].astype(float)
        odd = values["seed"] == 0
        values["value"] = np.where(odd, np.where(lr == 0.01, 0.9, 0.1), np.where(lr == 0.04, 0.52, 0.2))
        return values

    runs = table(annealed)
    runs = Runs(one(runs.points), runs.attributes)
    tuned = retune(runs, "avg@4", "validation").runs.points
    assert set(tuned.loc[tuned["seed"] == 0, "value"]) == {0.1}


def test_a_value_that_let_a_run_diverge_is_out_from_there_on() -> None:
    runs = table(lambda n, lr, c: 0.2 + lr * 10 + 0 * c)
    points = runs.points
    gone = (points["run_id"] == "8 0.04 2") & (points["step"] > 50)
    tuned = retune(Runs(points[~gone], runs.attributes), "avg@4", "validation").runs.points
    eight = tuned[tuned["rollouts_per_problem"] == 8]
    assert set(eight.loc[eight["step"] <= 50, "value"].round(6)) == {0.6}
    assert set(eight.loc[eight["step"] > 50, "value"].round(6)) == {0.4}
    assert eight["step"].nunique() == LOOKS


def test_only_what_is_held_counts() -> None:
    low = table(annealed)
    high = table(lambda n, lr, c: annealed(n, lr, c) + 0.1, kl=1.0)
    renamed = high.points.assign(run_id="kl " + high.points["run_id"])
    both = Runs(
        pd.concat([low.points, renamed]),
        {**low.attributes, **{f"kl {k}": {**v, "kl": 1.0} for k, v in high.attributes.items()}},
    )
    with pytest.raises(DataError, match="differ in more than lr"):
        retune(both, "avg@4", "validation")
    held = retune(both, "avg@4", "validation", where={"kl": 1.0}).runs
    alone = retune(low, "avg@4", "validation").runs
    np.testing.assert_allclose(held.points["value"], alone.points["value"] + 0.1)
    assert set(held.table()["kl"]) == {1.0}


def test_refusals() -> None:
    runs = table(annealed)
    with pytest.raises(DataError, match="no attribute 'lrr'; did you mean 'lr'"):
        retune(runs, "avg@4", "validation", "lrr")
    with pytest.raises(Refused, match=r"all runs have kl = 0; a sweep with grid\.kl"):
        retune(runs, "avg@4", "validation", "kl")
    with pytest.raises(Refused, match="one seed"):
        retune(table(annealed, seeds=1), "avg@4", "validation")
    with pytest.raises(DataError, match=r"no metric 'avg@5'"):
        retune(runs, "avg@5", "validation")
