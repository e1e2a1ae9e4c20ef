"""``isolaw sweep --recipe-check`` from outside."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import pytest

from isolaw.config import SweepSpec

TOML = """\
[sweep]
compute = 60_000
seeds = 2
[grid]
problems_per_batch = [8]
rollouts_per_problem = [4, 8, 16, 32, 64]
[problems]
n_train = 64
n_validation = 100
[evaluation]
points = 20
"""
KILLS = int(os.environ.get("KILLS", "1"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(TOML)
    return path


def test_a_check_ends_with_a_recipe_that_a_sweep_takes(isolaw, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("sweep", "--recipe-check", file, "--out", out, "--executor", "inline")
    code, said, notes = isolaw(*command, "--dry-run")
    assert code == 0
    assert not out.exists()
    assert said.startswith("Simulated runs. The recipe check needs about 34 runs ")
    assert [line.split()[0] for line in said.splitlines()[2:]] == ["lr", "lr-full", "batch", "terms"]
    code, said, notes = isolaw(*command)
    assert code == 0
    assert said.startswith(
        "Simulated runs. The base lr is the lr at B_p = 8 and n = 16 (B = 128). Rewards are the mean avg@4"
    )
    assert "lr: bandit: 6 runs (" in notes
    evidence, _, recipe = said.partition("[recipe]")
    given = tomllib.loads("[recipe]" + recipe)
    code, document, notes = isolaw(*command, "--json")
    found = json.loads(document)
    assert code == 0
    assert given["recipe"] == found["recipe"]
    assert f"lr = {found['lr']:.4g} is the best at C = 60,000" in evidence
    assert "runs (" not in notes  # nothing was left to do
    assert SweepSpec.parse({**tomllib.loads(TOML), **given}).recipe.lr == found["lr"]
    code, said, _ = isolaw("status", out / "lr-full")
    assert code == 0
    assert "0 failed" in said


def test_mistakes(isolaw, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, _, notes = isolaw("sweep", "--recipe-check", "--adaptive", file, "--out", out)
    assert (code, "--recipe-check cannot be combined with --adaptive" in notes) == (2, True)
    with file.open("a") as text:
        text.write("[recipe]\nlrs = 1\n")
    code, _, notes = isolaw("sweep", "--recipe-check", file, "--out", out)
    assert (code, f"{file}:13: recipe.lrs: unknown key" in notes) == (2, True)
    file.write_text(TOML.replace("[problems]", "lr = [0.1, 0.2]\n[problems]"))
    code, _, notes = isolaw("sweep", "--recipe-check", file, "--out", out)
    assert (code, f"{file}:7: grid.lr: a recipe check chooses lr" in notes) == (2, True)
    assert not out.exists()


@pytest.mark.slow
def test_a_killed_check_ends_as_one_that_was_not(
    command: str, preloaded: Path, file: Path, tmp_path: Path
) -> None:
    def arguments(out: str, program: object = preloaded / "isolaw") -> list[str]:
        keys = ["--set", "sweep.compute=1e5", "--jobs", "2", "--json"]
        return [str(program), "sweep", "--recipe-check", str(file), "--out", str(tmp_path / out), *keys]

    started = time.monotonic()
    whole = subprocess.run(arguments("whole"), capture_output=True, text=True, check=True)
    took = time.monotonic() - started
    rng = random.Random(0)
    for _ in range(KILLS):
        engine = subprocess.Popen(
            arguments("killed", command),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        while not any((tmp_path / "killed").glob("*/runs/*/DONE")):
            assert engine.poll() is None, "the check ended before it could be killed"
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.3) * took)
        os.killpg(engine.pid, signal.SIGKILL)
        engine.wait()
    killed = subprocess.run(arguments("killed"), capture_output=True, text=True, check=True)
    assert json.loads(killed.stdout) == json.loads(whole.stdout)
