"""Define the tasks of the executor `ray`: a whole run, or one machine's part of a run on several machines."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from isolaw.errors import StoreError
from isolaw.executors import launcher
from isolaw.executors.base import Resources, execute
from isolaw.executors.worker import logged
from isolaw.store import SweepStore

# Ray gives a machine up after five checks, each 3 s after the previous one and limited to 10 s. This takes
# 16 s if its processes were killed, and 65 s if it is without power.
_LOSS_NOTICED_S = 70.0


@ray.remote(max_retries=0, num_returns="streaming")
def execute_run(
    directory: str, run_id: str, lock_message: str, group: Any, needs: Resources
) -> Iterator[dict[str, Any]]:
    """Execute a run on this machine; yield an empty message at its start, and then its events."""
    store = SweepStore(directory)
    message = ""
    with contextlib.suppress(OSError, StoreError):
        message = store.lock_message
    if message != lock_message:  # not the engine's directory, but perhaps another one with the same path
        address = ray.util.get_node_ip_address()
        raise StoreError(f"{address} does not see {directory}; expected a disk that all machines share")
    nodes = _Nodes(group, needs, run_id) if group is not None else None
    yield {}
    with logged(store.run(run_id)):
        for event in execute(Path(directory), run_id, nodes):
            yield asdict(event)


_join = ray.remote(max_retries=0)(launcher.join)


class _Nodes:
    """The `Nodes` of this executor, which are the bundles of the run's placement group."""

    def __init__(self, group: Any, needs: Resources, run_id: str) -> None:
        self.group, self.needs, self.count = group, needs, needs.nodes
        self.address = ray.util.get_node_ip_address()
        id_of_bundle = placement_group_table(group)["bundles_to_node_id"]
        address_of_id = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
        self.node_ids = [id_of_bundle[bundle] for bundle in range(needs.nodes)]
        self.names: Sequence[str] = [address_of_id[node_id] for node_id in self.node_ids]
        context = ray.get_runtime_context()
        self.environment: Mapping[str, str] = {
            "RAY_ADDRESS": context.gcs_address,
            "RAY_NAMESPACE": context.namespace,
            "ISOLAW_PLACEMENT_GROUP": f"isolaw-{run_id}",
        }
        self.tasks: list[Any] = []

    def call(self, meeting: dict[str, Any]) -> None:
        for node in range(1, self.count):
            slot = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=node)
            options = {"num_cpus": self.needs.cpus, "num_gpus": self.needs.gpus, "scheduling_strategy": slot}
            self.tasks.append(_join.options(**options).remote(meeting, node))

    def lost(self) -> str:
        deadline = time.monotonic() + _LOSS_NOTICED_S
        while time.monotonic() < deadline:
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            nodes = zip(self.names, self.node_ids, strict=True)
            if lost_nodes := [name for name, node_id in nodes if node_id not in alive]:
                return f"Ray lost {', '.join(lost_nodes)}"
            time.sleep(0.5)
        return ""

    def dismiss(self) -> None:
        for task in self.tasks:
            ray.cancel(task)  # without force, so that the task ends its processes
        self.tasks = []
