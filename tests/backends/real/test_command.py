"""Other trainers really run: TRL, and a script in no framework; killed, continued, extended."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from isolaw import engine
from isolaw.documents.reading import toml_text

TRL = Path(sys.prefix) / "trainers/trl"
EXAMPLES = Path(__file__).parents[3] / "examples"
# Imports what examples/trl_grpo.py does: it takes TRL as long as all the rest of the test.
IMPORTS = f"""
import sys
sys.path.insert(0, {str(TRL)!r})
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, TrlParser
"""
pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(params=["trl", pytest.param("jsonl", marks=pytest.mark.nightly)])
def data(
    request: pytest.FixtureRequest,
    made: Any,
    preload: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:
    """A sweep of a run with a trainer."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):  # of earlier tests
        monkeypatch.delenv(name, raising=False)
    if request.param == "trl":
        if not TRL.is_dir():
            pytest.skip("needs TRL (make trainers)")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TRL), os.environ.get("PYTHONPATH", "")]))
        own = ["--model", str(made.model), "--problems", str(made.easy), "--report_to", "none"]
        words = ["trl_grpo.py", *own, "--use_cpu", "true", "--bf16", "false"]
        python = str(preload(IMPORTS) / "python")
        more = {"framework": "trl"}
    else:
        words = ["grpo_jsonl.py", str(made.model), str(made.easy)]
        python = sys.executable
        more = {"log": "{out}/metrics.jsonl", "checkpoints": "step-{step}/optimiser.pt"}
    return {
        "sweep": {"backend": "command", "compute": 192, "seeds": [3]},
        "grid": {"problems_per_batch": [4], "rollouts_per_problem": [4]},
        "recipe": {"lr": 1e-2} | ({"max_response_tokens": 6} if request.param == "trl" else {}),
        "problems": {"set": "easy"},
        "evaluation": {"points": 6},
        "command": {"run": [python, str(EXAMPLES / words[0]), *words[1:]], **more},
        "executor": {"jobs": 1},
    }


def rewards_of(folder: Path) -> dict[int, float]:
    """What the trainer itself says of a run: its reward by step."""
    if found := [*folder.glob("out/*/checkpoint-*/trainer_state.json")]:
        newest = max(found, key=lambda path: int(path.parent.name.removeprefix("checkpoint-")))
        records = json.loads(newest.read_text())["log_history"]
    else:
        log = max(folder.glob("out/*/metrics.jsonl"))
        records = [json.loads(line) for line in log.read_text().splitlines()]
    return {record["step"]: record["reward"] for record in records if "reward" in record}


def agrees(out: Path) -> None:
    table = pd.read_parquet(out / "points.parquet")
    table = table[(table["metric"] == "reward") & (table["eval_set"] == "train")]
    folders = [*(out / "runs").iterdir()]
    assert len(folders) == 1
    for folder in folders:
        spec = json.loads((folder / "spec.json").read_text())
        n, rewards = spec["rollouts_per_problem"], rewards_of(folder)
        own = table[table["rollouts_per_problem"] == n]
        assert dict(zip(own["step"], own["value"], strict=True)) == rewards
        assert (own["compute"] == own["step"] * 4 * n).all()
        assert max(rewards) * 4 * n == spec["compute"]


def trainers(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if str(EXAMPLES) in "".join(child.cmdline()[1:2]):
                found.append(child)
    return found


def test_killed_continued_and_extended(data: Any, tmp_path: Path) -> None:
    file, out, rng = tmp_path / "sweep.toml", tmp_path / "s", random.Random(37)
    file.write_text(toml_text(data))
    command = [str(Path(sys.executable).with_name("isolaw")), "sweep", str(file), "--out", str(out)]
    slow = data["command"].get("framework") == "trl"  # whose start takes as long as all the rest
    for whom in ("isolaw",) if slow else ("isolaw", "trainer"):
        before = len([*out.glob("runs/*/out/*/*-*/")])
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 300
        while len([*out.glob("runs/*/out/*/*-*/")]) < before + 1:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(rng.uniform(0, 0.5))
        if whom == "isolaw":
            process.kill()
            process.wait()
        else:
            for trainer in trainers(process)[:1]:
                trainer.kill()
            assert process.wait(600) in (0, 3)  # 3: a run failed
    engine.sweep(data, out)
    agrees(out)
    if slow:
        return
    runs = engine.sweep({**data, "sweep": {**data["sweep"], "compute": 384}}, out)
    agrees(out)
    assert not runs.simulated
