"""``isolaw status``, once and watching."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

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


def test_watching_what_is_over_says_it_and_ends(isolaw: Call, sweep: Path) -> None:
    code, out, err = isolaw("status", sweep, "--watch")
    assert (code, err) == (0, "")
    assert "6 done" in out
    assert "The law so far, without intervals:" in out


def test_watch_or_json(isolaw: Call, sweep: Path) -> None:
    code, _, err = isolaw("status", sweep, "--watch", "--json")
    assert code == 2
    assert "--watch cannot be combined with --json" in err
    code, _, err = isolaw("status", sweep.parent, "--watch")
    assert code == 2
    assert "not a sweep's directory" in err


@pytest.mark.slow
@pytest.mark.parametrize("how", ["the sweep ends", "interrupted"])
def test_live(command: str, terminal: Any, tiny: Make, tmp_path: Path, how: str) -> None:
    out = tmp_path / "sweep"
    spec = tiny(grid={"rollouts_per_problem": [2, 4, 8]})
    events: Any
    with closing(engine.execute(engine.resolve_sweep(spec, out), out)) as events:
        for _ in range(10):
            next(events)
        watching = terminal(command, "status", str(out), "--watch")
        watching.until(r"pace not yet known[\s\S]*There is no law yet")
        for _ in range(8):
            next(events)
        watching.until(r"rollouts per second, about \d+ (s|min) left")
        if how == "interrupted":
            watching.process.send_signal(signal.SIGINT)
            assert watching.end() == 0
            assert engine.status(out)["running"]
        for _ in events:
            pass
    if how == "the sweep ends":
        assert watching.end() == 0
        assert "6 done, 0 started, 0 waiting, 0 failed" in watching.text
        assert "The law so far, without intervals:" in watching.text
    assert watching.text.rstrip().endswith("\x1b[?25h")  # the cursor is back
    assert "Traceback" not in watching.text
