"""`ColumnMapping`: maps the columns of a user's table to the data model. A file can contain a mapping:

::

    [columns]                        # our name, or its symbol = "column"
    rollouts_per_problem = "rollout_n"   # or n = "rollout_n"

    [derive]                         # our name = "arithmetic on columns"
    compute = "prompts_seen*rollout_n"

    [constants]                      # our name = one value for all rows
    problems_per_batch = 512

    [metrics]                        # metric = "column", or a table with its evaluation set and unit
    "avg@1" = "holdout_acc_raw"
    accuracy = { column = "eval_acc", eval_set = "aime24", percent = true }
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from isolaw.commands import option
from isolaw.documents.reading import read_toml
from isolaw.documents.validation import located, parse_section
from isolaw.errors import DataError, InputError, SpecError, unknown
from isolaw.metrics import is_accuracy
from isolaw.readers.assignments import ALIASES
from isolaw.readers.measures import named_percent
from isolaw.runs import full_names

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_EXPECTED = "numbers, column names, + - * / // and brackets"
_LONGEST = 1_000


class MetricColumn(BaseModel):
    """A column that contains a metric, with its evaluation set and unit."""

    model_config = ConfigDict(extra="forbid")

    column: str
    eval_set: str | None = None  # None: the table's column eval_set, or validation
    percent: bool | None = None  # None: in percent if the column's name says so, or if an accuracy exceeds 1

    @property
    def is_percent(self) -> bool | None:
        """True if the metric is in percent, according to the user or the column's name; None if unknown."""
        return (named_percent(self.column) or None) if self.percent is None else self.percent

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value


def _one_value(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str | np.generic):
        raise ValueError("a text, a number, true or false")
    return value


