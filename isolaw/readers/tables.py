"""Read tables as runs: map the columns of a CSV, Parquet or JSON lines file to the data model.

A *long* table has the columns ``metric`` and ``value``; in a *wide* table the metric is the name of a column.
A run is one combination of the identity columns: problem set, algorithm, B_p, n, seed, and all other columns
that the user maps to a new name (``lr=learning_rate``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.commands import Placeholder, option
from isolaw.errors import DataError, nearest
from isolaw.evidence import Simulated
from isolaw.metrics import is_reward
from isolaw.readers import table_segments
from isolaw.readers.assignments import ALIASES, ASSUMED, DEFAULTS, NAME_PATTERN, SPLIT, Rule
from isolaw.readers.ends_in_nan import ends_in_nan
from isolaw.readers.frames import SOURCE, as_pandas
from isolaw.readers.mapping import ColumnMapping
from isolaw.readers.measures import (
    HELD_OUT,
    changes_unit,
    in_percent,
    named_percent,
    of_rows,
    of_training,
    words_of,
)
from isolaw.readers.names import METRIC_NAMES
from isolaw.readers.table_conflicts import (
    check_compute,
    check_counters,
    check_said_twice,
    of_training_rows,
    split_batch,
    steps_of_rollouts,
)
from isolaw.readers.table_files import WRITTEN_NAN, load
from isolaw.readers.table_needs import check_complete, value_alone
from isolaw.runs import COLUMNS, IDENTITY, KEY, Runs, after_last_value, check_sizes, plain


def read_table(
    path: str | Path,
    mapping: ColumnMapping | None = None,
    metric: str | None = None,
    rules: Sequence[Rule] = (),
    used: set[Rule] | None = None,
    name: str = "",
) -> Runs:
    """Read a CSV, Parquet or JSON lines table as `Runs`.

    ``metric`` is the column of the rewards in a wide table without mapped metrics (``avg@4`` by default).
    ``rules`` apply to runs named by a column; rules that supplied a value are added to ``used``. ``name`` is
    the name of the run, or of all runs that the table does not name itself. Raises `DataError` if the file,
    the mapping or the content cannot be used; the message explains the fix.
    """
    frame = load(path)
    if set(COLUMNS) <= set(frame.columns) and not mapping:
        # The data model's own table. Parquet contains the attributes of its runs; CSV cannot.
        return Runs(frame, source=str(path)) if frame.index.name == "line" else Runs.from_parquet(path)
    mapping = mapping or ColumnMapping()
    by_name: list[str] = []
    if rules:
        used = set() if used is None else used
        given = table_segments.from_names(frame, rules, used, mapping, str(path))
        by_name = [own for own in given.columns if own not in frame.columns]
        frame[given.columns] = given
        mapping = mapping.over(ColumnMapping(columns={name: name for name in given.columns}))
    runs = _as_runs(frame, str(path), mapping, metric, name)
    runs.origins |= dict.fromkeys(by_name, NAME_PATTERN)
    return runs


def read_frame(table: Any, mapping: ColumnMapping | None = None, metric: str | None = None) -> Runs:
    """Read an in-memory table (pandas, polars, Arrow; `isolaw.readers.frames`) as `Runs`."""
    frame = as_pandas(table)
    if set(COLUMNS) <= set(frame.columns) and not mapping:
        return Runs(frame, frame.attrs["attributes"], source=SOURCE)
    return _as_runs(frame, SOURCE, mapping or ColumnMapping(), metric)


def _as_runs(
    frame: pd.DataFrame, source: str, mapping: ColumnMapping, metric: str | None, name: str = ""
) -> Runs:
    notes: list[str] = list(frame.attrs.get("notes", ()))
    for recognise in (_with_symbols, _with_metric_names):
        mapping, recognised = recognise(frame, mapping)
        notes += recognised
    check_complete(frame, mapping, metric, source)
    reward = metric or "avg@4"
    own_names = [name for name in mapping.names if name not in {*COLUMNS, reward, SPLIT[2]}]
    table = mapping.apply(frame, source)
    alone = value_alone(frame, mapping, metric)
    wide = not (mapping.metrics or alone or "value" in mapping.names or {"metric", "value"} <= set(table))
    if mapping.metrics:
        table, melted = mapping.melt(table, source)
        notes += melted
    elif alone or ("value" in mapping.names and "metric" not in table.columns):
        if alone and metric is None:
            reward = "reward"
            notes.append(
                "isolaw uses the column value as the validation reward; name its metric, e.g. --metric avg@1"
            )
        table["metric"] = reward  # a column contains the rewards; --metric gives the name of their metric
    elif wide:
        table = table.assign(metric=reward, value=table[reward])
    free = [str(own) for own in frame.columns if own not in {*mapping.sources, *COLUMNS}]
    phase = ""
    if "eval_set" not in table and not (wide and words_of(reward) & HELD_OUT):
        phase, said = of_rows(table, [own for own in free if own != reward], source)
        if phase:
            table["eval_set"] = said
            notes.append(f"column {phase} marks the rows of training and of validation")
        elif wide and of_training(reward, free):
            table["eval_set"] = "train"
            notes.append(
                f"{reward} comes from training batches, so its evaluation set is train; otherwise pass "
                f"{option('constants', 'eval_set', 'validation')}"
            )
    split_batch(table, source)
    check_sizes(table, source)
    for column, value in {**DEFAULTS, "eval_set": "validation"}.items():
        if column not in table.columns:
            table[column] = value
    identity = [*IDENTITY, *own_names]
    unused = [c for c in frame.columns if c not in {*mapping.sources, *COLUMNS, metric, phase}]
    named = ["run_id"] if "run_id" in table else table_segments.names_of(table, unused)
    notes += of_training_rows(table, [*(own for own in identity if own not in SPLIT), *named], source)
    naming = None if "run_id" in table else table_segments.find(table, IDENTITY, unused)
    empty = table[identity].isna()
    if empty.any(axis=None):
        column = next(c for c in identity if empty[c].any())
        raise DataError(f"{source}: {column} is empty in {table.index.name} {table.index[empty[column]][0]}")
    there = {*mapping.names, *frame.columns}
    seeded, numbered = "seed" in there, "step" in table
    if naming:  # joined below; until then, each segment counts its own steps
        table["run_id"] = _run_ids(table, [*identity, *naming.names])
    elif "run_id" in table:
        table["run_id"] = table["run_id"].astype("str")
    else:
        varying = [column for column in identity if not name or table[column].nunique() > 1]
        table["run_id"] = _run_ids(table, varying, name)
    notes += _fill_step_and_compute(table)
    check_said_twice(table, frame, mapping, unused, source)
    notes += steps_of_rollouts(table) if "step" in there else []
    check_counters(table, frame, mapping, unused, source)
    of_reward = {reward: reward} if wide else {}
    columns = {name: own.column for name, own in mapping.metrics.items()} or of_reward
    if columns:
        written = pd.Series(False, index=table.index)
        for of, column in columns.items():
            nan = table.index.isin(list(frame.attrs.get(WRITTEN_NAN, {}).get(column, ())))
            written |= (table["metric"] == of) & nan
        ends, stopped = ends_in_nan(table, written)
        notes += stopped
        measured = table["value"].notna() | ends | (written & wide)
        if wide and not measured.all():
            notes.append(
                f"{(~measured).sum():,} of {len(table):,} rows have no {reward}, so it was not measured there"
            )
        table = table[measured]  # after the steps were numbered
        if table.empty:
            names = ", ".join(sorted(set(columns.values())))
            raise DataError(f"{source}: the metrics' columns are empty: {names}")
    given = {name for name, own in mapping.metrics.items() if own.is_percent is not None}
    table, converted = _in_fractions(table, given, source)
    notes += converted
    notes += check_compute(table, source) if {"step", "compute"} <= there else []
    attributed = {name: name for name in own_names}
    if naming:
        table, joined = table_segments.join(table, identity, naming, numbered, seeded)
        notes += joined
        if columns and ends.any():  # a run that was resumed after NaN has not diverged
            table = table[table["value"].notna() | after_last_value(table)]
        attributed |= naming.attributes
        unused = [c for c in unused if c not in naming.used]
    notes += _check_unused(table, unused, source)
    attributes = {
        str(row["run_id"]): {name: plain(row[column]) for name, column in attributed.items()}
        for row in table.drop_duplicates("run_id").to_dict("records")
        if attributed
    }
    runs = Runs(table, attributes, source=source, notes=tuple(notes))
    runs.origins = {name: ASSUMED for name in DEFAULTS if name not in there}
    return runs


def _with_symbols(frame: pd.DataFrame, mapping: ColumnMapping) -> tuple[ColumnMapping, list[str]]:
    """Map columns called B_p, n, B, M or C, unless another column is mapped; return the mapping and notes."""
    there = {*frame.columns, *mapping.names}
    found = {
        ALIASES[symbol]: symbol
        for symbol in ("B_p", "n", "B", "M", "C")
        if symbol in frame.columns and symbol not in mapping.required and ALIASES[symbol] not in there
    }
    if not found:
        return mapping, []
    text = ", ".join(f"{symbol} for {name}" for name, symbol in found.items())
    return mapping.over(ColumnMapping(columns=found)), [f"isolaw recognised columns by their symbols: {text}"]


def _with_metric_names(frame: pd.DataFrame, mapping: ColumnMapping) -> tuple[ColumnMapping, list[str]]:
    """Map the column that names each row's metric in a long table; return the mapping and a note.

    Such a column contains the name of a reward. Either it has a name such as ``variable``, or its values
    differ at one step of each run that another column names.
    """
    there = {*frame.columns, *mapping.names}
    if mapping.metrics or "value" not in there or "metric" in there:
        return mapping, []
    free = [str(own) for own in frame.columns if own not in {*mapping.required, *COLUMNS}]
    run, step = (mapping.columns.get(own, own) for own in ("run_id", "step"))
    runs = [run] if "run_id" in there else table_segments.names_of(frame, free)
    for own in free:
        if not _contains_rewards(frame[own]):
            continue
        by = [[of, step] if step in frame else [of] for of in runs if of in frame and of != own]
        several = [frame.groupby(keys)[own].nunique().groupby(level=0).max() > 1 for keys in by]
        if own.lower() in METRIC_NAMES or any(found.all() for found in several):
            note = f"the column {own} names the metric of each row"
            return mapping.over(ColumnMapping(columns={"metric": own})), [note]
    return mapping, []


def _contains_rewards(column: pd.Series) -> bool:
    """Return whether one of a column's values is the name of a reward."""
    return any(isinstance(value, str) and is_reward(value) for value in column.unique())


