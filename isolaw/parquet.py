"""Read Parquet files within limits, since a few kB can decode to many GB, and a footer can be wrong.

isolaw first adds up what the pages say they decompress to, which Arrow allocates whatever the footer says. It
then reads batch by batch, and stops when the decoded values exceed the limit. Each text column is first read
as a dictionary, so a long text that a million rows repeat is in memory only once, and whole, since each batch
has its own copy of the dictionary.
"""

from __future__ import annotations

import io
import os
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from isolaw.errors import DataError
from isolaw.files import open_file

_MB = 1_000_000
_MOST_BYTES = 300 * _MB  # limit on the decoded bytes
_MOST_SMALL_BYTES, _MOST_RATIO = 100 * _MB, 100  # a file of a few kB that decompresses to 300 MB is a bomb
_MOST_FOOTER_BYTES = 2 * _MB
_MOST_ROWS = 1_500_000  # a row uses 400 bytes in `Runs`
_MOST_CELLS = 25_000_000
_MOST_COLUMNS = 10_000
_MOST_CHUNKS = 100_000
_MOST_PAGES = 300_000
_DICTIONARY_PAGE = 2  # the type of a page
# Numbers of Thrift fields: in the footer, a row group and a column chunk; in a chunk's metadata; in a page.
_ROW_GROUPS, _CHUNKS, _METADATA = 4, 1, 3
_NAME_PARTS, _STORED_BYTES, _DATA_OFFSET, _DICTIONARY_OFFSET = 3, 7, 9, 11
_PAGE_FIELDS = (1, 2, 3)  # its type, its bytes when decompressed, its bytes in the file
_MOST_DICTIONARY_BYTES = 32 * _MB  # Arrow copies it several times; writers stop at 1 MB
_MOST_LEVELS = 12  # levels of structures and lists in the footer
_BATCH_ROWS, _BATCH_CELLS = 16_384, 1_000_000
_PANDAS_BYTES = ((pa.types.is_decimal, 112), (pa.types.is_date, 48), (pa.types.is_time, 48))
_MOST_FIXED_BYTES = 32  # limit on the bytes of a fixed-length value
# Besides Arrow's own errors: values that Python has no type for (a time zone, a year, a text not in UTF-8).
_READ_ERRORS = pa.ArrowException, OSError, ValueError, OverflowError, LookupError, TypeError
_SIZE_HINT = "Keep only the rows and columns of the evaluations"


