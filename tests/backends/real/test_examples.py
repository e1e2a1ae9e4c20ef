"""The shipped sweep files and the demo, with the tiny model in place of what they name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isolaw import SweepSpec, engine

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["real-tiny", "real-qwen-easy", "real-qwen-hard"])
def test_a_shipped_file_has_a_plan(name: str, made: Any, tmp_path: Path) -> None:
    folder = made.hard if name.endswith("hard") else made.easy
    settings = [f"real.model={made.model}", f"problems.set={folder}", "recipe.max_response_tokens=6"]
    settings += ["problems.n_validation=50", "real.processes=1"]  # as many GPUs are not everywhere
    plan = engine.resolve_sweep(
        SweepSpec.read(ROOT / "examples" / f"{name}.toml", settings), tmp_path / "out"
    )
    grid = plan.spec.grid
    assert len(plan.runs) == len(grid.rollouts_per_problem) * len(plan.spec.sweep.seeds)
    terms = {(run.recipe.kl, run.recipe.entropy) for run in plan.runs}
    assert terms == ({(0.0, 0.0)} if name.endswith("hard") else {(1e-3, 1e-3)})
    if "qwen" in name:  # the paper's recipe
        recipe = plan.runs[0].recipe
        assert (recipe.lr, recipe.lr_scaling, recipe.warmup_steps) == (1e-6, "sqrt", 10)
        assert (recipe.temperature, recipe.top_p, recipe.importance_sampling) == (0.6, 1.0, "token")


@pytest.mark.nightly  # its commands are also those of test_commands.py
@pytest.mark.slow
def test_the_demo_goes_from_the_model_to_a_prediction(
    made: Any, hasty_shell: dict[str, str], preloaded: Path, tmp_path: Path
) -> None:
    (tmp_path / "base").symlink_to(made.model.parent)
    # What trains begins with the imports of a trainer, all else with those of the command line.
    others, script = hasty_shell["PATH"].partition(os.pathsep)[0], tmp_path / "bin" / "isolaw"
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\n[ "$1" != sweep ] || exec "{preloaded / "isolaw"}" "$@"\nexec "{others}/isolaw" "$@"\n'
    )
    script.chmod(0o755)
    path = os.pathsep.join([str(script.parent), hasty_shell["PATH"]])
    environment = {**hasty_shell, "PATH": path, "COMPUTE": "1024"}  # of runs as small as these
    small = ["sweep.compute=512", "grid.rollouts_per_problem=[2,4,8]", "problems.n_validation=50"]
    options = [part for setting in small for part in ("--set", setting)]
    command = ["sh", "examples/demo-real.sh", str(tmp_path), *options]
    outputs = []
    for _ in range(2):  # the second finds everything done
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert "6 of 6 runs are done (6 now" in outputs[0]
    assert "Nothing is left to do" in outputs[1]
    for output in outputs:
        assert ", B_p = 16, M = " in output
        assert output.splitlines()[-1] == f"Report: {tmp_path / 'report.html'}"
    points = pd.read_parquet(tmp_path / "sweep" / "points.parquet")
    assert set(points.compute) >= {0, 512}
