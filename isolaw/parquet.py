"""Read Parquet files within limits, since a few kB can decode to many GB, and a footer can be wrong.

isolaw first adds up what the pages say they decompress to, which Arrow allocates whatever the footer says. It
then reads batch by batch, and stops when the decoded values exceed the limit. Text columns are first read as
dictionaries, so a long text that a million rows repeat is in memory only once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from isolaw.errors import DataError
from isolaw.files import open_file

_MB = 1_000_000
_LARGEST = 300 * _MB  # limit on the decoded bytes
_LARGEST_FOOTER = 2 * _MB
_MOST_ROWS = 1_500_000  # a row uses 400 bytes in `Runs`
_MOST_CELLS = 25_000_000
_MOST_COLUMNS = 10_000
_MOST_CHUNKS = 100_000
_MOST_PAGES = 300_000
_DEEPEST = 8  # levels of structures in the header of a page
_BATCH_ROWS = 16_384
_WIDEST = 32  # limit on the bytes of a fixed-length value
# Besides Arrow's own errors: values that Python has no type for (a time zone, a year, a text not in UTF-8).
_UNREADABLE = pa.ArrowException, OSError, ValueError, OverflowError, LookupError, TypeError
_HINT = "Keep only the rows and columns of the evaluations"


def read_parquet(path: str | Path) -> pa.Table:
    """Read the plain columns of a Parquet file, and leave out nested columns.

    Raises `DataError` if the file cannot be read, or has more than 1.5 million rows, 10,000 columns, 25
    million cells or 300 MB.
    """
    try:
        with _opened(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        # What pandas wrote about its index and types can be wrong, and is not needed.
        metadata = {key: value for key, value in (schema.metadata or {}).items() if key != b"pandas"}
        plain = pa.schema([field for field in schema if is_plain(field.type)], metadata or None)
        if rows > _MOST_ROWS or rows * len(schema) > _MOST_CELLS:
            counted = f"{rows:,} rows and {len(schema):,} columns"
            raise _too_large(path, counted, f"{_MOST_ROWS:,} rows and {_MOST_CELLS:,} cells")
        _check_pages(path, set(plain.names))
        size, batches = 0, []
        texts = [field.name for field in schema if _is_text(field.type)]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(_BATCH_ROWS, columns=plain.names):
                size += sum(map(_decoded_bytes, batch.columns))
                _check_unpacked(path, size)
                batches.append(batch)
        return _with_texts(pa.Table.from_batches(batches).cast(plain)) if batches else plain.empty_table()
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def _with_texts(table: pa.Table) -> pa.Table:
    """Return a table whose columns of bytes are texts, in which bytes that are not UTF-8 are escaped."""
    for number, field in enumerate(table.schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if not (_is_text(kind) or pa.types.is_fixed_size_binary(kind)):
            continue
        column = table.column(number).cast(kind).cast(pa.large_binary())
        try:
            texts = column.cast(pa.large_string())
        except pa.ArrowInvalid:
            values = column.to_pylist()
            texts = pa.array(
                [value and value.decode("utf-8", "backslashreplace") for value in values], pa.large_string()
            )
        else:
            if kind in (pa.string(), pa.large_string()):
                continue
        table = table.set_column(number, field.name, texts)
    return table


def frame_of(table: pa.Table, path: str | Path) -> pd.DataFrame:
    """Return a table read from a file as pandas; raise `DataError` if pandas has no such values."""
    try:
        return table.to_pandas()
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def column_names(path: str | Path) -> list[str]:
    """Return the names of a Parquet file's columns, or an empty list if the file is not readable."""
    try:
        with _opened(path) as file:
            return list(file.schema_arrow.names)
    except (*_UNREADABLE, DataError):
        return []


