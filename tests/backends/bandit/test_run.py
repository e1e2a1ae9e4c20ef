"""Runs of the bandit backend: bit by bit the same when resumed, extended, or made elsewhere."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isolaw import engine
from isolaw.backend import RunContext
from isolaw.backends.bandit import BACKEND, _update_of
from isolaw.config import SweepSpec
from isolaw.simulators import interference


def test_checkpoints_follow_the_schedule(spec, run) -> None:
    checkpoints = run(spec())
    assert [c.step for c in checkpoints] == spec().schedule()
    assert [c.compute for c in checkpoints] == [32 * c.step for c in checkpoints]
    assert [c.final for c in checkpoints] == [False] * (len(checkpoints) - 1) + [True]
    rows = [r for c in checkpoints for r in c.rows]
    accuracies = {"avg@4", "best@4", "worst@4"}
    sizes = {(r.eval_set, r.n_problems, r.n_samples) for r in rows if r.metric in accuracies}
    assert sizes == {("validation", 40, 8), ("train", 50, 8)}
    exact = {(r.eval_set, r.n_problems, r.n_samples) for r in rows if r.metric not in accuracies}
    assert exact == {("validation", 40, None), ("train", 50, None), ("train", None, None)}
    assert {r.metric for r in rows} == accuracies | {"zero_fraction", "gini", "drift"}


MODELS: dict[str, dict[str, Any]] = {
    "interference": {},
    "hard": {"problems": {"set": "hard", "n_train": 50, "n_validation": 40}},
    "mixed": {"problems": {"set": "0.5 easy + 0.5 hard", "n_train": 50, "n_validation": 40}},
    "replacement": {"recipe": {"replacement": True}},
    "stale": {"recipe": {"staleness": 3, "advantage": "batch_std"}},
    "few in the gradient": {"recipe": {"staleness": 2, "gradient_rollouts": 2}},
    "tabular": {"options": {"model": "tabular"}, "problems_per_batch": 1, "problems": {}},
    "stale tabular": {
        "options": {"model": "tabular"},
        "problems_per_batch": 1,
        "problems": {"set": "hard"},
        "recipe": {"staleness": 4, "algorithm": "dr_grpo"},
    },
}


@pytest.mark.parametrize("model", MODELS)
def test_a_resumed_run_is_the_same_to_the_last_bit(spec, run, tmp_path: Path, model: str) -> None:
    every = {"points": 8, "sets": ["validation", "train"], "metrics": ["avg@4"]}
    this = spec(**{"evaluation": every} | MODELS[model])
    whole = run(this)
    assert len(whole) > 5
    for k, checkpoint in enumerate(BACKEND.run(this, RunContext())):
        folder = tmp_path / str(k)
        folder.mkdir()
        checkpoint.save(folder)
        assert run(this, folder) == whole[k + 1 :]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["interference", "tabular"])
def test_one_process_two_or_another_order_give_the_same_numbers(
    tmp_path: Path, tiny, same, model: str
) -> None:
    size = {"problems_per_batch": [1]} if model == "tabular" else {"problems_per_batch": [8, 4]}
    problems = {} if model == "tabular" else {"n_train": 50, "n_validation": 40}

    def tables(name: str, executor: dict[str, Any], ns: list[int], seeds: list[int]) -> Any:
        sections = {
            "sweep": {"compute": 20_000, "seeds": seeds},
            "grid": {**size, "rollouts_per_problem": ns},
            "problems": problems,
            "evaluation": {"points": 8, "metrics": ["avg@4"]},
            "executor": executor,
            "bandit": {"model": model},
        }
        return engine.sweep(SweepSpec.parse(sections), tmp_path / name)

    once = tables("inline", {"kind": "inline"}, [4, 16], [0, 1])
    same(once, tables("processes", {"kind": "processes", "jobs": 2}, [4, 16], [0, 1]))
    same(once, tables("order", {"kind": "inline"}, [16, 4], [1, 0]))


def test_a_longer_run_begins_with_the_shorter_one(spec, values) -> None:
    evaluation = {"start": 32, "end": 10_000, "horizons": [10_000, 30_000], "points": 8}
    short, long = (values(spec(compute=c, evaluation=evaluation)) for c in (10_000, 30_000))
    assert short.items() <= long.items()
    assert len(long) > len(short)


def test_what_is_measured_does_not_depend_on_how_often_one_looks(spec, values) -> None:
    few, many = (values(spec(evaluation={"points": p, "start": 32, "end": 10_000})) for p in (4, 60))
    common = few.keys() & many.keys()
    assert len({step for step, *_ in common}) >= 3
    assert {key: few[key] for key in common} == {key: many[key] for key in common}


def test_what_is_measured_does_not_depend_on_the_sets_looked_at(spec, values) -> None:
    both = values(spec())
    for name in ("validation", "train"):
        alone = values(spec(evaluation={"points": 8, "samples": 8, "sets": [name]}))
        own = {key: value for key, value in both.items() if key[1] == name or key[2] == "drift"}
        assert alone == own


def test_each_look_has_noise_of_its_own(spec, values) -> None:
    """Nothing is learned here, so values differ by the evaluation's samples alone."""
    still = values(spec(recipe={"lr": 1e-12, "kl": 0.0}))
    for name in ("validation", "train"):
        looks = [value for (_, s, metric), value in still.items() if (s, metric) == (name, "avg@4")]
        assert len(set(looks)) > len(looks) / 2
    noise = [np.subtract(*(still[step, s, "avg@4"] for s in ("validation", "train"))) for step in (0, 1, 2)]
    assert len(set(noise)) > 1


