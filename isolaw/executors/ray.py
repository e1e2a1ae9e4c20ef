"""Implement the executor `ray`: each run is a task with its own cores and GPUs.

The Ray cluster can be an existing or a local one. A run on several machines has a placement group with a
bundle on each machine. If a worker or its machine dies, isolaw repeats the run from its last state.

All machines need access to the sweep's directory, in which the workers write their runs. A worker recognises
the directory by the engine's message in the file ``lock``.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # not in its stub
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from isolaw.config import ExecutorSection
from isolaw.errors import RunError
from isolaw.executors import ray_address, ray_tasks
from isolaw.executors.base import Resources, drive
from isolaw.executors.waiting import Event, Waiting
from isolaw.store import SweepStore

# Seconds between checks whether the sweep has to end, and between checks whether the cluster is alive.
_WAIT_S = 0.2
_ALIVE_CHECK_S = 5.0
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_LOCAL_OBJECT_STORE_BYTES = 200 * 2**20


def run(
    directory: Path, waiting: Waiting, section: ExecutorSection, needs_by_run: Mapping[str, Resources]
) -> Iterator[Event]:
    """Execute the runs as tasks of a Ray cluster, and yield their events."""
    address = ray_address(section)
    starts_cluster = address == "local" and not ray.is_initialized()
    with _cluster(address):
        for resources in sorted(set(needs_by_run.values()), key=astuple):
            yield from _room_warnings(resources, starts_cluster)
        yield from drive(_Ray(directory, needs_by_run), waiting)


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[None]:
    """Connect to the cluster inside the block; a local cluster is started, and stopped afterwards."""
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": _LOCAL_OBJECT_STORE_BYTES}
    if "PYTHONPATH" in os.environ:  # workers import the user's reward from there
        options["runtime_env"] = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}
    former_handler = signal.getsignal(signal.SIGTERM)
    with _private_sockets(options) if address == "local" else contextlib.nullcontext():
        try:
            ray.init(address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise RunError(f"executor.address: no Ray cluster at {address!r} ({error})") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, former_handler)  # Ray installs its own handler
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _private_sockets(options: dict[str, Any]) -> Iterator[None]:
    """Keep the sockets of a cluster that starts inside the block private.

    Ray's servers listen on all interfaces unless the machine's address is loopback. Ray uses loopback only on
    systems on which it considers clusters impossible, and this function makes it do so on any system. Ray
    also makes the folders of its Unix sockets writable for all users, so isolaw creates them in a private
    folder. A token prevents other users of this machine from submitting tasks to the cluster.
    """
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    variables = {_CLUSTERS: "0", **{name: os.environ.get(name, value) for name, value in secret.items()}}
    former_values = {name: os.environ.get(name) for name in variables}
    former_flag = ray_constants.ENABLE_RAY_CLUSTER  # read from the environment when Ray was imported
    os.environ.update(variables)  # for the processes that Ray starts
    ray_constants.ENABLE_RAY_CLUSTER = False
    _read_secret()
    options["_node_ip_address"] = "127.0.0.1"
    parent = os.environ.get("RAY_TMPDIR", "/tmp")  # as Ray's default; socket paths must be short
    try:
        with tempfile.TemporaryDirectory(
            prefix="isolaw-", dir=parent, ignore_cleanup_errors=True
        ) as folder:  # Ray's processes can end a little later
            options["_temp_dir"] = str(Path(folder) / "ray")
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = former_flag
        for name, value in former_values.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        _read_secret()


def _read_secret() -> None:
    """Make Ray read the variables of its token again; Ray reads them only when it is imported.

    With the token of a local cluster, this process would refuse every message of a cluster without a token,
    and wait forever.
    """
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _room_warnings(needs: Resources, starts_cluster: bool) -> Iterator[Event]:
    """Yield a warning if the cluster's machines are too small for a run.

    For a local cluster, which no machine can join, raise `RunError` instead.
    """
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fitting = [m for m in machines if m.get("CPU", 0) >= needs.cpus and m.get("GPU", 0) >= needs.gpus]
    if len(fitting) < needs.nodes:
        cause = (
            f"a run needs executor.cpus = {needs.cpus} and executor.gpus = {needs.gpus} on executor.nodes = "
            f"{needs.nodes}; machines with these resources: {len(fitting)} of {len(machines)}"
        )
        if starts_cluster:
            raise RunError(f"{cause}; set executor.address to a larger cluster")
        yield Event("", "warning", cause=f"{cause}; isolaw waits for more machines to join")


@dataclass
class _Task:
    """A run: its stream of messages, and whether its machine has begun it."""

    run_id: str
    stream: Any
    group: Any = None
    has_begun: bool = False


class _Ray:
    """The `Slots` of this executor, with one Ray task for each run."""

    def __init__(self, directory: Path, needs_by_run: Mapping[str, Resources]) -> None:
        self.directory, self.needs_by_run = directory.resolve(), needs_by_run
        self.store = SweepStore(directory)
        self.tasks: dict[Any, _Task] = {}
        self.address = ray.get_runtime_context().gcs_address
        self.checked_at = time.monotonic()

    def start(self, run_id: str) -> Event | None:
        run = self.store.run(run_id)
        run.proceed()
        needs, group, options = self.needs_by_run[run_id], None, {}
        if needs.nodes > 1:
            bundle = {"CPU": needs.cpus, "GPU": needs.gpus}
            group = placement_group([bundle] * needs.nodes, strategy="STRICT_SPREAD", name=f"isolaw-{run_id}")
            first_bundle = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
            options["scheduling_strategy"] = first_bundle
        stream = ray_tasks.execute_run.options(num_cpus=needs.cpus, num_gpus=needs.gpus, **options).remote(
            str(self.directory), run_id, self.store.lock_message, group, needs
        )
        self.tasks[stream] = _Task(run_id, stream, group)
        return None

    def events(self) -> list[Event]:
        ready, _ = ray.wait(list(self.tasks), num_returns=1, timeout=_WAIT_S)
        if not ready:
            return [*self._silence_warning()]
        event = self._next_event(self.tasks[ready[0]])
        if event is not None and event.kind not in ("checkpoint", "warning"):
            self._forget(ready[0])
        return [event] if event else []

    def _silence_warning(self) -> Iterator[Event]:
        """Yield one warning if the cluster does not answer, since Ray ends this process after a minute."""
        if time.monotonic() - self.checked_at < _ALIVE_CHECK_S:
            return
        self.checked_at = time.monotonic()
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ALIVE_CHECK_S).close()
        except OSError as error:
            self.checked_at = math.inf
            what = f"the Ray cluster at {self.address} no longer answers ({error})"
            hint = "unless it returns within a minute, Ray ends this command; repeat the command to continue"
            yield Event("", "warning", cause=f"{what}; {hint}")

    def _next_event(self, task: _Task) -> Event | None:
        """Return the event in a run's next message, or None if the message says that the run begins."""
        run = self.store.run(task.run_id)
        try:
            event = ray.get(next(task.stream))
            task.has_begun = True
            return Event(**event) if event else None
        except StopIteration:
            return Event(task.run_id, "lost", cause="the run's task ended early")
        except (RayTaskError, OSError) as error:  # e.g. isolaw is not installed there, or this disk is full
            cause = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
            ray.cancel(task.stream, force=True)
            with contextlib.suppress(OSError):
                run.fail(cause, str(error))
            return Event(task.run_id, "failed", cause=cause)
        except RayError as error:
            reason = str(error).strip().partition("\n")[0].partition(". ")[0]
            return Event(task.run_id, "lost", cause=f"Ray: {reason or type(error).__name__}")

    def _forget(self, stream: Any) -> None:
        task = self.tasks.pop(stream)
        if task.group is not None:
            remove_placement_group(task.group)

    def ask_to_stop(self, run_id: str) -> None:
        task = next((task for task in self.tasks.values() if task.run_id == run_id), None)
        if task is None:
            return
        self.store.run(run_id).ask_to_stop()
        if not task.has_begun:
            ray.cancel(task.stream, force=True)

    def close(self) -> None:
        for stream, task in list(self.tasks.items()):
            with contextlib.suppress(RayError):
                ray.cancel(task.stream, force=True)
            self._forget(stream)
