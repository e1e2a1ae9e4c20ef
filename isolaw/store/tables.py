"""The tables of a sweep: its runs' lines, as one frame, and as files that can always be rebuilt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from isolaw.errors import StoreError
from isolaw.runs import Runs
from isolaw.spec import RunSpec
from isolaw.store.files import replacing
from isolaw.store.sweep import SweepStore


def collect(store: SweepStore) -> Runs:
    """Return all recorded checkpoints of a sweep, also those of unfinished runs."""
    records: list[dict[str, Any]] = []
    problems: list[pd.DataFrame] = []
    attributes = {}
    unfinished = 0
    for run_id in store.run_ids():
        run = store.run(run_id)
        spec = run.read_spec()
        lines = run.lines()
        if lines:
            records += _records(run_id, spec, lines)
            problems += _problem_results(run_id, lines, run.problem_ids())
            attributes[run_id] = attributes_of(spec)
            unfinished += run.done_compute(lines) // spec.batch_rollouts < spec.steps
    damaged = store.damaged()
    lost = f"left out, since their spec.json is lost or empty: runs {', '.join(damaged)}" if damaged else ""
    if not records:
        raise StoreError(f"{store.directory}: no checkpoint has been recorded yet{lost and f' ({lost})'}")
    notes = (f"{unfinished} of {len(attributes)} runs are not finished",) if unfinished else ()
    return Runs(
        pd.DataFrame.from_records(records),
        attributes,
        str(store.directory),
        (*notes, f"{lost} (the sweep's own command writes it anew)") if lost else notes,
        pd.concat(problems, ignore_index=True) if problems else None,
    )


def publish(directory: Path, runs: Runs) -> Path:
    """Write ``points.parquet``, and ``problems.parquet`` where there are results of single problems."""
    path = directory / "points.parquet"
    tables = {path: runs.to_parquet}
    if runs.problems is not None:
        tables[directory / "problems.parquet"] = runs.problems.to_parquet
    for target, write in tables.items():
        with replacing(target) as temporary:
            write(temporary)
    return path


def _records(run_id: str, spec: RunSpec, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    run = {
        "run_id": run_id,
        "problem_set": spec.problems.set,
        "algorithm": spec.recipe.algorithm,
        "problems_per_batch": spec.problems_per_batch,
        "rollouts_per_problem": spec.rollouts_per_problem,
        "seed": spec.seed,
    }
    per_line = ("step", "compute", "tokens", "wall_s")
    return [{**run, **{k: line[k] for k in per_line}, **row} for line in lines for row in line["rows"]]


def _problem_results(
    run_id: str, lines: list[dict[str, Any]], ids: dict[str, list[str]]
) -> list[pd.DataFrame]:
    return [
        pd.DataFrame(
            {
                "run_id": run_id,
                "step": line["step"],
                "eval_set": eval_set,
                "problem_id": ids[eval_set],
                "correct": counts["correct"],
                "samples": counts["samples"],
            }
        )
        for line in lines
        for eval_set, counts in line.get("counts", {}).items()
    ]


def attributes_of(spec: RunSpec) -> dict[str, Any]:
    """Return what rides on a run beside its columns: backend, recipe, D, model."""
    recipe = spec.recipe.model_dump(exclude={"algorithm"}, exclude_none=True)
    own: dict[str, Any] = {"backend": spec.backend, **recipe, **spec.options.get("recorded", {})}
    if spec.backend != "replay" and spec.problems.n_train is not None:
        own["n_train_problems"] = spec.problems.n_train
    if "model" in spec.sources:
        own["model"] = Path(spec.sources["model"]).name
    return own
