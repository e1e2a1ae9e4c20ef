"""One row of the table of findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isolaw.findings.estimate import Effect, Verdict, weakest

_UNMEASURED = (
    "a run that it needs was not made: its n is not in the grid, it has no step at C/128, or it failed"
)


@dataclass(frozen=True)
class Finding:
    """One row of the table.

    Attributes
    ----------
    key, set, statement
        as ``F1``, ``easy``, and what is claimed.
    effects
        all of which must be there.
    tolerance
        the first effect with the smallest n within 0.005 of the best in place of n*, where n* is compared.
    holds
        a condition beside the effects, without which the finding is at most partly there.
    notes
        what else a reader should know.
    """

    key: str
    set: str
    statement: str
    effects: tuple[Effect, ...]
    tolerance: Effect | None = None
    holds: bool = True
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The weakest effect's, and the condition's."""
        return weakest([*(e.verdict for e in self.effects), "yes" if self.holds else "partly"])

    @property
    def effect(self) -> Effect:
        """The effect that decides: the smallest of those with the worst verdict."""
        worst = weakest([e.verdict for e in self.effects])
        return min((e for e in self.effects if e.verdict == worst), key=lambda e: e.value)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-able data."""
        return {
            "finding": self.key,
            "set": self.set,
            "statement": self.statement,
            "verdict": self.verdict,
            "effect": self.effect.to_dict(),
            "effects": [e.to_dict() for e in self.effects],
            "tolerance": None if self.tolerance is None else self.tolerance.to_dict(),
            "notes": [_UNMEASURED] if self.verdict == "not measured" else list(self.notes),
        }
