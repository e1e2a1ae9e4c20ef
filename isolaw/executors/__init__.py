"""Executors: where runs execute. One module each; `base` is what they share, `waiting` their queue."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isolaw import backends
from isolaw.cards import Cards
from isolaw.config import ExecutorSection, RunSpec
from isolaw.errors import Issue, SpecError
from isolaw.executors.base import Event
from isolaw.executors.waiting import Limits, Waiter, Waiting
from isolaw.store import SweepStore

# Which package each executor needs, beside isolaw; the extra has the executor's name.
_PACKAGES = {"ray": "ray", "slurm": "submitit"}
# A step costs about as much as so many rollouts more (the runs of docs/real-sweep.md: 65).
_STEP_IN_ROLLOUTS = 64
# A Ray cluster that is there answers within so many seconds.
_ANSWERS_S = 10.0


@dataclass(frozen=True)
class Share:
    """What one run takes: so many machines, and on each of them cores and GPUs."""

    nodes: int
    cpus: int
    gpus: int


def share(chosen: ExecutorSection, run: RunSpec) -> Share:
    """Return what one run takes: as chosen, or else what its processes need."""
    with machines(chosen, run.backend):
        needs = backends.get(run.backend).needs(run)
    cpus, gpus = (math.ceil(total / chosen.nodes) for total in (needs.cpus, needs.gpus))
    return Share(chosen.nodes, chosen.cpus or cpus, gpus if chosen.gpus is None else chosen.gpus)


def machines(chosen: ExecutorSection, backend: str) -> AbstractContextManager[None]:
    """While entered, runs are planned for the machines that they will be made on."""
    if chosen.kind not in _PACKAGES or (chosen.gpus is None and chosen.cpus is None):
        return nullcontext()
    each = Share(chosen.nodes, chosen.cpus or chosen.gpus or 1, chosen.gpus or 0)
    return backends.get(backend).on_machines(each.nodes * each.cpus, each.nodes * each.gpus)


def planned_for(cards: Cards | None, chosen: ExecutorSection, backend: str) -> AbstractContextManager[None]:
    """While entered, runs are planned for machines with these GPUs; None: with those that are known anyway.

    Raises
    ------
    SpecError
        a run takes other GPUs than there are.
    """
    if cards is None:
        return nullcontext()
    gpus = chosen.gpus
    if chosen.kind in _PACKAGES and (gpus is None or gpus > cards.count):
        accepted = f"GPUs of each machine for one run, at most the {cards.count} of --machine"
        raise SpecError([Issue("executor.gpus", found=gpus, accepted=accepted)])
    each = Share(chosen.nodes, chosen.cpus or cards.count, gpus or cards.count)
    return backends.get(backend).on_machines(each.nodes * each.cpus, each.nodes * each.gpus, cards.gpu_bytes)


def check(chosen: ExecutorSection, runs: Sequence[RunSpec]) -> list[Issue]:
    """Return everything that keeps these runs from being executed so, before anything is spent."""
    out = []
    package = _PACKAGES.get(chosen.kind)
    if package and importlib.util.find_spec(package) is None:
        hint = f"{package} is not installed; pip install 'isolaw[{chosen.kind}]'"
        out.append(Issue("executor.kind", hint, found=chosen.kind))
    if chosen.nodes > 1 and (package is None or chosen.cluster == "local"):
        accepted = "1; more with executor.kind = 'ray' or 'slurm'"
        out.append(Issue("executor.nodes", found=chosen.nodes, accepted=accepted))
    for run in runs:
        each, processes = share(chosen, run), backends.get(run.backend).needs(run).cpus
        if processes % chosen.nodes:
            accepted = f"a divisor of the run's processes ({processes})"
            out.append(Issue("executor.nodes", found=chosen.nodes, accepted=accepted))
        if chosen.max_gpus is not None and each.nodes * each.gpus > chosen.max_gpus:
            accepted = f"at least those of one run ({each.nodes * each.gpus})"
            out.append(Issue("executor.max_gpus", found=chosen.max_gpus, accepted=accepted))
        if chosen.max_rollouts is not None and run.batch_rollouts > chosen.max_rollouts:
            accepted = f"at least the largest batch ({max(r.batch_rollouts for r in runs)})"
            out.append(Issue("executor.max_rollouts", found=chosen.max_rollouts, accepted=accepted))
    return out


# Which keys are of one executor alone.
_OWN = {
    "ray": ("address", "shared"),
    "slurm": ("cluster", "time", "partition", "sbatch", "setup"),
}


def idle(chosen: ExecutorSection) -> list[str]:
    """Return keys that are set, and of which the chosen executor makes nothing."""
    plain = ExecutorSection()
    others = [key for kind, keys in _OWN.items() if kind != chosen.kind for key in keys]
    return [f"executor.{key}" for key in others if getattr(chosen, key) != getattr(plain, key)]


def reach(chosen: ExecutorSection) -> None:
    """Make sure that the cluster is there, before anything is written.

    Raises
    ------
    SpecError
        it cannot be reached from this machine.
    """
    if chosen.kind == "slurm" and chosen.cluster != "local":
        missing = [name for name in ("sbatch", "srun", "squeue") if shutil.which(name) is None]
        if missing:
            hint = (
                f"this machine has no {' and no '.join(missing)}; run isolaw on a login node, or set "
                "executor.cluster = 'local' to try the jobs out here"
            )
            raise SpecError([Issue("executor.kind", hint, found=chosen.kind)])
    address = ray_address(chosen)
    if chosen.kind == "ray" and (found := re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address)):
        try:  # Ray itself would try for minutes
            socket.create_connection((found[1], int(found[2])), timeout=_ANSWERS_S).close()
        except (OSError, OverflowError) as error:
            hint = f"no Ray cluster answers there ({error})"
            raise SpecError([Issue("executor.address", hint, found=address)]) from None


def ray_address(chosen: ExecutorSection) -> str:
    """Return the address of the cluster that the executor `ray` uses, as chosen or else as Ray's users do."""
    return chosen.address or os.environ.get("RAY_ADDRESS") or "local"


