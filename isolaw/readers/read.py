"""`read`: recorded runs from sweeps, tables and other frameworks' logs, as `Runs`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Unpack

from isolaw.arguments import checked
from isolaw.errors import InputError
from isolaw.readers.how_to_read import Assignment, HowToRead, settings_of
from isolaw.readers.survey import survey, with_values
from isolaw.readers.table_files import SOURCE
from isolaw.readers.tables import read_frame
from isolaw.runs import ReadKeywords, Runs, Source


@checked
def read(
    *sources: Source,
    metric: str | None = None,
    columns: Mapping[str, str] | None = None,
    set: Iterable[str] | Mapping[str, Any] | None = None,
    format: str = "auto",
    group_by: Literal["file", "directory"] | None = None,
    only: str | Iterable[str] = (),
    name_pattern: str | Iterable[str] = (),
) -> Runs:
    """Read the recorded runs that are ready to be fitted.

    All other logs are in ``left_out`` of the result, with reasons, and a warning lists them. ``isolaw.toml``
    next to a source can also contain keywords (`isolaw.readers.how_to_read`); keywords of the call take
    precedence.

    Parameters
    ----------
    sources
        sweep directories, including those of running sweeps; tables (CSV, Parquet); and logs of other
        frameworks, as files, globs or directories to search. All of them can be in a data set on the Hugging
        Face Hub: ``hf://datasets/OWNER/NAME[@REVISION][/PATH]``. Runs on W&B:
        ``wandb://ENTITY/PROJECT[/RUN_ID]``. Tables in memory also work: pandas, polars,
        pyarrow, Hugging Face data sets, and others that export Arrow's stream.
    metric
        the column of the rewards in a wide table.
    columns
        for tables: isolaw's names or symbols (B_p, n, M, C) mapped to columns, or to arithmetic on columns.
        Rewards are columns: ``{"avg@4": "val_acc"}``.
    set
        values that a log or a table lacks or has wrong: ``["n=16", "GLOB:seed=1"]`` or ``{"n": 16}``.
    format
        the format of the logs (`isolaw.readers.containers.CONTAINERS`); ``auto`` detects it.
    group_by
        what several logs that form one run share: their ``file`` or their ``directory``.
    only
        globs for runs or files: read only those that match one, and none that match a glob after ``!``.
    name_pattern
        pattern for values in run names, such as ``"s{seed}-p{B_p}-n{n}-*"`` (`isolaw.readers.name_patterns`).

    Raises
    ------
    DataError, StoreError, InputError
        no run is ready: isolaw found nothing readable, or a required value is unknown. The message states the
        findings, the expected input and the values to add.

    >>> import pandas as pd
    >>> table = pd.read_csv("examples/data/tan_rollout_n_base.csv")
    >>> read(table, metric="holdout_acc_raw", columns={"n": "rollout_n", "C": "prompts_seen*rollout_n"},
    ...      set={"B_p": 512})
    <Runs: 4 runs, 4 configurations, 382 rows>
    """
    options = HowToRead.of(
        metric=metric, columns=columns, set=set, format=format, group_by=group_by, only=only,
        name_pattern=name_pattern,
    )  # fmt: skip
    files = [source for source in sources if isinstance(source, str | os.PathLike)]
    paths = [file if isinstance(file, str) else Path(file) for file in files]
    all_runs = [source for source in sources if isinstance(source, Runs)]
    frames = [source for source in sources if not isinstance(source, str | os.PathLike | Runs)]
    if frames:
        file_options = ("group_by", "only", "name_pattern", *(["format"] if format != "auto" else []))
        if not paths and (name := next((name for name in file_options if getattr(options, name)), None)):
            raise InputError(f"{name} applies to files; found a {SOURCE}")
        rules = [rule for rule in options.rules if isinstance(rule, Assignment)]
        if not paths and (unused := [rule for rule in rules if not rule.matches(SOURCE, [])]):
            raise InputError(f"{unused[0]}: no run matches {unused[0].glob!r}; found a {SOURCE}")
        settings = settings_of([options.but(name_pattern=[])], SOURCE, [])
        all_runs += [read_frame(frame, with_values(options, settings)) for frame in frames]
    if paths or not all_runs:
        reading = survey(paths, options)
        read_runs = reading.runs
        read_runs.notes = (*reading.read_as, *read_runs.notes)
        all_runs.append(read_runs)
        for warning in reading.warnings:
            warnings.warn(warning[:], stacklevel=2)  # a slice is a plain text, which any process can receive
    runs = Runs.concat(all_runs)
    runs.left_out = tuple(log for read_runs in all_runs for log in read_runs.left_out)
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
