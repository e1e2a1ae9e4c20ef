"""Define the tasks of the executor `ray`: a whole run, or one machine's part of a run on several machines."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from isolaw.config import RunSpec
from isolaw.errors import StoreError
from isolaw.executors import launcher
from isolaw.executors.base import Resources, execute
from isolaw.executors.worker import logged
from isolaw.store import SweepStore, transfer


@ray.remote(max_retries=0, num_returns="streaming")
def make(
    engines_directory: str, run_id: str, lock_message: str, shared: bool | None, spec: str,
    pieces: list[Any], group: Any, each: Resources,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Execute a run on this machine, and yield messages for the engine.

    The first message names the node and the directory of the execution. Events follow and, if the engine must
    write them, files.
    """
    nodes = _Nodes(group, each) if group is not None else None
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
                transfer.accept(run, ray.get(piece))
        yield {"here": {"node": ray.get_runtime_context().get_node_id(), "directory": str(directory)}}
        stack.enter_context(logged(run))
        sent = run.last_state
        for event in execute(directory, run_id, nodes):
            if not shared:
                if run.last_state != sent:
                    yield from transfer.pieces(run)
                    sent = run.last_state
                yield from transfer.ending(run, event.kind)
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

    def __init__(self, group: Any, each: Resources) -> None:
        self.group, self.each, self.count = group, each, each.nodes
        self.address = ray.util.get_node_ip_address()
        self.tasks: list[Any] = []

    def call(self, meeting: dict[str, Any]) -> None:
        for node in range(1, self.count):
            place = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=node)
            options = {"num_cpus": self.each.cpus, "num_gpus": self.each.gpus, "scheduling_strategy": place}
            self.tasks.append(_join.options(**options).remote(meeting, node))

    def dismiss(self) -> None:
        for task in self.tasks:
            ray.cancel(task)  # without force, so that the task ends its processes
        self.tasks = []
