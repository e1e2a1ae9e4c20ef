"""The columns that a user names in a table, by their name or by arithmetic on them, and those that it lacks.

A column's name is the simplest arithmetic. If a text is the name of a column, it is that column, whatever
characters it has.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from isolaw.commands import Placeholder, option
from isolaw.errors import DataError, Wording, nearest, shown, unknown
from isolaw.metrics import is_reward
from isolaw.readers.how_to_read import HowToRead, Rule, settings_of
from isolaw.readers.measures import likely_reward, maybe_shape, named_percent, of_training, says_its_set
from isolaw.readers.name_patterns import offer
from isolaw.readers.names import ALIASES, DEFAULTS, RUN_NAMES, SPLIT, SYMBOL, UNITS, counts, guess
from isolaw.readers.table_files import SOURCE
from isolaw.readers.trainings import names_of
from isolaw.runs import COLUMNS, plain

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
_SHOWN = 60  # columns to list in a message
_NUMBERS = {*SPLIT, "step", "compute", "seed", "value", "tokens", "wall_s", "n_problems", "n_samples"}
_TEXTS = {"run_id", "problem_set", "algorithm", "eval_set"}
_COLUMN = Placeholder("column")
_NONE = "none"  # value of a run whose name lacks what other names have


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
    missing = (lacking(text, {*columns, *how.column_names} - ({name} - {*columns})) for name, text in texts)
    return list(dict.fromkeys(each for names in missing for each in names))


def columns_used(how: HowToRead, columns: Collection[str]) -> set[str]:
    """Return the names of columns that ``how`` uses, including in arithmetic."""
    arithmetic = [text for text in how.expressions if text not in columns]
    return {*how.expressions, *(word for text in arithmetic for word in _WORD.findall(text))}


def apply(how: HowToRead, frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return ``frame`` with the named columns and values added; raise `DataError` for unknown columns."""
    out = frame.copy()
    arithmetic = {name: text for name, text in how.columns.items() if text not in frame.columns}
    for name, text in how.columns.items():
        if name not in arithmetic:
            out[name] = frame[text]
    for name, value in how.row_values.items():
        out[name] = value
    for name, text in arithmetic.items():
        if name not in how.row_values:
            if lacking(text, out.columns) == [text]:
                missing = unknown("column", text, frame.columns)
                raise DataError(f"{source}: " + option("columns", name, text) + f": {missing}")
            out[name] = _derive(text, dict(out.items()))
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
        cells = table[metric.column] if named else _derive(metric.column, dict(table.items()))
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


