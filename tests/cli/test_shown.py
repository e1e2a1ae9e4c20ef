"""Whatever names and logs hold, a terminal is told nothing by them."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isolaw.cli.common import shown
from isolaw.errors import MessageLines

Call = Callable[..., tuple[int, str, str]]
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
    assert shown(f"a{text}b") == "a" + "".join(f"\\u{ord(c):04x}" if c != "x" else c for c in text) + "b"


def test_what_is_shown() -> None:
    text = MessageLines("B_p · n → 8…", "  - é\t日本")
    assert shown(text) == text == "B_p · n → 8…\n  - é\t日本"


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
