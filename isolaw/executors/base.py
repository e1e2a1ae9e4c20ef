"""Provide the common parts of executors: `execute` executes one run, and `drive` schedules runs.

Each executor is a module with a function ``run(directory, waiting, section, needs_by_run) ->
Iterator[Event]``. An executor decides where runs execute, which never changes their results. Executors that
execute several runs at a time implement `Slots`.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from isolaw import backends
from isolaw.backend import Nodes, RunContext
from isolaw.errors import InUse, IsolawError
from isolaw.executors.launcher import launch
from isolaw.executors.waiting import Event
from isolaw.store import RunStore, SweepStore

if TYPE_CHECKING:
    from isolaw.executors.waiting import Waiting


NOTICE_S = 120  # least time in which a run saves its state


@dataclass(frozen=True)
class Resources:
    """The resources of one run: the number of machines, and the cores and GPUs on each of them.

    A run that has to end is told so ``notice_s`` seconds before, in which it can complete a step.
    """

    nodes: int
    cpus: int
    gpus: int
    notice_s: int = NOTICE_S


class Slots(Protocol):
    """Protocol of an executor's slots for runs, such as worker processes or SLURM jobs."""

    def start(self, run_id: str) -> Event | None:
        """Start or continue a run; return an event if there is a problem to report."""

    def events(self) -> list[Event]:
        """Wait briefly for events and return them.

        The last event of a run must not be a ``checkpoint``.
        """

    def ask_to_stop(self, run_id: str) -> None:
        """Ask a run to save its state and end."""

    def close(self) -> None:
        """Immediately end all runs that this object has started."""


def drive(place: Slots, waiting: Waiting) -> Iterator[Event]:
    """Start runs within the limits of ``waiting``, and yield events until all runs have ended."""
    asked: set[str] = set()
    try:
        while True:
            while not waiting.halted and (begun := waiting.next()):
                if event := place.start(begun):
                    yield from waiting.settle(event)
            if waiting.halted:
                for run_id in waiting.at_work - asked:
                    place.ask_to_stop(run_id)
                    asked.add(run_id)
            if not waiting.open:
                break
            for event in place.events():
                yield from waiting.settle(event)
    finally:
        place.close()


def execute(
    directory: Path, run_id: str, nodes: Nodes | None = None, asked: threading.Event | None = None
) -> Iterator[Event]:
    """Execute one run of a sweep from its last state, and mark it DONE or FAILED.

    An exception in the run is written to ``FAILED.json`` and yielded as a ``failed`` event. The exception
    never reaches the caller. ``nodes`` are the machines of a run on several machines. The run stops if
    ``asked`` is set.
    """
    run = SweepStore(directory).run(run_id)
    run.asked_to_stop = asked or run.asked_to_stop
    try:
        with run.lock():
            try:
                yield from _execute(run, nodes)
            except Exception as error:
                cause = _cause(error)
                if run.is_asked_to_stop():  # the same signal may have ended its processes
                    yield Event(run_id, "stopped", cause=cause)
                    return
                if nodes is not None and (lost := nodes.lost()):
                    yield Event(run_id, "lost", cause=lost)
                    return
                with contextlib.suppress(OSError):  # a full disk must not hide the cause
                    run.fail(cause, traceback.format_exc())
                yield Event(run_id, "failed", cause=cause)
            finally:
                if nodes is not None:
                    nodes.dismiss()
    except InUse as error:
        yield Event(run_id, "busy", cause=str(error))
    except Exception as error:
        yield Event(run_id, "failed", cause=_cause(error))


def _execute(run: RunStore, nodes: Nodes | None) -> Iterator[Event]:
    run_id = run.run_id
    spec = run.read_spec()
    backend = backends.get(spec.backend)
    compute, final = 0, False
    state, wall_s = run.resume()
    for cause in run.damage:
        yield Event(run_id, "warning", cause=cause)
    context = RunContext(state, run.out, run.is_asked_to_stop, nodes)
    processes = backend.processes(spec)
    checkpoints = launch(processes, context) if processes else backend.run(spec, context)
    for checkpoint in run.record(checkpoints, wall_s):
        compute, final = checkpoint.compute, checkpoint.final
        yield Event(run_id, "checkpoint", compute)
    if run.is_asked_to_stop() and not final:
        yield Event(run_id, "stopped", compute)
        return
    run.finish(spec.compute)
    yield Event(run_id, "done", compute)


def _cause(error: Exception) -> str:
    return str(error) if isinstance(error, IsolawError) else f"{type(error).__name__}: {error}"
