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
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

# Characters that a terminal would execute or does not show: Unicode's categories Cc, Cf (without the signs of
# numbers in Arabic, which are visible), Zl, Zp and Cs, and all tags.
_UNSAFE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u061c\u070f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    r"\ufff9-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def one_line(text: str) -> str:
    r"""Return text on one line that is safe to print on a terminal, with unsafe characters escaped.

    >>> print(one_line("a\x1b[31m\n  b"))
    a\u001b[31m\u000a  b
    """
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class Wording(str):
    r"""A text with parts that a formatted string would flatten: line breaks of isolaw, and `Spelled` parts.

    Any other line break in a message comes from a name or from another program, and a terminal shows it
    escaped. Text may precede or follow with ``+``.

    >>> ("a\n: " + Wording("two are missing", "  - b", "  - c")).lines
    (('a\n: ', 'two are missing'), ('  - b',), ('  - c',))
    """

    lines: tuple[tuple[str, ...], ...]  # the parts of each line

    def __new__(cls, *lines: str) -> Wording:
        """Join lines; each is a text without line breaks of its own, or itself a `Wording`."""
        return _wording(line for text in lines for line in lines_of(text))

    def __str__(self) -> str:
        return self

    def __add__(self, after: str) -> Wording:
        first, *rest = lines_of(after)
        return _wording([*self.lines[:-1], (*self.lines[-1], *first), *rest])

    def __radd__(self, before: str) -> Wording:
        return _wording([(before, *self.lines[0]), *self.lines[1:]])

    def removeprefix(self, prefix: str, /) -> Wording:
        """Return the message without text at the start of its first part."""
        (first, *parts), *rest = self.lines
        return _wording([(first.removeprefix(prefix), *parts), *rest])


class Spelled(Wording):
    """A part of a message, spelled as in Python, whose ``words`` are its spelling at the command line.

    >>> way = Spelled("hold='n'", ("--hold", "n"))
    >>> print("Use " + way, ("Use " + way).lines[0][1].words)
    Use hold='n' ('--hold', 'n')
    """

    words: tuple[str, ...]

    def __new__(cls, text: str, words: Iterable[str] = ()) -> Spelled:
        """Return the text in Python with its words at the command line."""
        self = str.__new__(cls, text)
        self.lines, self.words = ((self,),), tuple(words)
        return self


def lines_of(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the lines of a message, each as its parts."""
    return text.lines if isinstance(text, Wording) else ((text,),)


def joined(separator: str, texts: Iterable[str]) -> Wording:
    """Return a message of texts, one or more, on the lines that they have."""
    first, *rest = texts
    return functools.reduce(lambda before, text: before + (separator + text), rest, Wording(first))


def _wording(lines: Iterable[tuple[str, ...]]) -> Wording:
    lines = tuple(lines)
    self = str.__new__(Wording, "\n".join(map("".join, lines)))
    self.lines = lines
    return self


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
    except Exception:  # for example, an integer with thousands of digits, or a __repr__ with a fault
        return f"a {type(value).__name__} that cannot be shown"
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
        super().__init__(texts[0] if alone else Wording(head, *(f"  - {text}" for text in texts)))


@contextmanager
def collecting(issues: list[Issue]) -> Iterator[None]:
    """End the block at a `SpecError`, and add its issues to a list.

    >>> result = []
    >>> with collecting(result):
    ...     raise SpecError([Issue("sweep.seeds", "missing")])
    >>> [str(issue) for issue in result]
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
