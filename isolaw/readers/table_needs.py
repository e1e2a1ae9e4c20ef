"""Everything that a table lacks to be read as runs, and the call or command that would read it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from isolaw import commands
from isolaw.commands import Placeholder, option, word
from isolaw.errors import DataError, Spelled, Wording, nearest
from isolaw.readers.assignments import ALIASES, SPLIT
from isolaw.readers.frames import SOURCE
from isolaw.readers.mapping import ColumnMapping
from isolaw.readers.measures import likely_reward, maybe_shape
from isolaw.readers.name_patterns import offer
from isolaw.readers.names import RUN_NAMES, SYMBOL, UNITS, guess
from isolaw.readers.table_segments import names_of

_SHOWN = 60  # columns to list in the message
_NUMBERS = {*SPLIT, "step", "compute", "seed", "value", "tokens", "wall_s", "n_problems", "n_samples"}
_TEXTS = {"run_id", "problem_set", "algorithm", "eval_set"}


_COLUMN, _NUMBER = Placeholder("column"), Placeholder("number")


class TableNeeds(DataError):
    """Raised for a table that lacks B_p, n, its steps or its reward.

    ``needs`` maps each missing value to the option that supplies it and its value, or to None if no column
    looks suitable. ``short`` is the message without the command that reads this table.
    """

    def __init__(self, message: str, needs: Mapping[str, tuple[str, str] | None], short: str) -> None:
        super().__init__(message)
        self.needs, self.short = dict(needs), short


def check_complete(frame: pd.DataFrame, mapping: ColumnMapping, metric: str | None, source: str) -> None:
    """Raise `TableNeeds` if a mapped column, B_p, n, the compute or the reward is missing."""
    columns = list(map(str, frame.columns))
    numeric = [name for name in columns if pd.api.types.is_numeric_dtype(frame[name])]
    mended = {part: dict(getattr(mapping, part)) for part in ("columns", "derive", "constants")}
    free = [name for name in columns if name not in mapping.required]
    sure = {
        ours: column
        for ours, column in guess(free).items()
        if column in free and (ours in _TEXTS or column in numeric)
    }
    guesses = {**maybe_shape(frame, [name for name in free if name not in sure.values()]), **sure}
    there = {*columns, *mapping.names}
    lines = []
    needs: dict[str, tuple[str, str] | None] = {}
    for name, column in mapping.columns.items():
        if column not in columns:
            fitting = numeric if name in _NUMBERS else columns
            lines.append(f"{_named(name)}: {absent(column, fitting)}")
            mended["columns"][name] = nearest(column, fitting) or guesses.get(name, _COLUMN)
    for name, own in mapping.metrics.items():
        if own.column not in columns:
            lines.append(f"metric {name!r}: {absent(own.column, numeric)}")
            mended["columns"][name] = nearest(own.column, numeric) or _COLUMN
    for name, text in mapping.derive.items():
        mends: dict[str, str] = {}
        for column in _words(text):
            if column not in there and ALIASES.get(column) not in there:
                lines.append(f"{_named(name)}: {text!r}: {absent(column, [*numeric, *mapping.names])}")
                mends[column] = nearest(column, numeric) or _COLUMN
        if mends:
            parts = re.split(rf"\b({'|'.join(map(re.escape, mends))})\b", text)
            mended["derive"][name] = word(*(mends.get(part, part) for part in parts))
    wrong = bool(lines)
    split = [name for name in SPLIT if name in there]
    lacking = [name for name in SPLIT[:2] if len(split) < 2 and name not in there]
    pattern, carried = _in_names(frame, [_short(name) for name in lacking if name not in guesses], source)
    for name in lacking:
        if _short(name) in carried:
            lines.append(f"{_named(name)}: found no column and no value; the run names may contain the value")
            needs[_short(name)] = "--name-pattern", pattern
        else:
            close = guesses.get(name, "")
            lines.append(
                f"{_named(name)}: found no column and no value{f'; nearest: {close!r}' if close else ''}"
            )
            if close and name == SPLIT[0] and name not in sure:
                lines[-1] += "; if it counts rollouts: " + option("columns", SYMBOL[SPLIT[2]], close)
            mended["columns" if close else "constants"][name] = close or _NUMBER
            needs[_short(name)] = ("--column", word(_short(name), "=", close)) if close else None
    if not {"step", "compute"} & there:
        name = "compute" if "compute" in guesses and "step" not in guesses else "step"
        close = guesses.get(name, "")
        lines.append(f"step or compute: found no column{f'; nearest: {close!r}' if close else ''}")
        if counted := next((own for own in columns if own in UNITS and not close), ""):
            steps, rollouts = (option("columns", own, counted) for own in ("step", "compute"))
            lines[-1] += f"; state what {counted!r} counts: " + steps
            lines[-1] += ", or " + rollouts + " if it counts rollouts"
        for label in guess(columns, RUN_NAMES).values():
            if not close and len(frame) > 1 and frame[label].is_unique:
                lines[-1] += (
                    f"; each row has a different {label}, and one final value per run is not a learning "
                    "curve. Export the runs' histories"
                )
                break
        mended["columns"][name] = close or _COLUMN
        needs[name] = "--column", word(name, "=", close or _COLUMN)
    named = {"metric", "value"} <= there or "value" in mapping.names or value_alone(frame, mapping, metric)
    wide = not mapping.metrics and not named
    if wide and (metric or "avg@4") not in there:
        name = metric or "avg@4"
        used = set(mended["columns"].values())
        close = (
            nearest(name, [c for c in free if c in numeric])
            if metric
            else likely_reward(frame, [c for c in free if c not in used])
        )
        hint = f"; did you mean {close!r}?" if metric else f"; nearest: {close!r}"
        lines.append(f"the reward: found no column {name!r}{hint if close else ''}")
        metric = close or _COLUMN
        needs["metric"] = "--metric", metric
    if lines:
        head = f"{source}: " + lines[0]
        if len(lines) > 1:
            count = f"{source}: {len(lines)} columns or values are missing"
            head = Wording(count, *("  - " + line for line in lines))
        more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
        call, fill = reading(source, mended, metric, mapping, pattern)
        right = f"with {' and '.join(fill)} filled in, if the other" if fill else "if the"
        short = Wording(head, f"  columns: {', '.join(columns[:_SHOWN])}{more}")
        text = Wording(short, f"  This reads the table, {right} names are right:", "    " + call)
        raise DataError(text) if wrong else TableNeeds(text, needs, short)


def _in_names(frame: pd.DataFrame, lacking: list[str], source: str) -> tuple[str, list[str]]:
    """Return a pattern for a column of run names that contain missing values, and the values it supplies."""
    for column in (
        names_of(frame, [str(own) for own in frame.columns]) if lacking and source != SOURCE else ()
    ):
        pattern, carried = offer([str(name) for name in frame[column].unique()], lacking)
        if pattern:
            return pattern, carried
    return "", []


def value_alone(frame: pd.DataFrame, mapping: ColumnMapping, metric: str | None) -> bool:
    """Return whether a column ``value`` contains the rewards, since no other column appears to."""
    columns = [name for name in map(str, frame.columns) if name not in mapping.required]
    if mapping.metrics or "value" not in columns or "metric" in {*columns, *mapping.names}:
        return False
    wanted = {metric or "avg@4", "avg@4"}
    return not wanted & {*columns} and not likely_reward(frame, [c for c in columns if c != "value"])


def reading(
    source: str,
    parts: Mapping[str, Mapping[str, Any]],
    metric: str | None,
    mapping: ColumnMapping,
    pattern: str = "",
) -> tuple[str, list[str]]:
    """Return the call, or at the command line the command, that reads a table with these keywords.

    Also returns the placeholders to fill in.
    """
    file = any(name not in parts["columns"] for name in mapping.metrics)
    if file:  # options and keywords only change the file's mapping
        parts = {
            part: {k: v for k, v in own.items() if (k, v) not in getattr(mapping, part).items()}
            for part, own in parts.items()
        }
    words: list[str] = []
    if source != SOURCE:
        words = ["--mapping", Placeholder("mapping")] if file else []
        for part, values in parts.items():
            flag = {"columns": "--column", "constants": "--constant"}.get(part, "--derive")
            words += [each for k, v in values.items() for each in (flag, word(_short(k), "=", v))]
        words += ["--name-pattern", pattern] if pattern else []
        words = [*words, *(["--metric", metric] if metric else [])]
        words = [*commands.read_table(source, words).words]
    keywords = ['mapping="FILE"'] if file else []
    keywords += [
        f"{part}={{{', '.join(f'{_literal(_short(k))}: {_literal(v)}' for k, v in values.items())}}}"
        for part, values in parts.items()
        if values
    ]
    keywords += [f"name_pattern={_literal(pattern)}"] if pattern else []
    keywords += [f"metric={_literal(metric)}"] if metric else []
    arguments = ["df" if source == SOURCE else _literal(source), *keywords]
    given = [value for values in parts.values() for value in values.values()]
    call = f"isolaw.read({', '.join(arguments)})"
    return Spelled(call, words) if words else call, commands.placeholders([*given, metric])


def _named(name: str) -> str:
    return f"{SYMBOL[name]} ({name})" if name in SYMBOL else name


def _short(name: str) -> str:
    return SYMBOL.get(name, name)


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return value if isinstance(value, Placeholder) else json.dumps(value, ensure_ascii=False)
    return repr(value)


def absent(column: str, columns: list[str]) -> str:
    """Return that there is no such column, with the nearest name if there is one."""
    close = nearest(column, columns)
    return f"no column {column!r}" + (f"; did you mean {close!r}?" if close else "")


def _words(expression: str) -> list[str]:
    """Return the names in an expression; empty if it is not arithmetic (`derive` rejects it)."""
    return re.findall(r"[^\W\d]\w*", expression) if re.fullmatch(r"[\w\s.+*/()-]+", expression) else []
