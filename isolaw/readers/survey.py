"""`survey`: find and read every log, table and sweep in the sources, with how each of them can be fitted.

A source that cannot be read does not stop the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.arguments import check_path
from isolaw.errors import DataError, InputError, NoHistory, NotInstalled, StoreError, Wording, joined
from isolaw.readers import frameworks, limits
from isolaw.readers.assemble import assemble, indistinct_runs
from isolaw.readers.found_logs import FoundLog, LogStatus
from isolaw.readers.frameworks.base import Fact
from isolaw.readers.how_to_read import Assignment, HowToRead, Rule, load_reading_files, settings_of
from isolaw.readers.hub import local
from isolaw.readers.raw_log import RawLog
from isolaw.readers.reading import Reading, shared_notes
from isolaw.readers.resolve import resolve
from isolaw.readers.sources import Place, expected_formats, search
from isolaw.readers.table_columns import TableNeeds
from isolaw.readers.tables import read_table
from isolaw.runs import Runs, listed, plain
from isolaw.store import SweepStore

# Appended to errors about files that are neither a table nor a known log.
_NO_LOG = "  The file is not a known log either; expected {}"
_OF_A_TABLE = 4  # values that each table needs: n, B_p, step or compute, and the reward
_NOT_FOR_TABLES = ("percent", "framework", "logging_steps")
_SHOWN = 8
_Rows = tuple[pd.DataFrame, NDArray[np.intp]]  # a table, and the positions of a run's rows in it


def survey(sources: Sequence[str | Path], how: HowToRead | None = None) -> Reading:
    """Return every log in the sources, with its `LogStatus`.

    ``how`` takes precedence over ``isolaw.toml`` next to a source. Raises `DataError` for a source that does
    not exist or a setting that no run uses.
    """
    if not sources:
        raise InputError("found no source; expected a directory, a log or a table")
    for source in sources:
        check_path("source", source)
    how, paths = how or HowToRead(), [local(source) for source in sources]
    beside, links = load_reading_files(paths)
    files = [file.overridden_by(how) for file in beside]
    there = search(paths, [_searched(path, how, files) for path in paths])
    collector = _Collector(how, files, len(there.places) > 1)
    for place in there.places:
        if not any(way.excludes(place.path) for way in collector.ways):
            collector.add(place)
    reading = collector.close(" + ".join(map(str, sources)))
    read = listed([str(place.path) for place in there.places], _SHOWN)
    if unused := [rule for rule in how.rules if rule not in collector.used]:
        first, *others = (f"{rule}: {_no_run(rule)}; read: {read}" for rule in unused)
        raise DataError(Wording(first, *(f"  {text}" for text in others)))
    if not reading.candidates:
        raise DataError(f"no log matches; found: {read}")
    reading.read_as = [file.used_note(how) for file in beside]
    fetched = [
        f"{name}: isolaw read it from {path}"
        for name, path in zip(sources, paths, strict=True)
        if name != path
    ]
    reading.notes = [*fetched, *reading.read_as, *there.notes_next_to([Path(file.file) for file in beside])]
    reading.notes += [
        f"isolaw did not read {path}: it is a link that leads out of its folder"
        for path in links
        if not any(str(path) in note for note in there.notes)
    ]
    reading.no_logs = there.no_logs
    reading.sources = tuple(map(str, sources))
    return reading


def _searched(source: str | Path, how: HowToRead, files: Sequence[HowToRead]) -> HowToRead:
    """Return how to search a source: its format and, if columns are named, the columns of a table."""
    key, columns = "format", how
    for file in [file for file in files if file.applies_to(source)][:1]:
        if file.format != how.format:
            key = f"{file.file}: format"
        if not (file.files and Path(source).is_dir()):  # else other files are no such tables
            columns = file
        how = file
    if columns.names_columns and how.format != "auto":
        where = f" of {columns.file}" if columns.file and not key.startswith(columns.file) else ""
        raise InputError(
            f"{key}: found {how.format!r} next to the columns{where}; expected only one of them, since "
            "columns are for tables, whose format isolaw detects"
        )
    return how if columns is how else how.but(columns=columns.columns, metrics=columns.metrics)


def _no_run(rule: Rule) -> str:
    """Return what is wrong with a rule that no run uses."""
    if not isinstance(rule, Assignment):
        return "no run matches it"
    return f"no run matches {rule.glob!r}" if rule.glob else "no run uses it"


class _Collector:
    """Collects the runs and logs of all sources that the search found."""

    def __init__(self, how: HowToRead, files: Sequence[HowToRead], several: bool) -> None:
        self.how, self.ways = how, (*files, how)
        self.several = several  # whether there are several places; tables are then named by their files
        self.logs: list[RawLog] = []
        self.candidates: list[FoundLog] = []  # except candidates from logs
        self.tables: list[Runs] = []
        self.of_tables: dict[str, tuple[FoundLog, _Rows]] = {}  # run → its candidate and its rows
        self.trainings: set[str] = set()  # runs that one table contains without naming them
        self.used: set[Rule] = set()

    def add(self, place: Place) -> None:
        """Read one source. A source that cannot be read becomes a candidate that is left out."""
        path = str(place.path)
        how = self.how
        for file in self.ways[:-1]:
            if file.covers([path]) and not (place.ours or place.sweep):
                how = file  # the nearest file comes last
        try:
            if place.config:
                self._add_configuration(place)
                return
            if place.no_history:
                raise NoHistory(f"{path}: {place.no_history}")
            if place.container is None:
                self._add_table(place, how)
                return
            for log in place.container.read(place.path):
                if self._keeps(log.run, [log.source]):
                    self.logs.append(log)
        except TableNeeds as error:
            nothing = len(error.needs) >= _OF_A_TABLE and not how.names_columns
            more = [_NO_LOG.format(expected_formats())] if nothing else []
            text = Wording(str(error).removeprefix(f"{path}: "), *more)
            needs, name = list(error.needs), path if not self.several else _name(place.path)
            table = FoundLog(name, "", "table", [path], LogStatus.NEEDS, needs, text)
            table.offered = error.needs
            self._leave_out(table)
        except (DataError, StoreError) as error:
            container = place.container.name if place.container else "sweep" if place.sweep else ""
            message = str(error).removeprefix(f"{path}: ")
            self._leave_out(
                FoundLog(path, place.framework, container, [path], _status(error, place), [], message)
            )

    def _keeps(self, run: str, sources: list[str]) -> bool:
        """Return whether to keep a run. Settings of an omitted run count as used."""
        kept = all(way.keeps(run, sources) for way in self.ways)
        if not kept:
            self._heed(run, sources)
        return kept

    def _leave_out(self, log: FoundLog) -> None:
        self._heed(log.run, log.sources)
        if self._keeps(log.run, log.sources):
            self.candidates.append(log)

    def _heed(self, run: str, sources: list[str]) -> None:
        """Count the settings of a run that is left out as used, so that they are not reported as unused."""
        self.used |= {one.rule for way in self.ways for one in way.settings_for(run, sources)}

    def _add_table(self, place: Place, how: HowToRead) -> None:
        """Read a table or a sweep."""
        path, name = place.path, _name(place.path)
        if place.sweep:
            if how.names_columns:
                raise DataError(f"{path}: a sweep's directory needs no columns")
            self._add_runs(SweepStore(path).collect(), place, {})
            return
        ways = () if place.ours else [way for way in self.ways if way.covers([str(path)])]
        given = settings_of(ways, name, [str(path)])
        self.used |= {assignment.rule for assignment in given.values()}
        how = with_values(how, given)
        try:
            part = read_table(path, how, ways, self.used, name if self.several else "")
        except DataError as error:
            if how.names_columns or place.ours or isinstance(error, TableNeeds):
                raise
            raise DataError(Wording(str(error), _NO_LOG.format(expected_formats()))) from None
        self._add_runs(part, place, given)

    def _add_configuration(self, place: Place) -> None:
        """Add what a configuration says, without the log of a run."""
        name, path = _name(place.path), str(place.path)
        framework = frameworks.named(place.framework)
        given = settings_of(self.ways, name, [path])
        self.used |= {one.rule for one in given.values()}
        resolved = resolve([RawLog(path, "", name, dict(place.config), place.path.name)], framework, given)
        message = "it is a configuration without a log"
        if resolved.problems:
            message += f": {joined('. ', resolved.problems)}"
        log = FoundLog(name, framework.name, "configuration", [path], LogStatus.NO_HISTORY, [], message)
        log.facts, log.notes = resolved.facts, resolved.notes
        self.candidates.append(log)

    def _add_runs(self, part: Runs, place: Place, given: Mapping[str, Assignment]) -> None:
        """Add the runs of a table or a sweep; no two runs can have the same name."""
        points = part.points.drop(columns="wall_s")
        of_run = points.groupby("run_id", sort=False).indices
        if len(of_run) > limits.MOST_LOGS and not place.sweep:
            most = f"isolaw reads up to {limits.MOST_LOGS:,} of a table. Keep only the runs of one study"
            raise DataError(f"{place.path}: {len(of_run):,} runs; {most}")
        self.trainings |= set(of_run) if "training" in part.origins else set()
        for run in _of_table(part, place, given):
            if not all(way.keeps(run.run, run.sources) for way in self.ways):
                continue
            rows = points, of_run[run.run]
            before, known = self.of_tables.get(run.run, (None, rows))
            if before is None:
                self.of_tables[run.run] = run, rows
            elif _taken(*rows).equals(_taken(*known)):
                run.leave_out(LogStatus.DUPLICATE, "a run in another source has the same values")
                run.duplicate_of = run.run
            else:
                text = f"repeated (run, step): two sources have a run called {run.run}, with different values"
                for one in (before, run):
                    one.leave_out(LogStatus.NEEDS, text, ["seed"])
            self.candidates.append(run)
        self.tables.append(part)

    def _ask_for_seeds(self) -> None:
        """Leave out runs from several tables that share configuration, seed and attributes."""
        groups: dict[tuple[Any, ...], list[FoundLog]] = {}
        for run, _ in self.of_tables.values():
            if run.status is LogStatus.READY and run.container == "table" and not run.final:
                known = sorted((name, repr(fact.value)) for name, fact in run.facts.items())
                groups.setdefault((*known, *run.metrics), []).append(run)
        for group in (members for members in groups.values() if len(members) > 1):
            if len({run.sources[0] for run in group}) > 1 or all(run.run in self.trainings for run in group):
                text = indistinct_runs(group[0].facts, [run.run for run in group])
                for run in group:
                    run.leave_out(LogStatus.NEEDS, text, ["seed"])

    def _ready_tables(self) -> list[Runs]:
        """Return the tables without runs that are left out."""
        out, taken = [], set[str]()
        for part in self.tables:
            keep = [run for run in part.points["run_id"].unique() if run in self.of_tables]
            keep = [
                run for run in keep if self.of_tables[run][0].status is LogStatus.READY and run not in taken
            ]
            taken |= set(keep)
            if keep:
                out.append(part if len(keep) == len(part) else part.select(keep))
        return out

    def close(self, source: str) -> Reading:
        """Turn the logs into runs, and return everything that was found."""
        self._ask_for_seeds()
        runs, used = assemble(self.logs, self.ways)
        self.used |= used
        candidates = [run.found_log() for run in runs]
        ready = [run for run in runs if run.status is LogStatus.READY]
        logged = None
        if ready:
            notes = shared_notes([run for run in candidates if run.status is LogStatus.READY])
            points = pd.concat([run.table() for run in ready], ignore_index=True)
            made = {
                run.run: run.attributes | ({"framework": run.framework} if run.framework else {})
                for run in ready
            }
            logged = Runs(points, made, source, notes)
        return Reading([*self.candidates, *candidates], self._ready_tables(), logged)


def _name(path: Path) -> str:
    """Return the name of a table's run, as for a log: its path without the suffix."""
    return str(path.with_suffix(""))


