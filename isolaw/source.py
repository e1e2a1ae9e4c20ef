"""What functions of runs take: `Runs`, or whatever `isolaw.read` makes runs of."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypedDict, Unpack

import pandas as pd

from isolaw.errors import InputError
from isolaw.runs import Runs


class Arrow(Protocol):
    """A table that hands over its columns by Arrow: pyarrow, polars, pandas, DuckDB."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return a stream of record batches."""


class Interchangeable(Protocol):
    """A table of the dataframe interchange protocol."""

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any:
        """Return the interchange object."""


class Dataset(Protocol):
    """A table that becomes pandas, as one of Hugging Face datasets."""

    def to_pandas(self) -> Any:
        """Return it as pandas."""


class ReadKeywords(TypedDict, total=False):
    """Keywords of `isolaw.read` that functions of runs pass on."""

    columns: Mapping[str, str]
    derive: Mapping[str, str]
    constants: Mapping[str, Any]
    mapping: str | Path
    settings: Iterable[str] | Mapping[str, Any]
    format: str
    group_by: str
    only: str | Iterable[str]
    exclude: str | Iterable[str]
    name_pattern: str | Iterable[str]
    settings_file: str | Path


Source: TypeAlias = Runs | pd.DataFrame | str | os.PathLike[str] | Arrow | Interchangeable | Dataset


def as_runs(source: Source, metric: str | None = None, **reading: Unpack[ReadKeywords]) -> Runs:
    """Return runs as they are, and anything else as `isolaw.read` reads it.

    Raises `InputError` for keywords of reading where nothing is left to read.
    """
    if unknown := [name for name in reading if name not in ReadKeywords.__annotations__]:
        valid = ", ".join(ReadKeywords.__annotations__)
        raise TypeError(f"unexpected keyword {unknown[0]!r}; to read a table: {valid}")
    if not isinstance(source, Runs):
        import isolaw  # readers are of a higher layer

        return isolaw.read(source, metric=metric, **reading)
    if reading:
        raise InputError(f"{next(iter(reading))}: found Runs, which are already read; give it to isolaw.read")
    return source
