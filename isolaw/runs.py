"""`Runs`: the data structure that backends, logs, fits and reports share.

`Runs` contains one tidy table with a row for each (run_id, step, eval_set, metric), and optionally a table
with the results of single problems. A run is one training trajectory with one configuration (B_p, n), seed,
problem set and recipe. A run provides the rewards of every M up to its last step. `Source` is what functions
accept as runs.
"""

from __future__ import annotations

import copy
import html
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, TypeAlias, TypedDict

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from isolaw.arguments import checked
from isolaw.commands import Placeholder, option
from isolaw.errors import DataError, InputError, Wording, check_type, nearest, shown
from isolaw.evidence import COLUMN, Simulated, simulated_rows
from isolaw.files import check_destination
from isolaw.parquet import frame_of, read_parquet
from isolaw.registry import BACKENDS, traits

_MOST_ROWS = 5
_MOST_CHARACTERS = 100  # limit on the characters of a value


def _position(table: pd.DataFrame | pd.Series, index: Any) -> str:
    """Return the position of a row: its line in a CSV file, or otherwise its row number."""
    return f"{table.index.name or 'row'} {index}"


def _first_wrong_value(wrong: pd.Series) -> str:
    """Return the first of some wrong values and its position, as text."""
    value = wrong.iloc[0]
    to_text = repr if isinstance(value, str) else str
    return f"{_position(wrong, wrong.index[0])} has {shown(value, to_text, _MOST_CHARACTERS)}"


def _rows_in(table: pd.DataFrame, index: pd.Index, column: str) -> str:
    """Return the positions of the first rows, each with its value of a column, configuration and step.

    One line of a wide table becomes several rows, one for each metric. Only the first of these rows is shown.
    """
    positions = [
        f"{_position(table, i)} ({column} {row[column]}, B_p {row['problems_per_batch']}, "
        f"n {row['rollouts_per_problem']}, step {row['step']})"
        for i in dict.fromkeys(index[:_MOST_ROWS])
        for row in [table.loc[[i]].iloc[0]]
    ]
    return ", ".join(positions) + (f" and {len(index) - _MOST_ROWS} more" if len(index) > _MOST_ROWS else "")


# Columns of the table in order, with their dtypes. Columns with a nullable dtype can contain unknown values.
COLUMNS: dict[str, str] = {
    "run_id": "str",
    "problem_set": "str",
    "algorithm": "str",
    "problems_per_batch": "int64",
    "rollouts_per_problem": "int64",
    "seed": "int64",
    "step": "int64",
    "compute": "int64",  # training rollouts generated so far, excluding evaluation
    "tokens": "Int64",
    "wall_s": "float64",  # the only column in which two identical runs can differ
    "eval_set": "str",
    "metric": "str",
    "value": "float64",
    "n_problems": "Int64",
    "n_samples": "Int64",
}
# Symbols that mappings, options and keywords accept in place of the names of columns.
SYMBOLS = {
    "B_p": "problems_per_batch",
    "n": "rollouts_per_problem",
    "B": "batch_rollouts",
    "M": "step",
    "C": "compute",
    "D": "n_train_problems",
}
SYMBOL_OF = {name: symbol for symbol, name in SYMBOLS.items()}
KEY = ["run_id", "step", "eval_set", "metric"]
CURVE = ["run_id", "eval_set", "metric"]  # the columns that name a curve
# Columns that are constant within a run.
IDENTITY = ["problem_set", "algorithm", "problems_per_batch", "rollouts_per_problem", "seed"]
# For tables that mark runs as simulated, and do not name the simulator.
_DEFAULT_SIMULATOR = next(name for name, backend in BACKENDS.items() if backend.simulated)
OPTIONAL = ("tokens", "wall_s", "n_problems", "n_samples")
_METADATA = b"isolaw.attributes"
_LARGEST_VALUE = 1e100
LARGEST_EXACT = 2**53  # larger integers are not exact as float64
_SMALLEST = {"problems_per_batch": 1, "rollouts_per_problem": 1, "step": 0, "compute": 0}
_OTHER_COLUMNS_HINT = "isolaw.read(df, columns={…}, set={…}) makes runs of a table with other columns"


