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

>>> options = HowToRead.of(set=["n=16", "*seed1*:seed=1"], columns={"C": "samples"})
>>> options.options()
['--column', 'compute=samples', '--set', 'n=16', '--set', '*seed1*:seed=1']
>>> options.keywords()
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
from typing import Annotated, Any, Literal

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
from isolaw.documents.validation import parse_section, with_lines
from isolaw.errors import InputError, Issue, SpecError, Spelled, nearest, shown
from isolaw.files import leads_out
from isolaw.metrics import is_accuracy
from isolaw.readers.containers import CONTAINERS
from isolaw.readers.hub import ELSEWHERE
from isolaw.readers.name_patterns import NamePattern
from isolaw.readers.names import ALIASES, NAME_PATTERN, SYMBOL, settable, value_of
from isolaw.runs import full_names

READING_FILE = "isolaw.toml"
_MAX_ITEMS, _MAX_PATTERNS = 1_000, 20  # items of a list: each is compared with the name of each run
_SETTING_FORM = re.compile(r"(?s)(?:(?P<glob>.*?):)?(?P<name>[A-Za-z_][\w.-]*)=(?P<value>.*)")


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
        return not self.glob or _any_match([run, PurePath(run).name, *sources], [self.glob])

    def __str__(self) -> str:
        return f"{self.file or '--set'} {shown(_setting_word(self.glob, self.name, self.value), str)}"


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


def _check_plain(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str | np.generic):
        raise ValueError("a text, a number, true or false")
    return value