@pytest.mark.parametrize("change", [{"seed": 1}, {"rollouts_per_problem": 8}, {"recipe": {"lr": 0.03}}])
def test_another_run_has_other_numbers(spec, values, change: dict[str, Any]) -> None:
    assert values(spec()) != values(spec(**change))


@pytest.mark.parametrize("model", ["interference", "tabular"])
def test_training_raises_the_reward(spec, values, model: str) -> None:
    one = {"problems_per_batch": 1, "problems": {}} if model == "tabular" else {"problems_per_batch": 32}
    many = {"problems": {"n_train": 2000, "n_validation": 300}}
    exact = {"points": 4, "samples": 0, "sets": ["validation", "train"]}
    changes = {
        "compute": 200_000,
        "rollouts_per_problem": 16,
        "evaluation": exact,
        "options": {"model": model},
    }
    this = spec(**{**many, **changes, **one})
    reward = values(this)
    for name in ("validation", "train"):
        assert reward[this.steps, name, "avg@4"] > reward[0, name, "avg@4"] + 0.1


@pytest.mark.parametrize(
    ("scaling", "steps"), [("sqrt", [16, 64]), ("linear", [8, 128]), ("constant", [32, 32])]
)
def test_the_step_is_eta_at_one_rollout(spec, scaling: str, steps: list[float]) -> None:
    """η √B under the square-root rule; the others agree with it at B = 1,024."""
    recipe = {"lr": 1.0, "lr_scaling": scaling}
    own = [
        _update_of(
            spec(problems_per_batch=32, rollouts_per_problem=n, compute=10**6, recipe=recipe)
        ).step_size
        for n in (8, 32, 128)
    ]
    assert own == [steps[0], 32, steps[1]]


def test_the_step_follows_the_batch_that_enters_the_gradient(spec) -> None:
    """Advantages from 16 rollouts, gradient from 4: the lr of n = 4, the baseline of 16."""
    few, many = spec(rollouts_per_problem=4), spec(rollouts_per_problem=16)
    both = spec(rollouts_per_problem=16, recipe={"gradient_rollouts": 4})
    assert _update_of(both).step_size == _update_of(few).step_size == _update_of(many).step_size / 2
    assert (_update_of(both).rollouts_per_problem, _update_of(both).trained) == (16, 4)
    assert _update_of(many).trained == 16


@pytest.mark.parametrize(
    "recipe", [{}, {"gradient_rollouts": 2}, {"zero_variance_filter": True}, {"staleness": 5}], ids=str
)
def test_compute_counts_the_rollouts_that_were_generated(spec, run, recipe: dict[str, Any]) -> None:
    """Also those that no gradient uses; evaluation is not in it."""
    assert [c.compute for c in run(spec(recipe=recipe))] == [32 * step for step in spec().schedule()]


def test_an_algorithm_brings_its_advantage(spec) -> None:
    assert _update_of(spec()).advantage == "group_std"
    assert _update_of(spec(recipe={"algorithm": "dr_grpo"})).advantage == "centred"
    assert _update_of(spec(recipe={"advantage": "leave_one_out"})).advantage == "leave_one_out"


@pytest.mark.parametrize(
    ("name", "kind"), [("easy", "easy"), ("hard", "hard"), ("0.5 easy + 0.5 hard", "hard")]
)
def test_lr_and_kl_are_the_presets_for_this_difficulty(spec, name: str, kind: str) -> None:
    preset = asdict(next(iter(interference.PRESETS.values())))
    resolved = spec(problems={"set": name}).recipe
    assert (resolved.lr, resolved.kl) == (preset[f"lr_{kind}"], preset[f"kl_{kind}"])
    for said in ("easy", "hard"):  # what is said decides, and what it decides is the run's identity
        other = spec(problems={"set": name, "difficulty": said})
        assert (other.recipe.lr, other.recipe.kl) == (preset[f"lr_{said}"], preset[f"kl_{said}"])
        assert (other.run_id == spec(problems={"set": name}).run_id) == (said == kind)
    given = spec(problems={"set": name}, recipe={"lr": 0.125, "kl": 0.0}).recipe
    assert (given.lr, given.kl) == (0.125, 0.0)
    changed = spec(problems={"set": name}, options={"parameters": {f"lr_{kind}": 0.25}})
    assert changed.recipe.lr == 0.25


def test_runs_of_a_seed_start_from_the_same_problems(spec, run) -> None:
    """At step 0 configurations differ by the evaluation's noise alone, seeds by their problems."""
    many = {"points": 2, "samples": 4096, "metrics": ["avg@1"]}
    problems = {"n_train": 50, "n_validation": 10}

    def start(**changes: Any) -> float:
        return run(spec(evaluation=many, problems=problems, **changes))[0].rows[0].value

    noise = 0.5 / np.sqrt(4096 * 10)
    base = start()
    for change in ({"rollouts_per_problem": 16}, {"problems_per_batch": 16}, {"recipe": {"lr": 0.1}}):
        assert abs(start(**change) - base) < 5 * noise
    assert max(abs(start(seed=s) - base) for s in (1, 2, 3)) > 5 * noise
