"""``isolaw.toml`` next to logs, which stores for all commands how isolaw reads these logs.

`isolaw.read` and all commands find the file in the folder that they read, or next to the file that they read.
Arguments and command-line options override the file. ``isolaw read --save`` writes it.

::

    files = ["runs.csv"]           # only these files of the folder; all of them unless given
    format = "verl-console"        # how the logs are written
    group_by = "directory"
    only = ["*n8*"]
    exclude = ["*debug*"]
    name_pattern = ["s{seed}-n{n}*"]
    metric = "val_acc"             # the column of the rewards, in a table

    [set]                          # values that the logs lack, for all runs
    B_p = 128
    [set."runs/a*"]                # for the runs that match
    seed = 1

    [columns]                      # and [derive], [constants], [metrics]: `isolaw.readers.mapping`
    n = "group_size"
"""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from isolaw.documents.reading import read_toml
from isolaw.documents.validation import located, parse_section
from isolaw.errors import InputError, Issue, SpecError, nearest
from isolaw.readers.assignments import Assignment, Rule, settings_of
from isolaw.readers.containers import CONTAINERS
from isolaw.readers.mapping import ColumnMapping
from isolaw.readers.name_patterns import NamePattern
from isolaw.readers.sources import READING_FILE

PARTS = ("columns", "derive", "constants", "metrics")  # keys of a mapping
_MOST, _MOST_PATTERNS = 1_000, 20  # items of a list: each is compared with the name of each run


class ReadingOptions(BaseModel):
    """The keys of the file except the columns of a table. They are also keywords of `isolaw.read`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: list[str] = Field(default_factory=list, max_length=_MOST)
    format: str = "auto"
    group_by: str | None = None
    only: list[str] = Field(default_factory=list, max_length=_MOST)
    exclude: list[str] = Field(default_factory=list, max_length=_MOST)
    name_pattern: list[str] = Field(default_factory=list, max_length=_MOST_PATTERNS)
    metric: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ReadingFile:
    """The content of one ``isolaw.toml``: a rule for the runs from the files in its folder that it covers."""

    path: Path
    options: ReadingOptions
    mapping: ColumnMapping
    rules: tuple[Rule, ...] = ()

    def covers(self, sources: Iterable[str | Path]) -> bool:
        """Return whether the file covers all of these sources."""
        folder, files = self.path.parent, self.options.files
        for source in map(Path, sources):
            if not source.is_relative_to(folder) or ".." in source.relative_to(folder).parts:
                return False  # ``../b`` starts with ``.`` as a text, but is not inside it
            if files and not any(source.name == own or fnmatchcase(source.name, own) for own in files):
                return False
        return True

    def spelled(self, sources: Iterable[str | Path]) -> list[str]:
        """Return the spellings of sources that the file's globs can match.

        The spellings are as given, relative to the file's folder, and with the folder's name. Otherwise
        ``a/n8*`` would match for the source ``a``, but not for ``.`` or an absolute path.
        """
        folder, out = self.path.parent, [str(source) for source in sources]
        for source in map(Path, tuple(out)):
            if source.is_relative_to(folder):
                below = source.relative_to(folder)
                out += [str(below), str(folder.resolve().name / below)]
        return out

    def assigned(self, run: str, sources: Sequence[str]) -> Sequence[Assignment]:
        """Return the assignments of the file's rules, for a run that the file covers."""
        named = self.spelled(sources)
        rules = self.rules if self.covers(sources) else ()
        return [replace(own, file=str(self.path)) for rule in rules for own in rule.assigned(run, named)]

    def about(self, source: str | Path) -> bool:
        """Return whether the file covers a source, or files in a source that is a folder or a glob."""
        folder = folder_of(source)
        return folder == self.path.parent and (folder in (Path(source),) or self.covers([source]))

    def under(self, given: Iterable[str], columns: ColumnMapping) -> ReadingFile:
        """Return the file without the keys that a call or command sets; the call's columns come first."""
        fields = ReadingOptions.model_fields
        unless = {name: fields[name].get_default(call_default_factory=True) for name in given}
        options = self.options.model_copy(update=unless)
        rules = tuple(rule for rule in self.rules if isinstance(rule, Assignment) or options.name_pattern)
        return replace(self, options=options, mapping=columns.over(self.mapping), rules=rules)

    def note(self, given: Iterable[str], rules: Iterable[Rule], columns: ColumnMapping) -> str:
        """Return the note that the file was used, with the arguments that override it."""
        wins = [name for name in given if getattr(self.options, name) not in (None, [], "auto")]
        names = {own.name for own in self.rules if isinstance(own, Assignment)}
        if any(isinstance(own, Assignment) and own.name in names for own in rules):
            wins.append("settings")
        wins += [part for part in PARTS if getattr(columns, part).keys() & getattr(self.mapping, part).keys()]
        more = f"; the given {', '.join(wins)} win{'s' * (len(wins) == 1)} over them" if wins else ""
        return f"isolaw reads with the options in {self.path}{more}"