def read_parquet(path: str | Path) -> pa.Table:
    """Read the plain columns of a Parquet file, and leave out nested columns.

    Raises `DataError` if the file cannot be read, or has more than 1.5 million rows, 10,000 columns, 25
    million cells or 300 MB, or decompresses to more than 100 MB and 100 times its size.
    """
    try:
        with _open_parquet(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        # What pandas wrote about its index and types can be wrong, and is not needed.
        metadata = {key: value for key, value in (schema.metadata or {}).items() if key != b"pandas"}
        fields = [field.with_type(_TYPE_OF_VIEW.get(field.type, field.type)) for field in schema]
        plain_schema = pa.schema([field for field in fields if is_plain(field.type)], metadata or None)
        if len(set(schema.names)) < len(schema):
            repeated = next(name for name in schema.names if schema.names.count(name) > 1)
            raise DataError(f"{path}: two columns are called {repeated[:100]!r}")
        if rows > _MOST_ROWS or rows * len(schema) > _MOST_CELLS:
            sizes = f"{rows:,} rows and {len(schema):,} columns"
            raise _too_large(path, sizes, f"{_MOST_ROWS:,} rows and {_MOST_CELLS:,} cells")
        _check_pages(path, set(plain_schema.names))
        text_names = [field.name for field in plain_schema if _is_text(field.type)]
        whole_names = [
            *text_names,
            *(field.name for field in plain_schema if pa.types.is_dictionary(field.type)),
        ]
        # Arrow reads a.b with a, even if it is another column.
        name_parts = sorted(name.split(".") for name in plain_schema.names)
        prefixing_names = {".".join(a) for a, b in pairwise(name_parts) if a == b[: len(a)]}
        whole_names = [name for name in whole_names if name not in prefixing_names]
        other_names = [*{*plain_schema.names}.difference(whole_names)]
        total_bytes, columns_by_name = 0, dict[str, pa.ChunkedArray]()
        with pq.ParquetFile(path, read_dictionary=text_names) as file:
            batch_rows = max(1, min(_BATCH_ROWS, _BATCH_CELLS // max(len(other_names), 1)))
            for names, row_limit in [
                *(([name], _MOST_ROWS) for name in whole_names),
                (other_names, batch_rows),
            ]:
                column_schema, tables = pa.schema([plain_schema.field(name) for name in names]), []
                for batch in file.iter_batches(row_limit, columns=names) if names else ():
                    total_bytes += sum(map(_decoded_bytes, batch.columns))
                    _check_unpacked(path, total_bytes)
                    tables.append(pa.Table.from_batches([batch]).select(names).cast(column_schema))
                table = pa.concat_tables([column_schema.empty_table(), *tables])
                columns_by_name |= zip(names, table.columns, strict=True)
        return _with_texts(pa.table([columns_by_name[name] for name in plain_schema.names], plain_schema))
    except _READ_ERRORS as error:
        raise _unreadable(path, error) from None


def _with_texts(table: pa.Table) -> pa.Table:
    """Return a table whose columns of bytes are texts, in which bytes that are not UTF-8 are escaped."""
    for index, field in enumerate(table.schema):
        value_type = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if not (_is_text(value_type) or pa.types.is_fixed_size_binary(value_type)):
            continue
        column = table.column(index).cast(value_type).cast(pa.large_binary())
        try:
            texts = column.cast(pa.large_string())
        except pa.ArrowInvalid:
            values = column.to_pylist()
            texts = pa.array(
                [value and value.decode("utf-8", "backslashreplace") for value in values], pa.large_string()
            )
        else:
            if value_type in (pa.string(), pa.large_string()):
                continue
        table = table.set_column(index, field.name, texts)
    return table


def frame_of(table: pa.Table, path: str | Path) -> pd.DataFrame:
    """Return a table read from a file as pandas; raise `DataError` if pandas has no such values."""
    try:
        return table.to_pandas()
    except _READ_ERRORS as error:
        raise _unreadable(path, error) from None


def column_names(path: str | Path) -> list[str]:
    """Return the names of a Parquet file's columns, or an empty list if the file is not readable."""
    try:
        with _open_parquet(path) as file:
            return list(file.schema_arrow.names)
    except (*_READ_ERRORS, DataError):
        return []


def _open_parquet(path: str | Path) -> pq.ParquetFile:
    with open_file(path) as file:
        file.seek(-min(8, os.fstat(file.fileno()).st_size), os.SEEK_END)
        tail = file.read(8)
    footer_bytes = int.from_bytes(tail[:4], "little") if tail[4:] == b"PAR1" else 0
    if footer_bytes > _MOST_FOOTER_BYTES:
        raise _too_large(path, f"a Parquet footer of {footer_bytes:,} bytes", f"{_MOST_FOOTER_BYTES:,}")
    file_reader = pq.ParquetFile(path)
    metadata = file_reader.metadata
    if metadata.num_columns > _MOST_COLUMNS or metadata.num_row_groups * metadata.num_columns > _MOST_CHUNKS:
        file_reader.close()
        sizes = f"{metadata.num_columns:,} columns in {metadata.num_row_groups:,} row groups"
        raise _too_large(path, sizes, f"{_MOST_COLUMNS:,} columns and {_MOST_CHUNKS:,} column chunks")
    return file_reader


def _check_pages(path: str | Path, names: set[str]) -> None:
    """Raise `DataError` if the pages of these columns decompress to more than the limit.

    isolaw reads the footer itself, since a damaged column chunk ends the process in Arrow's own view of it.
    """
    total_bytes = page_count = 0
    with open_file(path) as file:
        file_bytes = os.fstat(file.fileno()).st_size
        most_bytes = min(_MOST_BYTES, _MOST_SMALL_BYTES + _MOST_RATIO * file_bytes)
        groups = _read_footer(file)[_ROW_GROUPS]
        for chunk in (chunk[_METADATA] for group in groups for chunk in group[_CHUNKS]):
            if b".".join(chunk[_NAME_PARTS]).decode("utf-8", "replace") not in names:
                continue
            dictionary_offset = chunk.get(_DICTIONARY_OFFSET) or chunk[_DATA_OFFSET]
            offset = min(dictionary_offset, chunk[_DATA_OFFSET])
            end = min(offset + chunk[_STORED_BYTES], file_bytes)
            while 0 <= offset < end:
                file.seek(offset)
                header = _read_structure(file)
                page_type, page_bytes, stored_bytes = (header[field] for field in _PAGE_FIELDS)
                if page_bytes < 0 or stored_bytes < 0:
                    raise ValueError("the header of a page is damaged")
                total_bytes, page_count = total_bytes + page_bytes, page_count + 1
                offset = file.tell() + stored_bytes
                _check_unpacked(path, total_bytes, most_bytes)
                if page_count > _MOST_PAGES:
                    raise _too_large(path, f"more than {_MOST_PAGES:,} pages", f"{_MOST_PAGES:,}")
                if page_type == _DICTIONARY_PAGE and page_bytes > _MOST_DICTIONARY_BYTES:
                    description = f"a dictionary of {page_bytes / _MB:,.0f} MB when unpacked"
                    raise _too_large(path, description, f"{_MOST_DICTIONARY_BYTES // _MB} MB")


def _read_footer(file: IO[bytes]) -> dict[int, Any]:
    file.seek(-8, os.SEEK_END)
    footer_bytes = int.from_bytes(file.read(4), "little")
    file.seek(-8 - footer_bytes, os.SEEK_END)
    return _read_structure(io.BytesIO(file.read(footer_bytes)))


def _check_unpacked(path: str | Path, total_bytes: int, most_bytes: int = 0) -> None:
    if total_bytes > (most_bytes := most_bytes or _MOST_BYTES):
        size = f"{total_bytes / _MB:,.0f} MB or more when unpacked"
        raise _too_large(path, size, f"{most_bytes // _MB} MB")


def _read_structure(file: IO[bytes], depth: int = 0) -> dict[int, Any]:
    """Read a structure in Thrift's compact protocol, and return its values by the number of their field."""
    values: dict[int, Any] = {}
    field = 0
    while header := _read_byte(file):
        field = field + (header >> 4) if header >> 4 else _read_signed(file)
        is_flag = header & 15 <= 2  # True or False
        values[field] = None if is_flag else _read_value(file, header & 15, depth + 1)
    return values


def _read_value(file: IO[bytes], kind: int, depth: int) -> Any:
    if kind <= 3:
        return _read_byte(file)
    if kind in (4, 5, 6):
        return _read_signed(file)
    if kind in (7, 8):  # a float; bytes, such as a column's name or its smallest value
        size = 8 if kind == 7 else _read_varint(file)
        content = file.read(min(size, _MOST_FOOTER_BYTES))
        if len(content) == size:
            return content
    elif depth < _MOST_LEVELS and kind in (9, 10):
        header = _read_byte(file)
        count = header >> 4 if header >> 4 < 15 else _read_varint(file)
        return [_read_value(file, header & 15, depth + 1) for _ in range(count)]
    elif depth < _MOST_LEVELS and kind == 12:
        return _read_structure(file, depth)
    raise ValueError("the header of a page is damaged")


def _read_byte(file: IO[bytes]) -> int:
    if not (content := file.read(1)):
        raise ValueError("the file ends within a page")
    return content[0]


def _read_varint(file: IO[bytes]) -> int:
    number = 0
    for shift in range(0, 70, 7):
        byte = _read_byte(file)
        number |= (byte & 127) << shift
        if byte < 128:
            return number
    raise ValueError("the header of a page is damaged")


def _read_signed(file: IO[bytes]) -> int:
    number = _read_varint(file)
    return (number >> 1) ^ -(number & 1)


def _unreadable(path: str | Path, error: BaseException) -> DataError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return DataError(f"{path}: not a readable Parquet file ({reason[:300]})")


def _too_large(path: str | Path, sizes: str, limits: str) -> DataError:
    return DataError(f"{path}: {sizes}; isolaw reads up to {limits}. {_SIZE_HINT}")


_TYPE_OF_VIEW = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def _is_text(data_type: pa.DataType) -> bool:
    return data_type in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def is_plain(data_type: pa.DataType) -> bool:
    """Return whether a column of this type contains one plain value per row, such as a number or a text."""
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    if pa.types.is_fixed_size_binary(data_type):
        return bool(data_type.byte_width <= _MOST_FIXED_BYTES)
    return _is_text(data_type) or not (
        pa.types.is_nested(data_type) or isinstance(data_type, pa.BaseExtensionType)
    )


def _decoded_bytes(column: pa.Array) -> int:
    """Return the number of bytes that a column uses in pandas if each row has its own copy of its text."""
    if pa.types.is_dictionary(column.type) and _is_text(column.type.value_type):
        lengths = pc.binary_length(column.dictionary).cast(pa.int64())
        counts = pc.value_counts(column.indices.drop_null())
        texts = pc.multiply(lengths.take(counts.field("values")), counts.field("counts"))
        return int(column.indices.nbytes + (pc.sum(texts).as_py() or 0))
    object_bytes = (bytes_each for is_type, bytes_each in _PANDAS_BYTES if is_type(column.type))
    return int(column.nbytes + len(column) * next(object_bytes, 0))
