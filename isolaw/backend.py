"""Define the protocol between the sweep engine and a backend, which is the code that trains.

A backend defines how to execute one run; an executor decides where. `run` yields a `Checkpoint` at each step
of ``spec.schedule()``. The store keeps the checkpoint's rows, and can call ``checkpoint.save(folder)`` before
it requests the next one. If `run` gets this folder as ``ctx.state``, it must continue so that the finished
run equals an uninterrupted run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from isolaw.config import RunSpec, SweepSpec
from isolaw.errors import Issue, RunError
from isolaw.step_cost import Cost

if TYPE_CHECKING:
    from isolaw.runs import Runs


@dataclass(frozen=True)
class Measurement:
    """One measured value at a checkpoint, with its evaluation set, its metric and its sample sizes.

    The value is NaN (null in ``points.jsonl``) if the training has diverged.
    """

    eval_set: str
    metric: str
    value: float
    n_problems: int | None = None
    n_samples: int | None = None


@dataclass(frozen=True)
class AnswerCounts:
    """The number of correct answers to each problem of an evaluation set, among ``samples`` answers each."""

    eval_set: str
    samples: int
    problem_ids: Sequence[str]
    correct: Sequence[int]


@dataclass(frozen=True)
class Response:
    """One response of an evaluation that isolaw keeps for people to read. `cut` shortens long texts."""

    eval_set: str
    problem_id: str
    prompt: str  # the prompt as the model received it
    response: str
    answer: str
    reward: float
    tokens: int
    truncated: bool


def cut(text: str, most: int) -> str:
    """Return a text of at most ``most`` characters. A longer text keeps only its beginning and its end.

    >>> cut("0123456789", 8), cut("0123456789", 10)
    ('0123 … 9', '0123456789')
    """
    if len(text) <= most:
        return text
    head = -(-(most - 3) * 2 // 3)
    return f"{text[:head]} … {text[len(text) - (most - 3 - head) :]}"


@dataclass(frozen=True)
class RunNote:
    """Something about a run that its values do not show: a code and facts for programs, a text for people.

    The text continues a sentence about the run, such as "its command ended with exit status 3".
    """

    code: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """The results of a run after ``step`` updates: rollouts, tokens and measured values.

    ``tokens`` is None if the backend has no tokens. ``save`` writes the state from which `Backend.run` can
    continue into an empty folder; it is None if the run cannot continue from this checkpoint. A checkpoint
    without rows only saves the state. ``final`` marks the last checkpoint of the horizon. ``counts`` contains
    the results of single problems if the backend has them, and ``responses`` contains some of the texts.
    ``notes`` are about the run since the previous checkpoint. Two fields appear only in ``points.jsonl``:
    ``seconds``, the time that each part of the run has taken so far, and ``machine``, with the number of
    ``gpus`` and their kind, ``gpu``.
    """

    step: int
    compute: int
    rows: list[Measurement]
    save: Callable[[Path], None] | None = field(repr=False, compare=False)
    tokens: int | None = None
    final: bool = False
    counts: list[AnswerCounts] = field(default_factory=list)
    responses: list[Response] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    notes: list[RunNote] = field(default_factory=list)

    def line(self, wall_s: float) -> dict[str, Any]:
        """Return the checkpoint as one JSON-compatible line of ``points.jsonl``."""
        counts = {c.eval_set: {"samples": c.samples, "correct": list(c.correct)} for c in self.counts}
        return {
            "step": self.step,
            "compute": self.compute,
            "tokens": self.tokens,
            "wall_s": round(wall_s, 6),
            "rows": [{**vars(row), "value": row.value if isfinite(row.value) else None} for row in self.rows],
            **({"counts": counts} if counts else {}),
            **({"responses": [vars(response) for response in self.responses]} if self.responses else {}),
            **({"seconds": self.seconds} if self.seconds else {}),
            **({"machine": self.machine} if self.machine else {}),
            **({"notes": [vars(note) for note in self.notes]} if self.notes else {}),
        }


class Nodes(Protocol):
    """The machines of a run that spans several machines. The code that uses it runs on the first machine."""

    count: int
    names: Sequence[str]  # of the machines, this one first
    address: str  # address at which the other machines reach this one
    environment: Mapping[str, str]  # what a command on this machine needs to start others on the rest

    def call(self, meeting: dict[str, Any]) -> None:
        """Start the processes on the other machines, as described by the JSON-compatible ``meeting``."""

    def dismiss(self) -> None:
        """Release the other machines after the run."""

    def lost(self) -> str:
        """Return which machines have died, in words; empty if none has."""


@dataclass(frozen=True)
class Needs:
    """The resources of one run: cores, GPUs, and the disk space that its state uses permanently.

    The run's ``processes`` are divided equally among its machines.
    """

    cpus: int = 1
    gpus: int = 0
    disk_bytes: int = 0
    processes: int = 1


@dataclass(frozen=True)
class Processes:
    """A run of several processes (`isolaw.executors.launcher`).

    ``spec`` is the run that the processes execute. ``count`` is their number over all machines of the run.
    Each process executes ``python -m MODULE ADDRESS PORT`` and connects through `isolaw.children`. A
    ``threaded`` process uses its share of the machine's cores (for an optimiser in host memory).
    """

    spec: RunSpec
    module: str
    count: int
    threaded: bool = False


@dataclass(frozen=True)
class RunContext:
    """The context in which an executor runs a run: the state to continue from, its folder and its machines.

    ``folder`` is the run's own folder, which need not exist. isolaw keeps files that a backend's trainer
    writes there. Once ``stopping`` returns True, the run must yield a `Checkpoint` as soon as it can continue
    from one.
    """

    state: Path | None = None
    folder: Path | None = None
    stopping: Callable[[], bool] = field(default=lambda: False, compare=False)
    nodes: Nodes | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Outlook:
    """A backend's knowledge about runs before they execute, as JSON-compatible data.

    ``memory`` has the distinct memory plans of GPUs, each with its number of ``runs``; ``commands`` has the
    commands that would train, each with its ``run_id``; ``notes`` are for the user.
    """

    memory: list[dict[str, Any]] = field(default_factory=list)
    commands: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class UnreadableState(RunError):
    """A state is intact (its checksum is right), but the run cannot continue from it.

    Either another version wrote the state, or this machine lacks a library. isolaw does not discard the
    state.
    """

    def __init__(self, folder: Path, error: Exception) -> None:
        super().__init__(
            f"{folder}: the run cannot continue from this state ({type(error).__name__}: {error}). The state "
            "is unchanged. Remove the folder to start the run again"
        )


def saving(step: int) -> Callable[[Path], None]:
    """Return the ``save`` of a checkpoint whose state consists of its step only; `saved_step` reads it."""

    def save(folder: Path) -> None:
        (folder / "state.json").write_text(json.dumps({"step": step}))

    return save


def saved_step(state: Path | None) -> int:
    """Return the step in a state from `saving`, or -1 if there is no state."""
    if state is None:
        return -1
    try:
        return int(json.loads((state / "state.json").read_text())["step"])
    except Exception as error:
        raise UnreadableState(state, error) from error


def sampling_issues(spec: RunSpec, why: str) -> list[Issue]:
    """Return an issue for each key that tells a sampler how to evaluate; ``why`` is the backend's reason."""
    given = {key: getattr(spec.evaluation, key) for key in ("temperature", "top_p", "responses")}
    return [Issue(f"evaluation.{key}", why, value) for key, value in given.items() if value is not None]


