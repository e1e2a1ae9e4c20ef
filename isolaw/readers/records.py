"""The rules that read records, whatever container they come from: a table, a console, JSON, a notebook.

A record has names and values, and a place (a line, a row, or its position). A log's records are columns of a
`isolaw.readers.raw_log.RawLog`, and those of a table the rows of a data frame. The rules say which records
are settings, where a training begins, what is a count, where a curve ends in NaN, and whether B_p, n, B and C
agree; if they do not, the user decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from isolaw.commands import Placeholder, option
from isolaw.errors import DataError
from isolaw.metrics import is_reward
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.measures import HELD_OUT, is_measured_by_trainer, words_of
from isolaw.readers.names import (
    AMBIGUOUS,
    BATCH,
    CALLED,
    MAYBE,
    SPLIT,
    SYMBOL,
    counts,
    guess,
    is_step,
    plain,
)
from isolaw.readers.raw_log import number
from isolaw.readers.trainings import Floats
from isolaw.runs import CURVE, after_last_value, listed

_TOLERANCE = 0.02  # relative; a counter or a compute can be read off a figure
_POSSIBLE_N = set(MAYBE["rollouts_per_problem"].split())


LENGTH = "len({})"  # column with the length of a list of rewards


def summary_of_list(name: str, values: Sequence[Any]) -> dict[str, float]:
    """Return the mean and the length of a list of rewards, by column; empty if it is not one of numbers.

    >>> summary_of_list("rewards", ["1.0", 0.0]), summary_of_list("rewards", ["a"])
    ({'rewards': 0.5, 'len(rewards)': 2}, {})
    """
    numbers = [number(value) if not isinstance(value, bool) else float(value) for value in values]
    finite_numbers = [value for value in numbers if value is not None]
    if not finite_numbers or len(finite_numbers) < len(values):
        return {}
    return {name: float(np.mean(finite_numbers)), LENGTH.format(name): len(finite_numbers)}


def with_settings(
    records: list[dict[str, Any]], positions: list[int], position_name: str
) -> tuple[list[dict[str, Any]], list[int], list[str]]:
    """Return the records that have a step, with the settings of the records that have none; places; notes.

    A record without a step and without a value that records with a step measure contains settings, which
    hold for the records after it. ``position_name`` is what ``positions`` are, such as ``line``.

    >>> with_settings([{"lr": 0.1}, {"step": 1, "acc": 0.5}, {"step": 2, "acc": 0.6}, {"done": True}],
    ...               [1, 2, 3, 4], "line")[:2]
    ([{'lr': 0.1, 'step': 1, 'acc': 0.5}, {'lr': 0.1, 'step': 2, 'acc': 0.6}], [2, 3])
    """
    has_steps = [
        any(is_step(key) and number(record[key]) is not None for key in record) for record in records
    ]
    if sum(has_steps) < 2 or all(has_steps):
        return records, positions, []
    stepped = [record for record, has_step in zip(records, has_steps, strict=True) if has_step]
    stepped_names = set().union(*stepped)
    numeric_names = {key for record in stepped for key, value in record.items() if number(value) is not None}
    settings: dict[str, Any] = {}
    merged, kept_positions, setting_positions = [], [], []
    for record, position, has_step in zip(records, positions, has_steps, strict=True):
        if has_step:
            merged.append({**settings, **record})
        elif any(is_reward(name) or "loss" in plain(name) for name in numeric_names & record.keys()):
            merged.append(record)  # its step is missing
        else:
            settings |= {key: value for key, value in record.items() if key not in stepped_names}
            setting_positions.append(position)
            continue
        kept_positions.append(position)
    setting_names = dict.fromkeys(key for record in merged for key in settings if key in record)
    where = f"{position_name} {listed(list(map(str, setting_positions)), 4)}"
    note = f"{where} has no step, so its values are settings, read as columns: {', '.join(setting_names)}"
    return merged, kept_positions, [note[:500]] if setting_names else []


@dataclass(frozen=True)
class _StepCount:
    """What a column counts in each step."""

    unit: str  # ``rollouts``, ``problems`` or ``both``, as `isolaw.readers.names.counts`
    per_step: tuple[float, ...]  # more than one if it is unknown whether it counts a record or a step
    is_cumulative: bool  # whether it counts from the start

    def matches(self, problems: float, rollouts: float, name: str) -> bool:
        """Return whether it can be the count of B_p problems with n ``rollouts`` each."""
        batch = problems * rollouts
        expected = {"problems": [problems], "both": [batch, problems]}.get(self.unit, [batch])
        if not self.is_cumulative and plain(name) in _POSSIBLE_N:
            expected.append(rollouts)
        return any(abs(count - size) <= _TOLERANCE * size for count in self.per_step for size in expected)


def _count_of(name: str, record_steps: Floats, record_values: Floats) -> _StepCount | None:
    """Return what a column counts per step: its rise, or the same number in every record; else None.

    >>> _count_of("total_episodes", np.array([10.0, 20.0]), np.array([320.0, 640.0])).per_step
    (32.0,)
    >>> _count_of("rollout_count", np.array([10.0, 20.0]), np.array([40.0, 40.0])).per_step
    (40.0, 4.0)
    """
    unit = counts(name)
    valid = np.flatnonzero(~(np.isnan(record_steps) | np.isnan(record_values)))
    if not unit or valid.size < 2:
        return None
    valid = valid[np.argsort(record_steps[valid], kind="stable")]
    valid = valid[np.append(True, np.diff(record_steps[valid]) > 0)]
    steps, values = record_steps[valid], record_values[valid]
    if len(steps) < 2 or values[0] < 0 or np.any(np.diff(values) < 0):
        return None
    step_range, value_rise = float(steps[-1] - steps[0]), float(values[-1] - values[0])
    if value_rise:  # one that rises as the steps do counts them
        return None if value_rise == step_range else _StepCount(unit, (value_rise / step_range,), True)
    if not values[0]:
        return None
    interval = float(np.diff(steps).max())
    possible_counts = (float(values[0]), *([float(values[0]) / interval] if interval > 1 else []))
    return _StepCount(unit, possible_counts, False)


# Whether B_p, n, B and C agree, and where a curve ends

WRITTEN_NAN = "written_nan"  # key in a table's attrs: column → rows in which NaN is written out
_MIN_GAP_RATIO = 2  # rows without a value at the end, as a multiple of the longest gap between values
_COMPLETE_SHARE = 0.9  # share of the largest measured compute at which a run has come to its end


def mark_written_nan(frame: pd.DataFrame, rows_of_column: Mapping[str, set[int]]) -> None:
    """Record in ``attrs`` the rows in which NaN is written out at the end of a column.

    NaN before a later value stands for a missing value.
    """
    frame.attrs[WRITTEN_NAN] = {
        name: rows
        for name, rows in rows_of_column.items()
        if min(rows) > (frame[name].last_valid_index() or 0)
    }


def ends_in_nan(table: pd.DataFrame, written_nan: pd.Series) -> tuple[pd.Series, list[str]]:
    """Return a mask of the rows of NaN at the end of a curve, and a note if some of them are empty cells.

    ``table`` has the columns of `CURVE`, ``step``, ``compute`` and ``value``, and ``written_nan`` marks the
    rows in which NaN is written out.
    """
    positions = pd.RangeIndex(len(table))  # a table of several metrics repeats its index
    is_after_last, is_nan = after_last_value(table).set_axis(positions), written_nan.set_axis(positions)
    is_end, points = is_after_last & is_nan, table.set_axis(positions)
    for name in ("step", "compute"):
        points[name] = pd.to_numeric(points[name], errors="coerce")
    largest_compute = points["compute"][points["value"].notna()].max()
    empty_ends = []
    ending_runs = points["run_id"].isin(points["run_id"][is_after_last])
    for (run_id, _, metric), curve in points[ending_runs].groupby(CURVE):
        curve = curve.sort_values("step", kind="stable")
        filled = np.flatnonzero(curve["value"].notna())
        if not filled.size or is_nan[curve.index].any():
            continue
        longest_gap, last_row = int(np.diff(filled, prepend=-1).max()) - 1, curve.iloc[filled[-1]]
        is_early = last_row["compute"] < _COMPLETE_SHARE * largest_compute
        if is_early and len(curve) - 1 - filled[-1] > _MIN_GAP_RATIO * max(longest_gap, 1):
            is_end[curve.index[filled[-1] + 1 :]] = True
            empty_ends.append(f"{metric} of {run_id} after step {last_row['step']:g}")
    is_end = is_end.set_axis(table.index)
    if not empty_ends:
        return is_end, []
    more_ends = f" and {len(empty_ends) - 1} more" if len(empty_ends) > 1 else ""
    return is_end, [
        f"no more values: {empty_ends[0]}{more_ends}. isolaw takes the empty cells at the end for NaN, since "
        "pandas writes NaN so; leave out these rows if the run ended there"
    ]


_B, _N, _BATCH = SPLIT
_MAX_RATIO = 100  # times B_p · n · step; beyond that, compute must be tokens or FLOPs
_MIN_BATCH = 16  # evaluations every 10 steps are common
# Other column names that can only mean n, B_p or B.
_NAMES_OF = {
    _N: set(CALLED[_N].split()),
    _B: set(CALLED[_B].split()) - AMBIGUOUS,
    _BATCH: set(BATCH.split()),
}


def split_batch(table: pd.DataFrame, source: str) -> None:
    """Derive B_p or n from B = B_p · n, in place; raise `DataError` if the three contradict each other."""
    if _BATCH not in table.columns:
        return
    numbers = table.reindex(columns=list(SPLIT)).apply(pd.to_numeric, errors="coerce")
    if _B not in table.columns and (numbers[_BATCH] < numbers[_N]).all():  # a group feeds several updates
        table[_B] = numbers[_BATCH] / np.gcd(numbers[_BATCH].astype(np.int64), numbers[_N].astype(np.int64))
        if "compute" not in table.columns and "step" in table.columns:
            table["compute"] = numbers[_BATCH] * pd.to_numeric(table["step"], errors="coerce")
        return
    for name, other_name in ((_B, _N), (_N, _B)):
        if name not in table.columns:
            table[name] = numbers[name] = numbers[_BATCH] / numbers[other_name]
    is_wrong = (numbers[_B].round() * numbers[_N].round()).ne(numbers[_BATCH])
    if is_wrong.any():
        b, n, batch = numbers[is_wrong].iloc[0]
        row = f"{table.index.name} {table.index[is_wrong][0]}"
        raise DataError(f"{source}: {row}: B = {batch:g} is not B_p · n = {b:g} · {n:g}")


def use_training_shapes(table: pd.DataFrame, run_columns: Sequence[str], source: str) -> list[str]:
    """Give evaluation rows the B_p and n of their run's training rows, in place; return notes.

    An evaluation has its own n and number of problems, which are not the batch shape of the run.
    ``run_columns`` are the columns that distinguish runs, in addition to B_p and n. Raises `DataError` if B_p
    or n change within rows that appear to be one run, since C is then not B_p · n · step.
    """
    notes = []
    is_training = table["eval_set"].eq("train").to_numpy()
    shape_index, shapes = pd.MultiIndex.from_frame(table[[_B, _N]]).factorize(use_na_sentinel=False)
    for run_rows in table.groupby(list(run_columns), sort=False, dropna=False).indices.values():
        training_rows, eval_rows = run_rows[is_training[run_rows]], run_rows[~is_training[run_rows]]
        trained = np.unique(shape_index[training_rows])
        if len(trained) == 1 and len(eval_rows) and not np.isin(shape_index[eval_rows], trained).any():
            (eval_b, eval_n), training_shape = shapes[shape_index[eval_rows[0]]], shapes[trained[0]]
            table.iloc[eval_rows, [table.columns.get_loc(name) for name in (_B, _N)]] = training_shape
            notes.append(
                f"B_p = {training_shape[0]} and n = {training_shape[1]} come from the rows of training; the "
                f"rows of evaluations have B_p = {eval_b}, n = {eval_n}"
            )
        checked_rows = training_rows if len(training_rows) else run_rows
        if len(np.unique(shape_index[checked_rows])) > 1:  # in thousands of runs, few need a closer look
            _check_one_shape(table.iloc[checked_rows], source)
    return list(dict.fromkeys(notes))


def _check_one_shape(rows: pd.DataFrame, source: str) -> None:
    """Raise `DataError` if one run has rows of a second batch shape that continue the steps of the first."""
    if "step" not in rows or not (rows[[_B, _N]].nunique() > 1).any():
        return
    rows = rows.assign(step=pd.to_numeric(rows["step"], errors="coerce")).dropna(subset="step")
    spans = []
    for _, group in rows.groupby([_B, _N], sort=False):
        steps = group["step"].drop_duplicates().sort_values()
        spans.append((steps.iloc[0], steps.iloc[-1], steps.diff().max(), group))
    spans.sort(key=lambda span: span[0])
    for first_step, _, interval, group in spans:
        earlier = [span for span in spans if span[1] < first_step]
        if not earlier:
            continue
        _, last_step, earlier_interval, earlier_group = max(earlier, key=lambda span: span[1])
        usual_gap = max(gap for gap in (earlier_interval, interval, 0) if gap == gap)
        is_start = first_step <= (usual_gap if np.isnan(interval) else interval)
        if is_start or first_step - last_step > usual_gap:
            continue  # there is a gap, or a run with these steps starts here
        name = next(name for name in (_N, _B) if group[name].iloc[0] != earlier_group[name].iloc[0])
        shapes = [
            f"{part[name].iloc[0]} from {part.index.name} {part.index[0]} on (step {part['step'].iloc[0]:g})"
            for part in (earlier_group, group)
        ]
        raise DataError(
            f"{source}: {SYMBOL[name]} changes within what looks like one run: {' and '.join(shapes)}. Then "
            f"C is not B_p · n · step; keep the rows of one {SYMBOL[name]}. If these are several runs, name "
            f"the column that distinguishes them: " + option("columns", "run_id", Placeholder("column"))
        )


def check_unmapped(
    table: pd.DataFrame, frame: pd.DataFrame, options: HowToRead, unused: Sequence[str], source: str
) -> list[str]:
    """Raise `DataError` if an unmapped column contradicts n, B_p or B, or counts other rollouts than B_p · n.

    A column counts each record, or from the start. Only rows of training are checked, if there are any;
    evaluations have a number of problems and samples of their own. What the user maps is trusted. Returns a
    note if the steps may count rollouts.
    """
    rows = table[table["eval_set"].eq("train")] if table["eval_set"].eq("train").any() else table
    numbers = rows[["run_id"]].join(rows[[_B, _N, "step"]].apply(pd.to_numeric, errors="coerce"))
    if numbers.isna().any(axis=None) or (numbers[_N] < 1).any():
        return []  # `Runs` reports this
    numbers[_BATCH] = numbers[_B] * numbers[_N]
    has_trainer_metrics = any(map(is_measured_by_trainer, map(str, frame.columns)))
    set_by_user = {name: name for name in _NAMES_OF if name in options.row_values and name in frame}
    name_of = {column: name for column in unused for name in _NAMES_OF if plain(column) in _NAMES_OF[name]}
    mapped_names = [name for name in _NAMES_OF if options.columns.get(name, SYMBOL[name]) != SYMBOL[name]]
    for column in [*set_by_user, *unused]:
        cells = pd.to_numeric(frame[column], errors="coerce").reindex(rows.index)
        name = set_by_user.get(column) or name_of.get(column)
        is_common = frame[column].notna().mean() > 0.5  # else of a few other lines
        if name and name not in mapped_names and is_common:
            is_wrong = cells.notna() & (cells != numbers[name])
            if is_wrong.any():
                row, symbol = rows.index[is_wrong][0], SYMBOL[name]
                verb = "is set to" if name in options.row_values else "is"
                raise DataError(
                    f"{source}: {symbol} {verb} {numbers[name][is_wrong].iloc[0]:g}, but the column {column} "
                    f"says {cells[is_wrong].iloc[0]:g} in {table.index.name} {row}; correct the wrong value, "
                    "or use the column: " + option("columns", symbol, column)
                )
        if "compute" in options.columns or words_of(column) & HELD_OUT or not counts(column):
            continue
        for _, run in numbers.groupby("run_id", sort=False):
            count = _count_of(column, run["step"].to_numpy(np.float64), cells[run.index].to_numpy(np.float64))
            b, n = float(run[_B].iloc[0]), float(run[_N].iloc[0])
            if count is None or not (count.is_cumulative or has_trainer_metrics or count.unit == "rollouts"):
                continue
            if count.matches(b, n, column):
                continue
            symbol = "C" if count.is_cumulative else "B_p" if count.unit == "problems" else "B"
            raise DataError(
                f"{source}: {column} counts {count.per_step[0]:g} a step from {run.index.name} "
                f"{run.index[0]} on, but B_p = {b:g} and n = {n:g} make "
                f"{b if count.unit == 'problems' else b * n:g}; correct the wrong value. If {column} is "
                f"{symbol}: "
                + (option("columns", symbol, column) + "; if it counts something else: ")
                + option("columns", "C", f"{_B}*{_N}*step")
            )
    return _rollout_step_note(table) if "step" in {*options.column_names, *frame.columns} else []


def with_counts(frame: pd.DataFrame, options: HowToRead, source: str) -> tuple[HowToRead, list[str]]:
    """Return how to read a table that counts its rollouts, which states n or B = B_p · n; and notes.

    The length of a list of rewards is such a count, and so is a column that counts the rollouts of each step.
    Raises `DataError` if a list is no multiple of n.

    >>> frame = pd.DataFrame({"step": [1, 2, 3], "rollout_count": 20, "loss": 0.1})
    >>> with_counts(frame, HowToRead(), "run.csv")[1]
    ['the column rollout_count is 20 a step, which isolaw reads as B = B_p · n']
    """
    columns = list(map(str, frame.columns))

    def with_value(name: str, count: int) -> HowToRead:
        return options.but(set={**options.set, "": {**options.row_values, name: count}})

    sizes, notes = {*options.column_names, *columns} & {*SPLIT}, list[str]()
    reward_columns = [name for name in columns if is_reward(name) and not name.startswith(LENGTH[:4])]
    length_column = LENGTH.format(options.metric or (reward_columns[0] if len(reward_columns) == 1 else ""))
    lengths = frame[length_column].dropna().unique().tolist() if length_column in columns else []
    if len(lengths) == 1:
        length, n = int(lengths[0]), options.row_values.get(_N)
        finding = f"the lists {length_column[4:-1]} have {length:,} values"
        if n is not None and length % n and n != 1:
            raise DataError(f"{source}: {finding}, which is neither n = {n} nor a multiple of it")
        if _N not in sizes and len(sizes) < 2:
            options, notes, sizes = with_value(_N, length), [f"{finding}, which is n"], {*sizes, _N}
        elif n is not None and length != n and sizes == {_N}:
            return with_value(_BATCH, length), [f"{finding}, which is B = B_p · n"]
    step = options.columns.get("step") or guess(columns).get("step")
    if step not in columns or len(sizes) > 1 or _BATCH in sizes or "compute" in options.columns:
        return options, notes
    steps = pd.to_numeric(frame[step], errors="coerce").to_numpy(np.float64)
    for column in (c for c in columns if c not in options.expressions and c not in guess(columns).values()):
        if counts(column) != "rollouts" or plain(column) in _POSSIBLE_N or words_of(column) & HELD_OUT:
            continue
        count = _count_of(column, steps, pd.to_numeric(frame[column], errors="coerce").to_numpy(np.float64))
        if count and len(count.per_step) == 1 and (batch := int(count.per_step[0])) == count.per_step[0] > 1:
            note = f"the column {column} is {batch:,} a step, which isolaw reads as B = B_p · n"
            return with_value(_BATCH, batch), [*notes, note]
    return options, notes


def _rollout_step_note(table: pd.DataFrame) -> list[str]:
    """Return a note if all steps are consecutive multiples of B_p · n, since they may count rollouts."""
    b, n, step = (pd.to_numeric(table[name], errors="coerce") for name in (_B, _N, "step"))
    batch, steps = (b * n).iloc[0], np.unique(step)
    if batch < _MIN_BATCH or (b * n).nunique() > 1 or len(steps) < 3 or (np.diff(steps) != batch).any():
        return []
    return [f"steps rise by {batch:g}, which is B_p · n. If steps count rollouts, map the column step to C"]


def check_compute(table: pd.DataFrame, source: str) -> list[str]:
    """Check that compute is at least B_p · n · step; a larger compute means discarded rollouts.

    Raises `DataError` if compute is smaller, or over a hundred times as large, which no filter explains.
    Returns notes.
    """
    b, n, step, compute = (
        pd.to_numeric(table[name], errors="coerce") for name in (_B, _N, "step", "compute")
    )
    if not (b.mod(1).eq(0) & n.mod(1).eq(0) & b.ge(1) & n.ge(1)).all():
        return []  # `Runs` reports this
    smallest = b * n * (step - 1)  # steps may be counted from 1 before the first one is done
    if (is_short := (compute >= 0) & (compute < smallest * (1 - _TOLERANCE))).any():
        row = is_short.idxmax()
        raise DataError(
            f"{source}: {table.index.name} {row}: compute is {compute[row]:g}, but B_p · n · step = "
            f"{b[row]:g} · {n[row]:g} · {step[row]:g} = {b[row] * n[row] * step[row]:g}; correct the wrong "
            "value"
        )
    ratios = compute / (b * n * (step + 1))
    ratios_of_run = ratios[compute > 0].groupby(table["run_id"])
    is_excessive = ratios_of_run.min() > _MAX_RATIO
    if is_excessive.any():  # if a run continues another, the ratio starts high and falls
        row = ratios_of_run.idxmin()[is_excessive].iloc[0]
        raise DataError(
            f"{source}: {table.index.name} {row}: compute is {compute[row]:g}, over {_MAX_RATIO} times B_p · "
            f"n · step = {b[row]:g} · {n[row]:g} · {step[row]:g} = {b[row] * n[row] * step[row]:g}. C counts "
            f"rollouts; if these are tokens or FLOPs: " + option("columns", "compute", f"{_B}*{_N}*step")
        )
    if (largest := ratios.max()) * (1 - _TOLERANCE) > 1:
        return [
            f"compute is up to {largest:.3g} times B_p · n · step; if this is correct, it includes "
            "discarded rollouts"
        ]
    return []
