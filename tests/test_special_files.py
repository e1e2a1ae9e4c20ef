"""Devices, pipes and sockets that a file names: isolaw refuses them, and neither waits nor reads forever."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from isolaw.files import open_file, sha256

LIMIT_S = 60
LIMITED = """
import resource, sys
from isolaw.cli import run
resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30,) * 2)
sys.exit(run(sys.argv[1:]))
"""
Call = Callable[..., subprocess.CompletedProcess[str]]
REPLAY = "--set sweep.backend=replay --set replay.source="
COMMAND = "--set sweep.backend=command --set command.run=ls --set command.files="
REAL = "--set sweep.backend=real --set real.model=model --set problems.set="


@pytest.fixture
def special(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of pipes, a socket, and links to devices."""
    monkeypatch.chdir(tmp_path)
    for name in ("pipe", "pipe.csv", "pipe.toml", "pipe.json"):
        os.mkfifo(name)
    for folder in ("problems", "model"):
        Path(folder).mkdir()
    os.mkfifo("problems/train.jsonl")
    Path("problems/validation.jsonl").symlink_to("/dev/zero")
    Path("model/config.json").write_text("{}")
    os.mkfifo("model/tokenizer.json")
    Path("zero.csv").symlink_to("/dev/zero")
    socket.socket(socket.AF_UNIX).bind("socket.csv")
    return tmp_path


@pytest.fixture
def limited(commands: Path) -> Call:
    """Run isolaw within limits of time and memory; its standard input is a pipe that stays open."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        source, sink = os.pipe()
        try:
            python = [str(commands / "python"), "-P", "-c", LIMITED]
            return subprocess.run(
                [*python, *words], stdin=source, capture_output=True, text=True, check=False, timeout=LIMIT_S
            )
        finally:
            os.close(source)
            os.close(sink)

    return call


@pytest.mark.parametrize(
    "name", ["/dev/zero", "/dev/null", "zero.csv", "pipe", "pipe.csv", "model", "socket.csv"]
)
def test_only_regular_files_are_opened(name: str, special: Path) -> None:
    for opens in (open_file, sha256):
        with pytest.raises(OSError, match=r"expected a file|No such device or address"):
            opens(name)


def test_a_link_to_a_regular_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to("file")
    assert open_file(tmp_path / "link").read() == b"1"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"{REPLAY}/dev/zero", "replay.source: "),
        (f"{REPLAY}zero.csv", "replay.source: "),
        (f"{REPLAY}pipe", "replay.source: "),
        (f"{REPLAY}pipe.csv", "replay.source: "),
        (f"{REPLAY}/dev/stdin", "replay.source: "),
        (f"{REPLAY}/dev/zero --set replay.columns.n=x", "replay.source: "),
        (f'{COMMAND}["/dev/zero"]', "command.files: "),
        (f'{COMMAND}["pipe"]', "command.files: "),
        (f"{REAL}problems", "found a "),
        (f"{REAL}/dev/zero", "real.model: "),
        ("--set bandit.preset=pipe.toml", "bandit.preset: "),
        ("pipe.toml", "pipe.toml: found a pipe; expected a file"),
    ],
)
def test_a_dry_run_refuses_special_files(line: str, said: str, special: Path, limited: Call) -> None:
    done = limited("sweep", *line.split(), "--out", "out", "--dry-run")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert re.search("found a (special file|pipe|device)", done.stderr)


@pytest.mark.parametrize(
    "line",
    [
        "predict pipe.json --compute 1e4",
        "predict zero.csv --compute 1e4",
        "fit pipe",
        "fit pipe.csv",
        "read pipe.csv",
        "answer zero.csv --compute 1e4",
        "model-size pipe.csv",
        "model-size zero.csv",
        "compare pipe.json n=8 n=16 --compute 1e4",
    ],
)
def test_a_named_file_is_a_regular_file(line: str, special: Path, limited: Call) -> None:
    done = limited(*line.split())
    assert done.returncode == 2, done.stderr
    assert re.search("found a (pipe|device); expected a file", done.stderr), done.stderr
