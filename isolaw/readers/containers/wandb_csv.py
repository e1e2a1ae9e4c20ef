"""Weights & Biases data as CSV: the export of a panel, or a run's history from the API.

*Wide* is a panel's "Export CSV". The first column is the panel's x axis. The others are ``<run> - <metric>``,
each followed by ``…__MIN`` and ``…__MAX``, its range within a bin. If x is not the step, a run can have a
column ``<run> - _step``. Runs that the panel groups are named by their settings. *Long* has the columns
``run_name, metric, step, value``. *History*, ``run.history().to_csv()``, has ``_step`` and a column per
metric; some tools keep only the columns with a framework's names.

No form contains the configuration, and the points are a sample of the run's history. The tables that
`isolaw.readers.hub` writes have both: the first row has the configuration in the column `CONFIG`.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from isolaw.errors import DataError, NoHistory
from isolaw.readers import frameworks, limits
from isolaw.readers.configs import flatten
from isolaw.readers.literals import literal, parse_json
from isolaw.readers.raw_log import Container, RawLog, finite, number

_LONG_COLUMNS = ["run_name", "metric", "step", "value"]
_TIME_AXES = {"Relative Time (Wall)", "Relative Time (Process)", "Wall Time", "_runtime", "_timestamp"}
_RANGES = ("__MIN", "__MAX")
_RUN_COLUMNS = ("run_name", "run", "name", "run_id")
SAMPLED = (
    "a W&B export is a sample of the run's history; the run's folder, or wandb://ENTITY/PROJECT, has the "
    "whole history"
)
CONFIG = "_config"
_MOST_RUNS = 10_000
_MOST_COLUMNS = 100_000
_LONGEST_LINE = 8 * limits.MB  # characters; a panel of many runs has long lines
# W&B's labels of runs grouped by settings: ``model.path: Qwen/Qwen3-4B, seed: 1``.
_GROUP_SETTING = re.compile(r"([A-Za-z_][\w.]{0,100}): ([^,:]{1,200})(?:, |$)")
_GROUP_LABEL = re.compile(rf"(?:{_GROUP_SETTING.pattern}){{1,20}}")
_Rows = Iterable[list[str]]
_LogOf = Callable[[str], RawLog]


def _is_export(_path: Path, head: bytes) -> bool:
    """Return whether a file has one of the three forms, judged by its header."""
    return any(matches(header) for header in [_header(head)] for matches, _ in _FORMS)


def is_of_own_metrics(head: bytes) -> bool:
    """Return whether a file is a panel's export or a history of custom metrics that no framework uses."""
    header = _header(head)
    keys = {column.removesuffix("__MIN").removesuffix("__MAX").rpartition(" - ")[2] for column in header}
    is_our_form = _is_wide(header) or ("_step" in header and _is_history(header))
    return is_our_form and not frameworks.find(keys, {}) and not frameworks.possible(keys)


def _header(head: bytes) -> list[str]:
    """Return the names in the first line of a file, as far as it was read; no names if it is not text."""
    line, newline, _ = head.decode("utf-8-sig", "replace").partition("\n")
    try:
        header = next(csv.reader([line.rstrip("\r")]), [])
    except csv.Error:
        return []
    if "\0" in line:
        return []
    return header if newline else header[:-1]  # the head may end within a long header


def read(path: Path) -> Iterator[RawLog]:
    """Read an export, with one log per run.

    Raises `DataError` if the x axis is a time, two runs share a name, or the file is not a CSV table.
    """
    logs: dict[str, RawLog] = {}
    memory = limits.MemoryMeter(str(path))
    torn_lines = 0

    def log_of(run: str) -> RawLog:
        if run not in logs:
            if len(logs) == _MOST_RUNS:
                raise DataError(f"{path}: a W&B export of more than {_MOST_RUNS:,} runs")
            notes = [] if CONFIG in header else [SAMPLED]
            logs[run] = RawLog(str(path), "wandb-csv", run, notes=notes, memory=memory)
            if _GROUP_LABEL.fullmatch(run):
                logs[run].config = {key: literal(value) for key, value in _GROUP_SETTING.findall(run)}
                logs[run].config_source = "its label"
                logs[run].notes.append(
                    "the label names a W&B group, so the values are means of the group's runs"
                )
        return logs[run]

    def is_complete(row: list[str]) -> bool:
        nonlocal torn_lines
        torn_lines += 0 < len(row) < len(header)
        return len(row) >= len(header)

    with limits.opened(path) as file:
        rows = csv.reader(_lines(path, file))
        try:
            header = next(rows, [])
            if len(header) > _MOST_COLUMNS:
                raise DataError(
                    f"{path}: {len(header):,} columns; expected at most {_MOST_COLUMNS:,}. Export fewer runs"
                )
            add_rows = next((add_rows for matches, add_rows in _FORMS if matches(header)), None)
            if add_rows is None:
                raise DataError(f"{path}: not a W&B export; its header is {', '.join(header)[:200]!r}")
            add_rows(path, header, filter(is_complete, rows), log_of)
        except csv.Error as error:
            raise DataError(f"{path}: line {rows.line_num}: not CSV ({error})") from None
    if not logs:
        raise NoHistory(f"{path}: the W&B export has no values")
    for log in logs.values():
        if torn_lines:
            log.dropped["torn lines"] += torn_lines
        yield log