class Runs:
    """Recorded runs: a table of measurements that is validated when it is created.

    Raises `DataError` if columns are missing, the table is empty, values are not finite, a key is repeated,
    or compute does not grow with the step. NaN is accepted at the end of a curve: from there on, the run has
    diverged.

    Parameters
    ----------
    points
        table with the columns in `COLUMNS`; columns in `OPTIONAL` can be missing.
    attributes
        additional facts about each run (lr, D, model, …), keyed by run_id.
    source
        the origin of the table, which messages mention.
    notes
        sentences for the user about assumptions of a reader.
    problems
        results of single problems: a row for each (run_id, step, eval_set, problem_id) with the number of
        ``correct`` answers among ``samples``.

    >>> row = dict(run_id="a", problem_set="easy", algorithm="grpo", problems_per_batch=32,
    ...            rollouts_per_problem=8, seed=0, step=1, compute=256, eval_set="validation",
    ...            metric="avg@4", value=0.5)
    >>> runs = Runs(pd.DataFrame([row]))
    >>> len(runs), runs.metrics("validation")
    (1, ['avg@4'])
    """

    @checked
    def __init__(
        self,
        points: pd.DataFrame,
        attributes: Mapping[str, Mapping[str, Any]] | None = None,
        source: str = "",
        notes: tuple[str, ...] = (),
        problems: pd.DataFrame | None = None,
    ) -> None:
        self.source = source
        self.problems = problems
        self.notes = notes
        self.points, self.diverged = _validated(points, source)  # finite values; the end of diverged curves
        run_ids = set(self.points["run_id"])
        given = attributes or {}
        self.attributes = {run_id: dict(given[run_id]) for run_id in given if run_id in run_ids}
        for run_id in _simulated_run_ids(points):
            self.attributes.setdefault(run_id, {}).setdefault("backend", _DEFAULT_SIMULATOR)
        # For each column that a table lacked, the source from which a reader took it.
        self.origins: dict[str, str] = {}
        self.left_out: tuple[Any, ...] = ()  # logs that a reader left out, as `FoundLog`

    def __len__(self) -> int:
        return int(self.points["run_id"].nunique())

    def __repr__(self) -> str:
        configurations = self.points[["problems_per_batch", "rollouts_per_problem"]].drop_duplicates()
        sizes = f"{len(self)} runs, {len(configurations)} configurations, {len(self.points)} rows"
        return f"<Runs: {self.simulated.title(sizes)}>"

    def _repr_html_(self) -> str:
        grouped = self.points.groupby(["problems_per_batch", "rollouts_per_problem"])
        table = grouped.agg(runs=("run_id", "nunique"), M=("step", "max"), C=("compute", "max")).reset_index()
        metrics_of_set = self.points.groupby("eval_set")["metric"].unique()
        lines = [f"{len(self)} runs, {len(table)} configurations, {len(self.points):,} rows"]
        lines += [f"{eval_set}: {listed(sorted(metrics), 8)}" for eval_set, metrics in metrics_of_set.items()]
        symbols = {"problems_per_batch": "B_p", "rollouts_per_problem": "n"}
        lines += [f"Note: {note}" for note in self.notes]
        return _as_html(self.simulated.lines(lines), table.rename(columns=symbols))

    @property
    def simulated(self) -> Simulated:
        """Label that states whether a simulator made any of the runs.

        Simulated runs are no evidence about a language model.
        """
        return Simulated.of(self.attributes.get(run_id, {}) for run_id in self.points["run_id"].unique())

    @property
    def rows(self) -> pd.DataFrame:
        """The table from which these runs can be built again: `points` with the NaN of `diverged`."""
        if self.diverged.empty:
            return self.points
        return pd.concat([self.points, self.diverged]).sort_values(KEY, kind="stable", ignore_index=True)

    @checked
    def metrics(self, eval_set: str) -> list[str]:
        """Return the names of the metrics that were measured on ``eval_set``."""
        return sorted(self.points.loc[self.points["eval_set"] == eval_set, "metric"].unique())

    def table(self) -> pd.DataFrame:
        """Return a table with one row per run, which contains its constant columns and its attributes."""
        runs = self.points.groupby("run_id", sort=True)[IDENTITY].first()
        extra = pd.DataFrame.from_dict(self.attributes, orient="index")
        return runs.join(extra[[c for c in extra.columns if c not in IDENTITY]], how="left")

    @checked
    def select(self, run_ids: Iterable[str]) -> Runs:
        """Return only the runs in ``run_ids``."""
        keep = list(run_ids)
        return self.part(lambda table: table["run_id"].isin(keep))

    def part(self, rows: Callable[[pd.DataFrame], pd.Series]) -> Runs:
        """Return only the rows for which ``rows`` is true, given a table with the columns of `points`.

        Raises `DataError` if there are none.
        """
        selected = copy.copy(self)  # skips validation, since part of a valid table is valid
        selected.points = self.points[rows(self.points)].reset_index(drop=True)
        if selected.points.empty:
            raise DataError(f"{f'{self.source}: ' if self.source else ''}the table has no rows")
        selected.diverged = self.diverged[rows(self.diverged)]
        run_ids = set(selected.points["run_id"])
        if self.problems is not None:
            selected.problems = self.problems[self.problems["run_id"].isin(run_ids)]
        selected.attributes = {
            run_id: dict(values) for run_id, values in self.attributes.items() if run_id in run_ids
        }
        return selected

    @classmethod
    @checked
    def concat(cls, parts: Sequence[Runs]) -> Runs:
        """Return the runs of several sources together; raise `DataError` if two sources share a run."""
        if not parts:
            raise DataError("there are no runs")
        if len(parts) == 1:
            return parts[0]
        points = pd.concat([part.rows for part in parts], ignore_index=True)
        attributes = {run_id: values for part in parts for run_id, values in part.attributes.items()}
        source = " + ".join(part.source for part in parts)
        problem_tables = [part.problems for part in parts if part.problems is not None]
        problems = pd.concat(problem_tables, ignore_index=True) if problem_tables else None
        notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
        return cls(points, attributes, source, notes, problems)

    def to_pandas(self) -> pd.DataFrame:
        """Return a copy of the table, in which the curves of diverged runs end with NaN.

        If any run is simulated, the copy has a column ``simulated``, which `Runs` reads back.
        """
        if not self.simulated:
            return self.rows.copy()
        simulated_ids = {
            run_id for run_id, values in self.attributes.items() if traits(values.get("backend")).simulated
        }
        return self.rows.assign(**{COLUMN: self.rows["run_id"].isin(simulated_ids)})

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Export the table of `to_pandas` through Arrow, as in ``polars.DataFrame(runs)``.

        The attributes are in the schema's metadata, as in files from `to_parquet`.
        """
        return self._arrow(self.to_pandas()).__arrow_c_stream__(requested_schema)

    def _arrow(self, points: pd.DataFrame) -> pa.Table:
        table = pa.Table.from_pandas(points, preserve_index=False)
        metadata = {**(table.schema.metadata or {}), _METADATA: json.dumps(self.attributes, sort_keys=True)}
        return table.replace_schema_metadata(metadata)

    @checked
    def to_parquet(self, path: str | Path | BinaryIO) -> None:
        """Write the table to a Parquet file, sorted by key, with the attributes in the file's metadata.

        Raises `DataError` if the path is reserved for a sweep's own files.
        """
        if isinstance(path, str | Path):
            check_destination(path)
        try:
            pq.write_table(self._arrow(self.rows), path)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from None

    @classmethod
    @checked
    def from_parquet(cls, path: str | Path) -> Runs:
        """Read a table that `to_parquet` wrote, with its attributes."""
        table = read_parquet(path)
        return cls(frame_of(table, path), attributes_in(table.schema, str(path)), source=str(path))


def attributes_in(schema: pa.Schema, source: str) -> dict[str, dict[str, Any]]:
    """Return the attributes in an Arrow schema's metadata, keyed by run_id, or an empty dict without any."""
    try:
        attributes = json.loads((schema.metadata or {}).get(_METADATA, b"{}"))
        return {str(run_id): dict(values) for run_id, values in attributes.items()}
    except (ValueError, AttributeError, TypeError):
        raise DataError(f"{source}: the attributes of its runs, in the metadata, are damaged") from None


