"""A directory in which something is not as isolaw left it; `fuzz/store.py` has more of that."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isolaw import engine
from isolaw.errors import NotOurs
from isolaw.store import Folder, SweepStore

ROOT = Path(__file__).parents[2]
LARGER = {"sweep": {"compute": 40_000}}


def instead_of(place: Path, target: Path) -> None:
    """Move what is there, and put a link to it in its place."""
    shutil.move(place, target)
    place.symlink_to(target)


@pytest.mark.parametrize(
    "what",
    ["runs", "run", "state", "DONE", "points.jsonl", "spec.json", "points.parquet", "sweep.json", "lock"],
)
def test_a_link_is_refused_by_name_and_not_followed(
    tmp_path: Path, tiny, isolaw, tree, same, what: str
) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine"
    engine.sweep(tiny(), out)
    run = min(out.glob("runs/*"))
    place = {"run": run, **{name: run / name for name in ("state", "DONE", "points.jsonl", "spec.json")}}
    link = place.get(what, out / what)
    instead_of(link, mine)
    if mine.is_dir():
        (mine / "5").mkdir()
        (mine / "5" / "precious").write_text("mine")
    before = tree(mine) if mine.is_dir() else mine.read_bytes()
    kind = "folder" if mine.is_dir() else "file"
    for command in (
        ["sweep", "--out", out, "--set", "sweep.compute=4e4"],
        ["sweep", "--out", out, "--dry-run"],
        ["status", out],
    ):
        code, stdout, err = isolaw(*command)
        assert (code, stdout) == (2, "")
        assert f"isolaw: {link}: found a symbolic link to {mine}; expected a {kind}" in err
    isolaw("fit", out, "--out", tmp_path / "law.json")
    assert (tree(mine) if mine.is_dir() else mine.read_bytes()) == before
    link.unlink()
    whole = tmp_path / "whole"
    engine.sweep(tiny(), whole)
    same(engine.sweep(tiny(**LARGER), out), engine.sweep(tiny(**LARGER), whole))


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, os.mkfifo], ids=["folder", "file", "pipe"])
def test_all_that_is_of_another_kind_is_named_at_once(tmp_path: Path, tiny, isolaw, make) -> None:
    engine.sweep(tiny(), tmp_path)
    first, second = sorted(tmp_path.glob("runs/*"))[:2]
    for path in (tmp_path / "points.parquet", first, second / "state"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(path)
    wrong = {tmp_path / "points.parquet": "file", first: "folder", second / "state": "folder"}
    kind = {Path.mkdir: "folder", Path.touch: "file"}.get(make, "device, pipe or socket")
    for command in (["sweep", "--out", tmp_path], ["status", tmp_path]):
        code, _, err = isolaw(*command)
        assert code == 2
        for path, expected in wrong.items():
            said = f"{path}: found a {kind}; expected a {expected}"
            assert (said in err) == (kind != expected)


def test_runs_that_are_a_file(tmp_path: Path, tiny, isolaw) -> None:
    engine.sweep(tiny(), tmp_path)
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "runs").touch()
    for command in (["sweep", "--out", tmp_path], ["status", tmp_path], ["fit", tmp_path, "--out", "x"]):
        code, _, err = isolaw(*command)
        assert code == 2
        assert f"{tmp_path / 'runs'}: found a file; expected a folder" in err


def test_the_directory_itself_may_be_a_link(tmp_path: Path, tiny, same) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    same(engine.sweep(tiny(), tmp_path / "out"), engine.sweep(tiny(), tmp_path / "whole"))


@pytest.mark.parametrize("marker", ['{"compute": Infinity, "step": 1, "checkpoints": 1}', "[" * 100_000])
def test_a_marker_that_no_parser_likes(tmp_path: Path, tiny, isolaw, marker: str) -> None:
    whole = engine.sweep(tiny(), tmp_path)
    done = min(tmp_path.glob("runs/*")) / "DONE"
    done.write_text(marker)
    assert isolaw("status", tmp_path)[0] == 0
    code, _, err = isolaw("sweep", "--out", tmp_path)
    assert code == 0
    assert f"warning: {done}: damaged: not JSON" in err
    assert len(engine.sweep(tiny(), tmp_path)) == len(whole)


@pytest.mark.slow
def test_random_damage(command: str) -> None:
    """A few of the cases that `make fuzz` has a thousand of."""
    fuzz = [sys.executable, "-P", ROOT / "fuzz" / "store.py", "--cases", "60", "--seed", "12151"]
    done = subprocess.run(fuzz, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "60  cases" in done.stdout


# Handles


def test_what_has_been_opened_stays_the_same(tmp_path: Path) -> None:
    """A path that leads elsewhere meanwhile leads nobody there."""
    (tmp_path / "own").mkdir()
    own = Folder.at(tmp_path).folder("own")
    (tmp_path / "own").rename(tmp_path / "moved")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "5").mkdir()
    (tmp_path / "own").symlink_to(tmp_path / "mine")
    own.write("file", b"x")
    own.remove_folder("5")
    assert (tmp_path / "moved" / "file").read_bytes() == b"x"
    assert (tmp_path / "mine" / "5").is_dir()


def test_handles_are_closed_when_they_are_no_longer_used(tmp_path: Path, tiny) -> None:
    """Without waiting for a garbage collection: a sweep has more runs than a process may have files."""
    engine.sweep(tiny(), tmp_path)
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            engine.plan(tiny(sweep={"compute": 40_000}), tmp_path)
            engine.status(tmp_path)
            SweepStore(tmp_path).collect()
        assert len(os.listdir("/proc/self/fd")) <= before
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc"])
def test_a_name_is_a_single_one(tmp_path: Path, name: str) -> None:
    folder = Folder.at(tmp_path)
    for use in (folder.folder, folder.open, folder.read):
        with pytest.raises(ValueError, match="not a single name"):
            use(name)


def removing(folder: Folder) -> None:
    folder.remove_folder("x")


def writing(folder: Folder) -> None:
    folder.write("x", b"y")


def reading(folder: Folder) -> None:
    folder.read("x")


@pytest.mark.parametrize("use", [removing, writing, reading])
def test_links_are_refused_by_every_use(tmp_path: Path, use: Callable[[Folder], None]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    (tmp_path / "x").symlink_to("mine" if use is removing else "mine/file")
    with pytest.raises(NotOurs, match="found a symbolic link to mine"):
        use(Folder.at(tmp_path))
    assert (tmp_path / "mine" / "file").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
