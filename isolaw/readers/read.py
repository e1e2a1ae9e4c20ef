"""`read`: recorded runs from sweeps, tables and other frameworks' logs, as `Runs`.

`survey` also returns what was read of each run, and where each fact comes from: its `Provenance`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from isolaw.config.parsing import parse_section
from isolaw.errors import DataError, InputError
from isolaw.readers.assemble import LoggedRun, assemble
from isolaw.readers.assignments import Assignment, applying, parse
from isolaw.readers.frames import SOURCE
from isolaw.readers.frameworks.base import Fact
from isolaw.readers.mapping import ColumnMapping, read_mapping
from isolaw.readers.raw_log import RawLog
from isolaw.readers.sources import Found, expected_formats, search
from isolaw.readers.tables import read_frame, read_table
from isolaw.runs import Runs, listed, plain
from isolaw.source import Source
from isolaw.store import SweepStore

# Assignments for logs that are no column of a table.
_NOT_FOR_TABLES = ("percent", "framework", "logging_steps")


@dataclass
class Provenance:
    """What was read of one run."""

    run: str  # its id
    framework: str  # whose names the log uses; ``isolaw`` for a sweep, empty for a table
    container: str  # how it was written
    sources: list[str]  # the files
    facts: dict[str, Fact]  # B_p, n, rollouts per step, seed, on-policy and so on, each with its origin
    metrics: dict[str, dict[str, int]]  # evaluation set → metric → number of values
    steps: tuple[int, int]  # the first and the last
    compute: tuple[int, int]
    left_out: dict[str, int] = field(default_factory=dict)  # reason → number of values, records or names
    notes: list[str] = field(default_factory=list)  # what was assumed or changed

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


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
    *sources: Source,
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

    Raises
    ------
    DataError, StoreError, InputError
        nothing readable was found, or something necessary is unknown; the message says what was found, what
        is expected and what to add.

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
        whole = own.over(read_mapping(mapping)) if mapping is not None else own
        parts += [read_frame(frame, whole, metric) for frame in frames]
        if not paths and (settings or format != "auto" or group_by):
            name = "settings" if settings else "format" if format != "auto" else "group_by"
            raise InputError(f"{name} is for logs; for a {SOURCE} use columns, derive and constants")
    if paths or not parts:
        parts.append(survey(paths, metric, own, mapping, settings, format, group_by).runs)
    return Runs.concat(parts)


def survey(
    sources: Sequence[str | Path],
    metric: str | None = None,
    columns: ColumnMapping | None = None,
    mapping: str | Path | None = None,
    settings: Iterable[str] | Mapping[str, Any] | None = None,
    format: str = "auto",
    group_by: str | None = None,
) -> Reading:
    """Read recorded runs with their provenance, which `isolaw read` prints. Arguments as in `read`."""
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
                provenance += _of_table(part, found)
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
        new = [_of_logged(run) for run in logged]
        provenance += new
        parts.append(
            Runs(
                pd.concat([run.table() for run in logged], ignore_index=True),
                {run.name: run.attributes for run in logged},
                source=" + ".join(str(source) for source in sources),
                notes=tuple(_shared_notes(new)),
            )
        )
    passed = f"{result.passed:,} of the files found are no logs; a configuration is read with its log"
    notes = [*result.notes, *([passed] if result.passed else [])]
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
    try:
        mapping = columns.model_copy(update={"constants": {**columns.constants, **values}})
        runs = read_table(path, mapping, metric)
    except DataError as error:
        if columns or found.ours:
            raise
        raise DataError(f"{error}\n  It is no known log either: expected {expected_formats()}") from None
    return runs, set(own.values())


def _unused(assignments: Sequence[Assignment], used: set[Assignment], sources: Sequence[Found]) -> list[str]:
    """An assignment that no run uses is a mistake, as is a glob that matches nothing."""
    read = listed([str(found.path) for found in sources], 8)
    return [
        f"{own}: {f'no run matches {own.glob!r}' if own.glob else 'no run uses it'}; read: {read}"
        for own in assignments
        if own not in used
    ]


def _of_logged(run: LoggedRun) -> Provenance:
    """Return the provenance of a run read from logs."""
    metrics: dict[str, dict[str, int]] = {}
    for (eval_set, metric), curve in run.curves.of.items():
        metrics.setdefault(eval_set, {})[metric] = curve.step.size
    left_out = dict(run.curves.dropped)
    if run.curves.ignored:
        left_out["names that are no metric (timings and the like)"] = len(run.curves.ignored)
    first, last = run.curves.steps or (0, 0)
    batch = run.facts["rollouts_per_step"].value
    origin = run.framework.name, run.container, run.sources
    compute = first * batch, last * batch
    notes = [*run.notes, *run.curves.notes]
    return Provenance(run.name, *origin, run.facts, metrics, (first, last), compute, left_out, notes)


def _of_table(runs: Runs, found: Found) -> list[Provenance]:
    """Return the provenance of the runs of a table or a sweep."""
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
        origin = framework, container, [str(found.path)]
        out.append(Provenance(str(run_id), *origin, facts, metrics, (first, last), (least, most)))
    return out


def _shared_notes(provenance: Sequence[Provenance]) -> list[str]:
    """Return the notes of all runs, each once, with the runs it is about."""
    about: dict[str, list[str]] = {}
    for own in provenance:
        for note in own.notes:
            about.setdefault(note, []).append(own.run)
    every = f" (all {len(provenance)} runs)" if len(provenance) > 1 else ""
    return [
        f"{note}{every}" if len(runs) >= len(provenance) else f"{listed(runs, 4)}: {note}"
        for note, runs in about.items()
    ]
