"""A race that is killed at any moment, or made elsewhere, comes to the same decisions."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest

# In CI test_directory.py stops a race after events and tears its decisions; tests/store kills sweeps.
pytestmark = [pytest.mark.slow, pytest.mark.nightly]

KILLS = int(os.environ.get("KILLS", "1"))
SWEEP = """\
[sweep]
compute = 1_500_000
seeds = 2
[grid]
problems_per_batch = [8]
rollouts_per_problem = [2, 4, 8, 16, 32, 64, 128]
[problems]
n_train = 200
n_validation = 100
[evaluation]
points = 20
[design]
kind = "race"
spend = 0.8
tolerance = 1e-5
"""


def outcome(out: Path) -> tuple[bytes, pd.DataFrame]:
    points = pd.read_parquet(out / "points.parquet").drop(columns="wall_s")
    return (out / "decisions.jsonl").read_bytes(), points


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("race") / "race.toml"
    path.write_text(SWEEP)
    return path


@pytest.fixture(scope="module")
def whole(file: Path, preloaded: Path) -> tuple[bytes, pd.DataFrame]:
    out = file.with_name("whole")
    words = [preloaded / "isolaw", "sweep", file, "--out", out, "--executor", "inline"]
    subprocess.run(words, check=True, timeout=600)
    return outcome(out)


def test_killed_again_and_again(file: Path, whole, command: str, preloaded: Path, tmp_path: Path) -> None:
    out, rng = tmp_path / "killed", random.Random(0)
    started = [command, "sweep", str(file), "--out", str(out), "--jobs", "2"]
    for _ in range(KILLS):
        process = subprocess.Popen(
            started, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        while not any(out.glob("runs/*/DONE")):
            assert process.poll() is None, "the race ended before it could be killed"
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 1.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([preloaded / "isolaw", *started[1:]], check=True, timeout=600)
    decisions, points = outcome(out)
    assert decisions == whole[0]
    pd.testing.assert_frame_equal(points, whole[1])


@pytest.mark.parametrize("executor", ["ray", "slurm"])
def test_any_executor_comes_to_the_same_decisions(
    file: Path, whole, command: str, tmp_path: Path, executor: str
) -> None:
    pytest.importorskip({"ray": "ray", "slurm": "submitit"}[executor])
    out = tmp_path / "elsewhere"
    own = ["--set", "executor.cluster=local"] if executor == "slurm" else []
    subprocess.run(
        [command, "sweep", file, "--out", out, "--executor", executor, *own], check=True, timeout=550
    )
    decisions, points = outcome(out)
    assert decisions == whole[0]
    pd.testing.assert_frame_equal(points, whole[1])
