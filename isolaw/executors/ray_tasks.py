"""Define the tasks of the executor `ray`: a whole run, or one machine's part of a run on several machines.

A machine that cannot access the sweep's directory gets its run in pieces, and sends pieces back.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from isolaw.config import RunSpec
from isolaw.errors import StoreError
from isolaw.executors import launcher
from isolaw.executors.base import Resources, execute
from isolaw.executors.worker import logged
from isolaw.store import RunStore, SweepStore
from isolaw.store.run import DONE, FAILED, LOG, OWN, POINTS, PROBLEMS

_PIECE_BYTES = 2**24
# Ray gives a machine up after five checks, each 3 s after the previous one and limited to 10 s. This takes
# 16 s if its processes were killed, and 65 s if it is without power.
_NOTICED_S = 70.0


@ray.remote(max_retries=0, num_returns="streaming")
def make(
    engines_directory: str, run_id: str, lock_message: str, shared: bool | None, spec: str,
    pieces: list[Any], group: Any, each: Resources,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Execute a run on this machine, and yield messages for the engine.

    The first message names the node and the directory of the execution. Events follow and, if the engine must
    write them, files.
    """
    nodes = _Nodes(group, each, run_id) if group is not None else None
    directory = Path(engines_directory)
    if shared is None:
        shared = _sees(directory, lock_message)
        if not shared:
            yield {"unseen": True}
            return
    with contextlib.ExitStack() as stack:
        if not shared:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="isolaw-")))
        run = SweepStore(directory).run(run_id)
        if not shared:
            run.create(RunSpec.model_validate_json(spec))
            for piece in pieces:
                accept(run, ray.get(piece))
        yield {"here": {"node": ray.get_runtime_context().get_node_id(), "directory": str(directory)}}
        stack.enter_context(logged(run))
        sent = run.last_state
        for event in execute(directory, run_id, nodes):
            if not shared:
                if run.last_state != sent:
                    yield from pieces_of(run)
                    sent = run.last_state
                yield from _ending(run, event.kind)
            yield {"event": asdict(event)}


def _sees(directory: Path, lock_message: str) -> bool:
    """Return whether a directory on this machine is the engine's, rather than another with the same path."""
    with contextlib.suppress(OSError, StoreError):
        return SweepStore(directory).lock_message == lock_message
    return False


@ray.remote(max_retries=0)
def ask_to_stop(directory: str, run_id: str) -> None:
    SweepStore(directory).run(run_id).ask_to_stop()


_join = ray.remote(max_retries=0)(launcher.join)


class _Nodes:
    """The `Nodes` of this executor, which are the bundles of the run's placement group."""

    def __init__(self, group: Any, each: Resources, run_id: str) -> None:
        self.group, self.each, self.count = group, each, each.nodes
        self.address = ray.util.get_node_ip_address()
        places = placement_group_table(group)["bundles_to_node_id"]
        addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        self.ids = [places[number] for number in range(each.nodes)]
        self.names: Sequence[str] = [addresses[node] for node in self.ids]
        here = ray.get_runtime_context()
        self.environment: Mapping[str, str] = {
            "RAY_ADDRESS": here.gcs_address,
            "RAY_NAMESPACE": here.namespace,
            "ISOLAW_PLACEMENT_GROUP": f"isolaw-{run_id}",
        }
        self.tasks: list[Any] = []

    def call(self, meeting: dict[str, Any]) -> None:
        for node in range(1, self.count):
            place = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=node)
            options = {"num_cpus": self.each.cpus, "num_gpus": self.each.gpus, "scheduling_strategy": place}
            self.tasks.append(_join.options(**options).remote(meeting, node))

    def lost(self) -> str:
        until = time.monotonic() + _NOTICED_S
        while time.monotonic() < until:
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            if dead := [name for name, node in zip(self.names, self.ids, strict=True) if node not in alive]:
                return f"Ray lost {', '.join(dead)}"
            time.sleep(0.5)
        return ""

    def dismiss(self) -> None:
        for task in self.tasks:
            ray.cancel(task)  # without force, so that the task ends its processes
        self.tasks = []


def pieces_of(run: RunStore) -> Iterator[dict[str, Any]]:
    """Yield a run's files up to its last state, in pieces from which `accept` reassembles them."""
    last = run.last_state
    if last is not None:
        for path, folder, name in run.states.open(last).files():
            with os.fdopen(folder.open(name), "rb") as file:
                while data := file.read(_PIECE_BYTES):
                    yield {"state": last, "file": path, "data": data}
    for name in (PROBLEMS, POINTS):
        if (content := run.open().read(name)) is not None:
            yield {"write": name, "data": content}
    if last is not None:
        yield {"publish": last}


def _ending(run: RunStore, kind: str) -> Iterator[dict[str, Any]]:
    """Yield, in pieces, the files that a run has written before an event of this ``kind``."""
    name = {"done": DONE, "failed": FAILED}.get(kind)
    if name and (content := run.open().read(name)) is not None:
        yield {"write": name, "data": content}
    if kind != "checkpoint" and (log := run.open().read(LOG)) is not None:
        yield {"log": log}


def accept(run: RunStore, piece: dict[str, Any]) -> None:
    """Store a piece of a run from another machine: part of a file, a whole file, or the end of a state."""
    match piece:
        case {"publish": step}:
            run.states.publish(step, run.sync_alone)
        case {"write": name, "data": data}:
            assert name in OWN
            run.open().write(name, data)
        case {"log": data}:
            _append(run.open_log(), data)
        case {"state": step, "file": path, "data": data}:
            *folders, name = path.split("/")
            folder = run.states.unfinished(step)
            for one in folders:
                folder = folder.folder(one, make=True)
            _append(folder.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT), data)


def _append(file: int, data: bytes) -> None:
    with os.fdopen(file, "wb") as opened:
        opened.write(data)
