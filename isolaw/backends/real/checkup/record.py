"""What a stage measures and checks, in a file that grows with it: a crash loses nothing before it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from isolaw.files import replacing


@dataclass
class Record:
    """What a stage measures and checks; another process reads it by `of`."""

    path: Path
    # What must hold (`what`), what was `found`, what is `accepted`, and `passed`.
    checks: list[dict[str, Any]] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)  # by name, with the unit in the name
    skipped: str = ""  # why there was nothing to do on this machine
    error: str = ""  # what ended the stage

    @classmethod
    def of(cls, folder: Path, stage: str) -> Record:
        """Return what a stage has written so far, which may be nothing."""
        record = cls(folder / f"{stage}.json")
        if record.path.is_file():
            vars(record).update(json.loads(record.path.read_text(encoding="utf-8")))
        return record

    def check(self, what: str, found: Any, accepted: str, passed: bool) -> None:
        """Add a check."""
        self.checks.append({"what": what, "found": found, "accepted": accepted, "passed": bool(passed)})
        self._write()

    def at_most(self, what: str, found: float | None, limit: float) -> None:
        """Check that a number exists and is at most ``limit``; NaN is not."""
        self.check(what, found, f"at most {limit:g}", found is not None and found <= limit)

    def measure(self, **values: Any) -> None:
        """Add measurements."""
        self.measured.update(values)
        self._write()

    def skip(self, why: str) -> None:
        """Record that there is nothing to do on this machine."""
        self.skipped = why
        self._write()

    def fail(self, error: str) -> None:
        """Record what ends the stage."""
        self.error = error
        self._write()

    def _write(self) -> None:
        write_json(self.path, {k: v for k, v in asdict(self).items() if k != "path"})


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write JSON in one step: a reader sees a whole file, this one or the last."""
    text = json.dumps(finite(document), indent=1, allow_nan=False, ensure_ascii=False)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def finite(value: Any) -> Any:
    """Return data for JSON with None in place of every number that JSON cannot hold.

    >>> finite({"a": [float("nan"), 1.5], "b": float("inf")})
    {'a': [None, 1.5], 'b': None}
    """
    if isinstance(value, Mapping):
        return {str(key): finite(own) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
