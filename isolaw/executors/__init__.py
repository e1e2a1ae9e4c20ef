"""Choose and check executors, which execute runs in this process, on this machine or on a cluster.

Each executor is a module of this package, and `inline` is a function here. `base` has their common parts, and
`waiting` is the queue of runs.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import socket
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isolaw import backends, commands
from isolaw.config import ExecutorSection, RunSpec
from isolaw.errors import Issue, SpecError
from isolaw.executors.base import NOTICE_S, Resources, execute
from isolaw.executors.waiting import Event, Waiting
from isolaw.machine import visible_gpus
from isolaw.registry import traits
from isolaw.store import SweepStore

if TYPE_CHECKING:
    from isolaw.machine import Cards

# The packages that executors need. The isolaw extra that installs a package has the name of its executor.
_PACKAGES = {"ray": "ray", "slurm": "submitit"}
# The keys that only this executor uses.
_OWN_KEYS = {"ray": ("address",), "slurm": ("cluster", "time", "partition", "sbatch", "setup")}
# The overhead of a step, as the number of rollouts that take the same time (65 in docs/real-sweep.md).
_STEP_IN_ROLLOUTS = 64
# A Ray cluster must answer within this many seconds.
_CONNECT_LIMIT_S = 10.0
# A run with more GPUs on one machine has probably forgotten executor.nodes.
_MACHINE_GPUS = 8


def _resources(section: ExecutorSection, run: RunSpec) -> Resources:
    """Return the resources of one run: the user's settings or, by default, the needs of its processes."""
    with machines(section, run.backend):
        needs = backends.get(run.backend).needs(run)
        cost = backends.get(run.backend).estimate(run) if section.kind == "slurm" else None
    cpus, gpus = (math.ceil(count / section.nodes) for count in (needs.cpus, needs.gpus))
    step_s = cost.step(*run.shape) if cost else None
    notice_s = NOTICE_S + math.ceil(1.5 * (step_s or 0.0))
    gpus = gpus if section.gpus is None else section.gpus
    return Resources(section.nodes, section.cpus or cpus, gpus, notice_s)


def machines(section: ExecutorSection, backend: str) -> AbstractContextManager[None]:
    """Return a context in which the backend plans runs for the machines that will execute them."""
    if section.kind not in _PACKAGES or (section.gpus is None and section.cpus is None):
        return nullcontext()
    cpus, gpus = section.cpus or section.gpus or 1, section.gpus or 0
    return backends.get(backend).on_machines(section.nodes * cpus, section.nodes * gpus)


def planned_for(cards: Cards | None, section: ExecutorSection, backend: str) -> AbstractContextManager[None]:
    """Return a context in which the backend plans runs for machines with the GPUs in ``cards``.

    If ``cards`` is None, the context changes nothing. Raise `SpecError` if a run takes more GPUs than a
    machine has.
    """
    if cards is None:
        return nullcontext()
    gpus = section.gpus
    if section.kind in _PACKAGES and (gpus is None or gpus > cards.count):
        accepted = f"GPUs of each machine for one run, at most the {cards.count} of --machine"
        raise SpecError([Issue("executor.gpus", found=gpus, accepted=accepted)])
    totals = section.nodes * (section.cpus or cards.count), section.nodes * (gpus or cards.count)
    return backends.get(backend).on_machines(*totals, cards.gpu_bytes, cards.name)


