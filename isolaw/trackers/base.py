"""`Tracker`: what every tracker's module offers.

A module holds one `Tracker` called ``TRACKER``. The x axis is rollouts (compute); tags are
``<eval_set>/<metric>``, and `STEP`, `SECONDS` and `TOKENS`. Trackers drop or double what goes backwards, so a
checkpoint is written once, in order, after the last one that is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

STEP, SECONDS, TOKENS = "isolaw/step", "isolaw/wall_s", "isolaw/tokens"


@dataclass(frozen=True)
class TrackedRun:
    """One of our runs as trackers know it.

    Attributes
    ----------
    run_id
        ours; a tracker holds one run for each.
    name
        what people read: ``Bp32-n8-seed0-1a2b3c4d``.
    config
        B_p, n, seed and the rest, under one name: ``{"isolaw": {…}}``.
    directory, project
        where a tracker that keeps files puts them; what a tracker with projects calls this one.
    """

    run_id: str
    name: str
    directory: Path
    project: str
    config: Mapping[str, Any] = field(default_factory=dict)


class Writer(Protocol):
    """A tracker's run, open for writing."""

    def log(self, compute: int, values: Mapping[str, float], at: float) -> None:
        """Write a checkpoint: its x, its values by tag, and the Unix time at which it was made."""
        ...

    def close(self, finished: bool) -> None:
        """Write what is pending; ``finished`` is whether the run got to its end."""
        ...


@dataclass(frozen=True)
class Tracker:
    """How to write to one tracker.

    Attributes
    ----------
    name
        as in ``tracking.to``, and the extra that installs it.
    library
        the module that must be there.
    reached
        compute of the last checkpoint that the tracker holds of a run; -1 for none.
    open
        opens a run, new or known.
    """

    name: str
    library: str
    reached: Callable[[TrackedRun], int]
    open: Callable[[TrackedRun], Writer]
