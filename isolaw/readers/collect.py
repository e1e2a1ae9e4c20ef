"""`Collector`: read every source that the search found. Unreadable sources do not stop the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.errors import DataError, NoHistory, NotInstalled, StoreError, Wording
from isolaw.readers.across_runs import one_identity
from isolaw.readers.assemble import assemble
from isolaw.readers.assignments import Assignment, Rule, applying
from isolaw.readers.found_logs import FoundLog, LogStatus
from isolaw.readers.frameworks.base import Fact
from isolaw.readers.mapping import ColumnMapping
from isolaw.readers.raw_log import RawLog
from isolaw.readers.reading import Reading, shared_notes
from isolaw.readers.reading_file import Filter, ReadingFile
from isolaw.readers.sources import Found, expected_formats
from isolaw.readers.table_needs import TableNeeds
from isolaw.readers.tables import read_table
from isolaw.runs import Runs, plain
from isolaw.store import SweepStore

# Appended to errors about files that are neither a table nor a known log.
_NO_LOG = "  The file is not a known log either; expected {}"
_OF_A_TABLE = 4  # values that each table needs: n, B_p, step or compute, and the reward
_NOT_FOR_TABLES = ("percent", "framework", "logging_steps")
_Rows = tuple[pd.DataFrame, NDArray[np.intp]]  # a table, and the positions of a run's rows in it


class Collector:
    """Collects the runs and logs of all sources that the search found."""

    def __init__(self, rules: Sequence[Rule], wanted: Filter, several: bool = False) -> None:
        self.rules, self.wanted = rules, wanted
        self.files = [rule for rule in rules if isinstance(rule, ReadingFile)]
        self.several = several  # whether there are several places; tables are then named by their files
        self.in_full: dict[str, str] = {}  # an incomplete table → its message with the command
        self.logs: list[RawLog] = []
        self.candidates: list[FoundLog] = []  # except candidates from logs
        self.tables: list[Runs] = []
        self.of_tables: dict[str, tuple[FoundLog, _Rows]] = {}  # run → its candidate and its rows
        self.used: set[Rule] = set()

    def add(self, found: Found, metric: str | None, columns: ColumnMapping) -> None:
        """Read one source. A source that cannot be read becomes a candidate that is left out."""
        path = str(found.path)
        rules = [rule for rule in self.rules if not isinstance(rule, ReadingFile) or rule.covers([path])]
        for file in self.files:
            if file.covers([path]) and not (found.ours or found.sweep):
                metric, columns = file.options.metric or metric, file.mapping  # the nearest file comes last
        try:
            if found.no_history:
                raise NoHistory(f"{path}: {found.no_history}")
            if found.container is None:
                self._add_table(found, metric, columns, rules)
                return
            for log in found.container.read(found.path):
                if self.wanted.keeps(log.run, [log.source]):
                    self.logs.append(log)
                else:
                    self._heed(log.run, [log.source])
        except TableNeeds as error:
            run = _name(found.path)
            nothing = len(error.needs) >= _OF_A_TABLE and not columns
            more = [_NO_LOG.format(expected_formats())] if nothing else []
            self.in_full[run] = Wording(str(error), *more)
            self._heed(run, [path])
            if self.wanted.keeps(run, [path]):
                needs, message = list(error.needs), error.short.removeprefix(f"{path}: ")
                own = FoundLog(run, "", "table", [path], LogStatus.NEEDS, needs, message)
                own.offered = error.needs
                self.candidates.append(own)
        except (DataError, StoreError) as error:
            container = found.container.name if found.container else "sweep" if found.sweep else ""
            own = FoundLog(path, found.framework, container, [path], _status(error, found))
            own.message = str(error).removeprefix(f"{path}: ")
            self._heed(path, [path])
            if self.wanted.keeps(path, [path]):
                self.candidates.append(own)

    def _heed(self, run: str, sources: list[str]) -> None:
        """Count the settings of an omitted run as used, so that isolaw does not report them as unused."""
        self.used |= {rule for rule in self.rules if rule.assigned(run, sources)}

    def _add_table(
        self, found: Found, metric: str | None, columns: ColumnMapping, rules: Sequence[Rule]
    ) -> None:
        """Read a table or a sweep."""
        path, name = found.path, _name(found.path)
        if found.sweep:
            if columns:
                raise DataError(f"{path}: a sweep's directory needs no column mapping")
            self._add_runs(SweepStore(path).collect(), found, {})
            return
        rules = () if found.ours else rules
        given = applying(rules, name, [str(path)])
        self.used |= {assignment.rule for assignment in given.values()}
        mapping = with_settings(columns, given)
        try:
            part = read_table(path, mapping, metric, rules, self.used, name if self.several else "")
        except DataError as error:
            if columns or found.ours or isinstance(error, TableNeeds):
                raise
            raise DataError(Wording(str(error), _NO_LOG.format(expected_formats()))) from None
        self._add_runs(part, found, given)

    def _add_runs(self, part: Runs, found: Found, given: Mapping[str, Assignment]) -> None:
        """Add the runs of a table or a sweep; no two runs can have the same name."""
        points = part.points.drop(columns="wall_s")
        of_run = points.groupby("run_id", sort=False).indices
        for own in _of_table(part, found, given):
            if not self.wanted.keeps(own.run, own.sources):
                continue
            rows = points, of_run[own.run]
            before, known = self.of_tables.get(own.run, (None, rows))
            if before is None:
                self.of_tables[own.run] = own, rows
            elif _taken(*rows).equals(_taken(*known)):
                own.status, own.duplicate_of = LogStatus.DUPLICATE, own.run
                own.message = "a run in another source has the same values"
            else:
                for one in (before, own):
                    one.status, one.needs = LogStatus.NEEDS, ["seed"]
                    one.message = (
                        f"repeated (run, step): two sources have a run called {own.run}, with different "
                        "values"
                    )
            self.candidates.append(own)
        self.tables.append(part)

    def _ask_for_seeds(self) -> None:
        """Leave out runs from several tables that share configuration, seed and attributes."""
        groups: dict[tuple[Any, ...], list[FoundLog]] = {}
        for own, _ in self.of_tables.values():
            if own.status is LogStatus.READY and own.container == "table" and not own.final:
                known = sorted((name, repr(fact.value)) for name, fact in own.facts.items())
                groups.setdefault((*known, *own.metrics), []).append(own)
        for group in groups.values():
            if len({own.sources[0] for own in group}) > 1:
                text = one_identity(group[0].facts, [own.run for own in group])
                for own in group:
                    own.status, own.needs, own.message = LogStatus.NEEDS, ["seed"], text

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

    def close(self, group_by: str | None, source: str) -> Reading:
        """Turn the logs into runs, and return everything that was found."""
        self._ask_for_seeds()
        runs, used = assemble(self.logs, self.rules, group_by)
        self.used |= used
        candidates = [run.candidate() for run in runs]
        if len(self.candidates) + len(candidates) == 1 and self.in_full:
            (own,) = self.candidates
            own.message, own.run = self.in_full[own.run], own.sources[0]
            own.message = own.message.removeprefix(f"{own.run}: ")
        ready = [run for run in runs if run.status is LogStatus.READY]
        logged = None
        if ready:
            notes = shared_notes([own for own in candidates if own.status is LogStatus.READY])
            table = pd.concat([run.table() for run in ready], ignore_index=True)
            logged = Runs(table, {run.name: run.attributes for run in ready}, source, notes)
        return Reading([*self.candidates, *candidates], self._ready_tables(), logged)


def _name(path: Path) -> str:
    """Return the name of a table's run, as for a log: its path without the suffix."""
    return str(path.with_suffix(""))


