"""Which run a record belongs to: where a training begins, and which part of a log or table continues it.

The rules are the same for the records of a log and the rows of a table. Another training begins in a file
where a metric's steps start again from their first one, with other values; a resumed run goes back only to
its last checkpoint.

If a job is killed and submitted again, a tracker gives it another id under the same name. A *part* of a run
is what one start of the job recorded: the rows of a table with one combination of the columns that name runs,
or the records between two falls of the steps. Parts with the same name and settings form one run if each
starts later and ends later than the one before; otherwise a part is a repeat, i.e. a run of its own. If two
parts have the same step, the later value is kept.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.commands import option
from isolaw.errors import DataError
from isolaw.evidence import count
from isolaw.metrics import is_reward
from isolaw.readers.names import RECIPE, RUN_NAMES, guess, is_step, plain
from isolaw.readers.raw_log import RawLog, Series
from isolaw.runs import KEY, listed
from isolaw.runs import plain as plain_value

Floats = NDArray[np.float64]
# A training whose first record is later than this many intervals between records continues a checkpoint.
_MAX_FIRST_INTERVALS = 2
_ROUNDING_ERROR = 5e-3  # of an epoch with two digits
_MIN_ROUNDINGS = 8  # between two records, so that a missing record is noticeable
_MAX_FIRST_GAP = 0.55  # of the usual gap between epochs; a smaller one is before the record of the first step
_MAX_DEVIATION = 0.2  # of an epoch, as a share of the epochs between two records
_SHOWN = 4
_MIN_MIXED_STEPS = 2  # steps
# rtol and atol of equal values in different containers: TensorBoard stores 32-bit numbers, and consoles print
# few digits.
ROUNDED = 1e-4, 6e-4
PART = "_part"  # the column with the place of each row's part among the parts of its run
# Words in the names of what a trainer measures; a learning rate can follow a schedule.
_METRIC_WORDS = {
    *("loss", "lr", "learning", "grad", "gradient", "norm", "kl", "entropy", "clip", "clipfrac"),
    *("advantage", "length", "tokens", "epoch", "time", "times", "elapsed", "duration", "seconds", "secs"),
    *("timestamp", "wall", "runtime", "memory", "mem", "gb", "mb", "throughput", "speed", "eta"),
}
# A metric → ascending positions of the records that measure it, and its values.
_MetricRecords = Mapping[str, tuple[Sequence[int], Sequence[float]]]


def training_starts(
    step: Sequence[float] | Floats, metrics: _MetricRecords, config_starts: Collection[int] = ()
) -> list[int]:
    """Return the positions at which another training begins in the same file.

    ``step`` has the step of each record (NaN if unknown), ``metrics`` the records that measure each metric,
    and ``config_starts`` the positions before which a configuration was printed that differs from the one
    before. Another training begins where a metric's steps start again from their first one, with other
    values. A resumed run goes back only to its last checkpoint.

    >>> training_starts([1, 2, 3, 4, 3, 4, 5], {"reward": (range(7), range(7))})
    []
    >>> training_starts([0, 1, 2, 3, 1, 2], {"reward": (range(1, 6), range(1, 6)), "val/acc": ([0], [0.1])})
    [4]
    >>> training_starts([1, 2, 3, 1, 2, 3], {"reward": (range(6), [1, 2, 3, 1, 2, 3])})
    []
    """
    steps = np.asarray(step, dtype=np.float64)
    numbered = np.flatnonzero(~np.isnan(steps))
    starts: list[int] = []
    start, furthest, fall, previous = 0, -np.inf, -1, -np.inf
    if not config_starts and not (np.diff(steps[numbered]) < 0).any():
        return starts
    for record in numbered.tolist():
        current = steps[record]
        fall = record if current < previous or record in config_starts else fall
        previous = current
        if current > furthest or (current == furthest and record not in config_starts):
            furthest = current
        elif fall > start:
            has_new_config = any(fall <= config_start <= record for config_start in config_starts)
            if _starts_again(steps, start, fall, record, metrics, has_new_config):
                starts.append(fall)
                start, furthest = fall, current
    return starts


def _starts_again(
    steps: Floats, start: int, fall: int, record: int, metrics: _MetricRecords, has_new_config: bool
) -> bool:
    """Return whether a metric in a record starts again at ``fall`` from its first step."""
    for positions, values in metrics.values():
        low, current = bisect_left(positions, start), bisect_left(positions, record)
        high = bisect_left(positions, fall)
        if high == low or current == len(positions) or positions[current] != record:
            continue
        past_steps = steps[np.asarray(positions[low:high])]
        first_step = past_steps[0]
        if np.isnan(first_step) or steps[fall] > first_step:
            continue
        is_repeated = any(
            math.isclose(values[low + i], values[current], rel_tol=1e-9)
            for i in np.flatnonzero(past_steps == steps[record]).tolist()
        )
        gaps = np.diff(past_steps)
        interval = gaps[gaps > 0].max(initial=0)
        is_new = past_steps.max() > first_step and first_step <= _MAX_FIRST_INTERVALS * interval
        if has_new_config or (is_new and not is_repeated):
            return True
    return False


def split_by_training(logs: Sequence[RawLog]) -> Iterator[RawLog]:
    """Yield the logs, with one run for each training in a file: ``run``, ``run#2`` and so on."""
    for _, group in groupby(logs, lambda log: (log.source, log.run)):
        run_logs = list(group)
        log_ends = np.cumsum([0, *(len(log.step) for log in run_logs)]).tolist()
        steps = np.concatenate([_record_steps(log) for log in run_logs])
        starts: list[int] = []
        if all(log.in_order for log in run_logs):
            metrics: dict[str, tuple[list[int], list[float]]] = {}
            if len(steps) and (np.diff(steps[~np.isnan(steps)]) < 0).any():
                for log, offset in zip(run_logs, log_ends, strict=False):
                    for key, series in log.series.items():
                        records, values = metrics.setdefault(key, ([], []))
                        records.extend(record + offset for record in series.record)
                        values.extend(series.value)
            starts = training_starts(steps, metrics, log_ends[1:-1] if len(run_logs) > 1 else ())
        if not starts:
            yield from run_logs
            continue
        for log, (start, end) in zip(run_logs, pairwise(log_ends), strict=True):
            cuts = [start, *(cut for cut in starts if start < cut < end)]
            numbers = [bisect_right(starts, cut) + 1 for cut in cuts]
            names = [f"{log.run}#{number}" if number > 1 else log.run for number in numbers]
            yield from log.split_at([cut - start for cut in cuts], names)


