"""The battery on real, small runs: whole, repeatable, in any order, continued; and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isolaw.config import SweepSpec
from isolaw.errors import SpecError, StoreError
from isolaw.replication import execution
from isolaw.replication.battery import ETA_FACTORS, SETS, Battery, battery, schedule
from isolaw.replication.document import claim, judge


@pytest.mark.nightly
@pytest.mark.slow
def test_interrupted_and_continued_in_another_order(
    small: Callable[..., Battery], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    less: dict[str, Any] = {"control": False, "sizes": 2, "tabular": ("constant",)}
    chosen, out = replace(small(), **less), tmp_path / "a"
    shares: list[float] = []
    uninterrupted = judge(chosen, progress=shares.append)
    assert sum(shares) == pytest.approx(1)

    def interrupt(_: float) -> None:
        if any(out.glob("*/runs/*/DONE")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(chosen, out, jobs=2, progress=interrupt)
    left = sum(map(execution.work, execution.plan(chosen, out).values()))
    assert 0 < left < sum(map(execution.work, execution.plan(chosen, tmp_path / "new").values()))

    forwards = Battery.experiments

    def backwards(self: Battery) -> dict[str, list[SweepSpec]]:
        return dict(reversed(forwards(self).items()))

    monkeypatch.setattr(Battery, "experiments", backwards)
    assert judge(chosen, out, jobs=4) == uninterrupted

    executed: list[str] = []
    run = execution.engine.execute
    monkeypatch.setattr(
        execution.engine, "execute", lambda plan, out: executed.append(str(out)) or run(plan, out)
    )
    assert judge(chosen, out) == uninterrupted
    assert not executed
    more = judge(replace(small(seeds=(100, 101, 102)), **less), out)
    assert executed
    assert more["findings"] != uninterrupted["findings"]
    assert judge(chosen, out) == uninterrupted  # which does not use the third seed


@pytest.mark.slow
def test_a_diverged_run_is_reported_and_does_not_compete(small: Callable[..., Battery]) -> None:
    chosen = replace(small(settings=["recipe.lr=1e300"]), control=False, sizes=2, tabular=())
    document = judge(chosen)
    assert document["failed_runs"]
    assert {f["verdict"] for f in document["findings"]} == {"not measured"}
    json.dumps(document, allow_nan=False)


def test_what_is_run_is_ordinary_sweeps_that_share_budgets_and_seeds() -> None:
    chosen = battery()
    experiments = chosen.experiments()
    for name, specs in experiments.items():
        for spec in specs:
            assert spec.sweep.seeds == tuple(range(100, 108))
            assert spec.evaluation.samples == 0
            if not name.startswith("tabular"):
                assert (spec.evaluation.start, spec.evaluation.end) == (55243, 10_000_000)
                assert spec.evaluation.points == schedule(chosen.compute).size == 61
    np.testing.assert_allclose(chosen.budgets, 1e7 * 2.0 ** (-np.arange(14, -1, -1) / 2), rtol=1e-4)
    batch, levels = chosen.fixed_batch
    assert (batch, levels) == (4096, [4, 8, 16, 32, 64, 128, 256, 512])
    for spec in experiments["hard-fixed-b"]:
        assert spec.grid.problems_per_batch[0] * spec.grid.rollouts_per_problem[0] == batch
    assert chosen.training_sizes == [32, 125, 500, 2000]
    assert chosen.moderate_batches == [16, 32, 64, 128]
    assert chosen.coarse_levels == [8, 32, 128, 512, 2048]
    for name in SETS:
        (spec,) = experiments[f"{name}-eta"]
        eta = chosen.eta(name)
        assert spec.grid.recipe_axes["lr"] == [eta * f for f in ETA_FACTORS if f != 1]


def test_settings_reach_every_sweep(small: Callable[..., Battery]) -> None:
    chosen = small(settings=["recipe.kl=0.125", "bandit.parameters.sigma2=77.0"])
    for name, specs in chosen.experiments().items():
        if not name.startswith("tabular"):
            for spec in specs:
                assert spec.recipe.kl == 0.125
                assert spec.bandit["parameters"] == {"r": 8, "sigma2": 77.0}
                assert spec.bandit["model"] == "interference"


def test_all_that_is_wrong_at_once() -> None:
    with pytest.raises(SpecError) as found:
        battery(
            "interferense",
            "Z",
            (100,),
            [
                "problems.set=easy",
                "grid.rollouts_per_problem=[8, 16]",
                "grid.problems_per_batch=[8, 16]",
                "bandit.parameters.sigma3=1.0",
                "recipe.entropy=-1",
            ],
        )
    message = str(found.value)
    for part in (
        "model: found 'interferense'",
        "did you mean 'interference'",
        "problems.set",
        "recipe.entropy",
    ):
        assert part in message
    with pytest.raises(SpecError) as found:
        battery(
            "interference", "Z", (100,), ["grid.rollouts_per_problem=[8, 16]", "bandit.parameters.sigma3=1.0"]
        )
    for part in ("bandit.preset", "sigma3", "seeds: found 1", "at least 5 different n"):
        assert part in str(found.value)


def test_a_budget_too_small_for_the_grid() -> None:
    with pytest.raises(SpecError, match=r"sweep\.compute: found 50000; expected at least .*three n"):
        battery(settings=["sweep.compute=5e4"])


def test_a_directory_that_holds_something_else(small: Callable[..., Battery], tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(StoreError, match="contains other files; expected a new"):
        judge(small(), tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="found a file; expected a new"):
        judge(small(), tmp_path / "file")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "mine.txt"]


def test_a_directory_of_another_battery(small: Callable[..., Any], tmp_path: Path) -> None:
    claim(small(), tmp_path / "a")
    claim(small(seeds=(7, 8)), tmp_path / "a")
    with pytest.raises(
        StoreError, match=r"contains another battery \(constants: found .*; expected .*sigma2"
    ):
        claim(small(settings=["bandit.parameters.sigma2=77.0"]), tmp_path / "a")
