"""Trackio's database and its export, as trackio 0.43 makes them (`trackio/sqlite_storage.py`)."""

from __future__ import annotations

import json
import math
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import isolaw
from isolaw.errors import DataError
from isolaw.readers.containers.trackio import CONTAINER
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.survey import survey

# Table metrics of version 0.43, and of its first versions, which kept no configuration.
NEW = "id INTEGER PRIMARY KEY, run_id TEXT, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT"
OLD = "id INTEGER PRIMARY KEY, timestamp TEXT, project_name TEXT, run_name TEXT, step INTEGER, metrics TEXT"
CONFIG = "id INTEGER PRIMARY KEY, run_id TEXT, run_name TEXT, config TEXT, created_at TEXT"


def rows() -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """As transformers' callback logs a GRPOTrainer: the step counts calls, and not updates."""
    for run, n in (("a-n4", 4), ("b-n8", 8)):
        for call in range(4):
            values = {
                "train/reward": call / 8 + n,
                "train/global_step": 5 * call + 5,
                "train/rewards/f/mean": 0.5,
            }
            kl = "NaN" if n == 4 else math.nan
            yield run, f"2026-01-02T10:00:0{call}+00:00", call, values | {"train/kl": kl}


def database(path: Path, schema: str = NEW, wal: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    if wal:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"CREATE TABLE metrics ({schema})")
    insert = "INSERT INTO metrics (run_name, timestamp, step, metrics) VALUES (?, ?, ?, ?)"
    connection.executemany(insert, [(*own[:3], json.dumps(own[3]).encode()) for own in rows()])
    if schema == NEW:
        connection.execute(f"CREATE TABLE configs ({CONFIG})")
        for run, n in (("a-n4", 4), ("b-n8", 8)):
            config = {"num_generations": n, "per_device_train_batch_size": 8, "seed": n}
            connection.execute(
                "INSERT INTO configs (run_name, config) VALUES (?, ?)", (run, json.dumps(config))
            )
    connection.commit()
    return connection


def expect(path: Path, settings: list[str]) -> None:
    reading = survey([path], HowToRead.of(set=settings))
    points = reading.runs.points
    own = (
        points[points["metric"] == "reward"].set_index(["rollouts_per_problem", "step"])["value"].sort_index()
    )
    assert own[4].to_dict() == {5: 4, 10: 4.125, 15: 4.25, 20: 4.375}
    assert own[8].to_dict() == {5: 8, 10: 8.125, 15: 8.25, 20: 8.375}
    assert {value for found in reading.candidates for value in found.left_out} == {
        "values that are not finite"
    }


def test_a_database(tmp_path: Path) -> None:
    database(tmp_path / "grpo.db").close()
    before = sorted(tmp_path.iterdir())
    expect(tmp_path, ["B_p=8"])
    assert sorted(tmp_path.iterdir()) == before  # SQLite writes next to what it opens


def test_the_first_versions(tmp_path: Path) -> None:
    database(tmp_path / "grpo.db", OLD).close()
    expect(tmp_path / "grpo.db", ["B_p=8", "*a-n4:n=4", "*b-n8:n=8"])


def test_what_is_in_the_log_of_writes_is_read(tmp_path: Path) -> None:
    with closing(database(tmp_path / "grpo.db", wal=True)):  # a run that goes on
        assert (tmp_path / "grpo.db-wal").stat().st_size
        expect(tmp_path / "grpo.db", ["B_p=8"])


def test_its_export(tmp_path: Path) -> None:
    flat = [
        {"run_name": run, "timestamp": when, "step": step, **values} for run, when, step, values in rows()
    ]
    pd.DataFrame(flat).to_parquet(tmp_path / "grpo.parquet")
    config = [{"run_name": run, "num_generations": n} for run, n in (("a-n4", 4), ("b-n8", 8))]
    pd.DataFrame(config).to_parquet(tmp_path / "grpo_configs.parquet")
    expect(tmp_path, ["B_p=8"])


