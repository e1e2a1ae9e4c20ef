"""The protocol between the sweep engine and what trains.

A backend knows how to make one run; an executor knows where. `run` yields a `Checkpoint` at each
step of ``spec.schedule()``; whoever consumes it stores the rows and, when it wants to, calls
``checkpoint.save(folder)`` before it asks for the next one. Given that folder back as
``ctx.state``, `run` must continue so that the finished run equals an uninterrupted one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from isolaw.config import RunSpec
from isolaw.errors import Issue, RunError


@dataclass(frozen=True)
class Row:
    """One measured value at a checkpoint."""

    eval_set: str
    metric: str
    value: float
    n_problems: int | None = None
    n_samples: int | None = None


@dataclass(frozen=True)
class Counts:
    """How many of ``samples`` answers to each problem of an evaluation set were correct."""

    eval_set: str
    samples: int
    problem_ids: Sequence[str]
    correct: Sequence[int]


@dataclass(frozen=True)
class Checkpoint:
    """What is known after ``step`` updates.

    Attributes
    ----------
    step, compute, tokens
        updates made, rollouts generated, tokens generated (None where there are none).
    rows
        the measured values; none where a run only makes sure of what it has done.
    save
        writes all that `Backend.run` needs to continue from here into an empty folder.
    final
        True for the last checkpoint of the horizon.
    counts
        results of single problems, where the backend has them.
    seconds
        spent on each part of the run so far; kept in the line, not in the table of results.
    """

    step: int
    compute: int
    rows: list[Row]
    save: Callable[[Path], None] = field(repr=False, compare=False)
    tokens: int | None = None
    final: bool = False
    counts: list[Counts] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def line(self, wall_s: float) -> dict[str, Any]:
        """Return the checkpoint as one JSON-able line of ``points.jsonl``."""
        counts = {c.eval_set: {"samples": c.samples, "correct": list(c.correct)} for c in self.counts}
        return {
            "step": self.step,
            "compute": self.compute,
            "tokens": self.tokens,
            "wall_s": round(wall_s, 6),
            "rows": [vars(row) for row in self.rows],
            **({"counts": counts} if counts else {}),
            **({"seconds": self.seconds} if self.seconds else {}),
        }


class Nodes(Protocol):
    """The machines of a run that has several; this one is the first of them."""

    count: int
    address: str  # of this one, as the others reach it

    def call(self, meeting: dict[str, Any]) -> None:
        """Let the others do their part, which is the backend's to say (JSON-able)."""
        ...

    def dismiss(self) -> None:
        """Let the others go."""
        ...


@dataclass(frozen=True)
class Needs:
    """What one run takes: of the machines that it is made on, and for its state, which stays, of a disk."""

    cpus: int = 1
    gpus: int = 0
    disk_bytes: int = 0


@dataclass(frozen=True)
class Processes:
    """A run that several processes make together, started by torchrun (`isolaw.executors.launcher`).

    Attributes
    ----------
    spec
        the run as they make it.
    module
        what each executes: ``python -m MODULE ADDRESS PORT``, where `isolaw.backends.line` connects it.
    count
        how many processes, over all machines of the run.
    torchrun
        more options of torchrun.
    threaded
        whether each takes its share of this machine's cores (an optimiser in host memory), or one.
    """

    spec: RunSpec
    module: str
    count: int
    torchrun: tuple[str, ...] = ()
    threaded: bool = False


@dataclass(frozen=True)
class RunContext:
    """What an executor gives to a run.

    Attributes
    ----------
    state
        the folder to continue from, or None.
    stopping
        whether the run is asked to end: it shall yield a `Checkpoint` as soon as it can be continued.
    nodes
        its machines, where there are more than this one.
    """

    state: Path | None = None
    stopping: Callable[[], bool] = field(default=lambda: False, compare=False)
    nodes: Nodes | None = field(default=None, compare=False)


class UnreadableState(RunError):
    """A state is as it was written (its checksum is right), and the run cannot continue from it.

    Another version wrote it, or this machine lacks what reads it: what the run has cost is not thrown away.
    """

    def __init__(self, folder: Path, error: Exception) -> None:
        super().__init__(
            f"{folder}: the run cannot continue from it ({type(error).__name__}: {error}). The state is as "
            "it was written; remove that folder, and the run starts again"
        )


class Backend(Protocol):
    """How one run is made."""

    name: str
    version: int  # of its semantics: raise it when the same spec gives other numbers

    def resolve(self, spec: RunSpec) -> RunSpec:
        """Fill in the backend's defaults and content hashes; raise `SpecError` on bad options."""
        ...

    def notes(self, spec: RunSpec) -> list[str]:
        """Return what a user should know of the defaults of a spec that is not resolved yet."""
        ...

    def check(self, spec: RunSpec) -> list[Issue]:
        """Return everything that is wrong with a resolved spec, before anything is spent."""
        ...

    def jobs(self, spec: RunSpec) -> int:
        """Return how many runs this machine makes at a time, unless told otherwise."""
        ...

    def needs(self, spec: RunSpec) -> Needs:
        """Return what one run takes."""
        ...

    def on_machines(self, cpus: int, gpus: int, gpu_bytes: int | None = None) -> AbstractContextManager[None]:
        """While entered, runs are resolved and checked for machines of this kind, and not for this one.

        ``gpu_bytes`` is the memory of a GPU, where it is known.
        """
        ...

    def processes(self, spec: RunSpec) -> Processes | None:
        """Return the processes that make the run; None where `run` makes it in this one."""
        ...

    def run(self, spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
        """Make the run, or what is left of it after ``ctx.state``."""
        ...


class OneCore:
    """The part of a `Backend` that says where runs are made, for runs of one process without a GPU."""

    def notes(self, spec: RunSpec) -> list[str]:
        """None."""
        return []

    def jobs(self, spec: RunSpec) -> int:
        """One for each core."""
        return os.cpu_count() or 1

    def needs(self, spec: RunSpec) -> Needs:
        """One core."""
        return Needs()

    def on_machines(self, cpus: int, gpus: int, gpu_bytes: int | None = None) -> AbstractContextManager[None]:
        """Any machine will do."""
        return nullcontext()

    def processes(self, spec: RunSpec) -> Processes | None:
        """This one."""
        return None
