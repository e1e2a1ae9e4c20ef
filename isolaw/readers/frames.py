"""Tables in memory: pandas, and libraries that export columns by Arrow or the interchange protocol.

isolaw reads polars, pyarrow, DuckDB and Hugging Face data sets without importing these libraries.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.interchange as interchange

from isolaw.errors import DataError
from isolaw.parquet import is_plain
from isolaw.runs import attributes_in, with_plain_columns

SOURCE = "DataFrame"  # name of an in-memory table in messages
_EXPECTED = "a path, Runs, or a table (pandas, polars, pyarrow, datasets)"


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
    elif hasattr(table, "__arrow_c_stream__") or hasattr(table, "__dataframe__"):
        frame = _from_arrow(table, notes, attributes)
    elif callable(getattr(table, "to_pandas", None)):
        frame = table.to_pandas()
    else:
        hint = "; call its collect() first" if callable(getattr(table, "collect", None)) else ""
        raise DataError(f"source: found {type(table).__name__}; expected {_EXPECTED}{hint}")
    if frame.columns.nlevels > 1:
        raise DataError(f"{SOURCE}: found columns of {frame.columns.nlevels} levels; expected one level")
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    frame = frame.reset_index(level=named) if named else frame.copy()
    frame.columns = pd.Index([str(name) for name in frame.columns])
    if twice := frame.columns[frame.columns.duplicated()].tolist():
        raise DataError(f"{SOURCE}: two columns are called {twice[0]!r}")
    if frame.empty:
        raise DataError(f"{SOURCE}: the table has no rows; columns: {', '.join(frame.columns)}")
    frame = with_plain_columns(frame.set_axis(pd.RangeIndex(len(frame), name="row")), SOURCE)
    frame.attrs = {"notes": notes, "attributes": attributes}
    return frame


def _from_arrow(table: Any, notes: list[str], attributes: dict[str, dict[str, Any]]) -> pd.DataFrame:
    try:
        arrow = pa.table(table) if hasattr(table, "__arrow_c_stream__") else interchange.from_dataframe(table)
        attributes.update(attributes_in(arrow.schema, type(table).__name__))
        nested = [field.name for field in arrow.schema if not is_plain(field.type)]
        if nested:
            notes.append(f"isolaw left out nested columns: {', '.join(nested)}")
        return arrow.drop_columns(nested).to_pandas(ignore_metadata=True)
    except (pa.ArrowException, NotImplementedError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{type(table).__name__}: not a readable table ({reason[:300]})") from None
