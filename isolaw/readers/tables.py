"""Read tables as runs: map the columns of a CSV, Parquet or JSON lines file to the data model.

A *long* table has the columns ``metric`` and ``value``; in a *wide* table the metric is the name of a column.
A run is one combination of the identity columns: problem set, algorithm, B_p, n, seed, and all other columns
that the user maps to a new name (``lr=learning_rate``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from isolaw.commands import Placeholder, option
from isolaw.errors import DataError, Wording, unknown
from isolaw.metrics import is_accuracy, is_reward
from isolaw.readers import frameworks
from isolaw.readers.found_logs import FoundLog, LogStatus
from isolaw.readers.how_to_read import HowToRead, Rule
from isolaw.readers.measures import (
    HELD_OUT,
    in_percent,
    is_measured_by_trainer,
    of_rows,
    of_training,
    only_accuracy,
    says_its_set,
    words_of,
)
from isolaw.readers.names import ALIASES, ASSUMED, DEFAULTS, METRIC_NAMES, NAME_PATTERN, SPLIT, counts, guess
from isolaw.readers.proposals import proposed
from isolaw.readers.records import (
    check_compute,
    check_said,
    ends_in_nan,
    of_training_rows,
    split_batch,
    with_counts,
)
from isolaw.readers.table_columns import (
    TableNeeds,
    apply,
    check_complete,
    columns_used,
    from_names,
    melt,
    value_alone,
)
from isolaw.readers.table_files import SOURCE, WRITTEN_NAN, as_pandas, load
from isolaw.readers.trainings import PART, by_training, is_measured, join, names_of, naming, once
from isolaw.runs import COLUMNS, IDENTITY, KEY, Runs, check_sizes, plain


def read_table(
    path: str | Path,
    how: HowToRead | None = None,
    ways: Sequence[HowToRead] = (),
    used: set[Rule] | None = None,
    name: str = "",
) -> Runs:
    """Read a CSV, Parquet or JSON lines table as `Runs`.

    ``how`` names the columns of the table, the column of the rewards in a wide table (``avg@4`` by default),
    and values for all rows. ``ways`` apply to runs named by a column; rules that supplied a value are added
    to ``used``. ``name`` is the name of the run, or of all runs that the table does not name itself. Raises
    `DataError` if the file, ``how`` or the content cannot be used; the message explains the fix.
    """
    frame = load(path)
    how = how or HowToRead()
    if _is_of_the_data_model(frame, how):  # Parquet contains the attributes of its runs; CSV cannot
        return Runs(frame, source=str(path)) if frame.index.name == "line" else Runs.from_parquet(path)
    frame = _by_training(frame, how, str(Path(path).with_suffix("")))
    by_name: list[str] = []
    if ways:
        used = set() if used is None else used
        given = from_names(frame, ways, used, how.columns, str(path))
        by_name = [column for column in given.columns if column not in frame.columns]
        frame[given.columns] = given
        how = how.but(columns={**{name: name for name in given.columns}, **how.columns})
    runs = _as_runs(frame, str(path), how, name)
    runs.origins |= dict.fromkeys(by_name, NAME_PATTERN)
    return runs


def read_frame(table: Any, how: HowToRead) -> Runs:
    """Read an in-memory table (pandas, polars, Arrow; `isolaw.readers.table_files`) as `Runs`."""
    frame = as_pandas(table)
    if _is_of_the_data_model(frame, how):
        return Runs(frame, frame.attrs["attributes"], source=SOURCE)
    frame = _by_training(frame, how, SOURCE)
    if frame.attrs.get("trainings") and not {"seed", "run_id"} & {*how.names, *frame.columns}:
        raise DataError(
            f"{SOURCE}: repeated (run, step): {frame.attrs['notes'][-1]}. Name the column that distinguishes "
            "them: " + option("columns", "seed", Placeholder("column"))
        )
    try:
        return _as_runs(frame, SOURCE, how)
    except TableNeeds as error:
        needing = FoundLog(SOURCE, needs=list(error.needs), offered=error.needs, status=LogStatus.NEEDS)
        add = proposed([needing], most=math.inf) or HowToRead()
        raise DataError(Wording(str(error), "  Add " + add.spelled)) from None


def _by_training(frame: pd.DataFrame, how: HowToRead, name: str) -> pd.DataFrame:
    """Name the trainings in a table with steps, unless the user names its runs."""
    step = how.columns.get("step") or guess(list(map(str, frame.columns))).get("step", "step")
    if step not in frame.columns or {"run_id", "rollout"} & {*how.columns} or frame.attrs.get("trainings"):
        return frame
    return by_training(frame, step, name, how.texts)


def _is_of_the_data_model(frame: pd.DataFrame, how: HowToRead) -> bool:
    return set(COLUMNS) <= set(frame.columns) and not (how.maps or how.values)


def _as_runs(frame: pd.DataFrame, source: str, how: HowToRead, name: str = "") -> Runs:
    notes: list[str] = list(frame.attrs.get("notes", ()))
    frame, how, rollouts = _per_rollout(frame, how, source)
    notes += rollouts
    columns_of = [str(c) for c in frame.columns if c not in how.texts]
    metrics = {how.metric, *how.metrics, *({"avg@4", "value"} & {*columns_of, *how.names})} - {None}
    if not metrics and (accuracy := only_accuracy(frame, columns_of)):
        how = how.but(metric=accuracy)
        notes.append(f"isolaw uses {accuracy}, the only accuracy")
    for recognise in (_with_symbols, _with_metric_names):
        recognised, note = recognise(frame, how)
        if recognised:
            how = how.but(columns={**recognised, **how.columns})
            notes.append(note)
    how, counted = with_counts(frame, how, source)
    notes += counted
    check_complete(frame, how, source)
    metric, reward = how.metric, how.metric or "avg@4"
    attribute_names = [name for name in how.names if name not in {*COLUMNS, reward, SPLIT[2]}]
    used = columns_used(how, frame.columns)
    table = apply(how, frame, source)
    alone = value_alone(frame, how)
    wide = not (how.metrics or alone or "value" in how.names or {"metric", "value"} <= set(table))
    units = set[str]()
    if how.metrics:
        table, melted, units = melt(how, table, source)
        notes += melted
    elif alone or ("value" in how.names and "metric" not in table.columns):
        if alone and metric is None:
            reward = "reward"
            notes.append("isolaw uses the column value as the validation reward; name its metric, e.g. avg@1")
        table["metric"] = reward  # a column contains the rewards; --metric gives the name of their metric
    elif wide:
        table = table.assign(metric=reward, value=table[reward])
    free = [str(column) for column in frame.columns if column not in {*used, *COLUMNS}]
    phase = ""
    if "eval_set" not in table and not (wide and words_of(reward) & HELD_OUT):
        phase, said = of_rows(table, [column for column in free if column != reward], source)
        if phase:
            table["eval_set"] = said
            notes.append(f"column {phase} marks the rows of training and of validation")
        elif not alone:
            table["eval_set"], assumed = _eval_sets(table, frame, free)
            notes += assumed
    split_batch(table, source)
    check_sizes(table, source)
    for column, value in {**DEFAULTS, "eval_set": "validation"}.items():
        if column not in table.columns:
            table[column] = value
    identity = [*IDENTITY, *attribute_names]
    unused = [c for c in frame.columns if c not in {*used, *COLUMNS, metric, phase}]
    named = ["run_id"] if "run_id" in table else names_of(table, unused)
    notes += of_training_rows(table, [*(name for name in identity if name not in SPLIT), *named], source)
    names, settings = ([], {}) if "run_id" in table else naming(table, IDENTITY, unused)
    empty = table[identity].isna()
    if empty.any(axis=None):
        column = next(c for c in identity if empty[c].any())
        raise DataError(f"{source}: {column} is empty in {table.index.name} {table.index[empty[column]][0]}")
    there = {*how.names, *frame.columns}
    # The trainings in one file can differ in anything, so their seeds are asked for.
    seeded = "seed" in there or "trainings" in frame.attrs
    attributed = {name: name for name in attribute_names}
    table[PART] = 0
    if names:
        notes += join(table, identity, names, list(settings.values()), seeded)
        attributed |= settings
        unused = [c for c in unused if c not in {*names, *settings.values()}]
    elif "run_id" in table:
        table["run_id"] = table["run_id"].astype("str")
    else:
        varying = [column for column in identity if not name or table[column].nunique() > 1]
        table["run_id"] = _run_ids(table, varying, name)
    if falls := frame.attrs.get("falls"):
        table[PART] = np.searchsorted(falls, table.index, side="right")
    notes += _fill_step_and_compute(table)
    notes += check_said(table, frame, how, unused, source)
    of_reward = {reward: reward} if wide else {}
    columns = {name: column.column for name, column in how.metrics.items()} or of_reward
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
            without = ", ".join(sorted(set(columns.values())))
            raise DataError(f"{source}: the metrics' columns are empty: {without}")
    table, converted = _in_fractions(table, units, source)
    notes += converted
    notes += check_compute(table, source) if {"step", "compute"} <= there else []
    table, repeated = once(table)
    notes += repeated
    notes += _check_unused(table, unused, source)
    attributes = {
        str(row["run_id"]): {name: plain(row[column]) for name, column in attributed.items()}
        for row in table.drop_duplicates("run_id").to_dict("records")
        if attributed
    }
    runs = Runs(table, attributes, source=source, notes=tuple(notes))
    runs.origins = {name: ASSUMED for name in DEFAULTS if name not in there}
    runs.origins |= {"training": ""} if "trainings" in frame.attrs else {}
    return runs


def _eval_sets(table: pd.DataFrame, frame: pd.DataFrame, free: list[str]) -> tuple[pd.Series, list[str]]:
    """Return the evaluation set of each row by the name of its metric and those of its line, and notes."""
    sets, notes = {}, []
    names = [str(name) for name in table["metric"].unique()]
    for name in names:
        line = [*free, *names]
        if is_accuracy(name) and len(names) == 1:  # in a line of its own, it is of an evaluation
            measured = frame.loc[table.index[table["value"].notna()]]
            line = [c for c in free if not is_measured_by_trainer(c) or measured[c].notna().any()]
        sets[name] = "train" if of_training(name, [each for each in line if each != name]) else "validation"
        unclear = (is_reward(name) and not is_accuracy(name)) or any(
            is_measured_by_trainer(c) or counts(c) for c in [*free, *({"n_samples"} & {*frame})]
        )
        if name in frame and not says_its_set(name) and (sets[name] == "train" or unclear):
            beside = next(filter(is_measured_by_trainer, line), "")
            why = f"is next to {beside}" if beside and sets[name] == "train" else "has no prefix"
            if sets[name] == "train" and frameworks.of_training(name):
                why = "comes from training batches"
            other = "train" if sets[name] == "validation" else "validation"
            notes.append(
                f"{name} {why}, so isolaw assumes the evaluation set {sets[name]}; otherwise set eval_set to "
                f"{other}"
            )
    return table["metric"].map(lambda name: sets[str(name)]), notes


def _with_symbols(frame: pd.DataFrame, how: HowToRead) -> tuple[dict[str, str], str]:
    """Return the columns called B_p, n, B, M or C, unless another column is named for them; and a note."""
    there = {*frame.columns, *how.names}
    symbols = {
        ALIASES[symbol]: symbol
        for symbol in ("B_p", "n", "B", "M", "C")
        if symbol in frame.columns
        and symbol not in how.texts
        and ALIASES[symbol] not in there
        and frame[symbol].notna().mean() > 0.5  # else it belongs to a few other lines
    }
    text = ", ".join(f"{symbol} for {name}" for name, symbol in symbols.items())
    return symbols, f"isolaw recognised columns by their symbols: {text}"


def _with_metric_names(frame: pd.DataFrame, how: HowToRead) -> tuple[dict[str, str], str]:
    """Return the column that names each row's metric in a long table, and a note.

    Such a column contains the name of a reward. Either it has a name such as ``variable``, or its values
    differ at one step of each run that another column names.
    """
    there = {*frame.columns, *how.names}
    if how.metrics or "value" not in there or "metric" in there:
        return {}, ""
    free = [str(column) for column in frame.columns if column not in {*how.texts, *COLUMNS}]
    run, step = (how.columns.get(name, name) for name in ("run_id", "step"))
    runs = [run] if "run_id" in there else names_of(frame, free)
    for column in free:
        if not _contains_rewards(frame[column]):
            continue
        by = [[of, step] if step in frame else [of] for of in runs if of in frame and of != column]
        several = [frame.groupby(keys)[column].nunique().groupby(level=0).max() > 1 for keys in by]
        if column.lower() in METRIC_NAMES or any(each.all() for each in several):
            return {"metric": column}, f"the column {column} names the metric of each row"
    return {}, ""


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
            where = (
                f"{source}: repeated (run, step): {lines} are both step {group['step'].iloc[0]} of one run"
            )
            labels = [c for c in differing if not is_measured(c) and _tells_runs_apart(table, c)]
            if not labels:
                raise DataError(
                    f"{where}, and no column distinguishes them. Keep the rows of one run or process. If "
                    "each row is one rollout, name a column that numbers them, for the mean of a step: "
                    + option("columns", "rollout", Placeholder("column"))
                )
            first = labels[0]
            ways = option("columns", first, first) + " (or "
            ways += option("columns", "seed", first) + " if it is the seed)"
            if _contains_rewards(table[first]):
                ways += f". If {first} names the metric of each row, use "
                ways += option("columns", "metric", first)
            elif pd.api.types.is_integer_dtype(table[first]):
                ways += ". If it numbers the rollouts of a step, use " + option("columns", "rollout", first)
            raise DataError(
                f"{where}, but differ in {', '.join(labels)}. If these are different runs, map it, as in "
                + ways
            )
        return []
    per_run = table.groupby("run_id")[unused].nunique(dropna=False) if unused else {}
    of_runs = [c for c in unused if (per_run[c] == 1).all() and table[c].nunique() > 1]
    if not of_runs:
        return []
    names = ", ".join(of_runs)
    return [f"not mapped to a column of its name, although it differs between runs: {names}"]


def _tells_runs_apart(table: pd.DataFrame, column: str) -> bool:
    """Return whether a column has few values, each of which has one row per step."""
    rows = table.dropna(subset=column)
    return rows[column].nunique() * 2 <= len(rows) == len(table) and not rows.duplicated([*KEY, column]).any()


def _per_rollout(
    frame: pd.DataFrame, how: HowToRead, source: str
) -> tuple[pd.DataFrame, HowToRead, list[str]]:
    """Return the mean of each step if the user names a column ``rollout`` of a table with a row per rollout.

    The rows of a step are its rollouts, B = B_p · n. With a column ``problem``, its values count B_p.
    """
    columns = dict(how.columns)
    rollout, problem = columns.pop("rollout", ""), columns.pop("problem", "")
    if not rollout:
        return frame, how, []
    step = columns.get("step") or guess(list(map(str, frame.columns))).get("step", "step")
    if missing := [name for name in (rollout, problem, step) if name and name not in frame.columns]:
        raise DataError(f"{source}: {unknown('column', missing[0], frame.columns)}")
    keys = [step, *(name for name in columns.values() if name in frame.columns and name != step)]
    steps = frame.groupby(keys, sort=False)
    values = {SPLIT[2]: steps.size()} | ({SPLIT[0]: steps[problem].nunique()} if problem else {})
    varying = next((name for name, number in values.items() if number.nunique() > 1), "")
    if varying:
        least, most = values[varying].min(), values[varying].max()
        raise DataError(f"{source}: steps have from {least} to {most} rows of rollouts; expected one number")
    numbers = frame.select_dtypes(["number", "bool"]).columns.difference([*keys, rollout, problem])
    means = steps[list(numbers)].mean().reset_index()
    means = means.set_axis(pd.RangeIndex(1, len(means) + 1, name="step's row"))
    fixed = {name: int(number.iloc[0]) for name, number in values.items()}
    note = f"each row is one rollout; a step has the mean of its {fixed[SPLIT[2]]:,} rows"
    return means, how.but(columns=columns, set={**how.set, "": {**how.values, **fixed}}), [note]


def _in_fractions(table: pd.DataFrame, given: set[str], source: str) -> tuple[pd.DataFrame, list[str]]:
    """Divide accuracies in percent by 100 unless their unit is ``given``; reject unclear units."""
    notes = []
    numbers = pd.to_numeric(table["value"], errors="coerce").astype(np.float64)
    for name in [str(value) for value in table["metric"].unique() if value not in given]:
        of = (table["metric"] == name) & numbers.notna()
        runs = {
            str(run): value.to_numpy() for run, value in numbers[of].groupby(table["run_id"][of], sort=False)
        }
        percent, problems = in_percent(name, runs, {})
        if problems:
            raise DataError(
                f"{source}: {name} {next(iter(problems.values()))}; use one unit, or declare it under "
                f'[metrics] in isolaw.toml: "{name}" = {{ column = "…", percent = true }}'
            )
        if percent:
            highest = max(float(runs[run].max()) for run in percent)
            notes.append(f"{name} was in percent (up to {highest:g}): divided by 100")
            numbers = numbers.where(~(of & table["run_id"].astype(str).isin(percent)), numbers / 100)
    return (table.assign(value=numbers) if notes else table), notes


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
