"""`Event`: a report of an executor about a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from isolaw.design.decisions import Decision


@dataclass(frozen=True)
class Event:
    """Something that happened to a run, or a warning for the user.

    ``checkpoint``: the run has reached ``compute`` rollouts; executors may skip some of these events.
    ``stopped``: the run saved its state and ended on request. ``lost``: its process or machine is gone.
    ``busy``: another process has locked the run. ``decision``: a race chose its next runs, or ended; this
    event belongs to no run. Callers of the engine receive neither ``lost`` nor ``busy``: isolaw repeats such
    runs, or they fail.
    """

    run_id: str
    kind: Literal["checkpoint", "done", "failed", "stopped", "lost", "busy", "warning", "decision"]
    compute: int = 0
    cause: str = ""
    decision: Decision | None = None
