"""Drafts of the files that state how isolaw reads: a new ``isolaw.toml``, or only a mapping of columns.

A draft contains the given options, and missing values or guesses as comments for the user to correct.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from isolaw import commands
from isolaw.config.writing import toml_key, toml_value
from isolaw.errors import DataError, InputError, one_line
from isolaw.readers.assignments import Assignment
from isolaw.readers.found_logs import FoundLog, LogStatus
from isolaw.readers.hub import PREFIX
from isolaw.readers.mapping import ColumnMapping
from isolaw.readers.measures import maybe_shape, measure
from isolaw.readers.names import guess
from isolaw.readers.reading_file import PARTS, ReadingOptions, folder_of
from isolaw.readers.settling import needed, settling
from isolaw.readers.sources import READING_FILE
from isolaw.readers.table_files import load

_NEEDED = {"rollouts_per_problem": 8, "problems_per_batch": 512}
_SHOWN = 200
_HEADINGS = {
    "columns": '[columns]   # our name = "its column"',
    "derive": '[derive]   # our name = "arithmetic on its columns": numbers, names, + - * / // and brackets',
    "constants": "[constants]   # our name = one value for all rows",
    "metrics": "[metrics]   # metric = its column; an accuracy in percent is divided by 100",
}


def place(sources: Sequence[str]) -> tuple[Path, list[str]] | None:
    """Return the path of the file for these sources, and the files that it covers.

    Returns None if the sources share no folder or are on the Hub.

    >>> place(["runs/a.csv", "runs/b.csv"])
    (PosixPath('runs/isolaw.toml'), ['a.csv', 'b.csv'])
    """
    paths = [Path(source) for source in sources]
    if any(source.startswith(PREFIX) for source in sources):
        return None
    if len(paths) == 1 and paths[0].is_dir():
        return paths[0] / READING_FILE, []
    folders = {folder_of(path) for path in paths}
    if len(folders) != 1 or any(path.parent not in folders or path.is_dir() for path in paths):
        return None
    return folders.pop() / READING_FILE, [path.name for path in paths]


def draft(
    sources: Sequence[str],
    options: ReadingOptions,
    settings: Sequence[Assignment],
    columns: ColumnMapping,
    candidates: Sequence[FoundLog],
    command: str,
) -> tuple[str, list[str]]:
    """Return the text of the file, and the names of the values to fill in.

    ``command`` is the command to run once these values are filled in.

    Raises `DataError` if there is nothing to write: no option was given and nothing is missing.
    """
    keys = options.model_dump(exclude_defaults=True, exclude={"set"})
    lines = [f"{name} = {toml_value(value)}" for name, value in keys.items()]
    tables: dict[str, list[str]] = {}
    for own in settings:
        head = f"[set.{toml_key(own.glob)}]" if own.glob else "[set]"
        tables.setdefault(head, []).append(f"{toml_key(own.name)} = {toml_value(own.value)}")
    table = _table(candidates)
    missing = list(dict.fromkeys(need for own in candidates for need in own.needs))
    missing = missing or (["the columns"] if table else [])
    if missing and not table:
        for title, comments in _missing(candidates, sources).items():
            tables.setdefault(title, []).extend(comments)
    lines += tables.pop("", [])
    parts = _parts(columns, table)
    if not (lines[bool(options.files) :] or tables or any(parts.values())):
        raise DataError("--save: found no option of reading and no missing value; there is nothing to save")
    tables = dict(sorted(tables.items(), key=lambda pair: pair[0] != "[set]"))
    top = [
        "# How isolaw reads this. All commands find this file; options on the command line override it.",
        *(["# Fill in each missing value, remove the # before it, then run:"] if missing else []),
        *([f"#     {command}"] if missing else []),
        *(["#", *_described(load(table))] if table else []),
    ]
    blocks = [top + ([""] if lines else []) + lines]
    blocks += [[title, *texts] for title, texts in tables.items()]
    blocks += [[_HEADINGS[part], *texts] for part, texts in parts.items() if texts]
    return "\n\n".join("\n".join(texts) for texts in blocks) + "\n", missing


def _missing(candidates: Sequence[FoundLog], sources: Sequence[str]) -> dict[str, list[str]]:
    """Return comments for missing values by the title of their table, or "" for keys before any table.

    The comments are the options from `settling` or, if these options are too many, one table per run.
    """
    words = settling(candidates, sources)
    if words is None:
        return {f"[set.{toml_key(glob)}]": own for glob, own in needed(candidates, sources).items()}
    out: dict[str, list[str]] = {}
    for option, text in zip(words[::2], words[1::2], strict=True):
        before, _, value = text.rpartition("=")
        glob, _, name = before.rpartition(":")
        if option == "--name-pattern":
            out.setdefault("", []).append(f"# name_pattern = [{toml_value(text)}]")
        elif option == "--set":
            title = f"[set.{toml_key(glob)}]" if glob else "[set]"
            out.setdefault(title, []).append(f"# {toml_key(name)} = {value}")
        elif option == "--metric":
            out.setdefault("", []).append(f"# metric = {toml_value(text)}")
        else:
            before, _, value = text.partition("=")
            title = _HEADINGS[{"--column": "columns", "--constant": "constants"}.get(option, "derive")]
            out.setdefault(title, []).append(f"# {toml_key(before)} = {toml_value(value)}")
    return dict(sorted(out.items(), key=lambda pair: pair[0] not in ("", "[set]")))


def _table(candidates: Sequence[FoundLog]) -> str:
    """Return the first table whose columns isolaw does not recognise, or "" if there is none."""
    for own in candidates:
        unknown = own.status is LogStatus.UNKNOWN_FORMAT or (own.container == "table" and bool(own.offered))
        if unknown and not own.facts:
            try:
                load(own.sources[0])
            except InputError:
                continue
            return own.sources[0]
    return ""


def _parts(columns: ColumnMapping, table: str) -> dict[str, list[str]]:
    """Return the lines about columns: the given columns, and guesses for the other columns as comments."""
    given: dict[str, dict[str, Any]] = {name: dict(getattr(columns, name)) for name in PARTS}
    given["metrics"] = {name: own.model_dump(exclude_none=True) for name, own in columns.metrics.items()}
    known = {name for own in given.values() for name in own}
    out = {
        part: [f"{toml_key(name)} = {toml_value(value)}" for name, value in own.items()]
        for part, own in given.items()
    }
    for part, guesses in _drafted(load(table)).items() if table else ():
        for line in guesses:
            bare = line.removeprefix("# ")
            name, _, column = bare.partition(" = ")
            of_itself = column == f'"{name}"'  # isolaw recognises the column by its name
            if not (name in known or of_itself or (part == "metrics" and given["metrics"])):
                out[part].append(f"# {bare}")
    return out


def draft_mapping(path: str | Path, name: str = "mapping.toml") -> str:
    """Return a mapping file, to be called ``name``, for a CSV, Parquet or JSON lines table.

    Raises `DataError` if the table cannot be read.

    >>> import tomllib
    >>> text = draft_mapping("examples/data/tan_rollout_n_base.csv")
    >>> tomllib.loads(text)["columns"]
    {'step': 'step', 'rollouts_per_problem': 'rollout_n'}
    """
    frame = load(path)
    table = one_line(Path(path).name)
    lines = [
        f"# Draft: how isolaw reads the columns of {table}, with guesses. Correct it, then run",
        f"#     {commands.read_mapped(str(path), name)}",
        "#",
        *_described(frame),
        "",
    ]
    for part, own in _drafted(frame).items():
        lines += [_HEADINGS[part], *own, ""]
    return "\n".join(lines[:-1]) + "\n"


def _drafted(frame: pd.DataFrame) -> dict[str, list[str]]:
    """Return the lines of each part of a mapping. All but confident guesses are commented out."""
    columns = [str(column) for column in frame.columns]
    guessed = guess(columns)
    free = [column for column in columns if column not in guessed.values()]
    maybe = {ours: own for ours, own in maybe_shape(frame, free).items() if ours not in guessed}
    missing = [ours for ours in _NEEDED if ours not in guessed and ours not in maybe]
    out = {
        "columns": [
            *(f"{ours} = {toml_value(column)}" for ours, column in guessed.items()),
            *(
                f"# {ours} = {toml_value(column)}   # required; this column may be the right one"
                for ours, column in maybe.items()
            ),
            *(f'# {ours} = "…"' for ours in ("seed", "run_id", "problem_set") if ours not in guessed),
        ],
        "derive": [] if "compute" in guessed else [_compute(columns, guessed)],
        "constants": [
            *(f"# {ours} = {_NEEDED[ours]}   # required; no column looks like it" for ours in missing),
            '# problem_set = "…"',
        ],
    }
    if not {"metric", "value"} <= set(columns):  # otherwise each row names its metric
        out["metrics"] = _metrics(frame, [c for c in free if c not in maybe.values()])
    return out


def _described(frame: pd.DataFrame) -> list[str]:
    """Return comment lines that describe the columns of a table."""
    columns = [str(column) for column in frame.columns]
    more = [f"#   … and {len(columns) - _SHOWN} more"] if len(columns) > _SHOWN else []
    head = "# Its columns: how many rows have a value, and the first values"
    return [head, *(_column(frame, column) for column in columns[:_SHOWN]), *more]


def _compute(columns: list[str], guessed: dict[str, str]) -> str:
    prompts, n = next(filter(_counts_prompts, columns), None), guessed.get("rollouts_per_problem")
    sure = prompts and n and prompts not in guessed.values()
    product = toml_value(f"{prompts}*{n}" if sure else "…")
    return f"# compute = {product}   # if not problems_per_batch · rollouts_per_problem · step"


def _counts_prompts(column: str) -> bool:
    return any(word in column.lower() for word in ("prompts", "problems", "questions"))


def _metrics(frame: pd.DataFrame, columns: list[str]) -> list[str]:
    """Return a line per numeric column; only the first reward of each evaluation set is not commented out."""
    lines: list[str] = []
    taken: set[tuple[str, str]] = set()
    for column in columns:
        own = measure(frame, column)
        if own is None or _counts_prompts(column):
            continue
        reward = own.reward and not own.accuracy
        name = "reward" if reward and "reward" not in {n for n, _ in taken} else column
        entry = {"column": column, "eval_set": own.eval_set, **({"percent": True} if own.percent else {})}
        first = own.reward and own.eval_set not in {of for _, of in taken}
        if first:
            taken.add((name, own.eval_set))
        hint = (
            f"   # the largest value is {frame[column].max():g}, so it is taken as percent"
            if own.percent
            else ""
        )
        lines.append(f"{'' if first else '# '}{toml_value(name)} = {toml_value(entry)}{hint}")
    return lines or ['# "avg@4" = "…"   # no other column has numbers']


def _column(frame: pd.DataFrame, column: str) -> str:
    known = frame[column].dropna()
    first = ", ".join(str(value)[:20] for value in known.drop_duplicates().head(3))
    name, first = ("".join(c if c.isprintable() else "?" for c in text)[:80] for text in (column, first))
    return f"#   {name:<30} {len(known):>8,}   {first}"
