"""The mapping file: how the columns of a table of one's own become the data model's.

::

    [columns]                        # our name = "column"
    rollouts_per_problem = "rollout_n"

    [derive]                         # our name = "arithmetic on columns"
    compute = "prompts_seen*rollout_n"

    [constants]                      # our name = one value for all rows
    problems_per_batch = 512

    [metrics]                        # metric = "column", or with what is to know of it
    "avg@1" = "holdout_acc_raw"
    accuracy = { column = "eval_acc", eval_set = "aime24", percent = true }
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from isolaw.config.parsing import located, parse_section, read_text
from isolaw.errors import DataError, InputError, SpecError, unknown
from isolaw.metrics import is_accuracy
from isolaw.readers.table import Mapped


class MetricColumn(BaseModel):
    """A column that holds a metric: its evaluation set, and whether it is in percent."""

    model_config = ConfigDict(extra="forbid")

    column: str
    eval_set: str = "validation"
    percent: bool | None = None  # None: an accuracy above 1 is

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value

    def is_percent(self, metric: str, value: pd.Series) -> bool:
        """Return whether these values of ``metric`` are to be divided by 100."""
        if self.percent is not None:
            return self.percent
        return is_accuracy(metric) and bool(value.min() >= 0 and 1 < value.max() <= 100)


def _one_value(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise ValueError("a text, a number, true or false")
    return value


class MappingFile(BaseModel):
    """The sections of a mapping file."""

    model_config = ConfigDict(extra="forbid")

    columns: dict[str, str] = Field(default_factory=dict)
    derive: dict[str, str] = Field(default_factory=dict)
    constants: dict[str, Annotated[Any, BeforeValidator(_one_value)]] = Field(default_factory=dict)
    metrics: dict[str, MetricColumn] = Field(default_factory=dict)


@dataclass(frozen=True)
class Metrics:
    """Which columns of a wide table are metrics: name → column, evaluation set, percent or not."""

    of: Mapping[str, MetricColumn] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.of)

    @property
    def sources(self) -> set[str]:
        """The columns that are used."""
        return {own.column for own in self.of.values()}

    def melt(self, table: pd.DataFrame, source: str) -> tuple[pd.DataFrame, list[str]]:
        """Return the long form, a row for each row and metric, and notes; empty cells are missing values.

        Raises
        ------
        DataError
            a column is not there, or holds something else than numbers.
        """
        pieces, notes = [], []
        for name, own in self.of.items():
            if own.column not in table.columns:
                said = unknown("column", own.column, table.columns)
                raise DataError(f"{source}: metric {name!r}: {said}")
            cells = table[own.column]
            value = pd.to_numeric(cells, errors="coerce").astype("float64")
            texts = cells.map(lambda cell: isinstance(cell, str) and bool(cell.strip()))
            bad = cells.index[(value.isna() & texts) | value.abs().eq(float("inf"))]
            if len(bad):
                where = f"{table.index.name} {bad[0]}"
                raise DataError(
                    f"{source}: metric {name!r}: {own.column} is not a number in {where}: {cells[bad[0]]!r}"
                )
            if own.is_percent(name, value):
                notes.append(f"{name} was in percent (up to {value.max():g}): divided by 100")
                value = value / 100
            if empty := int(value.isna().sum()):
                notes.append(f"{name}: {empty:,} of {len(value):,} cells are empty and were left out")
            pieces.append(table.assign(metric=name, eval_set=own.eval_set, value=value))
        return pd.concat(pieces), notes


def read_mapping(path: str | Path) -> tuple[Mapped, Metrics]:
    """Read a mapping file.

    Raises
    ------
    InputError
        missing, not TOML, or with sections or values that a mapping does not have.
    """
    text = read_text(path)
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    try:
        file = parse_section(MappingFile, data)
    except SpecError as error:
        raise located(error, path) from None
    return Mapped(file.columns, file.derive, file.constants), Metrics(file.metrics)
