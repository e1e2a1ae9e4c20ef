"""Estimate the cost of runs in seconds, GPU hours and money.

    cost = isolaw.costs.read("runs/easy")           recorded runs of a sweep, or a table of runs with wall_s
    cost = isolaw.costs.read("12/s@8")              12 rollouts a second on 8 GPUs
    cost.gpu_hours(32, 64, steps=500)               value and 95 % interval; None if the cost is unknown

The equations are in `isolaw.step_cost`, and the fit to recorded runs is in `isolaw.costs.recorded`.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from isolaw.arguments import check_path
from isolaw.costs.recorded import RunTimes, check_backend, fit, of_runs
from isolaw.errors import InputError
from isolaw.registry import traits
from isolaw.step_cost import Cost, CostOrigin, StepPart

__all__ = ["Cost", "CostOrigin", "read"]

_RATE = re.compile(r"([0-9]*\.?[0-9]+)/s@([0-9]{1,6})")


def read(source: Any) -> Cost:
    """Return the cost model of a source with times, or of a rate (see `isolaw.read_cost`)."""
    from isolaw.readers.read import read as read_runs
    from isolaw.runs import Runs

    if isinstance(source, Cost):
        return source
    if isinstance(source, Runs):
        return of_runs(source)
    if not isinstance(source, str | os.PathLike):
        return of_runs(read_runs(source))
    if match := _RATE.fullmatch(str(source)):
        rate, gpus = float(match[1]), int(match[2])
        if not rate:
            raise InputError(f"cost: found {source}; expected a positive number of rollouts a second")
        return Cost({"step": StepPart(0.0, 1 / rate)}, 1.0, "rollouts", CostOrigin.RATE, str(source), gpus)
    check_path("source", source)
    path = Path(source)
    if not path.exists():
        raise InputError(
            f"{path}: no such file or directory; expected a sweep's directory, runs or logs with times, a "
            "rate, e.g. 12/s@8, or a model and GPUs, e.g. qwen2.5-7b@h100-80g:8"
        )
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
