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

from isolaw.commands import Placeholder, option
from isolaw.errors import DataError, Wording, unknown
from isolaw.metrics import is_accuracy, is_reward
from isolaw.readers import frameworks, measures, records, table_columns, trainings
from isolaw.readers.found_logs import FoundLog, LogStatus
from isolaw.readers.how_to_read import HowToRead, Rule
from isolaw.readers.names import ALIASES, ASSUMED, DEFAULTS, NAME_PATTERN, SPLIT, counts, guess
from isolaw.readers.proposals import proposed
from isolaw.readers.table_files import SOURCE, as_pandas, load
from isolaw.runs import COLUMNS, IDENTITY, KEY, Runs, check_sizes, plain


def read_table(
    path: str | Path,
    options: HowToRead | None = None,
    option_sets: Sequence[HowToRead] = (),
    used_rules: set[Rule] | None = None,
    name: str = "",
) -> Runs:
    """Read a CSV, Parquet or JSON lines table as `Runs`.

    ``options`` name the columns of the table, the column of the rewards in a wide table (by default
    ``avg@4``), and values for all rows. ``option_sets`` apply to runs named by a column; rules that supplied
    a value are added to ``used_rules``. ``name`` is the name of the run, or of all runs that the table does
    not name. Raises `DataError` if the file, ``options`` or the content cannot be used.
    """
    frame = load(path)
    options = options or HowToRead()
    if _has_our_columns(frame, options):  # Parquet contains the attributes of its runs; CSV cannot
        return Runs(frame, source=str(path)) if frame.index.name == "line" else Runs.from_parquet(path)
    frame = _name_trainings(frame, options, str(Path(path).with_suffix("")))
    value_columns: list[str] = []
    if option_sets:
        used_rules = set() if used_rules is None else used_rules
        columns, source = options.columns, str(path)
        name_values = table_columns.columns_from_names(frame, option_sets, used_rules, columns, source)
        value_columns = [column for column in name_values.columns if column not in frame.columns]
        frame[name_values.columns] = name_values
        options = options.but(columns={**{name: name for name in name_values.columns}, **options.columns})
    runs = _runs_of(frame, str(path), options, name)
    runs.origins |= dict.fromkeys(value_columns, NAME_PATTERN)
    return runs


def read_frame(table: Any, options: HowToRead) -> Runs:
    """Read an in-memory table (pandas, polars, Arrow; `isolaw.readers.table_files`) as `Runs`."""
    frame = as_pandas(table)
    if _has_our_columns(frame, options):
        return Runs(frame, frame.attrs["attributes"], source=SOURCE)
    frame = _name_trainings(frame, options, SOURCE)
    if frame.attrs.get("trainings") and not {"seed", "run_id"} & {*options.column_names, *frame.columns}:
        raise DataError(
            f"{SOURCE}: repeated (run, step): {frame.attrs['notes'][-1]}. Name the column that distinguishes "
            "them: " + option("columns", "seed", Placeholder("column"))
        )
    try:
        return _runs_of(frame, SOURCE, options)
    except table_columns.TableNeeds as error:
        incomplete = FoundLog(SOURCE, needs=list(error.needs), offered=error.needs, status=LogStatus.NEEDS)
        raise DataError(Wording(str(error), "  Add " + proposed([incomplete])[0].spelling)) from None


def _name_trainings(frame: pd.DataFrame, options: HowToRead, name: str) -> pd.DataFrame:
    """Name the trainings in a table with steps, unless the user names its runs."""
    step_column = options.columns.get("step") or guess(list(map(str, frame.columns))).get("step", "step")
    has_names = {"run_id", "rollout"} & {*options.columns} or frame.attrs.get("trainings")
    if step_column not in frame.columns or has_names:
        return frame
    return trainings.name_trainings(frame, step_column, name, options.expressions)


def _has_our_columns(frame: pd.DataFrame, options: HowToRead) -> bool:
    return set(COLUMNS) <= set(frame.columns) and not (options.names_columns or options.row_values)


