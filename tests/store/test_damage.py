"""A directory in which something is not as isolaw left it; `fuzz/store.py` has more of that."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isolaw import engine
from isolaw.errors import NotOurs, RunError
from isolaw.store import Folder, SweepStore

ROOT = Path(__file__).parents[2]
LARGER = {"sweep": {"compute": 40_000}}


def instead_of(place: Path, target: Path) -> None:
    """Move what is there, and put a link to it in its place."""
    shutil.move(place, target)
    place.symlink_to(target)


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    """The runs of an undamaged sweep that became larger."""
    out = tmp_path_factory.mktemp("whole")
    engine.sweep(tiny(), out)
    return engine.sweep(tiny(**LARGER), out)


@pytest.mark.parametrize(
    "what",
    ["runs", "run", "state", "DONE", "points.jsonl", "spec.json", "points.parquet", "sweep.json", "lock"],
)
def test_a_link_is_refused_by_name_and_not_followed(
    tmp_path: Path, tiny, isolaw, tree, same, whole, what: str
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
    same(engine.sweep(tiny(**LARGER), out), whole)


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
    for command in (["sweep", "--out", tmp_path], ["status", tmp_path], ["fit", tmp_path, "--out", "x.json"]):
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
    fuzz = [sys.executable, "-P", ROOT / "fuzz" / "store.py", "--cases", "3", "--seed", "12151"]
    done = subprocess.run(fuzz, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "3  cases" in done.stdout


def test_a_line_that_finds_no_room_is_an_error_and_not_half_a_line(tmp_path: Path, tiny, same) -> None:
    """A full disk takes a part of what is written, and says how much, without an error."""
    spec = tiny(sweep={"compute": 10_000_000, "seeds": 1}, evaluation={"points": 60})
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    out = tmp_path / "out"
    try:  # as a disk does that fills up in the middle of a line: no file gets longer than this
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_345, limit[1]))
        with pytest.raises((RunError, OSError), match="File too large"):
            engine.sweep(spec, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    same(engine.sweep(spec, out), engine.sweep(spec, tmp_path / "whole"))


@pytest.mark.parametrize("name", ["sweep.json", "spec.json", "DONE"])
def test_a_number_that_json_has_not_is_damage(tmp_path: Path, tiny, isolaw, name: str) -> None:
    engine.sweep(tiny(), tmp_path)
    path = tmp_path / name if name == "sweep.json" else min(tmp_path.glob("runs/*")) / name
    path.write_text('{"x": 1e999}')
    isolaw("status", tmp_path)
    isolaw("fit", tmp_path, "--out", tmp_path / "law.json")
    assert len(engine.sweep(tiny(), tmp_path)) == 4
    assert engine.status(tmp_path)["damaged"] == []


def test_lines_that_were_lost_are_told(tmp_path: Path, tiny, isolaw) -> None:
    engine.sweep(tiny(), tmp_path)
    points = min(tmp_path.glob("runs/*")) / "points.jsonl"
    count = len(points.read_text().splitlines())
    said = f"{points}: {count} checkpoints were recorded, but only 0 are there"
    points.unlink()
    assert said in isolaw("status", tmp_path)[1]
    assert any(said in note for note in SweepStore(tmp_path).collect().notes)
    code, _, err = isolaw("sweep", "--out", tmp_path)
    assert code == 0
    assert f"warning: {said}; the run starts again" in err
    assert said not in isolaw("status", tmp_path)[1]


def test_a_run_without_its_state_is_planned_from_its_start(tmp_path: Path, tiny) -> None:
    engine.sweep(tiny(), tmp_path)
    larger = tiny(sweep={"compute": 40_000})
    with_states = engine.resolve_sweep(larger, tmp_path)
    run = SweepStore(tmp_path).run(SweepStore(tmp_path).run_ids()[0])
    shutil.rmtree(run.folder / "state")
    planned = engine.resolve_sweep(larger, tmp_path)
    lost = run.recorded().checkpoints[-1]["compute"]
    assert planned.remaining_rollouts == with_states.remaining_rollouts + lost
    assert "1 of the started runs have no state to continue from, and start again at step 0" in planned.notes


def test_what_cannot_be_opened_is_named_in_full(tmp_path: Path, tiny, monkeypatch) -> None:
    (tmp_path / "a").mkdir()
    folder = Folder.at(tmp_path).folder("a")

    def refuses(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied", "x")

    monkeypatch.setattr(os, "open", refuses)
    for use in (folder.open, folder.folder, folder.read):
        with pytest.raises(PermissionError) as error:
            use("x")
        assert error.value.filename == str(tmp_path / "a" / "x")


@pytest.mark.slow
def test_a_closed_stream_is_no_runs_log(tmp_path: Path, command: str) -> None:
    """Its number would be given to the next file, and what is meant for it would go there."""
    small = ["sweep.compute=4e4", "sweep.seeds=1", "grid.rollouts_per_problem=[4,8]", "problems.n_train=50"]
    words = [command, "sweep", "--out", tmp_path / "out", *(w for s in small for w in ("--set", s))]
    done = subprocess.run(["sh", "-c", '"$@" 2>&-', "sh", *words], check=False)
    assert done.returncode == 0
    assert not any(path.read_text() for path in (tmp_path / "out").glob("runs/*/log"))


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
            engine.resolve_sweep(tiny(sweep={"compute": 40_000}), tmp_path)
            engine.status(tmp_path)
            SweepStore(tmp_path).collect()
        assert len(os.listdir("/proc/self/fd")) <= before
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc"])
def test_a_name_is_a_single_one(tmp_path: Path, name: str) -> None:
    folder = Folder.at(tmp_path)
    for use in (folder.folder, folder.open, folder.read):
        with pytest.raises(ValueError, match="not the name of a file"):
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