def _status(error: Exception, found: Found) -> LogStatus:
    if isinstance(error, NoHistory):
        return LogStatus.NO_HISTORY
    if isinstance(error, NotInstalled):
        return LogStatus.NOT_INSTALLED
    return LogStatus.DAMAGED if found.container or found.sweep else LogStatus.UNKNOWN_FORMAT


def with_settings(columns: ColumnMapping, own: Mapping[str, Assignment]) -> ColumnMapping:
    """Return the mapping of a table's columns, with the user's settings added as constants."""
    values = {name: a.value for name, a in own.items() if name not in _NOT_FOR_TABLES}
    return columns.model_copy(update={"constants": {**columns.constants, **values}})


def _taken(table: pd.DataFrame, rows: NDArray[np.intp]) -> pd.DataFrame:
    return table.iloc[rows].reset_index(drop=True)


def _of_table(runs: Runs, found: Found, given: Mapping[str, Assignment]) -> list[FoundLog]:
    """Return the runs of a table or a sweep. ``given`` contains the user's settings for all of them."""
    origins = {**runs.origins, **{name: own.origin for name, own in given.items()}}
    framework, container = ("isolaw", "sweep") if found.sweep else ("", "table")
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
                str(run_id), framework, container, [str(found.path)], facts=facts, metrics=metrics,
                steps=(first, last), compute=(least, most), final=found.sweep or found.ours,
            )
        )  # fmt: skip
    return out