def _record_steps(log: RawLog) -> NDArray[np.float64]:
    """Return the steps of a log's records, by the container or by a key that counts steps."""
    steps = np.array(log.step, dtype=np.float64)
    keys = [key for key in log.series if is_step(key)] if np.isnan(steps).all() else []
    for key in keys[:1]:
        steps[np.asarray(log.series[key].record)] = log.series[key].value
    return steps


def record_numbers(epochs: Floats, interval: int = 1) -> tuple[Floats, float, float]:
    """Return the numbers of records without steps, the epochs from one to the next, and their rounding.

    ``epochs`` has the epoch of each record (NaN if unknown), from 0, and ``interval`` the updates from one to
    the next. If the epochs are precise enough, they give the numbers, also where records are lost or a
    resumed run repeats them, and the number is 0 for an additional record of the first step. Otherwise the
    second value is 0, and the records are numbered in order, from 1; if their epochs go back, all numbers are
    NaN.

    >>> record_numbers(np.array([0.1, 0.2, 0.4, 0.3, 0.4]))[:2]
    (array([1., 2., 4., 3., 4.]), 0.1)
    >>> record_numbers(np.array([0.01, 0.01, 0.02]))[:2], record_numbers(np.array([0.1, 0.2, 0.15]))[:2]
    ((array([1., 2., 3.]), 0.0), (array([nan, nan, nan]), 0.0))
    """
    gaps = np.diff(epochs)
    has_two_digits = np.allclose(epochs, np.round(epochs, 2), 0, 1e-6, equal_nan=True)
    rounding = _ROUNDING_ERROR if has_two_digits else _ROUNDING_ERROR / 10
    if epochs.size > 1 and np.median(np.append(gaps, 0)) > _MIN_ROUNDINGS * rounding:
        usual_gap = np.quantile(gaps[gaps > 0], 0.5, method="lower")
        is_early = epochs.size > 2 and epochs[0] < _MAX_FIRST_GAP * usual_gap
        has_first = int(is_early and interval > 1 and not (epochs % 1 == 0).all())  # nor counted epochs
        later = epochs[has_first:]  # after the record of the first step (logging_first_step)
        with np.errstate(all="ignore"):
            gaps_to_next = np.diff(later, prepend=0)
            usual = gaps_to_next[np.round(gaps_to_next / usual_gap) == 1]  # no record is missing there
            multiples = np.round(later / (usual.sum() / usual.size))
            period = float(later @ multiples / (multiples @ multiples))
            numbers = np.round(later / period)
            is_off = ~(np.abs(later - numbers * period) <= 2 * rounding + _MAX_DEVIATION * period)
        if not is_off.any() and numbers.min() >= 1:
            return np.append(np.zeros(has_first), numbers), round(period, 12), rounding
    numbers = np.arange(1, epochs.size + 1, dtype=np.float64)
    return np.full_like(numbers, np.nan) if (gaps < 0).any() else numbers, 0.0, rounding


