"""A table off disk, as it is: CSV, Parquet, or JSON lines, told apart by content."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from isolaw.errors import DataError
from isolaw.logs.configs import flatten
from isolaw.runs import read_parquet

PARQUET_MAGIC = b"PAR1"
_LONGEST_LINE = 1 << 20
_MOST_COLUMNS = 10_000


def load(path: str | Path) -> pd.DataFrame:
    """Read a table; the index is the line (CSV, JSON lines) or row number.

    What was left out is in the frame's ``attrs["notes"]``.

    Raises
    ------
    DataError
        missing, empty, binary, or not a table.
    """
    path = Path(path)
    try:
        content = path.read_bytes()  # once: it may be a pipe
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    if not content.strip():
        raise DataError(f"{path}: the file is empty")
    if content.startswith(PARQUET_MAGIC):
        frame = read_parquet(path).to_pandas()
        frame = frame.set_axis(pd.RangeIndex(1, len(frame) + 1, name="row"))
    elif content.lstrip().startswith(b"{"):
        frame = _read_jsonl(path, content)
    else:
        frame = _read_csv(path, content)
    if frame.empty:
        raise DataError(f"{path}: a header without rows; columns: {', '.join(map(str, frame.columns))}")
    return frame


def _read_csv(path: Path, content: bytes) -> pd.DataFrame:
    if b"\0" in content[:65_536]:
        raise DataError(f"{path}: a binary file; accepted: CSV, Parquet, a sweep directory")
    commas = content.partition(b"\n")[0].count(b",")
    if commas > _MOST_COLUMNS:  # pandas' time is quadratic in names that repeat
        raise DataError(f"{path}: {commas + 1:,} columns; a table has at most {_MOST_COLUMNS:,}")
    options: dict[str, Any] = {"encoding": "utf-8-sig", "skip_blank_lines": False, "low_memory": False}
    try:
        header = pd.read_csv(io.BytesIO(content), header=None, nrows=1, dtype=str, **options).iloc[0]
        frame = pd.read_csv(io.BytesIO(content), **options)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        raise DataError(f"{path}: not a CSV table ({str(error).strip()})") from None
    twice = header[header.duplicated()].dropna()
    if len(twice):
        raise DataError(f"{path}: two columns are called {twice.iloc[0]!r}")
    if not isinstance(frame.index, pd.RangeIndex):  # pandas would take the surplus as row labels
        raise DataError(f"{path}: not a CSV table (its rows have more fields than its header)")
    return frame.set_axis(pd.RangeIndex(2, len(frame) + 2, name="line")).dropna(how="all")


def _read_jsonl(path: Path, content: bytes) -> pd.DataFrame:
    """One object a line; nested ones become dotted columns, a torn last line is left out."""
    rows: list[dict[str, Any]] = []
    lines: list[int] = []
    notes: list[str] = []
    for number, line in enumerate(io.BytesIO(content), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line) if len(line) <= _LONGEST_LINE else None
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            if rows and not line.endswith(b"\n"):
                notes.append("a torn last line was left out")
                continue
            raise DataError(f"{path}: line {number} is not a JSON object; accepted: one object a line")
        try:
            rows.append({name: value for name, value in flatten(row).items() if _plain(value)})
        except DataError as error:
            raise DataError(f"{path}: line {number}: {error}") from None
        lines.append(number)
    frame = pd.DataFrame(rows, index=pd.Index(lines, name="line"))
    frame.attrs["notes"] = notes
    return frame


def _plain(value: Any) -> bool:
    return not isinstance(value, dict | list) and not (isinstance(value, int) and abs(value) > 2**63)


def columns_of(path: Path, head: bytes) -> list[str]:
    """Return the names of a table's columns by its first bytes; none for what is no table."""
    if head.startswith(PARQUET_MAGIC):
        try:
            return list(pq.read_schema(path).names)
        except (pa.ArrowException, OSError):
            return []
    if b"\0" in head:
        return []
    line = head.split(b"\n", 1)[0].decode("utf-8-sig", "replace").rstrip("\r")
    try:
        if line.startswith("{"):
            return list(flatten(json.loads(line)))
        return next(csv.reader([line]), [])
    except (csv.Error, ValueError, RecursionError, AttributeError, DataError):
        return []
