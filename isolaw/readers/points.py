"""Ready-made points (C, n*) from a table, mapped like any other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.errors import DataError, nearest
from isolaw.readers.load import load
from isolaw.readers.table import Mapped


def read_points(
    path: str | Path,
    x: str,
    columns: Mapping[str, str] | None = None,
    derive: Mapping[str, str] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the columns ``x`` (compute or steps) and ``n_star`` of a CSV or Parquet table.

    Raises
    ------
    DataError
        a column is missing, or holds something else than numbers.
    """
    table = Mapped(columns or {}, derive or {}, constants or {}).apply(load(path), str(path))
    out = []
    for name in (x, "n_star"):
        if name not in table.columns:
            close = nearest(name, map(str, table.columns))
            hint = f"did you mean --column {name}={close}? " if close else ""
            raise DataError(
                f"{path}: no column {name!r}; {hint}name it with --column {name}=<column>; "
                f"columns: {', '.join(map(str, table.columns))}"
            )
        numbers = pd.to_numeric(table[name], errors="coerce")
        bad = table.index[numbers.isna()]
        if len(bad):
            raise DataError(
                f"{path}: {name} is not a number in {table.index.name} {bad[0]}: {str(table[name][bad[0]])!r}"
            )
        out.append(np.asarray(numbers, dtype=np.float64))
    return out[0], out[1]
