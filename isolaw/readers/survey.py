"""`survey`: find and read every log, table and sweep in the sources, with how each of them can be fitted.

A source that cannot be read does not stop the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.arguments import check_path
from isolaw.errors import DataError, InputError, NoHistory, NotInstalled, StoreError, Wording
from isolaw.files import natural
from isolaw.readers import limits
from isolaw.readers.assemble import assemble, indistinct_runs
from isolaw.readers.found_logs import FoundLog, LogStatus, grouped
from isolaw.readers.frameworks.base import Fact
from isolaw.readers.how_to_read import Assignment, HowToRead, Rule, load_reading_files, settings_of
from isolaw.readers.hub import local
from isolaw.readers.raw_log import RawLog
from isolaw.readers.reading import Reading, shared_notes
from isolaw.readers.sources import LogSource, expected_formats, search
from isolaw.readers.table_columns import TableNeeds
from isolaw.readers.tables import read_table
from isolaw.runs import Runs, listed, plain
from isolaw.store import SweepStore

# Appended to errors about files that are neither a table nor a known log.
_NO_LOG = "  The file is not a known log either; expected {}"
_TABLE_NEEDS = 4  # values that each table needs: n, B_p, step or compute, and the reward
_NOT_FOR_TABLES = ("percent", "framework", "logging_steps")
_SHOWN = 8
_RunRows = tuple[pd.DataFrame, NDArray[np.intp]]  # a table, and the positions of a run's rows in it


def survey(sources: Sequence[str | Path], options: HowToRead | None = None) -> Reading:
    """Return every log in the sources, with its `LogStatus`.

    ``call`` takes precedence over ``isolaw.toml`` next to a source. Raises `DataError` for a source that does
    not exist or a setting that no run uses.
    """
    if not sources:
        raise InputError("found no source; expected a directory, a log or a table")
    for source in sources:
        check_path("source", source)
    options, paths = options or HowToRead(), [local(source) for source in sources]
    reading_files, skipped_links = load_reading_files(paths)
    files = [file.overridden_by(options) for file in reading_files]
    result = search(paths, [_search_options(path, options, files) for path in paths])
    collector = _Collector(options, files, len(result.sources) > 1)
    for log_source in result.sources:
        if not any(options.excludes(log_source.path) for options in collector.option_sets):
            collector.add(log_source)
    reading = collector.reading(" + ".join(map(str, sources)))
    searched = listed([str(log_source.path) for log_source in result.sources], _SHOWN)
    if unused_rules := [rule for rule in options.rules if rule not in collector.used_rules]:
        problem, *more = (f"{rule}: {_unused_reason(rule)}; read: {searched}" for rule in unused_rules)
        raise DataError(Wording(problem, *(f"  {text}" for text in more)))
    if not reading.candidates:
        raise DataError(f"no log matches; found: {searched}")
    reading.read_as = [file.used_note(options) for file in reading_files]
    pairs = zip(sources, paths, strict=True)
    fetch_notes = [f"{name}: isolaw read it from {path}" for name, path in pairs if name != path]
    search_notes = result.notes_for([Path(file.file) for file in reading_files])
    reading.notes = [*fetch_notes, *reading.read_as, *search_notes, *_short_runs(reading.ready)]
    reading.notes += [
        f"isolaw did not read {path}: it is a link that leads out of its folder"
        for path in skipped_links
        if not any(str(path) in note for note in result.notes)
    ]
    reading.no_logs = result.skipped_paths
    reading.sources = tuple(map(str, sources))
    return reading


def _short_runs(ready: Sequence[FoundLog]) -> Iterator[str]:
    """Yield a note for each configuration with logs that ended before half the compute of another."""
    for logs in grouped(
        ready, lambda log: str({name: log.facts[name].value for name in sorted(log.facts) if name != "seed"})
    ).values():
        ends = {log.run: log.compute[1] for log in logs if log.compute and not log.final}
        most = max(ends.values(), default=0)
        if short := [f"{run} (C = {end:,})" for run, end in ends.items() if 2 * end < most]:
            yield f"{listed(short, _SHOWN)} ended before half of the {most:,} rollouts of the configuration"


def _search_options(source: str | Path, options: HowToRead, files: Sequence[HowToRead]) -> HowToRead:
    """Return how to search a source: its format and, if columns are named, the columns of a table."""
    key, columns = "format", options
    for file in [file for file in files if file.applies_to(source)][:1]:
        if file.format != options.format:
            key = f"{file.file}: format"
        if not (file.files and Path(source).is_dir()):  # else other files are no such tables
            columns = file
        options = file
    if columns.names_columns and options.format != "auto":
        of_file = f" of {columns.file}" if columns.file and not key.startswith(columns.file) else ""
        raise InputError(
            f"{key}: found {options.format!r} next to the columns{of_file}; expected only one of them, since "
            "columns are for tables, whose format isolaw detects"
        )
    return options if columns is options else options.but(columns=columns.columns, metrics=columns.metrics)


def _unused_reason(rule: Rule) -> str:
    """Return what is wrong with a rule that no run uses."""
    if not isinstance(rule, Assignment):
        return "no run matches it"
    return f"no run matches {rule.glob!r}" if rule.glob else "no run uses it"


class _Collector:
    """Collects the runs and logs of all sources that the search found."""

    def __init__(self, call: HowToRead, files: Sequence[HowToRead], has_several: bool) -> None:
        self.call, self.option_sets = call, (*files, call)
        self.has_several = has_several  # sources; tables are then named by their files
        self.logs: list[RawLog] = []
        self.candidates: list[FoundLog] = []  # except candidates from logs
        self.tables: list[Runs] = []
        self.table_runs: dict[str, tuple[FoundLog, _RunRows]] = {}  # run → its candidate and its rows
        self.trainings: set[str] = set()  # runs that one table contains without naming them
        self.used_rules: set[Rule] = set()

    def add(self, source: LogSource) -> None:
        """Read one source. A source that cannot be read becomes a candidate that is left out."""
        path = str(source.path)
        options = self.call
        for file in self.option_sets[:-1]:
            if file.covers([path]) and not (source.is_ours or source.is_sweep):
                options = file  # the nearest file comes last
        try:
            if source.no_history:
                raise NoHistory(f"{path}: {source.no_history}")
            if source.container is None:
                self._add_table(source, options)
                return
            for log in source.container.read(source.path):
                if self._selects(log.run, [log.source]):
                    self.logs.append(log)
        except TableNeeds as error:
            needs_all = len(error.needs) >= _TABLE_NEEDS and not options.names_columns
            hints = [_NO_LOG.format(expected_formats())] if needs_all else []
            text = Wording(str(error).removeprefix(f"{path}: "), *hints)
            needs, name = list(error.needs), path if not self.has_several else _run_name(source.path)
            table = FoundLog(name, "", "table", [path], LogStatus.NEEDS, needs, text, offered=error.needs)
            self._add_left_out(table)
        except (DataError, StoreError) as error:
            container = source.container.name if source.container else "sweep" if source.is_sweep else ""
            message = str(error).removeprefix(f"{path}: ")
            status = _status(error, source)
            self._add_left_out(FoundLog(path, source.framework, container, [path], status, [], message))

    def _selects(self, run: str, sources: list[str]) -> bool:
        """Return whether to keep a run. Settings of an omitted run count as used."""
        is_selected = all(options.keeps(run, sources) for options in self.option_sets)
        if not is_selected:
            self._mark_used(run, sources)
        return is_selected

    def _add_left_out(self, log: FoundLog) -> None:
        self._mark_used(log.run, log.sources)
        if self._selects(log.run, log.sources):
            self.candidates.append(log)

    def _mark_used(self, run: str, sources: list[str]) -> None:
        """Count the settings of a run that is left out as used, so that they are not reported as unused."""
        for options in self.option_sets:
            self.used_rules |= {setting.rule for setting in options.settings_for(run, sources)}

    def _add_table(self, source: LogSource, options: HowToRead) -> None:
        """Read a table or a sweep."""
        path, name = source.path, _run_name(source.path)
        if source.is_sweep:
            if options.names_columns:
                raise DataError(f"{path}: a sweep's directory needs no columns")
            self._add_runs(SweepStore(path).collect(), source, {})
            return
        option_sets = [each for each in self.option_sets if each.covers([str(path)]) and not source.is_ours]
        settings = settings_of(option_sets, name, [str(path)])
        self.used_rules |= {assignment.rule for assignment in settings.values()}
        options = with_values(options, settings)
        try:
            runs = read_table(path, options, option_sets, self.used_rules, name if self.has_several else "")
        except DataError as error:
            if options.names_columns or source.is_ours or isinstance(error, TableNeeds):
                raise
            raise DataError(Wording(str(error), _NO_LOG.format(expected_formats()))) from None
        self._add_runs(runs, source, settings)

    def _add_runs(self, runs: Runs, source: LogSource, settings: Mapping[str, Assignment]) -> None:
        """Add the runs of a table or a sweep; no two runs can have the same name."""
        points = runs.points.drop(columns="wall_s")
        rows_of_run = points.groupby("run_id", sort=False).indices
        if len(rows_of_run) > limits.MOST_LOGS and not source.is_sweep:
            limit = f"isolaw reads up to {limits.MOST_LOGS:,} of a table. Keep only the runs of one study"
            raise DataError(f"{source.path}: {len(rows_of_run):,} runs; {limit}")
        self.trainings |= set(rows_of_run) if "training" in runs.origins else set()
        for log in _logs_of_table(runs, source, settings):
            if not all(options.keeps(log.run, log.sources) for options in self.option_sets):
                continue
            run_rows = points, rows_of_run[log.run]
            previous, previous_rows = self.table_runs.get(log.run, (None, run_rows))
            if previous is None:
                self.table_runs[log.run] = log, run_rows
            elif _rows_of_run(*run_rows).equals(_rows_of_run(*previous_rows)):
                log.leave_out(LogStatus.DUPLICATE, "a run in another source has the same values")
                log.duplicate_of = log.run
            else:
                text = f"repeated (run, step): two sources have a run called {log.run}, with different values"
                for conflicting in (previous, log):
                    conflicting.leave_out(LogStatus.NEEDS, text, ["seed"])
            self.candidates.append(log)
        self.tables.append(runs)

    def _require_seeds(self) -> None:
        """Leave out runs from several tables that share configuration, seed and attributes."""
        logs_of_facts: dict[tuple[Any, ...], list[FoundLog]] = {}
        for log, _ in self.table_runs.values():
            if log.status is LogStatus.READY and log.container == "table" and not log.final:
                fact_values = sorted((name, repr(fact.value)) for name, fact in log.facts.items())
                logs_of_facts.setdefault((*fact_values, *log.metrics), []).append(log)
        for logs in (group for group in logs_of_facts.values() if len(group) > 1):
            if len({log.sources[0] for log in logs}) > 1 or all(log.run in self.trainings for log in logs):
                text = indistinct_runs(logs[0].facts, [log.run for log in logs])
                if _are_parts(logs):
                    text += ". If one continues the other, append its rows to the file of the other"
                for log in logs:
                    log.leave_out(LogStatus.NEEDS, text, ["seed"])

    def _ready_tables(self) -> list[Runs]:
        """Return the tables without runs that are left out."""
        ready_ids = {run for run, (log, _) in self.table_runs.items() if log.status is LogStatus.READY}
        ready_tables = []
        for runs in self.tables:
            ids = [run_id for run_id in runs.points["run_id"].unique() if run_id in ready_ids]
            ready_ids -= set(ids)  # a later table with the same run does not repeat it
            if ids:
                ready_tables.append(runs if len(ids) == len(runs) else runs.select(ids))
        return ready_tables

    def reading(self, source: str) -> Reading:
        """Turn the logs into runs, and return everything that was found."""
        self._require_seeds()
        runs, used_rules = assemble(self.logs, self.option_sets)
        self.used_rules |= used_rules
        candidates = [run.found_log() for run in runs]
        ready = [run for run in runs if run.status is LogStatus.READY]
        logged = None
        if ready:
            notes = shared_notes([run for run in candidates if run.status is LogStatus.READY])
            points = pd.concat([run.table() for run in ready], ignore_index=True)
            attributes_of_run = {
                run.run: run.attributes | ({"framework": run.framework} if run.framework else {})
                for run in ready
            }
            logged = Runs(points, attributes_of_run, source, notes)
        return Reading([*self.candidates, *candidates], self._ready_tables(), logged)


def _run_name(path: Path) -> str:
    """Return the name of a table's run, as for a log: its path without the suffix."""
    return str(path.with_suffix(""))


