"""The bandit backend: runs that resume bit by bit, and refusals before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isolaw import engine
from isolaw.backends.bandit import BACKEND, lr_factor
from isolaw.backends.bandit.batches import Batches
from isolaw.backends.base import Checkpoint, RunContext
from isolaw.errors import SpecError
from isolaw.spec import RunSpec


def spec(**changes: Any) -> RunSpec:
    base: dict[str, Any] = {
        "backend": "bandit",
        "problems_per_batch": 8,
        "rollouts_per_problem": 4,
        "compute": 10_000,
        "problems": {"n_train": 50, "n_validation": 40},
        "evaluation": {"points": 8, "sets": ["validation", "train"], "samples": 8},
    }
    return BACKEND.resolve(RunSpec.model_validate(base | changes))


def run(spec: RunSpec, state: Path | None = None) -> list[Checkpoint]:
    return list(BACKEND.run(spec, RunContext(state)))


def values(checkpoints: list[Checkpoint]) -> dict[tuple[int, str, str], float]:
    return {(c.step, r.eval_set, r.metric): r.value for c in checkpoints for r in c.rows}


def test_checkpoints_follow_the_schedule() -> None:
    checkpoints = run(spec())
    assert [c.step for c in checkpoints] == spec().schedule()
    assert [c.compute for c in checkpoints] == [32 * c.step for c in checkpoints]
    assert [c.final for c in checkpoints] == [False] * (len(checkpoints) - 1) + [True]
    sizes = {(r.eval_set, r.n_problems, r.n_samples) for c in checkpoints for r in c.rows}
    assert sizes == {("validation", 40, 8), ("train", 50, 8)}
    assert {r.metric for r in checkpoints[0].rows} == {"avg@4", "best@4", "worst@4"}


@pytest.mark.parametrize("model", [{}, {"problems": {"set": "hard", "n_train": 50, "n_validation": 40}}])
def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path: Path, model: dict[str, Any]) -> None:
    whole = run(spec(**model))
    for k, checkpoint in enumerate(BACKEND.run(spec(**model), RunContext())):
        folder = tmp_path / str(k)
        folder.mkdir()
        checkpoint.save(folder)
        assert run(spec(**model), folder) == whole[k + 1 :]


def test_a_longer_run_begins_with_the_shorter_one() -> None:
    evaluation = {"start": 32, "end": 10_000, "horizons": [10_000, 30_000], "points": 8}
    short, long = (run(spec(compute=c, evaluation=evaluation)) for c in (10_000, 30_000))
    assert values(short).items() <= values(long).items()
    assert len(long) > len(short)


def test_what_is_measured_does_not_depend_on_how_often_one_looks() -> None:
    few, many = (values(run(spec(evaluation={"points": p, "start": 32, "end": 10_000}))) for p in (4, 60))
    common = few.keys() & many.keys()
    assert len({step for step, *_ in common}) >= 3
    assert {key: few[key] for key in common} == {key: many[key] for key in common}


def test_what_is_measured_does_not_depend_on_the_sets_looked_at() -> None:
    both = values(run(spec()))
    for name in ("validation", "train"):
        alone = values(run(spec(evaluation={"points": 8, "samples": 8, "sets": [name]})))
        assert alone == {key: value for key, value in both.items() if key[1] == name}


def test_each_look_has_noise_of_its_own() -> None:
    """Nothing is learned here, so values differ by the evaluation's samples alone."""
    still = values(run(spec(recipe={"lr": 1e-12, "kl": 0.0})))
    for name in ("validation", "train"):
        looks = [value for (_, s, metric), value in still.items() if (s, metric) == (name, "avg@4")]
        assert len(set(looks)) > len(looks) / 2
    noise = [np.subtract(*(still[step, s, "avg@4"] for s in ("validation", "train"))) for step in (0, 1, 2)]
    assert len(set(noise)) > 1


@pytest.mark.parametrize("change", [{"seed": 1}, {"rollouts_per_problem": 8}, {"recipe": {"lr": 0.03}}])
def test_another_run_has_other_numbers(change: dict[str, Any]) -> None:
    assert values(run(spec())) != values(run(spec(**change)))


def test_training_raises_the_reward() -> None:
    reward = values(run(spec(compute=200_000, problems_per_batch=32)))
    first, last = 0, 200_000 // 128
    for name in ("validation", "train"):
        assert reward[last, name, "avg@4"] > reward[first, name, "avg@4"] + 0.1


def test_square_root_rule_agrees_with_the_others_at_1024() -> None:
    def rewards(scaling: str, n: int) -> dict[tuple[int, str, str], float]:
        # The kinds of scaling are different runs: compare without their own random numbers.
        return values(run(spec(recipe={"lr_scaling": scaling}, rollouts_per_problem=n)))

    factors = {s: [lr_factor(s, b) for b in (256, 1024, 4096)] for s in ("sqrt", "linear", "constant")}
    assert {f[1] for f in factors.values()} == {32.0}
    assert factors["sqrt"] == pytest.approx([16, 32, 64])
    assert factors["linear"] == pytest.approx([8, 32, 128])
    assert factors["constant"] == pytest.approx([32, 32, 32])
    assert rewards("sqrt", 4) != rewards("constant", 4)


# Batches


def of(seed: int, size: int, batch: int, replacement: bool = False) -> Batches:
    return Batches(np.random.default_rng(seed), size, batch, replacement)


