"""`read`: recorded runs from sweeps, tables and other frameworks' logs, as `Runs`.

`survey` returns every log that it finds as a `Candidate`: what was read of it, and whether it can be fitted.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from isolaw.config.parsing import parse_section
from isolaw.errors import DataError, InputError, NoHistory, NotInstalled, StoreError
from isolaw.readers.assemble import assemble
from isolaw.readers.assignments import Assignment, Rule, applying, parse
from isolaw.readers.candidates import Candidate, Filter, Status, matching
from isolaw.readers.frames import SOURCE
from isolaw.readers.frameworks.base import Fact
from isolaw.readers.mapping import ColumnMapping, read_mapping
from isolaw.readers.name_patterns import NamePattern
from isolaw.readers.raw_log import RawLog
from isolaw.readers.reading import Reading
from isolaw.readers.settling import read_settings
from isolaw.readers.sources import Found, expected_formats, search
from isolaw.readers.tables import read_frame, read_table
from isolaw.runs import Runs, listed, plain
from isolaw.source import Source
from isolaw.store import SweepStore

# Assignments for logs that are no column of a table.
_NOT_FOR_TABLES = ("percent", "framework", "logging_steps")
_SHOWN = 8


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

    What else was found is in ``left_out`` of the result, with reasons, and a warning says so.

    Parameters
    ----------
    sources
        a sweep's directory (also one that is still running); tables (CSV, Parquet); logs of other
        frameworks: files, globs, directories that are searched. Or tables in memory: pandas, polars,
        pyarrow, Hugging Face datasets, and others that Arrow or the interchange protocol can read.
    metric
        in a wide table, the column of the rewards.
    columns, derive, constants
        for tables: our names or symbols (B_p, n, M, C) → their columns, arithmetic on them, or one value
        (`isolaw.readers.mapping.ColumnMapping`). A reward is a column, too: ``{"avg@4": "val_acc"}``.
    mapping
        for tables: a file with the same content (`isolaw.readers.mapping`); the three above override it.
    settings
        values that a log does not contain, or has wrong: ``["n=16", "GLOB:seed=1"]`` or ``{"n": 16}``
        (`isolaw.readers.assignments`).
    format
        how logs are written (`isolaw.readers.containers.CONTAINERS`); ``auto`` detects it.
    group_by
        what makes one run of several logs: ``file``, ``directory`` or a key of their configuration.
    only, exclude
        globs of runs or files: read only those that match, and none of those that match ``exclude``.
    name_pattern
        what the names of runs say, as ``"s{seed}-p{B_p}-n{n}-*"`` (`isolaw.readers.name_patterns`).
    settings_file
        a file of settings that ``isolaw read --write-settings`` drafted.

    Raises
    ------
    DataError, StoreError, InputError
        no run is ready: nothing readable was found, or something necessary is unknown; the message says what
        was found, what is expected and what to add.

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
            raise InputError(f"{name} is for files; found a {SOURCE}")
        whole = own.over(read_mapping(mapping)) if mapping is not None else own
        rules = parse(settings)
        if not paths and (unused := [rule for rule in rules if not rule.matches(SOURCE, [])]):
            raise InputError(f"{unused[0]}: no run matches {unused[0].glob!r}; found a {SOURCE}")
        whole = _with_settings(whole, applying(rules, SOURCE, []))
        parts += [read_frame(frame, whole, metric) for frame in frames]
    if paths or not parts:
        reading = survey(
            paths, metric, own, mapping, settings, format, group_by, only, exclude, name_pattern,
            settings_file,
        )  # fmt: skip
        parts.append(reading.runs)
        for text in reading.warnings:
            warnings.warn(text, stacklevel=2)
    runs = Runs.concat(parts)
    runs.left_out = tuple(own for part in parts for own in part.left_out)
    return runs


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
    """Return every log that is found, with its `Status`. Arguments as in `read`.

    One that cannot be used does not hinder the others. Raises `InputError` for arguments that cannot be: a
    source that does not exist, a setting that no run uses.
    """
    if not sources:
        raise InputError("nothing to read: name a directory, a log or a table")
    columns = columns or ColumnMapping()
    if mapping is not None:
        columns = columns.over(read_mapping(mapping))
    if columns and format != "auto":
        raise InputError(f"--format {format}: a mapping is for tables, whose format isolaw detects")
    rules: list[Rule] = [*(read_settings(settings_file) if settings_file is not None else ())]
    rules += [*parse(settings), *map(NamePattern, _texts(name_pattern))]
    wanted = Filter(_texts(only), _texts(exclude))
    found = search(sources, format, columns.required - set(columns.names) if columns else None)
    survey = _Survey(rules, wanted)
    for place in found.found:
        if not matching({str(place.path), place.path.name}, wanted.exclude):
            survey.add(place, metric, columns)
    reading = survey.close(group_by, " + ".join(str(source) for source in sources))
    if unused := [rule for rule in rules if rule not in survey.used]:
        raise DataError("\n  ".join(_unused(rule, found.found) for rule in unused))
    if not reading.candidates:
        raise DataError(f"no log matches; found: {listed([str(own.path) for own in found.found], _SHOWN)}")
    reading.notes = [*found.notes, *([passed] if (passed := found.passed_over()) else [])]
    reading.no_logs = found.no_logs
    return reading


class _Survey:
    """Collects what is read of each place where something was found."""

    def __init__(self, rules: Sequence[Rule], wanted: Filter) -> None:
        self.rules, self.wanted = rules, wanted
        self.logs: list[RawLog] = []
        self.candidates: list[Candidate] = []  # but those of logs
        self.tables: list[Runs] = []
        self.of_tables: dict[str, tuple[Candidate, pd.DataFrame]] = {}  # run → what was read of it, its rows
        self.used: set[Rule] = set()

    def add(self, found: Found, metric: str | None, columns: ColumnMapping) -> None:
        """Read one place; what cannot be read becomes a candidate that is left out."""
        path = str(found.path)
        try:
            if found.no_history:
                raise NoHistory(f"{path}: {found.no_history}")
            if found.container is None:
                part, used = _table_or_sweep(found, metric, columns, self.rules)
                self.used |= used
                self._add_runs(part, found)
                return
            for log in found.container.read(found.path):
                if self.wanted.keeps(log.run, [log.source]):
                    self.logs.append(log)
                else:
                    self._heed(log.run, [log.source])
        except (DataError, StoreError) as error:
            container = found.container.name if found.container else "sweep" if found.sweep else ""
            own = Candidate(path, found.framework, container, [path], _status(error, found))
            own.message = str(error).removeprefix(f"{path}: ")
            self._heed(path, [path])
            if self.wanted.keeps(path, [path]):
                self.candidates.append(own)

    def _heed(self, run: str, sources: list[str]) -> None:
        """Take the settings of a run that is left out as used."""
        self.used |= {rule for rule in self.rules if rule.assigned(run, sources)}

    def _add_runs(self, part: Runs, found: Found) -> None:
        """Add the runs of a table or a sweep; of one name there can be only one."""
        for own in _of_table(part, found):
            if not self.wanted.keeps(own.run, own.sources):
                continue
            before, points = self.of_tables.get(own.run, (None, None))
            rows = part.points[part.points["run_id"] == own.run].drop(columns="wall_s").reset_index(drop=True)
            if before is None:
                self.of_tables[own.run] = own, rows
            elif rows.equals(points):
                own.status, own.duplicate_of = Status.DUPLICATE, own.run
                own.message = "its values are those of a run in another source"
            else:
                for one in (before, own):
                    one.status, one.needs = Status.NEEDS, ["seed"]
                    one.message = (
                        "repeated (run, step): two sources have runs of this name, with other values"
                    )
            self.candidates.append(own)
        self.tables.append(part)

    def _ready_tables(self) -> list[Runs]:
        """The tables without the runs that are left out."""
        out, taken = [], set[str]()
        for part in self.tables:
            keep = [run for run in part.points["run_id"].unique() if run in self.of_tables]
            keep = [run for run in keep if self.of_tables[run][0].status is Status.READY and run not in taken]
            taken |= set(keep)
            if keep:
                out.append(part if len(keep) == len(part) else part.select(keep))
        return out

    def close(self, group_by: str | None, source: str) -> Reading:
        """Make runs of the logs, and return what was found."""
        runs, used = assemble(self.logs, self.rules, group_by)
        self.used |= used
        candidates = [run.candidate() for run in runs]
        ready = [run for run in runs if run.status is Status.READY]
        logged = None
        if ready:
            notes = tuple(_shared_notes([own for own in candidates if own.status is Status.READY]))
            table = pd.concat([run.table() for run in ready], ignore_index=True)
            logged = Runs(table, {run.name: run.attributes for run in ready}, source, notes)
        return Reading([*self.candidates, *candidates], self._ready_tables(), logged)


def _status(error: Exception, found: Found) -> Status:
    if isinstance(error, NoHistory):
        return Status.NO_HISTORY
    if isinstance(error, NotInstalled):
        return Status.NOT_INSTALLED
    return Status.DAMAGED if found.container or found.sweep else Status.UNKNOWN_FORMAT


def _texts(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _table_or_sweep(
    found: Found, metric: str | None, columns: ColumnMapping, rules: Sequence[Rule]
) -> tuple[Runs, set[Rule]]:
    path = found.path
    if found.sweep:
        if columns:
            raise DataError(f"{path}: a sweep's directory needs no column mapping")
        return SweepStore(path).collect(), set()
    own = {} if found.ours else applying(rules, path.stem, [str(path)])
    try:
        runs = read_table(path, _with_settings(columns, own), metric)
    except DataError as error:
        if columns or found.ours:
            raise
        raise DataError(f"{error}\n  It is no known log either: expected {expected_formats()}") from None
    return runs, {assignment.rule for assignment in own.values()}


def _with_settings(columns: ColumnMapping, own: Mapping[str, Assignment]) -> ColumnMapping:
    values = {name: a.value for name, a in own.items() if name not in _NOT_FOR_TABLES}
    return columns.model_copy(update={"constants": {**columns.constants, **values}})


def _unused(rule: Rule, sources: Sequence[Found]) -> str:
    """An assignment that no run uses is a mistake, as is a glob or pattern that matches nothing."""
    read = listed([str(found.path) for found in sources], 8)
    if isinstance(rule, Assignment):
        return f"{rule}: {f'no run matches {rule.glob!r}' if rule.glob else 'no run uses it'}; read: {read}"
    return f"{rule}: no run matches it; read: {read}"


def _of_table(runs: Runs, found: Found) -> list[Candidate]:
    """Return the runs of a table or a sweep."""
    framework, container = ("isolaw", "sweep") if found.sweep else ("", "table")
    counts = runs.points.groupby(["run_id", "eval_set", "metric"]).size()
    ends = runs.points.groupby("run_id")[["step", "compute"]].agg(["min", "max"])
    out = []
    for run_id, row in runs.table().iterrows():
        facts = {str(k): Fact(plain(v), f"in the {container}") for k, v in row.items() if v == v}
        batch = facts["problems_per_batch"].value * facts["rollouts_per_problem"].value
        facts["rollouts_per_step"] = Fact(batch, "B_p · n")
        metrics: dict[str, dict[str, int]] = {}
        for (eval_set, metric), size in counts.loc[run_id].items():
            metrics.setdefault(str(eval_set), {})[str(metric)] = int(size)
        first, last, least, most = (int(end) for end in ends.loc[run_id])
        out.append(
            Candidate(
                str(run_id), framework, container, [str(found.path)], facts=facts, metrics=metrics,
                steps=(first, last), compute=(least, most),
            )
        )  # fmt: skip
    return out


def _shared_notes(ready: Sequence[Candidate]) -> list[str]:
    """Return the notes of all runs, each once, with the runs it is about."""
    about: dict[str, list[str]] = {}
    for own in ready:
        for note in own.notes:
            about.setdefault(note, []).append(own.run)
    every = f" (all {len(ready)} runs)" if len(ready) > 1 else ""
    return [
        f"{note}{every}" if len(runs) >= len(ready) else f"{listed(runs, 4)}: {note}"
        for note, runs in about.items()
    ]
