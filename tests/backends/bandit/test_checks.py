"""Refusals, all at once, before anything is spent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isolaw import engine
from isolaw.backends.bandit import BACKEND
from isolaw.config import SweepSpec
from isolaw.errors import SpecError


@pytest.fixture
def check(spec) -> Callable[..., list[str]]:
    return lambda **changes: [str(p) for p in BACKEND.check(spec(**changes))]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"problems_per_batch": 51}, ["grid.problems_per_batch", "found 51", "problems.n_train = 50"]),
        ({"rollouts_per_problem": 1}, ["grid.rollouts_per_problem", "found 1", "at least 2"]),
        ({"recipe": {"gradient_rollouts": 5}}, ["recipe.gradient_rollouts", "found 5", "at most n = 4"]),
        ({"recipe": {"staleness": 312}}, ["recipe.staleness", "found 312", "M = 312"]),
        (
            {"recipe": {"algorithm": "dr_grpo", "advantage": "batch_std"}},
            ["recipe.advantage", "centred with"],
        ),
        ({"recipe": {"warmup_steps": 10}}, ["recipe.warmup_steps", "does not model it", "found 10"]),
        ({"recipe": {"temperature": 0.6}}, ["recipe.temperature", "does not model it"]),
        ({"recipe": {"dynamic_sampling": True}}, ["recipe.dynamic_sampling", "does not model it"]),
        ({"recipe": {"algorithm": "ppo"}}, ["recipe.algorithm", "found 'ppo'", "grpo"]),
        ({"evaluation": {"top_p": 0.9}}, ["evaluation.top_p", "does not model it", "0.9"]),
        ({"evaluation": {"sets": ["test"]}}, ["evaluation.sets", "'test'", "validation"]),
        ({"evaluation": {"metrics": ["best@8"]}}, ["evaluation.metrics", "best@8", "k ≤ 4", "samples = 0"]),
        ({"evaluation": {"metrics": ["reward"]}}, ["evaluation.metrics", "'reward'", "avg@k"]),
        ({"problems": {"set": "esay"}}, ["problems.set", "found 'esay'", "'easy'"]),
        ({"problems": {"set": "0.5 easy + 0.6 hard"}}, ["problems.set", "shares that sum to 1"]),
        (
            {"problems": {"set": "0.5 easy + 0.5 zzzz"}},
            ["problems.set", "'zzzz'", "easy, hard, extremely-hard"],
        ),
        ({"options": {"parameters": {"r": 2.5}}}, ["bandit.parameters.r", "2.5", "whole"]),
        ({"options": {"parameters": {"sigma2": float("inf")}}}, ["bandit.parameters.sigma2", "inf"]),
        ({"options": {"parameters": {"q": -1}}}, ["bandit.parameters.q", "-1.0", "from 0 to 1"]),
        ({"options": {"parameters": {"lr_hard": -1}}}, ["bandit.parameters.lr_hard", "-1.0", "at least 0"]),
        ({"options": {"parameters": {"sigma": 1.0}}}, ["bandit.parameters.sigma", "unknown", "'sigma2'"]),
        ({"options": {"parameters": {"zzzzz": 1.0}}}, ["bandit.parameters.zzzzz", "expected q, sigma2"]),
        (
            {"problems": {"n_train": 10_000_000, "n_validation": 8_000_000}},
            ["problems.n_train", "4.6", "4 GB"],
        ),
        (
            {"options": {"preset": "../environ"}},
            ["bandit.preset", "found '../environ'; expected P, ", ", or the file of a preset (.toml)"],
        ),
    ],
    ids=str,
)
def test_check(check, change: dict[str, Any], words: list[str]) -> None:
    (text,) = check(**change)
    for word in words:
        assert word in text


ONE = {"options": {"model": "tabular"}, "problems": {}, "problems_per_batch": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"problems_per_batch": 2}, ["grid.problems_per_batch", "one problem", "expected 1"]),
        ({"problems": {"n_train": 5}}, ["problems.n_train", "one problem", "found 5"]),
        ({"options": {"model": "tabular", "parameters": {"p": 1.2}}}, ["bandit.parameters.p", "1.2", "to 1"]),
        ({"options": {"model": "tabular", "parameters": {"p": -0.1}}}, ["bandit.parameters.p", "-0.1"]),
        (
            {"options": {"model": "tabular", "parameters": {"correct": 8}}},
            ["bandit.parameters.correct", "found 8", "fewer than arms = 8"],
        ),
    ],
    ids=str,
)
def test_check_of_one_problem(check, change: dict[str, Any], words: list[str]) -> None:
    (text,) = check(**ONE | change)
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"problems_per_batch": 50, "rollouts_per_problem": 2},
        {"problems_per_batch": 64, "recipe": {"replacement": True}},
        {"rollouts_per_problem": 1, "recipe": {"advantage": "none"}},
        {"recipe": {"gradient_rollouts": 4, "staleness": 311, "zero_variance_filter": True, "entropy": 0.1}},
        {"recipe": {"algorithm": "dr_grpo", "kl": 0.1, "lr_scaling": "linear"}},
        {"evaluation": {"metrics": ["best@128"], "samples": 0}},
        {"problems": {"set": "0.2 easy + 0.3 hard + 0.5 extremely-hard", "n_train": 50}},
        {"problems": {"set": "0.2 easy + 0.8 beta(2,3)", "n_train": 50}},
        ONE,
    ],
    ids=str,
)
def test_a_sound_spec_has_no_problem(check, change: dict[str, Any]) -> None:
    assert check(**change) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parameters": {"kappa": "much"}}, ["bandit.parameters.kappa", "'much'"]),
        ({"model": "tabluar"}, ["bandit.model", "found 'tabluar'", "'interference'", "'tabular'"]),
        ({"presets": "I"}, ["bandit.presets", "unknown key", "'preset'"]),
    ],
    ids=str,
)
def test_options(spec, options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SpecError) as error:
        spec(options=options)
    assert len(error.value.issues) == 1
    for word in words:
        assert word in str(error.value)


def where(error: SpecError) -> set[str]:
    return {problem.where for problem in error.issues}


ALL_WRONG: dict[str, Any] = {
    "grid": {"problems_per_batch": [8, 64], "rollouts_per_problem": [1, 4]},
    "problems": {"n_train": 50, "n_validation": 40, "set": "esay"},
    "recipe": {"gradient_rollouts": 8, "top_p": 0.9, "algorithm": "ppo", "lora_rank": 4},
    "evaluation": {"metrics": ["avg@8"]},
    "bandit": {"parameters": {"sigma2": -1.0, "sigma": 1.0}, "preset": "J"},
}
ALL_PLACES = {
    "grid.problems_per_batch",
    "grid.rollouts_per_problem",
    "problems.set",
    "recipe.gradient_rollouts",
    "recipe.top_p",
    "recipe.lora_rank",
    "recipe.algorithm",
    "evaluation.metrics",
    "bandit.parameters.sigma2",
    "bandit.parameters.sigma",
    "bandit.preset",
}


def test_everything_at_once(tmp_path: Path, tiny) -> None:
    with pytest.raises(SpecError) as error:
        engine.resolve_sweep(tiny(**ALL_WRONG), tmp_path)
    assert where(error.value) == ALL_PLACES
    # Once each; n_train > n once for each n.
    assert len(error.value.issues) == len(ALL_PLACES) + 1


def test_what_cannot_be_understood_is_told_with_the_rest(tmp_path: Path, tiny) -> None:
    wrong = {**ALL_WRONG["bandit"], "modle": "tabular", "parameters": {"sigma2": "much"}}
    with pytest.raises(SpecError) as error:
        engine.resolve_sweep(tiny(**{**ALL_WRONG, "bandit": wrong}), tmp_path)
    assert where(error.value) == ALL_PLACES - {"bandit.parameters.sigma"} | {"bandit.modle"}


SWEEP = """
[grid]
problems_per_batch = 64
rollouts_per_problem = [4, 8]

