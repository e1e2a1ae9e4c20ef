"""The draft of a mapping file for a table, with guesses by name for the user to correct."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from isolaw import commands
from isolaw.config.writing import toml_value
from isolaw.readers.measures import maybe_shape, measure
from isolaw.readers.names import guess
from isolaw.readers.table_files import load

_NEEDED = {"rollouts_per_problem": 8, "problems_per_batch": 512}
_SHOWN = 200
HEADINGS = {
    "columns": '[columns]   # our name = "its column"',
    "derive": '[derive]   # our name = "arithmetic on its columns": numbers, names, + - * / // and brackets',
    "constants": "[constants]   # our name = one value for all rows",
    "metrics": "[metrics]   # metric = its column; an accuracy in percent is divided by 100",
}


def draft(path: str | Path, name: str = "mapping.toml") -> str:
    """Return a mapping file, to be called ``name``, for a CSV, Parquet or JSON lines table.

    Raises `DataError` if the table cannot be read.

    >>> import tomllib
    >>> text = draft("examples/data/tan_rollout_n_base.csv")
    >>> tomllib.loads(text)["columns"]
    {'step': 'step', 'rollouts_per_problem': 'rollout_n'}
    """
    frame = load(path)
    lines = [
        f"# Draft: how isolaw reads the columns of {Path(path).name}, with guesses. Correct it, then run",
        f"#     {commands.read_mapped(str(path), name)}",
        "#",
        *described(frame),
        "",
    ]
    for part, own in drafted(frame).items():
        lines += [HEADINGS[part], *own, ""]
    return "\n".join(lines[:-1]) + "\n"


def drafted(frame: pd.DataFrame) -> dict[str, list[str]]:
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


def described(frame: pd.DataFrame) -> list[str]:
    """Return comment lines that describe the columns of a table."""
    columns = [str(column) for column in frame.columns]
    more = [f"#   … and {len(columns) - _SHOWN} more"] if len(columns) > _SHOWN else []
    head = "# Its columns: how many rows have a value, and the first values"
    return [head, *(_described(frame, column) for column in columns[:_SHOWN]), *more]


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


def _described(frame: pd.DataFrame, column: str) -> str:
    known = frame[column].dropna()
    first = ", ".join(str(value)[:20] for value in known.drop_duplicates().head(3))
    name, first = ("".join(c if c.isprintable() else "?" for c in text)[:80] for text in (column, first))
    return f"#   {name:<30} {len(known):>8,}   {first}"
