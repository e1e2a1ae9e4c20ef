"""Table files as pandas tables, recognised by content: CSV, Parquet, JSON, or console lines."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from isolaw.errors import DataError
from isolaw.files import open_file
from isolaw.metrics import is_reward
from isolaw.parquet import column_names, frame_of, is_plain, read_parquet
from isolaw.readers.configs import flatten
from isolaw.readers.console_table import is_console, read_console
from isolaw.readers.containers import notebook, wandb_csv
from isolaw.readers.containers.json_document import record_lists
from isolaw.readers.containers.jsonlines import iterate_objects, parse_record
from isolaw.readers.limits import MB, errors_in, os_errors
from isolaw.readers.literals import loads, parse_dictionary, parse_json, scalar
from isolaw.readers.names import is_step
from isolaw.readers.raw_log import HEAD, RawLog, number
from isolaw.readers.records import WRITTEN_NAN, mark_written_nan, summary_of_list, with_settings
from isolaw.runs import attributes_in, with_plain_columns

SOURCE = "DataFrame"  # name of an in-memory table in messages
_TABLE_KINDS = "a path, Runs, or a table (pandas, polars, pyarrow, datasets)"


def as_pandas(table: Any) -> pd.DataFrame:
    """Return a table as pandas, with rows indexed from 0. The argument is not changed.

    A named index becomes columns. Nested columns of an Arrow table are left out, with a note in
    ``attrs["notes"]``. ``attrs["attributes"]`` contains the attributes of runs that `Runs` exported. Raises
    `DataError` if the argument is not a table, has no rows, or has two columns with the same name.
    """
    notes: list[str] = []
    attributes: dict[str, dict[str, Any]] = {}
    if isinstance(table, pd.DataFrame):
        frame = table
    elif hasattr(table, "__arrow_c_stream__"):
        frame = _from_arrow(table, notes, attributes)
    elif callable(getattr(table, "to_pandas", None)):
        frame = table.to_pandas()
    else:
        hint = "; call its collect() first" if callable(getattr(table, "collect", None)) else ""
        raise DataError(f"source: found {type(table).__name__}; expected {_TABLE_KINDS}{hint}")
    if frame.columns.nlevels > 1:
        raise DataError(f"{SOURCE}: found columns of {frame.columns.nlevels} levels; expected one level")
    named_levels = [name for name in frame.index.names if name is not None and name not in frame.columns]
    frame = frame.reset_index(level=named_levels) if named_levels else frame.copy()
    frame.columns = pd.Index([str(name) for name in frame.columns])
    if repeated := frame.columns[frame.columns.duplicated()].tolist():
        raise DataError(f"{SOURCE}: two columns are called {repeated[0]!r}")
    if frame.empty:
        raise DataError(f"{SOURCE}: the table has no rows; columns: {', '.join(frame.columns)}")
    frame = with_plain_columns(frame.set_axis(pd.RangeIndex(len(frame), name="row")), SOURCE)
    frame.attrs = {"notes": notes, "attributes": attributes}
    return frame


def _from_arrow(table: Any, notes: list[str], attributes: dict[str, dict[str, Any]]) -> pd.DataFrame:
    try:
        arrow = pa.table(table)
        attributes.update(attributes_in(arrow.schema, type(table).__name__))
        nested = [field.name for field in arrow.schema if not is_plain(field.type)]
        if nested:
            notes.append(f"isolaw left out nested columns: {', '.join(nested)}")
        return arrow.drop_columns(nested).to_pandas(ignore_metadata=True)
    except (pa.ArrowException, NotImplementedError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{type(table).__name__}: not a readable table ({reason[:300]})") from None


_PARQUET_MAGIC = b"PAR1"
_TORN = re.compile(rb"(?:\d\.|[\s,:=][-+]|\d[eE][-+])$")  # a number that cannot be whole
_LARGEST_SEARCHED = 2 * MB  # bytes of a document that a search for tables reads
_LARGEST_TEXT = 100 * MB  # bytes of text; Parquet has its own limits
_MOST_COLUMNS = 10_000
_MOST_ROWS = 1_000_000
_MOST_CELLS = 5_000_000  # up to 100 bytes each, as objects
_NOR_CONSOLE = ", and no console with lines such as 'step 3: reward=0.5'"
_SHRINK_IT = "Keep only the rows and columns of the evaluations, or write them as Parquet"


def load(path: str | Path) -> pd.DataFrame:
    """Read a table, indexed by line number (CSV, JSON lines) or row number.

    ``attrs["notes"]`` of the result lists the omitted parts. Raises `DataError` if the file is missing,
    empty, binary, not a table, or too large. The limits for text are 100 MB, 1 million rows and 5 million
    cells.
    """
    path = Path(path)
    with os_errors(path), open_file(path) as file:
        content = file.read(len(_PARQUET_MAGIC))
        if content == _PARQUET_MAGIC:
            return _read_parquet(path)
        content += file.read(_LARGEST_TEXT)
    if len(content) > _LARGEST_TEXT:
        raise DataError(f"{path}: isolaw reads text tables of up to {_LARGEST_TEXT // MB} MB. {_SHRINK_IT}")
    if not content.strip():
        raise DataError(f"{path}: the file is empty")
    text = content.lstrip(b"\xef\xbb\xbf \t\r\n")
    if _is_document(text):
        return _check_rows(path, _read_document(path, text))
    if text.startswith(b"{"):
        return _check_rows(path, _read_jsonl(path, content))
    last_line = content.rfind(b"\n") + 1
    is_torn = last_line > 0 and _TORN.search(content, last_line) is not None
    is_torn &= not wandb_csv.is_of_own_metrics(content[:HEAD])  # whose reader opens the file
    frame = _read_lines(path, content[:last_line] if is_torn else content)
    if is_torn:
        frame.attrs["notes"] = [*frame.attrs.get("notes", ()), "isolaw left out 1 torn last line"]
    return frame


def _read_lines(path: Path, content: bytes) -> pd.DataFrame:
    if is_console(content):  # whose text can contain tables, as model output does
        return read_console(path, content)
    if wandb_csv.is_of_own_metrics(content[:HEAD]):
        return _check_rows(path, _read_export(path))
    return _check_rows(path, _read_csv(path, content))


def _read_export(path: Path) -> pd.DataFrame:
    """Read a W&B export of custom metrics, with a row per run and step, and the run in column ``name``.

    The only column that counts steps is also the column ``step``. W&B's own count is of calls to log, so it
    is used if there is no other. Settings in the label of a run are columns.
    """
    frames, logs = [], list(wandb_csv.read(path))
    for log in logs:
        columns = {
            key: pd.Series(series.value, index=list(series.record)) for key, series in log.series.items()
        }
        counters = list(filter(is_step, columns))
        count = columns[counters[0]] if counters else np.asarray(log.step)
        step = {"step": count} if len(counters) < 2 else {}
        frame = pd.DataFrame(columns, index=range(len(log.step)))
        name = {"name": log.run} if log.run != str(path) else {}  # else a single run
        frames.append(frame.assign(**log.config | name | step))
    frame = pd.concat(frames, ignore_index=True)
    frame = frame.set_axis(pd.RangeIndex(1, len(frame) + 1, name="row"))
    frame.attrs["notes"] = list(dict.fromkeys(note for log in logs for note in log.notes))
    return frame


def _check_rows(path: Path, frame: pd.DataFrame) -> pd.DataFrame:
    if frame.empty:
        raise DataError(
            f"{path}: the table has a header but no rows; columns: {', '.join(map(str, frame.columns))}"
        )
    return frame


def _read_parquet(path: Path) -> pd.DataFrame:
    table = read_parquet(path)
    left_out = [name for name in column_names(path) if name not in table.column_names]
    frame = _check_rows(path, frame_of(table, path))
    frame = frame.set_axis(pd.RangeIndex(1, len(frame) + 1, name="row"))
    frame.attrs["notes"] = [f"isolaw left out columns of lists: {', '.join(left_out)}"] if left_out else []
    return frame


def _read_csv(path: Path, content: bytes) -> pd.DataFrame:
    if b"\0" in content[:65_536]:
        raise DataError(f"{path}: found a binary file; expected CSV, Parquet or a sweep's directory")
    rows = max(content.count(b"\n"), content.count(b"\r"))
    cells = rows + content.count(b",")
    _check_size(path, rows, cells, content.partition(b"\n")[0].count(b",") + 1)
    options: dict[str, Any] = {"encoding": "utf-8-sig", "skip_blank_lines": False, "low_memory": False}
    try:
        header = next(csv.reader(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")), [])
        _check_size(path, rows, cells, len(header))  # with line ends in quoted names
        frame = pd.read_csv(io.BytesIO(content), **options)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file (byte {error.start} is not UTF-8)") from None
    except (csv.Error, pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as error:
        raise DataError(f"{path}: not a CSV table ({str(error).strip()[:200]}){_NOR_CONSOLE}") from None
    repeated = next((name for name, times in Counter(filter(None, header)).items() if times > 1), None)
    if repeated:
        raise DataError(f"{path}: two columns are called {repeated[:100]!r}")
    if not isinstance(frame.index, pd.RangeIndex):  # pandas would use the surplus as row labels
        raise DataError(f"{path}: not a CSV table (its rows have more fields than its header)")
    frame = frame.set_axis(pd.RangeIndex(2, len(frame) + 2, name="line"))
    has_nan = [i for i in range(frame.shape[1]) if b"nan" in content.lower() and frame.iloc[:, i].hasnans]
    if has_nan:  # a written NaN is a value, an empty cell is a missing value
        options |= {"keep_default_na": False, "dtype": str, "usecols": has_nan}
        texts = pd.read_csv(io.BytesIO(content), **options)
        is_nan = texts.apply(lambda column: column.str.strip().str.lower() == "nan").to_numpy()
        frame.attrs[WRITTEN_NAN] = {
            frame.columns[i]: set(frame.index[is_nan[:, k]]) for k, i in enumerate(has_nan)
        }
    return frame.dropna(how="all")


def _check_size(path: Path, rows: int, cells: int, columns: int = 0) -> None:
    if columns > _MOST_COLUMNS:  # pandas takes quadratic time in repeated names
        raise DataError(f"{path}: {columns:,} columns; a table has at most {_MOST_COLUMNS:,}")
    if rows > _MOST_ROWS or cells > _MOST_CELLS:
        raise DataError(
            f"{path}: {rows:,} rows with {cells:,} cells; isolaw reads text tables of up to {_MOST_ROWS:,} "
            f"rows and {_MOST_CELLS:,} cells. {_SHRINK_IT}"
        )


def _read_jsonl(path: Path, content: bytes) -> pd.DataFrame:
    """Read one object per line, as a log. Nested objects become dotted columns."""
    rows: list[dict[str, Any]] = []
    line_numbers: list[int] = []
    columns: set[str] = set()
    log = RawLog(str(path), "jsonl", "")
    _check_size(path, content.count(b"\n"), content.count(b":"))
    for line, record, _ in iterate_objects(path, log, _parse_line):
        with errors_in(f"{path}: line {line}"):
            rows.append(_plain_row(record))
        line_numbers.append(line)
        columns.update(rows[-1])
        if len(columns) > _MOST_COLUMNS:
            raise DataError(f"{path}: over {_MOST_COLUMNS:,} columns by line {line}; a table has fewer")
        _check_size(path, len(rows), len(rows) * len(columns))
    if not rows:
        raise DataError(f"{path}: found no JSON object; expected one object on each line")
    rows, line_numbers, setting_notes = with_settings(rows, line_numbers, "line")
    frame = pd.DataFrame(rows, index=pd.Index(line_numbers, name="line"))
    mark_written_nan(frame, _rows_of_nan(rows, line_numbers))
    drops = [f"{number:,} {reason}" for reason, number in log.dropped.items()]
    drop_notes = [f"isolaw left out {text}" for text in drops if text.partition(" ")[2] not in str(log.notes)]
    frame.attrs["notes"] = [*log.notes, *drop_notes, *setting_notes]
    return frame


def _parse_line(line: bytes) -> dict[str, Any] | None:
    if (record := parse_record(line)) is None and line.startswith(b"{'"):  # a printed Python dictionary
        texts, _ = parse_dictionary(line.decode("utf-8", "replace"))
        return texts and {key: scalar(text) for key, text in texts.items()}
    return record


def _is_document(text: bytes) -> bool:
    """Return whether JSON is one document: an object over several lines, a list, or an object with a list."""
    if not text.startswith(b"{"):  # console lines may start with [step 1/500]
        return text.startswith(b"[") and not (is_console(text) and _parse_line(text) is None)
    line, _, later_lines = text.partition(b"\n")
    record = _parse_line(line)
    if record is not None:
        return not later_lines.strip() and (notebook.is_notebook(record) or any(record_lists(record)))
    return isinstance(parse_json(text), dict)  # else JSON lines whose first line is broken


def _read_document(path: Path, content: bytes) -> pd.DataFrame:
    """Read the longest list of objects in a document. Plain values next to it or above it become columns."""
    try:
        document = loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: neither JSON nor JSON lines ({str(error)[:200]}){_NOR_CONSOLE}") from None
    _check_size(path, 0, content.count(b":"))
    if notebook.is_notebook(document):
        raise DataError(
            f"{path}: no cell of the notebook has printed metrics of a known framework, or shown them in a "
            "table with Step. If you ran the cells, save the notebook with their outputs"
        )
    candidates = [(rows, _plain_row(outside)) for rows, outside in record_lists(document)]
    records, outside = max(candidates, key=lambda pair: len(pair[0]), default=([], {}))
    if not records:
        raise DataError(
            f'{path}: found no list of objects; expected [{{"step": 1, "reward": 0.5}}, …], also below a key'
        )
    keys = records[0].keys(), outside.keys()
    alike = [rows for rows, values in candidates if (rows[0].keys(), values.keys()) == keys]
    if len(alike) > 1:
        raise DataError(
            f"{path}: found {len(alike)} lists of objects with the same keys; expected one. Write them as "
            "one list, and the key above each list, such as its n, seed or evaluation set, into its objects"
        )
    with errors_in(path):
        rows = list(map(_plain_row, records))
    columns = set().union(*rows)
    _check_size(path, len(rows), len(rows) * len(columns), len(columns))
    constants = {name: value for name, value in outside.items() if name not in columns}
    rows, positions, notes = with_settings(rows, list(range(1, len(rows) + 1)), "record")
    frame = pd.DataFrame([row | constants for row in rows], index=pd.Index(positions, name="record"))
    if constants:
        notes = [*notes, f"these columns are from outside the list: {', '.join(constants)}"[:500]]
    mark_written_nan(frame, _rows_of_nan(rows, positions))
    frame.attrs["notes"] = notes
    return frame


def _rows_of_nan(rows: list[dict[str, Any]], positions: list[int]) -> dict[str, set[int]]:
    rows_of_column: dict[str, set[int]] = {}
    for row, position in zip(rows, positions, strict=True):
        for name, value in row.items():
            if value != value:  # NaN, rather than missing
                rows_of_column.setdefault(name, set()).add(position)
    return rows_of_column


def _plain_row(record: dict[str, Any]) -> dict[str, Any]:
    """Return the plain values of a record under dotted keys; of a list of rewards, its mean and length."""
    flat = flatten(record)
    row = {name: value for name, value in flat.items() if not isinstance(value, dict | list)}
    for name, value in row.items():
        if isinstance(value, int) and abs(value) > 2**63:
            row[name] = number(value)  # beyond 64 bits, as a float, which can be infinite
    for name, value in flat.items():
        if isinstance(value, list) and is_reward(name):
            row |= summary_of_list(name, value)
    return row


def columns_of(path: Path, head: bytes) -> list[str]:
    """Return the column names of a table from its first bytes; empty if it is not a table."""
    if head.startswith(_PARQUET_MAGIC):
        return column_names(path)
    if b"\0" in head:
        return []
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    line = head.split(b"\n", 1)[0].decode("utf-8-sig", "replace").rstrip("\r")
    try:
        if text[:1] in (b"{", b"["):
            if path.stat().st_size <= _LARGEST_SEARCHED and _is_document(path.read_bytes().strip()):
                return list(map(str, load(path).columns))
            return list(flatten(loads(line)))
        return next(csv.reader([line]), [])
    except (csv.Error, ValueError, RecursionError, AttributeError, DataError, OSError):
        return []