[recipe]
lr = -0.1
kl = -1.0
gradient_rollouts = 6
top_p = 0.9

[problems]
set = "mine"
n_train = 50

[bandit.parameters]
sigma2 = -1.0
"""


def test_a_file_is_told_all_that_is_wrong_with_it_at_once(isolaw, tmp_path: Path) -> None:
    """Also what another part of the program finds: ranges of keys, and what the simulator makes of them."""
    (tmp_path / "sweep.toml").write_text(SWEEP)
    code, stdout, stderr = isolaw("sweep", tmp_path / "sweep.toml", "--out", tmp_path / "out", "--dry-run")
    assert (code, stdout) == (2, "")
    lines = stderr.splitlines()
    assert lines[0].endswith("7 issues")
    for number, words in {
        7: "recipe.lr: found -0.1; expected greater than 0",
        8: "recipe.kl: found -1.0; expected greater than or equal to 0",
        3: "grid.problems_per_batch: a batch takes distinct problems; found 64",
        9: "recipe.gradient_rollouts: found 6; expected at most n = 4",
        10: "recipe.top_p: the simulator does not model it",
        17: "bandit.parameters.sigma2: found -1.0",
        13: "problems.set: no such problem set; found 'mine'",
    }.items():
        assert sum(f":{number}: {words}" in line for line in lines) == 1, words
    assert not (tmp_path / "out").exists()


def test_the_library_tells_all_at_once_too() -> None:
    with pytest.raises(SpecError) as error:
        engine.sweep({"recipe": {"kl": -1}, "problems": {"n_train": 8}, "limits": {"max": 3}})
    assert where(error.value) == {"recipe.kl", "limits.max", "grid.problems_per_batch"}


@pytest.mark.parametrize("path", sorted(Path("examples").glob("bandit-*.toml")), ids=str)
def test_shipped_sweeps_are_sound(path: Path, tmp_path: Path) -> None:
    planned = engine.resolve_sweep(SweepSpec.read(path), tmp_path)
    assert len(planned.runs) == len(planned.todo) > 0
