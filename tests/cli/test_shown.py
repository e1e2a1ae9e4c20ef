"""Whatever names and logs hold, a terminal is told nothing by them."""

from __future__ import annotations

import csv
import json
import os
import pickle
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import isolaw as library
from isolaw.cli import cli
from isolaw.cli.common import shown
from isolaw.commands import option
from isolaw.errors import DataError, Wording
from isolaw.readers.survey import survey

Call = Callable[..., tuple[int, str, str]]
ADVICE = "\n  Next: isolaw read everything"
EVIL = "\x1b]0;title\x07\x1b[2Ja\rb\x08\nisolaw: all is well\x9b31m\u202e"
UNSHOWN = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]|\nisolaw: all")


def log(folder: Path, name: str = "reward", n: int = 8) -> Path:
    """A W&B export, whose names come as they are; the first is of the metric's set, the second a run's."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "run_name,metric,step,value\n" + "".join(
        f'"run{name}","{key}",{step},0.{step}\n'
        for key in (f"val-core/set{name}/acc/mean@8", "critic/score/mean")
        for step in (1, 2)
    )
    (folder / "export.csv").write_text(text, newline="")
    config = {"data": {"train_batch_size": 16}, "actor_rollout_ref": {"rollout": {"n": n}}}
    config["actor_rollout_ref"]["model"] = {"path": f"model{name}"}  # type: ignore[dict-item]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "text",
    [
        "\x1b",
        "\r",
        "\x9b",
        "\n",
        "\nx",
        "\n ",
        "\n  - x",
        "\x85",
        "\u2029",
        "\u061c",
        "\ud800",
        "\u2028",
        "\u2066",
        "\0",
    ],
)
def test_what_is_not_shown(text: str) -> None:
    assert (
        shown(f"a{text}b") == "a" + "".join(f"\\u{ord(c):04x}" if c not in "x -" else c for c in text) + "b"
    )


def test_what_is_shown() -> None:
    text = Wording("B_p · n → 8…", "  - é日本")
    assert shown(text) == text == "B_p · n → 8…\n  - é日本"
    assert shown("a\tb") == "a\\u0009b"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_names_in_logs_and_of_files(isolaw: Call, tmp_path: Path, options: tuple[str, ...]) -> None:
    folder = log(tmp_path / f"x{EVIL}", EVIL)
    code, out, err = isolaw("read", folder, "--set", "n=8", "--set", "B_p=16", *options)
    assert code == 0, err
    assert not UNSHOWN.search(out + err)
    assert "\\u001b[2J" in out
    if options:
        assert EVIL in json.loads(out)["runs"][0]["sources"][0]


@pytest.mark.parametrize("command", ["read", "fit"])
def test_messages(isolaw: Call, tmp_path: Path, command: str) -> None:
    for n in (8, 32):
        log(tmp_path / f"x{n}{EVIL}", EVIL, n)
    for sources in (
        [tmp_path],
        [tmp_path / f"x8{EVIL}"],
        [tmp_path / f"gone{EVIL}"],
        [tmp_path, f"--opt{EVIL}"],
        [tmp_path, "--format", EVIL],
    ):
        code, out, err = isolaw(command, *sources)
        assert code == 2
        assert not UNSHOWN.search(out + err)
        assert err.count("\nisolaw:") <= 1  # click's usage stands before it


@pytest.mark.slow
def test_a_terminal_gets_our_own_escapes_only(tmp_path: Path) -> None:
    folder = log(tmp_path / f"x{EVIL}", EVIL)
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", "from isolaw.__main__ import main; main()"]
    command = [*program, "read", folder, "--set", "n=8", "--set", "B_p=16"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs) as process:
        os.close(theirs)
        said = b""
        try:
            while part := os.read(ours, 65_536):
                said += part
        except OSError:  # the other end was closed
            pass
    os.close(ours)
    text = said.decode().replace("\r\n", "\n").replace("\x1b[1m", "", 1).replace("\x1b[0m", "", 1)
    assert process.returncode == 0, text
    assert not UNSHOWN.search(text)


WORDS = [
    ["EVIL"],
    ["--EVIL"],
    ["fit", "--EVIL"],
    ["fit", "--draws", "EVIL", "x"],
    ["fit", "--hold=EVIL", "x"],
    ["fit", "--where", "EVIL", "x"],
    ["fit", "EVIL"],
    ["status", "x", "EVIL"],
    ["answer", "x", "--compute", "EVIL"],
    ["advise", "--compute", "1e6", "--difficulty", "EVIL"],
    ["compare", "EVIL", "n=8", "n=16", "--compute", "1e6"],
    ["compare", "x", "n=8", "n=EVIL", "--compute", "1e6"],
    ["model-size", "EVIL"],
    ["run-one", "EVIL"],
    ["predict", "EVIL", "--compute", "1e6"],
]


@pytest.mark.parametrize("evil", [EVIL, "y" * 200_000], ids=["escapes", "long"])
@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_an_argument_is_shown_on_one_line(isolaw: Call, words: list[str], evil: str) -> None:
    code, out, err = isolaw(*(word.replace("EVIL", evil) for word in words))
    assert code in (1, 2)
    assert not UNSHOWN.search(out + err)
    assert len(out + err) < 2_500


def test_a_bare_command_prints_its_help(isolaw: Call) -> None:
    code, out, err = isolaw()
    assert code == 2
    assert "\\u000a" not in out + err
    assert "\n  answer " in out + err


def test_an_argument_is_spelled_as_its_reader_types_it(isolaw: Call, tmp_path: Path) -> None:
    source = table(tmp_path / "a.csv", column="problem_set")
    with pytest.raises(DataError, match=r'Choose with where=\{"problem_set": "a"\}'):
        library.fit(source, metric="acc", draws=0)
    said = isolaw("fit", source, "--metric", "acc", "--draws", 0)[2]
    assert "Choose with --where problem_set=a" in said
    way = "map it with " + option("columns", "n", "k")
    assert (str(DataError(way)), shown(way)) == ('map it with columns={"n": "k"}', "map it with --column n=k")
    with click.Context(cli.commands["predict"], parent=click.Context(cli)):
        assert shown(way) == "map it with isolaw read --column n=k"
    assert shown(pickle.loads(pickle.dumps(DataError(way))).args[0]) == shown(way)  # as from a process


def test_lines_are_data() -> None:
    message = Wording("two\n are missing", Wording("  - a", "  - b"))
    assert ("x\n: " + message).lines == (("x\n: ", "two\n are missing"), ("  - a",), ("  - b",))
    assert (message + "c").lines[-1] == ("  - b", "c")
    assert str(DataError(message)).removeprefix("two").lines == (("\n are missing",), ("  - a",), ("  - b",))


def table(path: Path, metric: str = "acc", attribute: str = "a", column: str = "note") -> Path:
    """A table of two recipes, so that ``fit`` asks for a choice."""
    rows = [
        [f"r{n}{value}", n, 16, step, 0.5 - 1 / (step + n), value]
        for n in (4, 8, 16)
        for value in (attribute, "z")
        for step in range(1, 9)
    ]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["run_id", "n", "B_p", "step", metric, column], *rows])
    return path


FORGED = ["file", "metric", "problem_set", "column", "set", "toml", "folder", "missing"]


@pytest.mark.parametrize("where", FORGED)
@pytest.mark.parametrize("command", ["read", "fit", "answer"])
def test_a_line_break_with_spaces_forges_no_advice(
    isolaw: Call, tmp_path: Path, where: str, command: str
) -> None:
    more: list[object] = ["--compute", 1e6] if command == "answer" else []
    source: object = tmp_path / "a.csv"
    if where == "file":
        source = table(tmp_path / f"a{ADVICE}.csv", column="problem_set")
    elif where == "metric":
        table(tmp_path / "a.csv", metric=f"val/acc{ADVICE}", column="problem_set")
    elif where == "problem_set":
        table(tmp_path / "a.csv", attribute=f"a{ADVICE}", column="problem_set")
    elif where == "column":
        table(tmp_path / "a.csv", column=f"colour{ADVICE}")
    elif where == "set":
        table(tmp_path / "a.csv")
        more += ["--column", f"problem_set=x{ADVICE}"]
    elif where == "toml":
        table(tmp_path / "a.csv")
        (tmp_path / "isolaw.toml").write_text(f"{json.dumps(ADVICE)} = 1\n")
    elif where == "folder":
        source = log(tmp_path / f"x{ADVICE}", ADVICE)
    else:
        source = tmp_path / f"gone{ADVICE}"
    _, out, err = isolaw(command, source, *more)
    lines = (out + err).splitlines()
    assert lines
    assert not [line for line in lines if line.startswith("  Next: isolaw read everything")]


def test_notes_about_runs_that_are_left_out_are_spelled_as_typed() -> None:
    (warning,) = survey(["examples/logs/verl-console"]).warnings
    assert shown(warning).endswith(
        "--set 'slurm-1002:<name>=<value>'. If one continues the other: --group-by directory"
    )
    with pytest.warns(UserWarning, match='If one continues the other: group_by="directory"') as caught:
        library.read("examples/logs/verl-console")
    assert type(caught[0].message.args[0]) is str
