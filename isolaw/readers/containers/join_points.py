"""Points that come key by key, joined into records step by step."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from isolaw.readers.raw_log import RawLog


def add_points(log: RawLog, points: Iterable[tuple[str, float, float, float]]) -> None:
    """Add ``(key, step, value, seconds)``: a record for each step, and another where a key repeats it.

    So the values that a resumed run repeats come after, and apart from, the first ones. ``seconds`` may count
    from anywhere, and may be NaN.

    >>> log = RawLog("f", "example", "run")
    >>> add_points(log, [("a", 1, 0.5, 7), ("a", 2, 0.6, 9), ("b", 2, 3.0, 9), ("a", 2, 0.7, 12)])
    >>> list(log.step), list(log.wall_s), list(log.series["a"].value), list(log.series["b"].record)
    ([1.0, 2.0, 2.0], [0.0, 2.0, 5.0], [0.5, 0.6, 0.7], [1])
    """
    joined = Points(log)
    for key, step, value, seconds in points:
        joined.add(key, step, value, seconds)
    joined.close()


class Points:
    """Collects the points of a log, 32 bytes each, and adds them to it when all are there."""

    def __init__(self, log: RawLog) -> None:
        self.log = log
        self._keys: dict[str, int] = {}
        self._key = array("q")
        self._step, self._value, self._seconds = array("d"), array("d"), array("d")

    def add(self, key: str, step: float, value: float, seconds: float) -> None:
        """Take a point; raise `DataError` if the file has too many."""
        self.log.held.point()
        self._key.append(self._keys.setdefault(key, len(self._keys)))
        self._step.append(step)
        self._value.append(value)
        self._seconds.append(seconds)

    def close(self) -> None:
        """Add the records to the log."""
        if not self._key:
            return
        names = list(self._keys)
        key, seconds = np.asarray(self._key), np.asarray(self._seconds)
        _, place = np.unique(np.asarray(self._step), return_inverse=True)  # NaN equals NaN here
        before = _before(key, place)
        order = np.lexsort((place, before))  # stable: of one record, in the order of the log
        edges = [0, *(np.flatnonzero(_changes(before[order], place[order])) + 1).tolist(), order.size]
        known = seconds[order[edges[:-1]]]
        began = np.nanmin(known) if not np.isnan(known).all() else math.nan
        for start, end in pairwise(edges):
            own = order[start:end].tolist()
            values = {names[self._key[i]]: self._value[i] for i in own}
            self.log.add(values, self._step[own[0]], self._seconds[own[0]] - began)


def _before(key: NDArray[np.int64], place: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each point's key has been at its step before."""
    order = np.lexsort((place, key))
    first = np.append(True, _changes(key[order], place[order]))
    at = np.arange(order.size)
    before = np.empty(order.size, np.int64)
    before[order] = at - at[first][np.cumsum(first) - 1]
    return before


def _changes(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.bool_]:
    return (one[1:] != one[:-1]) | (other[1:] != other[:-1])
