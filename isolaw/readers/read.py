"""`read`: whatever holds recorded runs, as `Runs`: sweeps, tables, other frameworks' logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from isolaw.errors import DataError, InputError
from isolaw.readers.assignments import SPLIT, Setting, applying, parse
from isolaw.readers.load import columns_of
from isolaw.readers.logged import LoggedRun, assemble
from isolaw.readers.mapping import Metrics, read_mapping
from isolaw.readers.provenance import Account, of_logged, of_table, shared_notes
from isolaw.readers.raw import RawLog
from isolaw.readers.sources import Found, Search, accepted_formats, search
from isolaw.readers.table import Mapped, read_table
from isolaw.runs import Runs
from isolaw.store import SweepStore

# What is set for logs, and no column of a table.
_NOT_FOR_TABLES = ("percent", "framework", "logging_steps")


@dataclass
class Reading:
    """What was read: the runs, an account of each, and what was passed over."""

    runs: Runs
    accounts: list[Account]
    notes: list[str] = field(default_factory=list)


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
        in a wide table, the column that holds the rewards.
    columns, derive, constants
        for tables: our names → their columns, arithmetic on them, or one value
        (`isolaw.readers.table.Mapped`).
    mapping
        for tables: a file that says the same (`isolaw.readers.mapping`); the three above go before it.
    settings
        what a log does not say, or says wrongly: ``["n=16", "GLOB:seed=1"]`` or ``{"n": 16}``
        (`isolaw.readers.assignments`).
    format
        how logs are written (`isolaw.readers.containers.CONTAINERS`); ``auto`` finds out.
    group_by
        what makes one run of several logs: ``file``, ``directory`` or a key of their configuration.

    Raises
    ------
    DataError, StoreError, InputError
        nothing readable there, or not enough is known; the message says what was found, what is accepted
        and what to add.

    >>> read("examples/data/tan_rollout_n_base.csv", metric="holdout_acc_raw",
    ...      columns={"rollouts_per_problem": "rollout_n"}, constants={"problems_per_batch": 512},
    ...      derive={"compute": "prompts_seen*rollout_n"})
    <Runs: 4 runs, 4 configurations, 382 rows>
    """
    mapped = Mapped(columns or {}, derive or {}, constants or {})
    return survey(sources, metric, mapped, mapping, settings, format, group_by).runs


def survey(
    sources: Sequence[str | Path],
    metric: str | None = None,
    mapped: Mapped | None = None,
    mapping: str | Path | None = None,
    settings: Iterable[str] | Mapping[str, Any] | None = None,
    format: str = "auto",
    group_by: str | None = None,
) -> Reading:
    """Read recorded runs, with an account of each: what `isolaw read` prints. Arguments as in `read`."""
    if not sources:
        raise InputError("nothing to read: name a directory, a log or a table")
    mapped, metrics = _mapping(mapped or Mapped(), mapping)
    if (mapped or metrics) and format != "auto":
        raise InputError(f"--format {format}: a mapping is for tables, which are told apart by themselves")
    wanted = parse(settings)

    required = (set(mapped.columns.values()) | metrics.sources) - set(mapped.names)

    def has_columns(path: Path, head: bytes) -> bool:
        columns = set(columns_of(path, head))
        return bool(columns) and required <= columns

    everything = search(sources, format, has_columns if mapped or metrics else None)
    parts: list[Runs] = []
    accounts: list[Account] = []
    problems: list[str] = []
    heeded: set[Setting] = set()
    for found in everything.found:
        if found.container is None:
            try:
                part, used = _table_or_sweep(found, metric, mapped, metrics, wanted)
            except DataError as error:
                problems.append(str(error))
                continue
            heeded |= used
            parts.append(part)
            accounts += of_table(part, found)
    logged, wrong, used = _logged(everything, wanted, group_by)
    problems += wrong
    problems = problems or _unheeded(wanted, heeded | used, everything)
    if problems:
        raise DataError(_together(problems))
    if logged:
        new = [of_logged(run) for run in logged]
        accounts += new
        parts.append(
            Runs(
                pd.concat([run.table() for run in logged], ignore_index=True),
                {run.name: run.attributes for run in logged},
                source=" + ".join(str(source) for source in sources),
                notes=tuple(shared_notes(new)),
            )
        )
    notes = list(everything.notes)
    if everything.passed:
        notes.append(
            f"{everything.passed:,} of the files found are no logs; a configuration is read with its log"
        )
    return Reading(Runs.concat(parts), accounts, notes)


def _mapping(mapped: Mapped, file: str | Path | None) -> tuple[Mapped, Metrics]:
    if file is None:
        return mapped, Metrics()
    base, metrics = read_mapping(file)
    given = set(mapped.names)

    def under(own: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
        return {**{name: value for name, value in own.items() if name not in given}, **above}

    return (
        Mapped(
            under(base.columns, mapped.columns),
            under(base.derive, mapped.derive),
            under(base.constants, mapped.constants),
        ),
        metrics,
    )


def _table_or_sweep(
    found: Found, metric: str | None, mapped: Mapped, metrics: Metrics, wanted: Sequence[Setting]
) -> tuple[Runs, set[Setting]]:
    path = found.path
    if found.sweep:
        if mapped or metrics:
            raise DataError(f"{path}: a sweep's directory needs no column mapping")
        return SweepStore(path).collect(), set()
    if found.ours:
        wanted = []
    mine = applying(wanted, path.stem, [str(path)])
    extra = {name: own.value for name, own in mine.items() if name not in _NOT_FOR_TABLES}
    b, n, r = (extra.get(name) for name in SPLIT)
    if r and (b or n) and r % (b or n) == 0:
        extra.setdefault(SPLIT[0] if n else SPLIT[1], r // (n or b))
    extra.pop("rollouts_per_step", None)
    constants = {**mapped.constants, **extra}
    try:
        runs = read_table(path, Mapped(mapped.columns, mapped.derive, constants), metric, metrics)
    except DataError as error:
        if mapped or metrics or found.ours:
            raise
        raise DataError(
            f"{error}. It is no log of a known form either: accepted are {accepted_formats()}"
        ) from None
    return runs, set(mine.values())


def _logged(
    everything: Search, wanted: Sequence[Setting], group_by: str | None
) -> tuple[list[LoggedRun], list[str], set[Setting]]:
    problems: list[str] = []
    searched: set[str] = set()

    def logs() -> Iterator[RawLog]:
        for found in everything.found:
            try:
                for log in found.container.read(found.path) if found.container else ():
                    if not found.named:
                        searched.add(log.source)
                    yield log
            except DataError as error:
                problems.append(str(error))

    runs, more, heeded = assemble(logs(), wanted, group_by, searched)
    return runs, problems + more, heeded


def _unheeded(wanted: Sequence[Setting], heeded: set[Setting], everything: Search) -> list[str]:
    """A setting that no run heard is a mistake, as a glob that matches nothing."""
    names = [str(found.path) for found in everything.found]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return [
        f"{own}: "
        + (f"no run matches {own.glob!r}" if own.glob else "nothing here needs it")
        + f"; read: {shown}"
        for own in wanted
        if own not in heeded
    ]


def _together(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} problems\n" + "\n".join(f"  - {problem}" for problem in problems)
