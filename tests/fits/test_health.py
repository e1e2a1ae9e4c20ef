"""Health: runs that are drawn down are found, and the smallest B_p that trains stably."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError
from isolaw.fits.allocations import affordable_candidates
from isolaw.fits.flags import Code, Flag
from isolaw.fits.health import batch_health, health
from isolaw.fits.selection import differing
from isolaw.runs import Runs

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

Make = Callable[..., Runs]
LOGS = Path(__file__).parents[3] / "shared/data/logs/csv"


def collapsing(*small: int) -> Callable[..., Any]:
    """Reward that comes down again at the B_p named, and rises at all others."""

    def reward(b: int, _n: int, compute: Any) -> Any:
        up = 0.6 - 0.3 * np.exp(-compute / 1e5)
        return up * np.where(compute > 4e5, 0.4, 1.0) if b in small else up

    return reward


def table(values: dict[tuple[str, str], Any], run_id: str = "a", **columns: Any) -> pd.DataFrame:
    """One run's curves by (metric, eval_set), a step each."""
    parts = [
        pd.DataFrame({"metric": m, "eval_set": e, "step": np.arange(len(v)), "value": np.asarray(v, float)})
        for (m, e), v in values.items()
    ]
    facts = {"problem_set": "p", "algorithm": "grpo", "problems_per_batch": 32, "rollouts_per_problem": 8}
    out = pd.concat(parts, ignore_index=True).assign(run_id=run_id, seed=0, **facts)
    return out.assign(compute=out["step"] * 256).assign(**columns)


def test_drawn_down_runs_and_their_reasons(synthetic: Make) -> None:
    runs = synthetic([(b, 8) for b in (4, 32)], collapsing(4), noise=0.01, checkpoints=40)
    for h in health(runs):
        assert h.status == ("unhealthy" if h.problems_per_batch == 4 else "healthy")
        assert h.judged_by == ("avg@4 on validation",)
        assert (h.rollouts_per_problem, h.seed) == (8, int(h.run_id[-1]))
        if h.signs:
            (reason,) = h.reasons
            assert reason.startswith("reward collapse (avg@4 on validation from 0.")
            assert h.signs["avg@4 on validation"].step * 32 >= 4e5
        json.dumps(h.to_dict(), allow_nan=False)


def test_nothing_to_judge_by_is_unknown(synthetic: Make) -> None:
    runs = Runs(table({("response_length", "train"): [900.0] * 30, ("avg@4", "validation"): [0.5] * 5}))
    (only,) = health(runs)
    assert (only.status, only.judged_by) == ("unknown", ())
    assert batch_health(runs) == ()


def test_every_diagnostic_counts_and_train_comes_first() -> None:
    flat = [0.5] * 40
    curves = {
        ("entropy", "aime"): flat,
        ("entropy", "train"): 0.5 * np.exp(-np.arange(40) / 5),
        ("kl", "train"): np.where(np.arange(40) < 80, 0.01, 1.0),
        ("grad_norm", "train"): flat,
        ("truncated_fraction", "validation"): np.linspace(0, 0.5, 40),
        ("reward", "train"): flat,
        ("avg@4", "validation"): flat,
    }
    (h,) = health(Runs(table(curves)))
    assert set(h.judged_by) == {f"{m} on {e}" for m, e in curves if e != "aime"}
    assert {s.name for s in h.signs.values()} == {"entropy collapse", "truncated responses"}
    assert [s.step for s in h.signs.values()] == sorted(s.step for s in h.signs.values())


@pytest.mark.parametrize(
    ("metric", "problems", "samples", "seen"),
    [
        ("avg@4", 300, 4, True),
        ("avg@4", 20, 4, False),
        ("best@4", 300, 4, True),
        ("best@4", 80, 4, False),
        ("avg@4", 80, 4, True),
        ("avg@4", None, None, True),
        ("score", 20, 4, True),
    ],
)
def test_the_binomial_error_of_the_evaluation(metric: str, problems: Any, samples: Any, seen: bool) -> None:
    """A fall from .5 to .4, drawn smoothly: whether it is noise depends on what one evaluation is worth."""
    values = np.concatenate([np.full(15, 0.5), np.linspace(0.5, 0.4, 5), np.full(10, 0.4)])
    runs = Runs(table({(metric, "validation"): values}, n_problems=problems, n_samples=samples))
    assert (health(runs, metric)[0].status == "unhealthy") == seen