def _opened(path: str | Path) -> pq.ParquetFile:
    with open_file(path) as file:
        file.seek(-min(8, os.fstat(file.fileno()).st_size), os.SEEK_END)
        tail = file.read(8)
    footer = int.from_bytes(tail[:4], "little") if tail[4:] == b"PAR1" else 0
    if footer > _LARGEST_FOOTER:
        raise _too_large(path, f"a Parquet footer of {footer:,} bytes", f"{_LARGEST_FOOTER:,}")
    opened = pq.ParquetFile(path)
    metadata = opened.metadata
    if metadata.num_columns > _MOST_COLUMNS or metadata.num_row_groups * metadata.num_columns > _MOST_CHUNKS:
        opened.close()
        size = f"{metadata.num_columns:,} columns in {metadata.num_row_groups:,} row groups"
        raise _too_large(path, size, f"{_MOST_COLUMNS:,} columns and {_MOST_CHUNKS:,} column chunks")
    return opened


def _check_pages(path: str | Path, names: set[str]) -> None:
    """Raise `DataError` if the pages of these columns decompress to more than the limit."""
    unpacked = pages = 0
    with _opened(path) as opened, open_file(path) as file:
        metadata = opened.metadata
        largest = os.fstat(file.fileno()).st_size
        for group in range(metadata.num_row_groups):
            for number in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(number)
                if chunk.path_in_schema not in names:
                    continue
                first = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
                at = min(first or chunk.data_page_offset, chunk.data_page_offset)
                end = min(at + chunk.total_compressed_size, largest)
                while 0 <= at < end:
                    file.seek(at)
                    header = _integers(file)
                    size, stored = header.get(2, -1), header.get(3, -1)
                    if size < 0 or stored < 0:
                        raise ValueError("the header of a page is damaged")
                    unpacked, pages, at = unpacked + size, pages + 1, file.tell() + stored
                    _check_unpacked(path, unpacked)
                    if pages > _MOST_PAGES:
                        raise _too_large(path, f"more than {_MOST_PAGES:,} pages", f"{_MOST_PAGES:,}")


def _check_unpacked(path: str | Path, size: int) -> None:
    if size > _LARGEST:
        raise _too_large(path, f"{size / _MB:,.0f} MB or more when unpacked", f"{_LARGEST // _MB} MB")


def _integers(file: IO[bytes], depth: int = 0) -> dict[int, int]:
    """Read a structure in Thrift's compact protocol, and return its integers by the number of their field."""
    out: dict[int, int] = {}
    field = 0
    while head := _byte(file):
        field = field + (head >> 4) if head >> 4 else _signed(file)
        kind = head & 15
        if kind in (4, 5, 6):
            out[field] = _signed(file)
        elif kind == 8:  # bytes, such as a column's smallest value
            file.seek(_varint(file), os.SEEK_CUR)
        elif kind == 12 and depth < _DEEPEST:
            _integers(file, depth + 1)
        elif kind not in (1, 2):  # true and false have no content
            raise ValueError("the header of a page is damaged")
    return out


def _byte(file: IO[bytes]) -> int:
    if not (read := file.read(1)):
        raise ValueError("the file ends within a page")
    return read[0]


def _varint(file: IO[bytes]) -> int:
    number = 0
    for shift in range(0, 70, 7):
        byte = _byte(file)
        number |= (byte & 127) << shift
        if byte < 128:
            return number
    raise ValueError("the header of a page is damaged")


def _signed(file: IO[bytes]) -> int:
    number = _varint(file)
    return (number >> 1) ^ -(number & 1)


def _unreadable(path: str | Path, error: BaseException) -> DataError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return DataError(f"{path}: not a readable Parquet file ({reason[:300]})")


def _too_large(path: str | Path, size: str, most: str) -> DataError:
    return DataError(f"{path}: {size}; isolaw reads up to {most}. {_HINT}")


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def is_plain(kind: pa.DataType) -> bool:
    """Return whether a column of this type contains one plain value per row, such as a number or a text."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_fixed_size_binary(kind):
        return bool(kind.byte_width <= _WIDEST)
    return _is_text(kind) or not (pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def _decoded_bytes(column: pa.Array) -> int:
    """Return the number of bytes that a column would use if each row had its own copy of its text."""
    if pa.types.is_dictionary(column.type) and _is_text(column.type.value_type):
        lengths = pc.binary_length(column.dictionary).cast(pa.int64())
        counts = pc.value_counts(column.indices.drop_null())
        texts = pc.multiply(lengths.take(counts.field("values")), counts.field("counts"))
        return int(column.indices.nbytes + (pc.sum(texts).as_py() or 0))
    return int(column.nbytes)
