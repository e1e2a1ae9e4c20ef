"""``isolaw read`` on what is no log, and with options that cannot be: one message, nothing written over."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Call = Callable[..., tuple[int, str, str]]
Tree = Callable[[Path], dict[str, bytes | None]]


def log(folder: Path, n: int = 8) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"step": s, "data": {"critic/score/mean": 0.5 + s / 100}} for s in range(1, 5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {"data": {"train_batch_size": 32}, "actor_rollout_ref": {"rollout": {"n": n}}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def refused(result: tuple[int, str, str], *words: str) -> None:
    code, _, err = result
    assert code == 2
    assert err.count("isolaw: ") == 1
    for word in words:
        assert word in err


@pytest.mark.parametrize("command", ["read", "fit"])
def test_nothing_to_read(isolaw: Call, tmp_path: Path, command: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    refused(isolaw(command, folder), "found no log", "0 files searched", "expected ")
    (folder / "notes.txt").write_text("my notes")
    refused(isolaw(command, folder), "1 file searched")
    refused(isolaw(command, folder / "notes.txt"), "notes.txt", "not a known log either")
    refused(isolaw(command, folder / "gone"), "gone: No such file")
    refused(isolaw(command, f"{folder}/*.jsonl"), "no file matches")
    refused(isolaw(command, ""), "source: found ''")


def test_devices_are_refused(isolaw: Call) -> None:
    for path in ("/dev/zero", "/dev/null"):
        for more in ((), ("--format", "jsonl")):
            refused(isolaw("read", path, *more), f"{path}: found a device")


@pytest.mark.slow
def test_what_a_directory_may_hold(isolaw: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log(tmp_path / "run")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "round").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "again").symlink_to(tmp_path / "run")
    here = Path.cwd()
    os.chdir(tmp_path)
    for _ in range(1100):  # a path longer than any that can be opened, and than recursion goes
        os.mkdir("d")
        os.chdir("d")
    os.chdir(here)
    code, out, _ = isolaw("read", tmp_path)
    assert code == 0
    assert "1 run: B_p = 32; n = 8" in out
    refused(isolaw("read", tmp_path / "self"), "symbolic links")
    for _ in range(1100):  # what removes the directory afterwards recurses
        if not (tmp_path / "d").exists():
            break
        os.rename(tmp_path / "d", tmp_path / "e")
        if (tmp_path / "e" / "d").exists():
            os.rename(tmp_path / "e" / "d", tmp_path / "d")
        os.rmdir(tmp_path / "e")


def test_weights_are_not_searched_through(isolaw: Call, tmp_path: Path) -> None:
    log(tmp_path)
    for i in range(4):
        (tmp_path / f"model-{i}.safetensors").write_bytes(os.urandom(1 << 24))
    began = time.process_time()
    assert isolaw("read", tmp_path)[0] == 0
    assert time.process_time() - began < 7.5


def test_what_cannot_be_opened(isolaw: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log(tmp_path / "a")
    closed = log(tmp_path / "b") / "metrics.jsonl"
    real = os.open

    def opened(path: Any, *args: Any, **more: Any) -> Any:
        if str(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", opened)
    refused(isolaw("read", closed), f"{closed}: Permission denied")
    code, out, err = isolaw("read", tmp_path)
    assert code == 0
    assert "1 run" in out
    assert f"isolaw did not read this file: {closed}: Permission denied" in err


@pytest.mark.parametrize(
    "settings",
    [("n=",), ("=3",), ("n=0",), ("n=1e3",), ("n=" + "9" * 5000,), ("percent=maybe",), ("step=3",),
     ("[:n=3",), ("B=100",), ("n=8", "B_p=32", "B=100")],
)  # fmt: skip
def test_settings_that_cannot_be(isolaw: Call, tmp_path: Path, tree: Tree, settings: tuple[str, ...]) -> None:
    log(tmp_path / "run")
    before = tree(tmp_path)
    given = [word for setting in settings for word in ("--set", setting)]
    refused(isolaw("read", tmp_path, *given, "-o", tmp_path / "out.parquet"), "--set")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("format", ["mlflow", "wandb-offline", "tensorboard", "trainer-state", "wandb-csv",
                                    "notebook", "verl-console", "step-console",
                                    "stdout-dicts"])  # fmt: skip
def test_another_format_than_it_has(isolaw: Call, tmp_path: Path, format: str) -> None:
    path = log(tmp_path) / "metrics.jsonl"
    refused(isolaw("read", path, "--format", format), str(tmp_path))


@pytest.mark.parametrize("content", [b"[columns", b"\xff\xfe", b"\0", b"a=" + b"[" * 100_000,
                                     b"[nope]\nx=1\n", b"[columns]\nstep=1\n", b'[metrics]\n"avg@1"="gone"\n',
                                     b'[columns]\ncompute="__import__(\'os\').abort()"\n'])  # fmt: skip
def test_a_broken_isolaw_toml(isolaw: Call, tmp_path: Path, content: bytes) -> None:
    table = tmp_path / "t.csv"
    table.write_text("step,acc\n1,0.5\n")
    (tmp_path / "isolaw.toml").write_bytes(content)
    refused(isolaw("read", table))


def test_where_nothing_can_be_written(isolaw: Call, tmp_path: Path) -> None:
    run = log(tmp_path / "run")
    other = tmp_path / "mine.txt"
    other.write_text("mine")
    (tmp_path / "link").symlink_to(other)
    os.mkfifo(tmp_path / "pipe")
    for out in (other, tmp_path / "link", tmp_path / "pipe", run / "metrics.jsonl", "/dev/null"):
        refused(isolaw("read", run, "-o", out), "left unchanged")
    refused(isolaw("read", run, "-o", other / "x.parquet"), "cannot write")
    assert other.read_text() == "mine"


@pytest.mark.slow
def test_many_runs_of_one_identity(isolaw: Call, tmp_path: Path) -> None:
    for i in range(120):
        log(tmp_path / f"run{i}")
        rows = [{"step": s, "data": {"critic/score/mean": i + s / 10}} for s in range(1, 5)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"run{i}" / "metrics.jsonl").write_text(text)
    code, out, err = isolaw("read", tmp_path)
    assert code == 2
    assert "and 116 more: 120 runs of one configuration and seed" in out
    assert out.count(":seed=<number>") == 12
    assert "108 more runs need the same" in out
    assert "none of 120 logs" in err


def test_a_log_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from isolaw.errors import DataError
    from isolaw.readers import survey as reading

    path = log(tmp_path / "run") / "metrics.jsonl"
    found = reading.search

    def then(change: Callable[[], object]) -> None:
        def search(*args: Any) -> Any:
            out = found(*args)
            change()
            return out

        monkeypatch.setattr(reading, "search", search)

    row = json.dumps({"step": 9, "data": {"critic/score/mean": 0.9}})
    then(lambda: path.open("a").write(row[:20]))
    (run,) = reading.survey([tmp_path]).ready
    assert run.left_out["torn last line"] == 1
    for change in (path.unlink, lambda: path.write_text("")):
        log(tmp_path / "run")
        then(change)
        with pytest.raises(DataError, match=r"metrics.jsonl"):
            assert reading.survey([tmp_path]).runs
