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
_KEYS = {"ray": ("address",), "slurm": ("cluster", "time", "partition", "sbatch", "setup")}
# The overhead of a step, as the number of rollouts that take the same time (65 in docs/real-sweep.md).
_STEP_IN_ROLLOUTS = 64
# A Ray cluster must answer within this many seconds.
_ANSWERS_S = 10.0
# A run with more GPUs on one machine has probably forgotten executor.nodes.
_GPUS_OF_A_MACHINE = 8


def _resources(chosen: ExecutorSection, run: RunSpec) -> Resources:
    """Return the resources of one run: the user's settings or, by default, the needs of its processes."""
    with machines(chosen, run.backend):
        needs = backends.get(run.backend).needs(run)
        step = backends.get(run.backend).estimate(run) if chosen.kind == "slurm" else None
    cpus, gpus = (math.ceil(total / chosen.nodes) for total in (needs.cpus, needs.gpus))
    step_s = step.step(*run.shape) if step else None
    notice = NOTICE_S + math.ceil(1.5 * (step_s or 0.0))
    gpus = gpus if chosen.gpus is None else chosen.gpus
    return Resources(chosen.nodes, chosen.cpus or cpus, gpus, notice)


def machines(chosen: ExecutorSection, backend: str) -> AbstractContextManager[None]:
    """Return a context in which the backend plans runs for the machines that will execute them."""
    if chosen.kind not in _PACKAGES or (chosen.gpus is None and chosen.cpus is None):
        return nullcontext()
    cpus, gpus = chosen.cpus or chosen.gpus or 1, chosen.gpus or 0
    return backends.get(backend).on_machines(chosen.nodes * cpus, chosen.nodes * gpus)


def planned_for(cards: Cards | None, chosen: ExecutorSection, backend: str) -> AbstractContextManager[None]:
    """Return a context in which the backend plans runs for machines with the GPUs in ``cards``.

    If ``cards`` is None, the context changes nothing. Raise `SpecError` if a run takes more GPUs than a
    machine has.
    """
    if cards is None:
        return nullcontext()
    gpus = chosen.gpus
    if chosen.kind in _PACKAGES and (gpus is None or gpus > cards.count):
        accepted = f"GPUs of each machine for one run, at most the {cards.count} of --machine"
        raise SpecError([Issue("executor.gpus", found=gpus, accepted=accepted)])
    total = chosen.nodes * (chosen.cpus or cards.count), chosen.nodes * (gpus or cards.count)
    return backends.get(backend).on_machines(*total, cards.gpu_bytes, cards.name)


def check(chosen: ExecutorSection, runs: Sequence[RunSpec]) -> list[Issue]:
    """Return the issues that prevent the chosen executor from executing these runs."""
    out = []
    package = _PACKAGES.get(chosen.kind)
    if package and importlib.util.find_spec(package) is None:
        hint = f"{package} is not installed: {commands.install(f'isolaw[{chosen.kind}]')}"
        out.append(Issue("executor.kind", hint, found=chosen.kind))

    def refuse(key: str, accepted: str) -> None:
        out.append(Issue(f"executor.{key}", found=getattr(chosen, key), accepted=accepted))

    if chosen.nodes > 1 and (package is None or chosen.cluster == "local"):
        refuse("nodes", "1; more with executor.kind = 'ray' or 'slurm'")
    if chosen.kind == "scripts" and not all(traits(run.backend).by_command for run in runs):
        refuse("kind", "processes, inline, ray or slurm; scripts train with backend command")
    for run in runs:
        backend, each = backends.get(run.backend), _resources(chosen, run)
        needs = backend.needs(run)
        if traits(run.backend).by_command:
            if needs.gpus % chosen.nodes:
                refuse("nodes", f"a divisor of command.gpus ({needs.gpus})")
            elif chosen.gpus is not None and chosen.nodes * chosen.gpus != needs.gpus:
                accepted = f"command.gpus / executor.nodes, {needs.gpus // chosen.nodes}"
                refuse("gpus", f"{accepted}; the command is composed for {needs.gpus} GPUs")
            elif each.gpus > _GPUS_OF_A_MACHINE and chosen.gpus is None:
                accepted = f"{math.ceil(needs.gpus / _GPUS_OF_A_MACHINE)} for command.gpus = {needs.gpus}"
                refuse("nodes", f"{accepted}, or executor.gpus, the GPUs of each machine")
        elif needs.processes % chosen.nodes:
            refuse("nodes", f"a divisor of real.processes and real.samplers ({needs.processes})")
        if not package and chosen.kind != "scripts":
            out += backend.check_here(run)
        if chosen.max_gpus is not None and each.nodes * each.gpus > chosen.max_gpus:
            refuse("max_gpus", f"at least those of one run ({each.nodes * each.gpus})")
        if chosen.max_rollouts is not None and run.batch_rollouts > chosen.max_rollouts:
            refuse("max_rollouts", f"at least the largest batch ({max(r.batch_rollouts for r in runs)})")
    return out


def idle(chosen: ExecutorSection) -> list[str]:
    """Return the keys that the user has set but the chosen executor does not use."""
    plain = ExecutorSection()
    others = [key for kind, keys in _KEYS.items() if kind != chosen.kind for key in keys]
    return [f"executor.{key}" for key in others if getattr(chosen, key) != getattr(plain, key)]


