"""Define the types that functions accept as runs: `Runs`, or any source that `isolaw.read` can read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias, TypedDict

import pandas as pd

from isolaw.runs import Runs


class Arrow(Protocol):
    """A table that exports its columns through Arrow, such as from pyarrow, polars, pandas or DuckDB."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return a stream of record batches."""


class Interchangeable(Protocol):
    """A table that supports the dataframe interchange protocol."""

    def __dataframe__(self, nan_as_null: bool = False, allow_copy: bool = True) -> Any:
        """Return the interchange object."""


class Dataset(Protocol):
    """A table that converts to pandas, such as a dataset from Hugging Face datasets."""

    def to_pandas(self) -> Any:
        """Return the table as pandas."""


class ReadKeywords(TypedDict, total=False):
    """The keywords that functions of runs pass to `isolaw.read`."""

    columns: Mapping[str, str]
    set: Iterable[str] | Mapping[str, Any]
    format: str
    group_by: str
    only: str | Iterable[str]
    name_pattern: str | Iterable[str]


Source: TypeAlias = Runs | pd.DataFrame | str | os.PathLike[str] | Arrow | Interchangeable | Dataset
