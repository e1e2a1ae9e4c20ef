"""``isolaw fit``: exit codes, JSON, what is written and what is not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isolaw.fits.law import Law
from isolaw.runs import Runs

Call = Callable[..., tuple[int, str, str]]
Make = Callable[..., Runs]
Tree = Callable[[Path], dict[str, bytes | None]]
LEVELS = [8, 32, 128, 512]
QUICK = ("--draws", "8")
LAW_KEYS = {
    "format", "hold", "fixed", "metric", "eval_set", "method", "x", "grid", "sources", "params",
    "frontier", "crossovers", "curves", "bootstrap", "comparison", "warnings",
}  # fmt: skip


@pytest.fixture(scope="module")
def table(synthetic: Make) -> pd.DataFrame:
    """A foreign, wide table of four configurations with two seeds each."""
    points = synthetic([(32, n) for n in LEVELS], seeds=2, noise=0.004).to_pandas()
    return points.rename(
        columns={"rollouts_per_problem": "group", "compute": "samples", "value": "accuracy"}
    )[["group", "seed", "step", "samples", "accuracy"]]


MAPPED = (
    "--metric", "accuracy", "--column", "rollouts_per_problem=group", "--column", "compute=samples",
    "--set", "problems_per_batch=32",
)  # fmt: skip


@pytest.mark.slow
def test_symbols_and_names_are_one(isolaw: Call, csv: Path) -> None:
    short = ("--metric", "accuracy", "--column", "n=group", "--column", "C=samples")
    said = [
        isolaw("fit", csv, *mapped, "--draws", "0", "--json")
        for mapped in (
            MAPPED,
            (*short, "--set", "B_p=32", "--where", "B_p=32"),
            (*short, "--set", "B_p=32", "--where", "problems_per_batch=32"),
            (*short[:4], "--column", "C=samples*1", "--column", "B_p=32*n/n"),
        )
    ]
    assert {code for code, *_ in said} == {0}
    assert len({json.dumps(json.loads(out)["frontier"]) for _, out, _ in said}) == 1


@pytest.fixture
def csv(table: pd.DataFrame, tmp_path: Path) -> Path:
    path = tmp_path / "curves.csv"
    table.to_csv(path, index=False)
    return path


def strict(text: str) -> Any:
    """JSON without the NaN and Infinity that Python would let through."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_table_becomes_a_law(isolaw: Call, csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "law.json"
    code, stdout, stderr = isolaw("fit", csv, *MAPPED, *QUICK, "--out", out)
    assert code == 0
    best, reason, following, law, data, *_ = stdout.splitlines()
    assert best.startswith("For 999k rollouts: n = ")
    assert reason.startswith("Expected loss ")
    assert following.startswith("Next: ")
    assert law == "Comparing laws needs 3 seeds per configuration; some have 2."
    assert data.startswith("accuracy on validation, fitted to 8 runs with n = 8, 32, 128, 512 and B_p = 32")
    assert re.fullmatch(
        rf"Saved the law to {re.escape(str(out))}\. For a larger budget: "
        rf"isolaw predict {re.escape(str(out))} --compute \d+",
        stdout.splitlines()[-1],
    )
    assert all(line.startswith("note: ") for line in stderr.splitlines())
    document = strict(out.read_text())
    assert set(document) >= LAW_KEYS
    assert document["sources"] == [str(csv)]
    assert document["metric"] == "accuracy"
    assert document["bootstrap"]["draws"] == 8
    assert Law.load(out).predict(5e5).allocation.problems_per_batch == 32


