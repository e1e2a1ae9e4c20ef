"""Points that come key by key, joined into records step by step."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pandas as pd

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
        self._rows = array("d")

    def add(self, key: str, step: float, value: float, seconds: float) -> None:
        """Take a point; raise `DataError` if the file has too many."""
        self.log.held.point()
        self._rows.extend((self._keys.setdefault(key, len(self._keys)), step, value, seconds))

    def close(self) -> None:
        """Add the records to the log."""
        if not self._rows:
            return
        names = list(self._keys)
        points = pd.DataFrame(
            np.asarray(self._rows).reshape(-1, 4), columns=["key", "step", "value", "seconds"]
        )
        points["place"] = np.unique(points["step"], return_inverse=True)[1]  # NaN equals NaN here
        points["repeat"] = points.groupby(["key", "place"]).cumcount()
        points = points.sort_values(["repeat", "place"], kind="stable")
        starts = np.flatnonzero(~points.duplicated(["repeat", "place"]))
        began = points["seconds"].iloc[starts].min()
        key, step, value, seconds = (points[c].to_numpy() for c in ("key", "step", "value", "seconds"))
        for start, end in pairwise([*starts.tolist(), len(points)]):
            own = zip(key[start:end].astype(int).tolist(), value[start:end].tolist(), strict=True)
            self.log.add({names[i]: v for i, v in own}, step[start], seconds[start] - began)
