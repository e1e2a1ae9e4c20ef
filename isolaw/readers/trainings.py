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

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.metrics import is_reward
from isolaw.readers.names import RECIPE, RUN_NAMES, guess, is_step, plain
from isolaw.readers.raw_log import RawLog, Series
from isolaw.runs import KEY, listed
from isolaw.runs import plain as plain_value

Floats = NDArray[np.float64]
# A training whose first record is later than this many intervals between records continues a checkpoint.
_FROM_SCRATCH = 2
_SHOWN = 4
_MIXED = 2  # steps
# rtol and atol of equal values in different containers: TensorBoard stores 32-bit numbers, and consoles print
# few digits.
ROUNDED = 1e-4, 6e-4
PART = "_part"  # the column with the place of each row's part among the parts of its run
# Words in the names of what a trainer measures; a learning rate can follow a schedule.
_MEASURED = {
    *("loss", "lr", "learning", "grad", "gradient", "norm", "kl", "entropy", "clip", "clipfrac"),
    *("advantage", "length", "tokens", "epoch", "time", "times", "elapsed", "duration", "seconds", "secs"),
    *("timestamp", "wall", "runtime", "memory", "mem", "gb", "mb", "throughput", "speed", "eta"),
}
# A metric → ascending positions of the records that measure it, and its values.
_Measured = Mapping[str, tuple[Sequence[int], Sequence[float]]]


def trainings(step: Sequence[float] | Floats, places: _Measured, settings: Collection[int] = ()) -> list[int]:
    """Return the positions at which another training begins in the same file.

    ``step`` has the step of each record (NaN if unknown), ``places`` the records that measure each metric,
    and ``settings`` the positions before which a configuration was printed that differs from the one before.
    Another training begins where a metric's steps start again from their first one, with other values. A
    resumed run goes back only to its last checkpoint.

    >>> trainings([1, 2, 3, 4, 3, 4, 5], {"reward": (range(7), range(7))})
    []
    >>> trainings([0, 1, 2, 3, 1, 2, 3], {"reward": (range(1, 7), range(1, 7)), "val/acc": ([0], [0.1])})
    [4]
    >>> trainings([1, 2, 3, 1, 2, 3], {"reward": (range(6), [1, 2, 3, 1, 2, 3])})
    []
    """
    steps = np.asarray(step, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(steps))
    begins: list[int] = []
    start, furthest, fall, before = 0, -np.inf, -1, -np.inf
    if not settings and not (np.diff(steps[known]) < 0).any():
        return begins
    for at in known.tolist():
        now = steps[at]
        fall = at if now < before or at in settings else fall
        before = now
        if now > furthest or (now == furthest and at not in settings):
            furthest = now
        elif fall > start and _again(
            steps, start, fall, at, places, any(fall <= each <= at for each in settings)
        ):
            begins.append(fall)
            start, furthest = fall, now
    return begins


def _again(steps: Floats, start: int, fall: int, at: int, places: _Measured, resettled: bool) -> bool:
    """Return whether a metric in the record ``at`` starts again at ``fall`` from its first step."""
    for positions, values in places.values():
        low, here = bisect_left(positions, start), bisect_left(positions, at)
        high = bisect_left(positions, fall)
        if high == low or here == len(positions) or positions[here] != at:
            continue
        past = steps[np.asarray(positions[low:high])]
        first = past[0]
        if np.isnan(first) or steps[fall] > first:
            continue
        same = [
            k for k in np.flatnonzero(past == steps[at]).tolist() if _equal(values[low + k], values[here])
        ]
        gaps = np.diff(past)
        interval = gaps[gaps > 0].max(initial=0)
        scratch = past.max() > first and first <= _FROM_SCRATCH * interval
        if resettled or (scratch and not same):
            return True
    return False