def name_trainings(
    frame: pd.DataFrame, step_column: str, name: str, user_columns: Collection[str] = ()
) -> pd.DataFrame:
    """Return a table whose column ``run`` names the trainings in it, if there are several.

    ``attrs["falls"]`` has the rows at which steps go back, as in a resumed run. A table whose columns
    distinguish the trainings already names its runs. ``step_column`` is the column of the steps, ``name`` the
    name of the first training, and ``user_columns`` has the columns that the user names.
    """
    steps = pd.to_numeric(frame[step_column], errors="coerce").to_numpy(np.float64)
    falls = np.flatnonzero(np.diff(steps, prepend=-np.inf) < 0)
    other_columns = frame.drop(columns=step_column)
    if not falls.size or other_columns.shape[1] == 0:
        return frame
    part_index = np.searchsorted(falls, np.arange(len(frame)), side="right")
    run_columns = guess(list(other_columns), RUN_NAMES).values()
    has_names = any(frame[column].nunique() > 1 for column in run_columns)
    if has_names or _distinguish(other_columns, part_index, user_columns):
        return frame
    if (continued := _across_epochs(frame, step_column, part_index)) is not None:
        return name_trainings(continued, step_column, name, user_columns)
    log = RawLog("", "table", name, step=array("d", steps))
    for column in other_columns.select_dtypes("number"):
        cells = other_columns[column].to_numpy(np.float64, na_value=np.nan)
        filled = np.flatnonzero(~np.isnan(cells))
        log.series[column] = Series(array("I", filled), array("d", cells[filled]))
    pieces = list(split_by_training([log]))
    piece_sizes = [len(piece.step) for piece in pieces]
    training_index = np.repeat(np.arange(len(pieces)), piece_sizes)
    if len(pieces) > 1 and (run_columns or _distinguish(other_columns, training_index, user_columns)):
        return frame
    result, notes = frame.copy(), list(frame.attrs.get("notes", ()))
    result.attrs["falls"] = frame.index[falls].tolist()
    if len(pieces) > 1:
        result.insert(0, "run", np.repeat([piece.run for piece in pieces], piece_sizes))
        result.attrs["trainings"] = True
        starts = [f"{frame.index.name} {frame.index[start]}" for start in np.cumsum(piece_sizes)[:-1]]
        notes.append(f"the steps start again at {listed(starts, 4)}, so other trainings begin there")
    result.attrs["notes"] = notes
    return result


def _across_epochs(
    frame: pd.DataFrame, step_column: str, part_index: NDArray[np.int64]
) -> pd.DataFrame | None:
    """Return the table with steps that go on if they start again where ``epoch`` rises, else None."""
    column = guess(list(map(str, frame.columns)), {"epoch": "epoch"}).get("epoch", step_column)
    epochs, steps = (pd.to_numeric(frame[each], errors="coerce") for each in (column, step_column))
    if not ((steps.diff() < 0) & (epochs.diff() > 0)).any() or (epochs % 1 != 0).any():
        return None
    first, last, number = steps.groupby(part_index).agg(["min", "max", "nunique"]).T.to_numpy()
    size, start = number[0], epochs.min()
    is_complete = (number == size) & (last - first == size - 1) & (first == first[0])
    if first[0] not in (0, 1) or not is_complete[:-1].all() or last[-1] > last[0]:
        steps_per_epoch = f"({column}-{start:g})*400+{step_column}"
        raise DataError(
            f"the steps start again with each {column}, and not every step has a row; if an epoch has "
            "400 steps, set " + option("columns", "step", steps_per_epoch)
        )
    result = frame.assign(**{step_column: steps + (epochs - start) * size})
    note = f"the steps start again with each {column}, so isolaw counts {size:g} steps in each"
    result.attrs["notes"] = [*frame.attrs.get("notes", ()), note]
    return result


