"""`HowToRead`: what a user says about how to read a source, as one value with three spellings.

The keywords of `isolaw.read`, the options of a command, and ``isolaw.toml`` next to logs, which all commands
find in the folder that they read, or next to the file that they read. Keywords and options override the file.
``isolaw read --save`` writes it.

::

    files = ["runs.csv"]           # only these files of the folder; all of them unless given
    format = "verl-console"        # how the logs are written
    group_by = "directory"
    only = ["*n8*", "!*debug*"]    # ! leaves out what matches
    name_pattern = ["s{seed}-n{n}*"]
    metric = "val_acc"             # the column of the rewards, in a table

    [set]                          # values that the logs lack, for all runs or rows
    B_p = 128
    [set."runs/a*"]                # for the runs that match
    seed = 1

    [columns]                      # of a table: our name or symbol = "column", or "arithmetic on columns"
    n = "group_size"
    C = "prompts_seen*group_size"

    [metrics]                      # metric = "column", or a table with its evaluation set and unit
    accuracy = { column = "eval_acc", eval_set = "aime24", percent = true }

A value with a glob applies to the runs whose name or source matches, and overrides a value without a glob. If
two values are equally specific, the later one applies.

>>> how = HowToRead.of(set=["n=16", "*seed1*:seed=1"], columns={"C": "samples"})
>>> how.options()
['--column', 'compute=samples', '--set', 'n=16', '--set', '*seed1*:seed=1']
>>> how.keywords()
['columns={"compute": "samples"}', 'set={"n": 16, "*seed1*:seed": 1}']
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Annotated, Any

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from isolaw.commands import Placeholder, Word, word
from isolaw.documents.reading import read_toml, toml_key, toml_value
from isolaw.documents.validation import located, parse_section
from isolaw.errors import InputError, Issue, SpecError, Spelled, nearest, shown
from isolaw.files import leads_out
from isolaw.metrics import is_accuracy
from isolaw.readers.containers import CONTAINERS
from isolaw.readers.hub import ELSEWHERE
from isolaw.readers.name_patterns import NamePattern
from isolaw.readers.names import ALIASES, NAME_PATTERN, SYMBOL, settable, value_of
from isolaw.runs import full_names

READING_FILE = "isolaw.toml"
_MOST, _MOST_PATTERNS = 1_000, 20  # items of a list: each is compared with the name of each run
_FORM = re.compile(r"(?s)(?:(?P<glob>.*?):)?(?P<name>[A-Za-z_][\w.-]*)=(?P<value>.*)")
_ONE = ("format", "group_by", "metric")  # keys with one value


@dataclass(frozen=True)
class Assignment:
    """A value that the user sets for the runs that match ``glob``. An empty glob matches all runs."""

    name: str
    value: Any
    glob: str = ""
    file: str = ""  # the file that contains it; empty for an option
    pattern: NamePattern | None = field(default=None, repr=False)  # that read it from a run's name

    @property
    def origin(self) -> str:
        """The option or file that set the value, as shown in messages."""
        return NAME_PATTERN if self.pattern else self.file or "--set"

    @property
    def rule(self) -> Rule:
        """The rule as the user wrote it."""
        return self.pattern or self

    def matches(self, run: str, sources: Iterable[str]) -> bool:
        """Return whether the assignment applies to the run with this name, read from these files."""
        return not self.glob or _matching([run, PurePath(run).name, *sources], [self.glob])

    def __str__(self) -> str:
        return f"{self.file or '--set'} {shown(_setting(self.glob, self.name, self.value), str)}"


Rule = Assignment | NamePattern


class _MetricColumn(BaseModel):
    """A column that contains a metric, or arithmetic on columns, with its evaluation set and unit."""

    model_config = ConfigDict(extra="forbid")

    column: str
    eval_set: str | None = None  # None: the table's column eval_set, or validation
    percent: bool | None = None  # None: in percent if the column's name says so, or if an accuracy exceeds 1

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value


def _one_value(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str | np.generic):
        raise ValueError("a text, a number, true or false")
    return value


class HowToRead(BaseModel):
    """How to read a source: which of its runs, as what, and the values that it lacks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: list[str] = Field(default_factory=list, max_length=_MOST)
    format: str = "auto"
    group_by: str | None = None
    only: list[str] = Field(default_factory=list, max_length=_MOST)
    name_pattern: list[str] = Field(default_factory=list, max_length=_MOST_PATTERNS)
    metric: str | None = None
    # Glob, or "" for all runs → our name → value.
    set: dict[str, dict[str, Annotated[Any, BeforeValidator(_one_value)]]] = Field(default_factory=dict)
    columns: dict[str, str] = Field(default_factory=dict)  # our name → column of a table, or arithmetic
    metrics: dict[str, _MetricColumn] = Field(default_factory=dict)
    _file: str = PrivateAttr("")
    _assignments: tuple[Assignment, ...] = PrivateAttr(())
    _patterns: tuple[NamePattern, ...] = PrivateAttr(())

    @classmethod
    def of(cls, **keywords: Any) -> HowToRead:
        """Return the value that keywords of `isolaw.read`, or options by these names, spell.

        Raises `InputError` for a wrong value or a name that cannot be set.
        """
        how = parse_section(cls, {name: value for name, value in keywords.items() if value is not None})
        if twice := [name for name in how.values if name in how.columns]:
            raise InputError(f"{twice[0]} is given twice; expected a column or a value")
        return how

    def but(self, **changes: Any) -> HowToRead:
        """Return the value with other keys, whose settings are `settable`."""
        data = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**data, **changes}, context={"source": self._file, "checked": True})

    @model_validator(mode="before")
    @classmethod
    def _spelled_out(cls, data: Any) -> Any:
        """Replace symbols by names, move reward columns (``{"avg@4": "val_acc"}``) to the metrics."""
        out = dict(data)
        for name in ("only", "name_pattern"):
            if isinstance(given := out.get(name), str | Iterable) and not isinstance(given, Mapping):
                out[name] = [given] if isinstance(given, str) else list(given)
        if isinstance(columns := out.get("columns"), Mapping):
            columns = full_names(columns, ALIASES)
            rewards = {
                name: column for name, column in columns.items() if name == "reward" or is_accuracy(name)
            }
            out["columns"] = {name: column for name, column in columns.items() if name not in rewards}
            if isinstance(out.get("metrics", {}), Mapping):
                out["metrics"] = {**rewards, **out.get("metrics", {})}
        if isinstance(given := out.get("set"), Iterable) and not isinstance(given, str):
            out["set"] = _by_glob(given)
        return out

    @model_validator(mode="after")
    def _parsed(self, info: ValidationInfo) -> HowToRead:
        context = info.context or {}
        self._file = file = context.get("source", "")
        where = f"{file}: set" if file else "--set"
        known: dict[tuple[str, str], Assignment] = {}
        for glob_, values in self.set.items():
            for name, value in values.items():
                spelled = f"{where} {shown(_setting(glob_, name, value))}" if not file else f"{where}.{name}"
                full = name if context.get("checked") else settable(name, spelled)
                one = Assignment(full, value_of(full, str(value), spelled), glob_, file)
                twice = known.setdefault((full, glob_), one)
                if twice.value != one.value:
                    both = f"found {shown(twice.value)} and {shown(one.value)} under two names of {full}"
                    raise InputError(f"{spelled}: {both}; expected one")
        self._assignments = tuple(known.values())
        self.set.clear()
        for one in self._assignments:
            self.set.setdefault(one.glob, {})[one.name] = one.value
        try:
            self._patterns = tuple(map(NamePattern, self.name_pattern))
        except InputError as error:
            raise InputError(f"{file}: {error}" if file else str(error)) from None
        return self

    # Its parts

    @property
    def file(self) -> str:
        """The ``isolaw.toml`` that contains it; empty for keywords and options."""
        return self._file

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The assignments and the patterns for names, each of which at least one run should use."""
        return (*self._assignments, *self._patterns)

    @property
    def values(self) -> dict[str, Any]:
        """The values that are set for all runs or rows."""
        return self.set.get("", {})

    @property
    def maps(self) -> bool:
        """Whether it names columns of a table."""
        return bool(self.columns or self.metrics)

    @property
    def names(self) -> list[str]:
        """The names in the data model that a table gets from it, without metrics."""
        return [*self.columns, *(name for name in self.values if name not in self.columns)]

    @property
    def texts(self) -> list[str]:
        """The columns, or arithmetic on columns, that it names."""
        return [*self.columns.values(), *(metric.column for metric in self.metrics.values())]

    # Its runs

    def covers(self, sources: Iterable[str | Path]) -> bool:
        """Return whether it applies to all of these sources: a file applies to its folder."""
        if not self._file:
            return True
        folder = Path(self._file).parent
        for source in map(Path, sources):
            if not source.is_relative_to(folder) or ".." in source.relative_to(folder).parts:
                return False  # ``../b`` starts with ``.`` as a text, but is not inside it
            if self.files and not _matching([source.name], self.files) and source.name not in self.files:
                return False
        return True

    def applies_to(self, source: str | Path) -> bool:
        """Return whether a file covers a source, or files in a source that is a folder or a glob."""
        folder = _folder_of(source)
        return folder == Path(self._file).parent and (folder == Path(source) or self.covers([source]))

    def _spelled(self, sources: Iterable[str | Path]) -> list[str]:
        """Return the spellings of sources that globs can match.

        The spellings are as given and, for a file, relative to its folder, and with the folder's name.
        Otherwise ``a/n8*`` would match for the source ``a``, but not for ``.`` or an absolute path.
        """
        folder, out = Path(self._file).parent, [str(source) for source in sources]
        for source in map(Path, tuple(out) if self._file else ()):
            if source.is_relative_to(folder):
                below = source.relative_to(folder)
                out += [str(below), str(folder.resolve().name / below)]
        return out

    def assigned(self, run: str, sources: Collection[str]) -> list[Assignment]:
        """Return the values for the run with this name, which was read from these files."""
        if not self.covers(sources):
            return []
        spelled = self._spelled(sources)
        out = [one for one in self._assignments if one.matches(run, spelled)]
        for pattern in self._patterns:
            values = pattern.read(run, spelled)
            out += [Assignment(name, value, "", self._file, pattern) for name, value in values.items()]
        return out

    def keeps(self, run: str, sources: Collection[str]) -> bool:
        """Return whether to keep the run with this name from these files.

        It matches one of the globs, if there are any, and none that begins with ``!``.
        """
        if not self.covers(sources):
            return True
        spelled = self._spelled(sources)
        names = {run, PurePath(run).name, *spelled, *(PurePath(source).name for source in spelled)}
        wanted, left_out = _globs(self.only)
        return (not wanted or _matching(names, wanted)) and not _matching(names, left_out)

    def excludes(self, path: Path) -> bool:
        """Return whether to skip a file without reading it."""
        left_out = _globs(self.only)[1]
        return (
            bool(left_out)
            and self.covers([path])
            and _matching([path.name, *self._spelled([path])], left_out)
        )

    # Of a file, next to a call

    def under(self, call: HowToRead) -> HowToRead:
        """Return a file's value with what a call or command says in place of the same keys."""
        given = _globs(call.only)
        values = {name: value for name, value in self.values.items() if name not in call.columns}
        return self.but(
            **{key: getattr(call, key) for key in _ONE if _given(call, key)},
            only=[text for text in self.only if not given[text[:1] == "!"]],
            name_pattern=[] if call.name_pattern else self.name_pattern,
            set={**self.set, "": values},
            columns={**{k: v for k, v in self.columns.items() if k not in call.values}, **call.columns},
            metrics={**self.metrics, **call.metrics},
        )

    def note(self, call: HowToRead) -> str:
        """Return the note that a file was used, next to the options of a call."""
        more = "; those of this call take precedence" if call != HowToRead() else ""
        return f"isolaw reads with the options in {self._file}{more}"

    # Its other spellings. Values can be placeholders.

    def options(self) -> list[str]:
        """Return the options that say the same, as words."""
        columns = {**self.columns, **{name: metric.column for name, metric in self.metrics.items()}}
        pairs: list[tuple[str, str]]
        pairs = [("--column", word(SYMBOL.get(name, name), "=", text)) for name, text in columns.items()]
        pairs += [("--name-pattern", text) for text in self.name_pattern]
        pairs += [("--set", _setting(*each)) for each in self._settings()]
        pairs += [("--only", text) for text in self.only]
        pairs += [(f"--{key.replace('_', '-')}", getattr(self, key)) for key in _ONE if _given(self, key)]
        return [each for pair in pairs for each in pair]

    def keywords(self) -> list[str]:
        """Return the keywords that say the same in Python."""
        columns = {**self.columns, **{name: metric.column for name, metric in self.metrics.items()}}
        values = {f"{glob_}:{name}" if glob_ else name: value for glob_, name, value in self._settings()}
        out = [
            f"{key}={{{', '.join(f'{_literal(SYMBOL.get(k, k))}: {_literal(v)}' for k, v in pairs.items())}}}"
            for key, pairs in (("columns", columns), ("set", values))
            if pairs
        ]
        lists = {key: getattr(self, key) for key in ("name_pattern", "only") if getattr(self, key)}
        out += [f"{key}={_literal(texts[0] if len(texts) == 1 else texts)}" for key, texts in lists.items()]
        return out + [f"{key}={_literal(getattr(self, key))}" for key in _ONE if _given(self, key)]

    @property
    def spelled(self) -> Spelled:
        """The keywords, which are the options at the command line."""
        return Spelled(", ".join(self.keywords()), self.options())

    def tables(self) -> dict[str, list[str]]:
        """Return the lines of ``isolaw.toml`` that say the same, by the title of their table.

        The title is empty for keys before any table.
        """
        keys = ("files", "format", "group_by", "only", "name_pattern", "metric")
        out = {"": [f"{key} = {_toml(getattr(self, key))}" for key in keys if _given(self, key)]}
        for glob_, name, value in self._settings():
            title = f"[set.{toml_key(glob_)}]" if glob_ else "[set]"
            out.setdefault(title, []).append(f"{toml_key(name)} = {_toml(value)}")
        columns = {SYMBOL.get(name, name): text for name, text in self.columns.items()}
        out["[columns]"] = [f"{toml_key(name)} = {toml_value(text)}" for name, text in columns.items()]
        metrics = {name: metric.model_dump(exclude_none=True) for name, metric in self.metrics.items()}
        out["[metrics]"] = [f"{toml_key(name)} = {toml_value(value)}" for name, value in metrics.items()]
        return {title: lines for title, lines in out.items() if lines}

    def _settings(self) -> list[tuple[str, str, Any]]:
        pairs = sorted(self.set.items(), key=lambda pair: pair[0] != "")
        return [(glob_, SYMBOL.get(k, k), v) for glob_, values in pairs for k, v in values.items()]


