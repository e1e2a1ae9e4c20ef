"""The rules that read records, whatever container they come from: a table, a console, JSON, a notebook.

A record has names and values, and a place (a line, a row, or its position). A log's records are columns of a
`isolaw.readers.raw_log.RawLog`, and those of a table the rows of a data frame.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.metrics import is_reward
from isolaw.readers.names import MAYBE, RUN_NAMES, STEPS, counts, guess, plain
from isolaw.readers.raw_log import number
from isolaw.runs import listed

Floats = NDArray[np.float64]
# A training whose first record is later than this many intervals between records continues a checkpoint.
_FROM_SCRATCH = 2
_SLACK = 0.02  # relative; a counter can be read off a figure
# Words in the names of what a trainer measures; a learning rate can follow a schedule.
_MEASURED = {
    *("loss", "lr", "learning", "grad", "gradient", "norm", "kl", "entropy", "clip", "clipfrac"),
    *("advantage", "length", "tokens", "epoch", "time", "times", "elapsed", "duration", "seconds", "secs"),
    *("timestamp", "wall", "runtime", "memory", "mem", "gb", "mb", "throughput", "speed", "eta"),
}
_MAYBE_N = set(MAYBE["rollouts_per_problem"].split())


def is_step(key: str) -> bool:
    """Return whether a key counts steps, as ``train/global_step`` does."""
    return plain(key.rpartition("/")[2]) in STEPS.split()


_Measured = Mapping[
    str, tuple[Sequence[int], Sequence[float]]
]  # metric → ascending positions, and its values


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


def by_training(frame: pd.DataFrame, step: str, name: str, named: Collection[str] = ()) -> pd.DataFrame:
    """Return a table whose column ``run`` names the trainings in it, if there are several.

    ``attrs["falls"]`` has the rows at which steps go back, as in a resumed run. A table whose columns
    distinguish the trainings already names its runs. ``step`` is the column of the steps, ``name`` the name
    of the first training, and ``named`` has the columns that the user names.
    """
    steps = pd.to_numeric(frame[step], errors="coerce").to_numpy(np.float64)
    falls = np.flatnonzero(np.diff(steps, prepend=-np.inf) < 0)
    others = [column for column in frame.columns if column != step]
    if not falls.size or not others:
        return frame
    numeric = [c for c in others if pd.api.types.is_numeric_dtype(frame[c])]
    segment = np.searchsorted(falls, np.arange(len(frame)), side="right")
    of_runs = guess(others, RUN_NAMES).values()
    if _labels(frame[others], segment, named) or any(frame[column].nunique() > 1 for column in of_runs):
        return frame
    cells = {c: frame[c].to_numpy(np.float64, na_value=np.nan) for c in numeric}
    places = {c: np.flatnonzero(~np.isnan(values)).tolist() for c, values in cells.items()}
    begins = trainings(steps, {c: (at, cells[c][at].tolist()) for c, at in places.items()})
    training = np.searchsorted(begins, np.arange(len(frame)), side="right")
    if begins and (of_runs or _labels(frame[others], training, named)):
        return frame
    out, notes = frame.copy(), list(frame.attrs.get("notes", ()))
    out.attrs["falls"] = frame.index[falls].tolist()
    if begins:
        names = np.array([name, *(f"{name}#{number + 2}" for number in range(len(begins)))])
        out.insert(0, "run", names[training])
        out.attrs["trainings"] = True
        where = listed([f"{frame.index.name} {frame.index[at]}" for at in begins], 4)
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


def count_of(name: str, step: Floats, value: Floats) -> _StepCount | None:
    """Return what a column counts per step: its rise, or the same number in every record; else None.

    >>> count_of("total_episodes", np.array([10.0, 20.0]), np.array([320.0, 640.0])).a_step
    (32.0,)
    >>> count_of("rollout_count", np.array([10.0, 20.0]), np.array([40.0, 40.0])).a_step
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
