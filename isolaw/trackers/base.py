"""`Tracker`: the interface of every tracker's module.

A module has one `Tracker` called ``TRACKER``. The x axis is rollouts (compute); tags are
``<eval_set>/<metric>``, and `STEP`, `SECONDS` and `TOKENS`. Trackers drop or duplicate steps that go
backwards, so isolaw writes each checkpoint once, in order, after the tracker's last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

STEP, SECONDS, TOKENS = "isolaw/step", "isolaw/wall_s", "isolaw/tokens"


@dataclass(frozen=True)
class TrackedRun:
    """One of isolaw's runs as a tracker sees it; a tracker has one run per ``run_id``.

    ``name`` is for people: ``Bp32-n8-seed0-1a2b3c4d``. ``directory`` is for the tracker's files, and
    ``project`` is the tracker's project. ``config`` has B_p, n, seed etc. under one name: ``{"isolaw":
    {…}}``.
    """

    run_id: str
    name: str
    directory: Path
    project: str
    config: Mapping[str, Any]


class Writer(Protocol):
    """A tracker's run, open for writing."""

    def log(self, compute: int, values: Mapping[str, float], at: float) -> None:
        """Write a checkpoint: its x, its values by tag, and its Unix time."""
        ...

    def close(self, finished: bool) -> None:
        """Write what is pending; ``finished`` is whether the run reached its horizon."""
        ...


@dataclass(frozen=True)
class Tracker:
    """The functions that write to one tracker.

    ``name`` is the tracker's name in ``tracking.to`` and of the extra that installs it; ``library`` is the
    required module. ``reached`` returns the compute of the tracker's last checkpoint of a run, -1 if there is
    none. ``open`` opens a run, new or known.
    """

    name: str
    library: str
    reached: Callable[[TrackedRun], int]
    open: Callable[[TrackedRun], Writer]
