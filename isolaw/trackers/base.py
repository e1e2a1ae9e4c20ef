"""`Tracker`: the interface of a tracker's module.

Each module has one `Tracker` called ``TRACKER``. The x axis is the compute in rollouts. The tags are
``<eval_set>/<metric>``, `STEP`, `SECONDS` and `TOKENS`. Trackers drop or duplicate steps that go backwards,
so isolaw writes each checkpoint once and in order, after the last checkpoint that the tracker has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

STEP, SECONDS, TOKENS = "isolaw/step", "isolaw/wall_s", "isolaw/tokens"


@dataclass(frozen=True)
class TrackedRun:
    """A run of a sweep in the form that trackers take; a tracker has one run for each ``run_id``.

    ``name`` is for people, as ``Bp32-n8-seed0-1a2b3c4d``. ``directory`` is where the tracker writes its
    files, and ``project`` is the project in the tracker. ``config`` holds B_p, n, the seed and so on in one
    entry, ``{"isolaw": {…}}``.
    """

    run_id: str
    name: str
    directory: Path
    project: str
    config: Mapping[str, Any]


class Writer(Protocol):
    """A run in a tracker that is open for writing."""

    def log(self, compute: int, values: Mapping[str, float], at: float) -> None:
        """Write a checkpoint: its compute (the x axis), its values by tag, and its Unix time."""
        ...

    def close(self, finished: bool) -> None:
        """Write pending values and close the run; ``finished`` is whether the run reached its horizon."""
        ...


@dataclass(frozen=True)
class Tracker:
    """The functions that write to one tracker.

    ``name`` is the name of the tracker in ``tracking.to``, and of the extra that installs ``library``, the
    module that it needs. ``reached`` returns the compute of the last checkpoint that the tracker has of a
    run, or -1 if it has none. ``open`` opens a new or an existing run.
    """

    name: str
    library: str
    reached: Callable[[TrackedRun], int]
    open: Callable[[TrackedRun], Writer]
