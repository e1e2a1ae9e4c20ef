"""`RawLog`: one log as its file has it, in records of numbers under the framework's own keys.

A *container* reads how a log is written: JSON lines, a console, TensorBoard events
(`isolaw.readers.containers`). A *framework* knows what its names mean: veRL, TRL
(`isolaw.readers.frameworks`). Any framework's names may come in any container: the two meet only here.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isolaw.errors import DataError
from isolaw.readers import limits

LARGEST_COUNT = 2**31
# What a number may be wrapped in when it was printed: np.float64(0.5), tensor(0.5, device='cuda:0').
_WRAPPED = re.compile(
    r"^(?:[a-z]+\.)?(?:float|int|uint|bfloat|tensor)\d*\(\s*([^,()]+?)\s*(?:,[^()]*)?\)$", re.I
)


@dataclass
class Series:
    """One key's values: in which record, and what."""

    record: array[int] = field(default_factory=lambda: array("I"))
    value: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class RawLog:
    """One log: records of numbers, in the file's order."""

    source: str  # the file (or run directory), for messages
    container: str  # the name of the container that read it: ``jsonl``, ``tensorboard``
    # Parts with one name are stitched in their order (a resumed run's second file, a later checkpoint's
    # state): the run's directory, or its name in a tracker.
    run: str
    config: dict[str, Any] = field(default_factory=dict)  # flat: ``actor_rollout_ref.rollout.n``
    config_source: str = ""  # the configuration's file
    # Each record's step as the container counts it, and seconds since the first record; NaN if unknown.
    step: array[float] = field(default_factory=lambda: array("d"))
    wall_s: array[float] = field(default_factory=lambda: array("d"))
    series: dict[str, Series] = field(default_factory=dict)  # the values, by the framework's key
    dropped: Counter[str] = field(default_factory=Counter)  # what was left out: reason → number
    notes: list[str] = field(default_factory=list)
    held: limits.Held = None  # type: ignore[assignment]  # shared by the logs of one file; its own by default

    def __post_init__(self) -> None:
        self.held = self.held or limits.Held(self.source)

    def add(self, values: Mapping[str, Any], step: float = math.nan, wall_s: float = math.nan) -> None:
        """Append a record; numbers that are not finite are dropped and counted, never read as 0.

        Raises `DataError` if the file's numbers take too much memory.
        """
        self.held.record(len(values))
        index = len(self.step)
        self.step.append(step)
        self.wall_s.append(wall_s)
        for key, value in values.items():
            found = number(value)
            if found is None:
                continue  # text, a list: not a curve
            if not math.isfinite(found):
                self.dropped["values that are not finite"] += 1
                continue
            series = self.series.get(key)
            if series is None:
                if len(key) > limits.LONGEST_NAME:
                    self.dropped[f"values of names longer than {limits.LONGEST_NAME:,} characters"] += 1
                    continue
                self.held.names += 1
                series = self.series[key] = Series()
            series.record.append(index)
            series.value.append(found)

    def damaged(self, reason: str) -> None:
        """Count a record that cannot be read; raise `DataError` beyond 100,000."""
        self.dropped[reason] += 1
        if self.dropped[reason] > limits.MOST_DAMAGED:
            raise DataError(
                f"{self.source}: over {limits.MOST_DAMAGED:,} {reason}: not a {self.container} log. "
                "Leave the file out, or write it again from the tracker"
            )


def finite(value: Any) -> float:
    """Return ``value`` as a finite float, NaN if it is something else."""
    found = number(value)
    return math.nan if found is None or math.isinf(found) else found


def whole(value: Any, least: int) -> int | None:
    """Return ``value`` as a whole number from ``least`` to 2³¹; None if it is something else."""
    found = finite(value)
    return int(found) if least <= found <= LARGEST_COUNT and found == round(found) else None


def number(value: Any) -> float | None:
    """Return ``value`` as a float if it is one, however it was printed; None if it is something else.

    >>> number("0.25"), number("np.float64(0.5)"), number("easy"), number(True)
    (0.25, 0.5, None, None)
    """
    if isinstance(value, bool) or (not value and value != 0):
        return None
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return float(value) if abs(value) < 2**1000 else math.inf
    if not isinstance(value, str) or len(value) > 200:
        return None
    text = value.strip()
    wrapped = _WRAPPED.match(text)
    try:
        return float(wrapped[1] if wrapped else text)
    except ValueError:
        return None
