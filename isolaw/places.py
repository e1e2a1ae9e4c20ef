"""Describe positions in a table for messages: the line of the file or the row number, and the value."""

from __future__ import annotations

from typing import Any

import pandas as pd

from isolaw.errors import shown

_SHOWN = 5
_LONGEST_SHOWN = 100  # limit on the characters of a value


def at(table: pd.DataFrame | pd.Series, index: Any) -> str:
    """Return the position of a row: its line in a CSV file, or otherwise its row number."""
    return f"{table.index.name or 'row'} {index}"


def found(bad: pd.Series) -> str:
    """Return the first of some wrong values and its position, as text."""
    value = bad.iloc[0]
    form = repr if isinstance(value, str) else str
    return f"{at(bad, bad.index[0])} has {shown(value, form, _LONGEST_SHOWN)}"


def rows(table: pd.DataFrame, index: pd.Index, column: str) -> str:
    """Return the positions of the first rows, each with its value of a column, configuration and step.

    One line of a wide table becomes several rows, one for each metric. Only the first of these rows is shown.
    """
    texts = [
        f"{at(table, i)} ({column} {row[column]}, B_p {row['problems_per_batch']}, "
        f"n {row['rollouts_per_problem']}, step {row['step']})"
        for i in dict.fromkeys(index[:_SHOWN])
        for row in [table.loc[[i]].iloc[0]]
    ]
    return ", ".join(texts) + (f" and {len(index) - _SHOWN} more" if len(index) > _SHOWN else "")
