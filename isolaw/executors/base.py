"""What all executors share: how one run is executed against its store, and the loop that fills places.

An executor is a function ``(directory, waiting, …) -> Iterator[Event]``. It decides where runs execute;
`execute` is what happens there. A run's result depends on neither. Executors that make several runs at a
time are a `Place` each, and `drive` is their loop.
"""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from isolaw import backends
from isolaw.backends.base import Nodes, RunContext
from isolaw.errors import InUse, IsolawError
from isolaw.executors.launcher import launch
from isolaw.store import RunStore, SweepStore

if TYPE_CHECKING:
    from isolaw.executors.waiting import Waiting


@dataclass(frozen=True)
class Event:
    """Something that happened to a run, or what the user should know.

    ``checkpoint`` is a run that got further, ``compute`` rollouts far (not every checkpoint need be told);
    ``done`` and ``failed`` speak for themselves; ``stopped`` is a run that was asked to, and has kept its
    state; ``lost`` one whose process or machine has gone; ``busy`` one that another process is making. An
    engine's user sees neither of the last two: they are made again, or become failures.
    """

    run_id: str
    kind: Literal["checkpoint", "done", "failed", "stopped", "lost", "busy", "warning"]
    compute: int = 0
    cause: str = ""


class Place(Protocol):
    """Where runs execute."""

    def start(self, run_id: str) -> Event | None:
        """Begin a run, or what is left of it; return what there is to say about it, or why it could not."""
        ...

    def events(self) -> list[Event]:
        """Wait a moment for news, and return them; a run's last is of another kind than ``checkpoint``."""
        ...

    def ask_to_stop(self, run_id: str) -> None:
        """Let a run keep its state and end, when it next can."""
        ...

    def close(self) -> None:
        """End at once what was started here and is still at work."""
        ...


def drive(place: Place, waiting: Waiting) -> Iterator[Event]:
    """Begin runs while there is room for them, and pass on what happens, until nothing is left to do."""
    asked: set[str] = set()
    try:
        while True:
            while not waiting.halted and (begun := waiting.next()):
                if said := place.start(begun):
                    yield from waiting.settle(said)
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
    """Execute one run of a sweep, from where it stands, and mark it DONE or FAILED.

    An exception of the run ends in ``FAILED.json`` and a ``failed`` event, never in the caller.

    Parameters
    ----------
    directory
        the sweep's.
    run_id
        of one of its runs.
    nodes
        the machines of the run, where it has more than this one.
    asked
        set to ask the run to stop, beside the file in its folder.
    """
    run = SweepStore(directory).run(run_id)
    run.asked_to_stop = asked or run.asked_to_stop
    try:
        with run.lock():
            try:
                yield from _execute(run, nodes)
            except Exception as error:
                cause = _cause(error)
                if run.is_asked_to_stop():  # its processes may have been told the same, and went
                    yield Event(run_id, "stopped", cause=cause)
                    return
                with contextlib.suppress(OSError):  # a full disk must not hide the cause
                    run.fail(cause, traceback.format_exc())
                yield Event(run_id, "failed", cause=cause)
            finally:
                if nodes is not None:
                    nodes.dismiss()
    except InUse as error:  # what is in its folder is another's to write
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
    context = RunContext(state, run.is_asked_to_stop, nodes)
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
