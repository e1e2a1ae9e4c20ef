"""`Collector`: reads each place where something was found; what cannot be read does not hinder the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from isolaw.errors import DataError, NoHistory, NotInstalled, StoreError
from isolaw.readers.assemble import assemble
from isolaw.readers.assignments import Assignment, Rule, applying
from isolaw.readers.found_logs import Filter, FoundLog, LogStatus
from isolaw.readers.frameworks.base import Fact
from isolaw.readers.mapping import ColumnMapping
from isolaw.readers.raw_log import RawLog
from isolaw.readers.reading import Reading, shared_notes
from isolaw.readers.sources import Found, expected_formats
from isolaw.readers.tables import read_table
from isolaw.runs import Runs, plain
from isolaw.store import SweepStore

# Assignments for logs that are no column of a table.
_NOT_FOR_TABLES = ("percent", "framework", "logging_steps")


class Collector:
    """Collects what is read of each place where something was found."""

    def __init__(self, rules: Sequence[Rule], wanted: Filter) -> None:
        self.rules, self.wanted = rules, wanted
        self.logs: list[RawLog] = []
        self.candidates: list[FoundLog] = []  # but those of logs
        self.tables: list[Runs] = []
        self.of_tables: dict[str, tuple[FoundLog, pd.DataFrame]] = {}  # run → what was read of it, its rows
        self.used: set[Rule] = set()

    def add(self, found: Found, metric: str | None, columns: ColumnMapping) -> None:
        """Read one place; what cannot be read becomes a candidate that is left out."""
        path = str(found.path)
        try:
            if found.no_history:
                raise NoHistory(f"{path}: {found.no_history}")
            if found.container is None:
                part = _table_or_sweep(found, metric, columns, self.rules, self.used)
                self._add_runs(part, found)
                return
            for log in found.container.read(found.path):
                if self.wanted.keeps(log.run, [log.source]):
                    self.logs.append(log)
                else:
                    self._heed(log.run, [log.source])
        except (DataError, StoreError) as error:
            container = found.container.name if found.container else "sweep" if found.sweep else ""
            own = FoundLog(path, found.framework, container, [path], _status(error, found))
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
                own.status, own.duplicate_of = LogStatus.DUPLICATE, own.run
                own.message = "its values are those of a run in another source"
            else:
                for one in (before, own):
                    one.status, one.needs = LogStatus.NEEDS, ["seed"]
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
            keep = [
                run for run in keep if self.of_tables[run][0].status is LogStatus.READY and run not in taken
            ]
            taken |= set(keep)
            if keep:
                out.append(part if len(keep) == len(part) else part.select(keep))
        return out

    def close(self, group_by: str | None, source: str) -> Reading:
        """Make runs of the logs, and return what was found."""
        runs, used = assemble(self.logs, self.rules, group_by)
        self.used |= used
        candidates = [run.candidate() for run in runs]
        ready = [run for run in runs if run.status is LogStatus.READY]
        logged = None
        if ready:
            notes = shared_notes([own for own in candidates if own.status is LogStatus.READY])
            table = pd.concat([run.table() for run in ready], ignore_index=True)
            logged = Runs(table, {run.name: run.attributes for run in ready}, source, notes)
        return Reading([*self.candidates, *candidates], self._ready_tables(), logged)


def _status(error: Exception, found: Found) -> LogStatus:
    if isinstance(error, NoHistory):
        return LogStatus.NO_HISTORY
    if isinstance(error, NotInstalled):
        return LogStatus.NOT_INSTALLED
    return LogStatus.DAMAGED if found.container or found.sweep else LogStatus.UNKNOWN_FORMAT


def _table_or_sweep(
    found: Found, metric: str | None, columns: ColumnMapping, rules: Sequence[Rule], used: set[Rule]
) -> Runs:
    path = found.path
    if found.sweep:
        if columns:
            raise DataError(f"{path}: a sweep's directory needs no column mapping")
        return SweepStore(path).collect()
    own = {} if found.ours else applying(rules, path.stem, [str(path)])
    used |= {assignment.rule for assignment in own.values()}
    try:
        return read_table(path, with_settings(columns, own), metric, () if found.ours else rules, used)
    except DataError as error:
        if columns or found.ours:
            raise
        raise DataError(f"{error}\n  It is no known log either: expected {expected_formats()}") from None


def with_settings(columns: ColumnMapping, own: Mapping[str, Assignment]) -> ColumnMapping:
    """Return the mapping of a table's columns with what the user sets as constants."""
    values = {name: a.value for name, a in own.items() if name not in _NOT_FOR_TABLES}
    return columns.model_copy(update={"constants": {**columns.constants, **values}})


def _of_table(runs: Runs, found: Found) -> list[FoundLog]:
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
            FoundLog(
                str(run_id), framework, container, [str(found.path)], facts=facts, metrics=metrics,
                steps=(first, last), compute=(least, most), final=found.sweep or found.ours,
            )
        )  # fmt: skip
    return out
