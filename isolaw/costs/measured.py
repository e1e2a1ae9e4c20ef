"""The cost of a step from what a user or `isolaw doctor --gpu` measured: throughputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from isolaw import commands
from isolaw.config.sections import Index, Positive, Rate, Section
from isolaw.documents.reading import read_json, read_toml
from isolaw.documents.validation import located, parse_section
from isolaw.errors import DataError, InputError, SpecError
from isolaw.step_cost import Cost, CostOrigin, StepPart

_EVALUATE = "evaluate"


class Throughput(Section):
    """A user's own figures, ``[throughput]`` of a TOML file: of all GPUs of a run together.

    With τ and p tokens of a mean response and prompt, a token of a response takes
    1 / ``sampled_tokens_per_s`` to draw and (τ + p) / τ / ``trained_tokens_per_s`` to train on.
    """

    sampled_tokens_per_s: Positive
    trained_tokens_per_s: Positive
    tokens_per_response: Positive
    gpus: Index  # of a run; 0: a machine without GPUs
    tokens_per_prompt: Rate = 0.0
    step_overhead_s: Rate = 0.0  # of a step of any size: longest response, weights to the sampler
    evaluation_s: Rate | None = None
    start_s: Rate | None = None


class _File(Section):
    throughput: Throughput


def of_table(data: Mapping[str, Any], where: str = "") -> Cost:
    """Return the cost of a step from ``{"throughput": {…}}``; raise `SpecError` with all issues."""
    own = parse_section(_File, data, source=where).throughput
    tokens = (own.tokens_per_response + own.tokens_per_prompt) / own.tokens_per_response
    parts = {
        "generate": StepPart(0.0, 1 / own.sampled_tokens_per_s),
        "train": StepPart(0.0, tokens / own.trained_tokens_per_s),
        "overhead": StepPart(own.step_overhead_s, 0.0),
    }
    return Cost(
        parts, own.tokens_per_response, "tokens", CostOrigin.TABLE, where, own.gpus,
        evaluation_s=own.evaluation_s, start_s=own.start_s,
    )  # fmt: skip


def read_table(path: str | Path) -> Cost:
    """Return the cost of a step from a TOML file."""
    data = read_toml(path)
    try:
        return of_table(data, str(path))
    except SpecError as error:
        raise located(error, path) from None


def read_doctor(path: str | Path) -> Cost:
    """Return the cost of a step from the stage ``speed`` of a report of `isolaw doctor --gpu`.

    It made steps of two sizes, on one GPU, with a model of random weights: a and b of each part follow.
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
        again = commands.doctor_gpu("--only", "speed", "--out", str(path))
        raise DataError(f"{path}: the stage speed measured nothing; this measures it again: {again}")
    per_rollout = sum(tokens) / sum(batches)
    parts = {name: _line(tokens, [own[name] for own in seconds]) for name in seconds[0]}
    sizes = tuple(sorted(set(batches)))
    return Cost(
        parts, per_rollout, "tokens", CostOrigin.DOCTOR, str(path), int(on_gpu), gpu, model,
        batches=sizes, configurations=len(rows),
    )  # fmt: skip


def _line(units: list[float], seconds: list[float]) -> StepPart:
    """The a, b ≥ 0 of seconds at several sizes; a alone where there is one size."""
    from scipy.optimize import nnls

    design = np.stack([np.ones(len(units)), units if len(units) > 1 else np.zeros(1)], axis=1)
    a, b = nnls(design, np.array(seconds))[0]
    return StepPart(float(a), float(b))
