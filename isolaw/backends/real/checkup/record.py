"""What a stage has measured and checked, in a file that grows with it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Check:
    """One thing that must hold: what it is, what was found, what is accepted."""

    what: str
    found: Any
    accepted: str
    passed: bool


@dataclass
class Record:
    """Of one stage.

    Attributes
    ----------
    checks
        in the order in which they were made.
    measured
        everything else that is worth keeping, by name, with the unit in the name.
    skipped
        why there was nothing to do on this machine, or ``""``.
    error
        what ended the stage, or ``""``.
    """

    path: Path
    checks: list[Check] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""
    error: str = ""

    def check(self, what: str, found: Any, accepted: str, passed: bool) -> None:
        """Note a check."""
        self.checks.append(Check(what, found, accepted, bool(passed)))
        self._write()

    def at_most(self, what: str, found: float | None, limit: float) -> None:
        """Check that a number is there and at most ``limit``; NaN is not."""
        self.check(what, found, f"at most {limit:g}", found is not None and found <= limit)

    def measure(self, **values: Any) -> None:
        """Note measurements."""
        self.measured.update(values)
        self._write()

    def skip(self, why: str) -> None:
        """Note that there is nothing to do here."""
        self.skipped = why
        self._write()

    def fail(self, error: str) -> None:
        """Note what ends the stage."""
        self.error = error
        self._write()

    def _write(self) -> None:
        write_json(self.path, {k: v for k, v in asdict(self).items() if k != "path"})


def of(folder: Path, stage: str) -> Record:
    """Return an empty record of a stage."""
    return Record(folder / f"{stage}.json")


def read(folder: Path, stage: str) -> Record:
    """Return what a stage has noted so far, which may be nothing."""
    record = of(folder, stage)
    if record.path.is_file():
        found = json.loads(record.path.read_text(encoding="utf-8"))
        checks = [Check(**check) for check in found.pop("checks")]
        return Record(record.path, checks, **found)
    return record


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write JSON under a temporary name and rename it: a reader sees the whole of it, or the one before."""
    text = json.dumps(finite(document), indent=1, allow_nan=False, ensure_ascii=False)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)


def finite(value: Any) -> Any:
    """Return JSON-able data with None for every number that JSON cannot hold.

    >>> finite({"a": [float("nan"), 1.5], "b": float("inf")})
    {'a': [None, 1.5], 'b': None}
    """
    if isinstance(value, Mapping):
        return {str(key): finite(own) for key, own in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
