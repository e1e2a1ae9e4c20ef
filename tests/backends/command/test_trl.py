"""TRL itself trains the tiny model: killed, continued, extended; its values are those of its own state."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from isolaw import engine
from isolaw.config.writing import toml_text

TRL = Path(sys.prefix) / "trainers/trl"
SCRIPT = Path(__file__).parents[3] / "examples/trl_grpo.py"
pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(not TRL.is_dir(), reason="needs TRL (make trainers)"),
]


@pytest.fixture
def data(made: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TRL), os.environ.get("PYTHONPATH", "")]))
    own = ["--model", str(made.model), "--problems", str(made.easy), "--report_to", "none"]
    return {
        "sweep": {"backend": "command", "compute": 192, "seeds": [0, 1]},
        "grid": {"problems_per_batch": [4], "rollouts_per_problem": [2, 4]},
        "recipe": {"lr": 1e-2, "max_response_tokens": 6},
        "problems": {"set": "easy"},
        "evaluation": {"points": 6},
        "command": {
            "run": [sys.executable, str(SCRIPT), *own, "--use_cpu", "true", "--bf16", "false"],
            "framework": "trl",
        },
        "executor": {"jobs": 2, "retries": 1},
    }


def states(out: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each run's specification and what TRL's own newest state says of its steps."""
    for folder in (out / "runs").iterdir():
        spec = json.loads((folder / "spec.json").read_text())
        found = sorted(
            folder.glob("out/*/checkpoint-*/trainer_state.json"), key=lambda p: int(p.parent.name[11:])
        )
        yield spec, json.loads(found[-1].read_text())["log_history"]


def agrees(out: Path) -> None:
    table = pd.read_parquet(out / "points.parquet")
    count = 0
    for spec, history in states(out):
        b, n, seed = spec["problems_per_batch"], spec["rollouts_per_problem"], spec["seed"]
        own = table[(table["problems_per_batch"] == b) & (table["rollouts_per_problem"] == n)]
        own = own[(own["seed"] == seed) & (own["metric"] == "reward") & (own["eval_set"] == "train")]
        rewards = {entry["step"]: entry["reward"] for entry in history if "reward" in entry}
        assert dict(zip(own["step"], own["value"], strict=True)) == rewards
        assert (own["compute"] == own["step"] * b * n).all()
        assert max(rewards) * b * n == spec["compute"]
        count += 1
    assert count == 4


def trainers(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = []
    for own in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if own.cmdline()[1:2] == [str(SCRIPT)]:
                found.append(own)
    return found


def test_trl_killed_continued_and_extended(data: Any, tmp_path: Path) -> None:
    file, out, rng = tmp_path / "sweep.toml", tmp_path / "s", random.Random(37)
    file.write_text(toml_text(data))
    command = [str(Path(sys.executable).with_name("isolaw")), "sweep", str(file), "--out", str(out)]
    for whom in ("isolaw", "trainer"):
        before = len([*out.glob("runs/*/out/*/checkpoint-*/trainer_state.json")])
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 300
        while len([*out.glob("runs/*/out/*/checkpoint-*/trainer_state.json")]) < before + 3:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(rng.uniform(0, 2))
        if whom == "isolaw":
            process.kill()
            process.wait()
        else:
            for own in trainers(process)[:1]:
                own.kill()
            assert process.wait(600) == 0  # it continues the run that failed
    agrees(out)
    runs = engine.sweep({**data, "sweep": {**data["sweep"], "compute": 384}}, out)
    agrees(out)
    assert not runs.simulated