def _runs_of(frame: pd.DataFrame, source: str, options: HowToRead, name: str = "") -> Runs:
    notes: list[str] = list(frame.attrs.get("notes", ()))
    frame, options, rollout_notes = _step_means(frame, options, source)
    notes += rollout_notes
    free_columns = [str(column) for column in frame.columns if column not in options.expressions]
    reward_columns = {"avg@4", "value"} & {*free_columns, *options.column_names}
    is_named = options.metric is not None or options.metrics or reward_columns
    if not is_named and (accuracy := measures.only_accuracy(frame, free_columns)):
        options = options.but(metric=accuracy)
        notes.append(f"isolaw uses {accuracy}, the only accuracy")
    if symbols := _symbol_columns(frame, options):
        options = options.but(columns={**symbols, **options.columns})
        text = ", ".join(f"{symbol} for {name}" for name, symbol in symbols.items())
        notes.append(f"isolaw recognised columns by their symbols: {text}")
    options, count_notes = records.with_counts(frame, options, source)
    notes += count_notes
    table_columns.check_complete(frame, options, source)
    metric, reward = options.metric, options.metric or "avg@4"
    attributes = [name for name in options.column_names if name not in {*COLUMNS, reward, SPLIT[2]}]
    used_columns = table_columns.columns_used(options, frame.columns)
    table = table_columns.apply(options, frame, source)
    only_value = table_columns.has_only_value(frame, options)
    is_long = "value" in options.column_names or {"metric", "value"} <= set(table)
    is_unnamed = only_value or ("value" in options.column_names and "metric" not in table.columns)
    is_wide = not (options.metrics or only_value or is_long)
    with_unit = set[str]()
    if options.metrics:
        table, melt_notes, with_unit = table_columns.melt(options, table, source)
        notes += melt_notes
    elif is_unnamed:
        if only_value and metric is None:
            reward = "reward"
            notes.append("isolaw uses the column value as the validation reward; name its metric, e.g. avg@1")
        table["metric"] = reward  # a column contains the rewards; --metric gives the name of their metric
    elif is_wide:
        table = table.assign(metric=reward, value=table[reward])
    unmapped = [str(column) for column in frame.columns if column not in {*used_columns, *COLUMNS}]
    phase_column = ""
    if "eval_set" not in table and not (is_wide and measures.words_of(reward) & measures.HELD_OUT):
        phase_column, eval_sets = measures.phases_of_rows(table, [c for c in unmapped if c != reward], source)
        if phase_column:
            table["eval_set"] = eval_sets
            notes.append(f"column {phase_column} marks the rows of training and of validation")
        elif not only_value:
            table["eval_set"], set_notes = _eval_sets(table, frame, unmapped)
            notes += set_notes
    records.split_batch(table, source)
    check_sizes(table, source)
    for column, value in {**DEFAULTS, "eval_set": "validation"}.items():
        if column not in table.columns:
            table[column] = value
    identity = [*IDENTITY, *attributes]
    unused = [name for name in frame.columns if name not in {*used_columns, *COLUMNS, metric, phase_column}]
    name_columns = ["run_id"] if "run_id" in table else trainings.names_of(table, unused)
    run_keys = [*(column for column in identity if column not in SPLIT), *name_columns]
    notes += records.use_training_shapes(table, run_keys, source)
    names, setting_columns = ([], {}) if "run_id" in table else trainings.run_columns(table, IDENTITY, unused)
    metric_columns = [column for column in names if is_unnamed and _names_rewards(frame[column])]
    if metric_columns and len(names) > 1:
        remedy = option("columns", "metric", metric_columns[0])
        raise DataError(f"{source}: {metric_columns[0]} has names of metrics, not of runs; use " + remedy)
    is_empty = table[identity].isna()
    if is_empty.any(axis=None):
        column = next(column for column in identity if is_empty[column].any())
        row = table.index[is_empty[column]][0]
        raise DataError(f"{source}: {column} is empty in {table.index.name} {row}")
    known_columns = {*options.column_names, *frame.columns}
    # The trainings in one file can differ in anything, so their seeds are asked for.
    has_seeds = "seed" in known_columns or "trainings" in frame.attrs
    attribute_columns = {name: name for name in attributes}
    table[trainings.PART] = 0
    if names:
        notes += trainings.join_parts(table, identity, names, list(setting_columns.values()), has_seeds)
        attribute_columns |= setting_columns
        unused = [column for column in unused if column not in {*names, *setting_columns.values()}]
    elif "run_id" in table:
        table["run_id"] = table["run_id"].astype("str")
    else:
        varying = [column for column in identity if not name or table[column].nunique() > 1]
        table["run_id"] = _run_ids(table, varying, name)
    if falls := frame.attrs.get("falls"):
        table[trainings.PART] = np.searchsorted(falls, table.index, side="right")
    notes += _fill_step_and_compute(table)
    notes += records.check_unmapped(table, frame, options, unused, source)
    of_reward = {reward: reward} if is_wide else {}
    columns = {name: entry.column for name, entry in options.metrics.items()} or of_reward
    if columns:
        written_nan = pd.Series(False, index=table.index)
        for metric_name, column in columns.items():
            is_nan = table.index.isin(list(frame.attrs.get(records.WRITTEN_NAN, {}).get(column, ())))
            written_nan |= (table["metric"] == metric_name) & is_nan
        is_end, end_notes = records.ends_in_nan(table, written_nan)
        notes += end_notes
        is_measured_row = table["value"].notna() | is_end | (written_nan & is_wide)
        if is_wide and not is_measured_row.all():
            empty_rows = f"{(~is_measured_row).sum():,} of {len(table):,} rows"
            notes.append(f"{empty_rows} have no {reward}, so it was not measured there")
        table = table[is_measured_row]  # after the steps were numbered
        if table.empty:
            empty_columns = ", ".join(sorted(set(columns.values())))
            raise DataError(f"{source}: the metrics' columns are empty: {empty_columns}")
    table, unit_notes = _to_fractions(table, with_unit, source)
    notes += unit_notes
    notes += records.check_compute(table, source) if {"step", "compute"} <= known_columns else []
    table, repeat_notes = trainings.without_repeats(table)
    notes += repeat_notes
    notes += _check_unused(table, unused, source)
    attributes_of_run = {
        str(row["run_id"]): {name: plain(row[column]) for name, column in attribute_columns.items()}
        for row in table.drop_duplicates("run_id").to_dict("records")
        if attribute_columns
    }
    runs = Runs(table, attributes_of_run, source=source, notes=tuple(notes))
    runs.origins = {name: ASSUMED for name in DEFAULTS if name not in known_columns}
    runs.origins |= {"training": ""} if "trainings" in frame.attrs else {}
    return runs