def _by_glob(given: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by glob: texts ``GLOB:NAME=VALUE``, a mapping with such names, or one with tables."""
    out: dict[str, Any] = {}
    if not isinstance(given, Mapping):
        for text in given:
            form = _FORM.fullmatch(str(text).strip())
            if form is None or not form["value"].strip():
                expected = "NAME=VALUE, or GLOB:NAME=VALUE for matching runs"
                raise InputError(f"--set {shown(text)}: expected {expected}")
            out.setdefault(form["glob"] or "", {})[form["name"]] = form["value"].strip()
        return out
    for name, value in given.items():
        if isinstance(value, Mapping):
            out.setdefault(name, {}).update(value)
        else:
            glob_, _, bare = str(name).rpartition(":")
            out.setdefault(glob_, {})[bare] = value
    return out


def _setting(glob_: str, name: str, value: object) -> Word:
    """Return the value of a ``--set`` option for the runs that match a glob, with its placeholders."""
    return word(glob_, ":", name, "=", value) if glob_ else word(name, "=", value)


def applying(ways: Iterable[HowToRead], run: str, sources: Collection[str]) -> dict[str, Assignment]:
    """Return the assignments that apply to a run, by name.

    Options take precedence over the file of a folder. Within each of them, assignments with a glob come
    first, then values from the run's name, then assignments without a glob.
    """
    every = [one for how in ways for one in how.assigned(run, sources)]
    order = sorted(every, key=lambda one: (not one.file, 2 if one.glob else 1 if one.pattern else 0))
    return {one.name: one for one in order}


def _globs(only: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the globs of what is wanted, and of what is left out."""
    return [text for text in only if text[:1] != "!"], [text[1:] for text in only if text[:1] == "!"]


def _matching(names: Iterable[str], globs: Sequence[str]) -> bool:
    """Return whether any glob matches any of the names."""
    return any(fnmatchcase(name, text) for name in names for text in globs)


def _given(how: HowToRead, key: str) -> bool:
    return getattr(how, key) not in (None, [], "auto")


def _literal(value: Any) -> str:
    """Return a value as Python code; a placeholder stays as it is."""
    if isinstance(value, Placeholder):
        return value
    return repr(value) if not isinstance(value, str | list) else json.dumps(value, ensure_ascii=False)


def _toml(value: Any) -> str:
    return str(value) if isinstance(value, Placeholder) else toml_value(value)


# isolaw.toml


def _folder_of(source: str | Path) -> Path:
    """Return the folder whose ``isolaw.toml`` applies to a source: the source itself or the folder around it.

    >>> str(_folder_of("nowhere/runs/*/metrics.jsonl"))
    'nowhere/runs'
    """
    path = Path(source)
    folder = path if path.is_dir() else path.parent
    while glob.has_magic(str(folder)) and not folder.exists():
        folder = folder.parent
    return folder


def place(sources: Sequence[str]) -> tuple[Path, list[str]] | None:
    """Return the path of the file for these sources, and the files that it covers.

    Returns None if the sources share no folder.

    >>> place(["runs/a.csv", "runs/b.csv"])
    (PosixPath('runs/isolaw.toml'), ['a.csv', 'b.csv'])
    """
    paths = [Path(source) for source in sources]
    if any(source.startswith(ELSEWHERE) for source in sources):
        return None
    if len(paths) == 1 and paths[0].is_dir():
        return paths[0] / READING_FILE, []
    folders = {_folder_of(path) for path in paths}
    if len(folders) != 1 or any(path.parent not in folders or path.is_dir() for path in paths):
        return None
    return folders.pop() / READING_FILE, [path.name for path in paths]


def next_to(sources: Iterable[str | Path]) -> tuple[list[HowToRead], list[Path]]:
    """Return the distinct reading files next to these sources, and the links out of their folder, not read.

    Deeper files come last, so that the nearest file takes precedence for a log, in any order of the sources.
    Raises `InputError` for an invalid file.
    """
    paths = {_folder_of(source) / READING_FILE for source in sources}
    files = sorted((path for path in paths if path.is_file()), key=lambda path: (len(path.parts), path))
    links = [path for path in files if leads_out(path, path.parent)]
    read = [_read_reading_file(path) for path in files if path not in links]
    return [how for how in read if how is not None], links


def is_reading_file(path: Path) -> bool:
    """Return whether an ``isolaw.toml`` is a reading file, valid or not, rather than a sweep file."""
    try:
        return "sweep" not in read_toml(path)
    except InputError:
        return True


def _read_reading_file(path: Path) -> HowToRead | None:
    """Read a file, or return None if it is a sweep file with this name.

    Raises `SpecError` with all issues of the file.
    """
    data = read_toml(path)
    if "sweep" in data:
        return None
    name, formats = data.get("format", "auto"), ("auto", *CONTAINERS)
    issues: list[Issue] = []
    if isinstance(name, str) and name not in formats:
        accepted = ", ".join(formats)
        issues += [Issue("format", found=name, accepted=accepted, nearest=nearest(name, formats))]
    how = None
    try:
        how = parse_section(HowToRead, data, source=str(path))
    except SpecError as error:
        issues += error.issues
    if issues:
        raise located(SpecError(issues), path)
    return how
