"""Tables as runs: a CSV, Parquet or JSON lines file, its columns mapped to the data model's names.

A *long* table has columns ``metric`` and ``value``; in a *wide* one the metric is a column's name.
A run is one combination of the identity columns: problem set, algorithm, B_p, n, seed, and every
further column that was mapped to a name of the user's own (``lr=learning_rate``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from isolaw.errors import DataError, unknown
from isolaw.readers.arithmetic import derive
from isolaw.readers.load import load
from isolaw.runs import COLUMNS, Runs, plain

if TYPE_CHECKING:
    from isolaw.readers.mapping import Metrics

IDENTITY = ["problem_set", "algorithm", "problems_per_batch", "rollouts_per_problem", "seed"]
_DEFAULTS: dict[str, Any] = {
    "problem_set": "unnamed",
    "algorithm": "grpo",
    "seed": 0,
    "eval_set": "validation",
}


@dataclass(frozen=True)
class Mapped:
    """How a foreign table's columns become ours.

    Attributes
    ----------
    columns
        our name → the table's column.
    derive
        our name → arithmetic on columns (`isolaw.readers.arithmetic`).
    constants
        our name → one value for all rows.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    derive: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of ours that are given."""
        return [*self.columns, *self.derive, *self.constants]

    @property
    def sources(self) -> set[str]:
        """The table's columns that are used."""
        in_arithmetic = {word for text in self.derive.values() for word in re.findall(r"\w+", text)}
        return {*self.columns.values(), *in_arithmetic}

    def __bool__(self) -> bool:
        return bool(self.columns or self.derive or self.constants)

    def apply(self, frame: pd.DataFrame, source: str) -> pd.DataFrame:
        """Return ``frame`` with the mapped columns added or replaced."""
        out = frame.copy()
        for name, column in self.columns.items():
            if column not in frame.columns:
                said = unknown("column", column, frame.columns)
                raise DataError(f"{source}: --column {name}={column}: {said}")
            out[name] = frame[column]
        for name, expression in self.derive.items():
            out[name] = derive(expression, dict(out.items()))
        for name, value in self.constants.items():
            out[name] = value
        return out


def read_table(
    path: str | Path,
    mapped: Mapped | None = None,
    metric: str | None = None,
    metrics: Metrics | None = None,
) -> Runs:
    """Read a table as `Runs`.

    Parameters
    ----------
    path
        CSV, Parquet or JSON lines.
    mapped
        how columns are named there.
    metric
        in a wide table, the column that holds the rewards; ``avg@4`` unless given.
    metrics
        or which columns hold which metrics; their empty cells are left out.

    Raises
    ------
    DataError
        the file, the mapping, or the content cannot be used; the message says which and how to mend it.
    """
    source = str(path)
    frame = load(path)
    if set(COLUMNS) <= set(frame.columns) and not mapped and not metrics:
        # Our own table: as Parquet it carries the attributes of its runs, as CSV it cannot.
        return Runs(frame, source=source) if frame.index.name == "line" else Runs.from_parquet(path)
    notes: list[str] = list(frame.attrs.get("notes", ()))
    mapped = mapped or Mapped()
    _refuse_symbols([name for name in mapped.names if name != metric], source)
    table = mapped.apply(frame, source)
    if metrics:
        table, said = metrics.melt(table, source)
        notes += said
    elif "value" in mapped.names and "metric" not in table.columns:
        table["metric"] = metric or "avg@4"  # the rewards were named; the metric is their name
    if not {"metric", "value"} <= set(table.columns):
        table = _widened(table, metric or "avg@4", source)
    _require_configuration(table, source, frame)
    for name, value in _DEFAULTS.items():
        if name not in table.columns:
            table[name] = value
    attributes_of = [name for name in mapped.names if name not in COLUMNS and name != metric]
    identity = [*IDENTITY, *attributes_of]
    empty = table[identity].isna()
    if empty.any(axis=None):
        name = next(c for c in identity if empty[c].any())
        raise DataError(f"{source}: {name} is empty in {table.index.name} {table.index[empty[name]][0]}")
    table["run_id"] = table["run_id"].astype("str") if "run_id" in table else _run_ids(table, identity)
    notes += _fill_step_and_compute(table, source)
    if metrics:
        table = table.dropna(subset="value")  # after the steps were numbered
        if table.empty:
            raise DataError(f"{source}: the metrics' columns are empty: {', '.join(sorted(metrics.sources))}")
    used = {*mapped.sources, *COLUMNS, metric, *(metrics.sources if metrics else ())}
    unused = [c for c in frame.columns if c not in used]
    notes += _check_unused(table, unused, source)
    attributes = {
        str(row["run_id"]): {name: plain(row[name]) for name in attributes_of}
        for row in table.drop_duplicates("run_id").to_dict("records")
        if attributes_of
    }
    return Runs(table, attributes, source=source, notes=tuple(notes))


