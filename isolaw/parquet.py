"""Parquet files, read within limits: one of a few kB may unfold to many GB, and its footer may say otherwise.

What counts is what the page headers say, since Arrow allocates by them; the footer only promises. Texts are
first read as dictionaries: one long text that a million rows repeat is then held once until it is counted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from isolaw.errors import DataError

_MB = 1_000_000
_LARGEST = 300 * _MB  # bytes, decoded
_LARGEST_FOOTER = 8 * _MB
_MOST_ROWS = 1_500_000  # of 400 bytes each, as `Runs`
_MOST_CELLS = 25_000_000
_MOST_COLUMNS = 10_000
_MOST_PAGES = 100_000
_HEADER = 65_536  # bytes of a page's header; statistics may be in it
_WIDEST = 32  # bytes of a value of fixed length
_DELTA_BYTE_ARRAY = 7  # each text repeats the beginning of the one before
_MEND = "Keep only the rows and columns of the evaluations"


def read_parquet(path: str | Path) -> pa.Table:
    """Read a Parquet file's plain columns; nested ones are left out.

    Raises
    ------
    DataError
        it cannot be read, or has more than 1.5 million rows, 10,000 columns, 25 million cells or 300 MB.
    """
    try:
        with _opened(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
            names = [field.name for field in schema if _is_plain(field.type)]
            if rows > _MOST_ROWS or rows * len(schema) > _MOST_CELLS:
                raise DataError(
                    f"{path}: {rows:,} rows and {len(schema):,} columns; isolaw reads up to {_MOST_ROWS:,} "
                    f"rows and {_MOST_CELLS:,} cells. {_MEND}"
                )
            _check_pages(Path(path), file.metadata)
        texts = [field.name for field in schema if _is_text(field.type)]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            table = file.read(columns=names)
        size = sum(_decoded(table[name]) for name in table.column_names)
        if size > _LARGEST:
            raise _too_large(path, size)
        return table.cast(
            pa.schema([schema.field(name) for name in table.column_names], table.schema.metadata)
        )
    except (pa.ArrowException, OSError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path}: not a readable Parquet file ({reason[:300]})") from None


def column_names(path: str | Path) -> list[str]:
    """Return the names of a Parquet file's columns; none for what is not readable."""
    try:
        with _opened(path) as file:
            return list(file.schema_arrow.names)
    except (pa.ArrowException, OSError, DataError):
        return []


def _opened(path: str | Path) -> pq.ParquetFile:
    with Path(path).open("rb") as file:
        file.seek(-min(8, os.fstat(file.fileno()).st_size), os.SEEK_END)
        tail = file.read(8)
    footer = int.from_bytes(tail[:4], "little") if tail[4:] == b"PAR1" else 0
    if footer > _LARGEST_FOOTER:
        raise DataError(
            f"{path}: a Parquet footer of {footer:,} bytes; isolaw reads up to {_LARGEST_FOOTER:,}. {_MEND}"
        )
    opened = pq.ParquetFile(path)
    metadata = opened.metadata
    if metadata.num_columns > _MOST_COLUMNS or metadata.num_row_groups * metadata.num_columns > _MOST_PAGES:
        opened.close()
        raise DataError(
            f"{path}: {metadata.num_columns:,} columns in {metadata.num_row_groups:,} row groups; isolaw "
            f"reads up to {_MOST_COLUMNS:,} columns and {_MOST_PAGES:,} pieces. {_MEND}"
        )
    return opened


def _is_text(kind: pa.DataType) -> bool:
    return any(
        is_it(kind)
        for is_it in (
            pa.types.is_string,
            pa.types.is_binary,
            pa.types.is_large_string,
            pa.types.is_large_binary,
        )
    )


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_fixed_size_binary(kind):
        return bool(kind.byte_width <= _WIDEST)
    return _is_text(kind) or not (pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def _decoded(column: pa.ChunkedArray) -> int:
    """Bytes of a column when each row has its own text."""
    size: int = column.nbytes
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type) and _is_text(chunk.type.value_type):
            lengths = pc.cast(pc.binary_length(chunk.dictionary), pa.int64())
            counts = pc.value_counts(chunk.indices.drop_null())
            used = pc.take(lengths, counts.field("values"))
            size += pc.sum(pc.multiply(used, counts.field("counts"))).as_py() or 0
    return size


def _too_large(path: str | Path, size: int) -> DataError:
    return DataError(
        f"{path}: {size / _MB:,.0f} MB when unpacked; isolaw reads tables of up to {_LARGEST // _MB} MB. "
        f"{_MEND}"
    )


def _check_pages(path: Path, metadata: pq.FileMetaData) -> None:
    """Add up what the pages unpack to, by their own headers."""
    decoded = pages = 0
    with path.open("rb") as file:
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                at = column.data_page_offset
                if column.dictionary_page_offset and 0 < column.dictionary_page_offset < at:
                    at = column.dictionary_page_offset
                end = at + column.total_compressed_size
                while at < end:
                    file.seek(at)
                    header, length = _page_header(path, file.read(_HEADER))
                    size, packed = header.get(2, 0), header.get(3, 0)
                    pages += 1
                    if size < 0 or packed < 0 or pages > _MOST_PAGES:
                        raise DataError(f"{path}: not a readable Parquet file (damaged or too many pages)")
                    values, encoding = _values(header)
                    decoded += size * max(values, 1) if encoding == _DELTA_BYTE_ARRAY else size
                    if decoded > _LARGEST:
                        raise _too_large(path, decoded)
                    at += length + packed


def _values(header: dict[int, Any]) -> tuple[int, int]:
    """A data page's number of values and their encoding, in its version 1 or 2; 0 for other pages."""
    one, two = header.get(5, {}), header.get(8, {})
    return (two.get(1, 0), two.get(4, 0)) if two else (one.get(1, 0), one.get(2, 0))


def _page_header(path: Path, data: bytes) -> tuple[dict[int, Any], int]:
    try:
        return _struct(data, 0, 0)
    except (IndexError, RecursionError):
        raise DataError(f"{path}: not a readable Parquet file (a damaged page)") from None


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Read a Thrift structure in the compact protocol: its integers and structures by field, and its end."""
    if depth > 8:
        raise IndexError
    fields: dict[int, Any] = {}
    field = 0
    while data[at]:
        kind, step = data[at] & 15, data[at] >> 4
        at += 1
        if step:
            field += step
        else:
            field, at = _varint(data, at)
        value: Any = None
        if kind in (4, 5, 6):
            value, at = _varint(data, at)
        elif kind == 12:
            value, at = _struct(data, at, depth + 1)
        elif kind == 8:
            length, at = _unsigned(data, at)
            at += length
        elif kind == 3:
            at += 1
        elif kind == 7:
            at += 8
        elif kind not in (1, 2):  # a list or a map: no page has one
            raise IndexError
        fields[field] = value
    return {name: value for name, value in fields.items() if value is not None}, at + 1


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number, at = _unsigned(data, at)
    return (number >> 1) ^ -(number & 1), at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128 or shift > 63:
            return number, at