def _derive(text: str, columns: Mapping[str, Any]) -> Any:
    """Return the value of arithmetic over ``columns``, which are arrays or Series of equal length.

    Raises `DataError` for anything but arithmetic, for an unknown column, and for a column that is not
    numeric.

    >>> _derive("(a + 1) * 2", {"a": np.array([1.0, 2.0])})
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


def from_names(
    frame: pd.DataFrame, ways: Sequence[HowToRead], used: set[Rule], columns: Mapping[str, str], source: str
) -> pd.DataFrame:
    """Return a column for each value that ``ways`` give to names of runs. ``used`` collects their rules.

    Raises `DataError` if a name contradicts a column of the table.
    """
    said = {**{ALIASES.get(str(name), str(name)): str(name) for name in frame.columns}, **columns}
    out = pd.DataFrame(index=frame.index)
    for column in names_of(frame, [str(each) for each in frame.columns]):
        known = {
            name: {of: a for of, a in settings_of(ways, str(name), []).items() if a.pattern or a.glob}
            for name in frame[column].unique()
        }
        used |= {a.rule for values in known.values() for a in values.values()}
        for of in dict.fromkeys(of for values in known.values() for of in values):
            value = frame[column].map(
                {name: values[of].value for name, values in known.items() if of in values}
            )
            if said.get(of) in frame.columns:
                there = frame[said[of]]
                in_name, in_column = (cells.map(lambda cell: str(plain(cell))) for cells in (value, there))
                differs = value.notna() & there.notna() & in_name.ne(in_column)
                if differs.any():
                    at = differs.idxmax()
                    rule = known[frame[column][at]][of].rule
                    raise DataError(
                        f"{source}: {frame.index.name} {at}: {of} is {in_name[at]} in the name "
                        f"{frame[column][at]!r} ({rule}), but {in_column[at]} in the column {said[of]}; "
                        "correct the wrong value"
                    )
                value = there.where(there.notna(), value)
            rest = DEFAULTS.get(of, None if of in COLUMNS else _NONE)
            out[of] = value if rest is None else value.astype(object).fillna(rest)
    return out


# What is missing


class TableNeeds(DataError):
    """Raised for a table that lacks B_p, n, its steps or its reward.

    ``needs`` maps each missing value to the key that supplies it and its value, or to None if no column looks
    suitable (`isolaw.readers.proposals`).
    """

    def __init__(self, message: str, needs: Mapping[str, tuple[str, str] | None]) -> None:
        super().__init__(message)
        self.needs = dict(needs)


def check_complete(frame: pd.DataFrame, how: HowToRead, source: str) -> None:
    """Raise `TableNeeds` if B_p, n, compute or the reward is missing, `DataError` if a named column is."""
    columns = list(map(str, frame.columns))
    numeric = [name for name in columns if pd.api.types.is_numeric_dtype(frame[name])]
    there = {*columns, *how.column_names}
    lines = []
    texts = [(name, text, _named(name), columns) for name, text in how.columns.items()]
    texts += [(name, reward.column, f"metric {name!r}", numeric) for name, reward in how.metrics.items()]
    for name, text, called, fitting in texts:
        missing = lacking(text, there if name in columns else there - {name})
        if missing == [text]:
            lines.append(f"{called}: {_absent(text, numeric if name in _NUMBERS else fitting)}")
        else:
            lines += [
                f"{called}: {text!r}: {_absent(each, [*numeric, *how.column_names])}" for each in missing
            ]
    wrong = bool(lines)
    free = [name for name in columns if name not in how.expressions]
    measures = how.metric if how.metric in columns else likely_reward(frame, free)
    if measures:  # a column that is empty where the reward is measured has no value for a run
        rows = frame[frame[measures].notna()]
        free = [name for name in free if name == measures or rows[name].notna().all() or is_reward(name)]
    sure = {
        ours: column
        for ours, column in guess(free).items()
        if column in free and (ours in _TEXTS or column in numeric)
    }
    guesses = {**maybe_shape(frame, [name for name in free if name not in sure.values()]), **sure}
    needs: dict[str, tuple[str, str] | None] = {}
    split = [name for name in SPLIT if name in there]
    lacking_two = SPLIT[1:2] if split == [SPLIT[2]] else SPLIT[:2]  # n determines B_p if B is known
    unknown = [name for name in lacking_two if len(split) < 2 and name not in there]
    pattern, carried = _in_names(frame, [SYMBOL[name] for name in unknown if name not in guesses], source)
    for name in unknown:
        close, symbol = guesses.get(name, ""), SYMBOL[name]
        lines.append(f"{_named(name)}: found no column and no value{_nearest(close)}")
        needs[symbol] = ("columns", close) if close else None
        if symbol in carried:
            lines[-1] += "; the run names may contain the value"
            needs[symbol] = "name_pattern", pattern
        elif close and name not in sure and (name == SPLIT[0] or counts(close) in ("rollouts", "both")):
            lines[-1] += "; if it counts rollouts: " + option("columns", SYMBOL[SPLIT[2]], close)
    if not {"step", "compute"} & there:
        name = "compute" if "compute" in guesses and "step" not in guesses else "step"
        close = guesses.get(name, "")
        lines.append(f"step or compute: found no column{_nearest(close)}")
        if counted := next((column for column in columns if column in UNITS and not close), ""):
            steps, rollouts = (option("columns", ours, counted) for ours in ("step", "compute"))
            lines[-1] += f"; state what {counted!r} counts: " + steps
            lines[-1] += ", or " + rollouts + " if it counts rollouts"
        labels = guess(columns, RUN_NAMES).values() if not close and len(frame) > 1 else ()
        for label in [label for label in labels if frame[label].is_unique][:1]:
            lines[-1] += (
                f"; each row has a different {label}, and one final value per run is not a learning "
                "curve. Export the runs' histories"
            )
        needs[name] = "columns", close or _COLUMN
    named = {"metric", "value"} <= there or "value" in how.column_names or value_alone(frame, how)
    name = how.metric or "avg@4"
    if not (how.metrics or named or name in there):
        used = {*how.columns.values(), *(by[1] for by in needs.values() if by)}
        close = nearest(name, [c for c in free if c in numeric]) if how.metric else ""
        close = close or likely_reward(frame, [c for c in free if c not in used])
        hint = f"; did you mean {close!r}?" if close and how.metric else _nearest(close)
        hint = hint or "; no column looks like a reward"
        lines.append(f"the reward: found no column {shown(name)}{hint}")
        needs["metric"] = "metric", close or _COLUMN
    if lines:
        head = f"{source}: " + lines[0]
        if len(lines) > 1:
            count = f"{source}: {len(lines)} columns or values are missing"
            head = Wording(count, *("  - " + line for line in lines))
        more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
        text = Wording(head, f"  columns: {', '.join(columns[:_SHOWN])}{more}")
        raise DataError(text) if wrong else TableNeeds(text, needs)


def _in_names(frame: pd.DataFrame, unknown: list[str], source: str) -> tuple[str, list[str]]:
    """Return a pattern for a column of run names that contain missing values, and the values it supplies."""
    columns = names_of(frame, list(map(str, frame.columns))) if unknown and source != SOURCE else []
    for column in columns:
        pattern, carried = offer([str(name) for name in frame[column].unique()], unknown)
        if pattern:
            return pattern, carried
    return "", []


def value_alone(frame: pd.DataFrame, how: HowToRead) -> bool:
    """Return whether a column ``value`` contains the rewards, since no other column appears to."""
    columns = [name for name in map(str, frame.columns) if name not in how.expressions]
    if how.metrics or "value" not in columns or "metric" in {*columns, *how.column_names}:
        return False
    wanted = {how.metric or "avg@4", "avg@4"}
    return not wanted & {*columns} and not likely_reward(frame, [c for c in columns if c != "value"])


def _named(name: str) -> str:
    return f"{SYMBOL[name]} ({name})" if name in SYMBOL else name


def _nearest(close: str | None) -> str:
    return f"; nearest: {close!r}" if close else ""


def _absent(column: str, columns: list[str]) -> str:
    """Return that there is no such column, with the nearest name if there is one."""
    close = nearest(column, columns)
    return f"no column {shown(column)}" + (f"; did you mean {close!r}?" if close else "")