def test_small_batches_that_collapse_are_unstable(synthetic: Make) -> None:
    configurations = [(b, n) for b in (4, 8, 16, 32) for n in (8, 16)]
    runs = synthetic(configurations, collapsing(4, 8), noise=0.01, checkpoints=40, seeds=5)
    found = batch_health(runs)
    assert [(b.problems_per_batch, b.healthy, b.judged) for b in found] == [
        (4, 0, 10), (8, 0, 10), (16, 10, 10), (32, 10, 10),
    ]  # fmt: skip
    assert found[0].reason is not None
    assert found[0].reason.startswith(
        "10 of 10 runs are unhealthy, e.g. n = 16, seed 0, with reward collapse"
    )


def test_each_batch_is_judged_by_its_own_runs(synthetic: Make) -> None:
    found = batch_health(synthetic([(b, 8) for b in (4, 8, 16)], collapsing(8), checkpoints=40))
    assert [b.problems_per_batch for b in found if b.reason] == [8]


def test_two_recipes_are_refused(synthetic: Make) -> None:
    one, other = (synthetic([(32, 8)], seeds=[seed], attributes={"lr": 0.1 * (1 + seed)}) for seed in (0, 1))
    runs = Runs.concat([one, other])
    assert (differing(runs.table()), differing(one.table())) == (["lr"], [])
    with pytest.raises(DataError, match="differ in lr"):
        batch_health(runs)


def test_small_batches_of_the_simulator_are_unstable() -> None:
    """Without the square-root rule a small batch takes as long steps as a large one, with more noise."""
    runs = isolaw.sweep(
        {
            "sweep": {"compute": 150_000, "seeds": 2},
            "grid": {"problems_per_batch": [4, 128], "rollouts_per_problem": [8]},
            "recipe": {"lr": 0.04, "lr_scaling": "constant"},
            "problems": {"n_train": 500, "n_validation": 300},
            "evaluation": {"points": 30, "metrics": ["avg@4"]},
            "executor": {"kind": "inline"},
        }
    )
    found = batch_health(runs)
    assert [(b.healthy, b.judged) for b in found] == [(0, 2), (2, 2)]


@pytest.mark.skipif(not LOGS.exists(), reason="the sample logs are not here")
def test_real_logs() -> None:
    """One run collapses to nothing but noise; the other is drawn down, and never collapses."""
    names = {"reward_avg": "reward", "entropy_avg": "entropy", "kl_loss": "kl", "eval_acc": "avg@1"}
    found = {}
    for path in LOGS.glob("7_*.csv"):
        log = pd.read_csv(path).query("total_steps == 500").rename(columns=names)
        log["avg@1"] /= 100
        long = log.melt("step", [c for c in names.values() if c in log], "metric").dropna()
        here = np.where(long["metric"] == "avg@1", "validation", "train")
        runs = Runs(
            long.assign(
                run_id=path.name, eval_set=here, compute=8 * long["step"], problems_per_batch=1, seed=0,
                rollouts_per_problem=8, problem_set="gsm8k", algorithm="grpo",
            )
        )  # fmt: skip
        (h,) = health(runs, "avg@1")
        found[path.name[:3]] = {where: s.name for where, s in h.signs.items()}
    assert found["7_5"] == {
        "reward on train": "reward collapse",
        "entropy on train": "entropy explosion",
        "avg@1 on validation": "reward collapse",
        "kl on train": "kl explosion",
    }
    assert found["7_3"] == {
        "entropy on train": "entropy explosion",
        "avg@1 on validation": "reward drawn down",
        "reward on train": "reward drawn down",
    }


@pytest.mark.parametrize(("unstable", "left"), [((16,), [32, 64]), ((16, 32, 64), [16, 32, 64])])
def test_an_unstable_batch_is_left_out_unless_all_are_unstable(shared, unstable, left) -> None:
    document = shared.law("surface nothing").document
    batches = tuple(
        replace(b, reason="its rewards fell" if b.problems_per_batch in unstable else None)
        for b in document.health
    )
    ill = replace(document, health=batches)
    flags: list[Flag] = []
    candidates = affordable_candidates(ill, 10**7, None, flags)
    assert sorted({c.problems_per_batch for c in candidates}) == left
    kept = "leaves this B_p out" if len(unstable) == 1 else "keeps this B_p, since no other was measured"
    expected = [f"at B_p = {b}, its rewards fell; isolaw {kept}" for b in unstable]
    assert [flag.text for flag in flags if flag.code == Code.UNSTABLE_BATCH] == expected
