"""States on another disk: `store.states`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from isolaw import engine
from isolaw.store import SweepStore


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A folder of somebody's, with something in it."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "precious").write_text("mine")
    return tmp_path / "scratch"


def states(scratch: Path) -> list[str]:
    return sorted(path.parent.name for path in scratch.glob("isolaw-*/*/*") if path.name.isdigit())


@pytest.mark.parametrize("executor", [{"kind": "inline"}, {"kind": "processes", "jobs": 2}])
def test_runs_continue_from_there(tmp_path: Path, scratch: Path, tiny, same, executor) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    small, large = {"compute": 20_000}, {"compute": 40_000}
    engine.sweep(tiny(store={"states": str(scratch)}, executor=executor), out)
    engine.sweep(tiny(), whole)
    assert states(scratch) == SweepStore(out).run_ids()
    assert not list(out.glob("runs/*/state"))
    (out / "runs" / states(scratch)[0] / "points.jsonl").touch()
    made = [
        event for event in events(tiny(sweep=large, executor=executor), out) if event.kind == "checkpoint"
    ]
    assert all(event.compute > small["compute"] for event in made)
    same(SweepStore(out).collect(), engine.sweep(tiny(sweep=large), whole))
    assert (scratch / "precious").read_text() == "mine"


def events(spec, out: Path):
    return list(engine.execute(engine.resolve_sweep(spec, out), out))


def test_another_folder_than_it_began_with_is_refused(tmp_path: Path, scratch: Path, tiny, isolaw) -> None:
    (tmp_path / "other").mkdir()
    engine.sweep(tiny(store={"states": str(scratch)}), tmp_path / "out")
    engine.sweep(tiny(), tmp_path / "own")
    for out, asked, accepted in (
        ("out", tmp_path / "other", str(scratch)),
        ("own", scratch, "the sweep keeps its states in its own directory"),
        ("new", tmp_path / "nowhere", "a folder that exists and is writable"),
    ):
        code, _, err = isolaw("sweep", "--out", tmp_path / out, "--set", f"store.states={asked}")
        assert code == 2
        assert "store.states" in err
        assert accepted in err


def test_a_disk_that_is_not_mounted_is_noticed(tmp_path: Path, scratch: Path, tiny, isolaw, same) -> None:
    out, away = tmp_path / "out", tmp_path / "away"
    engine.sweep(tiny(store={"states": str(scratch)}), out)
    scratch.rename(away)
    larger = ["sweep", "--out", out, "--set", "sweep.compute=4e4"]
    for _ in range(2):  # nothing there; then a folder that is not the one
        code, _, err = isolaw(*larger)
        assert code == 2
        assert "is the disk mounted?" in err
        scratch.mkdir(exist_ok=True)
    scratch.rmdir()
    away.rename(scratch)
    assert isolaw(*larger)[0] == 0
    assert states(scratch) == SweepStore(out).run_ids()


def test_a_copy_of_a_sweep_leaves_the_states_of_the_first_alone(
    tmp_path: Path, scratch: Path, tiny, isolaw, tree, same
) -> None:
    first, copy, moved = (tmp_path / name for name in ("first", "copy", "moved"))
    engine.sweep(tiny(store={"states": str(scratch)}), first)
    shutil.copytree(first, copy)
    before = tree(scratch)
    code, _, err = isolaw("sweep", "--out", copy, "--set", "sweep.compute=4e4")
    assert code == 2
    assert f"contains the states of {first}; {copy} is a copy of that sweep" in err
    assert tree(scratch) == before
    (copy / "states.json").unlink()  # what the message says
    assert isolaw("sweep", "--out", copy, "--set", "sweep.compute=4e4")[0] == 0
    assert {name: content for name, content in tree(scratch).items() if name in before} == before
    first.rename(moved)  # no copy; the first of a moved sweep's copies to run keeps the states
    shutil.copytree(moved, tmp_path / "second")
    assert isolaw("sweep", "--out", moved, "--set", "sweep.compute=4e4")[0] == 0
    same(SweepStore(moved).collect(), SweepStore(copy).collect())
    code, _, err = isolaw("sweep", "--out", tmp_path / "second", "--set", "sweep.compute=5e4")
    assert code == 2
    assert f"contains the states of {moved}; {tmp_path / 'second'} is a copy of that sweep" in err


def test_the_folder_may_be_named_as_in_a_shell(
    tmp_path: Path, scratch: Path, tiny, isolaw, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", str(scratch))
    monkeypatch.chdir(tmp_path)
    for out, name in (("a", "$SCRATCH"), ("b", "scratch")):
        engine.sweep(tiny(store={"states": name}), tmp_path / out)
        monkeypatch.chdir(scratch)  # what it is relative to, it was then
        assert isolaw("sweep", "--out", tmp_path / out, "--set", "sweep.compute=4e4")[0] == 0
        monkeypatch.chdir(tmp_path)
    assert len(states(scratch)) == 8
