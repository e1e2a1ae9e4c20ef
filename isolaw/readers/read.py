"""`read`: recorded runs from sweeps, tables and other frameworks' logs, as `Runs`.

`survey` returns every log that it finds as a `FoundLog`, with its facts and whether it can be fitted.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from isolaw.arguments import checked
from isolaw.documents.validation import parse_section
from isolaw.errors import DataError, InputError, MessageLines, at_command_line, shown
from isolaw.readers.assignments import Assignment, Rule, applying, parse
from isolaw.readers.collect import Collector, with_settings
from isolaw.readers.frames import SOURCE
from isolaw.readers.hub import local
from isolaw.readers.mapping import ColumnMapping, read_mapping
from isolaw.readers.name_patterns import NamePattern
from isolaw.readers.reading import Reading
from isolaw.readers.reading_file import Filter, ReadingFile, is_reading_file, next_to
from isolaw.readers.settling import read_settings
from isolaw.readers.sources import Found, search
from isolaw.readers.tables import read_frame
from isolaw.runs import Runs, listed
from isolaw.source import ReadKeywords, Source

_SHOWN = 8


@checked
def read(
    *sources: Source,
    metric: str | None = None,
    columns: Mapping[str, str] | None = None,
    derive: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    mapping: str | Path | None = None,
    settings: Iterable[str] | Mapping[str, Any] | None = None,
    format: str = "auto",
    group_by: str | None = None,
    only: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    name_pattern: str | Iterable[str] = (),
    settings_file: str | Path | None = None,
) -> Runs:
    """Read the recorded runs that are ready to be fitted.

    All other logs are in ``left_out`` of the result, with reasons, and a warning lists them. ``isolaw.toml``
    next to a source can also contain keywords (`isolaw.readers.reading_file`); keywords of the call take
    precedence.

    Parameters
    ----------
    sources
        sweep directories, including those of running sweeps; tables (CSV, Parquet); and logs of other
        frameworks, as files, globs or directories to search. All of them can be in a data set on the Hugging
        Face Hub: ``hf://datasets/OWNER/NAME[@REVISION][/PATH]``. Tables in memory also work: pandas, polars,
        pyarrow, Hugging Face data sets, and others that support Arrow or the interchange protocol.
    metric
        the column of the rewards in a wide table.
    columns, derive, constants
        for tables: isolaw's names or symbols (B_p, n, M, C) mapped to columns, to arithmetic on columns, or
        to one value (`isolaw.readers.mapping.ColumnMapping`). Rewards are columns: ``{"avg@4": "val_acc"}``.
    mapping
        for tables: a file with the same content, as in earlier versions; replaced by ``isolaw.toml``.
    settings
        values that a log lacks or has wrong: ``["n=16", "GLOB:seed=1"]`` or ``{"n": 16}``
        (`isolaw.readers.assignments`).
    format
        the format of the logs (`isolaw.readers.containers.CONTAINERS`); ``auto`` detects it.
    group_by
        the rule by which several logs form one run: ``file``, ``directory`` or a key of their configuration.
    only, exclude
        globs for runs or files: read only those that match ``only``, and none that match ``exclude``.
    name_pattern
        pattern for values in run names, such as ``"s{seed}-p{B_p}-n{n}-*"`` (`isolaw.readers.name_patterns`).
    settings_file
        a file of settings, as in earlier versions; replaced by ``isolaw.toml``.

    Raises
    ------
    DataError, StoreError, InputError
        no run is ready: isolaw found nothing readable, or a required value is unknown. The message states the
        findings, the expected input and the values to add.

    >>> import pandas as pd
    >>> table = pd.read_csv("examples/data/tan_rollout_n_base.csv")
    >>> read(table, metric="holdout_acc_raw", columns={"n": "rollout_n"}, constants={"B_p": 512},
    ...      derive={"C": "prompts_seen*rollout_n"})
    <Runs: 4 runs, 4 configurations, 382 rows>
    """
    given = {"columns": columns or {}, "derive": derive or {}, "constants": constants or {}}
    own = parse_section(ColumnMapping, given)
    paths = [s if isinstance(s, str) else Path(s) for s in sources if isinstance(s, str | os.PathLike)]
    parts = [source for source in sources if isinstance(source, Runs)]
    frames = [source for source in sources if not isinstance(source, str | os.PathLike | Runs)]
    if frames:
        of_files = {
            "format": format != "auto", "group_by": group_by, "only": only, "exclude": exclude,
            "name_pattern": name_pattern, "settings_file": settings_file,
        }  # fmt: skip
        if not paths and (name := next((name for name, given in of_files.items() if given), None)):
            raise InputError(f"{name} applies to files; found a {SOURCE}")
        whole = own.over(read_mapping(mapping)) if mapping is not None else own
        rules = parse(settings)
        if not paths and (unused := [rule for rule in rules if not rule.matches(SOURCE, [])]):
            raise InputError(f"{unused[0]}: no run matches {unused[0].glob!r}; found a {SOURCE}")
        whole = with_settings(whole, applying(rules, SOURCE, []))
        parts += [read_frame(frame, whole, metric) for frame in frames]
    if paths or not parts:
        reading = survey(
            paths, metric, own, mapping, settings, format, group_by, only, exclude, name_pattern,
            settings_file,
        )  # fmt: skip
        part = reading.runs
        part.notes = (*reading.read_as, *part.notes)
        parts.append(part)
        for text in reading.warnings:
            warnings.warn(text, stacklevel=2)
    runs = Runs.concat(parts)
    runs.left_out = tuple(own for part in parts for own in part.left_out)
    return runs


def as_runs(source: Source, metric: str | None = None, **reading: Unpack[ReadKeywords]) -> Runs:
    """Return `Runs` unchanged, and anything else as `read` reads it.

    Raises `InputError` for keywords of `read` if ``source`` is already `Runs`.
    """
    if unknown := [name for name in reading if name not in ReadKeywords.__annotations__]:
        valid = ", ".join(ReadKeywords.__annotations__)
        raise TypeError(f"unexpected keyword {unknown[0]!r}; to read a table: {valid}")
    if not isinstance(source, Runs):
        return read(source, metric=metric, **reading)
    if reading:
        raise InputError(
            f"{next(iter(reading))}: found Runs, which are already read; pass this option to isolaw.read"
        )
    return source


def survey(
    sources: Sequence[str | Path],
    metric: str | None = None,
    columns: ColumnMapping | None = None,
    mapping: str | Path | None = None,
    settings: Iterable[str] | Mapping[str, Any] | None = None,
    format: str = "auto",
    group_by: str | None = None,
    only: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    name_pattern: str | Iterable[str] = (),
    settings_file: str | Path | None = None,
) -> Reading:
    """Return every log that is found, with its `LogStatus`. The arguments are those of `read`.

    A log that cannot be used does not stop the others. Raises `InputError` for invalid arguments, and
    `DataError` for a source that does not exist or a setting that no run uses.
    """
    if not sources:
        raise InputError("found no source; expected a directory, a log or a table")
    given_sources, sources = sources, [local(source) for source in sources]
    columns = columns or ColumnMapping()
    if mapping is not None:
        columns = columns.over(read_mapping(mapping))
    rules: list[Rule] = [*(read_settings(settings_file) if settings_file is not None else ())]
    rules += [*parse(settings), *map(NamePattern, _texts(name_pattern))]
    asked = {
        "format": format != "auto", "group_by": group_by, "only": only, "exclude": exclude,
        "name_pattern": name_pattern, "metric": metric,
    }  # fmt: skip
    given = [name for name, value in asked.items() if value]
    beside = next_to(sources)
    files = tuple(file.under(given, columns) for file in beside)
    wanted = Filter(_texts(only), _texts(exclude), files)
    how = {
        str(source): _how(source, columns, format, next((f for f in files if f.about(source)), None))
        for source in sources
    }
    found = search(sources, "auto", None, how)
    collector = Collector([*files, *rules], wanted, len(found.found) > 1)
    for place in found.found:
        if not wanted.excludes(place.path):
            collector.add(place, metric, columns)
    grouping = [file for file in files if file.options.group_by]
    ways = list(dict.fromkeys(filter(None, [group_by, *(file.options.group_by for file in grouping)])))
    if len(ways) > 1:
        where = listed([str(file.path) for file in files], _SHOWN)
        raise InputError(f"{where}: group_by: found {listed(ways, _SHOWN)}; expected one for all sources")
    if ways and not group_by:
        logs = [place.path for place in found.found if place.container]
        others = [str(path) for path in logs if not any(file.covers([path]) for file in grouping)]
        if others:  # otherwise the key would also group logs in folders that the file does not cover
            raise InputError(
                f"{grouping[0].path}: group_by: found {shown(ways[0])}, which does not cover "
                f"{listed(others, _SHOWN)}; expected one for all sources, "
                f"{'--group-by' if at_command_line.get() else 'group_by'}"
            )
    reading = collector.close(ways[0] if ways else None, " + ".join(map(str, given_sources)))
    if unused := [rule for rule in rules if rule not in collector.used]:
        first, *others = (_unused(rule, found.found) for rule in unused)
        raise DataError(MessageLines(first, *(f"  {text}" for text in others)))
    if not reading.candidates:
        raise DataError(f"no log matches; found: {listed([str(own.path) for own in found.found], _SHOWN)}")
    reading.read_as = [file.note(given, rules, columns) for file in beside]
    fetched = [
        f"{name}: isolaw read it from {path}"
        for name, path in zip(given_sources, sources, strict=True)
        if name != path
    ]
    reading.notes = [
        *fetched,
        *reading.read_as,
        *_unused_files(found.reading_files, [file.path for file in beside]),
        *found.notes,
        *([passed] if (passed := found.passed_over()) else []),
    ]
    reading.no_logs = found.no_logs
    reading.sources = tuple(map(str, given_sources))
    return reading


def _how(
    source: str | Path, columns: ColumnMapping, format: str, file: ReadingFile | None
) -> tuple[str, set[str] | None]:
    """Return how to search a source: the format of logs and, with a mapping, the columns of a table."""
    key = "--format" if at_command_line.get() else "format"
    if file is not None:
        if format == "auto" and file.options.format != "auto":
            format, key = file.options.format, f"{file.path}: format"
        if not (file.options.files and Path(source).is_dir()):  # else other files are no such tables
            columns = file.mapping
    if columns and format != "auto":
        where = f" of {columns.file}" if columns.file and not key.startswith(columns.file) else ""
        raise InputError(
            f"{key}: found {shown(format)} next to the column mapping{where}; expected only one of them, "
            "since a mapping is for tables, whose format isolaw detects"
        )
    return format, columns.required - set(columns.names) if columns else None


def _unused_files(paths: Sequence[Path], used: Sequence[Path]) -> list[str]:
    """Return a note for each reading file in a subfolder of a source, which isolaw does not use there."""
    known = {path.resolve() for path in used}
    return [
        f"isolaw ignores {path}: it applies only if {path.parent} is named as a source"
        for path in paths
        if path.resolve() not in known and is_reading_file(path)
    ]


def _texts(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _unused(rule: Rule, sources: Sequence[Found]) -> str:
    """Return the message for an assignment that no run uses, or a glob or pattern that matches nothing."""
    read = listed([str(found.path) for found in sources], 8)
    if isinstance(rule, Assignment):
        return f"{rule}: {f'no run matches {rule.glob!r}' if rule.glob else 'no run uses it'}; read: {read}"
    return f"{rule}: no run matches it; read: {read}"