def _lines(path: Path, file: IO[bytes]) -> Iterator[str]:
    """Yield the lines as text. A line over the limit is never loaded in full."""
    text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="replace", newline="")
    for line_number, line in enumerate(iter(lambda: text.readline(_LONGEST_LINE), ""), 1):
        if len(line) == _LONGEST_LINE:
            raise DataError(
                f"{path}: line {line_number} has over {_LONGEST_LINE // limits.MB} million characters, so it "
                "is not a W&B export. Export a few runs at a time"
            )
        yield line


def _is_wide(header: list[str]) -> bool:
    has_names = len(header) > 1 and all(" - " in column for column in header[1:])
    has_step = "step" in header[0].lower() if header else False
    return has_names and (has_step or header[0] in _TIME_AXES or any(c.endswith(_RANGES) for c in header))


def _is_history(header: list[str]) -> bool:
    if "_step" in header and {"_runtime", "_timestamp"} & set(header):
        return True
    return bool({"_step", "train/global_step"} & set(header)) and frameworks.find(header, {}) is not None


def _add_wide(path: Path, header: list[str], rows: _Rows, log_of: _LogOf) -> None:
    x_name, names = header[0], set(header)
    counts_steps = "step" in x_name.lower()
    columns_of_run: dict[str, dict[str, int]] = {}
    for index, column in enumerate(header[1:], 1):
        if column.endswith(_RANGES) and column.removesuffix("__MIN").removesuffix("__MAX") in names:
            continue
        run, _, metric = column.rpartition(" - ")
        if metric in columns_of_run.setdefault(run, {}):
            raise DataError(
                f"{path}: two columns are called {column!r}; give the runs different names in W&B"
            )
        columns_of_run[run][metric] = index
    if not counts_steps and any("_step" not in metrics for metrics in columns_of_run.values()):
        problem = "a time" if x_name in _TIME_AXES else "not a count of steps"
        raise DataError(
            f"{path}: the x axis {x_name!r} is {problem}; expected Step, or the metric that counts update "
            "steps. In W&B, edit the panel's x axis and export again"
        )
    for row in rows:
        for run, metrics in columns_of_run.items():
            values = {metric: row[index] for metric, index in metrics.items() if row[index]}
            logged_step, x_value = number(values.pop("_step", "")), number(row[0])
            if values:
                if x_name not in {"Step", *_TIME_AXES} and x_value is not None:
                    values[x_name] = row[0]
                step = x_value if logged_step is None or counts_steps else logged_step
                log_of(run).add(values, math.nan if step is None else step)


def _add_long(_path: Path, header: list[str], rows: _Rows, log_of: _LogOf) -> None:
    positions = [header.index(name) for name in _LONG_COLUMNS]
    for run, metric, step, value in ([row[position] for position in positions] for row in rows):
        if number(value) is not None:
            log_of(run).in_order = False
            log_of(run).add({metric: value}, finite(step))


def _add_history(path: Path, header: list[str], rows: _Rows, log_of: _LogOf) -> None:
    run_column = next((name for name in _RUN_COLUMNS if name in header), "")
    for row in rows:
        values = {key: cell for key, cell in zip(header, row, strict=False) if key and cell}
        step, seconds = finite(values.pop("_step", "")), finite(values.pop("_runtime", ""))
        name, config = values.pop(run_column, str(path)), parse_json(values.pop(CONFIG, "").encode())
        if isinstance(config, dict):
            log_of(name).config, log_of(name).config_source = flatten(config), "W&B"
        values = {key: cell for key, cell in values.items() if not key.startswith(("_", "Unnamed: "))}
        if values:
            log_of(name).add(values, step, seconds)


_FORMS = (
    (_is_wide, _add_wide),
    (lambda header: {*header} >= {*_LONG_COLUMNS}, _add_long),
    (_is_history, _add_history),
)
CONTAINER = Container("wandb-csv", read, file=_is_export)
