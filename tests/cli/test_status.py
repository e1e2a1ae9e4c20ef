"""``isolaw status``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from isolaw import engine
from isolaw.config import SweepSpec

Call = Callable[..., tuple[int, str, str]]
Make = Callable[..., SweepSpec]


@pytest.fixture
def sweep(tiny: Make, tmp_path: Path) -> Path:
    engine.sweep(tiny(grid={"rollouts_per_problem": [2, 4, 8]}), tmp_path / "sweep")
    return tmp_path / "sweep"


def test_once(isolaw: Call, sweep: Path) -> None:
    code, out, err = isolaw("status", sweep)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].endswith("6 done, 0 started, 0 waiting, 0 failed")
    code, out, _ = isolaw("status", sweep, "--json")
    assert json.loads(out)["done"] == 6


def test_what_failed_is_text(isolaw: Call, sweep: Path) -> None:
    run = next((sweep / "runs").iterdir())
    (run / "DONE").unlink()
    (run / "FAILED.json").write_text(json.dumps({"cause": "\x1b[31mred"}))
    code, out, _ = isolaw("status", sweep)
    assert code == 0
    assert "\\u001b[31mred" in out
    assert "Continue: isolaw sweep --out" in out


def test_last_lines_follow_the_first_failure_of_each_kind(isolaw: Call, sweep: Path) -> None:
    for seed, run in enumerate(sorted((sweep / "runs").iterdir())):
        (run / "DONE").unlink()
        cause = f"ended after {seed} of 9 steps\n  its last lines:\n  | line {seed} of {seed}"
        (run / "FAILED.json").write_text(json.dumps({"cause": "no memory" if seed == 1 else cause}))
    _, out, _ = isolaw("status", sweep)
    assert (out.count("failed: "), out.count("| line"), out.count("its last lines")) == (6, 1, 1)
    assert "0 of 9 steps\n  its last lines:\n  | line 0 of 0\nfailed" in out
