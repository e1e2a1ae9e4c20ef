"""Estimate the cost of runs in seconds, GPU hours and money.

    cost = isolaw.costs.read("runs/easy")           recorded runs of a sweep, or a table of runs with wall_s
    cost = isolaw.costs.read("step-times.csv")      seconds of steps, a column step_s
    cost.gpu_hours(32, 64, steps=500)               value and 95 % interval; None if the cost is unknown

The equations are in `isolaw.step_cost`, and the fit to recorded runs is in `isolaw.costs.recorded`.
"""

from __future__ import annotations

import csv
import io
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from isolaw.arguments import check_path
from isolaw.config.sections import Count, Index, Positive, Section
from isolaw.costs.recorded import RunTimes, check_backend, fit, of_runs
from isolaw.documents.validation import parse_section
from isolaw.errors import DataError, InputError, SpecError, Wording
from isolaw.files import open_file
from isolaw.registry import traits
from isolaw.step_cost import Cost, CostOrigin, StepPart

_RATE = re.compile(r"([0-9]*\.?[0-9]+)/s@([0-9]{1,6})")


class _StepTime(Section):
    """The seconds of one step with (B_p, n): an item of ``{"step": […]}``, or a row of a CSV file."""

    problems_per_batch: Count
    rollouts_per_problem: Count
    step_s: Positive
    gpus: Index | None = None  # number of GPUs of a run; 0 for a machine without GPUs


class _StepFile(Section):
    step: tuple[_StepTime, ...]


def _cost_of_steps(rows: Sequence[_StepTime], source: str) -> Cost:
    """Return the cost of a step from step times, one row for each run."""
    steps = np.array([1.0, 2.0])  # each row becomes two checkpoints that are one step apart
    run_times = [
        RunTimes(
            str(i), row.problems_per_batch, row.rollouts_per_problem, steps, None, steps * row.step_s,
            np.zeros(2, bool), {}, row.gpus,
        )
        for i, row in enumerate(rows)
    ]  # fmt: skip
    return fit(run_times, source)


def _read_step_times(path: str | Path) -> Cost | None:
    """Return the cost of a step from a CSV file of step times, or None if it has no column ``step_s``.

    Raises a `DataError` that lists each wrong value with the line of the file.
    """
    with open_file(path) as file:
        reader = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        header = set(reader.fieldnames or ())
        if "step_s" not in header:
            return None
        columns = [name for name in _StepTime.model_fields if name in header]
        if missing := [name for name in ("problems_per_batch", "rollouts_per_problem") if name not in header]:
            raise DataError(f"{path}:1: no column {', '.join(missing)}; found {', '.join(sorted(header))}")
        rows, problems = [], []
        for line, row in enumerate(reader, start=2):
            try:
                values = {name: float(row[name]) for name in columns if row[name]}
                rows.append(parse_section(_StepTime, values))
            except SpecError as error:
                problems += [f"{path}:{line}: {issue}" for issue in error.issues]
            except ValueError:
                problems.append(
                    f"{path}:{line}: found {', '.join(str(row[n]) for n in columns)}; expected numbers"
                )
    if problems:
        raise DataError(Wording(*problems))
    return _cost_of_steps(rows, str(path))


__all__ = ["Cost", "CostOrigin", "read"]


def read(source: Any) -> Cost:
    """Return the cost model of a source with times, or of a rate (see `isolaw.read_cost`)."""
    from isolaw.readers.read import read as read_runs
    from isolaw.runs import Runs

    if isinstance(source, Cost):
        return source
    if isinstance(source, Runs):
        return of_runs(source)
    if isinstance(source, Mapping):
        return _cost_of_steps(parse_section(_StepFile, source).step, "")
    if not isinstance(source, str | os.PathLike):
        return of_runs(read_runs(source))
    if match := _RATE.fullmatch(str(source)):
        rate, gpus = float(match[1]), int(match[2])
        if not rate:
            raise InputError(f"cost: found {source}; expected a positive number of rollouts a second")
        return Cost({"step": StepPart(0.0, 1 / rate)}, 1.0, "rollouts", CostOrigin.TABLE, str(source), gpus)
    check_path("source", source)
    path = Path(source)
    if not path.exists():
        raise InputError(
            f"{path}: no such file or directory; expected a sweep's directory, a table of step times "
            "(.csv), or a model and GPUs, e.g. qwen2.5-7b@h100-80g:8"
        )
    if path.suffix == ".csv" and (step_cost := _read_step_times(path)) is not None:
        return step_cost
    if path.is_dir() and (path / "sweep.json").exists():
        return fit(_times_of_sweep(path), str(path))
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always", UserWarning)
        cost = of_runs(read_runs(str(path)), str(path))
    left_out = [str(warning.message) for warning in caught_warnings if warning.category is UserWarning]
    return replace(cost, notes=(*cost.notes, *left_out))


def _times_of_sweep(path: Path) -> list[RunTimes]:
    """Return the recorded times of the runs in a sweep's directory."""
    from isolaw.store import SweepStore

    store = SweepStore(path)
    times = []
    for run_id, spec in store.specs()[0].items():
        check_backend(spec.backend, str(path))
        if lines := store.run(run_id).recorded().checkpoints:
            model = Path(spec.sources["model"]).name if "model" in spec.sources else ""
            identity = (run_id, *spec.shape)
            if not traits(spec.backend).by_command:
                times.append(RunTimes.of_lines(*identity, lines, model))
            elif run_times := RunTimes.of_trainer(*identity, lines):
                times.append(run_times)
    return times
