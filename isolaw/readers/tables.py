"""Tables as runs: a CSV, Parquet or JSON lines file, its columns mapped to the data model's names.

A *long* table has columns ``metric`` and ``value``; in a *wide* one the metric is a column's name.
A run is one combination of the identity columns: problem set, algorithm, B_p, n, seed, and every
further column that the user maps to a name of their own (``lr=learning_rate``).
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.errors import DataError, nearest, unknown
from isolaw.readers.assignments import ALIASES, DEFAULTS
from isolaw.readers.mapping import ColumnMapping
from isolaw.readers.table_files import load
from isolaw.runs import COLUMNS, IDENTITY, KEY, Runs, plain


def read_table(path: str | Path, mapping: ColumnMapping | None = None, metric: str | None = None) -> Runs:
    """Read a CSV, Parquet or JSON lines table as `Runs`.

    ``metric`` is the column of the rewards in a wide table without mapped metrics (``avg@4`` by default).
    Raises `DataError` if the file, the mapping or the content cannot be used; it says what to change.
    """
    source = str(path)
    frame = load(path)
    if set(COLUMNS) <= set(frame.columns) and not mapping:
        # The data model's own table: Parquet holds the attributes of its runs, CSV cannot.
        return Runs(frame, source=source) if frame.index.name == "line" else Runs.from_parquet(path)
    notes: list[str] = list(frame.attrs.get("notes", ()))
    mapping = mapping or ColumnMapping()
    own_names = [name for name in mapping.names if name not in COLUMNS and name != metric]
    for name in own_names:
        if ALIASES.get(name) in COLUMNS:  # it would silently become an attribute
            raise DataError(
                f"{source}: {name!r} is no column of the data model; did you mean {ALIASES[name]!r}?"
            )
    table = mapping.apply(frame, source)
    if mapping.metrics:
        table, melted = mapping.melt(table, source)
        notes += melted
    elif "value" in mapping.names and "metric" not in table.columns:
        table["metric"] = metric or "avg@4"  # --column names the rewards, --metric their metric
    if not {"metric", "value"} <= set(table.columns):
        name = metric or "avg@4"
        if name not in table.columns:
            missing = unknown("column", name, table.columns)
            raise DataError(f"{source}: name the metric with --metric: {missing}")
        table = table.assign(metric=name, value=table[name])
    _require_configuration(table, source, frame)
    for name, value in {**DEFAULTS, "eval_set": "validation"}.items():
        if name not in table.columns:
            table[name] = value
    identity = [*IDENTITY, *own_names]
    empty = table[identity].isna()
    if empty.any(axis=None):
        name = next(c for c in identity if empty[c].any())
        raise DataError(f"{source}: {name} is empty in {table.index.name} {table.index[empty[name]][0]}")
    table["run_id"] = table["run_id"].astype("str") if "run_id" in table else _run_ids(table, identity)
    notes += _fill_step_and_compute(table)
    if mapping.metrics:
        table = table.dropna(subset="value")  # after the steps were numbered
        if table.empty:
            columns = ", ".join(sorted({own.column for own in mapping.metrics.values()}))
            raise DataError(f"{source}: the metrics' columns are empty: {columns}")
    unused = [c for c in frame.columns if c not in {*mapping.sources, *COLUMNS, metric}]
    notes += _check_unused(table, unused, source)
    attributes = {
        str(row["run_id"]): {name: plain(row[name]) for name in own_names}
        for row in table.drop_duplicates("run_id").to_dict("records")
        if own_names
    }
    return Runs(table, attributes, source=source, notes=tuple(notes))


def _require_configuration(table: pd.DataFrame, source: str, frame: pd.DataFrame) -> None:
    ways = {
        name: f"{name}: --column {name}=<column> or --constant {name}=<number>"
        for name in ("problems_per_batch", "rollouts_per_problem")
        if name not in table.columns
    }
    if "compute" not in table.columns and "step" not in table.columns:
        derived = '--column step=<column> or --derive "compute=<arithmetic>"'
        ways["compute"] = f"compute: --column compute=<column> or {derived}"
    if ways:
        raise DataError(
            f"{source}: unknown {', '.join(ways)}. {'; '.join(ways.values())}. "
            f"Columns: {', '.join(map(str, frame.columns))}"
        )


def _check_unused(table: pd.DataFrame, unused: list[str], source: str) -> list[str]:
    """Refuse runs that only unmapped columns tell apart; note unmapped columns that differ between runs."""
    repeated = table[table.duplicated(KEY, keep=False)]
    if len(repeated):
        group = repeated[(repeated[KEY] == repeated[KEY].iloc[0]).all(axis=1)]
        differing = [c for c in unused if group[c].nunique(dropna=False) > 1]
        if differing:
            lines = " and ".join(f"{table.index.name} {i}" for i in group.index[:2])
            raise DataError(
                f"{source}: repeated (run, step): {lines} are both step {group['step'].iloc[0]} of one run, "
                f"but differ in {', '.join(differing)}. If that tells runs apart, map it, as in --column "
                f"{differing[0]}={differing[0]} (or --column seed={differing[0]} if it is the seed)"
            )
        return []
    per_run = table.groupby("run_id")[unused].nunique(dropna=False) if unused else {}
    of_runs = [c for c in unused if (per_run[c] == 1).all() and table[c].nunique() > 1]
    option = f" (--column {of_runs[0]}={of_runs[0]})" if of_runs else ""
    return [f"not mapped, but it differs between runs: {', '.join(of_runs)}{option}"] if of_runs else []


def _run_ids(table: pd.DataFrame, identity: list[str]) -> pd.Series:
    """Readable ids, as ``easy/grpo/B_p=32/n=8/seed=0``."""
    label = {"problem_set": "", "algorithm": "", "problems_per_batch": "B_p=", "rollouts_per_problem": "n="}
    parts = [label.get(name, f"{name}=") + table[name].map(lambda v: str(plain(v))) for name in identity]
    return reduce(lambda joined, part: joined + "/" + part, parts)


def _fill_step_and_compute(table: pd.DataFrame) -> list[str]:
    """Derive whichever of step and compute the table lacks, in place; return a note."""
    if "step" not in table.columns:
        # In the file's order; `Runs` then refuses compute that does not grow.
        table["step"] = table.groupby(["run_id", "eval_set", "metric"]).cumcount()
        if (pd.to_numeric(table["compute"], errors="coerce") > 0).all():
            table["step"] += 1
        return ["no step column: checkpoints are numbered in the file's order within each run"]
    if "compute" not in table.columns:
        names = ["problems_per_batch", "rollouts_per_problem", "step"]
        table["compute"] = (
            table[names].apply(pd.to_numeric, errors="coerce").astype("float64").prod(axis=1, skipna=False)
        )
        return ["no compute column: compute = problems_per_batch · rollouts_per_problem · step"]
    return []


def read_points(
    path: str | Path, x: str, mapping: ColumnMapping
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the columns ``x`` (compute or steps) and ``n_star`` of a table of ready-made points.

    Raises `DataError` if a column is missing or holds something other than numbers.
    """
    table = mapping.apply(load(path), str(path))
    out = []
    for name in (x, "n_star"):
        if name not in table.columns:
            close = nearest(name, map(str, table.columns))
            hint = f"did you mean --column {name}={close}? " if close else ""
            raise DataError(
                f"{path}: no column {name!r}; {hint}name it with --column {name}=<column>; "
                f"columns: {', '.join(map(str, table.columns))}"
            )
        numbers = pd.to_numeric(table[name], errors="coerce")
        bad = table.index[numbers.isna()]
        if len(bad):
            raise DataError(
                f"{path}: {name} is not a number in {table.index.name} {bad[0]}: {str(table[name][bad[0]])!r}"
            )
        out.append(np.asarray(numbers, dtype=np.float64))
    return out[0], out[1]