def test_other_databases_are_no_logs(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE VIEW metrics AS SELECT 1 AS run_name, 2 AS step")
        connection.commit()
    assert not CONTAINER.file(path, path.read_bytes())
    with pytest.raises(DataError, match="not a Trackio project"):
        list(CONTAINER.read(path))
    with pytest.raises(DataError):
        isolaw.read(path)


def test_a_damaged_name_is_no_project(tmp_path: Path) -> None:
    path = tmp_path / "grpo.db"
    database(path).close()
    path.write_bytes(path.read_bytes().replace(b"timestamp", b"timest\xb6mp"))
    assert not CONTAINER.file(path, path.read_bytes())
    with pytest.raises(DataError, match="not a Trackio project"):
        list(CONTAINER.read(path))


PROJECT = "SELECT 'r' AS run_name, 0 AS step, '' AS timestamp, {} AS metrics, 1 AS rowid"
RECORD = "('r', 1, '', '{\"train/reward\": 0.5}')"
TABLE = f"CREATE TABLE metrics (run_name, step, timestamp, metrics); INSERT INTO metrics VALUES {RECORD};"
BOMB = "hex(zeroblob(450000000))"
HOSTILE = {
    "view": f"CREATE VIEW metrics AS {PROJECT.format(BOMB)};",
    "generated column": "CREATE TABLE metrics (run_name, step, timestamp, "
    f"metrics AS ({BOMB})); INSERT INTO metrics VALUES ('r', 1, '');",
    "virtual table": "CREATE VIRTUAL TABLE metrics USING rtree(run_name, step, timestamp, metrics, x);",
    "endless view": "CREATE VIEW metrics AS WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c) "
    + PROJECT.format("'x'")
    + " FROM c WHERE i < 0;",
    "view of a table": TABLE.replace("metrics (", "own (").replace("INTO metrics", "INTO own")
    + "CREATE VIEW metrics AS SELECT *, rowid FROM own;",
    "large cell": TABLE + "INSERT INTO metrics VALUES ('r', 2, '', zeroblob(20000000));",
}
CHILD = """
import resource, sys, time
from pathlib import Path
from isolaw.readers.containers.trackio import CONTAINER
from isolaw.errors import DataError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    CONTAINER.file(Path(sys.argv[1]), b"SQLite format 3\\0")
    print(sum(len(log.step) for log in CONTAINER.read(Path(sys.argv[1]))))
except DataError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def made(path: Path, script: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def cost(path: Path) -> tuple[str, int]:
    """What reading says, and its MB, in a process that cannot take the machine's memory."""
    code = f"import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)){CHILD}"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    said, megabytes = done.stdout.splitlines()
    return said, int(megabytes)


@pytest.mark.parametrize("kind", HOSTILE)
def test_only_the_columns_of_tables_are_read(tmp_path: Path, kind: str) -> None:
    said, megabytes = cost(made(tmp_path / "a.db", HOSTILE[kind]))
    assert "a.db: not a Trackio project" in said
    assert megabytes < 100


def test_a_configuration_by_a_view_is_none(tmp_path: Path) -> None:
    view = f"CREATE VIEW configs AS SELECT 'r' AS run_name, {BOMB} AS config, 1 AS rowid;"
    said, megabytes = cost(made(tmp_path / "a.db", TABLE + view))
    assert said == "1"
    assert megabytes < 100


def test_runs_without_end_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isolaw.readers.limits.MOST_LOGS", 3)
    more = "".join(f"INSERT INTO metrics VALUES ('r{i}', 1, '', '{{}}');" for i in range(5))
    with pytest.raises(DataError, match="over 3 runs"):
        list(CONTAINER.read(made(tmp_path / "a.db", TABLE + more)))


@pytest.mark.parametrize("column", ["run_name", "timestamp"])
def test_rows_longer_than_the_file(tmp_path: Path, column: str) -> None:
    """The text is in the file once and in each row; so is a page that follows itself."""
    rest = "step, timestamp" if column == "run_name" else "run_name, step"
    script = f"CREATE TABLE metrics ({rest}, metrics);"
    script += f"INSERT INTO metrics ({rest}, metrics) VALUES (1, 2, '{{}}');" * 400
    script += f"ALTER TABLE metrics ADD COLUMN {column} TEXT DEFAULT '{'x' * 100_000}';"
    said, _ = cost(made(tmp_path / "a.db", script))
    assert ("more than 1,000 characters" if column == "run_name" else "twice the file's size") in said
