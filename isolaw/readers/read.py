"""`read`: recorded runs from sweeps, tables and other frameworks' logs, as `Runs`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from isolaw.errors import DataError, InputError
from isolaw.readers.assemble import assemble
from isolaw.readers.assignments import SPLIT, Assignment, applying, parse
from isolaw.readers.mapping import ColumnMapping, read_mapping
from isolaw.readers.provenance import Provenance, of_logged, of_table, shared_notes
from isolaw.readers.raw_log import RawLog
from isolaw.readers.sources import Found, expected_formats, search
from isolaw.readers.tables import read_table
from isolaw.runs import Runs, listed
from isolaw.store import SweepStore

# Assignments for logs that are no column of a table.
_NOT_FOR_TABLES = ("percent", "framework", "logging_steps")


@dataclass
class Reading:
    """The runs, where each comes from, and notes.

    ``notes`` are about the search, ``table_notes`` about tables and sweeps; the notes of logged runs are in
    their provenance. ``runs.notes`` has them all but the search's.
    """

    runs: Runs
    provenance: list[Provenance]
    notes: list[str] = field(default_factory=list)
    table_notes: list[str] = field(default_factory=list)


def read(
    *sources: str | Path,
    metric: str | None = None,
    columns: Mapping[str, str] | None = None,
    derive: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
    mapping: str | Path | None = None,
    settings: Iterable[str] | Mapping[str, Any] | None = None,
    format: str = "auto",
    group_by: str | None = None,
) -> Runs:
    """Read recorded runs.

    Parameters
    ----------
    sources
        a sweep's directory (also one that is still running); tables (CSV, Parquet); logs of other
        frameworks: files, globs, directories that are searched.
    metric
        in a wide table, the column of the rewards.
    columns, derive, constants
        for tables: our names → their columns, arithmetic on them, or one value
        (`isolaw.readers.mapping.ColumnMapping`).
    mapping
        for tables: a file with the same content (`isolaw.readers.mapping`); the three above override it.
    settings
        values that a log does not contain, or has wrong: ``["n=16", "GLOB:seed=1"]`` or ``{"n": 16}``
        (`isolaw.readers.assignments`).
    format
        how logs are written (`isolaw.readers.containers.CONTAINERS`); ``auto`` detects it.
    group_by
        what makes one run of several logs: ``file``, ``directory`` or a key of their configuration.

    Raises
    ------
    DataError, StoreError, InputError
        nothing readable was found, or something necessary is unknown; the message says what was found, what
        is expected and what to add.

    >>> read("examples/data/tan_rollout_n_base.csv", metric="holdout_acc_raw",
    ...      columns={"rollouts_per_problem": "rollout_n"}, constants={"problems_per_batch": 512},
    ...      derive={"compute": "prompts_seen*rollout_n"})
    <Runs: 4 runs, 4 configurations, 382 rows>
    """
    own = ColumnMapping(columns or {}, derive or {}, constants or {})
    return survey(sources, metric, own, mapping, settings, format, group_by).runs


def survey(
    sources: Sequence[str | Path],
    metric: str | None = None,
    columns: ColumnMapping | None = None,
    mapping: str | Path | None = None,
    settings: Iterable[str] | Mapping[str, Any] | None = None,
    format: str = "auto",
    group_by: str | None = None,
) -> Reading:
    """Read recorded runs with their provenance: what `isolaw read` prints. Arguments as in `read`."""
    if not sources:
        raise InputError("nothing to read: name a directory, a log or a table")
    columns = columns or ColumnMapping()
    if mapping is not None:
        columns = columns.over(read_mapping(mapping))
    if columns and format != "auto":
        raise InputError(f"--format {format}: a mapping is for tables, whose format isolaw detects")
    assignments = parse(settings)
    result = search(sources, format, columns.required - set(columns.names) if columns else None)
    parts: list[Runs] = []
    provenance: list[Provenance] = []
    logs: list[RawLog] = []
    searched: set[str] = set()
    problems: list[str] = []
    used: set[Assignment] = set()
    for found in result.found:
        try:
            if found.container is None:
                part, applied = _table_or_sweep(found, metric, columns, assignments)
                used |= applied
                parts.append(part)
                provenance += of_table(part, found)
                continue
            for log in found.container.read(found.path):
                logs.append(log)
                if not found.named:
                    searched.add(log.source)
        except DataError as error:
            problems.append(str(error))
    logged, more, applied = assemble(logs, assignments, group_by, searched)
    problems += more
    used |= applied
    problems = problems or _unused(assignments, used, result.found)
    if problems:
        bullets = "\n".join(f"  - {problem}" for problem in problems)
        raise DataError(problems[0] if len(problems) == 1 else f"{len(problems)} problems\n{bullets}")
    table_notes = [note for part in parts for note in part.notes]
    if logged:
        new = [of_logged(run) for run in logged]
        provenance += new
        parts.append(
            Runs(
                pd.concat([run.table() for run in logged], ignore_index=True),
                {run.name: run.attributes for run in logged},
                source=" + ".join(str(source) for source in sources),
                notes=tuple(shared_notes(new)),
            )
        )
    notes = list(result.notes)
    if result.passed:
        notes.append(
            f"{result.passed:,} of the files found are no logs; a configuration is read with its log"
        )
    return Reading(Runs.concat(parts), provenance, notes, table_notes)


def _table_or_sweep(
    found: Found, metric: str | None, columns: ColumnMapping, assignments: Sequence[Assignment]
) -> tuple[Runs, set[Assignment]]:
    path = found.path
    if found.sweep:
        if columns:
            raise DataError(f"{path}: a sweep's directory needs no column mapping")
        return SweepStore(path).collect(), set()
    own = {} if found.ours else applying(assignments, path.stem, [str(path)])
    values = {name: a.value for name, a in own.items() if name not in _NOT_FOR_TABLES}
    b, n, r = (values.get(name) for name in SPLIT)
    if r and (b or n) and r % (b or n) == 0:
        values.setdefault(SPLIT[0] if n else SPLIT[1], r // (n or b))
    values.pop("rollouts_per_step", None)
    try:
        runs = read_table(path, replace(columns, constants={**columns.constants, **values}), metric)
    except DataError as error:
        if columns or found.ours:
            raise
        raise DataError(f"{error}. It is no known log either: expected {expected_formats()}") from None
    return runs, set(own.values())


def _unused(assignments: Sequence[Assignment], used: set[Assignment], sources: Sequence[Found]) -> list[str]:
    """An assignment that no run uses is a mistake, as is a glob that matches nothing."""
    read = listed([str(found.path) for found in sources], 8)
    return [
        f"{own}: {f'no run matches {own.glob!r}' if own.glob else 'no run uses it'}; read: {read}"
        for own in assignments
        if own not in used
    ]
