"""Build the tables of a sweep from the lines of all runs, and write them to files that can be rebuilt."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import pandas as pd

from isolaw import commands
from isolaw.config import RunSpec, SweepSpec
from isolaw.errors import Damaged, NoHistory, NotOurs, Wording
from isolaw.registry import traits
from isolaw.runs import Runs, after_last_value
from isolaw.store.folder import POINTS, PROBLEMS, RECORDED, Folder
from isolaw.store.run import RunStore

_REPAIR_HINT = "Repeat the sweep's own command to repair it"


class _RecordedSweep(Protocol):
    """Protocol of the parts of `isolaw.store.sweep.SweepStore` that tables use."""

    directory: Path

    @property
    def root(self) -> Folder:
        """The open directory of the sweep."""

    def specs(self) -> tuple[dict[str, RunSpec], dict[str, str]]:
        """Return the specs of runs by id, and a cause by id for runs with results but no valid spec."""

    def run(self, run_id: str) -> RunStore:
        """Return the store of one run."""

    def read_spec(self) -> SweepSpec:
        """Return the sweep's spec; raise `Damaged` if its file is damaged."""


def collect(store: _RecordedSweep) -> Runs:
    """Return all recorded checkpoints of a sweep, including checkpoints of unfinished runs.

    Damaged lines, and runs with links in place of isolaw's files, are omitted and reported in the notes of
    the result. Raise `NoHistory` if there is no recorded checkpoint.
    """
    records: list[dict[str, Any]] = []
    problems: list[pd.DataFrame] = []
    attributes = {}
    unfinished = 0
    specs, damaged = store.specs()
    notes = [f"isolaw left out {cause}" for cause in damaged.values()]
    texts_by_code: dict[str, list[str]] = {}
    limits: dict[str, Any] = {}
    with contextlib.suppress(Damaged, NotOurs, OSError):
        sweep = store.read_spec()
        if not traits(sweep.sweep.backend).recorded:  # runs without a machine have no limit
            limits["max_batch_rollouts"] = sweep.limits.max_batch_rollouts
    for run_id, spec in specs.items():
        run = store.run(run_id)
        try:
            lines_read = run.recorded()
        except (NotOurs, OSError) as error:
            notes.append(f"isolaw left out run {run_id}: {getattr(error, 'what', error)}")
            continue
        if lines_read.damage:
            notes.append(f"isolaw left out a run: {lines_read.damage}. {_REPAIR_HINT}")
        if lines := lines_read.checkpoints:
            records += _records(run_id, spec, lines)
            try:
                problems += _problem_results(run_id, lines, run.problem_ids())
            except (Damaged, NotOurs, OSError, KeyError) as error:
                notes.append(f"isolaw left out the per-problem results of run {run_id}: {error}")
            attributes[run_id] = attributes_of(spec) | limits
            for note in lines_read.notes:
                texts_by_code.setdefault(note["code"], []).append(f"run {run_id}: {note['text']}")
            unfinished += not lines_read.is_done(spec)
    if not records:
        details = [*_failure_lines(store, list(specs)), *notes]
        text = f"{store.directory}: no checkpoint has been recorded yet"
        raise NoHistory(Wording(text, *(f"  - {sentence}" for sentence in details)))
    if unfinished:
        notes.insert(0, f"{unfinished} of {len(attributes)} runs are not finished")
    for text, *more_texts in texts_by_code.values():
        notes.append(f"{text} ({len(more_texts):,} more such notes)" if more_texts else text)
    problem_table = pd.concat(problems, ignore_index=True) if problems else None
    table = pd.DataFrame.from_records(records)
    is_missing = table["value"].isna()
    if is_missing.any():  # a diverged run ends in NaN; any other NaN was not measured
        table = table[~is_missing | after_last_value(table)]
    if table.empty:
        raise NoHistory(
            f"{store.directory}: all values that its runs recorded are NaN, so the training failed"
        )
    return Runs(table, attributes, str(store.directory), tuple(notes), problem_table)


def _failure_lines(store: _RecordedSweep, run_ids: list[str]) -> list[str]:
    """Return how many of the runs failed, with the first cause, and the command that lists all causes."""
    failures = [failure for run_id in run_ids if (failure := store.run(run_id).failure) is not None]
    if not failures:
        return []
    count = f"{len(failures)} of {len(run_ids)}" if len(failures) < len(run_ids) else f"all {len(run_ids)}"
    cause = failures[0].get("cause", "unknown").partition("\n")[0]
    return [
        f"{count} runs failed; the cause of the first failure: {cause}",
        f"this command lists all failures: {commands.sweep_status(store.directory)}",
    ]


def publish(store: _RecordedSweep, runs: Runs) -> None:
    """Write ``points.parquet``, and ``problems.parquet`` if there are per-problem results."""
    _write(store, POINTS, runs.to_parquet)
    if runs.problems is not None:
        _write(store, PROBLEMS, runs.problems.to_parquet)


def write_recorded(store: _RecordedSweep, recorded: Runs) -> None:
    """Write the recorded runs that the sweep replays to ``recorded.parquet``."""
    _write(store, RECORDED, recorded.to_parquet)


def _write(store: _RecordedSweep, name: str, write: Callable[[BinaryIO], None]) -> None:
    with store.root.replacing(name) as descriptor, os.fdopen(os.dup(descriptor), "wb") as file:
        write(file)


def _records(run_id: str, spec: RunSpec, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    run = {**columns_of(spec), "run_id": run_id}
    line_keys = ("step", "compute", "tokens", "wall_s")
    return [{**run, **{key: line[key] for key in line_keys}, **row} for line in lines for row in line["rows"]]


def _problem_results(
    run_id: str, lines: list[dict[str, Any]], ids: dict[str, list[str]]
) -> Iterator[pd.DataFrame]:
    for line in lines:
        for eval_set, counts in line.get("counts", {}).items():
            key = {"run_id": run_id, "step": line["step"], "eval_set": eval_set}
            results = {name: counts[name] for name in ("correct", "samples")}
            yield pd.DataFrame({**key, "problem_id": ids[eval_set], **results})


def columns_of(spec: RunSpec) -> dict[str, Any]:
    """Return the table columns that are constant within a run."""
    return {
        "run_id": spec.run_id,
        "problem_set": spec.problems.set,
        "algorithm": spec.recipe.algorithm,
        "problems_per_batch": spec.problems_per_batch,
        "rollouts_per_problem": spec.rollouts_per_problem,
        "seed": spec.seed,
    }


def attributes_of(spec: RunSpec) -> dict[str, Any]:
    """Return a run's attributes that are not columns: backend, recipe, D and model."""
    recipe = {
        key: _tuple_text(value) if isinstance(value, tuple) else value
        for key, value in spec.recipe.model_dump(exclude={"algorithm"}, exclude_none=True).items()
    }
    attributes: dict[str, Any] = {"backend": spec.backend, **recipe, **spec.options.get("recorded", {})}
    if not traits(spec.backend).recorded and spec.problems.n_train is not None:
        attributes["n_train_problems"] = spec.problems.n_train
    if framework := spec.options.get("framework", "none") != "none" and spec.options["framework"]:
        attributes["framework"] = framework
    if "model" in spec.sources:
        attributes["model"] = Path(spec.sources["model"]).name
    return attributes


def _tuple_text(values: tuple[Any, ...]) -> str:
    """Return a tuple as users write it to select runs, e.g. ``10240-12288``."""
    return "-".join(map(str, dict.fromkeys(values)))
