"""Runs of several processes: the same curve as of one, and what is told when one of them fails."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw import engine
from isolaw.backend import RunContext
from isolaw.backends.real import environment
from isolaw.backends.real.train import ranks
from isolaw.errors import RunError
from isolaw.executors import launcher
from isolaw.store import SweepStore

# Raises in the second process, for as long as there is a file that says so.
REWARD = """\
import os
if os.environ.get("RANK") == "1" and os.path.exists(os.environ["FLAG"]):
    raise ValueError("told to")
return float(response.strip() == answer)
"""


@pytest.mark.real
@pytest.mark.slow
def test_two_processes_draw_what_one_draws(
    sections: Callable[..., Any], compare, preloaded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an odd number of problems to share; nightly, in test_nodes.py, with vLLM in each of them."""
    monkeypatch.setattr(sys, "executable", str(preloaded / "python"))
    more: dict[str, Any] = {
        "grid": {"problems_per_batch": [7]},
        "sweep": {"compute": 28 * 5},
        "recipe": {"staleness": 1, "kl": 0.01, "entropy": 0.001},
        "evaluation": {"points": 100},
    }
    one = engine.sweep(sections(**more), tmp_path / "one").to_pandas()
    two = engine.sweep(sections(**more, real={"processes": 2, "zero_stage": 2}), tmp_path / "two").to_pandas()
    assert one["step"].max() == 5
    compare(two, one)


def ranks_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes of the run that a sweep is making, by rank."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            rank = child.environ().get("RANK")
            if rank and "isolaw.backends.real.train.ranks" in " ".join(child.cmdline()):
                found[int(rank)] = child
    return [found[rank] for rank in sorted(found)]


def failure(out: Path) -> dict[str, Any]:
    (path,) = out.glob("runs/*/FAILED.json")
    return json.loads(path.read_text())


@dataclass(frozen=True)
class Hurt:
    """A sweep of one run of two processes, whose reward raises while there is the file ``flag``."""

    flag: Path
    out: Path
    words: list[str]
    environment: dict[str, str]

    def started(self) -> subprocess.Popen[bytes]:
        """The sweep, once the run that it is making has a new state."""
        before = time.time()

        def new(state: Path) -> bool:
            with contextlib.suppress(FileNotFoundError):  # the next one has taken its place
                return state.stat().st_mtime > before
            return False

        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(self.words, env=self.environment, **quiet)
        while not any(map(new, self.out.glob("runs/*/state/[1-9]*"))):
            assert process.poll() is None, "the sweep ended before it could be hurt"
            time.sleep(0.05)
        return process


@pytest.fixture
def hurt(sections: Callable[..., Any], reward, sweep_file, command: str, tmp_path: Path) -> Hurt:
    flag, out = tmp_path / "flag", tmp_path / "out"
    data = sections(
        sweep={"compute": 32 * 40},
        evaluation={"points": 5},
        problems={"n_validation": 8},
        real={
            "sampler": "transformers",
            "processes": 2,
            "checkpoint_minutes": 1e-6,
            **reward(REWARD),
        },
        executor={"kind": "processes", "jobs": 1},
    )
    words = [command, "sweep", str(sweep_file(tmp_path / "sweep.toml", data)), "--out", str(out)]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    return Hurt(flag, out, words, {**os.environ, "PYTHONPATH": path, "FLAG": str(flag)})


@pytest.mark.nightly
@pytest.mark.real
@pytest.mark.slow
def test_a_process_that_is_killed_or_fails(hurt: Hurt, ended, preloaded: Path) -> None:
    # The second process of the run is killed: the run fails.
    process = hurt.started()
    first, second = ranks_of(process)
    second.kill()
    assert process.wait(timeout=600) == 1
    told = failure(hurt.out)
    assert told["cause"].startswith("process 1 of the run ended (SIGKILL)")
    assert ended(first.pid)
    state = engine.status(hurt.out)
    assert (state["done"], state["failed"]) == (0, 1)
    (failed,) = (SweepStore(hurt.out).run(path.parent.name) for path in hurt.out.glob("runs/*/FAILED.json"))
    assert failed.last_state

    # Its reward raises in the second process: what is told is that, and not that a process has gone.
    hurt.flag.touch()
    again = [preloaded / "isolaw", *hurt.words[1:]]
    done = subprocess.run(again, env=hurt.environment, capture_output=True, timeout=600, check=False)
    assert done.returncode == 1
    assert failure(hurt.out)["cause"].endswith("it raised ValueError: told to")
    assert "problem '" in failure(hurt.out)["cause"]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.nightly  # test_pipeline.py kills a run's only trainer and its sampler
