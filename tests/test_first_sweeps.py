"""The sweeps that advice recommends: their sizes, what they cost, their files, and that they run."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import isolaw as package
from isolaw import SweepSpec, advise, engine
from isolaw.design.decisions import Request
from isolaw.design.directory import race_of
from isolaw.design.race import RUNGS
from isolaw.errors import DataError, InputError
from isolaw.preview import Preview

Call = Callable[..., tuple[int, str, str]]
BUDGETS = [int(budget) for budget in np.geomspace(3e4, 1e9, 20)]
SECONDS = {8: 20, 16: 25, 512: 300}  # of a step with B_p = 32 and this n


@pytest.mark.parametrize("limits", [{}, {"max_batch_rollouts": 1024}, {"n_train_problems": 10}])
def test_every_sweep_is_within_its_limits(limits: dict[str, int]) -> None:
    for budget in BUDGETS:
        advice = advise(budget, "easy", 7, **limits)
        lr, batch, grid = advice.sweeps
        assert advice.rollouts + (advice.final.compute if advice.final else 0) <= budget
        assert advice.rollouts <= 0.8 * budget
        for sweep in (lr, batch, grid):
            spec = sweep.spec
            sizes = [run.batch_rollouts for run in sweep.runs]
            assert max(sizes) <= limits.get("max_batch_rollouts", 65_536)
            assert max(spec.grid.problems_per_batch) <= limits.get("n_train_problems", 32)
            assert sweep.rollouts < budget
            assert min(run.steps for run in sweep.runs) >= 20
        assert grid.spec.sweep.compute >= budget / 10  # from which a recommendation is made
        levels = grid.spec.grid.rollouts_per_problem
        assert all(after == 2 * before for before, after in pairwise(levels))
        assert len(levels) >= 3
        assert len(str(grid.spec.design.spend)) <= len("0.123")
        race = race_of(grid.spec, grid.runs)  # which may drop no n
        started = [cell for rung in range(len(RUNGS)) for cell in race._entering(rung)]
        assert sum(Request(*cell, 0, race.target).rollouts for cell in started) <= race.spend
    assert advise(1000, "easy", 7).sweeps == ()
    assert advise(1e6, max_batch_rollouts=40).sweeps == ()


def test_the_lr_are_around_the_papers_and_follow_its_rule() -> None:
    lr, batch, grid = (sweep.spec for sweep in advise(1e7, "easy", 7).sweeps)
    assert lr.grid.recipe_axes["lr"] == [2.5e-7, 5e-7, 1e-6, 2e-6, 4e-6]
    assert batch.grid.recipe_axes["lr"] == [5e-7, 1e-6, 2e-6]
    assert grid.recipe.lr == 1e-6
    assert {spec.recipe.lr_scaling for spec in (lr, batch, grid)} == {"sqrt"}
    (n,) = lr.grid.rollouts_per_problem
    assert batch.grid.rollouts_per_problem == (n // 2, 2 * n)


def test_a_budget_in_hours_is_a_budget_in_rollouts() -> None:
    """A week of eight GPUs at 12 rollouts a second."""
    advice = advise("1344gpuh", "easy", 7, cost="12/s@8")
    assert advice.case.budget == 12 * 168 * 3600
    assert advice.sweeps == advise(12 * 168 * 3600, "easy", 7, cost="12/s@8").sweeps
    with pytest.raises(InputError, match="a budget in hours requires the cost of a step"):
        advise("1344gpuh")


def test_advice_in_python_names_no_option() -> None:
    said, _, commands = repr(advise(1e6)).partition("To write the sweep files: ")
    assert "You gave no model size" in said
    assert "--" not in said
    assert commands.startswith('advice.write("first")\n')


@pytest.mark.parametrize("name", ["lr", "batch", "grid"])
def test_the_cost_is_that_of_a_dry_run(
    isolaw: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Of the same file, with a model and problems that exist."""
    monkeypatch.chdir(tmp_path)
    table = tmp_path / "runs.csv"
    rows = [f"32,{n},{step},{step * seconds},0.5" for n, seconds in SECONDS.items() for step in (0, 1, 2)]
    head = "problems_per_batch,rollouts_per_problem,step,wall_s,avg@4"
    table.write_text("\n".join([head, *rows]) + "\n")
    words = ["advise", "--compute", "1e6", "--difficulty", "easy", "--backend", "command", "--write", "first"]
    costs = ["--cost", f"{table},2/h"]
    code, stdout, _ = isolaw(*words, *costs, "--json")
    assert code == 0
    advised = json.loads(stdout)["sweeps"][name]
    sweep = ["sweep", f"first/{name}.toml", "--out", "out", "--set", 'command.run=["true"]']
    code, stdout, stderr = isolaw(*sweep, *costs, "--dry-run", "--json")
    assert code == 0, stderr
    resolved = json.loads(stdout)
    assert advised["cost"] == resolved["cost"]
    assert advised["cost"]["money"]["value"] > 0
    assert advised["rollouts"] == (resolved["design"]["spend"] if name == "grid" else resolved["rollouts"])
    sentence = next(line for line in stderr.splitlines() if line.startswith("Cost: "))
    assert name != "grid" or sentence in isolaw(*words[:-2], *costs)[1].splitlines()[1]


