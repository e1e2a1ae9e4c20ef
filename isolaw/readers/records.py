"""The rules that read records, whatever container they come from: a table, a console, JSON, a notebook.

A record has names and values, and a place (a line, a row, or its position). A log's records are columns of a
`isolaw.readers.raw_log.RawLog`, and those of a table the rows of a data frame. The rules say which records
are settings, where a training begins, what is a count, where a curve ends in NaN, and whether B_p, n, B and C
agree; if they do not, the user decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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
from isolaw.runs import CURVE, after_last_value, listed

Floats = NDArray[np.float64]
_SLACK = 0.02  # relative; a counter or a compute can be read off a figure
_MAYBE_N = set(MAYBE["rollouts_per_problem"].split())


LENGTH = "len({})"  # column with the length of a list of rewards


def of_list(name: str, values: Sequence[Any]) -> dict[str, float]:
    """Return the mean and the length of a list of rewards, by column; empty if it is not one of numbers.

    >>> of_list("rewards", ["1.0", 0.0]), of_list("rewards", ["a"])
    ({'rewards': 0.5, 'len(rewards)': 2}, {})
    """
    numbers = [number(value) if not isinstance(value, bool) else float(value) for value in values]
    known = [value for value in numbers if value is not None]
    if not known or len(known) < len(values):
        return {}
    return {name: float(np.mean(known)), LENGTH.format(name): len(known)}


def with_settings(
    rows: list[dict[str, Any]], places: list[int], what: str
) -> tuple[list[dict[str, Any]], list[int], list[str]]:
    """Return the records that have a step, with the settings of the records that have none; places; notes.

    A record without a step and without a value that records with a step measure contains settings, which
    hold for the records after it. ``what`` is what ``places`` are, such as ``line``.

    >>> with_settings([{"lr": 0.1}, {"step": 1, "acc": 0.5}, {"step": 2, "acc": 0.6}, {"done": True}],
    ...               [1, 2, 3, 4], "line")[:2]
    ([{'lr': 0.1, 'step': 1, 'acc': 0.5}, {'lr': 0.1, 'step': 2, 'acc': 0.6}], [2, 3])
    """
    stepped = [any(is_step(key) and number(value) is not None for key, value in row.items()) for row in rows]
    if sum(stepped) < 2 or all(stepped):
        return rows, places, []
    with_step = [row for row, has in zip(rows, stepped, strict=True) if has]
    first = set().union(*with_step)
    numbers = {key for row in with_step for key, value in row.items() if number(value) is not None}
    settings: dict[str, Any] = {}
    out, kept, without = [], [], []
    for row, place, has in zip(rows, places, stepped, strict=True):
        if has:
            out.append({**settings, **row})
        elif any(
            is_reward(key) or "loss" in plain(key) for key in numbers & row.keys()
        ):  # its step is missing
            out.append(row)
        else:
            settings = {**settings, **{key: value for key, value in row.items() if key not in first}}
            without.append(place)
            continue
        kept.append(place)
    names = dict.fromkeys(key for row in out for key in settings if key in row)
    where = f"{what} {listed(list(map(str, without)), 4)}"
    note = f"{where} has no step, so its values are settings, read as columns: {', '.join(names)}"
    return out, kept, [note[:500]] if names else []


@dataclass(frozen=True)
class _StepCount:
    """What a column counts in each step."""

    unit: str  # ``rollouts``, ``problems`` or ``both``, as `isolaw.readers.names.counts`
    a_step: tuple[float, ...]  # more than one if it is unknown whether it counts a record or a step
    rises: bool  # whether it counts from the start

    def agrees(self, problems: float, rollouts: float, name: str) -> bool:
        """Return whether it can be the count of B_p problems with n ``rollouts`` each."""
        batch = problems * rollouts
        accepted = {"problems": [problems], "both": [batch, problems]}.get(self.unit, [batch])
        if not self.rises and plain(name) in _MAYBE_N:
            accepted.append(rollouts)
        return any(abs(each - one) <= _SLACK * one for each in self.a_step for one in accepted)


def _count_of(name: str, step: Floats, value: Floats) -> _StepCount | None:
    """Return what a column counts per step: its rise, or the same number in every record; else None.

    >>> _count_of("total_episodes", np.array([10.0, 20.0]), np.array([320.0, 640.0])).a_step
    (32.0,)
    >>> _count_of("rollout_count", np.array([10.0, 20.0]), np.array([40.0, 40.0])).a_step
    (40.0, 4.0)
    """
    unit = counts(name)
    kept = np.flatnonzero(~(np.isnan(step) | np.isnan(value)))
    if not unit or kept.size < 2:
        return None
    kept = kept[np.argsort(step[kept], kind="stable")]
    kept = kept[np.append(True, np.diff(step[kept]) > 0)]
    steps, values = step[kept], value[kept]
    if len(steps) < 2 or values[0] < 0 or np.any(np.diff(values) < 0):
        return None
    passed, rise = float(steps[-1] - steps[0]), float(values[-1] - values[0])
    if rise:  # one that rises as the steps do counts them
        return None if rise == passed else _StepCount(unit, (rise / passed,), True)
    if not values[0]:
        return None
    interval = float(np.diff(steps).max())
    each = (float(values[0]), *([float(values[0]) / interval] if interval > 1 else []))
    return _StepCount(unit, each, False)


# Whether B_p, n, B and C agree, and where a curve ends

_LONGER = 2  # rows without a value at the end, as a multiple of the longest gap between values
_FAR = 0.9  # share of the largest measured compute at which a run has come to its end


def ends_in_nan(table: pd.DataFrame, written: pd.Series) -> tuple[pd.Series, list[str]]:
    """Return a mask of the rows of NaN at the end of a curve, and a note if some of them are empty cells.

    ``table`` has the columns of `CURVE`, ``step``, ``compute`` and ``value``, and ``written`` marks the rows
    in which NaN is written out.
    """
    whole = pd.RangeIndex(len(table))  # a table of several metrics repeats its index
    after, marked = after_last_value(table).set_axis(whole), written.set_axis(whole)
    ends, rows = after & marked, table.set_axis(whole)
    rows = rows.assign(**{name: pd.to_numeric(rows[name], errors="coerce") for name in ("step", "compute")})
    farthest = rows["compute"][rows["value"].notna()].max()
    empty = []
    for (run_id, _, metric), curve in rows[rows["run_id"].isin(rows["run_id"][after])].groupby(CURVE):
        curve = curve.sort_values("step", kind="stable")
        at = np.flatnonzero(curve["value"].notna())
        if not at.size or marked[curve.index].any():
            continue
        gap, last = int(np.diff(at, prepend=-1).max()) - 1, curve.iloc[at[-1]]
        if len(curve) - 1 - at[-1] > _LONGER * max(gap, 1) and last["compute"] < _FAR * farthest:
            ends[curve.index[at[-1] + 1 :]] = True
            empty.append(f"{metric} of {run_id} after step {last['step']:g}")
    ends = ends.set_axis(table.index)
    if not empty:
        return ends, []
    more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
    return ends, [
        f"no more values: {empty[0]}{more}. isolaw takes the empty cells at the end for NaN, since pandas "
        "writes NaN so; leave out these rows if the run ended there"
    ]


_B, _N, _BATCH = SPLIT
_MOST_DISCARDED = 100  # times B_p · n · step; beyond that, compute must be tokens or FLOPs
_LEAST_BATCH = 16  # evaluations every 10 steps are common
# Other column names that can only mean n, B_p or B.
_SAY = {
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
    for name, other in ((_B, _N), (_N, _B)):
        if name not in table.columns:
            table[name] = numbers[name] = numbers[_BATCH] / numbers[other]
    wrong = (numbers[_B].round() * numbers[_N].round()).ne(numbers[_BATCH])
    if wrong.any():
        at = numbers[wrong].iloc[0]
        place = f"{table.index.name} {table.index[wrong][0]}"
        raise DataError(f"{source}: {place}: B = {at[_BATCH]:g} is not B_p · n = {at[_B]:g} · {at[_N]:g}")


def of_training_rows(table: pd.DataFrame, keys: Sequence[str], source: str) -> list[str]:
    """Give evaluation rows the B_p and n of their run's training rows, in place; return notes.

    An evaluation has its own n and number of problems, which are not the batch shape of the run. ``keys`` are
    the columns that distinguish runs, in addition to B_p and n. Raises `DataError` if B_p or n change within
    rows that appear to be one run, since C is then not B_p · n · step.
    """
    notes = []
    train = table["eval_set"].eq("train").to_numpy()
    shape, shapes = pd.MultiIndex.from_frame(table[[_B, _N]]).factorize(use_na_sentinel=False)
    for rows in table.groupby(list(keys), sort=False, dropna=False).indices.values():
        of, others = rows[train[rows]], rows[~train[rows]]
        trained = np.unique(shape[of])
        if len(trained) == 1 and len(others) and not np.isin(shape[others], trained).any():
            of_evaluation, of_training = shapes[shape[others[0]]], shapes[trained[0]]
            table.iloc[others, [table.columns.get_loc(name) for name in (_B, _N)]] = of_training
            notes.append(
                f"B_p = {of_training[0]} and n = {of_training[1]} come from the rows of training; the rows "
                f"of evaluations have B_p = {of_evaluation[0]}, n = {of_evaluation[1]}"
            )
        if len(np.unique(shape[of if len(of) else rows])) > 1:  # in thousands of runs, few need a closer look
            _check_constant(table.iloc[of if len(of) else rows], source)
    return list(dict.fromkeys(notes))


def _check_constant(rows: pd.DataFrame, source: str) -> None:
    """Raise `DataError` if one run has rows of a second batch shape that continue the steps of the first."""
    if "step" not in rows or not (rows[[_B, _N]].nunique() > 1).any():
        return
    rows = rows.assign(step=pd.to_numeric(rows["step"], errors="coerce")).dropna(subset="step")
    ends = []
    for _, group in rows.groupby([_B, _N], sort=False):
        steps = group["step"].drop_duplicates().sort_values()
        ends.append((steps.iloc[0], steps.iloc[-1], steps.diff().max(), group))
    ends.sort(key=lambda one: one[0])
    for first, _, interval, group in ends:
        before = max((one for one in ends if one[1] < first), key=lambda one: one[1], default=None)
        if before is None:
            continue
        usual = max(gap for gap in (before[2], interval, 0) if gap == gap)
        if first - before[1] > usual or first <= (interval if interval == interval else usual):
            continue  # there is a gap, or a run with these steps starts here
        name = next(name for name in (_N, _B) if group[name].iloc[0] != before[3][name].iloc[0])
        said = [
            f"{part[name].iloc[0]} from {part.index.name} {part.index[0]} on (step {part['step'].iloc[0]:g})"
            for part in (before[3], group)
        ]
        raise DataError(
            f"{source}: {SYMBOL[name]} changes within what looks like one run: {' and '.join(said)}. Then C "
            f"is not B_p · n · step; keep the rows of one {SYMBOL[name]}. If these are several runs, name "
            f"the column that distinguishes them: " + option("columns", "run_id", Placeholder("column"))
        )


def check_said(
    table: pd.DataFrame, frame: pd.DataFrame, how: HowToRead, unused: Sequence[str], source: str
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
    trains = any(map(is_measured_by_trainer, map(str, frame.columns)))
    overridden = {name: name for name in _SAY if name in how.row_values and name in frame}
    said = {column: name for column in unused for name, called in _SAY.items() if plain(column) in called}
    trusted = [name for name in _SAY if how.columns.get(name, SYMBOL[name]) != SYMBOL[name]]
    for column in [*overridden, *unused]:
        there = pd.to_numeric(frame[column], errors="coerce").reindex(rows.index)
        name = overridden.get(column) or said.get(column)
        if name and name not in trusted and frame[column].notna().mean() > 0.5:  # else of a few other lines
            wrong = there.notna() & (there != numbers[name])
            if wrong.any():
                at, what = rows.index[wrong][0], SYMBOL[name]
                ours, theirs = (values[wrong].iloc[0] for values in (numbers[name], there))
                given = "is set to" if name in how.row_values else "is"
                raise DataError(
                    f"{source}: {what} {given} {ours:g}, but the column {column} says {theirs:g} in "
                    f"{table.index.name} {at}; correct the wrong value, or use the column: "
                    + option("columns", what, column)
                )
        if "compute" in how.columns or words_of(column) & HELD_OUT or not counts(column):
            continue
        for _, run in numbers.groupby("run_id", sort=False):
            count = _count_of(column, run["step"].to_numpy(np.float64), there[run.index].to_numpy(np.float64))
            b, n = float(run[_B].iloc[0]), float(run[_N].iloc[0])
            if count is None or not (count.rises or trains or count.unit == "rollouts"):
                continue
            if count.agrees(b, n, column):
                continue
            symbol = "C" if count.rises else "B_p" if count.unit == "problems" else "B"
            raise DataError(
                f"{source}: {column} counts {count.a_step[0]:g} a step from {run.index.name} {run.index[0]} "
                f"on, but B_p = {b:g} and n = {n:g} make {b if count.unit == 'problems' else b * n:g}; "
                f"correct the wrong value. If {column} is {symbol}: "
                + option("columns", symbol, column)
                + "; if it counts something else: "
                + option("columns", "C", f"{_B}*{_N}*step")
            )
    return _steps_of_rollouts(table) if "step" in {*how.column_names, *frame.columns} else []


def with_counts(frame: pd.DataFrame, how: HowToRead, source: str) -> tuple[HowToRead, list[str]]:
    """Return how to read a table that counts its rollouts, which states n or B = B_p · n; and notes.

    The length of a list of rewards is such a count, and so is a column that counts the rollouts of each step.
    Raises `DataError` if a list is no multiple of n.

    >>> frame = pd.DataFrame({"step": [1, 2, 3], "rollout_count": 20, "loss": 0.1})
    >>> with_counts(frame, HowToRead(), "run.csv")[1]
    ['the column rollout_count is 20 a step, which isolaw reads as B = B_p · n']
    """
    columns = list(map(str, frame.columns))

    def stating(name: str, count: int) -> HowToRead:
        return how.but(set={**how.set, "": {**how.row_values, name: count}})

    known, notes = {*how.column_names, *columns} & {*SPLIT}, list[str]()
    rewards = [name for name in columns if is_reward(name) and not name.startswith(LENGTH[:4])]
    of = how.metric or (rewards[0] if len(rewards) == 1 else "")
    lengths = frame[LENGTH.format(of)].dropna().unique().tolist() if LENGTH.format(of) in columns else []
    if len(lengths) == 1:
        length, n, where = (
            int(lengths[0]),
            how.row_values.get(_N),
            f"the lists {of} have {lengths[0]:,.0f} values",
        )
        if n is not None and length % n and n != 1:
            raise DataError(f"{source}: {where}, which is neither n = {n} nor a multiple of it")
        if _N not in known and len(known) < 2:
            how, notes, known = stating(_N, length), [f"{where}, which is n"], {*known, _N}
        elif n is not None and length != n and known == {_N}:
            return stating(_BATCH, length), [f"{where}, which is B = B_p · n"]
    step = how.columns.get("step") or guess(columns).get("step")
    if step not in columns or len(known) > 1 or _BATCH in known or "compute" in how.columns:
        return how, notes
    steps = pd.to_numeric(frame[step], errors="coerce").to_numpy(np.float64)
    for column in (c for c in columns if c not in how.expressions and c not in guess(columns).values()):
        if counts(column) != "rollouts" or plain(column) in _MAYBE_N or words_of(column) & HELD_OUT:
            continue
        count = _count_of(column, steps, pd.to_numeric(frame[column], errors="coerce").to_numpy(np.float64))
        if count and len(count.a_step) == 1 and (batch := int(count.a_step[0])) == count.a_step[0] > 1:
            note = f"the column {column} is {batch:,} a step, which isolaw reads as B = B_p · n"
            return stating(_BATCH, batch), [*notes, note]
    return how, notes


def _steps_of_rollouts(table: pd.DataFrame) -> list[str]:
    """Return a note if all steps are consecutive multiples of B_p · n, since they may count rollouts."""
    b, n, step = (pd.to_numeric(table[name], errors="coerce") for name in (_B, _N, "step"))
    batch, steps = (b * n).iloc[0], np.unique(step)
    if batch < _LEAST_BATCH or (b * n).nunique() > 1 or len(steps) < 3 or (np.diff(steps) != batch).any():
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
    least = b * n * (step - 1)  # steps may be counted from 1 before the first one is done
    if (short := (compute >= 0) & (compute < least * (1 - _SLACK))).any():
        at = short.idxmax()
        raise DataError(
            f"{source}: {table.index.name} {at}: compute is {compute[at]:g}, but B_p · n · step = {b[at]:g} "
            f"· {n[at]:g} · {step[at]:g} = {b[at] * n[at] * step[at]:g}; correct the wrong value"
        )
    ratios = compute / (b * n * (step + 1))
    runs = ratios[compute > 0].groupby(table["run_id"])
    if (runs.min() > _MOST_DISCARDED).any():  # if a run continues another, the ratio starts high and falls
        at = runs.idxmin()[runs.min() > _MOST_DISCARDED].iloc[0]
        raise DataError(
            f"{source}: {table.index.name} {at}: compute is {compute[at]:g}, over {_MOST_DISCARDED} times "
            f"B_p · n · step = {b[at]:g} · {n[at]:g} · {step[at]:g} = {b[at] * n[at] * step[at]:g}. C counts "
            f"rollouts; if these are tokens or FLOPs: " + option("columns", "compute", f"{_B}*{_N}*step")
        )
    if (ratio := ratios.max()) * (1 - _SLACK) > 1:
        return [
            f"compute is up to {ratio:.3g} times B_p · n · step; if this is correct, it includes discarded "
            "rollouts"
        ]
    return []
