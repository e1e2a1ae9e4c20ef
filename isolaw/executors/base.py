"""What all executors share: how one run is executed against its store.

An executor is a function ``(directory, run_ids, …) -> Iterator[Event]``. It decides where runs
execute; `execute` is what happens there. A run's result depends on neither.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from isolaw import backends
from isolaw.backends.base import DamagedState, RunContext
from isolaw.errors import IsolawError
from isolaw.store import SweepStore


@dataclass(frozen=True)
class Event:
    """Something that happened to a run: a checkpoint, its end, its failure; or what the user should know."""

    run_id: str
    kind: Literal["checkpoint", "done", "failed", "warning"]
    compute: int = 0
    cause: str = ""


def execute(directory: Path, run_id: str) -> Iterator[Event]:
    """Execute one run of a sweep, from where it stands, and mark it DONE or FAILED.

    An exception of the run ends in ``FAILED.json`` and a ``failed`` event, never in the caller.
    """
    run = SweepStore(directory).run(run_id)
    try:
        with run.lock():
            spec = run.read_spec()
            backend = backends.get(spec.backend)
            compute = 0
            for _ in range(2):
                state, wall_s = run.resume()
                try:
                    for checkpoint in run.record(backend.run(spec, RunContext(state)), wall_s):
                        compute = checkpoint.compute
                        yield Event(run_id, "checkpoint", compute)
                    break
                except DamagedState:
                    run.restart()
            run.finish(spec.compute)
            yield Event(run_id, "done", compute)
    except Exception as error:
        cause = str(error) if isinstance(error, IsolawError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):  # a full disk must not hide the cause
            run.fail(cause, traceback.format_exc())
        yield Event(run_id, "failed", cause=cause)
