"""What can go wrong, as one small tree.

::

    IsolawError            anything isolaw raises on purpose                    exit code 1
    ├── InputError         the user's input is wrong; nothing was changed       exit code 2
    │   ├── SpecError      a sweep file or a ``--set`` (all problems at once)
    │   ├── DataError      a table, a log or a law file
    │   └── StoreError     a sweep directory: foreign, damaged
    │       ├── InUse      at work for another process
    │       ├── NotOurs    a link, or something of another kind, in place of isolaw's own
    │       └── Damaged    a file of isolaw's own that is not as it was written
    ├── Refused            the data cannot carry the answer; says what to add   exit code 1
    └── RunError           a run failed while it was executing                  exit code 1

>>> print(Issue("grid.rollouts_per_proble", found=[8], nearest="grid.rollouts_per_problem"))
grid.rollouts_per_proble: found [8]; did you mean 'grid.rollouts_per_problem'?
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class IsolawError(Exception):
    """Base of everything isolaw raises on purpose."""

    exit_code = 1


class InputError(IsolawError):
    """The user's input is wrong; nothing was spent and nothing was written."""

    exit_code = 2


class DataError(InputError):
    """A table, log or law file cannot be used as it is."""


class StoreError(InputError):
    """A sweep directory cannot be used: it is foreign, in use or damaged."""


class InUse(StoreError):
    """A sweep directory, or a run in it, is another process's to write for now."""


class NotOurs(StoreError):
    """In a sweep directory, a link or something of another kind where isolaw expects its own.

    ``what`` is the message without the advice.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        self.what = what
        super().__init__(f"{what}. {advice}" if advice else what)


class Damaged(StoreError):
    """A file of a sweep directory is not as isolaw wrote it."""


class Refused(IsolawError):
    """The data cannot carry the answer; the message says which runs to add."""


class RunError(IsolawError):
    """A run failed while it was executing."""


_NOTHING = object()


@dataclass(frozen=True)
class Issue:
    """One thing that is wrong: where, what was found, what is accepted, the nearest valid name."""

    where: str
    message: str = ""
    found: Any = _NOTHING
    accepted: str = ""
    nearest: str = ""

    def __str__(self) -> str:
        parts = [self.message] if self.message else []
        if self.found is not _NOTHING:
            parts.append(f"found {self.found!r}")
        if self.accepted:
            parts.append(f"accepted: {self.accepted}")
        if self.nearest:
            parts.append(f"did you mean {self.nearest!r}?")
        return f"{self.where}: " + "; ".join(parts)


class SpecError(InputError):
    """Everything that is wrong with a sweep's specification, at once.

    Attributes
    ----------
    issues
        one `Issue` for each fault.
    source
        the file, if there was one.
    rest
        what is left of the specification without the faulty keys, where that makes sense: its other
        faults can be told with these.
    """

    def __init__(self, issues: Sequence[Issue], source: str = "", rest: Any = None) -> None:
        self.issues, self.source, self.rest = list(issues), source, rest
        head = f"{source}: " if source else ""
        if len(self.issues) == 1:
            super().__init__(f"{head}{self.issues[0]}")
        else:
            lines = "\n".join(f"  - {p}" for p in self.issues)
            super().__init__(f"{head}{len(self.issues)} problems\n{lines}")


def unknown(what: str, name: str, valid: Iterable[object], there: str = "columns") -> str:
    """Return the message for a name that is not there: the nearest one, and all there are.

    >>> unknown("metric", "avg@5", ["avg@4", "best@4"], "there are")
    "no metric 'avg@5'; did you mean 'avg@4'? there are: avg@4, best@4"
    """
    names = [str(v) for v in valid]
    close = nearest(name, names)
    hint = f"did you mean {close!r}? " if close else ""
    return f"no {what} {name!r}; {hint}{there}: {', '.join(names)}"


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return the valid name closest to ``name``, or ``""`` when none is close.

    >>> nearest("rollouts_per_prblem", ["rollouts_per_problem", "seed"])
    'rollouts_per_problem'
    """
    close = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return close[0] if close else ""