class HowToRead(BaseModel):
    """How to read a source: which of its runs, as what, and the values that it lacks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    files: list[str] = Field(default_factory=list, max_length=_MAX_ITEMS)
    format: str = "auto"
    group_by: Literal["file", "directory"] | None = None
    only: list[str] = Field(default_factory=list, max_length=_MAX_ITEMS)
    name_pattern: list[str] = Field(default_factory=list, max_length=_MAX_PATTERNS)
    metric: str | None = None
    # Glob, or "" for all runs → our name → value.
    set: dict[str, dict[str, Annotated[Any, BeforeValidator(_check_plain)]]] = Field(default_factory=dict)
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
        options = parse_section(cls, {name: value for name, value in keywords.items() if value is not None})
        if repeated := [name for name in options.row_values if name in options.columns]:
            raise InputError(f"{repeated[0]} is given twice; expected a column or a value")
        return options

    def but(self, **changes: Any) -> HowToRead:
        """Return the value with other keys, whose settings are `settable`."""
        data = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**data, **changes}, context={"source": self._file, "checked": True})

    @model_validator(mode="before")
    @classmethod
    def _normalized(cls, data: Any) -> Any:
        """Replace symbols by names, move reward columns (``{"avg@4": "val_acc"}``) to the metrics."""
        normalized = dict(data)
        for name in ("only", "name_pattern"):
            entries = normalized.get(name)
            if isinstance(entries, str | Iterable) and not isinstance(entries, Mapping):
                normalized[name] = [entries] if isinstance(entries, str) else list(entries)
        if isinstance(columns := normalized.get("columns"), Mapping):
            columns = full_names(columns, ALIASES)
            rewards = {
                name: column for name, column in columns.items() if name == "reward" or is_accuracy(name)
            }
            normalized["columns"] = {name: column for name, column in columns.items() if name not in rewards}
            if isinstance(normalized.get("metrics", {}), Mapping):
                normalized["metrics"] = {**rewards, **normalized.get("metrics", {})}
        if isinstance(entries := normalized.get("set"), Iterable) and not isinstance(entries, str):
            normalized["set"] = _settings_by_glob(entries)
        return normalized

    @model_validator(mode="after")
    def _with_settings(self, info: ValidationInfo) -> HowToRead:
        context = info.context or {}
        self._file = file = context.get("source", "")
        prefix = f"{file}: set" if file else "--set"
        setting_of_key: dict[tuple[str, str], Assignment] = {}
        for glob_, glob_values in self.set.items():
            for name, value in glob_values.items():
                spelling = f".{name}" if file else f" {shown(_setting_word(glob_, name, value))}"
                spelling = prefix + spelling
                full_name = name if context.get("checked") else settable(name, spelling)
                setting = Assignment(full_name, value_of(full_name, str(value), spelling), glob_, file)
                previous = setting_of_key.setdefault((full_name, glob_), setting)
                if previous.value != setting.value:
                    values = f"found {shown(previous.value)} and {shown(setting.value)}"
                    raise InputError(f"{spelling}: {values} under two names of {full_name}; expected one")
        self._assignments = tuple(setting_of_key.values())
        self.set.clear()
        for setting in self._assignments:
            self.set.setdefault(setting.glob, {})[setting.name] = setting.value
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
    def row_values(self) -> dict[str, Any]:
        """The values that are set for all runs or rows."""
        return self.set.get("", {})

    @property
    def names_columns(self) -> bool:
        """Whether it names columns of a table."""
        return bool(self.columns or self.metrics)

    @property
    def column_names(self) -> list[str]:
        """The names in the data model that a table gets from it, without metrics."""
        return [*self.columns, *(name for name in self.row_values if name not in self.columns)]

    @property
    def expressions(self) -> list[str]:
        """The columns, or arithmetic on columns, that it names."""
        return [*self.columns.values(), *(metric.column for metric in self.metrics.values())]

    # Its runs

    def covers(self, paths: Iterable[str | Path]) -> bool:
        """Return whether it applies to all of these sources: a file applies to its folder."""
        if not self._file:
            return True
        folder = Path(self._file).parent
        for path in map(Path, paths):
            if not path.is_relative_to(folder) or ".." in path.relative_to(folder).parts:
                return False  # ``../b`` starts with ``.`` as a text, but is not inside it
            if self.files and not _any_match([path.name], self.files) and path.name not in self.files:
                return False
        return True

    def applies_to(self, source: str | Path) -> bool:
        """Return whether a file covers a source, or files in a source that is a folder or a glob."""
        folder = _folder_of(source)
        return folder == Path(self._file).parent and (folder == Path(source) or self.covers([source]))

    def _spellings(self, sources: Iterable[str | Path]) -> list[str]:
        """Return the spellings of sources that globs can match.

        The spellings are as given and, for a file, relative to its folder, and with the folder's name.
        Otherwise ``a/n8*`` would match for the source ``a``, but not for ``.`` or an absolute path.
        """
        folder, spellings = Path(self._file).parent, [str(source) for source in sources]
        for source in map(Path, tuple(spellings) if self._file else ()):
            if source.is_relative_to(folder):
                relative_path = source.relative_to(folder)
                spellings += [str(relative_path), str(folder.resolve().name / relative_path)]
        return spellings

    def settings_for(self, run: str, sources: Collection[str]) -> list[Assignment]:
        """Return the values for the run with this name, which was read from these files."""
        if not self.covers(sources):
            return []
        spellings = self._spellings(sources)
        settings = [setting for setting in self._assignments if setting.matches(run, spellings)]
        for pattern in self._patterns:
            values = pattern.read(run, spellings)
            settings += [Assignment(name, value, "", self._file, pattern) for name, value in values.items()]
        return settings

    def keeps(self, run: str, sources: Collection[str]) -> bool:
        """Return whether to keep the run with this name from these files.

        It matches one of the globs, if there are any, and none that begins with ``!``.
        """
        if not self.covers(sources):
            return True
        spellings = self._spellings(sources)
        names = {run, PurePath(run).name, *spellings, *(PurePath(source).name for source in spellings)}
        kept_globs, excluded_globs = _split_globs(self.only)
        return (not kept_globs or _any_match(names, kept_globs)) and not _any_match(names, excluded_globs)

    def excludes(self, path: Path) -> bool:
        """Return whether to skip a file without reading it."""
        excluded_globs = _split_globs(self.only)[1]
        return (
            bool(excluded_globs)
            and self.covers([path])
            and _any_match([path.name, *self._spellings([path])], excluded_globs)
        )

    # Of a file, next to a call

    def overridden_by(self, call: HowToRead) -> HowToRead:
        """Return a file's value with what a call or command says in place of the same keys."""
        call_globs = _split_globs(call.only)
        values = {name: value for name, value in self.row_values.items() if name not in call.columns}
        columns = {name: text for name, text in self.columns.items() if name not in call.row_values}
        return self.but(
            **call._used_keys(),
            only=[text for text in self.only if not call_globs[text[:1] == "!"]],
            name_pattern=[] if call.name_pattern else self.name_pattern,
            set={**self.set, "": values},
            columns={**columns, **call.columns},
            metrics={**self.metrics, **call.metrics},
        )

    def used_note(self, call: HowToRead) -> str:
        """Return the note that a file was used, next to the options of a call."""
        precedence = "; those of this call take precedence" if call != HowToRead() else ""
        return f"isolaw reads with the options in {self._file}{precedence}"

    # Its other spellings. In options and keywords, values can be placeholders.

    def options(self) -> list[str]:
        """Return the options that say the same, as words."""
        columns = {**self.columns, **{name: metric.column for name, metric in self.metrics.items()}}
        pairs: list[tuple[str, str]]
        pairs = [("--column", word(SYMBOL.get(name, name), "=", text)) for name, text in columns.items()]
        pairs += [("--name-pattern", text) for text in self.name_pattern]
        pairs += [("--set", _setting_word(*setting)) for setting in self._settings()]
        pairs += [("--only", text) for text in self.only]
        pairs += [(f"--{key.replace('_', '-')}", value) for key, value in self._used_keys().items()]
        return [text for pair in pairs for text in pair]

    def keywords(self) -> list[str]:
        """Return the keywords that say the same in Python."""
        columns = {**self.columns, **{name: metric.column for name, metric in self.metrics.items()}}
        values = {f"{glob_}:{name}" if glob_ else name: value for glob_, name, value in self._settings()}
        keywords = []
        for key, mapping in (("columns", columns), ("set", values)):
            items = [f"{_python(SYMBOL.get(name, name))}: {_python(mapping[name])}" for name in mapping]
            keywords += [f"{key}={{{', '.join(items)}}}"] if items else []
        for key, texts in self._used_keys("name_pattern", "only").items():
            keywords.append(f"{key}={_python(texts[0] if len(texts) == 1 else texts)}")
        return keywords + [f"{key}={_python(value)}" for key, value in self._used_keys().items()]

    @property
    def spelling(self) -> Spelled:
        """The keywords, which are the options at the command line."""
        return Spelled(", ".join(self.keywords()), self.options())

    def toml(self) -> str:
        """Return the text of an ``isolaw.toml`` that says the same."""
        header = (
            "# How isolaw reads this. All commands find this file; options on the command line override it."
        )
        used_keys = self._used_keys("files", "format", "group_by", "only", "name_pattern", "metric")
        tables = {header: [f"{key} = {toml_value(value)}" for key, value in used_keys.items()]}
        for glob_, name, value in self._settings():
            title = f"[set.{toml_key(glob_)}]" if glob_ else "[set]"
            tables.setdefault(title, []).append(f"{toml_key(name)} = {toml_value(value)}")
        columns = {SYMBOL.get(name, name): text for name, text in self.columns.items()}
        tables["[columns]"] = [f"{toml_key(name)} = {toml_value(text)}" for name, text in columns.items()]
        metrics = {name: metric.model_dump(exclude_none=True) for name, metric in self.metrics.items()}
        tables["[metrics]"] = [f"{toml_key(name)} = {toml_value(value)}" for name, value in metrics.items()]
        used_tables = (title for title, lines in tables.items() if lines or title == header)
        return "\n\n".join("\n".join([title, *tables[title]]) for title in used_tables) + "\n"

    def _used_keys(self, *keys: str) -> dict[str, Any]:
        """Return those of the keys (by default, the keys with one value) that differ from their default."""
        values = {key: getattr(self, key) for key in keys or ("format", "group_by", "metric")}
        return {key: value for key, value in values.items() if value not in (None, [], "auto")}

    def _settings(self) -> list[tuple[str, str, Any]]:
        pairs = sorted(self.set.items(), key=lambda pair: pair[0] != "")
        return [(glob_, SYMBOL.get(name, name), values[name]) for glob_, values in pairs for name in values]