def order(directory: Path, runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Return runs in the order in which they begin: the longest first, and last those that failed before."""
    store = SweepStore(directory)

    def length(run: RunSpec) -> tuple[bool, float]:
        own = store.run(run.run_id)
        lines = own.lines()
        rollouts = run.steps * run.batch_rollouts - (lines[-1]["compute"] if lines else 0)
        return own.failure is not None, -rollouts * (1 + _STEP_IN_ROLLOUTS / run.batch_rollouts)

    return sorted(runs, key=length)


def limits(chosen: ExecutorSection, run: RunSpec) -> Limits:
    """Return how much may be at work at a time, and when to give up."""
    jobs = chosen.jobs
    if chosen.kind == "processes" and jobs is None:
        jobs = backends.get(run.backend).jobs(run)
    return Limits(
        1 if chosen.kind == "inline" else jobs,
        chosen.max_rollouts,
        chosen.max_gpus,
        chosen.same_failures,
        chosen.retries if chosen.kind in _PACKAGES else 0,
    )


def describe(directory: Path, chosen: ExecutorSection, runs: Sequence[RunSpec]) -> dict[str, Any]:
    """Return where runs would execute, and what would be submitted, as JSON-able data."""
    if not runs:
        return {"kind": chosen.kind, "nodes": 0, "cpus": 0, "gpus": 0, "runs": 0, "options": {}}
    each, bounds = share(chosen, runs[0]), limits(chosen, runs[0])
    shown: dict[str, Any] = {"max_rollouts": chosen.max_rollouts, "max_gpus": chosen.max_gpus}
    if chosen.kind == "ray":
        shown |= {"address": chosen.address or "a cluster of this machine", "shared": chosen.shared}
    out = {"kind": chosen.kind, **asdict(each), "runs": bounds.runs}
    out["options"] = {key: value for key, value in shown.items() if value is not None}
    if chosen.kind == "slurm":
        from isolaw.executors import slurm

        out["scripts"] = [slurm.script(directory, run.run_id, chosen, each) for run in runs]
    return out


def run(
    directory: Path, chosen: ExecutorSection, runs: Sequence[RunSpec], stop: threading.Event
) -> Generator[Event]:
    """Execute runs of a sweep.

    Parameters
    ----------
    directory
        the sweep's.
    chosen
        the executor.
    runs
        what is left to make, in `order`.
    stop
        once set, runs at work keep their state and end, and no other begins.
    """
    each, bounds = share(chosen, runs[0]), limits(chosen, runs[0])
    gpus = each.nodes * each.gpus
    waiting = Waiting(directory, [Waiter(r.run_id, r.batch_rollouts, gpus) for r in runs], bounds, stop)
    # Each brings its own library.
    if chosen.kind == "inline":
        from isolaw.executors import inline

        yield from inline.run(directory, waiting)
    elif chosen.kind == "processes":
        from isolaw.executors import processes

        yield from processes.run(directory, waiting)
    elif chosen.kind == "ray":
        from isolaw.executors import ray

        yield from ray.run(directory, waiting, chosen, each)
    else:
        from isolaw.executors import slurm

        yield from slurm.run(directory, waiting, chosen, each)
