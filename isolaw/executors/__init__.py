"""Executors: where runs execute. One module each; `base` is what they share, `waiting` their queue."""

from __future__ import annotations

import importlib.util
import math
import threading
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from isolaw import backends
from isolaw.backends.base import Needs
from isolaw.errors import Problem
from isolaw.executors.base import Event
from isolaw.executors.waiting import Limits, Waiter, Waiting
from isolaw.spec import ExecutorSection, RunSpec
from isolaw.store import SweepStore

# Which package each executor needs, beside isolaw; the extra has the executor's name.
_PACKAGES = {"ray": "ray", "slurm": "submitit"}
# A step costs about as much as so many rollouts more (the runs of docs/real-sweep.md: 65).
_STEP_IN_ROLLOUTS = 64


@dataclass(frozen=True)
class Share:
    """What one run takes: so many machines, and on each of them cores and GPUs."""

    nodes: int
    cpus: int
    gpus: int


def share(chosen: ExecutorSection, needs: Needs) -> Share:
    """Return what one run takes: as chosen, or else what its processes need."""
    cpus, gpus = (math.ceil(total / chosen.nodes) for total in (needs.cpus, needs.gpus))
    return Share(chosen.nodes, chosen.cpus or cpus, gpus if chosen.gpus is None else chosen.gpus)


def machines(chosen: ExecutorSection, backend: str) -> AbstractContextManager[None]:
    """While entered, runs are planned for the machines that they will be made on."""
    if chosen.kind not in _PACKAGES or (chosen.gpus is None and chosen.cpus is None):
        return nullcontext()
    each = Share(chosen.nodes, chosen.cpus or chosen.gpus or 1, chosen.gpus or 0)
    return backends.get(backend).on_machines(each.nodes * each.cpus, each.nodes * each.gpus)


def check(chosen: ExecutorSection, runs: Sequence[RunSpec]) -> list[Problem]:
    """Return everything that keeps these runs from being executed so, before anything is spent."""
    out = []
    package = _PACKAGES.get(chosen.kind)
    if package and importlib.util.find_spec(package) is None:
        hint = f"{package} is not installed; pip install 'isolaw[{chosen.kind}]'"
        out.append(Problem("executor.kind", hint, found=chosen.kind))
    if chosen.nodes > 1 and (package is None or chosen.cluster == "local"):
        out.append(Problem("executor.nodes", found=chosen.nodes, accepted="1, or ray or slurm as executor.kind"))
    for run in runs:
        needs = backends.get(run.backend).needs(run)
        total = share(chosen, needs)
        if needs.cpus % chosen.nodes:
            accepted = f"a divisor of the run's processes ({needs.cpus})"
            out.append(Problem("executor.nodes", found=chosen.nodes, accepted=accepted))
        if chosen.max_gpus is not None and total.nodes * total.gpus > chosen.max_gpus:
            accepted = f"at least those of one run ({total.nodes * total.gpus})"
            out.append(Problem("executor.max_gpus", found=chosen.max_gpus, accepted=accepted))
        if chosen.max_rollouts is not None and run.batch_rollouts > chosen.max_rollouts:
            accepted = f"at least the largest batch ({max(r.batch_rollouts for r in runs)})"
            out.append(Problem("executor.max_rollouts", found=chosen.max_rollouts, accepted=accepted))
    return out


def order(directory: Path, runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Return runs in the order in which they shall begin: the longest first, those that failed before last."""
    store = SweepStore(directory)

    def length(run: RunSpec) -> tuple[bool, float]:
        there = store.run(run.run_id)
        lines = there.lines()
        rollouts = run.steps * run.batch_rollouts - (lines[-1]["compute"] if lines else 0)
        return there.failure is not None, -rollouts * (1 + _STEP_IN_ROLLOUTS / run.batch_rollouts)

    return sorted(runs, key=length)


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
    backend = backends.get(runs[0].backend)
    with machines(chosen, runs[0].backend):
        each = share(chosen, backend.needs(runs[0]))
        jobs = chosen.jobs or (backend.jobs(runs[0]) if chosen.kind == "processes" else None)
    waiting = Waiting(
        directory,
        [Waiter(r.run_id, r.batch_rollouts, each.nodes * each.gpus) for r in runs],
        Limits(
            1 if chosen.kind == "inline" else jobs,
            chosen.max_rollouts,
            chosen.max_gpus,
            chosen.same_failures,
            chosen.retries if chosen.kind in _PACKAGES else 0,
        ),
        stop,
    )
    # Each brings its own library.
    if chosen.kind == "inline":
        from isolaw.executors import inline

        yield from inline.run(directory, waiting)
    elif chosen.kind == "processes":
        from isolaw.executors import processes

        yield from processes.run(directory, waiting, jobs or 1)
    elif chosen.kind == "ray":
        from isolaw.executors import ray

        yield from ray.run(directory, waiting, chosen, each)
    else:
        from isolaw.executors import slurm

        yield from slurm.run(directory, waiting, chosen, each)
