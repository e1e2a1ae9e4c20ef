"""Runs of two processes on two machines: as Ray and SLURM start them, with the curve of one process."""

from __future__ import annotations

import os
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
from isolaw.config import SweepSpec
from isolaw.store import SweepStore

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def one(sections: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The curve of a run in this process, with vLLM."""
    return engine.sweep(sections(real={"sampler": "vllm"}), tmp_path_factory.mktemp("one")).to_pandas()


@pytest.mark.nightly
def test_two_machines_of_a_ray_cluster(
    sections: Callable[..., Any], cluster: Any, one: pd.DataFrame, compare, tmp_path: Path
) -> None:
    """vLLM and DeepSpeed in a process on each of them, which torchrun has brought together."""
    where = {"kind": "ray", "address": cluster.address, "nodes": 2}
    two = engine.sweep(
        sections(real={"processes": 2, "zero_stage": 2, "sampler": "vllm"}, executor=where), tmp_path
    )
    compare(two.to_pandas(), one)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["slurm", "ray", "ray on two machines"])
def test_samplers_beside_their_ranks(
    kind: str, sections: Callable[..., Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Two processes that train and two that sample give the numbers of two colocated ones."""
    where: dict[str, Any] = {"kind": "slurm", "cluster": "local", "time": 10}
    if kind == "ray":
        where = {"kind": "ray", "cpus": 2}
    elif kind != "slurm":  # of one core each, so that each has one process of either kind
        where = {"kind": "ray", "address": request.getfixturevalue("cluster").address, "nodes": 2, "cpus": 1}
    real = {"sampler": "transformers", "processes": 2}
    ours = engine.sweep(sections(real={**real, "generation": "async"}, executor=where), tmp_path / "out")
    theirs = engine.sweep(sections(real=real))
    for table in (both := [one.to_pandas().drop(columns="wall_s") for one in (ours, theirs)]):
        assert table["step"].max() == 5
    pd.testing.assert_frame_equal(*both, check_exact=True)
    more = sections(real={**real, "generation": "async"}, recipe={"staleness": 2}, executor=where)
    stale = engine.sweep(more, tmp_path / "stale").to_pandas()
    oldest = stale[stale["metric"] == "age_max"]["value"]
    assert 1 <= oldest.max() <= 2


@pytest.mark.nightly
def test_a_job_of_two_processes(sections: Callable[..., Any], compare, tmp_path: Path) -> None:
    real = {"sampler": "transformers"}
    where = {"kind": "slurm", "cluster": "local", "time": 10}
    two = engine.sweep(sections(real={**real, "processes": 2}, executor=where), tmp_path)
    compare(two.to_pandas(), engine.sweep(sections(real=real)).to_pandas())
    assert list((tmp_path / "slurm").glob("*_log.out"))


@pytest.mark.nightly
def test_two_machines_of_a_slurm_job(
    sections: Callable[..., Any], command: str, preloaded: Path, compare, tmp_path: Path
) -> None:
    """``srun isolaw run-one`` is a task on each; told to end, they keep the state; one machine finishes."""
    data = sections(
        sweep={"compute": 32 * 30},
        problems={"n_validation": 8},
        real={"sampler": "transformers", "processes": 2, "checkpoint_minutes": 1e-6},
    )
    spec, out = SweepSpec.parse(data), tmp_path / "out"
    (planned,) = engine.resolve_sweep(spec, out).runs
    store = SweepStore(out)
    out.mkdir()
    store.write_spec(spec, None)
    run = store.run(planned.run_id)
    run.create(planned)
    words: list[Any] = [command, "run-one", str(run.folder)]
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "localhost"}

    # The second task is first to come, and finds what an earlier job has left.
    (run.folder / "meeting.json").write_text('{"job": "6.0", "call": 1, "meeting": null}')
    tasks = []
    for node in ("1", "0"):
        variables = {**os.environ, **job, "SLURM_NODEID": node}
        tasks.append(subprocess.Popen(words, env=variables, stderr=subprocess.DEVNULL))
    until = time.monotonic() + 300
    while len(run.recorded().checkpoints) < 5:
        assert time.monotonic() < until
        assert all(task.poll() is None for task in tasks)
        time.sleep(0.05)
    meeting = run.folder / "meeting.json"
    assert meeting.stat().st_mode & 0o077 == 0  # the secret in it is the user's
    own = [psutil.Process(task.pid) for task in tasks]
    for process in own + [child for task in own for child in task.children(recursive=True)]:
        process.send_signal(signal.SIGUSR2)  # SLURM spares none of them
    assert [task.wait(timeout=120) for task in tasks] == [0, 3]
    assert run.settled() == run.recorded().checkpoints
    stopped_at = run.recorded().checkpoints[-1]["step"]
    assert 0 < stopped_at < 30

    words[0] = preloaded / "isolaw"
    assert subprocess.run(words, timeout=300, check=False, stderr=subprocess.DEVNULL).returncode == 0
    assert [line["step"] for line in run.recorded().checkpoints].count(stopped_at) == 1
    alone = engine.sweep({**data, "real": {**data["real"], "processes": 1}}, tmp_path / "alone").to_pandas()
    compare(store.collect().to_pandas(), alone)