def check(section: ExecutorSection, runs: Sequence[RunSpec]) -> list[Issue]:
    """Return the issues that prevent the chosen executor from executing these runs."""
    issues = []
    package = _PACKAGES.get(section.kind)
    if package and importlib.util.find_spec(package) is None:
        hint = f"{package} is not installed: {commands.install(f'isolaw[{section.kind}]')}"
        issues.append(Issue("executor.kind", hint, found=section.kind))

    def refuse(key: str, accepted: str) -> None:
        issues.append(Issue(f"executor.{key}", found=getattr(section, key), accepted=accepted))

    if section.nodes > 1 and (package is None or section.cluster == "local"):
        refuse("nodes", "1; more with executor.kind = 'ray' or 'slurm'")
    if section.kind == "scripts" and not all(traits(run.backend).by_command for run in runs):
        refuse("kind", "processes, inline, ray or slurm; scripts train with backend command")
    for run in runs:
        backend, resources = backends.get(run.backend), _resources(section, run)
        needs = backend.needs(run)
        if traits(run.backend).by_command:
            if needs.gpus % section.nodes:
                refuse("nodes", f"a divisor of command.gpus ({needs.gpus})")
            elif section.gpus is not None and section.nodes * section.gpus != needs.gpus:
                accepted = f"command.gpus / executor.nodes, {needs.gpus // section.nodes}"
                refuse("gpus", f"{accepted}; the command is composed for {needs.gpus} GPUs")
            elif resources.gpus > _MACHINE_GPUS and section.gpus is None:
                accepted = f"{math.ceil(needs.gpus / _MACHINE_GPUS)} for command.gpus = {needs.gpus}"
                refuse("nodes", f"{accepted}, or executor.gpus, the GPUs of each machine")
        elif needs.processes % section.nodes:
            refuse("nodes", f"a divisor of real.processes and real.samplers ({needs.processes})")
        if not package and section.kind != "scripts":
            issues += backend.check_here(run)
        if section.max_gpus is not None and resources.nodes * resources.gpus > section.max_gpus:
            refuse("max_gpus", f"at least those of one run ({resources.nodes * resources.gpus})")
        if section.max_rollouts is not None and run.batch_rollouts > section.max_rollouts:
            refuse("max_rollouts", f"at least the largest batch ({max(run.batch_rollouts for run in runs)})")
    return issues


def unused_keys(section: ExecutorSection) -> list[str]:
    """Return the keys that the user has set but the chosen executor does not use."""
    defaults = ExecutorSection()
    other_keys = [key for kind, keys in _OWN_KEYS.items() if kind != section.kind for key in keys]
    return [f"executor.{key}" for key in other_keys if getattr(section, key) != getattr(defaults, key)]


def check_reachable(section: ExecutorSection, run: RunSpec) -> None:
    """Raise `SpecError` if ``run`` cannot execute, before isolaw writes anything.

    A run cannot execute if its code has issues, if this machine cannot reach the cluster or, for local runs,
    if it has fewer GPUs than ``command.gpus``.
    """
    if issues := backends.get(run.backend).check_code(run):
        raise SpecError(issues)
    if section.kind in ("inline", "processes") and traits(run.backend).by_command:
        gpus, free = _resources(section, run).gpus, len(visible_gpus())
        if gpus > free:
            accepted = f"at most {free}, the GPUs that are free on this machine; or another executor.kind"
            raise SpecError([Issue(f"{run.backend}.gpus", found=gpus, accepted=accepted)])
    if section.kind == "slurm" and section.cluster != "local":
        missing = [name for name in ("sbatch", "srun", "squeue") if shutil.which(name) is None]
        if missing:
            hint = f"not on this machine: {', '.join(missing)}"
            accepted = "a login node, or executor.cluster = 'local' to run the jobs here"
            raise SpecError([Issue("executor.kind", hint, section.kind, accepted)])
    address = ray_address(section)
    if section.kind == "ray" and (match := re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address)):
        try:  # Ray's own attempts would take minutes
            if int(match[2]) >= 2**16:  # of which the system would take the lower 16 bits
                raise OSError("ports end at 65535")
            socket.create_connection((match[1], int(match[2])), timeout=_CONNECT_LIMIT_S).close()
        except OSError as error:
            hint = f"no Ray cluster answers there ({error})"
            raise SpecError([Issue("executor.address", hint, found=address)]) from None


def ray_address(section: ExecutorSection) -> str:
    """Return the address of the Ray cluster: the user's setting, ``RAY_ADDRESS``, or ``local``."""
    return section.address or os.environ.get("RAY_ADDRESS") or "local"