def _eval_sets(table: pd.DataFrame, frame: pd.DataFrame, unmapped: list[str]) -> tuple[pd.Series, list[str]]:
    """Return the evaluation set of each row by the name of its metric and those of its line, and notes."""
    set_of_metric, notes = {}, []
    names = [str(name) for name in table["metric"].unique()]
    for name in names:
        row_columns = [*unmapped, *names]
        if is_accuracy(name) and len(names) == 1:  # in a line of its own, it is of an evaluation
            measured_rows = frame.loc[table.index[table["value"].notna()]]
            has_values = measured_rows.notna().any()
            row_columns = [c for c in unmapped if not measures.is_measured_by_trainer(c) or has_values[c]]
        in_training = measures.is_of_training(name, [column for column in row_columns if column != name])
        set_of_metric[name] = "train" if in_training else "validation"
        is_unclear = (is_reward(name) and not is_accuracy(name)) or any(
            measures.is_measured_by_trainer(column) or counts(column)
            for column in [*unmapped, *({"n_samples"} & {*frame})]
        )
        if name in frame and not measures.names_its_set(name) and (in_training or is_unclear):
            trainer_column = next(filter(measures.is_measured_by_trainer, row_columns), "")
            reason = f"is next to {trainer_column}" if trainer_column and in_training else "has no prefix"
            if in_training and frameworks.of_training(name):
                reason = "comes from training batches"
            notes.append(
                f"{name} {reason}, so isolaw assumes the evaluation set {set_of_metric[name]}; otherwise set "
                f"eval_set to {'validation' if in_training else 'train'}"
            )
    return table["metric"].map(lambda name: set_of_metric[str(name)]), notes


