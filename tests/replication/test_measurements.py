"""From runs to arrays, and what pictures show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from isolaw import engine
from isolaw.replication.measurements import _band, _within, rewards, settled
from isolaw.runs import Runs


def test_curves_are_freed_of_what_a_seed_shares() -> None:
    rng = np.random.default_rng(0)
    seed = rng.standard_normal((8, 1, 1))
    values = seed + np.arange(12.0).reshape(3, 4)
    np.testing.assert_allclose(np.diff(_within(values, (1, 2))[:, 0], axis=1), 1)
    assert np.ptp(_within(values, (1, 2)), axis=0).max() < 1e-12
    np.testing.assert_allclose(_within(values, (1, 2))[0], values.mean(axis=0))


def test_what_was_not_run_leaves_the_others_alone() -> None:
    values = np.arange(5.0)[:, None, None] + np.zeros((5, 2, 3))
    values[:, 1, 2] = np.nan  # a batch above the cap
    rows = _within(values, (1, 2))
    assert np.isnan(rows[:, 1, 2]).all()
    assert np.isfinite(rows).sum() == rows.size - len(rows)
    np.testing.assert_allclose(rows[np.isfinite(rows)], 2.0)
    assert _band(rows[:, 1])["value"] == [2.0, 2.0, None]


def test_a_budget_finds_the_last_step_that_it_pays_for(tiny: Any) -> None:
    budgets = np.geomspace(200, 20_000, 7)
    evaluation = {"points": 7, "start": 200, "end": 20_000, "samples": 0}
    runs = engine.sweep(tiny(evaluation=evaluation))
    found = rewards(
        runs, "avg@4", "validation", seeds=[1, 0], levels=[4, 16], budgets=budgets,
        where={"problems_per_batch": 8},
    )  # fmt: skip
    assert found.shape == (2, 2, 7)
    points = runs.points[runs.points["metric"] == "avg@4"]
    for s, seed in enumerate([1, 0]):
        for i, n in enumerate([4, 16]):
            own = points[(points["seed"] == seed) & (points["rollouts_per_problem"] == n)]
            for x, budget in enumerate(budgets):
                step = int(budget * (1 + 1e-9) / (8 * n))
                expected = own.loc[own["step"] == step, "value"]
                assert len(expected) == 1
                assert found[s, i, x] == expected.item()


def _table(**columns: Any) -> pd.DataFrame:
    base = {
        "run_id": "a", "problem_set": "p", "algorithm": "grpo", "problems_per_batch": 10,
        "rollouts_per_problem": 10, "seed": 0, "eval_set": "validation", "metric": "avg@4",
    }  # fmt: skip
    return pd.DataFrame({**base, **columns})


def test_before_the_first_step_and_after_the_last_nothing_is_known() -> None:
    runs = Runs(_table(step=[0, 1, 2, 4], compute=[0, 100, 200, 400], value=[0.1, 0.2, 0.3, 0.4]))
    budgets = np.array([50.0, 100.0, 250.0, 400.0, 499.0, 800.0])
    found = rewards(runs, "avg@4", "validation", seeds=[0], levels=[10], budgets=budgets, where={})
    np.testing.assert_array_equal(found[0, 0], [np.nan, 0.2, 0.3, 0.4, 0.4, np.nan])


def test_only_the_selected_runs() -> None:
    parts = [_table(run_id=f"lr{lr}", step=[1], compute=[100], value=[lr]) for lr in (0.1, 0.2)]
    runs = Runs(pd.concat(parts), {"lr0.1": {"lr": 0.1}, "lr0.2": {"lr": 0.2}})
    for lr in (0.1, 0.2):
        found = rewards(
            runs, "avg@4", "validation", seeds=[0, 7], levels=[10, 20], budgets=np.array([100.0]),
            where={"lr": lr, "problems_per_batch": 10},
        )  # fmt: skip
        assert found[0, 0, 0] == lr
        assert np.isnan(found[1]).all()
        assert np.isnan(found[:, 1]).all()
    nothing = rewards(
        runs, "avg@5", "validation", seeds=[0], levels=[10], budgets=np.array([100.0]), where={}
    )
    assert np.isnan(nothing).all()


def test_a_wave_in_the_epoch_is_averaged_away() -> None:
    looks = np.geomspace(1, 2**7.5, 61)
    wave = 0.5 + 0.1 * np.sin(40 * looks)
    flat = settled(np.tile(wave, (2, 3, 1)), 4)
    assert flat.shape == (2, 3, 15)
    assert np.abs(flat - 0.5).max() < 0.08 < 0.099 < np.abs(wave - 0.5).max()
    np.testing.assert_allclose(settled(np.arange(9.0), 4), [2.0, 6.0])
