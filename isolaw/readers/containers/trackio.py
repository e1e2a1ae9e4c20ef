"""Trackio projects: ``<project>.db``, a SQLite file, and its export ``<project>.parquet``.

In the database, the table ``metrics`` contains ``run_name, step, timestamp`` and the metrics as JSON;
``configs`` contains one configuration per run. The export has one column per metric, and
``<project>_configs.parquet`` is next to it. Trackio 0.43 has run ids. isolaw also reads older versions, and
versions that store no configuration.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from isolaw.errors import DataError, NoHistory
from isolaw.parquet import column_names, read_parquet
from isolaw.readers import configs, limits
from isolaw.readers.literals import parse_json
from isolaw.readers.raw_log import Container, RawLog, finite

_MAGIC = b"SQLite format 3\0"
_PARQUET = b"PAR1"
_LARGEST = 500 * limits.MB
_OF_EXPORT = {"timestamp", "run_name", "step"}
_NO_METRIC = {"id", "run_id", "log_id", "space_id", "project_name", "created_at", *_OF_EXPORT}
_UNREADABLE = sqlite3.Error, UnicodeError  # UnicodeError: names that are not UTF-8
Row = tuple[Any, Any, Any, dict[str, Any]]  # run, step, time, metrics
_METRICS = "SELECT run_name, step, timestamp, metrics FROM metrics ORDER BY rowid"
_COLUMNS = "PRAGMA table_info(metrics)"
_CONFIGS = "SELECT run_name, config FROM configs ORDER BY rowid"


def is_project(path: Path, head: bytes) -> bool:
    """Return whether a file is a project's database or its exported metrics."""
    if head.startswith(_MAGIC):
        return _has_metrics(path) or b"run_name TEXT" in limits.start(f"{path}-wal", 65_536)
    try:
        return head.startswith(_PARQUET) and set(column_names(path)) >= _OF_EXPORT
    except DataError:
        return False


def _has_metrics(path: Path) -> bool:
    address = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            return {"run_name", "step", "metrics"} <= {own[1] for own in connection.execute(_COLUMNS)}
    except _UNREADABLE:
        return False


def read(path: Path) -> Iterator[RawLog]:
    """Read a project, with one log per run.

    Raises `DataError` if it cannot be read or is larger than 500 MB, and `NoHistory` if it is empty.
    """
    exported = limits.start(path, 4) == _PARQUET
    rows, found = _exported(path) if exported else _database(path)
    held = limits.Held(str(path))
    logs: dict[str, RawLog] = {}
    began: dict[str, float] = {}
    for run, step, when, metrics in rows:
        name = str(run)
        if name not in logs:
            config = configs.flatten(found.get(name, {}))
            source = f"the configuration of {name}" if config else ""
            run_name = f"{path.with_suffix('')}/{name}"
            logs[name] = RawLog(str(path), "trackio", run_name, config, source, held=held)
        seconds = _seconds(when)
        logs[name].add(metrics, finite(step), seconds - began.setdefault(name, seconds))
    if not logs:
        raise NoHistory(f"{path}: the Trackio project has no values")
    yield from logs.values()


def _exported(path: Path) -> tuple[list[Row], dict[str, dict[str, Any]]]:
    frame = read_parquet(path).to_pandas()
    metrics = [own for own in frame.columns if own not in _NO_METRIC]
    rows = []
    for row in frame.to_dict("records"):
        measured = {key: row[key] for key in metrics if row[key] == row[key]}
        rows.append((row["run_name"], row["step"], row["timestamp"], measured))
    beside = path.with_name(f"{path.stem}_configs.parquet")
    found = read_parquet(beside).to_pandas().to_dict("records") if beside.is_file() else []
    return rows, {
        str(own.get("run_name")): {key: value for key, value in own.items() if key not in _NO_METRIC}
        for own in found
    }


def _database(path: Path) -> tuple[list[Row], dict[str, dict[str, Any]]]:
    """Read a copy, since SQLite writes next to any database that has a write-ahead log."""
    with limits.os_errors(path), tempfile.TemporaryDirectory() as folder:
        files = [own for own in (path, Path(f"{path}-wal")) if own.is_file()]
        if (size := sum(own.stat().st_size for own in files)) > _LARGEST:
            raise DataError(
                f"{path}: {size / limits.MB:,.0f} MB; expected a database of at most {_LARGEST // limits.MB} "
                "MB. Export the project's metrics as Parquet"
            )
        for own in files:
            shutil.copyfile(own, Path(folder, own.name))
        with closing(sqlite3.connect(Path(folder, path.name))) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            limit = time.thread_time() + limits.FLOOR_S + limits.S_PER_MB * size / limits.MB
            connection.set_progress_handler(lambda: time.thread_time() > limit, 100_000)
            try:
                rows = [(*row[:3], _object(row[3])) for row in connection.execute(_METRICS)]
            except _UNREADABLE as error:
                raise DataError(f"{path}: not a Trackio project ({error})") from None
            try:
                found = {str(run): _object(config) for run, config in connection.execute(_CONFIGS)}
            except _UNREADABLE:  # older versions have no configurations
                found = {}
    return rows, found


def _object(text: Any) -> dict[str, Any]:
    found = parse_json(text) if isinstance(text, str | bytes) else None
    return found if isinstance(found, dict) else {}


def _seconds(when: Any) -> float:
    try:
        return datetime.fromisoformat(str(when)).timestamp()
    except (ValueError, OverflowError, OSError):
        return float("nan")


CONTAINER = Container("trackio", read, file=is_project)
