"""Worker processes: one that dies fails its run alone; nothing outlives the engine."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw import engine, guard
from isolaw.config import SweepSpec
from isolaw.executors import processes
from isolaw.executors.base import Resources
from isolaw.executors.waiting import Event
from isolaw.store import RunStore, SweepStore


@pytest.fixture
def spec(tiny) -> SweepSpec:
    """Runs that are at work for a while after their first checkpoint."""
    return tiny(
        sweep={"compute": 2_000_000, "seeds": 3},
        grid={"rollouts_per_problem": [2]},
        executor={"kind": "processes", "jobs": 2},
    )


def workers(directory: Path) -> list[int]:
    """Ids of the worker processes of a sweep, by their command lines."""
    wanted = {"isolaw.executors.worker", str(directory)}
    found = {each.pid: each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])}
    return [pid for pid, words in found.items() if wanted <= set(words) and guard.__file__ not in words]


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return condition()


class FakeWorker:
    """A worker without a process."""

    def __init__(self, _directory: Path, _events: object, gpus: list[str]) -> None:
        self.run_id, self.gpus, self.ended = None, gpus, False

    def assign(self, run_id: str) -> None:
        assert not self.ended
        self.run_id = run_id

    def stop(self) -> None:
        self.ended = True


@given(st.lists(st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 7)), min_size=1, max_size=40))
def test_each_run_has_gpus_that_no_other_has(asked: list[tuple[int, int]]) -> None:
    """Runs begin as their GPUs allow, and others end in between."""
    each = {str(i): Resources(1, 1, gpus) for i, (gpus, _) in enumerate(asked)}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(processes, "_Worker", FakeWorker)
        patch.setattr(processes, "visible_gpus", lambda: [f"GPU-{i}" for i in range(8)])
        patch.setattr(RunStore, "proceed", lambda _: None)
        slots = processes._Processes(Path(folder), each)
        for run_id, (gpus, ending) in zip(each, asked, strict=True):
            while sum(len(w.gpus) for w in slots.workers if w.run_id) + gpus > 8:
                busy = sorted((w for w in slots.workers if w.run_id), key=lambda w: int(w.run_id))
                ended = busy[ending % len(busy)]
                slots._events_of(ended, Event(ended.run_id, "done"))
            assert slots.start(run_id) is None
            (own,) = (w for w in slots.workers if w.run_id == run_id)
            assert len(own.gpus) == gpus
            held = [gpu for w in slots.workers for gpu in w.gpus]
            assert sorted(held + slots.free_gpus) == [f"GPU-{i}" for i in range(8)]


def test_a_worker_sees_its_gpus_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for gpus, seen in ((["2", "3"], [b"CUDA_VISIBLE_DEVICES=2,3"]), ([], [])):
        worker = processes._Worker(tmp_path, queue.Queue(), gpus)
        variables = Path(f"/proc/{worker.process.pid}/environ").read_bytes().split(b"\0")
        worker.stop()
        assert [variable for variable in variables if variable.startswith(b"CUDA_VISIBLE")] == seen


@pytest.mark.slow
def test_a_killed_worker_fails_its_run_alone(tmp_path: Path, spec: SweepSpec, same) -> None:
    out = tmp_path / "killed"
    events = []
    for event in engine.execute(engine.resolve_sweep(spec, out), out):
        if not events:
            assert event.kind == "checkpoint"
            os.kill(workers(out)[0], signal.SIGKILL)
        events.append(event)
    failed = [e for e in events if e.kind == "failed"]
    assert len(failed) == 1
    assert "died (exit status -9)" in failed[0].cause
    assert sum(e.kind == "done" for e in events) == 2
    failure = SweepStore(out).run(failed[0].run_id).failure
    assert failure is not None
    assert failure["cause"] == failed[0].cause

    retried = []
    runs = engine.sweep(spec, out, on_event=retried.append)
    assert {e.run_id for e in retried} == {failed[0].run_id}
    assert engine.status(out)["done"] == 3
    inline = spec.model_copy(update={"executor": spec.executor.model_copy(update={"kind": "inline"})})
    same(runs, engine.sweep(inline, tmp_path / "inline"))


@pytest.mark.slow
def test_no_worker_is_left_when_the_engine_stops(tmp_path: Path, spec: SweepSpec) -> None:
    events = engine.execute(engine.resolve_sweep(spec, tmp_path), tmp_path)
    next(events)
    assert len(workers(tmp_path)) == 2
    events.close()
    assert workers(tmp_path) == []


@pytest.mark.slow
def test_workers_end_with_a_killed_engine(tmp_path: Path, tiny) -> None:
    """At once, not when they next have something to say: here the next checkpoint is a minute away."""
    spec = tiny(
        sweep={"compute": 10**9},
        grid={"rollouts_per_problem": [2]},
        evaluation={"points": 2},
        executor={"kind": "processes", "jobs": 2},
    )
    script = (
        "import sys\nfrom isolaw import SweepSpec, engine\n"
        "spec = SweepSpec.model_validate_json(sys.argv[1])\n"
        "resolved = engine.resolve_sweep(spec, sys.argv[2])\n"
        "for event in engine.execute(resolved, sys.argv[2]): print(event, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, spec.model_dump_json(), str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        told: set[bytes] = set()
        while len(told) < 2:  # both runs are at work
            told.add(process.stdout.readline().split(b",")[0])
        assert len(workers(tmp_path)) == 2
        process.kill()
    try:
        assert wait_for(lambda: workers(tmp_path) == [])
    finally:
        for pid in workers(tmp_path):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_no_more_workers_than_runs(tmp_path: Path, tiny) -> None:
    spec = tiny(
        sweep={"seeds": 1},
        grid={"rollouts_per_problem": [4]},
        executor={"kind": "processes", "jobs": 8},
    )
    events = engine.execute(engine.resolve_sweep(spec, tmp_path), tmp_path)
    first = next(events)
    assert len(workers(tmp_path)) == 1
    assert [first, *events][-1].kind == "done"
    assert workers(tmp_path) == []


@pytest.mark.slow
def test_a_stopped_worker_is_named_and_ends_at_ctrl_c(tmp_path: Path, long, monkeypatch) -> None:
    monkeypatch.setattr(processes, "_SUSPENSION_CHECK_S", 0.2)
    spec = long(sweep={"compute": 10**9, "seeds": 1}, executor={"kind": "processes", "jobs": 1})
    out, stop, said = tmp_path / "out", threading.Event(), ""
    for event in engine.execute(engine.resolve_sweep(spec, out), out, stop=stop):
        if event.kind == "checkpoint" and not said:
            (pid,) = workers(out)
            os.kill(pid, signal.SIGSTOP)
            said = "stopped"
        elif event.kind == "warning":
            assert event.cause == f"process {pid} of the run is stopped; continue it with kill -CONT {pid}"
            stop.set()
            asked = time.monotonic()
    assert time.monotonic() - asked < 25
    assert event.kind == "stopped"
    assert workers(out) == []
