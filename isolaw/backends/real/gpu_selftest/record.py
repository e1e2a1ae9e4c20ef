"""Record the measurements and checks of a stage in a file as they occur, so that a crash loses none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from isolaw.documents.reading import read_json
from isolaw.files import replacing


@dataclass
class Record:
    """The measurements and checks of a stage; other processes read them with `Record.of`."""

    path: Path
    # Each check has the keys `what` (the condition), `found`, `accepted` and `passed`.
    checks: list[dict[str, Any]] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)  # values by name; names include the unit
    skipped: str = ""  # the reason if the stage does not apply to this machine
    error: str = ""  # the error that ended the stage

    @classmethod
    def of(cls, folder: Path, stage: str) -> Record:
        """Return the current record of a stage, which can be empty."""
        record = cls(folder / f"{stage}.json")
        if record.path.is_file():
            vars(record).update(read_json(record.path))
        return record

    def check(self, what: str, found: Any, accepted: str, passed: bool) -> None:
        """Add a check and its result."""
        one = {"what": what, "found": found, "accepted": accepted, "passed": bool(passed)}
        self._write(checks=[*self.checks, one])

    def at_most(self, what: str, found: float | None, limit: float) -> None:
        """Add a check that a number exists and is at most ``limit``; NaN fails."""
        self.check(what, found, f"at most {limit:g}", found is not None and found <= limit)

    def measure(self, **values: Any) -> None:
        """Add measurements by name."""
        self._write(measured=self.measured | values)

    def skip(self, why: str) -> None:
        """Record why the stage does not apply to this machine."""
        self._write(skipped=why)

    def fail(self, error: str) -> None:
        """Record the error that ended the stage."""
        self._write(error=error)

    def _write(self, **values: Any) -> None:
        vars(self).update(values)
        write_json(self.path, {k: v for k, v in asdict(self).items() if k != "path"})


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write JSON atomically, so that a reader always gets a complete file, either the old or the new one."""
    text = to_json(document, indent=1, inf_nan_mode="null")  # JSON has no NaN
    with replacing(path) as temporary:
        temporary.write_bytes(text + b"\n")
