"""SIGKILL at random moments: the same command again, and the table is that of an uninterrupted sweep."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import psutil
import pytest

from isolaw import engine

pytestmark = pytest.mark.slow

KILLS = 2
ANYTIME = 1  # kills at a random moment after the start; the other follows a new checkpoint
# Long runs and short ones, about three seconds of one core in all.
SWEEP = """\
[sweep]
compute = 10_000_000
seeds = 2
[grid]
problems_per_batch = [16]
rollouts_per_problem = [2, 8]
[problems]
n_train = 500
n_validation = 200
[evaluation]
points = 40
"""
ROLLOUTS = 4 * 10_000_000


def files(out: Path) -> list[Path]:
    return list(out.glob("runs/*/points.jsonl"))


def recorded(out: Path) -> list[int]:
    """Compute of each run's last whole line."""
    lines = [path.read_bytes().split(b"\n")[:-1] for path in files(out)]
    return [json.loads(line[-1])["compute"] for line in lines if line]


class Sweeper:
    """Starts one and the same command, and kills it."""

    def __init__(self, command: list[str], out: Path) -> None:
        self.command, self.out = command, out

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def finish(self) -> pd.DataFrame:
        assert self.start().wait(timeout=120) == 0
        return pd.read_parquet(self.out / "points.parquet")

    def kill_after(
        self, seconds: float, a_new_checkpoint: bool, workers_too: bool, at_most: float = 1e9
    ) -> bool:
        """Kill the engine mid-work, at the latest when ``at_most`` rollouts are recorded.

        Returns whether the sweep had a checkpoint by then.
        """
        began = time.time()
        process = self.start()
        if a_new_checkpoint:
            while not any(p.stat().st_size and p.stat().st_mtime > began for p in files(self.out)):
                assert process.poll() is None, "the sweep ended before it could be killed"
                time.sleep(0.005)
        until = time.monotonic() + seconds
        while time.monotonic() < until and sum(recorded(self.out)) < at_most:
            time.sleep(0.02)
        assert process.poll() is None, "the sweep ended before it could be killed"
        checkpoint = bool(recorded(self.out))
        # Either the engine alone, whose workers then stop by themselves, or all at one blow.
        workers = psutil.Process(process.pid).children() if workers_too else []
        for victim in [*workers, process]:
            victim.kill()
        assert process.wait() == -signal.SIGKILL
        return checkpoint


@pytest.fixture
def sweeper(command: str, tmp_path: Path) -> Callable[..., Sweeper]:
    (tmp_path / "sweep.toml").write_text(SWEEP)

    def make(name: str, jobs: int, *more: str) -> Sweeper:
        out = tmp_path / name
        words = [command, "sweep", tmp_path / "sweep.toml", "--out", out, "--jobs", jobs, *more]
        return Sweeper([str(word) for word in words], out)

    return make


@pytest.fixture(scope="module")
def uninterrupted(command: str, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The table that must come out."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    (folder / "sweep.toml").write_text(SWEEP)
    words = [command, "sweep", str(folder / "sweep.toml"), "--out", str(folder / "out"), "--jobs", "2"]
    return Sweeper(words, folder / "out").finish()


@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_many_kills(sweeper: Callable[..., Sweeper], uninterrupted: pd.DataFrame, same, jobs: int) -> None:
    rng = random.Random(2603)
    victim = sweeper("killed", jobs)
    with_checkpoint = 0
    for kill in range(KILLS):
        with_checkpoint += victim.kill_after(
            rng.uniform(0, 1.2),  # states are published once a second: some kills follow one, some do not
            a_new_checkpoint=kill >= ANYTIME,
            workers_too=rng.random() < 0.5,
            at_most=0.8 * ROLLOUTS * (kill + 1) / KILLS,  # however fast the machine, work is left
        )
    assert with_checkpoint >= KILLS - ANYTIME
    same(victim.finish(), uninterrupted)
    state = engine.status(victim.out)
    assert state["done"] == state["runs"] == 4
    assert not list(victim.out.rglob("*.tmp"))


@pytest.mark.nightly
def test_killed_while_being_extended(sweeper: Callable[..., Sweeper], same) -> None:
    first, then = ("--set", "sweep.compute=1e6"), ("--set", "sweep.compute=4e6")
    sweeper("through", 2, *first).finish()
    shutil.copytree(sweeper("through", 2).out, sweeper("killed", 2).out)
    rng = random.Random(12151)
    victim = sweeper("killed", 2, *then)
    for _ in range(2):
        victim.kill_after(rng.uniform(0, 0.3), a_new_checkpoint=True, workers_too=False)
    extended = sweeper("through", 2, *then).finish()
    same(victim.finish(), extended)
    looks = extended.groupby(["rollouts_per_problem", "seed"])["step"].nunique().unstack()
    assert looks.nunique(axis=1).eq(1).all()
    assert extended["compute"].max() == 4_000_000
