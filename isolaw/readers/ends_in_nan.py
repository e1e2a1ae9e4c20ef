"""Find the runs of a table that diverge: their metric is NaN in all rows after its last value.

A written NaN is such an end. An empty cell usually means that nothing was measured at this step, but pandas
writes NaN as an empty cell. isolaw therefore also counts empty cells as NaN if the rows of a run go on far
longer without a value than between its values, and the run has not come as far as the others: a table with
the same steps for all runs has empty cells after the end of the shorter ones.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from isolaw.runs import CURVE, after_last_value

_LONGER = 2  # rows without a value at the end, as a multiple of the longest gap between values
_FAR = 0.9  # share of the largest measured compute at which a run has come to its end


def ends_in_nan(table: pd.DataFrame, written: pd.Series) -> tuple[pd.Series, list[str]]:
    """Return a mask of the rows of NaN at the end of a curve, and a note if some of them are empty cells.

    ``table`` has the columns of `CURVE`, ``step``, ``compute`` and ``value``, and ``written`` marks the rows
    in which NaN is written out.
    """
    whole = pd.RangeIndex(len(table))  # a table of several metrics repeats its index
    after, marked = after_last_value(table).set_axis(whole), written.set_axis(whole)
    ends, rows = after & marked, table.set_axis(whole)
    rows = rows.assign(**{name: pd.to_numeric(rows[name], errors="coerce") for name in ("step", "compute")})
    farthest = rows["compute"][rows["value"].notna()].max()
    empty = []
    for (run_id, _, metric), curve in rows[rows["run_id"].isin(rows["run_id"][after])].groupby(CURVE):
        curve = curve.sort_values("step", kind="stable")
        at = np.flatnonzero(curve["value"].notna())
        if not at.size or marked[curve.index].any():
            continue
        gap, last = int(np.diff(at, prepend=-1).max()) - 1, curve.iloc[at[-1]]
        if len(curve) - 1 - at[-1] > _LONGER * max(gap, 1) and last["compute"] < _FAR * farthest:
            ends[curve.index[at[-1] + 1 :]] = True
            empty.append(f"{metric} of {run_id} after step {last['step']:g}")
    ends = ends.set_axis(table.index)
    if not empty:
        return ends, []
    more = f" and {len(empty) - 1} more" if len(empty) > 1 else ""
    return ends, [
        f"no more values: {empty[0]}{more}. isolaw takes the empty cells at the end for NaN, since pandas "
        "writes NaN so; leave out these rows if the run ended there"
    ]
