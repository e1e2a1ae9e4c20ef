"""SIGKILL at random moments: the same command again, and the curves are those of uninterrupted runs."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from isolaw import engine
from isolaw.store import SweepStore

pytestmark = [pytest.mark.real, pytest.mark.slow]

STEPS = 60  # a state is published once a second, after about 25 steps of these


@pytest.fixture(scope="module")
def data(made, sections: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """Two runs, on-policy and stale, one after the other, with a point to continue from after every step."""
    return sections(
        sweep={"compute": STEPS * 64},
        grid={"problems_per_batch": [16], "staleness": [0, 1]},
        recipe={"no_positive_resampling": 0.9},
        problems={"set": str(made.sums), "n_train": 100, "n_validation": 16},
        evaluation={"points": 3},
        real={"checkpoint_minutes": 1e-6},
        executor={"kind": "processes", "jobs": 1},
    )


@pytest.fixture(scope="module")
def uninterrupted(data: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The table that must come out."""
    return engine.sweep(
        {**data, "executor": {"kind": "inline"}}, tmp_path_factory.mktemp("uninterrupted") / "out"
    ).to_pandas()


def recorded(out: Path) -> int:
    """How many checkpoints of all runs are on disk."""
    return sum(path.read_bytes().count(b"\n") for path in out.glob("runs/*/points.jsonl"))


def continued(out: Path) -> int:
    """The step from which the run at work would continue; on a busy machine either may be the first."""
    begun = [SweepStore(out).run(run_id) for run_id in SweepStore(out).run_ids()]
    return max((run.last_state or 0 for run in begun if not run.recorded().done_compute), default=0)


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_killed_sweeps(
    kills: int,
    data: dict[str, dict[str, Any]],
    uninterrupted: pd.DataFrame,
    sweep_file: Callable[..., Path],
    ended: Callable[[int], bool],
    command: str,
    preloaded: Path,
    same: Callable[..., None],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    words = [command, "sweep", str(sweep_file(tmp_path / "sweep.toml", data)), "--out", str(out)]
    rng = random.Random(2603)
    for kill in range(kills):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # In the middle of the first run, then of the second one.
        until = STEPS * kill + rng.randrange(STEPS // 6, STEPS // 2)
        while recorded(out) < until or not continued(out):
            assert process.poll() is None, "the sweep ended before it could be killed"
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        (worker,) = psutil.Process(process.pid).children()
        for victim in (process, worker):  # alone, the worker could first end a run this short
            victim.kill()
        assert process.wait() == -signal.SIGKILL
        patience = time.monotonic() + 300
        while not ended(worker.pid):
            assert time.monotonic() < patience, "the worker outlives its engine"
            time.sleep(0.05)
        # A worker that notices late may have made the last step, which the run still has to evaluate.
        assert 0 < continued(out) <= STEPS
    subprocess.run([preloaded / "isolaw", *words[1:]], check=True, capture_output=True, timeout=600)
    same(pd.read_parquet(out / "points.parquet"), uninterrupted)
    assert engine.status(out)["done"] == 2
    assert not list(out.rglob("*.tmp"))