def _check_unused(table: pd.DataFrame, unused: list[str], source: str) -> list[str]:
    """Reject runs that only unmapped columns distinguish; note unmapped columns that differ between runs."""
    repeated = table[table.duplicated(KEY, keep=False)]
    if len(repeated):
        group = repeated[(repeated[KEY] == repeated[KEY].iloc[0]).all(axis=1)]
        differing = [c for c in unused if group[c].nunique(dropna=False) > 1]
        if differing:
            lines = " and ".join(f"{table.index.name} {i}" for i in group.index[:2])
            first = differing[0]
            ways = (
                f"{option('columns', first, first)} (or {option('columns', 'seed', first)} if it is the seed)"
            )
            if _contains_rewards(table[first]):
                ways += f". If {first} names the metric of each row, use {option('columns', 'metric', first)}"
            raise DataError(
                f"{source}: repeated (run, step): {lines} are both step {group['step'].iloc[0]} of one run, "
                f"but differ in {', '.join(differing)}. If these are different runs, map it, as in {ways}"
            )
        return []
    per_run = table.groupby("run_id")[unused].nunique(dropna=False) if unused else {}
    of_runs = [c for c in unused if (per_run[c] == 1).all() and table[c].nunique() > 1]
    if not of_runs:
        return []
    names = ", ".join(of_runs)
    return [
        f"not mapped, although it differs between runs: {names} ({option('columns', of_runs[0], of_runs[0])})"
    ]


