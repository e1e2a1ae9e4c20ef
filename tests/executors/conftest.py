"""Sweeps that last long enough to be hurt."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from isolaw import engine
from isolaw.config import SweepSpec
from isolaw.executors.waiting import Event
from isolaw.store import SweepStore


@pytest.fixture(scope="session")
def long(tiny) -> Callable[..., SweepSpec]:
    """A sweep of two runs of some seconds each; each argument changes keys of a section."""

    def make(**sections: dict[str, Any]) -> SweepSpec:
        data: dict[str, dict[str, Any]] = {
            "sweep": {"compute": 30_000_000},
            "grid": {"rollouts_per_problem": [2]},
            "evaluation": {"points": 60},
        }
        return tiny(**{k: {**data.get(k, {}), **sections.get(k, {})} for k in {**data, **sections}})

    return make


@pytest.fixture(scope="session")
def make() -> Callable[..., list[Event]]:
    """Make a sweep, and meanwhile hurt it, if that is given; its events."""

    def made(spec: SweepSpec, out: Path, hurt: Callable[[Event], None] = lambda _: None) -> list[Event]:
        events = []
        for event in engine.execute(engine.resolve_sweep(spec, out), out):
            events.append(event)
            hurt(event)
        return events

    return made


@pytest.fixture(scope="session")
def holder() -> Callable[[Path, str], int]:
    """The process that makes a run, by the run's lock; 0 if there is none."""

    def find(out: Path, run_id: str) -> int:
        path = SweepStore(out).run(run_id).folder / "lock"
        words = path.read_text().split() if path.is_file() else []
        return int(words[1]) if words else 0

    return find


@pytest.fixture(scope="session")
def with_a_state() -> Callable[[Path], list[str]]:
    """Runs of a sweep that could be continued from beyond their start."""

    def find(out: Path) -> list[str]:
        store = SweepStore(out)
        return [run_id for run_id in store.run_ids() if store.run(run_id).last_state]

    return find


@pytest.fixture(scope="session")
def wait_for() -> Callable[..., None]:
    def wait(condition: Callable[[], object], seconds: float = 300.0) -> None:
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until, "it did not come to pass"
            time.sleep(0.02)

    return wait


# A trainer of two processes on two machines, which agree on each step.
TWO = """
import os, socket, sys, time
from pathlib import Path
rank = int(os.environ.get("NODE_RANK") or os.environ["SLURM_PROCID"])
out = Path(os.environ["ISOLAW_OUT"])
resume = os.environ["ISOLAW_RESUME"]
step, port = int(Path(resume).read_text()) if resume else 0, int(sys.argv[1])
if rank == 0:
    server = socket.create_server((os.environ["ISOLAW_HEAD_ADDRESS"], port), reuse_port=True)
    peer, _ = server.accept()
    server.close()  # an attempt that is not dead yet must not answer the next one's peer
else:
    while True:
        try:
            peer = socket.create_connection((os.environ["ISOLAW_HEAD_ADDRESS"], port))
            break
        except OSError:
            time.sleep(0.1)
while step < int(os.environ["ISOLAW_STEPS"]):
    step += 1
    peer.sendall(f"{step:4}".encode())
    assert int(peer.recv(4)) == step  # both trained it
    time.sleep(0.2)
    if rank == 0:
        with (out / "metrics.jsonl").open("a") as log:
            log.write('{"step": %d, "reward": %f}\\n' % (step, step / 100))
        if step % 5 == 0:
            (out / f"step-{step}").write_text(str(step))
"""


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """The file of such a trainer; it takes a port, makes 20 steps, and a checkpoint every five."""
    (tmp_path / "two.py").write_text(TWO)
    return tmp_path / "two.py"


@pytest.fixture
def whole() -> Callable[[Path], None]:
    """Assert that a sweep's directory has all that it trains, once."""

    def check(out: Path) -> None:
        table = SweepStore(out).collect().points
        assert table[["step", "compute"]].values.tolist() == [[step, 8 * step] for step in range(1, 21)]
        assert table["value"].tolist() == pytest.approx([step / 100 for step in range(1, 21)])

    return check


ROOT = Path(__file__).parents[2]
TRL = Path(sys.prefix) / "trainers/trl"


@dataclass(frozen=True)
class TRLOverTwo:
    """Four runs of TRL on the tiny model, with a process on each of two machines."""

    base: Path
    compute: int = 96

    def spec(self, launcher: list[str], rank: str, port: int, executor: dict[str, Any]) -> SweepSpec:
        """Return the sweep. ``launcher`` starts a shell on each machine, whose number is in ``rank``."""
        group = (
            f"RANK=${rank} WORLD_SIZE={{nodes}} LOCAL_RANK=0 MASTER_ADDR={{head_address}} MASTER_PORT={port}"
        )
        words = [*launcher, "bash", "-c", f'{group} PYTHONPATH={TRL} exec "$@"', "trl", sys.executable,
                 str(ROOT / "examples/trl_grpo.py"), "--model", str(self.base / "model"), "--problems",
                 str(self.base / "easy"), "--use_cpu", "true", "--bf16", "false", "--report_to", "none",
                 "--ddp_backend", "gloo"]  # fmt: skip
        return SweepSpec.parse(
            {
                "sweep": {"backend": "command", "compute": self.compute, "seeds": 2},
                "grid": {"problems_per_batch": [4], "rollouts_per_problem": [2, 4]},
                "recipe": {"lr": 1e-2, "max_response_tokens": 6},
                "problems": {"set": "easy"},
                "evaluation": {"points": 4},
                "command": {"run": words, "framework": "trl"},
                "executor": {**executor, "nodes": 2, "cpus": 1},
            }
        )

    def check(self, out: Path) -> None:
        """Assert that each run's C, steps and rewards are those of TRL's own state, and that one resumed."""
        store, resumed = SweepStore(out), 0
        table = store.collect().points
        table = table[(table["metric"] == "reward") & (table["eval_set"] == "train")]
        assert len(store.run_ids()) == table["run_id"].nunique() == 4
        for run_id, points in table.groupby("run_id"):
            folder = out / "runs" / run_id
            n = json.loads((folder / "spec.json").read_text())["rollouts_per_problem"]
            newest = max(
                folder.glob("out/*/checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2])
            )
            state = json.loads((newest / "trainer_state.json").read_text())
            rewards = {line["step"]: line["reward"] for line in state["log_history"] if "reward" in line}
            assert dict(zip(points["step"], points["value"], strict=True)) == rewards
            assert points["compute"].tolist() == [4 * n * step for step in range(1, state["max_steps"] + 1)]
            assert state["global_step"] == state["max_steps"] == self.compute // (4 * n)
            resumed += "--resume_from_checkpoint" in "".join(
                p.read_text() for p in folder.glob("out/*/command.sh")
            )
        assert resumed == 1


@pytest.fixture(scope="session")
def trl(tmp_path_factory: pytest.TempPathFactory) -> TRLOverTwo:
    if not TRL.is_dir():
        pytest.skip("needs TRL (make trainers)")
    base = tmp_path_factory.mktemp("trl") / "base"
    subprocess.run([sys.executable, str(ROOT / "examples/tiny_model.py"), str(base)], check=True)
    return TRLOverTwo(base)
