"""Scripts that train where isolaw is not, and the sweep that takes the results in."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isolaw import engine
from isolaw.config import SweepSpec
from isolaw.errors import SpecError, StoreError

TRAINER = """
import json, os
out, steps, n = os.environ["ISOLAW_OUT"], int(os.environ["ISOLAW_STEPS"]), int(os.environ["ISOLAW_N"])
resume = os.environ["ISOLAW_RESUME"]
step = int(os.path.basename(resume).removeprefix("step-")) if resume else 0
with open(out + "/m.jsonl", "a") as log:
    while step < int(os.environ.get("UNTIL", steps)):
        step += 1
        log.write(json.dumps({"step": step, "reward": step / (steps + n), "n": n}) + chr(10))
        if step % 5 == 0:
            open(f"{out}/step-{step}", "w").close()
print("trained")
"""


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "it's a $folder"
    folder.mkdir()
    (folder / "train.py").write_text(TRAINER)
    return {
        "sweep": {"backend": "command", "compute": 160, "seeds": 1},
        "grid": {"problems_per_batch": [4], "rollouts_per_problem": [2, 4]},
        "evaluation": {"points": 4},
        "command": {
            "run": [sys.executable, "train.py"],
            "folder": str(folder),
            "log": "{out}/m.jsonl",
            "checkpoints": "step-{step}",
        },
        "executor": {"kind": "scripts"},
    }


def emit(data: dict[str, Any], out: Path) -> list[str]:
    spec = SweepSpec.parse(data)
    return [event.cause or event.kind for event in engine.execute(engine.resolve_sweep(spec, out), out)]


def train(out: Path, number: int, **environment: str) -> int:
    command = ["sh", str(out / "scripts/run.sh"), str(number)]
    return subprocess.run(command, env={"PATH": "/usr/bin:/bin", **environment}, check=False).returncode


def test_a_sweep_is_trained_elsewhere_and_taken_in(data: dict[str, Any], tmp_path: Path) -> None:
    out, away = tmp_path / "sweep", tmp_path / "away from 'home'"
    (said,) = emit(data, out)
    assert "scripts for 2 of the runs" in said
    shutil.copytree(out, away)
    assert train(away, 3) == 2
    assert train(away, 2) == 0
    assert train(away, 1, UNTIL="7") == 0  # less than was asked for
    shutil.rmtree(out)
    shutil.copytree(away, out)
    events = emit(data, out)
    assert sum("done" in event for event in events) == 1
    assert any("ended after 7 of 20 steps" in event or "ended after 7 of 10" in event for event in events)
    # Emitted again, the other goes on from its checkpoint.
    (said,) = emit(data, out)
    assert "scripts for 1 of the runs" in said
    assert "step-5" in (out / "scripts/run.sh").read_text()
    assert train(out, 1) == 0
    assert emit(data, out)[-1] == "done"
    table = pd.read_parquet(out / "points.parquet")
    for n, steps in ((2, 20), (4, 10)):
        own = table[(table["rollouts_per_problem"] == n) & (table["metric"] == "reward")]
        assert own["step"].tolist() == [*range(1, steps + 1)]
        assert own["value"].tolist() == [step / (steps + n) for step in range(1, steps + 1)]


def test_a_shell_gets_the_place_as_one_word(data: dict[str, Any], tmp_path: Path) -> None:
    out, away = tmp_path / "s", tmp_path / 'it\'s $HOME "here"'
    line = f"test -d {{out}} && {shlex.quote(sys.executable)} train.py && echo {{out}} {{n}} >{{out}}/said"
    data["command"] |= {"run": line, "shell": True}
    emit(data, out)
    shutil.move(out, away)
    assert train(away, 1) == train(away, 2) == 0
    said = sorted(path.read_text() for path in away.glob("runs/*/out/0/said"))
    assert [text.startswith(str(away)) for text in said] == [True, True]
    shutil.move(away, out)
    assert emit(data, out).count("done") == 2
    assert not (out / "scripts/slurm.sh").exists()  # nothing is left
    assert train(out, 1) == 2


def test_no_link_is_followed(data: dict[str, Any], tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    emit(data, tmp_path / "s")
    shutil.rmtree(tmp_path / "s/scripts")
    (tmp_path / "s/scripts").symlink_to(mine)
    with pytest.raises(StoreError, match="scripts"):
        emit(data, tmp_path / "s")
    assert list(mine.iterdir()) == []


def test_a_script_does_not_begin_twice(data: dict[str, Any], tmp_path: Path) -> None:
    emit(data, tmp_path / "s")
    assert train(tmp_path / "s", 1) == 0
    assert train(tmp_path / "s", 1) == 1


def test_the_job_array_is_well_formed(data: dict[str, Any], tmp_path: Path) -> None:
    data["executor"] |= {"partition": "gpu", "time": 90, "setup": ["module load cuda"], "jobs": 1}
    data["command"] |= {"gpus": 2}
    emit(data, tmp_path / "s")
    text = (tmp_path / "s/scripts/slurm.sh").read_text()
    for line in ("--array=1-2%1", "--time=90", "--gpus-per-node=2", "--partition=gpu", "module load cuda"):
        assert line in text
    assert subprocess.run(["sh", "-n", str(tmp_path / "s/scripts/slurm.sh")], check=False).returncode == 0


@pytest.mark.parametrize(
    "more", [{"sweep": {"backend": "bandit", "compute": 1e4}}, {"design": {"kind": "race"}}]
)
def test_only_grids_of_the_command_backend(
    data: dict[str, Any], more: dict[str, Any], tmp_path: Path
) -> None:
    changed = {**data, **more}
    if "sweep" in more:
        del changed["command"]
    else:
        changed["grid"] = {"problems_per_batch": [4], "rollouts_per_problem": [2, 4, 8, 16]}
    with pytest.raises(SpecError, match=r"executor\.kind"):
        engine.resolve_sweep(SweepSpec.parse(changed), tmp_path / "s")