def _in_fractions(table: pd.DataFrame, given: set[str], source: str) -> tuple[pd.DataFrame, list[str]]:
    """Divide accuracies in percent by 100 unless their unit is ``given``; reject runs with mixed units."""
    notes = []
    numbers = pd.to_numeric(table["value"], errors="coerce")
    for name in [str(own) for own in table["metric"].unique() if own not in given]:
        of = table["metric"] == name
        if not in_percent(name, numbers[of]):
            continue
        runs = numbers[of].groupby(table["run_id"][of], sort=False)
        highest = runs.max()
        changing = [str(run) for run, value in runs if changes_unit(value)]
        fractions = highest.index[(highest > 0) & (highest <= 1)]
        if not named_percent(name) and (len(fractions) or changing):
            if changing:
                mixed = f"goes from a fraction to percent, or back, within {changing[0]}"
            else:
                least = f"{fractions[0]} (up to {highest[fractions[0]]:g})"
                most = f"{highest.idxmax()} (up to {highest.max():g})"
                mixed = f"is in percent in {most}, and a fraction in {least}"
            raise DataError(
                f'{source}: {name} {mixed}; use one unit, or declare the unit in a mapping, e.g. "{name}" = '
                f'{{ column = "…", percent = true }}'
            )
        notes.append(f"{name} was in percent (up to {highest.max():g}): divided by 100")
        table = table.assign(value=numbers.where(~of, numbers / 100))
        numbers = table["value"]
    return table, notes


