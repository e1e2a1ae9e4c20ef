"""Runs as tasks of a Ray cluster of two machines, whose processes are killed."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from isolaw import engine
from isolaw.config import SweepSpec
from isolaw.errors import RunError, SpecError
from isolaw.executors.waiting import Event
from isolaw.store import SweepStore

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def on_ray(cluster: Any) -> Callable[..., dict[str, Any]]:
    return lambda **more: {"kind": "ray", "address": cluster.address, **more}


@pytest.fixture(scope="module")
def alone(long, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What must come out."""
    return engine.sweep(long(), tmp_path_factory.mktemp("alone"))


def events_of(spec: SweepSpec, out: Path, stop: threading.Event | None = None) -> Iterator[Event]:
    return engine.execute(engine.resolve_sweep(spec, out), out, stop=stop)


def went_on_from_its_state(events: list[Event], lost: str) -> bool:
    """Whether the run, after it was lost, made nothing of what its state held."""
    (at,) = [i for i, e in enumerate(events) if e.kind == "warning" and e.run_id == lost]
    step = int(events[at].cause.rpartition("repeats the run from step ")[2])
    first = next(e for e in events[at:] if e.kind == "checkpoint" and e.run_id == lost)
    return step > 0 and first.compute > step * 16


@pytest.mark.nightly
def test_a_machine_that_is_removed(tmp_path: Path, long, cluster, on_ray, with_a_state, alone, same) -> None:
    out, events, removed = tmp_path / "out", [], False
    (second,) = cluster.worker_nodes
    try:
        for event in events_of(long(executor=on_ray()), out):
            if not removed and len(with_a_state(out)) == 2:  # a run on each machine
                cluster.remove_node(second, allow_graceful=False)
                removed = True
            events.append(event)
    finally:
        if removed:
            cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    assert removed
    (lost,) = [e.run_id for e in events if e.kind == "warning"]
    assert went_on_from_its_state(events, lost)
    assert engine.status(out)["done"] == 2
    same(SweepStore(out).collect(), alone)


def test_asked_to_stop(tmp_path: Path, long, on_ray) -> None:
    """Two runs are at work and one waits: the former keep their states, the latter never begins."""
    out, stop = tmp_path / "out", threading.Event()
    kinds, at_work = [], set()
    spec = long(sweep={"seeds": 3, "compute": 10**9}, executor=on_ray())
    for event in events_of(spec, out, stop):
        if event.compute > 16:
            at_work.add(event.run_id)
        if len(at_work) == 2:
            stop.set()
        if event.kind != "checkpoint":
            kinds.append(event.kind)
    assert set(kinds) <= {"stopped"}
    state = engine.status(out)
    assert (state["done"], state["failed"], state["started"], state["waiting"]) == (0, 0, 2, 1)
    store = SweepStore(out)
    assert all(store.run(r).settled() == store.run(r).recorded().checkpoints for r in store.run_ids())


def test_what_is_left_when_the_engine_goes(tmp_path: Path, long, on_ray, wait_for, holder) -> None:
    spec = long(sweep={"compute": 10**9}, evaluation={"points": 2}, executor=on_ray())
    with closing(events_of(spec, tmp_path)) as events:
        run_id = next(events).run_id
        worker = holder(tmp_path, run_id)
        assert worker
    wait_for(lambda: not Path(f"/proc/{worker}").exists())