@pytest.mark.parametrize("batch", [1, 7, 8, 20])
def test_batches_are_distinct_problems_of_an_epoch(batch: int) -> None:
    size, whole = 20, 20 // batch
    steps = np.concatenate(list(of(0, size, batch).take(3 * whole)))
    assert steps.shape == (3 * whole, batch)
    for epoch in steps.reshape(3, whole * batch):
        assert len(set(epoch)) == whole * batch
        assert set(epoch) <= set(range(size))
    assert not np.array_equal(steps[:whole], steps[whole : 2 * whole])


def test_configurations_share_the_order_of_problems() -> None:
    def epochs(batch: int) -> np.ndarray:
        steps = np.concatenate(list(of(3, 24, batch).take(4 * 24 // batch)))
        return steps.reshape(4, 24)

    for batch in (2, 8, 24):
        np.testing.assert_array_equal(epochs(batch), epochs(1))
    other = np.concatenate(list(of(4, 24, 24).take(4)))
    assert not np.array_equal(other, epochs(24))


def test_batches_do_not_depend_on_how_they_are_asked_for() -> None:
    at_once = np.concatenate(list(of(0, 10, 3).take(17)))
    epochs = of(0, 10, 3)
    pieces = np.concatenate([b for steps in (1, 2, 5, 0, 9) for b in epochs.take(steps)])
    np.testing.assert_array_equal(at_once, pieces)


def test_runs_of_a_seed_start_from_the_same_problems() -> None:
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


# Refusals


def check(**changes: Any) -> list[str]:
    return [str(p) for p in BACKEND.check(spec(**changes))]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"problems_per_batch": 51}, ["grid.problems_per_batch", "found 51", "problems.n_train = 50"]),
        ({"rollouts_per_problem": 1}, ["grid.rollouts_per_problem", "found 1", "at least 2"]),
        ({"recipe": {"entropy": 0.1}}, ["recipe.entropy", "found 0.1", "0"]),
        ({"recipe": {"advantage": "centred"}}, ["recipe.advantage", "found 'centred'", "group_std"]),
        ({"recipe": {"staleness": 2}}, ["recipe.staleness", "found 2"]),
        ({"evaluation": {"sets": ["test"]}}, ["evaluation.sets", "'test'", "validation"]),
        ({"recipe": {"algorithm": "ppo"}}, ["recipe.algorithm", "found 'ppo'", "grpo"]),
        ({"problems": {"set": "esay"}}, ["problems.set", "found 'esay'", "easy, hard"]),
        ({"evaluation": {"metrics": ["best@8"]}}, ["evaluation.metrics", "best@8", "k ≤ 4"]),
        ({"evaluation": {"metrics": ["reward"]}}, ["evaluation.metrics", "'reward'", "avg@k"]),
        ({"options": {"parameters": {"f_in": 1.5}}}, ["bandit.parameters.f_in", "1.5", "from 0 to 1"]),
        ({"options": {"parameters": {"r": 2.5}}}, ["bandit.parameters.r", "2.5"]),
        ({"options": {"parameters": {"sigma2": float("inf")}}}, ["bandit.parameters.sigma2", "inf"]),
        ({"options": {"parameters": {"q": -1}}}, ["bandit.parameters.q", "-1.0"]),
    ],
    ids=str,
)
def test_check(change: dict[str, Any], words: list[str]) -> None:
    (text,) = check(**change)
    for word in words:
        assert word in text


def test_a_sound_spec_has_no_problem() -> None:
    assert check() == []
    assert check(problems_per_batch=50, rollouts_per_problem=2) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parameters": {"sigma": 1.0}}, ["bandit.parameters.sigma", "unknown", "'sigma2'"]),
        ({"parameters": {"zzzzz": 1.0}}, ["bandit.parameters.zzzzz", "accepted: q, sigma2"]),
        ({"parameters": {"kapa": 1, "sigma": 1}}, ["'kappa'", "'sigma2'", "2 problems"]),
        ({"parameters": {"kappa": "much"}}, ["bandit.parameters.kappa", "'much'"]),
        ({"preset": "J"}, ["bandit.preset", "found 'J'", "'I'"]),
        ({"model": "tabluar"}, ["bandit.model", "found 'tabluar'", "'interference'"]),
        ({"presets": "I"}, ["bandit.presets", "unknown key", "'preset'"]),
    ],
    ids=str,
)
def test_options(options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        spec(options=options)
    for word in words:
        assert word in str(error.value)


def where(error: SpecError) -> set[str]:
    return {problem.where for problem in error.problems}


ALL_WRONG: dict[str, Any] = {
    "grid": {"problems_per_batch": [8, 64], "rollouts_per_problem": [1, 4]},
    "problems": {"n_train": 50, "n_validation": 40, "set": "esay"},
    "recipe": {"entropy": 0.1, "advantage": "batch_std", "algorithm": "ppo"},
    "evaluation": {"metrics": ["avg@8"]},
}


def test_everything_at_once(tmp_path: Path, tiny) -> None:
    with pytest.raises(SpecError) as error:
        engine.plan(tiny(**ALL_WRONG), tmp_path)
    assert where(error.value) == {
        "grid.problems_per_batch",
        "grid.rollouts_per_problem",
        "problems.set",
        "recipe.entropy",
        "recipe.advantage",
        "recipe.algorithm",
        "evaluation.metrics",
    }
    assert len(error.value.problems) == 7  # and each but once


def test_the_backends_own_section_at_once_with_the_rest(tmp_path: Path, tiny) -> None:
    wrong = {"bandit": {"preset": "J", "parameters": {"sigma": 1.0}}}
    with pytest.raises(SpecError) as error:
        engine.plan(tiny(recipe={"entropy": 0.1}, **wrong), tmp_path)
    assert where(error.value) >= {"bandit.preset", "bandit.parameters.sigma", "recipe.entropy"}