def _settings_by_glob(settings: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by glob: texts ``GLOB:NAME=VALUE``, a mapping with such names, or one with tables."""
    settings_of_glob: dict[str, Any] = {}
    if not isinstance(settings, Mapping):
        for text in settings:
            match = _SETTING_FORM.fullmatch(str(text).strip())
            if match is None or not match["value"].strip():
                expected = "NAME=VALUE, or GLOB:NAME=VALUE for matching runs"
                raise InputError(f"--set {shown(text)}: expected {expected}")
            settings_of_glob.setdefault(match["glob"] or "", {})[match["name"]] = match["value"].strip()
        return settings_of_glob
    for name, value in settings.items():
        if isinstance(value, Mapping):
            settings_of_glob.setdefault(name, {}).update(value)
        else:
            glob_, _, bare_name = str(name).rpartition(":")
            settings_of_glob.setdefault(glob_, {})[bare_name] = value
    return settings_of_glob


def _setting_word(glob_: str, name: str, value: object) -> Word:
    """Return the value of a ``--set`` option for the runs that match a glob, with its placeholders."""
    return word(glob_, ":", name, "=", value) if glob_ else word(name, "=", value)


def settings_of(
    option_sets: Iterable[HowToRead], run: str, sources: Collection[str]
) -> dict[str, Assignment]:
    """Return the assignments that apply to a run, by name.

    Options take precedence over the file of a folder. Within each of them, assignments with a glob come
    first, then values from the run's name, then assignments without a glob.
    """
    settings = [setting for options in option_sets for setting in options.settings_for(run, sources)]
    settings.sort(key=lambda setting: (not setting.file, 2 if setting.glob else 1 if setting.pattern else 0))
    return {setting.name: setting for setting in settings}


def _split_globs(only: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the globs of what is wanted, and of what is left out."""
    return [text for text in only if text[:1] != "!"], [text[1:] for text in only if text[:1] == "!"]


def _any_match(names: Iterable[str], globs: Sequence[str]) -> bool:
    """Return whether any glob matches any of the names."""
    return any(fnmatchcase(name, text) for name in names for text in globs)


def _python(value: Any) -> str:
    """Return a value as Python code; a placeholder stays as it is."""
    if isinstance(value, Placeholder):
        return value
    return repr(value) if not isinstance(value, str | list) else json.dumps(value, ensure_ascii=False)


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


def load_reading_files(sources: Iterable[str | Path]) -> tuple[list[HowToRead], list[Path]]:
    """Return the distinct reading files next to these sources, and the links out of their folder, not read.

    Deeper files come last, so that the nearest file takes precedence for a log, in any order of the sources.
    Raises `InputError` for an invalid file.
    """
    paths = {_folder_of(source) / READING_FILE for source in sources}
    files = sorted((path for path in paths if path.is_file()), key=lambda path: (len(path.parts), path))
    links = [path for path in files if leads_out(path, path.parent)]
    loaded = [_read_reading_file(path) for path in files if path not in links]
    return [options for options in loaded if options is not None], links


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
    options = None
    try:
        options = parse_section(HowToRead, data, source=str(path))
    except SpecError as error:
        issues += error.issues
    if issues:
        raise with_lines(SpecError(issues), path)
    return options