def _simulated_run_ids(points: pd.DataFrame) -> set[str]:
    """Return the ids of the runs that a table marks as simulated."""
    is_simulated = simulated_rows(points)
    return set(points.loc[is_simulated, "run_id"].astype("str")) if is_simulated else set()


def _validated(points: pd.DataFrame, source: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the finite rows in order, and for each curve that ends in NaN the row in which NaN begins."""
    prefix = f"{source}: " if source else ""
    missing = [column for column in COLUMNS if column not in points.columns and column not in OPTIONAL]
    if missing:
        nearest_names = {column: nearest(column, points.columns) for column in missing}
        hints = [f"; {column} (did you mean {name!r}?)" for column, name in nearest_names.items() if name]
        names = ", ".join(map(str, points.columns))
        message = f"missing columns: {', '.join(missing)}; found: {names}{''.join(hints)}"
        raise DataError(f"{prefix}{message}. {_OTHER_COLUMNS_HINT}")
    if points.empty:
        raise DataError(f"{prefix}the table has no rows")
    if len(repeated := points.columns[points.columns.duplicated()]):
        raise DataError(f"{prefix}there are several columns {shown(repeated[0])}; expected one")
    points = with_plain_columns(points[[column for column in COLUMNS if column in points.columns]], source)
    table = pd.DataFrame({column: points.get(column, pd.NA) for column in COLUMNS}, index=points.index)
    for column, dtype in COLUMNS.items():
        table[column] = _cast(table[column], column, dtype, prefix)
    for column, least in _SMALLEST.items():
        if len(bad := table.index[table[column] < least]):
            raise DataError(f"{prefix}{column} must be at least {least}: {_rows_in(table, bad, column)}")
    factors = ["problems_per_batch", "rollouts_per_problem", "step"]
    rollouts = table[factors].astype("float64").clip(lower=1).prod(axis=1)
    if len(bad := table.index[rollouts > LARGEST_EXACT]):
        expected = "B_p · n · step must be at most 2^53"
        raise DataError(f"{prefix}{expected}: {_rows_in(table, bad, 'compute')}")
    magnitude = table["value"].abs()
    finite, at_end = np.isfinite(magnitude), magnitude.isna()
    if at_end.any():
        at_end &= after_last_value(table)
    if len(bad := table.index[~finite & ~at_end]):
        raise DataError(f"{prefix}{len(bad)} values are not finite: {_rows_in(table, bad, 'value')}")
    if len(bad := table.index[magnitude > _LARGEST_VALUE]):
        raise DataError(f"{prefix}value is beyond {_LARGEST_VALUE:g}: {_rows_in(table, bad, 'value')}")
    table.loc[magnitude < 1 / _LARGEST_VALUE, "value"] = 0.0  # the square of such a number is 0
    _check_keys(table, prefix)
    tables = [table[mask].sort_values(KEY, kind="stable").reset_index(drop=True) for mask in (finite, at_end)]
    return tables[0], tables[1].drop_duplicates(CURVE, ignore_index=True)


def with_plain_columns(table: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return a table with the values of categories in their place, and NaN for NA in columns of numbers.

    Raises `DataError` for a value that is neither text, number nor date, such as a list, and for an integer
    beyond 64 bits.
    """
    prefix = f"{source}: " if source else ""
    nullable = [
        pd.api.types.is_extension_array_dtype(dtype) and dtype.kind in "iuf" for dtype in table.dtypes
    ]
    table = table.astype({column: "float64" for column in table.columns[nullable] if table[column].hasnans})
    for name in table.columns[[dtype.kind in "Oc" for dtype in table.dtypes]]:
        column = table[name]
        if isinstance(column.dtype, pd.CategoricalDtype):
            table = table.assign(**{name: column.astype(column.cat.categories.dtype)})
        elif column.dtype.kind == "c" or (column.dtype == object and not column.map(_is_plain).all()):
            bad = column if column.dtype.kind == "c" else column[~column.map(_is_plain)]
            expected = "text or numbers of at most 64 bits"
            raise DataError(f"{prefix}{name}: {_first_wrong_value(bad)}; expected {expected}")
    return table


def _is_plain(value: Any) -> bool:
    if isinstance(value, int):
        return abs(value) < 2**64
    return not isinstance(value, complex) and pd.api.types.is_scalar(value)


def after_last_value(table: pd.DataFrame) -> pd.Series:
    """Return a mask of the rows after the last value of their curve; NaN there means divergence."""
    steps = pd.to_numeric(table["step"], errors="coerce")
    curves = [table[column] for column in CURVE]
    return steps > steps.where(table["value"].notna()).groupby(curves).transform("max")


def _cast(column: pd.Series, name: str, dtype: str, prefix: str) -> pd.Series:
    if dtype == "str":
        if len(bad := column[column.isna()]):
            raise DataError(f"{prefix}{name} is missing in {_position(bad, bad.index[0])}")
        return column.astype("str")
    if column.dtype.kind in "bmM":  # booleans, durations, dates
        raise DataError(f"{prefix}{name}: found {column.dtype} values; expected numbers")
    numbers = pd.to_numeric(column, errors="coerce").astype("Float64")
    missing_allowed = name in OPTIONAL or name == "value"  # missing rewards are reported later, as not finite
    if len(bad := column[numbers.isna() & (column.notna() | (not missing_allowed))]):
        raise DataError(f"{prefix}{name} is not a number: {_first_wrong_value(bad)}")
    if dtype not in ("int64", "Int64"):
        return numbers.astype(dtype)
    # Compute that was read from a figure, and averaged tokens, can be fractional. Counts cannot.
    tolerance = 0.5 if name in ("compute", "tokens") else 1e-6
    whole = numbers.round()
    _reject(((whole.abs() > LARGEST_EXACT) | (whole - numbers).abs().gt(tolerance)), column, name, prefix)
    return whole.astype("Int64").astype(dtype)


def check_sizes(table: pd.DataFrame, source: str) -> None:
    """Raise `DataError` for a count that float64 cannot store exactly."""
    for name in (name for name, dtype in COLUMNS.items() if dtype.lower() == "int64" and name in table):
        magnitudes = pd.to_numeric(table[name], errors="coerce").astype("Float64").abs()
        _reject(magnitudes > LARGEST_EXACT, table[name], name, f"{source}: ")


def _reject(is_wrong: pd.Series, column: pd.Series, name: str, prefix: str) -> None:
    if len(wrong := column[is_wrong.fillna(False)]):
        limits = f"from {_SMALLEST.get(name, '-2^53')} to 2^53"
        raise DataError(f"{prefix}{name} must be a whole number {limits}: {_first_wrong_value(wrong)}")


def _check_keys(table: pd.DataFrame, prefix: str) -> None:
    distinct = table.groupby("run_id")[IDENTITY].nunique()
    for name in IDENTITY:
        runs = distinct.index[distinct[name] > 1]
        if len(runs):
            raise DataError(f"{prefix}run {shown(runs[0])} has several values of {name}; expected one")
    if len(repeated := table.index[table.duplicated(KEY)]):
        raise DataError(f"{prefix}repeated (run, step): {_rows_in(table, repeated, 'step')}. " + _runs_hint())
    steps = table.drop_duplicates(["run_id", "step", "compute"])
    if len(unclear := steps.index[steps.duplicated(["run_id", "step"])]):
        raise DataError(f"{prefix}one step has two values of compute: {_rows_in(table, unclear, 'compute')}")
    steps = steps.sort_values(["run_id", "step"], kind="stable")
    previous = steps.shift()
    wrong = np.flatnonzero(steps["run_id"].eq(previous["run_id"]) & ~(steps["compute"] > previous["compute"]))
    if wrong.size:
        old, new = steps.iloc[wrong[0] - 1], steps.iloc[wrong[0]]
        raise DataError(
            f"{prefix}compute must grow with the step: {_position(table, steps.index[wrong[0]])} "
            f"(step {new['step']}) has {new['compute']} after {old['compute']} (step {old['step']}) in the "
            "same run. " + _runs_hint()
        )


def _runs_hint() -> Wording:
    setting = option("columns", "seed", Placeholder("column"))
    return "If these are several runs, name the column that distinguishes them, as in " + setting


def full_names(given: Mapping[str, Any], symbols: Mapping[str, str] = SYMBOLS) -> dict[str, Any]:
    """Return a mapping with full names in place of symbols. Raise `InputError` if a name occurs twice.

    >>> full_names({"n": 8, "lr": 0.5})
    {'rollouts_per_problem': 8, 'lr': 0.5}
    """
    check_type("where", given, Mapping, 'values of columns, e.g. {"B_p": 32}')
    renamed: dict[str, Any] = {}
    for name, value in given.items():
        full = symbols.get(name, name)
        if full in renamed:
            raise InputError(f"{name}: {full} is given twice")
        renamed[full] = value
    return renamed


def _as_html(lines: Iterable[str], table: pd.DataFrame) -> str:
    """Return lines of text and a table as HTML for a notebook."""
    text = "".join(f"<div>{html.escape(line)}</div>" for line in lines)
    return text + ("" if table.empty else table.to_html(index=False, border=0, max_rows=60))


def plain(value: Any) -> Any:
    """Return a value with NumPy scalars converted to Python scalars, and whole floats to integers."""
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, float) and value.is_integer() else value


def listed(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first ``most`` names as text, with the number of the remaining names.

    >>> listed(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


class Arrow(Protocol):
    """A table that exports its columns through Arrow, such as from pyarrow, polars, pandas or DuckDB."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return a stream of record batches."""


class _Dataset(Protocol):
    """A table that converts to pandas, such as a dataset from Hugging Face datasets."""

    def to_pandas(self) -> Any:
        """Return the table as pandas."""


class ReadKeywords(TypedDict, total=False):
    """The keywords that functions of runs pass to `isolaw.read`."""

    columns: Mapping[str, str]
    set: Iterable[str] | Mapping[str, Any]
    format: str
    group_by: Literal["file", "directory"]
    only: str | Iterable[str]
    name_pattern: str | Iterable[str]


Source: TypeAlias = Runs | pd.DataFrame | str | os.PathLike[str] | Arrow | _Dataset
