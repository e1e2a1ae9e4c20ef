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
from isolaw.readers.how_to_read import Assignment, HowToRead, Rule, settings_of
from isolaw.readers.measures import is_of_training, likely_reward, maybe_sizes, names_its_set, names_percent
from isolaw.readers.name_patterns import suggest
from isolaw.readers.names import ALIASES, DEFAULTS, RUN_NAMES, SPLIT, SYMBOL, UNITS, counts, guess
from isolaw.readers.table_files import SOURCE
from isolaw.readers.trainings import names_of
from isolaw.runs import COLUMNS, plain

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_EXPECTED = "numbers, column names, + - * / // and brackets"
_MAX_CHARACTERS = 1_000
_WORD = re.compile(r"[^\W\d]\w*")
_ARITHMETIC = re.compile(r"[\w\s.+*/()-]+")
_SHOWN = 60  # columns to list in a message
_NUMERIC_NAMES = {*SPLIT, "step", "compute", "seed", "value", "tokens", "wall_s", "n_problems", "n_samples"}
_TEXT_NAMES = {"run_id", "problem_set", "algorithm", "eval_set"}
_COLUMN = Placeholder("column")
_NO_VALUE = "none"  # value of a run whose name lacks what other names have


def lacking(text: str, names: Collection[str]) -> list[str]:
    """Return the names in a text that a table with these columns lacks.

    >>> lacking("val/acc", ["val/acc"]), lacking("2*k", ["m"]), lacking("k*m", ["m"]), lacking("val acc", [])
    ([], ['2*k'], ['k'], ['val acc'])
    """
    if text in names or ALIASES.get(text) in names:
        return []
    words = _WORD.findall(text) if _ARITHMETIC.fullmatch(text) else [text]
    missing = [word for word in words if word not in names and ALIASES.get(word) not in names]
    return [text] if missing and missing == words else missing


def columns_needed(options: HowToRead, columns: Collection[str] = ()) -> list[str]:
    """Return the columns that a table with these columns lacks to be read with ``options``."""
    texts = [*options.columns.items(), *((name, metric.column) for name, metric in options.metrics.items())]
    known = {*columns, *options.column_names}
    missing = (lacking(text, known - ({name} - {*columns})) for name, text in texts)
    return list(dict.fromkeys(column for names in missing for column in names))


def columns_used(options: HowToRead, columns: Collection[str]) -> set[str]:
    """Return the names of columns that ``options`` use, including in arithmetic."""
    texts = options.expressions
    return {name for text in texts for name in (text, *(() if text in columns else _WORD.findall(text)))}