class Backend(Protocol):
    """The base class of backends, which execute runs. The defaults are for one process without a GPU."""

    name: str
    version: int  # version of the semantics; increase it if the same spec gives different results

    def with_axes(
        self, spec: SweepSpec, directory: Path, notes: list[str]
    ) -> tuple[SweepSpec, Runs | None, bool]:
        """Return a sweep whose unset axes have the backend's values; add notes for the user to ``notes``.

        Also return the runs that the sweep's ``directory`` must store, or None, and whether isolaw leaves out
        combinations for which `check` returns the issue ``grid`` alone.
        """
        return spec, None, False

    def resolve(self, spec: RunSpec) -> RunSpec:
        """Fill in the backend's defaults and content hashes; raise `SpecError` for invalid options."""

    def notes(self, spec: RunSpec) -> list[str]:
        """Return notes for the user about the defaults that an unresolved spec will get."""
        return []

    def check(self, spec: RunSpec) -> list[Issue]:
        """Return all issues of a resolved spec that can be found without executing code that it names."""

    def check_code(self, spec: RunSpec) -> list[Issue]:
        """Execute the code that a resolved spec names as far as needed to find its issues, and return them.

        isolaw calls this when a sweep starts, before any run, but not in a dry run.
        """
        return []

    def jobs(self, spec: RunSpec) -> int:
        """Return the default number of runs that execute concurrently on this machine."""
        return os.cpu_count() or 1

    def needs(self, spec: RunSpec) -> Needs:
        """Return the resources of one run."""
        return Needs()

    def on_machines(
        self, cpus: int, gpus: int, gpu_bytes: int | None = None, gpu: str = ""
    ) -> AbstractContextManager[None]:
        """Return a context in which runs are resolved and checked for another kind of machine.

        ``gpu_bytes`` is the memory of one GPU, and ``gpu`` is its name, if they are known.
        """
        return nullcontext()

    def when_stopped(self, spec: RunSpec) -> str:
        """Return in words what a run does if the user stops the sweep."""
        return "runs save their state at their next step"

    def check_here(self, spec: RunSpec) -> list[Issue]:
        """Return the issues of a resolved spec on this machine, if its runs execute here."""
        return []

    def outlook(self, runs: Sequence[RunSpec], folder: Callable[[RunSpec], Path], nodes: int = 1) -> Outlook:
        """Return the backend's knowledge about resolved runs, each on a number of ``nodes``.

        ``folder`` returns a run's output folder.
        """
        return Outlook()

    def estimate(self, spec: RunSpec) -> Cost | None:
        """Return the estimated cost of a resolved run's steps; None if the backend cannot estimate it."""
        return None

    def processes(self, spec: RunSpec) -> Processes | None:
        """Return the processes that execute the run, or None if `run` executes it in this process."""
        return None

    def run(self, spec: RunSpec, ctx: RunContext) -> Iterator[Checkpoint]:
        """Execute the run from its start, or from ``ctx.state``, and yield its checkpoints."""