def test_json_is_all_that_is_printed(isolaw: Call, csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "law.json"
    code, stdout, stderr = isolaw("fit", csv, *MAPPED, *QUICK, "--json", "--out", out)
    assert code == 0
    assert strict(stdout) == strict(out.read_text())
    assert "\x1b" not in stdout
    for q in strict(stdout)["params"].values():
        assert set(q) == {"value", "interval", "status"}
    for flag in strict(stdout)["warnings"]:  # whether n* levels off has a line of its own without --json
        assert (f"{flag['text'][1:]}\n" in stderr) == (flag["code"] != "no_saturation")


def test_without_out_nothing_is_written(isolaw: Call, csv: Path, tmp_path: Path, tree: Tree) -> None:
    before = tree(tmp_path)
    code, _, stderr = isolaw("fit", csv, *MAPPED, *QUICK)
    assert code == 0
    assert "the law is not saved; add --out law.json" in stderr
    assert tree(tmp_path) == before


@pytest.mark.slow
def test_options_reach_the_fit(isolaw: Call, csv: Path) -> None:
    def document(*options: object) -> Any:
        code, stdout, stderr = isolaw("fit", csv, *MAPPED, "--json", *options)
        assert code == 0, stderr
        return strict(stdout)

    plain = document("--draws", 5)
    assert (plain["method"], plain["records"], plain["bootstrap"]["seed"]) == ("surface", None, 0)
    assert plain["curve"] is None
    paper = document("--draws", 5, "--method", "paper")
    assert (paper["method"], paper["curve"], paper["records"]) == ("paper", "exp", 0.005)
    every = document("--draws", 0, "--where", "problems_per_batch=32")
    assert every["fixed"] == {"problems_per_batch": 32}
    assert every["bootstrap"]["draws"] == 0


@pytest.mark.slow
def test_several_sources_hold_a_run_once(
    isolaw: Call, table: pd.DataFrame, csv: Path, tmp_path: Path
) -> None:
    whole = strict(isolaw("fit", csv, *MAPPED, *QUICK, "--json")[1])
    code, stdout, stderr = isolaw("fit", csv, csv, *MAPPED, *QUICK, "--json")
    assert code == 0
    assert strict(stdout)["frontier"] == whole["frontier"]
    assert "note: isolaw left out 8 duplicate" in stderr
    reward = table.columns[-1]
    table.assign(**{reward: table[reward] + 0.01}).to_csv(tmp_path / "other.csv", index=False)
    code, stdout, stderr = isolaw("fit", csv, tmp_path / "other.csv", *MAPPED, *QUICK)
    assert (code, stdout) == (2, "")
    assert "none of 16 logs can be fitted" in stderr


# What --out may replace


@pytest.mark.slow
def test_a_law_is_replaced(isolaw: Call, csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "laws" / "law.json"
    for draws in (5, 6):
        assert isolaw("fit", csv, *MAPPED, "--draws", draws, "--out", out)[0] == 0
        assert strict(out.read_text())["bootstrap"]["draws"] == draws
    assert len(list(out.parent.iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"my notes", b"{}", b"\x00\x01", b'{"format": "other"}'])
def test_anything_else_is_not(isolaw: Call, csv: Path, tmp_path: Path, content: bytes, tree: Tree) -> None:
    out = tmp_path / "notes.json"
    out.write_bytes(content)
    before = tree(tmp_path)
    code, stdout, stderr = isolaw("fit", csv, *MAPPED, *QUICK, "--out", out)
    assert (code, stdout) == (2, "")
    assert stderr.strip() == f"isolaw: {out}: exists and is not a law; it is left unchanged"
    assert tree(tmp_path) == before


def test_out_is_a_directory(isolaw: Call, csv: Path, tmp_path: Path, tree: Tree) -> None:
    before = tree(tmp_path)
    code, _, stderr = isolaw("fit", csv, *MAPPED, *QUICK, "--out", tmp_path)
    assert code == 2
    assert "found a directory" in stderr
    assert tree(tmp_path) == before


# Bad input: exit code 2, one message, nothing written


def changed(table: pd.DataFrame, **cells: Any) -> pd.DataFrame:
    out = table.copy()
    for column, value in cells.items():
        out[column] = out[column].astype(object)
        out.loc[out.index[7], column] = value
    return out


def text(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False).encode()


BAD: dict[str, tuple[Callable[[pd.DataFrame], bytes], list[str]]] = {
    "no metric": (
        lambda t: text(t.drop(columns="accuracy").assign(acuracy=0.5)),
        ["no column 'accuracy'", "did you mean 'acuracy'?"],
    ),
    "no column for n": (
        lambda t: text(t.rename(columns={"group": "groop"})),
        ["no column 'group'", "'groop'"],
    ),
    "compute backwards": (
        lambda t: text(changed(t, samples=1)),
        ["line 9: compute is 1", "32768"],
    ),
    "NaN": (lambda t: text(changed(t, accuracy="nan")), ["1 values are not finite", "line 9"]),
    "infinite": (lambda t: text(changed(t, accuracy="inf")), ["1 values are not finite", "line 9"]),
    "a word for a number": (lambda t: text(changed(t, accuracy="high")), ["value is not a number", "'high'"]),
    "a repeated step": (
        lambda t: text(pd.concat([t, t.iloc[[7]].assign(accuracy=0.99)])),
        ["repeated (run, step)", "--column 'seed="],
    ),
    "empty": (lambda t: b"", ["the file is empty"]),
    "blank": (lambda t: b"\n \n", ["the file is empty"]),
    "only a header": (lambda t: text(t.iloc[:0]), ["a header but no rows"]),
    "binary": (lambda t: bytes(range(256)) * 4, ["binary file"]),
    "not UTF-8": (lambda t: text(t) + b"\xff\xfe,1\n", ["not UTF-8"]),
    "half a Parquet file": (lambda t: b"PAR1" + b"x" * 100, ["not a readable Parquet file"]),
    "n = 0": (lambda t: text(t.replace({"group": {8: 0}})), ["rollouts_per_problem must be at least 1"]),
    "half an n": (lambda t: text(t.replace({"group": {8: 8.5}})), ["whole number", "8.5"]),
    "n missing": (lambda t: text(changed(t, group="")), ["rollouts_per_problem", "empty in line 9"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(isolaw: Call, table: pd.DataFrame, tmp_path: Path, tree: Tree, name: str) -> None:
    make, words = BAD[name]
    path = tmp_path / "bad.csv"
    path.write_bytes(make(table))
    before = tree(tmp_path)
    code, stdout, stderr = isolaw("fit", path, *MAPPED, *QUICK, "--out", tmp_path / "law.json", "--json")
    assert (code, stdout) == (2, "")
    assert stderr.count("isolaw: ") == 1
    assert "Traceback" not in stderr
    for word in [str(path), *words]:
        assert word in stderr
    assert tree(tmp_path) == before


def test_a_refusal_is_exit_code_one(isolaw: Call, table: pd.DataFrame, tmp_path: Path, tree: Tree) -> None:
    path = tmp_path / "two.csv"
    table[table["group"] < 100].to_csv(path, index=False)
    before = tree(tmp_path)
    code, stdout, stderr = isolaw("fit", path, *MAPPED, "--out", tmp_path / "law.json", "--json")
    assert (code, stdout) == (1, "")
    assert "at least three values of n at the same B_p" in stderr
    assert "Add runs with other n" in stderr
    assert tree(tmp_path) == before
