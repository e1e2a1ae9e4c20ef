"""Parquet files, read within limits: one of a few kB may unfold to many GB, and its footer may say otherwise.

What counts is what the page headers say, since Arrow allocates by them; the footer only promises. Texts are
first read as dictionaries: one long text that a million rows repeat is then held once until it is counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from isolaw.errors import DataError

_MB = 1_000_000
_LARGEST = 300 * _MB  # bytes, decoded
_LARGEST_FOOTER = 2 * _MB
_MOST_ROWS = 1_500_000  # of 400 bytes each, as `Runs`
_MOST_CELLS = 25_000_000
_MOST_COLUMNS = 10_000
_MOST_PAGES = 100_000
_HEADER = 65_536  # bytes of a page's header; statistics may be in it
_DEEPEST = 12  # of structures in a footer
_I32, _I64, _LIST, _STRUCT = 5, 6, 9, 12  # kinds of Thrift's compact protocol
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
            _check_pages(Path(path))
        texts = [field.name for field in schema if _is_text(field.type)]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            table = file.read(columns=names)
        size = sum(_decoded(table[name]) for name in table.column_names)
        if size > _LARGEST:
            raise _too_large(path, size)
        return table.cast(
            pa.schema([schema.field(name) for name in table.column_names], table.schema.metadata)
        )
    except (IndexError, KeyError, TypeError, AttributeError):
        raise DataError(f"{path}: not a readable Parquet file (its pages are damaged)") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path}: not a readable Parquet file ({reason[:300]})") from None


def column_names(path: str | Path) -> list[str]:
    """Return the names of a Parquet file's columns; none for what is not readable."""
    try:
        with _opened(path) as file:
            return list(file.schema_arrow.names)
    except (pa.ArrowException, OSError, UnicodeDecodeError, DataError):
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


def _check_pages(path: Path) -> None:
    """Add up what the pages unpack to, by their own headers.

    The footer is read here: Arrow's own objects for it end the process where it is damaged.
    """
    decoded = pages = 0
    with path.open("rb") as file:
        for at, end in _chunks(_footer(file)):
            while at < end:
                file.seek(at)
                header, length = _struct(file.read(_HEADER))
                size, packed = header.get((2, _I32), 0), header.get((3, _I32), 0)
                pages += 1
                if size < 0 or packed < 0 or pages > _MOST_PAGES:
                    raise IndexError
                one, two = (
                    header.get((5, _STRUCT), {}),
                    header.get((8, _STRUCT), {}),
                )  # versions of data pages
                delta = _DELTA_BYTE_ARRAY in (one.get((2, _I32)), two.get((4, _I32)))
                values = max(one.get((1, _I32), 1), two.get((1, _I32), 1))
                decoded += size * values if delta else size
                if decoded > _LARGEST:
                    raise _too_large(path, decoded)
                at += length + packed


def _footer(file: IO[bytes]) -> dict[tuple[int, int], Any]:
    file.seek(-8, os.SEEK_END)
    length = int.from_bytes(file.read(4), "little")
    file.seek(-8 - length, os.SEEK_END)
    return _struct(file.read(length))[0]


def _chunks(footer: dict[tuple[int, int], Any]) -> Iterator[tuple[int, int]]:
    """Where each column's pages begin and end."""
    for group in footer.get((4, _LIST), []):
        for column in group[1, _LIST]:
            own = column[3, _STRUCT]
            at, dictionary = own[9, _I64], own.get((11, _I64), 0)
            at = dictionary if 0 < dictionary < at else at
            if at < 0:
                raise IndexError
            yield at, at + own[7, _I64]


def _struct(data: bytes, at: int = 0, depth: int = 0) -> tuple[dict[tuple[int, int], Any], int]:
    """Read a Thrift structure in the compact protocol: its values by field and kind, and its end.

    Kept are integers, structures and lists of structures. What Thrift would read otherwise, a field that is
    there twice, is an IndexError, as is a torn one.
    """
    fields: dict[tuple[int, int], Any] = {}
    field = 0
    while data[at]:
        kind, step = data[at] & 15, data[at] >> 4
        at += 1
        if step:
            field += step
        else:
            field, at = _number(data, at)
        if (field, kind) in fields:
            raise IndexError
        fields[field, kind], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if depth > _DEEPEST:
        raise IndexError
    if kind in (1, 2):  # true and false
        return None, at
    if kind in (3, 7):  # a byte, a float
        return None, at + (1 if kind == 3 else 8)
    if kind in (4, _I32, _I64):
        return _number(data, at)
    if kind == 8:  # a text
        length, at = _unsigned(data, at)
        return None, at + length
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind in (_LIST, 10):  # or a set
        size, inner = data[at] >> 4, data[at] & 15
        at += 1
        if size == 15:
            size, at = _unsigned(data, at)
        items = []
        for _ in range(size):
            item, at = (None, at + 1) if inner in (1, 2) else _value(data, at, inner, depth + 1)
            if at > len(data):
                raise IndexError
            items.append(item)
        return items, at
    raise IndexError  # a map: Parquet has none


def _number(data: bytes, at: int) -> tuple[int, int]:
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
