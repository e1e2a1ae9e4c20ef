"""``--set NAME=VALUE`` and ``--set GLOB:NAME=VALUE``: values that the user knows and a log does not contain.

An assignment with a glob applies to the runs whose name or source matches, and overrides an assignment
without a glob. If two assignments are equally specific, the later one applies.

>>> [(own.name, own.value, own.glob) for own in parse(["n=16", "*seed1*:seed=1"])]
[('rollouts_per_problem', 16, ''), ('seed', 1, '*seed1*')]
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any, Protocol

from isolaw.errors import InputError, nearest, shown
from isolaw.readers.literals import parse_number
from isolaw.readers.raw_log import whole
from isolaw.runs import COLUMNS, SYMBOLS

# Symbols and other spellings, mapped to names in code.
ALIASES = {**SYMBOLS, "B": "rollouts_per_step", "batch_rollouts": "rollouts_per_step"}
DEFAULTS = {"problem_set": "unnamed", "algorithm": "grpo", "seed": 0}
ASSUMED, NAME_PATTERN = "unless set", "--name-pattern"  # origins of a default and of a value in a run name
SPLIT = ("problems_per_batch", "rollouts_per_problem", "rollouts_per_step")
WHOLE = {  # integer facts → their minimum
    **dict.fromkeys([*SPLIT, "n_problems", "n_samples", "n_train_problems", "logging_steps"], 1),
    "seed": 0,
}
_BOOLEAN = ("on_policy", "percent")
_TEXT = ("problem_set", "algorithm", "framework")
_MEASURED = set(COLUMNS) - {*WHOLE, *_TEXT}
_FORM = re.compile(r"(?s)(?:(?P<glob>.*?):)?(?P<name>[A-Za-z_][\w.-]*)=(?P<value>.*)")


class Rule(Protocol):
    """A rule that assigns values to the runs that it matches: an `Assignment`, or a pattern for run names."""

    def assigned(self, run: str, sources: Sequence[str]) -> Sequence[Assignment]:
        """Return the assignments for the run with this name, which was read from these files."""


@dataclass(frozen=True)
class Assignment:
    """A value that the user sets for the runs that match ``glob``. An empty glob matches all runs."""

    name: str
    value: Any
    glob: str = ""
    file: str = ""  # the file that contains it; empty for an option
    pattern: Rule | None = field(default=None, repr=False)  # the pattern that read it from a run's name

    @property
    def origin(self) -> str:
        """The option or file that set the value, as shown in messages."""
        return NAME_PATTERN if self.pattern else self.file or "--set"

    @property
    def rule(self) -> Rule:
        """The rule as the user wrote it."""
        return self.pattern or self

    def assigned(self, run: str, sources: Sequence[str]) -> Sequence[Assignment]:
        """Return the assignment itself if it applies to the run, else nothing."""
        return [self] if self.matches(run, sources) else []

    def matches(self, run: str, sources: Iterable[str]) -> bool:
        """Return whether the assignment applies to the run with this name, read from these files."""
        names = [run, PurePath(run).name, *sources]
        return not self.glob or any(fnmatchcase(name, self.glob) for name in names)

    def __str__(self) -> str:
        return f"{self.file or '--set'} {self.glob + ':' if self.glob else ''}{self.name}={self.value}"


def parse(settings: Iterable[str] | Mapping[str, Any] | None) -> list[Assignment]:
    """Parse assignments such as ``["n=16", "GLOB:seed=1"]`` or ``{"n": 16, "GLOB:seed": 1}``.

    Raises `InputError` for any other form, for a name that cannot be set, and for an invalid value.
    """
    if isinstance(settings, str):
        raise InputError(f"settings: found {shown(settings)}; expected a list of texts, or a mapping")
    if isinstance(settings, Mapping):
        settings = [f"{name}={value}" for name, value in settings.items()]
    return [_parse_one(text) for text in settings or ()]


def applying(rules: Iterable[Rule], run: str, sources: Iterable[str]) -> dict[str, Assignment]:
    """Return the assignments that apply to a run, by name.

    Options take precedence over the file of a folder. Within each of them, assignments with a glob come
    first, then values from the run's name, then assignments without a glob.
    """
    sources = list(sources)
    own = [assignment for rule in rules for assignment in rule.assigned(run, sources)]
    return {
        a.name: a for a in sorted(own, key=lambda a: (not a.file, 2 if a.glob else 1 if a.pattern else 0))
    }


def _parse_one(text: str) -> Assignment:
    form = _FORM.fullmatch(text.strip())
    if form is None or not form["value"].strip():
        raise InputError(f"--set {shown(text)}: expected NAME=VALUE, or GLOB:NAME=VALUE for matching runs")
    return assignment(form["name"], form["value"].strip(), form["glob"] or "", f"--set {shown(text)}")


def assignment(name: str, value: str, glob: str, where: str) -> Assignment:
    """Return an assignment; raise an `InputError` that starts with ``where`` if it is invalid."""
    name = settable(name, where)
    parsed = value if name in _TEXT else plain_number(value)
    if name in _BOOLEAN and not isinstance(parsed, bool):
        raise InputError(f"{where}: {name} must be true or false")
    if name in WHOLE and (type(parsed) is not int or whole(parsed, WHOLE[name]) is None):
        raise InputError(f"{where}: {name} must be a whole number, {WHOLE[name]} or more")
    return Assignment(name, parsed, glob)


def settings_of(data: Mapping[str, Any], path: str | Path) -> list[Assignment]:
    """Return the assignments in a file.

    A table ``["GLOB"]`` contains values such as ``n = 8``; values before any table apply to all runs.
    Raises `InputError` for values that cannot be set.
    """
    out: dict[tuple[str, str], Assignment] = {}
    for glob, own in data.items():
        settings = own if isinstance(own, dict) else {glob: own}
        for name, value in settings.items():
            if not isinstance(value, bool | int | float | str):
                raise InputError(f"{path}: {glob}: {name}: found {shown(value)}; expected a number or a text")
            one = assignment(name, str(value), glob if settings is own else "", f"{path}: {name}")
            twice = out.setdefault((one.name, one.glob), one)
            if twice.value != one.value:
                both = f"found {shown(twice.value)} and {shown(one.value)} under two names of {one.name}"
                raise InputError(f"{path}: {glob if settings is own else name}: {both}; expected one")
    return [*out.values()]


def settable(name: str, where: str) -> str:
    """Return the name in code of a settable value; raise `InputError` for values that a log measures."""
    name = ALIASES.get(name, name)
    if name in _MEASURED:
        raise InputError(f"{where}: {name} comes from the log and cannot be set")
    known = [*ALIASES, *WHOLE, *_BOOLEAN, *_TEXT]
    if name not in known and (close := nearest(name, known, cutoff=0.8)):
        raise InputError(f"{where}: unknown name {shown(name)}; did you mean {close!r}?")
    return name


def plain_number(text: str) -> Any:
    """Convert text to the number or boolean that it spells; return any other text unchanged."""
    return text.lower() == "true" if text.lower() in ("true", "false") else as_number(text)


def as_number(text: str) -> Any:
    """Convert text to the number that it spells; return other text unchanged, including "nan" and "inf".

    >>> as_number("8"), as_number("inf"), as_number("1" + 400 * "0") == "1" + 400 * "0"
    (8, 'inf', True)
    """
    number = parse_number(text)  # an integer may be too large for a float
    return number if number is not None and math.isfinite(float(text)) else text