def apply(options: HowToRead, frame: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return ``frame`` with the named columns and values added; raise `DataError` for unknown columns."""
    result = frame.copy()
    arithmetic = {name: text for name, text in options.columns.items() if text not in frame.columns}
    for name, text in options.columns.items():
        if name not in arithmetic:
            result[name] = frame[text]
    for name, value in options.row_values.items():
        result[name] = value
    for name, text in arithmetic.items():
        if name not in options.row_values:
            if lacking(text, result.columns) == [text]:
                missing = unknown("column", text, frame.columns)
                raise DataError(f"{source}: " + option("columns", name, text) + f": {missing}")
            result[name] = _evaluate(text, dict(result.items()))
    return result


def melt(options: HowToRead, table: pd.DataFrame, source: str) -> tuple[pd.DataFrame, list[str], set[str]]:
    """Return the table in long form, with a row for each original row and metric; notes; metrics with a unit.

    Raises `DataError` if a metric's column is missing or contains anything but numbers.
    """
    long_tables, notes, with_unit = [], [], set[str]()
    for name, metric in options.metrics.items():
        is_column = metric.column in table.columns
        if not is_column and lacking(metric.column, table.columns) == [metric.column]:
            missing = unknown("column", metric.column, table.columns)
            raise DataError(f"{source}: metric {name!r}: {missing}")
        cells = table[metric.column] if is_column else _evaluate(metric.column, dict(table.items()))
        cells = pd.Series(cells, index=table.index)
        value = pd.to_numeric(cells, errors="coerce").astype("float64")
        texts = cells.map(lambda cell: isinstance(cell, str) and bool(cell.strip()))
        bad_rows = cells.index[(value.isna() & texts) | value.abs().eq(float("inf"))]
        if len(bad_rows):
            row = f"{table.index.name} {bad_rows[0]}: {cells[bad_rows[0]]!r}"
            raise DataError(f"{source}: metric {name!r}: {metric.column} is not a number in {row}")
        percent = metric.percent
        if percent is None and is_column and names_percent(metric.column):
            percent = True
        if percent is not None:  # otherwise the values of each run decide, once the runs are known
            with_unit.add(name)
        if percent:
            notes.append(f"{name} was in percent (up to {value.max():g}): divided by 100")
            value = value / 100
        if empty := int(value.isna().sum()):
            notes.append(f"{name}: {empty:,} of {len(value):,} cells are empty; isolaw left them out")
        is_trained = is_of_training(metric.column, list(map(str, table.columns))) and not names_its_set(name)
        eval_set = metric.eval_set or table.get("eval_set", "train" if is_trained else "validation")
        long_tables.append(table.assign(metric=name, eval_set=eval_set, value=value))
    return pd.concat(long_tables), notes, with_unit


def _evaluate(text: str, columns: Mapping[str, Any]) -> Any:
    """Return the value of arithmetic over ``columns``, which are arrays or Series of equal length.

    Raises `DataError` for anything but arithmetic, for an unknown column, and for a column that is not
    numeric.

    >>> _evaluate("(a + 1) * 2", {"a": np.array([1.0, 2.0])})
    array([4., 6.])
    """
    if len(text) > _MAX_CHARACTERS:
        raise DataError(f"columns: the arithmetic is longer than {_MAX_CHARACTERS} characters")
    try:
        with np.errstate(all="ignore"):  # a division by zero is reported as a value that is not finite
            return _node_value(ast.parse(text.strip(), mode="eval").body, columns)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise DataError(f"columns: {text!r}: not arithmetic; expected {_EXPECTED}") from None
    except DataError as error:
        raise DataError(f"columns: {text!r}: {error}") from None


def _node_value(node: ast.expr, columns: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_node_value(node.left, columns), _node_value(node.right, columns))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_node_value(node.operand, columns)
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


def columns_from_names(
    frame: pd.DataFrame,
    option_sets: Sequence[HowToRead],
    used_rules: set[Rule],
    columns: Mapping[str, str],
    source: str,
) -> pd.DataFrame:
    """Return a column for each value that the options give to names of runs. ``used_rules`` gets their rules.

    Raises `DataError` if a name contradicts a column of the table.
    """
    column_of = {**{ALIASES.get(str(name), str(name)): str(name) for name in frame.columns}, **columns}
    value_columns = pd.DataFrame(index=frame.index)
    for name_column in names_of(frame, [str(name) for name in frame.columns]):
        settings: dict[str, dict[str, Assignment]] = {}  # name of a value → name of a run → its setting
        for run in frame[name_column].unique():
            for name, setting in settings_of(option_sets, str(run), []).items():
                if setting.pattern or setting.glob:
                    settings.setdefault(name, {})[run] = setting
                    used_rules.add(setting.rule)
        for name, setting_of_run in settings.items():
            cells = frame[name_column].map({run: setting.value for run, setting in setting_of_run.items()})
            if (column := column_of.get(name)) in frame.columns:
                in_name, in_column = (c.map(lambda cell: str(plain(cell))) for c in (cells, frame[column]))
                differs = cells.notna() & frame[column].notna() & in_name.ne(in_column)
                if differs.any():
                    row = differs.idxmax()
                    run = frame[name_column][row]
                    raise DataError(
                        f"{source}: {frame.index.name} {row}: {name} is {in_name[row]} in the name {run!r} "
                        f"({setting_of_run[run].rule}), but {in_column[row]} in the column {column}; correct "
                        "the wrong value"
                    )
                cells = frame[column].where(frame[column].notna(), cells)
            default = DEFAULTS.get(name, None if name in COLUMNS else _NO_VALUE)
            value_columns[name] = cells if default is None else cells.astype(object).fillna(default)
    return value_columns


# What is missing


class TableNeeds(DataError):
    """Raised for a table that lacks B_p, n, its steps or its reward.

    ``needs`` maps each missing value to the key that supplies it and its value, or to None if no column looks
    suitable (`isolaw.readers.proposals`).
    """

    def __init__(self, message: str, needs: Mapping[str, tuple[str, str] | None]) -> None:
        super().__init__(message)
        self.needs = dict(needs)


def check_complete(frame: pd.DataFrame, options: HowToRead, source: str) -> None:
    """Raise `TableNeeds` if B_p, n, compute or the reward is missing, `DataError` if a named column is."""
    columns = list(map(str, frame.columns))
    numeric = [name for name in columns if pd.api.types.is_numeric_dtype(frame[name])]
    known_names = {*columns, *options.column_names}
    problems = []
    mappings = [(name, text, _with_symbol(name), columns) for name, text in options.columns.items()]
    metrics = options.metrics.items()
    mappings += [(name, metric.column, f"metric {name!r}", numeric) for name, metric in metrics]
    for name, text, title, candidates in mappings:
        missing = lacking(text, known_names if name in columns else known_names - {name})
        if missing == [text]:
            problems.append(f"{title}: {_no_column(text, numeric if name in _NUMERIC_NAMES else candidates)}")
        else:
            usable = [*numeric, *options.column_names]
            problems += [f"{title}: {text!r}: {_no_column(word, usable)}" for word in missing]
    is_wrong = bool(problems)
    unmapped = [name for name in columns if name not in options.expressions]
    reward_column = options.metric if options.metric in columns else likely_reward(frame, unmapped)
    if reward_column:  # a column that is empty where the reward is measured has no value for a run
        measured_rows = frame[frame[reward_column].notna()]
        is_full = measured_rows.notna().all()
        unmapped = [name for name in unmapped if is_full[name] or name == reward_column or is_reward(name)]
    certain = {
        ours: column
        for ours, column in guess(unmapped).items()
        if column in unmapped and (ours in _TEXT_NAMES or column in numeric)
    }
    guesses = {**maybe_sizes(frame, [name for name in unmapped if name not in certain.values()]), **certain}
    needs: dict[str, tuple[str, str] | None] = {}
    sizes = [name for name in SPLIT if name in known_names]
    needed_sizes = SPLIT[1:2] if sizes == [SPLIT[2]] else SPLIT[:2]  # n determines B_p if B is known
    unknown_sizes = [name for name in needed_sizes if len(sizes) < 2 and name not in known_names]
    not_guessed = [SYMBOL[name] for name in unknown_sizes if name not in guesses]
    pattern, carried_symbols = _pattern_in_names(frame, not_guessed, source)
    for name in unknown_sizes:
        similar, symbol = guesses.get(name, ""), SYMBOL[name]
        can_count_rollouts = name == SPLIT[0] or counts(similar) in ("rollouts", "both")
        problems.append(f"{_with_symbol(name)}: found no column and no value{_nearest_hint(similar)}")
        needs[symbol] = ("columns", similar) if similar else None
        if symbol in carried_symbols:
            problems[-1] += "; the run names may contain the value"
            needs[symbol] = "name_pattern", pattern
        elif similar and name not in certain and can_count_rollouts:
            problems[-1] += "; if it counts rollouts: " + option("columns", SYMBOL[SPLIT[2]], similar)
    if not {"step", "compute"} & known_names:
        name = "compute" if "compute" in guesses and "step" not in guesses else "step"
        similar = guesses.get(name, "")
        problems.append(f"step or compute: found no column{_nearest_hint(similar)}")
        counters = [c for c in numeric if c.lower().removesuffix("_num") in (*UNITS, "round")]
        if counter := next((column for column in counters if not similar), ""):
            steps, rollouts = (option("columns", ours, counter) for ours in ("step", "compute"))
            problems[-1] += f"; state what {counter!r} counts: " + steps
            problems[-1] += ", or " + rollouts + " if it counts rollouts"
        elif not similar and "epoch" in numeric:
            problems[-1] += "; if an epoch has 400 steps: " + option("columns", "step", "epoch*400")
        labels = guess(columns, RUN_NAMES).values() if not similar and len(frame) > 1 else ()
        for label in [label for label in labels if frame[label].is_unique][:1]:
            problems[-1] += (
                f"; each row has a different {label}, and one final value per run is not a learning "
                "curve. Export the runs' histories"
            )
        needs[name] = "columns", similar or _COLUMN
    has_value = {"metric", "value"} <= known_names or "value" in options.column_names
    name = options.metric or "avg@4"
    if not (options.metrics or has_value or name in known_names or has_only_value(frame, options)):
        used_columns = {*options.columns.values(), *(supply[1] for supply in needs.values() if supply)}
        similar = nearest(name, [c for c in unmapped if c in numeric]) if options.metric else ""
        similar = similar or likely_reward(frame, [c for c in unmapped if c not in used_columns])
        hint = f"; did you mean {similar!r}?" if similar and options.metric else _nearest_hint(similar)
        hint = hint or "; no column looks like a reward"
        problems.append(f"the reward: found no column {shown(name)}{hint}")
        needs["metric"] = "metric", similar or _COLUMN
    if problems:
        summary = f"{source}: " + problems[0]
        if len(problems) > 1:
            count = f"{source}: {len(problems)} columns or values are missing"
            summary = Wording(count, *("  - " + line for line in problems))
        others = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
        text = Wording(summary, f"  columns: {', '.join(columns[:_SHOWN])}{others}")
        raise DataError(text) if is_wrong else TableNeeds(text, needs)


def _pattern_in_names(frame: pd.DataFrame, unknown: list[str], source: str) -> tuple[str, list[str]]:
    """Return a pattern for a column of run names that contain missing values, and the values it supplies."""
    columns = names_of(frame, list(map(str, frame.columns))) if unknown and source != SOURCE else []
    for column in columns:
        pattern, carried_symbols = suggest([str(name) for name in frame[column].unique()], unknown)
        if pattern:
            return pattern, carried_symbols
    return "", []


def has_only_value(frame: pd.DataFrame, options: HowToRead) -> bool:
    """Return whether a column ``value`` contains the rewards, since no other column appears to."""
    columns = [name for name in map(str, frame.columns) if name not in options.expressions]
    if options.metrics or "value" not in columns or "metric" in {*columns, *options.column_names}:
        return False
    reward_names = {options.metric or "avg@4", "avg@4"}
    return not reward_names & {*columns} and not likely_reward(frame, [c for c in columns if c != "value"])


def _with_symbol(name: str) -> str:
    return f"{SYMBOL[name]} ({name})" if name in SYMBOL else name


def _nearest_hint(similar: str | None) -> str:
    return f"; nearest: {similar!r}" if similar else ""


def _no_column(column: str, columns: list[str]) -> str:
    """Return that there is no such column, with the nearest name if there is one."""
    similar = nearest(column, columns)
    return f"no column {shown(column)}" + (f"; did you mean {similar!r}?" if similar else "")
