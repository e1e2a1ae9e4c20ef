"""A whole check on the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import isolaw
from isolaw.config import SweepSpec
from isolaw.errors import SpecError, StoreError
from isolaw.recipe_check.stages import FOLDERS, setup


def test_its_folders_are_sweeps_and_a_second_call_only_reads_them(small, tmp_path: Path) -> None:
    events = []
    found = isolaw.check_recipe(small, tmp_path / "a", on_event=events.append)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(FOLDERS)
    states = {name: isolaw.status(tmp_path / "a" / name) for name in FOLDERS}
    assert all(state["done"] == state["runs"] > 0 for state in states.values())
    assert sum(state["rollouts"] for state in states.values()) == found.rollouts
    assert found.base == (8, 16)
    assert [(rule.rollouts_per_problem, rule.lr) for rule in found.batches] == [
        (4, found.batches[0].lr),
        (64, found.batches[0].lr),
    ]
    full = {row.lr: row.reward for row in found.rows if row.stage == "lr-full"}
    assert found.lr == max(full, key=lambda lr: full[lr])
    assert {found.lr / 2, found.lr * 2} <= full.keys()
    assert found.recipe == {
        "lr": found.lr, "lr_scaling": "sqrt", **found.terms_kept,
    }  # fmt: skip
    again = []
    assert isolaw.check_recipe(small, tmp_path / "a", on_event=again.append) == found
    assert events
    assert again == []
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_check_that_stopped_in_a_stage_ends_as_one_that_did_not(small, tmp_path: Path) -> None:
    whole = isolaw.check_recipe(small, tmp_path / "whole")

    class Stopped(Exception):
        pass

    for events in (1, 30, 90):
        left = [events]

        def stop(_: object, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise Stopped

        with pytest.raises(Stopped):
            isolaw.check_recipe(small, tmp_path / "cut", on_event=stop)
    assert isolaw.check_recipe(small, tmp_path / "cut") == whole


def test_runs_of_every_lr_fail(small, tmp_path: Path) -> None:
    small["recipe"] = {"lr": 1e300}
    with pytest.raises(
        isolaw.IsolawError,
        match=r"runs of every learning rate failed; the cause of the first failure: .*diverged",
    ):
        isolaw.check_recipe(small, tmp_path / "far")


def test_the_terms_of_the_difficulty_are_compared_with_the_others(small, tmp_path: Path) -> None:
    easy, hard = (
        setup(SweepSpec.parse({**small, "problems": {**small["problems"], "difficulty": kind}}))
        for kind in ("easy", "hard")
    )
    assert (easy.given, easy.other_terms()) == ({"kl": 0.25, "entropy": 0.0}, {"kl": 0.0, "entropy": 0.0})
    assert (hard.given, hard.other_terms()) == (easy.other_terms(), easy.given)
    without = setup(SweepSpec.parse({**small, "recipe": {"kl": 0.0}}))
    assert not without.has_terms
    assert "terms" not in [own["stage"] for own in without.expected()]
    found = isolaw.check_recipe({**small, "recipe": {"kl": 0.0, "lr": 0.02}}, tmp_path / "out")
    assert found.terms is None
    assert found.recipe == {"kl": 0.0, "lr": found.lr, "lr_scaling": "sqrt"}


@pytest.mark.parametrize(
    ("b", "n", "base", "others"),
    [
        ([32], [8, 16, 32, 64, 128, 256, 512], (32, 64), ((32, 16), (32, 256))),
        ([8, 32, 128], [16, 32, 64], (32, 32), ((32, 16), (32, 64))),
        ([8, 32, 128], [16], (32, 16), ((8, 16), (128, 16))),
        ([8], [16, 32], (8, 16), ((8, 32),)),
        ([8], [16], (8, 16), ()),
    ],
)
def test_where_lr_is_searched_and_its_rule_checked(small, b, n, base, others) -> None:
    grid = {"problems_per_batch": b, "rollouts_per_problem": n}
    spec = {**small, "grid": grid, "sweep": {"compute": 10**6}, "problems": {"n_train": 200}}
    found = setup(SweepSpec.parse(spec))
    assert (found.base, found.others) == (base, others)
    assert found.horizon == 125_000
    assert all(found.batch_horizon >= 20 * b * n for b, n in others)


def test_a_sweep_shorter_than_the_search_is_searched_to_its_end(small, tmp_path: Path) -> None:
    small["sweep"] = {"compute": 5_000, "seeds": 1}
    found = isolaw.check_recipe(small, tmp_path / "out")
    assert found.horizon == found.compute == 5_000
    assert {row.stage for row in found.rows} == {"lr", "batch", "terms"}
    assert {str(rule.verdict) for rule in found.batches} == {"not decided"}  # one seed
    assert found.lr_undecided


def test_what_it_refuses_before_anything_is_spent(small, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"grid.lr: a recipe check chooses lr"):
        isolaw.check_recipe({**small, "grid": {"lr": [0.1, 0.2]}}, tmp_path / "a")
    with pytest.raises(SpecError, match=r"design.metric.*avg@4"):
        isolaw.check_recipe({**small, "design": {"metric": "avg@8"}}, tmp_path / "a")
    isolaw.sweep({**small, "sweep": {"compute": 5_000, "seeds": 1}}, tmp_path / "sweep")
    with pytest.raises(StoreError, match=r"contains other files .*expected a new or empty directory"):
        isolaw.check_recipe(small, tmp_path / "sweep")
    assert not (tmp_path / "a").exists()