def _status(error: Exception, source: LogSource) -> LogStatus:
    if isinstance(error, NoHistory):
        return LogStatus.NO_HISTORY
    if isinstance(error, NotInstalled):
        return LogStatus.NOT_INSTALLED
    return LogStatus.DAMAGED if source.container or source.is_sweep else LogStatus.UNKNOWN_FORMAT


def _are_parts(logs: Sequence[FoundLog]) -> bool:
    """Return whether these can be parts of one run: each starts and ends later than the one before."""
    spans = sorted(log.steps for log in logs if log.steps)
    return all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(spans)) and len(spans) == len(logs)


def with_values(options: HowToRead, settings: Mapping[str, Assignment]) -> HowToRead:
    """Return how to read a table to whose rows these settings apply."""
    values = {name: setting.value for name, setting in settings.items() if name not in _NOT_FOR_TABLES}
    return options.but(set={"": values})


def _rows_of_run(table: pd.DataFrame, rows: NDArray[np.intp]) -> pd.DataFrame:
    return table.iloc[rows].reset_index(drop=True)


def _logs_of_table(runs: Runs, source: LogSource, settings: Mapping[str, Assignment]) -> list[FoundLog]:
    """Return the runs of a table or a sweep in natural order; the user's ``settings`` apply to all."""
    origins = {**runs.origins, **{name: setting.origin for name, setting in settings.items()}}
    framework, container = ("isolaw", "sweep") if source.is_sweep else ("", "table")
    value_counts = runs.points.groupby(["run_id", "eval_set", "metric"]).size()
    ranges = runs.points.groupby("run_id")[["step", "compute"]].agg(["min", "max"])
    logs = []
    for run_id, row in runs.table().iterrows():
        values = {str(name): plain(value) for name, value in row.items() if value == value}
        facts = {name: Fact(v, origins.get(name, f"in the {container}")) for name, v in values.items()}
        batch = facts["problems_per_batch"].value * facts["rollouts_per_problem"].value
        facts["rollouts_per_step"] = Fact(batch, "B_p · n")
        metrics: dict[str, dict[str, int]] = {}
        for (eval_set, metric), count in value_counts.loc[run_id].items():
            metrics.setdefault(str(eval_set), {})[str(metric)] = int(count)
        first, last, lowest, highest = (int(number) for number in ranges.loc[run_id])
        logs.append(
            FoundLog(
                str(run_id), framework, container, [str(source.path)], facts=facts, metrics=metrics,
                steps=(first, last), compute=(lowest, highest), final=source.is_sweep or source.is_ours,
            )
        )  # fmt: skip
    return sorted(logs, key=lambda log: natural(log.run))