@dataclass(frozen=True)
class Filter:
    """Selects runs and files by the user's globs, and by those of the reading files that cover them."""

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    files: tuple[ReadingFile, ...] = ()

    def keeps(self, run: str, sources: Collection[str]) -> bool:
        """Return whether to keep the run with this name from these files.

        It matches a glob in each ``only`` that is not empty, and no glob in any ``exclude``.
        """
        return _keeps(self, run, sources) and all(
            _keeps(own.options, run, own.spelled(sources)) for own in self._about(sources)
        )

    def excludes(self, path: Path) -> bool:
        """Return whether to skip a file without reading it."""
        return _matching([str(path), path.name], self.exclude) or any(
            _matching([path.name, *own.spelled([path])], own.options.exclude) for own in self._about([path])
        )

    def _about(self, sources: Collection[str | Path]) -> list[ReadingFile]:
        return [own for own in self.files if own.covers(sources)]


def _keeps(globs: Filter | ReadingOptions, run: str, sources: Collection[str]) -> bool:
    names = {run, PurePath(run).name, *sources, *(PurePath(source).name for source in sources)}
    return (not globs.only or _matching(names, globs.only)) and not _matching(names, globs.exclude)


def _matching(names: Iterable[str], globs: Sequence[str]) -> bool:
    """Return whether any glob matches any of the names."""
    return any(fnmatchcase(name, glob) for name in names for glob in globs)


def folder_of(source: str | Path) -> Path:
    """Return the folder whose ``isolaw.toml`` applies to a source: the source itself or the folder around it.

    >>> str(folder_of("nowhere/runs/*/metrics.jsonl"))
    'nowhere/runs'
    """
    path = Path(source)
    folder = path if path.is_dir() else path.parent
    while glob.has_magic(str(folder)) and not folder.exists():
        folder = folder.parent
    return folder


def next_to(sources: Iterable[str | Path]) -> list[ReadingFile]:
    """Return the distinct reading files next to these sources; raise `InputError` for an invalid file.

    Deeper files come last, so that the nearest file takes precedence for a log, in any order of the sources.
    """
    paths = sorted({folder_of(source) / READING_FILE: None for source in sources}, key=lambda p: len(p.parts))
    found = [read_reading_file(path) for path in paths if path.is_file()]
    return [own for own in found if own is not None]


def is_reading_file(path: Path) -> bool:
    """Return whether an ``isolaw.toml`` is a reading file, valid or not, rather than a sweep file."""
    try:
        return "sweep" not in read_toml(path)
    except InputError:
        return True


def read_reading_file(path: Path) -> ReadingFile | None:
    """Read a file, or return None if it is a sweep file with this name.

    Raises `SpecError` with all issues of the file.
    """
    data = read_toml(path)
    if "sweep" in data:
        return None
    of_columns = {name: data.pop(name) for name in PARTS if name in data}
    issues: list[Issue] = []
    found: list[Any] = []
    for model, own in ((ReadingOptions, data), (ColumnMapping, of_columns)):
        try:
            found.append(parse_section(model, own))
        except SpecError as error:
            issues += error.issues
    name = data.get("format", "auto")
    if isinstance(name, str) and name not in (formats := ("auto", *CONTAINERS)):
        issues.append(
            Issue("format", found=name, accepted=", ".join(formats), nearest=nearest(name, formats))
        )
    if issues:
        raise located(SpecError(issues), path)
    options, mapping = found
    rules: list[Rule] = []
    try:
        rules += [*settings_of(options.set, path), *map(NamePattern, options.name_pattern)]
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from None
    return ReadingFile(path, options, mapping.of_file(str(path)), tuple(rules))