def order(directory: Path, runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Return the runs in order of execution, the longest run first.

    With this order, a long run is not the only one left at the end. Runs that failed before come last, so
    that no other run waits for them.
    """
    store = SweepStore(directory)

    def priority(run: RunSpec) -> tuple[bool, float]:
        stored = store.run(run.run_id)
        rollouts = run.rollouts - stored.recorded().reached
        return stored.failure is not None, -rollouts * (1 + _STEP_IN_ROLLOUTS / run.batch_rollouts)

    return sorted(runs, key=priority)


def _limits(section: ExecutorSection, runs: Sequence[RunSpec]) -> ExecutorSection:
    """Return the executor's section with the default limits of its kind filled in."""
    if section.kind == "scripts":  # limits are up to the user who executes the scripts
        return ExecutorSection(kind=section.kind, retries=0)
    limits: dict[str, Any] = {"retries": section.retries if section.kind in _PACKAGES else 0}
    if section.kind == "inline":
        limits["jobs"] = 1
    elif section.kind == "processes":
        jobs_by_gpus = {_resources(section, run).gpus: backends.get(run.backend).jobs(run) for run in runs}
        if most := max(jobs_by_gpus):  # this machine's GPUs and memory limit the GPUs of concurrent runs
            total_gpus = min(jobs * gpus if gpus else most for gpus, jobs in jobs_by_gpus.items())
            limits["max_gpus"] = min(max(total_gpus, most), section.max_gpus or math.inf)
        if section.jobs is None and (len(jobs_by_gpus) == 1 or not most):
            limits["jobs"] = min(jobs_by_gpus.values())
    return section.model_copy(update=limits)


def describe(directory: Path, section: ExecutorSection, runs: Sequence[RunSpec]) -> dict[str, Any]:
    """Return the place where runs would execute, and the jobs to submit, as JSON-compatible data."""
    if not runs:
        nothing = {"nodes": 0, "cpus": 0, "gpus": 0, "alike": True, "runs": 0, "options": {}}
        return {"kind": section.kind, **nothing}
    needs_by_run = {run.run_id: _resources(section, run) for run in runs}
    largest = max(needs_by_run.values(), key=lambda needs: (needs.gpus, needs.cpus))
    options: dict[str, Any] = {"max_rollouts": section.max_rollouts, "max_gpus": section.max_gpus}
    if section.kind == "ray":
        options |= {"address": section.address or "a cluster of this machine"}
    facts = {"kind": section.kind, **asdict(largest), "runs": _limits(section, runs).jobs}
    del facts["notice_s"]
    sizes = {(needs.nodes, needs.cpus, needs.gpus) for needs in needs_by_run.values()}
    facts["alike"] = len(sizes) == 1
    facts["options"] = {key: value for key, value in options.items() if value is not None}
    if section.kind == "slurm":
        from isolaw.executors import slurm

        by_run = needs_by_run.items()
        facts["scripts"] = [slurm.script(directory, run_id, section, needs) for run_id, needs in by_run]
    return facts


def run(
    directory: Path, section: ExecutorSection, runs: Sequence[RunSpec], stop: threading.Event
) -> Generator[Event]:
    """Execute runs of the sweep in ``directory`` in the given order, and yield their events.

    After ``stop`` is set, active runs save their state and end, and no other run starts.
    """
    needs_by_run = {run.run_id: _resources(section, run) for run in runs}
    rollouts = {run.run_id: run.batch_rollouts for run in runs}
    gpus = {run_id: needs.nodes * needs.gpus for run_id, needs in needs_by_run.items()}
    waiting = Waiting(directory, rollouts, gpus, _limits(section, runs), stop)
    if section.kind == "inline":
        yield from _inline(SweepStore(directory), waiting)
        return
    executor = importlib.import_module(f"isolaw.executors.{section.kind}")  # imports its library
    yield from executor.run(directory, waiting, section, needs_by_run)


def _inline(store: SweepStore, waiting: Waiting) -> Iterator[Event]:
    """Execute the runs one after another in this process, and yield their events."""
    while not waiting.halted and (run_id := waiting.next()):
        store.run(run_id).proceed()
        for event in execute(store.directory, run_id, asked=waiting.stop):
            yield from waiting.settle(event)