class ColumnMapping(BaseModel):
    """The rules that build the data model's columns from a user's table."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    columns: dict[str, str] = Field(default_factory=dict)  # our name → the table's column
    derive: dict[str, str] = Field(default_factory=dict)  # our name → arithmetic on columns
    # Our name → one value for all rows.
    constants: dict[str, Annotated[Any, BeforeValidator(_one_value)]] = Field(default_factory=dict)
    # Metric → its column in a wide table, in which empty cells are missing values.
    metrics: dict[str, MetricColumn] = Field(default_factory=dict)
    _file: str = PrivateAttr("")

    def of_file(self, path: str) -> ColumnMapping:
        """Return the mapping with the path of its file, for messages (`file`)."""
        out = self.model_copy()
        out._file = path
        return out

    @property
    def file(self) -> str:
        """The path of the mapping's file; empty for options and keywords."""
        return self._file

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, data: Any) -> Any:
        """Replace symbols by names, and move reward columns (``{"avg@4": "val_acc"}``) to the metrics."""
        if not isinstance(data, Mapping):
            return data
        out = dict(data)
        taken: set[str] = set()
        for part in ("columns", "derive", "constants"):
            if not isinstance(out.get(part), Mapping):
                continue
            out[part] = full_names(out[part], ALIASES)
            if twice := sorted(taken & out[part].keys()):
                raise InputError(f"{part}: {twice[0]} is given twice; expected one column, value or formula")
            taken |= out[part].keys()
        if isinstance(columns := out.get("columns"), Mapping):
            rewards = {
                name: column for name, column in columns.items() if name == "reward" or is_accuracy(name)
            }
            out["columns"] = {name: column for name, column in columns.items() if name not in rewards}
            out["metrics"] = {**rewards, **(out.get("metrics") or {})}
        return out

    def __bool__(self) -> bool:
        return bool(self.columns or self.derive or self.constants or self.metrics)

    @property
    def names(self) -> list[str]:
        """The names in the data model that the mapping provides, without metrics."""
        return [*self.columns, *self.derive, *self.constants]

    @property
    def required(self) -> set[str]:
        """The columns of the table that the mapping names."""
        return {*self.columns.values(), *(own.column for own in self.metrics.values())}

    @property
    def sources(self) -> set[str]:
        """The columns of the table that the mapping uses, including in arithmetic."""
        return self.required | {word for text in self.derive.values() for word in re.findall(r"\w+", text)}

    def over(self, base: ColumnMapping) -> ColumnMapping:
        """Return ``base`` with this mapping's names added or replaced."""
        ours, given = (self.columns, self.derive, self.constants), set(self.names)
        columns, derived, constants = (
            {**{name: value for name, value in below.items() if name not in given}, **own}
            for below, own in zip((base.columns, base.derive, base.constants), ours, strict=True)
        )
        metrics = {**base.metrics, **self.metrics}
        out = ColumnMapping(columns=columns, derive=derived, constants=constants, metrics=metrics)
        return out.of_file(self.file or base.file)

    def apply(self, frame: pd.DataFrame, source: str) -> pd.DataFrame:
        """Return ``frame`` with mapped columns added or replaced; raise `DataError` for unknown columns."""
        out = frame.copy()
        for name, column in self.columns.items():
            if column not in frame.columns:
                missing = unknown("column", column, frame.columns)
                raise DataError(f"{source}: " + option("columns", name, column) + f": {missing}")
            out[name] = frame[column]
        for name, value in self.constants.items():
            out[name] = value
        for name, expression in self.derive.items():
            out[name] = derive(expression, dict(out.items()))
        return out

    def melt(self, table: pd.DataFrame, source: str) -> tuple[pd.DataFrame, list[str]]:
        """Return the table in long form, with a row for each original row and metric, and notes.

        Raises `DataError` if a metric's column is missing or contains anything but numbers.
        """
        pieces, notes = [], []
        for name, own in self.metrics.items():
            if own.column not in table.columns:
                missing = unknown("column", own.column, table.columns)
                raise DataError(f"{source}: metric {name!r}: {missing}")
            cells = table[own.column]
            value = pd.to_numeric(cells, errors="coerce").astype("float64")
            texts = cells.map(lambda cell: isinstance(cell, str) and bool(cell.strip()))
            bad = cells.index[(value.isna() & texts) | value.abs().eq(float("inf"))]
            if len(bad):
                where = f"{table.index.name} {bad[0]}"
                raise DataError(
                    f"{source}: metric {name!r}: {own.column} is not a number in {where}: {cells[bad[0]]!r}"
                )
            if own.is_percent:  # otherwise the values of each run decide, once the runs are known
                notes.append(f"{name} was in percent (up to {value.max():g}): divided by 100")
                value = value / 100
            if empty := int(value.isna().sum()):
                notes.append(f"{name}: {empty:,} of {len(value):,} cells are empty; isolaw left them out")
            eval_set = own.eval_set or table.get("eval_set", "validation")
            pieces.append(table.assign(metric=name, eval_set=eval_set, value=value))
        return pd.concat(pieces), notes


def read_mapping(path: str | Path) -> ColumnMapping:
    """Read a mapping file.

    Raises `InputError` if the file is missing, is not TOML, or has a section or value that a mapping cannot
    have.
    """
    data = read_toml(path)
    try:
        return parse_section(ColumnMapping, data).of_file(str(path))
    except SpecError as error:
        raise located(error, path) from None


def derive(expression: str, columns: Mapping[str, Any]) -> Any:
    """Return the value of ``expression`` over ``columns``, which are arrays or Series of equal length.

    Raises `DataError` for anything but arithmetic, for an unknown column, and for a column that is not
    numeric.

    >>> derive("(a + 1) * 2", {"a": np.array([1.0, 2.0])})
    array([4., 6.])
    """
    if len(expression) > _LONGEST:
        raise DataError(f"derive: the expression is longer than {_LONGEST} characters")
    try:
        with np.errstate(all="ignore"):  # a division by zero is reported as a value that is not finite
            return _value(ast.parse(expression.strip(), mode="eval").body, columns)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise DataError(f"derive {expression!r}: not arithmetic; expected {_EXPECTED}") from None
    except DataError as error:
        raise DataError(f"derive {expression!r}: {error}") from None


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
