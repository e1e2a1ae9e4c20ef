"""`FoundLog`: one log, its facts, and whether it can be fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from isolaw.readers.frameworks.base import Fact


class LogStatus(StrEnum):
    """The status of a log: ready to be fitted, or the kind of reason why not."""

    READY = "ready"
    NEEDS = "needs"  # values that the user has to set
    NOT_INSTALLED = "not_installed"  # the package for this file format
    OFF_POLICY = "off_policy"  # off-policy, while most runs are on-policy
    ON_POLICY = "on_policy"  # on-policy, while most runs are off-policy
    APART = "apart"  # can be fitted, but not together with the others
    UNKNOWN_FORMAT = "unknown_format"
    DAMAGED = "damaged"
    NO_HISTORY = "no_history"  # a killed run, an empty file, a log without a reward
    DUPLICATE = "duplicate"

    @property
    def settled(self) -> bool:
        """True if the log is ready, or unusable regardless of the values that the user adds."""
        return self in (LogStatus.READY, LogStatus.NO_HISTORY, LogStatus.DUPLICATE)


@dataclass
class FoundLog:
    """One log, or one run of a table or sweep, with its `LogStatus`."""

    run: str  # the id of the run
    framework: str = ""  # the framework whose names the log uses; ``isolaw`` for a sweep, empty for a table
    container: str = ""  # the file format, or table or sweep
    sources: list[str] = field(default_factory=list)  # the files
    status: LogStatus = LogStatus.READY
    needs: list[str] = field(default_factory=list)  # missing values, as ``--set`` names them: n, B_p, seed
    message: str = ""  # why it is not ready, and what to do; runs with the same problem share the message
    duplicate_of: str = ""  # the run that this log duplicates
    # B_p, n, rollouts per step, seed, on-policy and so on, each with its origin.
    facts: dict[str, Fact] = field(default_factory=dict)
    metrics: dict[str, dict[str, int]] = field(default_factory=dict)  # evaluation set → metric → values
    steps: tuple[int, int] | None = None  # the first and the last step
    compute: tuple[int, int] | None = None
    left_out: dict[str, int] = field(default_factory=dict)  # reason → number of values, records or names
    notes: list[str] = field(default_factory=list)  # assumptions and changes

    # each of ``needs`` → the key that supplies it (`isolaw.readers.how_to_read`), and its value
    offered: dict[str, tuple[str, str] | None] = field(default_factory=dict)
    final: bool = False  # no ``--set`` can change it: a run of a sweep, or of a table that isolaw wrote

    @property
    def n(self) -> int | None:
        """Rollouts per problem, or None if unknown."""
        return self.facts["rollouts_per_problem"].value if "rollouts_per_problem" in self.facts else None

    def leave_out(self, status: LogStatus, message: str, needs: Sequence[str] = ()) -> None:
        """Mark the run as one that cannot be fitted, with the reason."""
        self.status, self.message, self.needs = status, message, list(dict.fromkeys(needs))

    def to_dict(self) -> dict[str, Any]:
        """Return the log's facts and its status as JSON-compatible data."""
        return {name: value for name, value in asdict(self).items() if name not in ("final", "offered")}


_Log = TypeVar("_Log", bound=FoundLog)


def grouped(logs: Iterable[_Log], key: Callable[[_Log], Any]) -> dict[Any, list[_Log]]:
    """Return the logs by key, in their order."""
    logs_of_key: dict[Any, list[_Log]] = {}
    for log in logs:
        logs_of_key.setdefault(key(log), []).append(log)
    return logs_of_key


def groups(candidates: Iterable[FoundLog]) -> list[list[FoundLog]]:
    """Return the logs that are not ready, grouped by reason: status, missing values and message."""
    problems = (log for log in candidates if log.status is not LogStatus.READY)
    logs_of_problem = grouped(problems, lambda log: (log.status, tuple(log.needs), log.message))
    return sorted(logs_of_problem.values(), key=lambda logs: list(LogStatus).index(logs[0].status))
