"""``isolaw read``, and ``isolaw fit`` on what it reads: logs that the test writes in veRL's own form."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isolaw.runs import Runs

Call = Callable[..., tuple[int, str, str]]
Tree = Callable[[Path], dict[str, bytes | None]]
ROOT = Path(__file__).parents[2]
TAN = ROOT / "examples" / "data" / "tan_rollout_n_base.csv"


def verl(folder: Path, n: int, seed: int, steps: int = 40, data: str = "aime24", config: bool = True) -> Path:
    """veRL's file logger: a line for each step, validation at every second, a configuration beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    ceiling = 0.5 + 0.03 * math.log2(n / 8)
    lines = []
    for step in range(steps + 1):
        value = ceiling - (ceiling - 0.3) * math.exp(-step * 32 * n / (3e4 * (n / 8) ** 0.7))
        value += 0.002 * math.sin(17 * step + seed)
        row: dict[str, Any] = {}
        if step % 2 == 0:
            row |= {f"val-core/{data}/acc/mean@8": value, f"val-aux/{data}/acc/best@8/mean": value + 0.1}
        if step:
            row |= {"critic/score/mean": value - 0.1, "timing_s/step": 60.0, "training/global_step": step}
        lines.append(json.dumps({"step": step, "data": row}))
    path = folder / "metrics.jsonl"
    path.write_text("\n".join(lines) + "\n")
    if config:
        (folder / "config.yaml").write_text(
            f"data:\n  train_batch_size: 32\n  seed: {seed}\nactor_rollout_ref:\n  rollout:\n    n: {n}\n"
            "  actor:\n    ppo_mini_batch_size: 32\n    optim:\n      lr: 1e-6\n"
        )
    return path


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for n in (8, 32, 128):
        for seed in (1, 2):
            verl(tmp_path / "runs" / f"n{n}-s{seed}", n, seed, 4096 // n + 20)
    return tmp_path / "runs"


def test_a_directory_is_told_run_by_run(isolaw: Call, sweep: Path) -> None:
    code, out, err = isolaw("read", sweep, "--verbose")
    assert code == 0
    blocks = out.split("\n\n")
    assert len(blocks) == 8
    assert blocks[0].splitlines()[0] == f"{sweep}/n8-s1 (veRL, jsonl)"
    for word in (
        "B_p            32       data.train_batch_size in config.yaml",
        "n              8        actor_rollout_ref.rollout.n in config.yaml",
        "rollouts/step  256      B_p · n",
        "steps          0 to 532, C to 1.36e5",
        "aime24         avg@8 (267), best@8 (267)",
        "on-policy      yes      ",
        "seed 1 (data.seed in config.yaml)",
        "lr 1e-06",
    ):
        assert word in blocks[0], word
    assert blocks[-1].splitlines() == [
        "6 runs: B_p = 32; n = 8, 32, 128", f"6 of 6 logs are ready: isolaw fit {sweep}",
    ]  # fmt: skip
    assert isolaw("read", sweep)[1] == "\n\n".join(blocks[-2:])
    assert "6 of the files found are not logs" in err
    assert "\x1b" not in out


def test_json_is_the_same(isolaw: Call, sweep: Path) -> None:
    code, out, err = isolaw("read", sweep, "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert len(said["runs"]) == 6
    run = said["runs"][0]
    assert run["facts"]["rollouts_per_problem"] == {
        "value": 8,
        "origin": "actor_rollout_ref.rollout.n in config.yaml",
    }
    assert run["metrics"]["aime24"] == {"avg@8": 267, "best@8": 267}
    assert (run["steps"], run["compute"]) == ([0, 532], [0, 532 * 256])
    assert any("6 of the files found are not logs" in note for note in said["notes"])


@pytest.mark.slow
def test_logs_become_a_law(isolaw: Call, sweep: Path, tmp_path: Path) -> None:
    table = tmp_path / "points.parquet"
    code, out, _ = isolaw("read", sweep, "-o", table)
    assert code == 0
    assert out.splitlines()[-1] == f"Runs: {table}. Next: isolaw fit {table} --out law.json"
    runs = Runs.from_parquet(table)
    assert len(runs) == 6
    assert next(iter(runs.attributes.values()))["lr"] == 1e-6
    documents = []
    for source in (sweep, table):
        code, out, err = isolaw("fit", source, "--draws", 5, "--json")
        assert code == 0, err
        assert "eward is avg@8 on aime24, the only accuracy measured" in err
        documents.append(json.loads(out))
    assert (documents[0]["metric"], documents[0]["eval_set"]) == ("avg@8", "aime24")
    assert documents[0]["frontier"] == documents[1]["frontier"]
    code, out, err = isolaw("fit", sweep, "--metric", "reward", "--eval-set", "train", "--draws", 0, "--json")
    assert code == 0, err
    assert json.loads(out)["eval_set"] == "train"


def test_what_is_missing_is_asked_for(isolaw: Call, tmp_path: Path, tree: Tree) -> None:
    for n in (8, 32):
        verl(tmp_path / "runs" / f"n{n}", n, 0, config=False)
    before = tree(tmp_path)
    for command in (("read", "-o", tmp_path / "out.parquet"), ("fit", "--out", tmp_path / "law.json")):
        code, out, err = isolaw(*command, tmp_path / "runs")
        assert code == 2
        assert "--name-pattern '*n{n}*' --set 'B_p=<number>'" in out + err
        assert (out + err).count("n and B_p unknown") == 1
    assert tree(tmp_path) == before
    settings = ("--set", "B_p=32", "--set", "*/n8:n=8", "--set", "*/n32:n=32")
    code, out, _ = isolaw("read", tmp_path / "runs", *settings)
    assert code == 0
    assert "2 runs: B_p = 32; n = 8, 32" in out
    assert out.partition("run ")[0].count("--set") == 4


@pytest.mark.parametrize("name", ["B_p", "problems_per_batch"])
def test_a_value_that_contradicts_the_logs_is_asked_for_once(isolaw: Call, sweep: Path, name: str) -> None:
    _, out, _ = isolaw("read", sweep, "--set", f"{name}=64", "--only", "*")
    assert f"isolaw read {sweep} --only '*' --set 'B_p=<number>' --save" in out


def test_an_evaluation_that_is_missing_or_open(isolaw: Call, tmp_path: Path) -> None:
    for n in (8, 32, 128):
        verl(tmp_path / f"n{n}", n, 0)
        path = verl(tmp_path / f"n{n}" / "math", n, 0, data="math500")
        both = path.read_text()
        path.unlink()
        (tmp_path / f"n{n}" / "metrics.jsonl").open("a").write(both)
        (path.parent / "config.yaml").unlink()
    code, out, err = isolaw("fit", tmp_path)
    assert (code, out) == (2, "")
    for word in (
        "no avg@4 on validation, and 2 metrics that could replace it",
        "avg@8 on aime24 (3 runs, 63 checkpoints)",
        "avg@8 on math500 (3 runs",
        "--metric reward --eval-set train (3 runs, 120 checkpoints)",
    ):
        assert word in err
    assert isolaw("fit", tmp_path, "--eval-set", "math500", "--draws", 0)[0] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "verl"], ["--format: no format 'verl'", "expected: auto"]),
        (["--set", "n"], ["--set 'n'", "GLOB:NAME=VALUE"]),
        (["--set", "zz*:n=3"], ["no run matches 'zz*'"]),
        (
            ["--group-by", "trainer.experiment"],
            ["'--group-by'", "'trainer.experiment' is not one of 'file', 'directory'"],
        ),
        (["--column", "step"], ["--column: found 'step'; expected NAME=VALUE"]),
    ],
)
@pytest.mark.parametrize("command", ["read", "fit"])
def test_wrong_usage(isolaw: Call, sweep: Path, command: str, options: list[str], words: list[str]) -> None:
    code, out, err = isolaw(command, sweep, *options)
    assert (code, out) == (2, "")
    for word in words:
        assert word in err


def test_no_source(isolaw: Call) -> None:
    code, _, err = isolaw("read")
    assert code == 2
    assert "Missing argument" in err


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"my notes", b"PAR1", None])
def test_out_replaces_only_a_table_of_runs(
    isolaw: Call, sweep: Path, tmp_path: Path, content: bytes | None
) -> None:
    out = tmp_path / "points.parquet"
    if content is None:
        pd.DataFrame({"mine": [1]}).to_parquet(out)
    else:
        out.write_bytes(content)
    before = out.read_bytes()
    code, stdout, err = isolaw("read", sweep, "-o", out)
    assert (code, stdout) == (2, "")
    assert err.strip() == f"isolaw: {out}: exists and is not a table of runs; it is left unchanged"
    assert out.read_bytes() == before
    out.unlink()
    assert isolaw("read", sweep, "-o", out)[0] == 0
    first = out.read_bytes()
    assert isolaw("read", sweep / "n8-s1", "-o", out)[0] == 0
    assert out.read_bytes() != first
    assert len(list(tmp_path.glob(".points*"))) == 0
    code, _, err = isolaw("read", sweep, "-o", tmp_path)
    assert code == 2
    assert "found a directory" in err
