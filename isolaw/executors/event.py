"""`Event`: what executors report about runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from isolaw.design.decisions import Decision


@dataclass(frozen=True)
class Event:
    """Something that happened to a run, or a warning for the user.

    ``checkpoint``: the run has reached ``compute`` rollouts (executors may skip some). ``stopped``: it ended
    on request and saved its state. ``lost``: its process or machine is gone. ``busy``: another process holds
    it. ``decision``: a race chose its next runs or ended; this belongs to no run. An engine's user sees
    neither ``lost`` nor ``busy``: such runs are repeated, or fail.
    """

    run_id: str
    kind: Literal["checkpoint", "done", "failed", "stopped", "lost", "busy", "warning", "decision"]
    compute: int = 0
    cause: str = ""
    decision: Decision | None = None
