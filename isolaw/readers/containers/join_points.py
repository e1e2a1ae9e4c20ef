"""Points that come key by key, joined into records step by step."""

from __future__ import annotations

from array import array
from itertools import pairwise

import numpy as np
import pandas as pd

from isolaw.readers.raw_log import RawLog


class Points:
    """Collects the points of a log, 32 bytes each, and adds them to it when all are there.

    A record for each step, and another where a key repeats it: so the values that a resumed run repeats come
    after, and apart from, the first ones. Seconds may count from anywhere, and may be NaN.

    >>> points = Points(RawLog("f", "example", "run"))
    >>> for point in [("a", 1, 0.5, 7), ("a", 2, 0.6, 9), ("b", 2, 3.0, 9), ("a", 2, 0.7, 12)]:
    ...     points.add(*point)
    >>> log = points.close()
    >>> list(log.step), list(log.wall_s), list(log.series["a"].value), list(log.series["b"].record)
    ([1.0, 2.0, 2.0], [0.0, 2.0, 5.0], [0.5, 0.6, 0.7], [1])
    """

    def __init__(self, log: RawLog) -> None:
        self.log = log
        self._keys: dict[str, int] = {}
        self._rows = array("d")

    def add(self, key: str, step: float, value: float, seconds: float) -> None:
        """Take a point; raise `DataError` if the file has too many."""
        self.log.held.point()
        self._rows.extend((self._keys.setdefault(key, len(self._keys)), step, value, seconds))

    def close(self) -> RawLog:
        """Add the records to the log, and return it."""
        if not self._rows:
            return self.log
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
        return self.log
