"""Define `Event`, an executor's report about a run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from isolaw.design.decisions import Decision


@dataclass(frozen=True)
class Event:
    """A change in the status of a run, or a warning for the user.

    ``checkpoint`` means that the run has reached ``compute`` rollouts; executors can skip some of these
    events. ``stopped`` means that the run has saved its state and ended on request. ``lost`` means that the
    run's process or machine has died, and ``busy`` that another process has locked the run. ``decision``
    means that a race has chosen its next runs or ended; it belongs to no run. Callers of the engine receive
    neither ``lost`` nor ``busy``, because isolaw repeats such runs or marks them as failed.
    """

    run_id: str
    kind: Literal["checkpoint", "done", "failed", "stopped", "lost", "busy", "warning", "decision"]
    compute: int = 0
    cause: str = ""
    decision: Decision | None = None


def kind_of_failure(cause: str) -> str:
    """Return the part of a cause that runs share if they fail for the same reason.

    It is the first line, and of a trainer's last lines only the last one with an error: the others report
    progress. It has no numbers except exit statuses, and no run ids.

    >>> kind_of_failure("ended after 3 of 20 steps (exit status 1)\\n | step 3\\n | ValueError: n is 7")
    'ended after # of # steps (exit status 1) ValueError: n is #'
    """
    first, _, printed = cause.partition("\n")
    errors = re.findall(r"(?i)\b\w*(?:error|exception)\b.*", printed)
    kind = " ".join([first, *errors[-1:]])
    return re.sub(r"(?<!status )(?<!\d)\d[\d.,]*", "#", re.sub(r"[0-9a-f]{64}", "", kind))