def _equal(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-9 * max(abs(one), abs(other))


def of_logs(logs: Sequence[RawLog]) -> Iterator[RawLog]:
    """Yield the logs, with one run for each training in a file: ``run``, ``run#2`` and so on."""
    for _, group in groupby(logs, lambda log: (log.source, log.run)):
        parts = list(group)
        ends = np.cumsum([0, *(len(part.step) for part in parts)]).tolist()
        steps = np.concatenate([_steps(part) for part in parts])
        begins: list[int] = []
        if all(part.in_order for part in parts):
            places: dict[str, tuple[list[int], list[float]]] = {}
            if len(steps) and (np.diff(steps[~np.isnan(steps)]) < 0).any():
                for part, offset in zip(parts, ends, strict=False):
                    for key, series in part.series.items():
                        at, values = places.setdefault(key, ([], []))
                        at.extend(place + offset for place in series.record)
                        values.extend(series.value)
            begins = trainings(steps, places, ends[1:-1] if len(parts) > 1 else ())
        if not begins:
            yield from parts
            continue
        for part, (start, end) in zip(parts, pairwise(ends), strict=True):
            inside = [start, *(at for at in begins if start < at < end)]
            numbers = [bisect_right(begins, at) + 1 for at in inside]
            names = [f"{part.run}#{number}" if number > 1 else part.run for number in numbers]
            yield from part.pieces([at - start for at in inside], names)


def _steps(log: RawLog) -> NDArray[np.float64]:
    """Return the steps of a log's records, by the container or by a key that counts steps."""
    steps = np.array(log.step, dtype=np.float64)
    keys = [key for key in log.series if is_step(key)] if np.isnan(steps).all() else []
    for key in keys[:1]:
        steps[np.asarray(log.series[key].record)] = log.series[key].value
    return steps


def by_training(frame: pd.DataFrame, step: str, name: str, named: Collection[str] = ()) -> pd.DataFrame:
    """Return a table whose column ``run`` names the trainings in it, if there are several.

    ``attrs["falls"]`` has the rows at which steps go back, as in a resumed run. A table whose columns
    distinguish the trainings already names its runs. ``step`` is the column of the steps, ``name`` the name
    of the first training, and ``named`` has the columns that the user names.
    """
    steps = pd.to_numeric(frame[step], errors="coerce").to_numpy(np.float64)
    falls = np.flatnonzero(np.diff(steps, prepend=-np.inf) < 0)
    others = frame.drop(columns=step)
    if not falls.size or others.shape[1] == 0:
        return frame
    part = np.searchsorted(falls, np.arange(len(frame)), side="right")
    of_runs = guess(list(others), RUN_NAMES).values()
    if _labels(others, part, named) or any(frame[column].nunique() > 1 for column in of_runs):
        return frame
    log = RawLog("", "table", name, step=array("d", steps))
    for column in others.select_dtypes("number"):
        cells = others[column].to_numpy(np.float64, na_value=np.nan)
        at = np.flatnonzero(~np.isnan(cells))
        log.series[column] = Series(array("I", at), array("d", cells[at]))
    pieces = list(of_logs([log]))
    sizes = [len(piece.step) for piece in pieces]
    training = np.repeat(np.arange(len(pieces)), sizes)
    if len(pieces) > 1 and (of_runs or _labels(others, training, named)):
        return frame
    out, notes = frame.copy(), list(frame.attrs.get("notes", ()))
    out.attrs["falls"] = frame.index[falls].tolist()
    if len(pieces) > 1:
        out.insert(0, "run", np.repeat([piece.run for piece in pieces], sizes))
        out.attrs["trainings"] = True
        where = listed([f"{frame.index.name} {frame.index[at]}" for at in np.cumsum(sizes)[:-1]], 4)
        notes.append(f"the steps start again at {where}, so other trainings begin there")
    out.attrs["notes"] = notes
    return out


def _labels(frame: pd.DataFrame, part: NDArray[np.int64], named: Collection[str]) -> bool:
    """Return whether columns that are constant within most parts distinguish most parts.

    Not all: a row that is repeated by mistake is no training of its own.
    """
    sizes, labels = np.bincount(part), []
    for name, cells in frame.items():
        if name not in named and (is_measured(str(name)) or (cells.dtype.kind == "f" and sizes.min() < 2)):
            continue
        values = cells.groupby(part).agg(["nunique", "first"])
        if (values["nunique"] == 1).mean() > 0.5 and cells.notna().all():
            labels.append(values["first"])
    return bool(labels) and bool(pd.concat(labels, axis=1).duplicated().mean() < 0.5)


def is_measured(column: str) -> bool:
    """Return whether a column measures training, so that it cannot be a label of runs.

    >>> [is_measured(name) for name in ("train/loss", "lr", "elapsed_time", "gpu_mem", "variant", "seed")]
    [True, True, True, True, False, False]
    """
    return is_reward(column) or not _MEASURED.isdisjoint(plain(column).split("_"))


# Runs that the columns of a table name


def names_of(table: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """Return the columns that name runs, the coarsest first, without columns that number the rows."""
    called = guess(columns, RUN_NAMES).values()
    names = [name for name in called if table[name].notna().all() and table[name].nunique() * 2 <= len(table)]
    return sorted(names, key=lambda column: int(table[column].nunique()))


def naming(
    table: pd.DataFrame, identity: Sequence[str], free: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the columns of ``free`` by which a table distinguishes its runs and their parts.

    They are the columns that name runs, from the coarsest (the run's name) to the finest, and the attributes
    of a run, such as lr, each with its column. Both are empty if the identity columns distinguish the runs.
    """
    names = names_of(table, free)
    if not names or not (table.groupby(list(identity))[names].nunique() > 1).any(axis=None):
        return [], {}
    varying = [column for column in free if column not in names and table[column].nunique() > 1]
    of_part = table.groupby(names, sort=False)[varying].nunique(dropna=False)
    fixed = [c for c in varying if (of_part[c] == 1).all() and table[c].notna().all()]
    recipe = guess(fixed, RECIPE)
    runs = table.groupby([names[0], *recipe.values()], sort=False)
    labels = {  # a different text for each run is a label, not a setting
        c: c
        for c in fixed
        if c not in recipe.values()
        and table[c].dtype.kind not in "iuf"
        and (runs[c].nunique() == 1).all()
        and table[c].nunique() < max(runs.ngroups, 3)
    }
    return names, {**recipe, **labels}


def join(
    table: pd.DataFrame,
    identity: Sequence[str],
    names: Sequence[str],
    attributes: Sequence[str],
    seeded: bool,
) -> list[str]:
    """Join parts to runs: set the columns ``run_id`` and `PART`, in place; return notes.

    ``names`` and ``attributes`` are the columns that `naming` returns.

    Without a column ``step``, every part is a run. Unless ``seeded`` is true (the table has seeds), the runs
    of one configuration are numbered as repeats in the column ``seed``.
    """
    label, *finer = names
    settings = list(dict.fromkeys([*identity, *attributes]))
    part = table.groupby([label, *settings, *finer], sort=False).ngroup()
    numbered = "step" in table
    steps = pd.to_numeric(table["step"] if numbered else part, errors="coerce").groupby(part)
    first, last = steps.min(), steps.max()
    parts = table.set_axis(pd.Index(part)).loc[:, [label, *settings, *finer]]
    parts = parts[~parts.index.duplicated()].loc[first.sort_values(kind="stable").index]
    several = parts.groupby(label)[settings].nunique().gt(1).any(axis=1)
    varying = [column for column in settings if parts[column].nunique() > 1]
    open_: dict[int, dict[str, int]] = {}  # a name with its settings → its runs → the last part of each
    run_of, place = dict[int, str](), dict[int, int]()
    for of, (at, row) in zip(
        parts.groupby([label, *settings], sort=False).ngroup(), parts.iterrows(), strict=True
    ):
        runs = open_.setdefault(int(of), {})
        before = {r: p for r, p in runs.items() if numbered and first[p] < first[at] and last[p] < last[at]}
        if before:
            run = min(before, key=lambda run: abs(last[before[run]] - first[at]))
            place[at] = place[before[run]] + 1
        else:
            run = str(plain_value(row[label]))
            if several[row[label]]:
                run += "".join(f"/{column}={plain_value(row[column])}" for column in varying)
            if run in run_of.values():
                run += f"/{plain_value(row[finer[-1]])}" if finer else f"/{len(run_of)}"
            place[at] = 0
        runs[run], run_of[at] = at, run
    table["run_id"], table[PART] = part.map(run_of), part.map(place)
    notes = [f"the columns {', '.join([*names, *attributes])} distinguish runs"]
    sizes = pd.Series(run_of).value_counts(sort=False)
    if (sizes > 1).any():
        joined = sizes.index[sizes > 1].tolist()
        notes.append(f"{sizes[joined].sum()} segments are {len(joined)} runs: {listed(joined, _SHOWN)}")
    if not seeded:
        heads = parts.assign(run=pd.Series(run_of))[[place[at] == 0 for at in parts.index]]
        alike = heads.groupby([*identity, *attributes], sort=False)["run"]
        table["seed"] = table["run_id"].map(dict(zip(heads["run"], alike.cumcount(), strict=True)))
        repeats = [" and ".join(runs) for _, runs in alike if len(runs) > 1]
        if repeats:
            notes.append(
                f"repeats of one configuration by their columns, seeds from 0: {listed(repeats, 8, '; ')}"
            )
    return notes


# Repeated steps


def once(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the table with one row for each step of a run, that of its last part, and notes.

    If rows differ within a part, all rows of the last parts stay.
    """
    repeated = table[table.duplicated(KEY, keep=False)]
    latest = table[table[PART] == table.groupby(KEY, dropna=False)[PART].transform("max")]
    kept = latest[~latest.duplicated([*KEY, "value"])]
    if repeated.empty or kept.duplicated(KEY).any():
        return latest.drop(columns=PART), []
    differing = repeated.groupby(KEY)["value"].nunique().gt(1).groupby(["run_id", "step"]).any()
    return kept.drop(columns=PART), repeats(int(differing.sum()), int((~differing).sum()))


def mixed(key: str, step: Floats, value: Floats) -> str:
    """Return the problem if a key has consecutive values for one step at two or more steps, else "".

    A resumed run goes back by several steps. Consecutive values for one step therefore come from two kinds of
    rows, or from parts of a batch. So do four values for one step, since no run resumes there so often.
    """
    twice = (step[1:] == step[:-1]) & ~np.isclose(value[1:], value[:-1], *ROUNDED)
    steps = np.unique(step[1:][twice]).size
    if steps < _MIXED and twice.sum() <= _MIXED:
        return ""
    at = int(np.flatnonzero(twice)[0])
    return (
        f"{key} has several values at {count(steps, 'step')}, e.g. at step {step[at]:g}: "
        f"{value[at]:g} and {value[at + 1]:g}. The log mixes training rows with rows of an evaluation, of "
        "parts of a batch, or of several processes. Leave the other rows out, or give their keys a prefix, "
        "e.g. eval/"
    )


def repeats(differing: int, same: int) -> list[str]:
    """Return the notes about steps of a run that are repeated, with other values or with the same ones."""
    other = f"{count(differing, 'step')} repeated with other values; isolaw kept the later values"
    equal = f"{count(same, 'step')} repeated with the same values; isolaw counts them once"
    return [*([other] if differing else []), *([equal] if same else [])]


def count(number: int, what: str) -> str:
    """Return a number with the name of what it counts, in the plural unless it is 1."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
