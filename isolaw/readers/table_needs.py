"""Everything that a table lacks to be read as runs, and the call or command that would read it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from isolaw import commands
from isolaw.commands import Placeholder, option, word
from isolaw.errors import DataError, Spelled, Wording, nearest, shown
from isolaw.metrics import is_reward
from isolaw.readers.how_to_read import HowToRead, MetricColumn
from isolaw.readers.measures import likely_reward, maybe_shape
from isolaw.readers.name_patterns import offer
from isolaw.readers.names import RUN_NAMES, SPLIT, SYMBOL, UNITS, guess
from isolaw.readers.table_columns import lacking
from isolaw.readers.table_files import SOURCE
from isolaw.readers.table_segments import names_of

_SHOWN = 60  # columns to list in the message
_NUMBERS = {*SPLIT, "step", "compute", "seed", "value", "tokens", "wall_s", "n_problems", "n_samples"}
_TEXTS = {"run_id", "problem_set", "algorithm", "eval_set"}


_COLUMN, _NUMBER = Placeholder("column"), Placeholder("number")


class TableNeeds(DataError):
    """Raised for a table that lacks B_p, n, its steps or its reward.

    ``needs`` maps each missing value to the key that supplies it and its value, or to None if no column looks
    suitable. ``short`` is the message without the command that reads this table, and ``how`` says the same as
    this command.
    """

    def __init__(
        self, message: str, needs: Mapping[str, tuple[str, str] | None], short: str, how: HowToRead
    ) -> None:
        super().__init__(message)
        self.needs, self.short, self.how = dict(needs), short, how


def check_complete(frame: pd.DataFrame, how: HowToRead, source: str) -> None:
    """Raise `TableNeeds` if a named column, B_p, n, the compute or the reward is missing."""
    columns = list(map(str, frame.columns))
    numeric = [name for name in columns if pd.api.types.is_numeric_dtype(frame[name])]
    # What an isolaw.toml says need not be repeated.
    mended: dict[str, str] = {} if how.file else dict(how.columns)
    values: dict[str, Any] = {} if how.file else dict(how.values)
    rewards = {} if how.file else {name: metric.column for name, metric in how.metrics.items()}
    free = [name for name in columns if name not in how.texts]
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
    there = {*columns, *how.names}
    lines = []
    needs: dict[str, tuple[str, str] | None] = {}
    texts = [(name, text, _named(name), mended) for name, text in how.columns.items()]
    texts += [(name, reward.column, f"metric {name!r}", rewards) for name, reward in how.metrics.items()]
    for name, text, called, into in texts:
        missing = lacking(text, there if name in columns else there - {name})
        fitting = numeric if name in _NUMBERS or into is rewards else columns
        if missing == [text]:
            lines.append(f"{called}: {absent(text, fitting)}")
            into[name] = nearest(text, fitting) or guesses.get(name, _COLUMN)
        elif missing:
            lines += [f"{called}: {text!r}: {absent(each, [*numeric, *how.names])}" for each in missing]
            mends = {each: nearest(each, numeric) or _COLUMN for each in missing}
            parts = re.split(rf"\b({'|'.join(map(re.escape, mends))})\b", text)
            into[name] = word(*(mends.get(part, part) for part in parts))
    wrong = bool(lines)
    split = [name for name in SPLIT if name in there]
    lacking_two = SPLIT[1:2] if split == [SPLIT[2]] else SPLIT[:2]  # n determines B_p if B is known
    unknown = [name for name in lacking_two if len(split) < 2 and name not in there]
    pattern, carried = _in_names(frame, [_short(name) for name in unknown if name not in guesses], source)
    for name in unknown:
        if _short(name) in carried:
            lines.append(f"{_named(name)}: found no column and no value; the run names may contain the value")
            needs[_short(name)] = "name_pattern", pattern
        else:
            close = guesses.get(name, "")
            lines.append(
                f"{_named(name)}: found no column and no value{f'; nearest: {close!r}' if close else ''}"
            )
            if close and name == SPLIT[0] and name not in sure:
                lines[-1] += "; if it counts rollouts: " + option("columns", SYMBOL[SPLIT[2]], close)
            (mended if close else values)[name] = close or _NUMBER
            needs[_short(name)] = ("columns", close) if close else None
    if not {"step", "compute"} & there:
        name = "compute" if "compute" in guesses and "step" not in guesses else "step"
        close = guesses.get(name, "")
        lines.append(f"step or compute: found no column{f'; nearest: {close!r}' if close else ''}")
        if counted := next((column for column in columns if column in UNITS and not close), ""):
            steps, rollouts = (option("columns", ours, counted) for ours in ("step", "compute"))
            lines[-1] += f"; state what {counted!r} counts: " + steps
            lines[-1] += ", or " + rollouts + " if it counts rollouts"
        for label in guess(columns, RUN_NAMES).values():
            if not close and len(frame) > 1 and frame[label].is_unique:
                lines[-1] += (
                    f"; each row has a different {label}, and one final value per run is not a learning "
                    "curve. Export the runs' histories"
                )
                break
        mended[name] = close or _COLUMN
        needs[name] = "columns", mended[name]
    metric = how.metric
    named = {"metric", "value"} <= there or "value" in how.names or value_alone(frame, how)
    wide = not how.metrics and not named
    if wide and (metric or "avg@4") not in there:
        name = metric or "avg@4"
        used = {*how.columns.values(), *mended.values()}
        close = (
            nearest(name, [c for c in free if c in numeric])
            if metric
            else likely_reward(frame, [c for c in free if c not in used])
        )
        hint = f"; did you mean {close!r}?" if metric else f"; nearest: {close!r}"
        lines.append(f"the reward: found no column {shown(name)}{hint if close else ''}")
        metric = close or _COLUMN
        needs["metric"] = "metric", metric
    if lines:
        head = f"{source}: " + lines[0]
        if len(lines) > 1:
            count = f"{source}: {len(lines)} columns or values are missing"
            head = Wording(count, *("  - " + line for line in lines))
        more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
        proposal = HowToRead.model_construct(
            columns=mended, set={"": values}, name_pattern=[pattern] if pattern else [], metric=metric,
            metrics={name: MetricColumn.model_construct(column=text) for name, text in rewards.items()},
        )  # fmt: skip
        call, fill = _reading(source, proposal)
        right = f"with {' and '.join(fill)} filled in, if the other" if fill else "if the"
        short = Wording(head, f"  columns: {', '.join(columns[:_SHOWN])}{more}")
        text = Wording(short, f"  This reads the table, {right} names are right:", "    " + call)
        raise DataError(text) if wrong else TableNeeds(text, needs, short, proposal)


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
    columns = [name for name in map(str, frame.columns) if name not in how.texts]
    if how.metrics or "value" not in columns or "metric" in {*columns, *how.names}:
        return False
    wanted = {how.metric or "avg@4", "avg@4"}
    return not wanted & {*columns} and not likely_reward(frame, [c for c in columns if c != "value"])


def _reading(source: str, how: HowToRead) -> tuple[str, list[str]]:
    """Return the call, and for the command line the command, that reads a table, and its placeholders."""
    options = how.options()
    arguments = ["df" if source == SOURCE else json.dumps(source, ensure_ascii=False), *how.keywords()]
    call = f"isolaw.read({', '.join(arguments)})"
    words = [] if source == SOURCE else commands.read_table(source, options).words
    return Spelled(call, [*words]) if words else call, commands.placeholders(options)


def _named(name: str) -> str:
    return f"{SYMBOL[name]} ({name})" if name in SYMBOL else name


def _short(name: str) -> str:
    return SYMBOL.get(name, name)


def absent(column: str, columns: list[str]) -> str:
    """Return that there is no such column, with the nearest name if there is one."""
    close = nearest(column, columns)
    return f"no column {shown(column)}" + (f"; did you mean {close!r}?" if close else "")