def test_the_processes_of_a_run_do_not_outlive_its_engine(hurt: Hurt, ended) -> None:
    process = hurt.started()
    ranks = ranks_of(process)
    assert len(ranks) == 2
    for victim in (process, ranks[0].parent().parent()):
        victim.kill()
    process.wait()
    patience = time.monotonic() + 300
    while not all(ended(rank.pid) for rank in ranks):
        assert time.monotonic() < patience, "the processes of a run outlive its engine"
        time.sleep(0.05)


@pytest.mark.parametrize("visible", ["2,5", "GPU-a, MIG-b"])
def test_each_rank_sees_one_gpu(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    first, second = visible.replace(" ", "").split(",")
    for name in ("VLLM_ALLREDUCE_USE_SYMM_MEM", "VLLM_ALLREDUCE_USE_FLASHINFER", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for place, value in enumerate((first, second)):
        assert chosen(monkeypatch, visible, place, 2) == [value]
        assert environment.gpus() == 1
    with pytest.raises(
        RunError, match=f"^process 2 of this machine has no separate GPU; visible GPUs: {first}, {second}"
    ):
        chosen(monkeypatch, visible, 2, 3)
    with pytest.raises(RunError, match=r"^a sampler of process 1 of this machine has no separate GPU"):
        chosen(monkeypatch, visible, 1, 2, samplers=2)
    environment.gpus.cache_clear()


def chosen(
    monkeypatch: pytest.MonkeyPatch, visible: str, rank: int, world: int, nodes: int = 1, samplers: int = 0
) -> list[str]:
    """The GPUs that a rank of a run sees: its own, and then those of its samplers."""
    here = world // nodes
    own = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % here, "LOCAL_WORLD_SIZE": here}
    for name, value in {**own, "CUDA_VISIBLE_DEVICES": visible}.items():
        monkeypatch.setenv(name, str(value))
    environment.gpus.cache_clear()
    ranks._choose_gpus(samplers)
    assert os.environ["LOCAL_RANK"] == "0"
    return os.environ["CUDA_VISIBLE_DEVICES"].split(",")


@given(here=st.integers(1, 6), each=st.integers(0, 6), nodes=st.integers(1, 3))
def test_every_gpu_of_a_machine_has_one_owner(here: int, each: int, nodes: int) -> None:
    names = [str(gpu) for gpu in range(here + each)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        for node in range(nodes):
            places = (here * nodes, nodes, each * nodes)
            seen = [chosen(monkeypatch, ",".join(names), node * here + rank, *places) for rank in range(here)]
            assert [item[0] for item in seen] == names[:here]
            assert [gpu for item in seen for gpu in item[1:]] == names[here:]
            counts = [len(item) for item in seen]
            assert max(counts) - min(counts) <= 1
    environment.gpus.cache_clear()


def test_only_who_knows_the_secret_is_told_the_job() -> None:
    """A stranger who finds the port gets nothing; a process of the run does, whatever strangers do."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            job = {"spec": {}, "state": None}
            processes = launcher._Connections("right", job, process, RunContext())  # type: ignore[arg-type]
            threading.Thread(target=processes.accept, args=(listening,), daemon=True).start()

            def hello(text: str) -> str:
                with socket.create_connection(listening.getsockname(), timeout=10) as line:
                    line.sendall(text.encode())
                    return line.makefile().readline()

            for stranger in ("\n", "[]\n", "x" * 5000, '{"secret": "wrong", "rank": 0}\n', '{"rank": 0}\n'):
                with contextlib.suppress(ConnectionResetError):
                    assert hello(stranger) == ""
            assert json.loads(hello('{"secret": "right", "rank": 1}\n')) == job
            assert processes.first_stream is None  # nobody came as the first process
            processes.close()
    finally:
        process.kill()
        process.wait()
