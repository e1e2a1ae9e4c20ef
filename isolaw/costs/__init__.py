"""Estimate the cost of runs in seconds, GPU hours and money.

    cost = isolaw.costs.read("runs/easy")           recorded runs of a sweep, or a table of runs with wall_s
    cost = isolaw.costs.read("report.json")         isolaw doctor --gpu
    cost = isolaw.costs.read("throughput.toml")     your own figures
    cost = isolaw.costs.read("step-times.csv")      seconds of steps, a column step_s
    cost.gpu_hours(32, 64, steps=500)               value and 95 % interval; None if the cost is unknown

The equations are in `isolaw.step_cost`, and the fit to recorded runs is in `isolaw.costs.recorded`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isolaw.arguments import check_path, checked
from isolaw.errors import InputError
from isolaw.registry import traits
from isolaw.step_cost import Cost, CostOrigin

if TYPE_CHECKING:
    from isolaw.costs.recorded import Timed

__all__ = ["Cost", "CostOrigin", "read", "read_cost"]


@checked
def read(source: Any) -> Cost:
    """Return the cost model of a source.

    Parameters
    ----------
    source
        one of the following:

        - a sweep's directory;
        - a report of ``isolaw doctor --gpu`` (``.json``);
        - throughputs: a ``.toml`` file, or the mapping ``{"throughput": {…}}``;
        - step times: a ``.toml`` file, the mapping ``{"step": [{…}]}``, or a ``.csv`` file with a column
          ``step_s``;
        - runs with ``wall_s``, as `isolaw.Runs` or in any form that `isolaw.read` accepts;
        - a `Cost`, which is returned unchanged.

    Raises
    ------
    InputError
        the source does not exist, is not of these kinds, or records no time.

    >>> cost = read({"throughput": {"sampled_tokens_per_s": 20_000, "trained_tokens_per_s": 40_000,
    ...                             "tokens_per_response": 1000, "gpus": 8}})
    >>> cost.gpu_hours(32, 64, 100).value
    34.13...
    """
    from isolaw.costs import measured, recorded
    from isolaw.readers.read import read as read_runs
    from isolaw.runs import Runs

    if isinstance(source, Cost):
        return source
    if isinstance(source, Runs):
        return recorded.of_runs(source)
    if isinstance(source, Mapping):
        return measured.of_table(source)
    if not isinstance(source, str | os.PathLike):
        return recorded.of_runs(read_runs(source))
    check_path("source", source)
    path = Path(source)
    if not path.exists():
        raise InputError(
            f"{path}: no such file or directory; expected a sweep's directory, a report of isolaw doctor "
            "--gpu (.json), or a table of throughputs (.toml)"
        )
    if path.suffix == ".toml":
        return measured.read_table(path)
    if path.suffix == ".csv" and (timed := measured.read_step_times(path)) is not None:
        return timed
    if path.suffix == ".json":
        return measured.read_doctor(path)
    if path.is_dir() and (path / "sweep.json").exists():
        return recorded.fit(_of_sweep(path), str(path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        cost = recorded.of_runs(read_runs(str(path)), str(path))
    left_out = [str(warning.message) for warning in caught if warning.category is UserWarning]
    return replace(cost, notes=(*cost.notes, *left_out))


read_cost = read  # the public name in `isolaw`


def _of_sweep(path: Path) -> list[Timed]:
    """Return the recorded times of the runs in a sweep's directory."""
    from isolaw.costs import recorded
    from isolaw.store import SweepStore

    store = SweepStore(path)
    out = []
    for run_id, spec in store.specs()[0].items():
        recorded.check_backend(spec.backend, str(path))
        if lines := store.run(run_id).recorded().checkpoints:
            model = Path(spec.sources["model"]).name if "model" in spec.sources else ""
            identity = (run_id, *spec.shape)
            if not traits(spec.backend).by_command:
                out.append(recorded.Timed.of_lines(*identity, lines, model))
            elif timed := recorded.Timed.of_trainer(*identity, lines):
                out.append(timed)
    return out
