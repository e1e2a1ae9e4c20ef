"""The rules that read records, whatever container they come from: a table, a console, JSON, a notebook.

A record has names and values, and a place (a line, a row, or its position). A log's records are columns of a
`isolaw.readers.raw_log.RawLog`, and those of a table the rows of a data frame.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isolaw.readers.names import MAYBE, STEPS, counts, plain

Floats = NDArray[np.float64]
# A training whose first record is later than this many intervals between records continues a checkpoint.
_FROM_SCRATCH = 2
_SLACK = 0.02  # relative; a counter can be read off a figure
_MAYBE_N = set(MAYBE["rollouts_per_problem"].split())


def is_step(key: str) -> bool:
    """Return whether a key counts steps, as ``train/global_step`` does."""
    return plain(key.rpartition("/")[2]) in STEPS.split()


def trainings(
    step: Sequence[float] | Floats, places: Mapping[str, Sequence[int]], settings: Collection[int] = ()
) -> list[int]:
    """Return the positions at which another training begins in the same file.

    ``step`` has the step of each record (NaN if unknown), ``places`` for each metric the ascending positions
    of the records that measure it, and ``settings`` the positions before which a configuration was printed
    that differs from the one before. Another training begins where a metric's steps start again from their
    first value. A resumed run goes back only to its last checkpoint.

    >>> trainings([1, 2, 3, 4, 3, 4, 5], {"reward": range(7)})
    []
    >>> trainings([0, 1, 2, 3, 1, 2, 3], {"reward": [1, 2, 3, 4, 5, 6], "val/acc": [0]})
    [4]
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
            continue
        if _again(steps, start, at, places, any(fall <= each <= at for each in settings)):
            begins.append(fall)
            start, furthest = fall, now
    return begins


def _again(steps: Floats, start: int, at: int, places: Mapping[str, Sequence[int]], resettled: bool) -> bool:
    """Return whether a metric in the record ``at`` starts again from its first step since ``start``."""
    for positions in places.values():
        low, high = bisect_left(positions, start), bisect_left(positions, at)
        if high == low or high == len(positions) or positions[high] != at:
            continue
        past = steps[np.asarray(positions[low:high])]
        past = past[~np.isnan(past)]
        if not past.size or steps[at] > past[0]:
            continue
        gaps = np.diff(past)
        interval = gaps[gaps > 0].max(initial=0)
        if resettled or (past.max() > past[0] and past[0] <= _FROM_SCRATCH * interval):
            return True
    return False


@dataclass(frozen=True)
class Count:
    """What a column counts in each step, with the numbers that its values can mean."""

    unit: str  # ``rollouts``, ``problems``, ``both`` or ``tokens``, as `isolaw.readers.names.counts`
    a_step: tuple[float, ...]  # more than one if it is unknown whether it counts a record or a step
    rises: bool  # whether it counts from the start
    first: int  # positions of the first and the last record
    last: int

    def agrees(self, problems: float, rollouts: float, name: str, tokens: float = 1) -> bool:
        """Return whether it can be the count of B_p problems with n ``rollouts`` each."""
        batch = problems * rollouts
        makes = {"problems": [problems], "both": [batch, problems], "tokens": [tokens * batch]}
        accepted = makes.get(self.unit, [batch])
        if not self.rises and plain(name) in _MAYBE_N:
            accepted = [*accepted, rollouts]
        if self.unit == "tokens" and any(each >= 0.5 * accepted[0] for each in self.a_step):
            return True
        return any(abs(each - one) <= _SLACK * one for each in self.a_step for one in accepted)


def count_of(name: str, step: Floats, value: Floats) -> Count | None:
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
    ends = int(kept[0]), int(kept[-1])
    if rise:  # one that rises as the steps do counts them
        return None if rise == passed else Count(unit, (rise / passed,), True, *ends)
    interval = float(np.diff(steps).max())
    if unit == "tokens" or not values[0]:
        return None
    each = (float(values[0]), *([float(values[0]) / interval] if interval > 1 else []))
    return Count(unit, each, False, *ends)
