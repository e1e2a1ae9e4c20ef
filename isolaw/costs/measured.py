"""Compute the cost of a step from throughputs or step times, measured by the user or `isolaw doctor --gpu`.

The times of two steps of different size determine a and b in a + b · T. More than two step times are fitted
like recorded runs (`isolaw.costs.recorded`), with the same cross-validation.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isolaw import commands
from isolaw.config.sections import Count, Index, Positive, Rate, Section
from isolaw.costs.recorded import Timed, fit
from isolaw.documents.reading import read_json, read_toml
from isolaw.documents.validation import located, parse_section
from isolaw.errors import DataError, InputError, SpecError, Wording
from isolaw.files import open_file
from isolaw.step_cost import Cost, CostOrigin, StepPart

_EVALUATE = "evaluate"


class _Throughput(Section):
    """The user's own throughputs, summed over all GPUs of a run: ``[throughput]`` of a TOML file.

    If the mean response has τ tokens and the mean prompt p tokens, each response token takes
    1 / ``sampled_tokens_per_s`` seconds to sample and (τ + p) / τ / ``trained_tokens_per_s`` seconds to train
    on.
    """

    sampled_tokens_per_s: Positive
    trained_tokens_per_s: Positive
    tokens_per_response: Positive
    gpus: Index  # number of GPUs of a run; 0 for a machine without GPUs
    tokens_per_prompt: Rate = 0.0
    step_overhead_s: Rate = (
        0.0  # seconds that a step of any size takes, for the longest response and the transfer of weights
    )
    evaluation_s: Rate | None = None
    start_s: Rate | None = None


class _StepTime(Section):
    """The seconds of one step with (B_p, n): a ``[[step]]`` of a TOML file, or a row of a CSV file."""

    problems_per_batch: Count
    rollouts_per_problem: Count
    step_s: Positive
    gpus: Index | None = None  # number of GPUs of a run; 0 for a machine without GPUs


class _File(Section):
    throughput: _Throughput


class _StepFile(Section):
    step: tuple[_StepTime, ...]


def of_table(data: Mapping[str, Any], where: str = "") -> Cost:
    """Return the cost of a step from ``{"throughput": {…}}``, or from ``{"step": [{…}, …]}``.

    Raises `SpecError` with all issues.
    """
    if "step" in data:
        return _of_steps(parse_section(_StepFile, data, source=where).step, where)
    throughput = parse_section(_File, data, source=where).throughput
    tokens = (throughput.tokens_per_response + throughput.tokens_per_prompt) / throughput.tokens_per_response
    parts = {
        "generate": StepPart(0.0, 1 / throughput.sampled_tokens_per_s),
        "train": StepPart(0.0, tokens / throughput.trained_tokens_per_s),
        "overhead": StepPart(throughput.step_overhead_s, 0.0),
    }
    return Cost(
        parts, throughput.tokens_per_response, "tokens", CostOrigin.TABLE, where, throughput.gpus,
        evaluation_s=throughput.evaluation_s, start_s=throughput.start_s,
    )  # fmt: skip


def _of_steps(rows: Sequence[_StepTime], where: str) -> Cost:
    """Return the cost of a step from step times, one row for each run."""
    one = np.array([1.0, 2.0])  # each row becomes two checkpoints that are one step apart
    none = np.zeros(2, bool)
    timed = [
        Timed(
            str(i), row.problems_per_batch, row.rollouts_per_problem, one, None, one * row.step_s, none, {},
            row.gpus,
        )
        for i, row in enumerate(rows)
    ]  # fmt: skip
    return fit(timed, where)


def read_step_times(path: str | Path) -> Cost | None:
    """Return the cost of a step from a CSV file of step times, or None if it has no column ``step_s``.

    Raises a `DataError` that lists each wrong value with the line of the file.
    """
    with open_file(path) as file:
        reader = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        names = set(reader.fieldnames or ())
        if "step_s" not in names:
            return None
        columns = [name for name in _StepTime.model_fields if name in names]
        if missing := [name for name in ("problems_per_batch", "rollouts_per_problem") if name not in names]:
            raise DataError(f"{path}:1: no column {', '.join(missing)}; found {', '.join(sorted(names))}")
        rows, wrong = [], []
        for line, row in enumerate(reader, start=2):
            try:
                given = {name: float(row[name]) for name in columns if row[name]}
                rows.append(parse_section(_StepTime, given))
            except SpecError as error:
                wrong += [f"{path}:{line}: {issue}" for issue in error.issues]
            except ValueError:
                wrong.append(
                    f"{path}:{line}: found {', '.join(str(row[n]) for n in columns)}; expected numbers"
                )
    if wrong:
        raise DataError(Wording(*wrong))
    return _of_steps(rows, str(path))


def read_table(path: str | Path) -> Cost:
    """Return the cost of a step from a TOML file of throughputs or step times."""
    data = read_toml(path)
    try:
        return of_table(data, str(path))
    except SpecError as error:
        raise located(error, path) from None


def read_doctor(path: str | Path) -> Cost:
    """Return the cost of a step from the stage ``speed`` of a report of `isolaw doctor --gpu`.

    The stage timed steps of two sizes on one GPU, with a model of random weights. These times determine a and
    b of each part of a step.
    """
    try:
        report = read_json(path)
        stages = {stage["stage"]: stage["measured"] for stage in report["stages"]}
        rows = stages.get("speed", {}).get("speed", [])
        tokens = [row["sampled_tokens_per_s"] * row["seconds_of_a_step"]["generate"] for row in rows]
        batches = [row["problems_per_batch"] * row["rollouts_per_problem"] for row in rows]
        seconds = [{k: v for k, v in row["seconds_of_a_step"].items() if k != _EVALUATE} for row in rows]
        on_gpu = report["device"] == "cuda"
        gpu = report["machine"]["gpus"][0]["name"] if on_gpu else ""
        model = "{architecture} of random weights, {parameters:,} parameters".format(**stages["model"])
    except (InputError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        if isinstance(error, InputError) and not Path(path).is_file():
            raise
        raise DataError(f"{path}: not a report of isolaw doctor --gpu") from None
    if not rows:
        again = commands.doctor_gpu("--out", str(path))
        raise DataError(f"{path}: the stage speed has no measurement. To measure it again: {again}")
    per_rollout = sum(tokens) / sum(batches)
    parts = {name: _line(tokens, [second[name] for second in seconds]) for name in seconds[0]}
    sizes = tuple(sorted(set(batches)))
    return Cost(
        parts, per_rollout, "tokens", CostOrigin.DOCTOR, str(path), int(on_gpu), gpu, model,
        batches=sizes, configurations=len(rows),
    )  # fmt: skip


def _line(units: list[float], seconds: list[float]) -> StepPart:
    """Fit the line a + b · units to the seconds at several sizes, with a, b ≥ 0. With one size, b is 0."""
    from scipy.optimize import nnls

    design = np.stack([np.ones(len(units)), units if len(units) > 1 else np.zeros(1)], axis=1)
    a, b = nnls(design, np.array(seconds))[0]
    return StepPart(float(a), float(b))
