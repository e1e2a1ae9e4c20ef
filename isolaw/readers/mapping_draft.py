"""The draft of a mapping file for a table: guesses by name, for the user to correct."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from isolaw import commands
from isolaw.config.writing import toml_value
from isolaw.metrics import is_accuracy
from isolaw.readers.mapping import in_percent
from isolaw.readers.phases import HELD_OUT, REWARD, SOLVED, of_training, words_of
from isolaw.readers.table_files import STEP_NAMES, load

# The data model's columns → their names elsewhere. The user sees every guess.
CALLED = {
    "step": " ".join(STEP_NAMES),
    "rollouts_per_problem": "rollouts_per_problem n rollout_n group_size num_generations "
    "n_samples_per_prompt samples_per_prompt rollouts_per_example rollouts_per_prompt "
    "num_samples_per_prompt_rollout num_generations_per_prompt",
    "problems_per_batch": "problems_per_batch b_p bp prompts_per_step prompts_per_batch problems_per_step "
    "num_prompts_per_step num_unique_prompts_rollout train_batch_size rollout_batch_size",
    "compute": "compute compute_rollouts rollouts_seen total_rollouts",  # num_rollouts may be n
    "seed": "seed random_seed rng_seed",
    "run_id": "run_id run run_name experiment experiment_name",
    "problem_set": "problem_set train_set dataset",
    "algorithm": "algorithm algo",
    "eval_set": "eval_set",
    "tokens": "tokens num_tokens total_tokens tokens_seen",
    "wall_s": "wall_s wall_time runtime elapsed elapsed_s _runtime",
}
_NEEDED = {"rollouts_per_problem": 8, "problems_per_batch": 512}
_SHOWN = 200
HEADINGS = {
    "columns": '[columns]   # our name = "its column"',
    "derive": '[derive]   # our name = "arithmetic on its columns": numbers, names, + - * / // and brackets',
    "constants": "[constants]   # our name = one value for all rows",
    "metrics": "[metrics]   # metric = its column; an accuracy in percent is divided by 100",
}


def draft(path: str | Path, name: str = "mapping.toml") -> str:
    """Return a mapping file for a CSV, Parquet or JSON lines table; ``name`` is for the command in it.

    Raises `DataError` if the table cannot be read.

    >>> import tomllib
    >>> text = draft("examples/data/tan_rollout_n_base.csv")
    >>> tomllib.loads(text)["columns"]
    {'step': 'step', 'rollouts_per_problem': 'rollout_n'}
    """
    frame = load(path)
    lines = [
        f"# How the columns of {Path(path).name} become isolaw's: a draft, with guesses. Correct it, then",
        f"#     {commands.read_mapped(str(path), name)}",
        "#",
        *described(frame),
        "",
    ]
    for part, own in drafted(frame).items():
        lines += [HEADINGS[part], *own, ""]
    return "\n".join(lines[:-1]) + "\n"


def drafted(frame: pd.DataFrame) -> dict[str, list[str]]:
    """Return the lines of each part of a mapping; guesses are no comments."""
    columns = [str(column) for column in frame.columns]
    guessed = guess(columns)
    missing = [ours for ours in _NEEDED if ours not in guessed]
    out = {
        "columns": [
            *(f"{ours} = {toml_value(column)}" for ours, column in guessed.items()),
            *(f'# {ours} = "…"' for ours in ("seed", "run_id", "problem_set") if ours not in guessed),
        ],
        "derive": [] if "compute" in guessed else [_compute(columns, guessed)],
        "constants": [
            *(f"# {ours} = {_NEEDED[ours]}   # needed, and no column looks like it" for ours in missing),
            '# problem_set = "…"',
        ],
    }
    if not {"metric", "value"} <= set(columns):  # else each row names its metric
        out["metrics"] = _metrics(frame, [c for c in columns if c not in guessed.values()])
    return out


def described(frame: pd.DataFrame) -> list[str]:
    """Return comments with the columns of a table."""
    columns = [str(column) for column in frame.columns]
    more = [f"#   … and {len(columns) - _SHOWN} more"] if len(columns) > _SHOWN else []
    head = "# Its columns: how many rows have a value, and the first values"
    return [head, *(_described(frame, column) for column in columns[:_SHOWN]), *more]


def guess(columns: list[str], called: Mapping[str, str] = CALLED) -> dict[str, str]:
    """Return our name → the column with one of its names (``called``), in any case and separators."""
    plain = {re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_"): column for column in reversed(columns)}
    found = {ours: [plain[n] for n in names.split() if n in plain] for ours, names in called.items()}
    return {ours: own[0] for ours, own in found.items() if own}


def _compute(columns: list[str], guessed: dict[str, str]) -> str:
    prompts, n = next(filter(_counts_prompts, columns), None), guessed.get("rollouts_per_problem")
    sure = prompts and n and prompts not in guessed.values()
    product = toml_value(f"{prompts}*{n}" if sure else "…")
    return f"# compute = {product}   # if not problems_per_batch · rollouts_per_problem · step"


def _counts_prompts(column: str) -> bool:
    return any(word in column.lower() for word in ("prompts", "problems", "questions"))


def _metrics(frame: pd.DataFrame, columns: list[str]) -> list[str]:
    """A line for each column of numbers; of each evaluation set, the likeliest one is no comment."""
    lines: list[str] = []
    taken: set[tuple[str, str]] = set()
    for column in columns:
        numeric = pd.api.types.is_numeric_dtype(frame[column])
        if not numeric or pd.api.types.is_bool_dtype(frame[column]) or _counts_prompts(column):
            continue
        words = words_of(column)
        reward, accuracy = bool(words & REWARD), is_accuracy(column)
        trained = of_training(column, list(map(str, frame.columns)))
        held_out = bool(words & HELD_OUT) or (accuracy and not trained)
        eval_set = "validation" if held_out else "train"
        name = "reward" if reward and "reward" not in {n for n, _ in taken} else column
        percent = in_percent(column, frame[column])
        entry = {"column": column, "eval_set": eval_set, **({"percent": True} if percent else {})}
        first = (accuracy or reward) and eval_set not in {own for _, own in taken}
        if first:
            taken.add((name, eval_set))
        hint = f"   # up to {frame[column].max():g}" if percent else ""
        lines.append(f"{'' if first else '# '}{toml_value(name)} = {toml_value(entry)}{hint}")
    return lines or ['# "avg@4" = "…"   # no column of numbers is left']


def likely_reward(frame: pd.DataFrame, columns: list[str]) -> str:
    """Return the column of numbers that looks most like a held-out accuracy or reward; "" if none does."""
    ranks: list[tuple[bool, bool, bool, str]] = []
    for column in columns:
        words = words_of(column)
        if pd.api.types.is_numeric_dtype(frame[column]) and (
            is_accuracy(column) or words & (REWARD | SOLVED)
        ):
            trained = of_training(column, list(map(str, frame.columns)))
            ranks.append((trained, not words & HELD_OUT, not is_accuracy(column), column))
    return min(ranks, key=lambda rank: rank[:3])[3] if ranks else ""


def _described(frame: pd.DataFrame, column: str) -> str:
    known = frame[column].dropna()
    first = ", ".join(str(value)[:20] for value in known.drop_duplicates().head(3))
    name, first = ("".join(c if c.isprintable() else "?" for c in text)[:80] for text in (column, first))
    return f"#   {name:<30} {len(known):>8,}   {first}"
