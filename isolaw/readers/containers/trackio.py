"""Trackio projects: ``<project>.db``, a SQLite file, and its export ``<project>.parquet``.

In the database, the table ``metrics`` contains ``run_name, step, timestamp`` and the metrics as JSON;
``configs`` contains one configuration per run. The export has one column per metric, and
``<project>_configs.parquet`` is next to it. Trackio 0.43 has run ids. isolaw also reads older versions, and
versions that store no configuration.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from isolaw.errors import DataError, NoHistory
from isolaw.files import leads_out, open_file
from isolaw.parquet import column_names, frame_of, read_parquet
from isolaw.readers import configs, limits
from isolaw.readers.literals import parse_json
from isolaw.readers.raw_log import Container, RawLog, finite

_MAGIC = b"SQLite format 3\0"
_PARQUET = b"PAR1"
_LARGEST = 500 * limits.MB
_LARGEST_CELL = 16 * limits.MB  # the metrics of a step as JSON, or a configuration
_OF_EXPORT = {"timestamp", "run_name", "step"}
_NO_METRIC = {"id", "run_id", "log_id", "space_id", "project_name", "created_at", *_OF_EXPORT}
_UNREADABLE = sqlite3.Error, UnicodeError  # UnicodeError: names that are not UTF-8
Row = tuple[Any, Any, Any, dict[str, Any]]  # run, step, time, metrics
_METRICS = "SELECT run_name, step, timestamp, metrics FROM metrics ORDER BY rowid"
_COLUMNS = "PRAGMA table_info(metrics)"  # without generated columns
_SCHEMA = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = 'metrics'"
_CONFIGS = "SELECT run_name, config FROM configs ORDER BY rowid"


def _is_project(path: Path, head: bytes) -> bool:
    """Return whether a file is a project's database or its exported metrics."""
    if head.startswith(_MAGIC):
        return _has_metrics(path) or b"run_name TEXT" in limits.start(f"{path}-wal", 65_536)
    try:
        return head.startswith(_PARQUET) and set(column_names(path)) >= _OF_EXPORT
    except DataError:
        return False


def _has_metrics(path: Path) -> bool:
    address = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro&immutable=1"
    try:
        with _connected(address, limits.FLOOR_S) as connection:
            return _is_plain_table(connection)
    except _UNREADABLE:
        return False


@contextmanager
def _connected(address: str, seconds: float) -> Iterator[sqlite3.Connection]:
    """Open a database in which only columns of tables can be read, for so many processor seconds.

    A database can contain SQL, which would run when isolaw reads it: views, generated columns and modules.
    """
    with closing(sqlite3.connect(address, uri=True)) as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_CELL)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.set_authorizer(_authorized)
        limit = time.thread_time() + seconds
        connection.set_progress_handler(lambda: time.thread_time() > limit, 10_000)
        yield connection


def _authorized(action: int, name: str | None, *more: str | None) -> int:
    view = more[2]
    allowed = action == sqlite3.SQLITE_SELECT or (action == sqlite3.SQLITE_READ and view is None)
    allowed = allowed or (action == sqlite3.SQLITE_PRAGMA and name == "table_info")
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


def _is_plain_table(connection: sqlite3.Connection) -> bool:
    """Return whether the metrics are a table, neither a view nor of a module, with the columns of Trackio."""
    sql = connection.execute(_SCHEMA).fetchone()
    plain = sql is not None and str(sql[0]).upper().split()[:2] == ["CREATE", "TABLE"]
    return plain and {"run_name", "step", "timestamp", "metrics"} <= {
        row[1] for row in connection.execute(_COLUMNS)
    }