def _distinguish(frame: pd.DataFrame, part_index: NDArray[np.int64], user_columns: Collection[str]) -> bool:
    """Return whether columns that are constant within most parts distinguish most parts.

    Not all: a row that is repeated by mistake is no training of its own.
    """
    has_single, labels = np.bincount(part_index).min() < 2, []
    for name, cells in frame.items():
        if name not in user_columns and (is_measured(str(name)) or (cells.dtype.kind == "f" and has_single)):
            continue
        values = cells.groupby(part_index).agg(["nunique", "first"])
        if (values["nunique"] == 1).mean() > 0.5 and cells.notna().all():
            labels.append(values["first"])
    return bool(labels) and bool(pd.concat(labels, axis=1).duplicated().mean() < 0.5)


def is_measured(column: str) -> bool:
    """Return whether a column measures training, so that it cannot be a label of runs.

    >>> [is_measured(name) for name in ("train/loss", "lr", "elapsed_time", "gpu_mem", "variant", "seed")]
    [True, True, True, True, False, False]
    """
    return is_reward(column) or not _METRIC_WORDS.isdisjoint(plain(column).split("_"))


# Runs that the columns of a table name


def names_of(table: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return the columns that name runs, the coarsest first, without columns that number the rows."""
    labels = guess(columns, RUN_NAMES).values()
    names = [name for name in labels if table[name].notna().all() and table[name].nunique() * 2 <= len(table)]
    return sorted(names, key=lambda column: int(table[column].nunique()))


def run_columns(
    table: pd.DataFrame, identity: Sequence[str], free_columns: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the columns of ``free_columns`` by which a table distinguishes its runs and their parts.

    They are the columns that name runs, from the coarsest (the run's name) to the finest, and the attributes
    of a run, such as lr, each with its column. Both are empty if the identity columns distinguish the runs.
    """
    names = names_of(table, free_columns)
    if not names or not (table.groupby(list(identity))[names].nunique() > 1).any(axis=None):
        return [], {}
    varying = [column for column in free_columns if column not in names and table[column].nunique() > 1]
    part_counts = table.groupby(names, sort=False)[varying].nunique(dropna=False)
    constant = [c for c in varying if (part_counts[c] == 1).all() and table[c].notna().all()]
    recipe = guess(constant, RECIPE)
    run_groups = table.groupby([names[0], *recipe.values()], sort=False)
    labels = {  # a different text for each run is a label, not a setting
        column: column
        for column in constant
        if column not in recipe.values()
        and table[column].dtype.kind not in "iuf"
        and (run_groups[column].nunique() == 1).all()
        and table[column].nunique() < max(run_groups.ngroups, 3)
    }
    return names, {**recipe, **labels}


def join_parts(
    table: pd.DataFrame,
    identity: Sequence[str],
    name_columns: Sequence[str],
    attribute_columns: Sequence[str],
    has_seeds: bool,
) -> list[str]:
    """Join parts to runs: set the columns ``run_id`` and `PART`, in place; return notes.

    ``name_columns`` and ``attribute_columns`` are the columns that `run_columns` returns.

    Without a column ``step``, every part is a run. Unless ``has_seeds`` is true (the table has seeds), the
    runs of one configuration are numbered as repeats in the column ``seed``.
    """
    run_column, *part_columns = name_columns
    settings = list(dict.fromkeys([*identity, *attribute_columns]))
    part_index = table.groupby([run_column, *settings, *part_columns], sort=False).ngroup()
    has_steps = "step" in table
    steps = pd.to_numeric(table["step"] if has_steps else part_index, errors="coerce").groupby(part_index)
    first, last = steps.min(), steps.max()
    parts = table.set_axis(pd.Index(part_index)).loc[:, [run_column, *settings, *part_columns]]
    parts = parts[~parts.index.duplicated()].loc[first.sort_values(kind="stable").index]
    has_several = parts.groupby(run_column)[settings].nunique().gt(1).any(axis=1)
    varying = [column for column in settings if parts[column].nunique() > 1]
    last_parts: dict[int, dict[str, int]] = {}  # a name with its settings → its runs → the last part of each
    run_of_part, position_of_part = dict[int, str](), dict[int, int]()
    groups = parts.groupby([run_column, *settings], sort=False).ngroup()
    for group, (part, row) in zip(groups, parts.iterrows(), strict=True):
        runs = last_parts.setdefault(int(group), {})
        earlier = {r: p for r, p in runs.items() if first[p] < first[part] and last[p] < last[part]}
        if earlier and has_steps:
            run = min(earlier, key=lambda run: abs(last[earlier[run]] - first[part]))
            position_of_part[part] = position_of_part[earlier[run]] + 1
        else:
            run = str(plain_value(row[run_column]))
            if has_several[row[run_column]]:
                run += "".join(f"/{column}={plain_value(row[column])}" for column in varying)
            if run in run_of_part.values():
                run += f"/{plain_value(row[part_columns[-1]])}" if part_columns else f"/{len(run_of_part)}"
            position_of_part[part] = 0
        runs[run], run_of_part[part] = part, run
    table["run_id"], table[PART] = part_index.map(run_of_part), part_index.map(position_of_part)
    notes = [f"the columns {', '.join([*name_columns, *attribute_columns])} distinguish runs"]
    part_counts = pd.Series(run_of_part).value_counts(sort=False)
    if (part_counts > 1).any():
        joined = part_counts.index[part_counts > 1].tolist()
        notes.append(f"{part_counts[joined].sum()} segments are {len(joined)} runs: {listed(joined, _SHOWN)}")
    if not has_seeds:
        is_first = [position_of_part[part] == 0 for part in parts.index]
        first_parts = parts.assign(run=pd.Series(run_of_part))[is_first]
        runs_alike = first_parts.groupby([*identity, *attribute_columns], sort=False)["run"]
        table["seed"] = table["run_id"].map(dict(zip(first_parts["run"], runs_alike.cumcount(), strict=True)))
        repeats = [" and ".join(runs) for _, runs in runs_alike if len(runs) > 1]
        if repeats:
            notes.append(
                f"repeats of one configuration by their columns, seeds from 0: {listed(repeats, 8, '; ')}"
            )
    return notes


# Repeated steps


def without_repeats(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the table with one row for each step of a run, that of its last part, and notes.

    If rows differ within a part, all rows of the last parts stay.
    """
    repeated = table[table.duplicated(KEY, keep=False)]
    latest = table[table[PART] == table.groupby(KEY, dropna=False)[PART].transform("max")]
    distinct = latest[~latest.duplicated([*KEY, "value"])]
    if repeated.empty or distinct.duplicated(KEY).any():
        return latest.drop(columns=PART), []
    differing = repeated.groupby(KEY)["value"].nunique().gt(1).groupby(["run_id", "step"]).any()
    return distinct.drop(columns=PART), repeat_notes(int(differing.sum()), int((~differing).sum()))


def mixing_problem(key: str, steps: Floats, values: Floats) -> str:
    """Return the problem if a key has consecutive values for one step at two or more steps, else "".

    A resumed run goes back by several steps. Consecutive values for one step therefore come from two kinds of
    rows, or from parts of a batch. So do four values for one step, since no run resumes there so often.
    """
    is_mixed = (steps[1:] == steps[:-1]) & ~np.isclose(values[1:], values[:-1], *ROUNDED)
    mixed_steps = np.unique(steps[1:][is_mixed]).size
    if mixed_steps < _MIN_MIXED_STEPS and is_mixed.sum() <= _MIN_MIXED_STEPS:
        return ""
    first = int(np.flatnonzero(is_mixed)[0])
    return (
        f"{key} has several values at {count(mixed_steps, 'step')}, e.g. at step {steps[first]:g}: "
        f"{values[first]:g} and {values[first + 1]:g}. The log mixes training rows with rows of an "
        "evaluation, of parts of a batch, or of several processes. Leave the other rows out, or give their "
        "keys a prefix, e.g. eval/"
    )


def repeat_notes(differing: int, same: int) -> list[str]:
    """Return the notes about steps of a run that are repeated, with other values or with the same ones."""
    different = f"{count(differing, 'step')} repeated with other values; isolaw kept the later values"
    identical = f"{count(same, 'step')} repeated with the same values; isolaw counts them once"
    return [*([different] if differing else []), *([identical] if same else [])]
