"""Points that come key by key, joined into records step by step."""

from __future__ import annotations

import math
from collections.abc import Iterable

from isolaw.logs.raw import RawLog


def add_points(log: RawLog, points: Iterable[tuple[str, float, float, float]]) -> None:
    """Add ``(key, step, value, seconds)``: a record for each step, and another where a key repeats it.

    So what a resumed run wrote again stays apart from, and behind, what it wrote before. ``seconds`` may
    count from anywhere, and may be NaN.

    >>> log = RawLog("f", "example", "run")
    >>> add_points(log, [("a", 1, 0.5, 7), ("a", 2, 0.6, 9), ("b", 2, 3.0, 9), ("a", 2, 0.7, 12)])
    >>> list(log.step), list(log.wall_s), list(log.series["a"].value), list(log.series["b"].record)
    ([1.0, 2.0, 2.0], [0.0, 2.0, 5.0], [0.5, 0.6, 0.7], [1])
    """
    records: dict[tuple[int, float], dict[str, float]] = {}
    times: dict[tuple[int, float], float] = {}
    seen: dict[tuple[str, float], int] = {}
    for key, step, value, seconds in points:
        before = seen[key, step] = seen.get((key, step), -1) + 1
        records.setdefault((before, step), {})[key] = value
        times.setdefault((before, step), seconds)
    began = min((t for t in times.values() if not math.isnan(t)), default=math.nan)
    for record in sorted(records):
        log.add(records[record], record[1], times[record] - began)
