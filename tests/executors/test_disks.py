"""Disks that are full, and disks that can no longer be written: what is told, and that nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isolaw import engine
from isolaw.config import SweepSpec
from isolaw.store import SweepStore

SWEEP = """\
[sweep]
compute = 4_000_000
seeds = 5
[grid]
problems_per_batch = [8]
rollouts_per_problem = [4]
[problems]
n_train = 2000
n_validation = 100
[evaluation]
points = 40
[executor]
jobs = 2
"""


def may_mount() -> list[str]:
    """How to get a mount namespace of one's own here: as root, or as root of a user namespace."""
    for how in (["unshare", "-m"], ["unshare", "-rm"]):
        tried = subprocess.run(
            [*how, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
        )
        if tried.returncode == 0:
            return how
    return []


MOUNTS = may_mount()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "disk").mkdir()
    return tmp_path


@pytest.fixture
def whole(here: Path) -> pd.DataFrame:
    """What must come out."""
    return engine.sweep(SweepSpec.read(here / "sweep.toml", ["executor.kind=inline"])).points


@pytest.fixture
def in_a_shell(command: str, here: Path) -> Callable[..., list[dict[str, Any]]]:
    """Run a script where mounts are nobody else's; what it says in files, by ``told NAME COMMAND …``."""

    def run(script: str) -> None:
        told = 'told() { name=$1; shift; "$@" >$name.out 2>$name.err; echo $? >$name.code; }\n'
        done = subprocess.run(
            [*MOUNTS, "sh", "-uc", told + script],
            cwd=here,
            env={**os.environ, "isolaw": command},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    return run


def told(here: Path, name: str) -> tuple[int, str, str]:
    code, out, err = ((here / f"{name}.{end}").read_text() for end in ("code", "out", "err"))
    assert "Traceback" not in err
    return int(code), out, err


def lines(out: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in out.glob("runs/*/points.jsonl")}


if MOUNTS:

    @pytest.mark.nightly
    @pytest.mark.slow
    def test_a_full_disk(here: Path, whole: pd.DataFrame, in_a_shell, same) -> None:
        """A tmpfs too small for five runs; then it grows, and the same command finishes the sweep."""
        in_a_shell(
            "mount -t tmpfs -o size=200k tmpfs disk\n"
            "told full $isolaw sweep sweep.toml --out disk/out\n"
            "told state $isolaw status disk/out --json\n"
            "cp -r disk/out full\n"
            "mount -o remount,size=50m disk\n"
            "told again $isolaw sweep sweep.toml --out disk/out\n"
            "cp -r disk/out again\n"
        )
        code, _, said = told(here, "full")
        assert "No space left on device" in said
        state = json.loads(told(here, "state")[1])
        assert code == 1
        assert "points.parquet: isolaw cannot write the table" in said
        assert f"{state['done']} of 5 runs are done" in said
        assert 0 < state["done"] < 5  # the test's own: some runs fit
        assert not state["running"]
        assert state["runs"] == 5
        store = SweepStore(here / "full")
        done = {r for r in store.run_ids() if store.run(r).recorded().done_compute}
        assert len(done) == state["done"]
        assert told(here, "again")[0] == 0
        before, after = lines(here / "full"), lines(here / "again")
        assert all(after[run_id] == before[run_id] for run_id in done)  # not made again
        same(pd.read_parquet(here / "again" / "points.parquet"), whole)
        assert not list((here / "again").rglob("*.tmp"))

    @pytest.mark.nightly
    @pytest.mark.slow
    def test_a_disk_that_turns_read_only(here: Path, whole: pd.DataFrame, in_a_shell, same) -> None:
        """A read-only mount comes over the directory while runs are at work, and goes."""
        in_a_shell(
            "mount --make-rprivate / 2>/dev/null\n"
            "told turned $isolaw sweep sweep.toml --out disk/out &\n"
            "until ls disk/out/runs/*/DONE >/dev/null 2>&1; do sleep 0.05; done\n"
            # Made read-only elsewhere: in its place a file that is open for writing could keep it from that.
            "mkdir view && mount --bind disk/out view && mount -o remount,bind,ro view\n"
            "mount --move view disk/out\n"
            "wait $!\n"
            "told state $isolaw status disk/out --json\n"
            "told refused $isolaw sweep sweep.toml --out disk/out\n"
            "cp -r disk/out read-only\n"
            "umount disk/out\n"
            "told again $isolaw sweep sweep.toml --out disk/out\n"
        )
        code, _, said = told(here, "turned")
        assert code in (1, 3)
        assert "Read-only file system" in said
        state = json.loads(told(here, "state")[1])
        assert 0 < state["done"] < 5
        assert not state["running"]
        code, out, said = told(here, "refused")
        assert (code, out) == (1, "")
        assert "Read-only file system" in said
        store = SweepStore(here / "read-only")
        done = {r for r in store.run_ids() if store.run(r).recorded().done_compute}
        assert told(here, "again")[0] == 0
        before, after = lines(here / "read-only"), lines(here / "disk" / "out")
        assert all(after[run_id] == before[run_id] for run_id in done)
        same(pd.read_parquet(here / "disk" / "out" / "points.parquet"), whole)


@pytest.mark.slow
def test_no_space_for_a_line(tmp_path: Path, tiny, same) -> None:
    """A run whose lines find no space fails with that cause, alone."""
    planned = engine.resolve_sweep(tiny(executor={"kind": "processes", "jobs": 2}), tmp_path)
    events = engine.execute(planned, tmp_path)
    run = SweepStore(tmp_path).run(planned.todo[-1])
    first = next(events)
    shutil.rmtree(run.folder / "state", ignore_errors=True)
    (run.folder / "points.jsonl").unlink(missing_ok=True)
    (run.folder / "log").unlink(missing_ok=True)
    assert first.run_id != planned.todo[-1]
    (run.folder / "state").symlink_to("/dev/full")
    failed = [e for e in events if e.kind == "failed"]
    assert [e.run_id for e in failed] == [planned.todo[-1]]
    (run.folder / "state").unlink()
    same(engine.sweep(tiny(), tmp_path), engine.sweep(tiny()))