def _read(path: Path) -> Iterator[RawLog]:
    """Read a project, with one log per run.

    Raises `DataError` if it cannot be read or is larger than 500 MB, and `NoHistory` if it is empty.
    """
    exported = limits.start(path, 4) == _PARQUET
    held = limits.Held(str(path))
    logs: dict[str, RawLog] = {}
    began: dict[str, float] = {}
    configurations: dict[str, dict[str, Any]] = {}
    for run, step, when, metrics in (
        _exported(path, configurations) if exported else _database(path, configurations)
    ):
        name = str(run)
        if name not in logs:
            if len(name) > limits.LONGEST_NAME:
                raise DataError(f"{path}: a run's name has more than {limits.LONGEST_NAME:,} characters")
            if len(logs) == limits.MOST_LOGS:
                raise DataError(f"{path}: over {limits.MOST_LOGS:,} runs, the limit for one project")
            config = configs.flatten(configurations.get(name, {}))
            source = f"the configuration of {name}" if config else ""
            run_name = f"{path.with_suffix('')}/{name}"
            logs[name] = RawLog(str(path), "trackio", run_name, config, source, held=held)
        seconds = _seconds(when)
        logs[name].add(metrics, finite(step), seconds - began.setdefault(name, seconds))
    if not logs:
        raise NoHistory(f"{path}: the Trackio project has no values")
    yield from logs.values()


def _frame(path: Path) -> pd.DataFrame:
    return frame_of(read_parquet(path), path)


def _exported(path: Path, configurations: dict[str, dict[str, Any]]) -> Iterator[Row]:
    """Yield the rows of an export, and add the configuration of each run."""
    beside = path.with_name(f"{path.stem}_configs.parquet")
    for row in _frame(beside).to_dict("records") if _is_next_to(path, beside) else []:
        config = {str(key): value for key, value in row.items() if key not in _NO_METRIC}
        configurations[str(row.get("run_name"))] = config
    frame = _frame(path)
    metrics = [column for column in frame.columns if column not in _NO_METRIC]
    for row in frame.to_dict("records"):
        measured = {key: row[key] for key in metrics if row[key] == row[key]}
        yield row["run_name"], row["step"], row["timestamp"], measured


def _database(path: Path, configurations: dict[str, dict[str, Any]]) -> Iterator[Row]:
    """Yield the rows of a database, and add the configuration of each run.

    isolaw reads a copy, since SQLite writes next to any database that has a write-ahead log.
    """
    with limits.os_errors(path), tempfile.TemporaryDirectory() as folder:
        log = Path(f"{path}-wal")
        files = [path, log] if _is_next_to(path, log) else [path]
        if (size := sum(file.stat().st_size for file in files)) > _LARGEST:
            raise DataError(
                f"{path}: {size / limits.MB:,.0f} MB; expected a database of at most {_LARGEST // limits.MB} "
                "MB. Export the project's metrics as Parquet"
            )
        for part in files:
            with open_file(part) as file, Path(folder, part.name).open("wb") as copy:
                shutil.copyfileobj(file, copy)
        address = f"file:{quote(os.fsencode(Path(folder, path.name)))}"
        seconds = limits.FLOOR_S + limits.S_PER_MB * size / limits.MB
        try:
            with _connected(address, seconds) as connection:
                if not _is_plain_table(connection):
                    raise DataError(f"{path}: not a Trackio project (metrics is not a table of its own)")
                with suppress(*_UNREADABLE):  # older versions have no configurations
                    for run, config in _rows(connection, _CONFIGS, 2 * size):
                        configurations[str(run)] = _object(config)
                        if len(configurations) > limits.MOST_LOGS:
                            break
                for row in _rows(connection, _METRICS, 2 * size):
                    yield *row[:3], _object(row[3])
        except _UNREADABLE as error:
            raise DataError(f"{path}: not a Trackio project ({error})") from None


def _rows(connection: sqlite3.Connection, query: str, most: int) -> Iterator[Any]:
    """Yield the rows of a query; raise `sqlite3.Error` if they have more than ``most`` bytes.

    A damaged file can deliver any number: a page of it can be in many rows, or follow itself.
    """
    size = 0
    for row in connection.execute(query):
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if size > most:
            raise sqlite3.DatabaseError(f"its rows have more than {most:,} bytes, twice the file's size")
        yield row


def _is_next_to(path: Path, other: Path) -> bool:
    """Return whether a file is next to another one, and no link that leads out of their folder."""
    return other.is_file() and not leads_out(other, path.parent)


def _object(text: Any) -> dict[str, Any]:
    parsed = parse_json(text) if isinstance(text, str | bytes) else None
    return parsed if isinstance(parsed, dict) else {}


def _seconds(when: Any) -> float:
    try:
        return datetime.fromisoformat(str(when)).timestamp()
    except (ValueError, OverflowError, OSError):
        return float("nan")


CONTAINER = Container("trackio", _read, file=_is_project)
