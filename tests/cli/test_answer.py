"""`isolaw answer` from logs and from a sweep; and what it says where logs lack facts, or of a law."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from isolaw.cli import cli

Call = Callable[..., tuple[int, str, str]]
FEW = ("--draws", 20)


@pytest.fixture
def directory(isolaw: Call, tmp_path: Path) -> Path:
    words = ["--set", "sweep.compute=4e5", "--set", "sweep.seeds=2", "--set", "executor.kind=inline"]
    sizes = ["--set", "grid.rollouts_per_problem=[8,32,128]", "--set", "problems.n_train=50"]
    assert isolaw("sweep", "--out", tmp_path / "s", *words, *sizes)[0] == 0
    return tmp_path / "s"


@pytest.mark.slow
def test_a_sweep_and_its_law(isolaw: Call, directory: Path, tmp_path: Path) -> None:
    code, stdout, stderr = isolaw("answer", directory, "--compute", "1M", *FEW, "--out", tmp_path / "kept")
    assert code == 0
    lines = stdout.splitlines()
    assert len(lines) <= 9
    n = int(re.match(r"Simulated runs\. For 1M rollouts: n = (\d+), ", lines[0])[1])
    trains = lines[2].startswith("Next: Train ")
    assert lines[3].startswith(f"  isolaw sweep --out {directory} ") == trains
    law, page = tmp_path / "kept" / "law.json", tmp_path / "kept" / "report.html"
    assert f"Saved the law to {law} and the page to {page}." in stderr
    # One best n at one C: in the text, in JSON, by the law, on the page.
    by_law = json.loads(isolaw("predict", law, "--budget", "1e6", "--json")[1])
    assert by_law["rollouts_per_problem"] == n
    assert (
        by_law["next"]["command"].startswith(f"isolaw sweep --out {directory}") or not by_law["next"]["runs"]
    )
    assert f"n\u00a0=\u00a0{n}, B_p" in page.read_text()
    # A law has no runs.
    for words in (["answer", law, "--compute", "2M"], ["fit", law], ["report", law]):
        code, stdout, stderr = isolaw(*words)
        assert (code, stdout) == (2, "")
        command = f"isolaw predict {law} --compute 2x"
        assert stderr == f"isolaw: {law}: a law, which has no runs; to predict from it: {command}\n"


@pytest.mark.parametrize("head", ["step,acc,loss", "step,x,loss", "iteration,n,group", "a,b,c"])
def test_an_error_about_a_table_has_one_command_in_one_spelling(
    isolaw: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(f"{head}\n" + "".join(f"{step},0.{step},1\n" for step in range(1, 5)))
    code, stdout, stderr = isolaw("answer", "t.csv", "--compute", "4M")
    assert code == 2
    commands = re.findall(r"isolaw \w+ [^\s:.]*t\.csv[^\n]*", stdout + stderr)
    (to_read,) = [command for command in commands if "<" in command or "=" in command]
    assert {command.partition(" -")[0] for command in commands} == {"isolaw read t.csv"}
    assert (stdout + stderr).count(to_read.partition(".csv ")[2]) == 1


def test_logs_that_lack_facts_get_what_read_says(isolaw: Call) -> None:
    _, listed, _ = isolaw("read", "examples/logs/trl")
    code, stdout, stderr = isolaw("answer", "examples/logs/trl", "--compute", "4M")
    assert (code, stdout) == (2, "")
    assert listed.strip() in stderr


def test_the_options_of_read_work() -> None:
    names = [{param.name for param in cli.commands[name].params} for name in ("read", "answer")]
    assert names[0] - names[1] == {"save", "verbose"}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "--compute: missing"),
        (["--compute", "48h"], "requires the cost of a step: --cost SOURCE"),
        (["--compute", "1e6", "--out", "FILE"], "FILE' is a file"),
    ],
)
def test_wrong_usage(isolaw: Call, directory: Path, tmp_path: Path, arguments: list[str], word: str) -> None:
    (tmp_path / "FILE").write_text("mine")
    words = [str(tmp_path / "FILE") if argument == "FILE" else argument for argument in arguments]
    code, stdout, stderr = isolaw("answer", directory, *words, *FEW)
    assert (code, stdout) == (2, "")
    assert word in stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "seen"), [("fitting the law", r"\d %"), ("backtesting", r" [1-9]\d? % \S*\d:\d\d:\d\d")]
)
def test_ctrl_c_in_a_large_table(
    commands: Path, terminal: Any, tmp_path: Path, stage: str, seen: str
) -> None:
    n, seed, step = np.meshgrid([4, 16, 64, 256], np.arange(20), np.arange(1, 41), indexing="ij")
    step *= 256 // n  # all n reach one compute
    reward = 0.2 + 0.6 * (1 - np.exp(-np.sqrt(n * step / 3e3))) * (1 - 0.004 * (np.log2(n) - 6) ** 2)
    columns = {"n": n, "seed": seed, "step": step, "avg@4": reward + 0.01 * np.sin(7 * seed + step)}
    table = pd.DataFrame({name: column.ravel() for name, column in columns.items()}).assign(B_p=32)
    table.to_parquet(tmp_path / "runs.parquet")
    words = ["answer", str(tmp_path / "runs.parquet"), "--compute", "1e7", "--out", str(tmp_path / "kept")]
    words += map(str, FEW)
    running = terminal(str(commands / "python"), "-m", "isolaw", *words)
    # The time left is known once two seeds are done.
    running.until(rf"{stage} .*{seen}", 300)
    running.process.send_signal(signal.SIGINT)
    assert running.end() == 130
    assert running.text.endswith("\r\x1b[2K\x1b[?25hisolaw: interrupted\r\n")
    assert [path.name for path in tmp_path.iterdir()] == ["runs.parquet"]