def test_a_machine_that_does_not_see_the_directory(
    tmp_path: Path, tiny, on_ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or that sees another one with its path, as the message in the lock tells."""
    monkeypatch.setattr(SweepStore, "lock_message", "of another engine")
    with pytest.raises(RunError, match=r"does not see .*; expected a disk that all machines share"):
        engine.sweep(
            tiny(sweep={"seeds": 1}, grid={"rollouts_per_problem": [4]}, executor=on_ray()), tmp_path / "out"
        )


def test_no_machine_has_room(tmp_path: Path, tiny, on_ray) -> None:
    stop = threading.Event()
    for event in events_of(tiny(executor=on_ray(cpus=3)), tmp_path, stop):
        assert event.kind in ("warning", "stopped")
        if event.kind == "warning":
            assert "a run needs executor.cpus = 3 and executor.gpus = 0 on executor.nodes = 1" in event.cause
            assert "isolaw waits for more machines" in event.cause
            stop.set()
    assert engine.status(tmp_path)["waiting"] == 4


@pytest.mark.nightly
def test_a_cluster_after_one_of_this_machine(tmp_path: Path, tiny, on_ray) -> None:
    """The token of the local cluster is gone with it: the next cluster has none, and it works."""
    few = {"sweep": {"seeds": 1}, "grid": {"rollouts_per_problem": [4]}}
    for number, where in enumerate(({"kind": "ray"}, on_ray(), {"kind": "ray"})):
        stop = threading.Event()
        timer = threading.Timer(120, stop.set)
        timer.start()
        kinds = [e.kind for e in events_of(tiny(**few, executor=where), tmp_path / str(number), stop)]
        timer.cancel()
        assert kinds[-1] == "done"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1", "127.0.0.1:99999"])
def test_no_cluster_there(tmp_path: Path, tiny, address: str) -> None:
    spec = tiny(executor={"kind": "ray", "address": address})
    with pytest.raises(SpecError, match=r"executor\.address: no Ray cluster answers there .*1\]?:\d+'"):
        engine.sweep(spec, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_isolaw_waits_as_long_as_ray_takes_to_notice_a_dead_machine() -> None:
    """A command that loses its peer fails at once: isolaw must not take this for a fault of the command."""
    from ray._raylet import Config

    from isolaw.executors import ray_tasks

    each = Config.health_check_period_ms() + Config.health_check_timeout_ms()
    assert Config.health_check_failure_threshold() * each / 1000 <= ray_tasks._LOSS_NOTICED_S


ON_RAY = [sys.executable, str(Path(__file__).parents[2] / "examples" / "cluster" / "on_ray.py")]


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        return free.getsockname()[1]


def one_dies(cluster: Any, spec: SweepSpec, out: Path, checkpoint: str) -> list[Event]:
    """Make a sweep, and remove the second machine once a run has the checkpoint; another one comes."""
    events, died = [], False
    for event in events_of(spec, out):
        events.append(event)
        if not died and list(out.glob(f"runs/*/out/0/{checkpoint}")):
            died = True
            cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
            cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    assert died
    return events


@pytest.mark.nightly
def test_a_command_over_two_machines_one_of_which_dies(
    cluster: Any, on_ray, pair: Path, whole, tmp_path: Path
) -> None:
    """A script starts its second process in the bundle that isolaw has reserved there."""
    out = tmp_path / "out"
    spec = SweepSpec.parse(
        {
            "sweep": {"backend": "command", "compute": 160, "seeds": 1},
            "grid": {"problems_per_batch": [2], "rollouts_per_problem": [4]},
            "command": {
                "run": [*ON_RAY, sys.executable, str(pair), str(free_port())],
                "log": "{out}/metrics.jsonl", "checkpoints": "step-{step}",
            },
            "executor": on_ray(nodes=2, cpus=1),
        }
    )  # fmt: skip
    events = one_dies(cluster, spec, out, "step-5")
    assert events[-1].kind == "done", events[-1].cause
    (commands,) = out.glob("runs/*/out/0/command.sh")
    assert commands.read_text().count("on_ray.py") == 2
    whole(out)


@pytest.mark.nightly
@pytest.mark.real
def test_trl_over_two_machines_one_of_which_dies(cluster: Any, on_ray, trl, tmp_path: Path) -> None:
    spec = trl.spec(ON_RAY, "NODE_RANK", free_port(), on_ray())
    events = one_dies(cluster, spec, tmp_path, "checkpoint-*/trainer_state.json")
    ends = [e for e in events if e.kind not in ("checkpoint", "warning")]
    assert [e.kind for e in ends] == ["done"] * 4, [e.cause for e in events if e.cause]
    trl.check(tmp_path)
