"""Define the exceptions of isolaw, which form one tree.

::

    IsolawError            any exception that isolaw raises on purpose          exit code 1
    ├── InputError         the user's input is wrong; nothing was changed       exit code 2
    │   ├── SpecError      a sweep file or a ``--set`` (all issues at once)
    │   ├── DataError      a table, a log or a law file
    │   │   ├── NoHistory      a log without any metric: a killed run, an empty file
    │   │   └── NotInstalled   the package that reads a file is missing
    │   └── StoreError     a sweep directory: not isolaw's, in use, damaged
    │       ├── InUse      locked by another process
    │       ├── NotOurs    a link, or another kind of entry, where isolaw keeps a file or folder
    │       └── Damaged    a file differs from the file that isolaw wrote
    ├── Refused            the data do not support an answer; lists runs to add  exit code 1
    └── RunError           a run failed while it was executing                  exit code 1

>>> print(Issue("grid.rollouts_per_proble", found=[8], nearest="grid.rollouts_per_problem"))
grid.rollouts_per_proble: found [8] (did you mean 'grid.rollouts_per_problem'?)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice
from typing import Any

# Characters that a terminal would execute or cannot print: control characters, line breaks, characters that
# change the text direction, and lone surrogates.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str) -> str:
    r"""Return text on one line that is safe to print on a terminal, with unsafe characters escaped.

    >>> print(one_line("a\x1b[31m\n  b"))
    a\u001b[31m\u000a  b
    """
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class MessageLines(str):
    r"""A message of several lines.

    Any other line break in a message comes from a name or from another program, and a terminal shows it
    escaped. Text may precede or follow with ``+``; a formatted string loses the lines.

    >>> ("a\n: " + MessageLines("two are missing", "  - b", "  - c")).lines
    ('a\n: two are missing', '  - b', '  - c')
    """

    lines: tuple[str, ...]

    def __new__(cls, *parts: str) -> MessageLines:
        """Join the lines of the parts; each part is one line, or itself `MessageLines`."""
        lines = tuple(line for part in parts for line in lines_of(part))
        self = super().__new__(cls, "\n".join(lines))
        self.lines = lines
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, after: str) -> MessageLines:
        first, *rest = lines_of(after)
        return MessageLines(*self.lines[:-1], f"{self.lines[-1]}{first}", *rest)

    def __radd__(self, before: str) -> MessageLines:
        return MessageLines(f"{before}{self.lines[0]}", *self.lines[1:])

    def removeprefix(self, prefix: str, /) -> MessageLines:
        """Return the message without text at its start."""
        return MessageLines(self.lines[0].removeprefix(prefix), *self.lines[1:])


def lines_of(text: str) -> tuple[str, ...]:
    """Return the lines of a message."""
    return text.lines if isinstance(text, MessageLines) else (text,)


class IsolawError(Exception):
    """The base class of all exceptions that isolaw raises on purpose."""

    exit_code = 1


class InputError(IsolawError):
    """The user's input is wrong; nothing was spent and nothing was written."""

    exit_code = 2


class DataError(InputError):
    """A table, log or law file cannot be used in its present form."""


class NoHistory(DataError):
    """A log contains no metric, because its run was killed before the first step or the file is empty."""


class NotInstalled(DataError):
    """The package that reads a file is missing. The message contains the command that installs it."""


class StoreError(InputError):
    """A sweep directory cannot be used: it is not isolaw's, in use or damaged."""


class InUse(StoreError):
    """A sweep directory, or a run in it, is locked by another process."""


class NotOurs(StoreError):
    """A link or another kind of entry has replaced one of isolaw's files or folders.

    ``what`` is the message without the advice.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        self.what = what
        super().__init__(f"{what}. {advice}" if advice else what)


class Damaged(StoreError):
    """A file of a sweep directory differs from the file that isolaw wrote."""


class Refused(IsolawError):
    """The data do not support an answer. The message lists the runs to add."""


class RunError(IsolawError):
    """A run failed while it was executing."""


# Whether the user types commands. Messages then suggest a command; otherwise, they suggest a Python call.
at_command_line: ContextVar[bool] = ContextVar("at_command_line", default=False)
# The options of the running command; None in Python.
options_here: ContextVar[frozenset[str] | None] = ContextVar("options_here", default=None)
_NOTHING = object()
_LONGEST_SHOWN = 500  # limit on the characters of a value in a message
MOST_ISSUES = 20  # that a message shows; a stranger's file can have thousands of wrong keys
# A name is compared with names of up to this length, and with so many of them: each comparison takes 0.1 ms.
_LONGEST_NAME, _MOST_NAMES = 100, 1_000


@dataclass(frozen=True)
class Issue:
    """One mistake in an input: its key and line, the value found, accepted values, the nearest valid name."""

    where: str
    message: str = ""
    found: Any = _NOTHING
    accepted: str = ""
    nearest: str = ""
    line: int = 0

    def __str__(self) -> str:
        parts = [self.message] if self.message else []
        if self.found is not _NOTHING:
            parts.append(f"found {shown(self.found)}")
        if self.accepted:
            parts.append(f"expected {self.accepted}")
        hint = f" (did you mean {self.nearest!r}?)" if self.nearest else ""
        return f"{self.where[:_LONGEST_SHOWN]}: {'; '.join(parts)}{hint}"


def shown(value: Any, form: Callable[[Any], str] = repr, longest: int = _LONGEST_SHOWN) -> str:
    """Return a value in the form that messages show. Only the beginning of a long value is kept."""
    try:
        text = form(value)
    except (ValueError, RecursionError):  # for example, an integer with thousands of digits
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= longest else f"{text[:longest]} …"


class SpecError(InputError):
    """A specification is wrong. ``issues`` lists every mistake, and ``source`` is the file.

    The message shows the first 20.
    """

    def __init__(self, issues: Sequence[Issue], source: str = "") -> None:
        self.issues, self.source = list(issues), source
        alone = len(self.issues) == 1
        texts = []
        for issue in self.issues[:MOST_ISSUES]:
            place = f"{source}:{issue.line}: " if issue.line else f"{source}: " if source and alone else ""
            texts.append(f"{place}{issue}")
        if (more := len(self.issues) - MOST_ISSUES) > 0:
            texts.append(f"and {more:,} more")
        count = f"{len(self.issues):,} issues"
        head = f"{source}: {count}" if source else count
        super().__init__(texts[0] if alone else MessageLines(head, *(f"  - {text}" for text in texts)))


@contextmanager
def collecting(issues: list[Issue]) -> Iterator[None]:
    """End the block at a `SpecError`, and add its issues to a list.

    >>> found = []
    >>> with collecting(found):
    ...     raise SpecError([Issue("sweep.seeds", "missing")])
    >>> [str(issue) for issue in found]
    ['sweep.seeds: missing']
    """
    try:
        yield
    except SpecError as error:
        issues += error.issues


def check_type(name: str, value: object, types: Any, expected: str) -> None:
    """Raise `InputError` if an argument from Python has another type than one of ``types``.

    >>> check_type("draws", "a", int, "a number of draws")
    Traceback (most recent call last):
    isolaw.errors.InputError: draws: found 'a'; expected a number of draws
    """
    if not isinstance(value, types) or isinstance(value, bool):
        raise wrong_argument(name, value, expected)


def wrong_argument(name: str, value: object, expected: str) -> InputError:
    """Return the error for an argument from Python, with the value or otherwise its type."""
    plain = isinstance(value, str | int | float | list | tuple)
    return InputError(f"{name}: found {shown(value) if plain else type(value).__name__}; expected {expected}")


def offers(flag: str) -> bool:
    """Return whether the running command has an option; always true in Python, where functions have keywords.

    >>> offers("--hold")
    True
    """
    here = options_here.get()
    return here is None or flag in here


def unknown(what: str, name: str, valid: Iterable[object], there: str = "columns") -> str:
    """Return a message about an unknown name, with the nearest valid name and a list of all valid names.

    >>> unknown("metric", "avg@5", ["avg@4", "best@4"], "there are")
    "no metric 'avg@5'; did you mean 'avg@4'? there are: avg@4, best@4"
    """
    names = [str(v) for v in valid]
    close = nearest(name, names)
    hint = f"did you mean {close!r}? " if close else ""
    known = shown(", ".join(names), str, 4 * _LONGEST_SHOWN)
    return f"no {what} {shown(name)}; {hint}{there}: {known}"


def nearest(name: str, valid: Iterable[object], cutoff: float = 0.5) -> str:
    """Return the valid name closest to ``name``, or ``""`` if none is close.

    >>> nearest("rollouts_per_prblem", ["rollouts_per_problem", "seed"])
    'rollouts_per_problem'
    """
    if len(name) > _LONGEST_NAME:
        return ""
    names = [v for v in islice(valid, _MOST_NAMES) if isinstance(v, str) and len(v) <= _LONGEST_NAME]
    close = difflib.get_close_matches(name, names, n=1, cutoff=cutoff)
    return close[0] if close else ""
