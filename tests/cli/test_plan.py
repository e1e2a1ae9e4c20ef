"""``isolaw plan``: sweeps compared in words and as JSON, and the recommended sweep file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
SWEEP = """
[sweep]
backend = "real"
compute = 100_000
seeds = 2
[grid]
rollouts_per_problem = [8, 32, 128]
[problems]
set = "nowhere"
difficulty = "hard"
[evaluation]
points = 10
[real]
model = "nowhere"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path / "sweep.toml"


def test_without_model_or_problems(isolaw: Call, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.toml"
    words = ["plan", file, "--compute", "2e5", "--spend", "50%", "--repetitions", "1"]
    code, stdout, stderr = isolaw(*words, "--out", out, "--json")
    assert code == 0
    assert f"next: isolaw sweep {out}" in stderr
    assert "compute = 200000" in out.read_text()
    data = json.loads(stdout)
    assert data["simulated"] is True
    assert data["sweep"]["real"]["model"] == "nowhere"
    assert {own["name"].split()[0] for own in data["truths"]} == {"hard", "published-hard"}


def test_mistakes_are_named_before_anything_is_played(isolaw: Call, file: Path, tmp_path: Path) -> None:
    code, _, stderr = isolaw("plan", file, "--spend", "384gpuh")
    assert code == 2
    assert all(
        way in stderr for way in ("--cost DIRECTORY", "isolaw-gpu-report.json", "--cost throughput.toml")
    )
    own = tmp_path / "own.toml"
    own.write_text("[sweep]\n")
    code, _, stderr = isolaw("plan", file, "--out", own)
    assert code == 2
    assert "left unchanged" in stderr
    assert own.read_text() == "[sweep]\n"
    file.write_text(SWEEP.replace("[8, 32, 128]", "[8, 32]"))
    code, _, stderr = isolaw("plan", file)
    assert code == 2
    assert "sweep.toml:7" in stderr
    code, _, stderr = isolaw("plan", file, "--where", "lr=1")
    assert code == 2
    assert "--runs" in stderr
