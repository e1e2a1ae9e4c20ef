"""Define `Simulated`, the label that states whether a result comes from simulated runs.

Runs count as simulated if a simulator made them, even if they are replayed. All output carries the
`Simulated` of its runs: text and figures begin with its `words`, and JSON contains its `json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from isolaw.registry import traits

if TYPE_CHECKING:
    import pandas as pd

COLUMN = "simulated"  # column in tables that isolaw writes
_TRUE = {"true", "1", "1.0"}


class Simulated(Enum):
    """The share of runs that a simulator made: none, some or all. As a boolean, only ``NO`` is false.

    >>> [own.json for own in Simulated], [bool(own) for own in Simulated]
    ([False, 'partly', True], [False, True, True])
    """

    NO = "no"
    PARTLY = "partly"
    YES = "yes"

    def __bool__(self) -> bool:
        """Return whether a simulator made any of the runs."""
        return self is not Simulated.NO

    @classmethod
    def among(cls, marks: Iterable[object]) -> Simulated:
        """Return the label of several parts together, given the labels (or booleans) of the parts.

        >>> Simulated.among([True, False]), Simulated.among([Simulated.PARTLY]), Simulated.among([])
        (<Simulated.PARTLY: 'partly'>, <Simulated.PARTLY: 'partly'>, <Simulated.NO: 'no'>)
        """
        found = {mark if isinstance(mark, Simulated) else cls.YES if mark else cls.NO for mark in marks}
        return found.pop() if len(found) == 1 else cls.PARTLY if found else cls.NO

    @classmethod
    def of(cls, runs: Iterable[Mapping[str, Any]]) -> Simulated:
        """Return the label of runs, given the attributes of each run."""
        return cls.among(traits(own.get("backend")).simulated for own in runs)

    @classmethod
    def of_table(cls, table: pd.DataFrame) -> Simulated:
        """Return the label of a table of runs, according to `simulated_rows`."""
        return cls.among(simulated_rows(table))

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Simulated:
        """Return the label in the key ``simulated`` of a document.

        A document without the key is not simulated.
        """
        value = document.get("simulated", False)
        return cls.PARTLY if value == cls.PARTLY.value else cls.YES if value else cls.NO

    @property
    def json(self) -> bool | str:
        """The value of the key ``simulated`` in JSON: false, true, or "partly"."""
        return self.value if self is Simulated.PARTLY else bool(self)

    @property
    def words(self) -> str:
        """The label of the runs; empty if no simulator made any of them."""
        if self is Simulated.PARTLY:
            return "partly simulated"
        return "simulated" if self else ""

    def first(self, text: str) -> str:
        """Return a text, preceded by the label if the runs are simulated.

        >>> Simulated.YES.first("n = 8."), Simulated.NO.first("n = 8.")
        ('Simulated runs. n = 8.', 'n = 8.')
        """
        return f"{self.words.capitalize()} runs. {text}".rstrip() if self else text

    def lines(self, lines: Iterable[str]) -> list[str]:
        """Return lines, preceded by the label if the runs are simulated. It replaces an empty first line.

        >>> Simulated.YES.lines(["", "n  reward"]), Simulated.NO.lines(["", "n  reward"])
        (['Simulated runs.', 'n  reward'], ['n  reward'])
        """
        first, *rest = [*lines] or [""]
        return [own for own in [self.first(first)] if own] + rest

    def title(self, text: str) -> str:
        """Return a title, preceded by the label if the runs are simulated.

        >>> Simulated.PARTLY.title("the best n")
        'partly simulated runs: the best n'
        """
        return f"{self.words} runs: {text}" if self else text


def simulated_rows(table: pd.DataFrame) -> list[bool]:
    """Return whether each row of a table is simulated, from the column ``simulated`` or ``backend``."""
    marked = [str(value).lower() in _TRUE for value in table[COLUMN]] if COLUMN in table else []
    made = [traits(value).simulated for value in table["backend"]] if "backend" in table else []
    return [any(own) for own in zip(marked or made, made or marked, strict=True)]
