"""``isolaw replicate``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
TINY = [
    part
    for setting in (
        "sweep.compute=66_000", "grid.problems_per_batch=4",
        "grid.rollouts_per_problem=[4, 16, 64, 256, 1024]",
        "problems.n_train=64", "problems.n_validation=40", "bandit.parameters.r=8",
    )
    for part in ("--set", setting)
]  # fmt: skip
ROWS = [
    "F1 easy", "F1 hard", "F1 lr easy", "F1 lr hard", "F2 both", "F3 easy", "F3 hard", "F4a easy", "F4b easy",
    "F4c hard", "F5a alone", "F5a alone, lr ∝ √n", "F5b easy", "F5b hard", "F6 easy", "F7a easy", "F7a hard",
    "F7b easy", "F7b hard",
]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.slow
def test_the_whole_of_it(isolaw: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    out = tmp_path / "found"
    command = ("replicate", "--seeds", 2, *TINY, "--jitter", 1, "--out", out)
    code, table, notes = isolaw(*command)
    assert code == 0
    assert table.startswith("Simulated runs. ")
    assert "finding" in table
    assert "F7b" in table
    assert "of 1" in table
    assert "written: " in notes
    assert {p.stem for p in (out / "figures").iterdir()} == {"F1", "F2", "F3", "F4", "F5a", "F5b", "F6", "F7"}
    assert (out / "findings.md").read_text().count("\n|") > 15
    code, text, _ = isolaw(*command, "--json")
    assert code == 0
    document = json.loads(text)
    assert document == json.loads((out / "findings.json").read_text())
    assert next(iter(document)) == "simulated"
    assert document["simulated"] is True
    assert (out / "findings.md").read_text().startswith("Simulated runs. ")
    assert document["seeds"] == [100, 101]
    assert document["jitter"]["presets"] == 1
    rows = {f"{f['finding']} {f['set']}": f["verdict"] for f in document["findings"]}
    assert sorted(rows) == sorted(ROWS)
    assert all(f["effect"]["value"] is not None for f in document["findings"])
    assert not document["failed_runs"]
    for shown in document["pictures"]["F4"]["batches"].values():
        assert None not in shown["value"]
    judged = json.loads((out / "jitter" / "000.json").read_text())
    assert set(judged["verdicts"]) == {r for r in rows if not r.startswith("F1 lr") and "√" not in r}
    for row, counts in document["jitter"]["verdicts"].items():
        assert counts[judged["verdicts"][row]] == 1
        assert sum(counts.values()) == 1


def test_what_is_wrong_is_said_at_once_and_nothing_is_made(isolaw: Run, tmp_path: Path) -> None:
    code, table, message = isolaw(
        "replicate", "--model", "interferance", "--preset", "Z", "--set", "problems.set=hard",
        "--set", "bandit.parameters.sigma3=1.0", "--set", "grid.problems_per_batch=[8, 16]",
        "--out", tmp_path / "a",
    )  # fmt: skip
    assert code == 2
    assert table == ""
    for part in (
        "model: found 'interferance'", "did you mean 'interference'", "bandit.preset: found 'Z'",
        "problems.set: the battery sets this key", "sigma3", "one B_p", "issues\n",
    ):  # fmt: skip
        assert part in message
    assert "Traceback" not in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", [("--seeds", "1"), ("--jitter", "-1"), ("--jobs", "0"), ("--set", "x")])
def test_wrong_usage(isolaw: Run, option: tuple[str, str]) -> None:
    assert isolaw("replicate", *option)[0] == 2


def test_a_directory_of_something_else(isolaw: Run, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    code, _, message = isolaw("replicate", *TINY, "--out", tmp_path)
    assert code == 2
    assert "contains other files" in message
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_help_names_the_rules(isolaw: Run) -> None:
    code, text, _ = isolaw("replicate", "--help")
    assert code == 0
    for part in ("yes", "partly", "excludes zero", "one doubling of n", "--jitter"):
        assert part in text