def _status(error: Exception, place: Place) -> LogStatus:
    if isinstance(error, NoHistory):
        return LogStatus.NO_HISTORY
    if isinstance(error, NotInstalled):
        return LogStatus.NOT_INSTALLED
    return LogStatus.DAMAGED if place.container or place.sweep else LogStatus.UNKNOWN_FORMAT


def with_values(how: HowToRead, given: Mapping[str, Assignment]) -> HowToRead:
    """Return how to read a table to whose rows these settings apply."""
    values = {name: one.value for name, one in given.items() if name not in _NOT_FOR_TABLES}
    return how.but(set={"": values})


def _taken(table: pd.DataFrame, rows: NDArray[np.intp]) -> pd.DataFrame:
    return table.iloc[rows].reset_index(drop=True)


def _of_table(runs: Runs, place: Place, given: Mapping[str, Assignment]) -> list[FoundLog]:
    """Return the runs of a table or a sweep. ``given`` contains the user's settings for all of them."""
    origins = {**runs.origins, **{name: one.origin for name, one in given.items()}}
    framework, container = ("isolaw", "sweep") if place.sweep else ("", "table")
    counts = runs.points.groupby(["run_id", "eval_set", "metric"]).size()
    ends = runs.points.groupby("run_id")[["step", "compute"]].agg(["min", "max"])
    out = []
    for run_id, row in runs.table().iterrows():
        known = {str(name): plain(value) for name, value in row.items() if value == value}
        facts = {name: Fact(v, origins.get(name, f"in the {container}")) for name, v in known.items()}
        batch = facts["problems_per_batch"].value * facts["rollouts_per_problem"].value
        facts["rollouts_per_step"] = Fact(batch, "B_p · n")
        metrics: dict[str, dict[str, int]] = {}
        for (eval_set, metric), size in counts.loc[run_id].items():
            metrics.setdefault(str(eval_set), {})[str(metric)] = int(size)
        first, last, least, most = (int(end) for end in ends.loc[run_id])
        out.append(
            FoundLog(
                str(run_id), framework, container, [str(place.path)], facts=facts, metrics=metrics,
                steps=(first, last), compute=(least, most), final=place.sweep or place.ours,
            )
        )  # fmt: skip
    return out