def _widened(table: pd.DataFrame, metric: str, source: str) -> pd.DataFrame:
    if metric not in table.columns:
        raise DataError(
            f"{source}: name the metric with --metric: {unknown('column', metric, table.columns)}"
        )
    return table.assign(metric=metric, value=table[metric])


def _require_configuration(table: pd.DataFrame, source: str, frame: pd.DataFrame) -> None:
    missing = [c for c in ("problems_per_batch", "rollouts_per_problem") if c not in table.columns]
    if "compute" not in table.columns and "step" not in table.columns:
        missing.append("compute")
    if missing:
        ways = "; ".join(
            f"{name}: --column {name}=<column> or "
            + (
                '--column step=<column> or --derive "compute=<arithmetic>"'
                if name == "compute"
                else f"--constant {name}=<number>"
            )
            for name in missing
        )
        raise DataError(
            f"{source}: unknown {', '.join(missing)}. {ways}. Columns: {', '.join(map(str, frame.columns))}"
        )


_SYMBOLS = {"n": "rollouts_per_problem", "B_p": "problems_per_batch", "C": "compute", "M": "step"}


def _refuse_symbols(names: list[str], source: str) -> None:
    """A symbol where its name in code is meant would silently become an attribute."""
    for name in names:
        if name in _SYMBOLS:
            raise DataError(f"{source}: {name!r} is not a column of ours; did you mean {_SYMBOLS[name]!r}?")


def _check_unused(table: pd.DataFrame, unused: list[str], source: str) -> list[str]:
    """Look at what was not mapped: it may be what tells runs apart."""
    key = ["run_id", "step", "eval_set", "metric"]
    twice = table[table.duplicated(key, keep=False)]
    if len(twice):
        group = twice[(twice[key] == twice[key].iloc[0]).all(axis=1)]
        differing = [c for c in unused if group[c].nunique(dropna=False) > 1]
        if differing:
            lines = " and ".join(f"{table.index.name} {i}" for i in group.index[:2])
            raise DataError(
                f"{source}: repeated (run, step): {lines} are both step {group['step'].iloc[0]} of one run, "
                f"but differ in {', '.join(differing)}. If that tells runs apart, map it, as in --column "
                f"{differing[0]}={differing[0]} (or --column seed={differing[0]} if it is the seed)"
            )
        return []
    per_run = table.groupby("run_id")[unused].nunique(dropna=False) if unused else None
    of_runs = [
        c for c in unused if per_run is not None and (per_run[c] == 1).all() and table[c].nunique() > 1
    ]
    if not of_runs:
        return []
    return [
        f"not mapped, but it differs between runs: {', '.join(of_runs)} (--column {of_runs[0]}={of_runs[0]})"
    ]


def _run_ids(table: pd.DataFrame, identity: list[str]) -> pd.Series:
    """Readable ids: the identity's parts, in words."""
    short = {"problems_per_batch": "B_p", "rollouts_per_problem": "n"}
    parts = []
    for name in identity:
        text = table[name].map(lambda v: str(plain(v)))
        parts.append(text if name in ("problem_set", "algorithm") else f"{short.get(name, name)}=" + text)
    joined = parts[0]
    for part in parts[1:]:
        joined = joined + "/" + part
    return joined


def _fill_step_and_compute(table: pd.DataFrame, source: str) -> list[str]:
    """Derive whichever of step and compute the table lacks, and say so."""
    if "step" not in table.columns:
        # In the file's order; `Runs` then refuses compute that does not grow.
        table["step"] = table.groupby(["run_id", "eval_set", "metric"]).cumcount()
        if (pd.to_numeric(table["compute"], errors="coerce") > 0).all():
            table["step"] += 1
        return ["no step column: checkpoints are numbered in the file's order within each run"]
    if "compute" not in table.columns:
        product = np.ones(len(table))
        for name in ("problems_per_batch", "rollouts_per_problem", "step"):
            product = product * np.asarray(pd.to_numeric(table[name], errors="coerce"), dtype=np.float64)
        table["compute"] = product
        return ["no compute column: compute = problems_per_batch · rollouts_per_problem · step"]
    return []