def _symbol_columns(frame: pd.DataFrame, options: HowToRead) -> dict[str, str]:
    """Return the columns called B_p, n, B, M or C, unless another column is named for them."""
    known_columns = {*frame.columns, *options.column_names}
    return {
        ALIASES[symbol]: symbol
        for symbol in ("B_p", "n", "B", "M", "C")
        if symbol in frame.columns
        and symbol not in options.expressions
        and ALIASES[symbol] not in known_columns
        and frame[symbol].notna().mean() > 0.5  # else it belongs to a few other lines
    }


def _names_rewards(column: pd.Series) -> bool:
    """Return whether one of a column's values is the name of a reward."""
    return any(isinstance(value, str) and is_reward(value) for value in column.unique())


def _check_unused(table: pd.DataFrame, unused: list[str], source: str) -> list[str]:
    """Reject runs that only unmapped columns distinguish; note unmapped columns that differ between runs."""
    repeated = table[table.duplicated(KEY, keep=False)]
    if len(repeated):
        group = repeated[(repeated[KEY] == repeated[KEY].iloc[0]).all(axis=1)]
        differing = [column for column in unused if group[column].nunique(dropna=False) > 1]
        if differing:
            both_rows = " and ".join(f"{table.index.name} {row_index}" for row_index in group.index[:2])
            step = group["step"].iloc[0]
            where = f"{source}: repeated (run, step): {both_rows} are both step {step} of one run"
            labels = [c for c in differing if not trainings.is_measured(c) and _distinguishes_runs(table, c)]
            if not labels:
                raise DataError(
                    f"{where}, and no column distinguishes them. Keep the rows of one run or process. If "
                    "each row is one rollout, name a column that numbers them, for the mean of a step: "
                    + option("columns", "rollout", Placeholder("column"))
                )
            label = labels[0]
            remedy = option("columns", label, label) + " (or "
            remedy += option("columns", "seed", label) + " if it is the seed)"
            if _names_rewards(table[label]):
                remedy += f". If {label} names the metric of each row, use "
                remedy += option("columns", "metric", label)
            elif pd.api.types.is_integer_dtype(table[label]):
                remedy += ". If it numbers the rollouts of a step, use " + option("columns", "rollout", label)
            text: str = f"{where}, but differ in {', '.join(labels)}. "
            if measures.names_eval_sets(label, list(map(str, table.columns))):
                text += (
                    "If these are different evaluations, use " + option("columns", "eval_set", label) + ". "
                )
            raise DataError(text + "If these are different runs, map it, as in " + remedy)
        return []
    value_counts = table.groupby("run_id")[unused].nunique(dropna=False) if unused else {}
    differing_columns = [c for c in unused if (value_counts[c] == 1).all() and table[c].nunique() > 1]
    if not differing_columns:
        return []
    names = ", ".join(differing_columns)
    return [f"not mapped to a column of its name, although it differs between runs: {names}"]


def _distinguishes_runs(table: pd.DataFrame, column: str) -> bool:
    """Return whether a column has few values, each of which has one row per step."""
    has_few_values = table[column].nunique() * 2 <= len(table) and table[column].notna().all()
    return has_few_values and not table.duplicated([*KEY, column]).any()