def reach(chosen: ExecutorSection, run: RunSpec) -> None:
    """Raise `SpecError` if ``run`` cannot execute, before isolaw writes anything.

    A run cannot execute if its code has issues, if this machine cannot reach the cluster or, for local runs,
    if it has fewer GPUs than ``command.gpus``.
    """
    if issues := backends.get(run.backend).check_code(run):
        raise SpecError(issues)
    if chosen.kind in ("inline", "processes") and traits(run.backend).by_command:
        gpus, there = _resources(chosen, run).gpus, len(visible_gpus())
        if gpus > there:
            accepted = f"at most {there}, the GPUs that are free on this machine; or another executor.kind"
            raise SpecError([Issue(f"{run.backend}.gpus", found=gpus, accepted=accepted)])
    if chosen.kind == "slurm" and chosen.cluster != "local":
        missing = [name for name in ("sbatch", "srun", "squeue") if shutil.which(name) is None]
        if missing:
            hint = f"not on this machine: {', '.join(missing)}"
            accepted = "a login node, or executor.cluster = 'local' to run the jobs here"
            raise SpecError([Issue("executor.kind", hint, chosen.kind, accepted)])
    address = ray_address(chosen)
    if chosen.kind == "ray" and (match := re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address)):
        try:  # Ray's own attempts would take minutes
            if int(match[2]) >= 2**16:  # of which the system would take the lower 16 bits
                raise OSError("ports end at 65535")
            socket.create_connection((match[1], int(match[2])), timeout=_ANSWERS_S).close()
        except OSError as error:
            hint = f"no Ray cluster answers there ({error})"
            raise SpecError([Issue("executor.address", hint, found=address)]) from None


def ray_address(chosen: ExecutorSection) -> str:
    """Return the address of the Ray cluster: the user's setting, ``RAY_ADDRESS``, or ``local``."""
    return chosen.address or os.environ.get("RAY_ADDRESS") or "local"


def order(directory: Path, runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Return the runs in order of execution, the longest run first.

    With this order, a long run is not the only one left at the end. Runs that failed before come last, so
    that no other run waits for them.
    """
    store = SweepStore(directory)

    def place(run: RunSpec) -> tuple[bool, float]:
        stored = store.run(run.run_id)
        rollouts = run.rollouts - stored.recorded().reached
        return stored.failure is not None, -rollouts * (1 + _STEP_IN_ROLLOUTS / run.batch_rollouts)

    return sorted(runs, key=place)


def _limits(chosen: ExecutorSection, runs: Sequence[RunSpec]) -> ExecutorSection:
    """Return the executor's section with the default limits of its kind filled in."""
    if chosen.kind == "scripts":  # limits are up to the user who executes the scripts
        return ExecutorSection(kind=chosen.kind, retries=0)
    update: dict[str, Any] = {"retries": chosen.retries if chosen.kind in _PACKAGES else 0}
    if chosen.kind == "inline":
        update["jobs"] = 1
    elif chosen.kind == "processes":
        kinds = {_resources(chosen, run).gpus: backends.get(run.backend).jobs(run) for run in runs}
        if most := max(kinds):  # limit the total GPUs of concurrent runs by this machine's GPUs and memory
            held = min(jobs * gpus if gpus else most for gpus, jobs in kinds.items())
            update["max_gpus"] = min(max(held, most), chosen.max_gpus or math.inf)
        if chosen.jobs is None and (len(kinds) == 1 or not most):
            update["jobs"] = min(kinds.values())
    return chosen.model_copy(update=update)


def describe(directory: Path, chosen: ExecutorSection, runs: Sequence[RunSpec]) -> dict[str, Any]:
    """Return the place where runs would execute, and the jobs to submit, as JSON-compatible data."""
    if not runs:
        none = {"nodes": 0, "cpus": 0, "gpus": 0, "alike": True, "runs": 0, "options": {}}
        return {"kind": chosen.kind, **none}
    each = {run.run_id: _resources(chosen, run) for run in runs}
    largest = max(each.values(), key=lambda needs: (needs.gpus, needs.cpus))
    shown: dict[str, Any] = {"max_rollouts": chosen.max_rollouts, "max_gpus": chosen.max_gpus}
    if chosen.kind == "ray":
        shown |= {"address": chosen.address or "a cluster of this machine"}
    out = {"kind": chosen.kind, **asdict(largest), "runs": _limits(chosen, runs).jobs}
    del out["notice_s"]
    out["alike"] = len({(needs.nodes, needs.cpus, needs.gpus) for needs in each.values()}) == 1
    out["options"] = {key: value for key, value in shown.items() if value is not None}
    if chosen.kind == "slurm":
        from isolaw.executors import slurm

        out["scripts"] = [slurm.script(directory, run_id, chosen, needs) for run_id, needs in each.items()]
    return out


def run(
    directory: Path, chosen: ExecutorSection, runs: Sequence[RunSpec], stop: threading.Event
) -> Generator[Event]:
    """Execute runs of the sweep in ``directory`` in the given order, and yield their events.

    After ``stop`` is set, active runs save their state and end, and no other run starts.
    """
    each = {run.run_id: _resources(chosen, run) for run in runs}
    rollouts = {run.run_id: run.batch_rollouts for run in runs}
    gpus = {run_id: needs.nodes * needs.gpus for run_id, needs in each.items()}
    waiting = Waiting(directory, rollouts, gpus, _limits(chosen, runs), stop)
    if chosen.kind == "inline":
        yield from _inline(SweepStore(directory), waiting)
        return
    executor = importlib.import_module(f"isolaw.executors.{chosen.kind}")  # imports its library
    yield from executor.run(directory, waiting, chosen, each)


def _inline(store: SweepStore, waiting: Waiting) -> Iterator[Event]:
    """Execute the runs one after another in this process, and yield their events."""
    while not waiting.halted and (run_id := waiting.next()):
        store.run(run_id).proceed()
        for event in execute(store.directory, run_id, asked=waiting.stop):
            yield from waiting.settle(event)