def test_a_race_costs_the_part_of_its_grid_that_it_may_spend(tmp_path: Path) -> None:
    sweep = advise(1e6, "easy", 7, backend="bandit").sweeps[-1]
    cost = package.read_cost("12/s@8")
    race = Preview(engine.resolve_sweep(sweep.spec, tmp_path / "race"), tmp_path / "race", cost).spent
    whole = sweep.spec.model_copy(update={"design": sweep.spec.design.model_copy(update={"kind": "grid"})})
    grid = Preview(engine.resolve_sweep(whole, tmp_path / "grid"), tmp_path / "grid", cost).spent
    assert race is not None
    assert grid is not None
    assert race.hours.value == pytest.approx(grid.hours.value * sweep.spec.design.spend, rel=1e-3)


@pytest.mark.slow
def test_all_three_run_on_the_simulator_and_are_fitted(
    isolaw: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = isolaw("advise", "--compute", "1e6", "--backend", "bandit", "--write", "first")
    assert (code, "first/lr.toml, first/batch.toml, first/grid.toml" in stderr) == (0, True)
    for name in ("lr", "batch", "grid"):
        assert f"isolaw sweep first/{name}.toml --out runs/{name} --dry-run" in stdout
        small = ["--set", "evaluation.points=20", "--set", "executor.kind=inline"]
        assert isolaw("sweep", f"first/{name}.toml", "--out", f"runs/{name}", *small)[0] == 0
    best = "isolaw fit runs/lr --retune lr"
    assert best in stdout
    assert f"times the best lr: {best}\n" in Path("first/batch.toml").read_text()
    code, said, _ = isolaw(*best.split()[1:])
    assert (code, "the best lr is" in said) == (0, True)
    fit = "isolaw fit runs/lr runs/batch --retune lr"
    assert fit in stdout
    assert fit in Path("first/grid.toml").read_text()
    code, stdout, stderr = isolaw(*fit.split()[1:], "--draws", "8", "--json")
    assert code == 0, stderr
    found = json.loads(stdout)
    tried = SweepSpec.read("first/lr.toml").grid.recipe_axes["lr"]
    assert {row["lr"] for row in found["chosen"]} <= set(tried)
    assert len(found["chosen"]) == 3
    assert found["lr_law"] is None or found["lr_law"]["beta"]
    assert isolaw("fit", "runs/grid", "--draws", "8", "--out", "law.json")[0] == 0
    assert isolaw("predict", "law.json", "--compute", "1e6")[0] == 0


@pytest.mark.parametrize("backend", ["real", "command", "bandit"])
def test_files_are_sweep_files(tmp_path: Path, backend: str) -> None:
    advice = advise(1e6, "hard", backend=backend)
    for path, sweep in zip(advice.write(tmp_path / "new" / "folder"), advice.sweeps, strict=True):
        spec = SweepSpec.read(path)
        assert spec.model_dump(exclude={"real"}) == sweep.spec.model_dump(exclude={"real"})
        assert ("Set problems.set" in path.read_text()) == (backend != "bandit")
    with pytest.raises(InputError, match="backend: found 'reel'"):
        advise(1e6, backend="reel")  # type: ignore[arg-type]


def test_no_file_is_overwritten_and_no_link_followed(tmp_path: Path) -> None:
    advice = advise(1e6, "easy", 7)
    mine = tmp_path / "first" / "batch.toml"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(DataError, match=r"batch\.toml: exists, and isolaw replaces no sweep file"):
        advice.write(tmp_path / "first")
    assert sorted(path.name for path in mine.parent.iterdir()) == ["batch.toml"]
    mine.unlink()
    mine.symlink_to(tmp_path / "elsewhere.toml")
    with pytest.raises(DataError, match="found a link"):
        advice.write(tmp_path / "first")
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("other")
    with pytest.raises(DataError, match="is a link"):
        advice.write(tmp_path / "link")
    with pytest.raises(DataError, match="batch"):
        advice.write(mine / "below")
    assert not (tmp_path / "elsewhere.toml").exists()
    assert not [*(tmp_path / "other").iterdir()]