def _step_means(
    frame: pd.DataFrame, options: HowToRead, source: str
) -> tuple[pd.DataFrame, HowToRead, list[str]]:
    """Return the mean of each step if the user names a column ``rollout`` of a table with a row per rollout.

    The rows of a step are its rollouts, B = B_p · n. With a column ``problem``, its values count B_p.
    """
    columns = dict(options.columns)
    rollout, problem = columns.pop("rollout", ""), columns.pop("problem", "")
    if not rollout:
        return frame, options, []
    step = columns.get("step") or guess(list(map(str, frame.columns))).get("step", "step")
    if missing := [name for name in (rollout, problem, step) if name and name not in frame.columns]:
        raise DataError(f"{source}: {unknown('column', missing[0], frame.columns)}")
    keys = [step, *(name for name in columns.values() if name in frame.columns and name != step)]
    by_step = frame.groupby(keys, sort=False)
    sizes = {SPLIT[2]: by_step.size()} | ({SPLIT[0]: by_step[problem].nunique()} if problem else {})
    varying = next((name for name, per_step in sizes.items() if per_step.nunique() > 1), "")
    if varying:
        smallest, largest = sizes[varying].min(), sizes[varying].max()
        rows = f"from {smallest} to {largest} rows of rollouts"
        raise DataError(f"{source}: steps have {rows}; expected one number")
    numeric_columns = frame.select_dtypes(["number", "bool"]).columns.difference([*keys, rollout, problem])
    step_means = by_step[list(numeric_columns)].mean().reset_index()
    step_means = step_means.set_axis(pd.RangeIndex(1, len(step_means) + 1, name="step's row"))
    constants = {name: int(per_step.iloc[0]) for name, per_step in sizes.items()}
    note = f"each row is one rollout; a step has the mean of its {constants[SPLIT[2]]:,} rows"
    settings = {**options.set, "": {**options.row_values, **constants}}
    return step_means, options.but(columns=columns, set=settings), [note]


def _to_fractions(table: pd.DataFrame, with_unit: set[str], source: str) -> tuple[pd.DataFrame, list[str]]:
    """Divide accuracies in percent by 100 unless their unit is ``with_unit``; reject unclear units."""
    notes = []
    values = pd.to_numeric(table["value"], errors="coerce").astype(np.float64)
    for name in [str(run_values) for run_values in table["metric"].unique() if run_values not in with_unit]:
        of_metric = (table["metric"] == name) & values.notna()
        values_of_run = {
            str(run_id): curve.to_numpy()
            for run_id, curve in values[of_metric].groupby(table["run_id"][of_metric], sort=False)
        }
        percent_runs, problems = measures.runs_in_percent(name, values_of_run, {})
        if problems:
            raise DataError(
                f"{source}: {name} {next(iter(problems.values()))}; use one unit, or declare it under "
                f'[metrics] in isolaw.toml: "{name}" = {{ column = "…", percent = true }}'
            )
        if percent_runs:
            highest = max(float(values_of_run[run].max()) for run in percent_runs)
            notes.append(f"{name} was in percent (up to {highest:g}): divided by 100")
            values = values.where(~(of_metric & table["run_id"].astype(str).isin(percent_runs)), values / 100)
    return (table.assign(value=values) if notes else table), notes


def _run_ids(table: pd.DataFrame, identity: list[str], name: str = "") -> pd.Series:
    """Return readable ids such as ``easy/grpo/B_p=32/n=8/seed=0``, after a prefix ``name`` if given."""
    labels = {"problem_set": "", "algorithm": "", "problems_per_batch": "B_p=", "rollouts_per_problem": "n="}
    id_parts = [labels.get(name, f"{name}=") + table[name].map(lambda v: str(plain(v))) for name in identity]
    prefix = [pd.Series(name, index=table.index)] if name else []
    return reduce(lambda joined, part: joined + "/" + part, [*prefix, *id_parts])


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
        factors = ["problems_per_batch", "rollouts_per_problem", "step"]
        table["compute"] = (
            table[factors].apply(pd.to_numeric, errors="coerce").astype("float64").prod(axis=1, skipna=False)
        )
        return ["there is no compute column, so compute = problems_per_batch · rollouts_per_problem · step"]
    return []