def _run_ids(table: pd.DataFrame, identity: list[str], name: str = "") -> pd.Series:
    """Return readable ids such as ``easy/grpo/B_p=32/n=8/seed=0``, after a prefix ``name`` if given."""
    label = {"problem_set": "", "algorithm": "", "problems_per_batch": "B_p=", "rollouts_per_problem": "n="}
    parts = [label.get(name, f"{name}=") + table[name].map(lambda v: str(plain(v))) for name in identity]
    start = [pd.Series(name, index=table.index)] if name else []
    return reduce(lambda joined, part: joined + "/" + part, [*start, *parts])


def _fill_step_and_compute(table: pd.DataFrame) -> list[str]:
    """Derive step or compute in place if the table lacks it; return a note."""
    if "step" not in table.columns:
        # In file order; `Runs` then rejects compute that does not grow.
        table["step"] = table.groupby(["run_id", "eval_set", "metric"]).cumcount()
        if (pd.to_numeric(table["compute"], errors="coerce") > 0).all():
            table["step"] += 1
        return [
            "there is no step column, so isolaw numbers the checkpoints of each run in the order of the file"
        ]
    if "compute" not in table.columns:
        names = ["problems_per_batch", "rollouts_per_problem", "step"]
        table["compute"] = (
            table[names].apply(pd.to_numeric, errors="coerce").astype("float64").prod(axis=1, skipna=False)
        )
        return ["there is no compute column, so compute = problems_per_batch · rollouts_per_problem · step"]
    return []


def read_points(
    path: str | Path, x: str, mapping: ColumnMapping
) -> tuple[NDArray[np.float64], NDArray[np.float64], Simulated]:
    """Return the columns ``x`` (compute or steps) and ``n_star`` of a table of ready-made points.

    Also returns whether, according to the table, a simulator made the runs behind the points.

    Raises `DataError` if a column is missing or contains anything but numbers.
    """
    table = mapping.apply(load(path), str(path))
    if x == "steps" and "step" in mapping.names:  # M
        table[x] = table["step"]
    if missing := [name for name in (x, "n_star") if name not in table.columns]:
        columns = list(map(str, table.columns))
        numeric = [own for own in columns if pd.api.types.is_numeric_dtype(table[own])]
        values = ((name, nearest(name, numeric) or Placeholder("column")) for name in missing)
        options = " ".join(option("columns", name, value) for name, value in values)
        raise DataError(
            f"{path}: no column {' and no column '.join(map(repr, missing))}; map them, e.g. with {options}; "
            f"columns: {', '.join(columns)}"
        )
    out = []
    for name in (x, "n_star"):
        numbers = pd.to_numeric(table[name], errors="coerce")
        bad = table.index[numbers.isna()]
        if len(bad):
            raise DataError(
                f"{path}: {name} is not a number in {table.index.name} {bad[0]}: {str(table[name][bad[0]])!r}"
            )
        out.append(np.asarray(numbers, dtype=np.float64))
    return out[0], out[1], Simulated.of_table(table)
