"""The columns that a user names in a table: by their name, or by arithmetic on them.

A column's name is the simplest arithmetic. If a text is the name of a column, it is that column, whatever
characters it has.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from isolaw.commands import option
from isolaw.errors import DataError, unknown
from isolaw.readers.how_to_read import HowToRead
from isolaw.readers.measures import named_percent, of_training, says_its_set
from isolaw.readers.names import ALIASES

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_EXPECTED = "numbers, column names, + - * / // and brackets"
_LONGEST = 1_000
_WORD = re.compile(r"[^\W\d]\w*")
_ARITHMETIC = re.compile(r"[\w\s.+*/()-]+")


def lacking(text: str, names: Collection[str]) -> list[str]:
    """Return the names in a text that a table with these columns lacks.

    >>> lacking("val/acc", ["val/acc"]), lacking("2*k", ["m"]), lacking("k*m", ["m"]), lacking("val acc", [])
    ([], ['2*k'], ['k'], ['val acc'])
    """
    if text in names or ALIASES.get(text) in names:
        return []
    words = _WORD.findall(text) if _ARITHMETIC.fullmatch(text) else [text]
    missing = [each for each in words if each not in names and ALIASES.get(each) not in names]
    return [text] if missing and missing == words else missing


def columns_needed(how: HowToRead, columns: Collection[str] = ()) -> list[str]:
    """Return the columns that a table with these columns lacks to be read with ``how``."""
    texts = [*how.columns.items(), *((name, metric.column) for name, metric in how.metrics.items())]
    missing = (lacking(text, {*columns, *how.names} - ({name} - {*columns})) for name, text in texts)
    return list(dict.fromkeys(each for names in missing for each in names))


def columns_used(how: HowToRead, columns: Collection[str]) -> set[str]:
    """Return the names of columns that ``how`` uses, including in arithmetic."""
    return {each for text in how.texts for each in (text, *(() if text in columns else _WORD.findall(text)))}


def apply(how: HowToRead, frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return ``frame`` with the named columns and values added; raise `DataError` for unknown columns."""
    out = frame.copy()
    arithmetic = {name: text for name, text in how.columns.items() if text not in frame.columns}
    for name, text in how.columns.items():
        if name not in arithmetic:
            out[name] = frame[text]
    for name, value in how.values.items():
        out[name] = value
    for name, text in arithmetic.items():
        if name not in how.values:
            if lacking(text, out.columns) == [text]:
                missing = unknown("column", text, frame.columns)
                raise DataError(f"{source}: " + option("columns", name, text) + f": {missing}")
            out[name] = derive(text, dict(out.items()))
    return out


def melt(how: HowToRead, table: pd.DataFrame, source: str) -> tuple[pd.DataFrame, list[str], set[str]]:
    """Return the table in long form, with a row for each original row and metric; notes; metrics with a unit.

    Raises `DataError` if a metric's column is missing or contains anything but numbers.
    """
    pieces, notes, units = [], [], set[str]()
    for name, metric in how.metrics.items():
        named = metric.column in table.columns
        if not named and lacking(metric.column, table.columns) == [metric.column]:
            missing = unknown("column", metric.column, table.columns)
            raise DataError(f"{source}: metric {name!r}: {missing}")
        cells = table[metric.column] if named else derive(metric.column, dict(table.items()))
        cells = pd.Series(cells, index=table.index)
        value = pd.to_numeric(cells, errors="coerce").astype("float64")
        texts = cells.map(lambda cell: isinstance(cell, str) and bool(cell.strip()))
        bad = cells.index[(value.isna() & texts) | value.abs().eq(float("inf"))]
        if len(bad):
            at = f"{metric.column} is not a number in {table.index.name} {bad[0]}: {cells[bad[0]]!r}"
            raise DataError(f"{source}: metric {name!r}: {at}")
        percent = metric.percent
        if percent is None and named and named_percent(metric.column):
            percent = True
        if percent is not None:  # otherwise the values of each run decide, once the runs are known
            units.add(name)
        if percent:
            notes.append(f"{name} was in percent (up to {value.max():g}): divided by 100")
            value = value / 100
        if empty := int(value.isna().sum()):
            notes.append(f"{name}: {empty:,} of {len(value):,} cells are empty; isolaw left them out")
        trained = of_training(metric.column, list(map(str, table.columns))) and not says_its_set(name)
        eval_set = metric.eval_set or table.get("eval_set", "train" if trained else "validation")
        pieces.append(table.assign(metric=name, eval_set=eval_set, value=value))
    return pd.concat(pieces), notes, units


def derive(text: str, columns: Mapping[str, Any]) -> Any:
    """Return the value of arithmetic over ``columns``, which are arrays or Series of equal length.

    Raises `DataError` for anything but arithmetic, for an unknown column, and for a column that is not
    numeric.

    >>> derive("(a + 1) * 2", {"a": np.array([1.0, 2.0])})
    array([4., 6.])
    """
    if len(text) > _LONGEST:
        raise DataError(f"columns: the arithmetic is longer than {_LONGEST} characters")
    try:
        with np.errstate(all="ignore"):  # a division by zero is reported as a value that is not finite
            return _value(ast.parse(text.strip(), mode="eval").body, columns)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise DataError(f"columns: {text!r}: not arithmetic; expected {_EXPECTED}") from None
    except DataError as error:
        raise DataError(f"columns: {text!r}: {error}") from None


def _value(node: ast.expr, columns: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left, columns), _value(node.right, columns))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, columns)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return np.float64(str(node.value))  # through text: a huge integer becomes inf, not an error
    if isinstance(node, ast.Name):
        name = node.id if node.id in columns else ALIASES.get(node.id, node.id)
        if name not in columns:
            raise DataError(unknown("column", node.id, columns))
        numbers = pd.to_numeric(columns[name], errors="coerce")
        if np.all(pd.isna(numbers)):
            raise DataError(f"column {node.id!r} is not numeric")
        return np.asarray(numbers, dtype=np.float64)
    raise DataError(f"{ast.unparse(node)!r} is not arithmetic on columns; expected {_EXPECTED}")
