"""The names of values, and their other spellings: in tables, in the output of trainers, and in run names.

Every guess is shown to the user. The names of a framework's settings are in its module
(`isolaw.readers.frameworks`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from isolaw.errors import InputError, nearest
from isolaw.readers.literals import parse_number
from isolaw.readers.raw_log import whole
from isolaw.runs import COLUMNS, SYMBOLS

# Symbols and other spellings, mapped to names in code.
ALIASES = {**SYMBOLS, "B": "rollouts_per_step", "batch_rollouts": "rollouts_per_step"}
DEFAULTS = {"problem_set": "unnamed", "algorithm": "grpo", "seed": 0}
ASSUMED, NAME_PATTERN = "unless set", "--name-pattern"  # origins of a default and of a value in a run name
SPLIT = ("problems_per_batch", "rollouts_per_problem", "rollouts_per_step")
UPDATES = "updates_per_batch"  # optimiser steps for which a batch of B_p · n rollouts is used
WHOLE = {  # integer facts → their minimum
    **dict.fromkeys([*SPLIT, UPDATES, "n_problems", "n_samples", "n_train_problems", "logging_steps"], 1),
    "seed": 0,
}
FOR_TABLES = ("eval_set",)  # values that can be set for the rows of a table, but not for a log
_BOOLEAN_VALUES = ("on_policy", "percent")
_TEXT_VALUES = ("problem_set", "algorithm", "framework", *FOR_TABLES)
_MEASURED_VALUES = set(COLUMNS) - {*WHOLE, *_TEXT_VALUES}
# Names of the step counter, the best first.
STEPS = "step steps global_step training_step train_step trainer_step iteration iter update updates"
STEPS += " current_step current_steps"
# Columns of the data model → their names elsewhere.
CALLED = {
    "step": STEPS,
    "rollouts_per_problem": "rollouts_per_problem n rollout_n group_size "
    "num_generations n_samples_per_prompt samples_per_prompt rollouts_per_example rollouts_per_prompt "
    "generations_per_prompt completions_per_prompt num_samples_per_prompt num_samples_per_prompt_rollout "
    "num_generations_per_prompt n_agent",
    "problems_per_batch": "problems_per_batch b_p bp prompts_per_step prompts_per_batch problems_per_step "
    "questions_per_batch num_prompts_per_step num_unique_prompts_rollout train_batch_size rollout_batch_size",
    "compute": "compute compute_rollouts rollouts_seen total_rollouts",  # num_rollouts may be n
    "seed": "seed random_seed rng_seed",
    "run_id": "run_id run run_name experiment experiment_name",
    "problem_set": "problem_set train_set dataset",
    "algorithm": "algorithm algo",
    "eval_set": "eval_set",
    "tokens": "tokens num_tokens total_tokens tokens_seen",
    "wall_s": "wall_s wall_time runtime elapsed elapsed_s _runtime",
}
BATCH = "rollouts_per_step rollouts_per_batch episodes_per_step episodes_per_batch trajectories_per_step"
# Names that count prompts in some trainers and rollouts in others.
AMBIGUOUS = {"train_batch_size", "rollout_batch_size"}
# Names that can mean B_p or n, but need not. isolaw suggests such a column, and never uses it without
# consent.
MAYBE = {
    "rollouts_per_problem": "group groups k g samples num_samples n_samples rollouts num_rollouts "
    "generations completions num_completions n_rollouts rollouts_n",
    "problems_per_batch": "batch batch_size batchsize bs bsz prompts num_prompts n_prompts problems "
    "questions",
}
# Columns that name a run or one of its starts; the coarsest one is the run's name.
_RUN_COLUMNS = ("run", "name", "run_name", "display_name", "experiment", "experiment_name")
RUN_NAMES = {name: name for name in (*_RUN_COLUMNS, "id", "uid", "uuid", "wandb_id")}
# Settings of a recipe that can distinguish runs with the same name.
RECIPE = {
    "lr": "lr learning_rate",
    "kl": "kl kl_coef kl_coeff kl_loss_coef kl_beta",
    "entropy": "entropy_coef entropy_coeff ent_coef",
    "temperature": "temperature temp",
}
CONFIGURATIONS = ("config", "configuration", "args", "hparams", "hyperparameters", "settings", "meta")
SYMBOL = {"problems_per_batch": "B_p", "rollouts_per_problem": "n", "rollouts_per_step": "B"}
# Abbreviations before a number in a run's name.
_ABBREVIATIONS = {
    "n": "n g k gen rollout rollouts",
    "B_p": "p prompt prompts problem problems bs bsz batch batchsize",
    "seed": "s",
}
# Units of counters; episodes can be steps or rollouts.
UNITS = ("episode", "rollout", "sample", "trajectory", "prompt", "problem", "game")
_COUNTER_WORDS = (*UNITS, "completion", "generation", "question", "trajectorie", "group", "sequence")  # + s
_COUNTER_NAME = re.compile(
    r"(?:(?:total|cumulative|cum|global|num|n|seen|consumed|generated|processed|so|far|count|number|of|batch"
    rf"|per|step|train|training|{'|'.join(_COUNTER_WORDS)})s?(?:_|$)){{1,6}}"
)


def plain(name: str) -> str:
    """Return a name in lower case, with underscores between its words.

    >>> plain("Rollouts per Prompt"), plain("rollout/n")
    ('rollouts_per_prompt', 'rollout_n')
    """
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def is_step(key: str) -> bool:
    """Return whether a key counts steps, as ``train/global_step`` does."""
    return plain(key.rpartition("/")[2]) in STEPS.split()


def guess(columns: Sequence[str], names_of: Mapping[str, str] = CALLED) -> dict[str, str]:
    """Map our names to the columns with one of their names in ``names_of``, in any case and separators.

    >>> guess(["Step", "group-size", "acc"])
    {'step': 'Step', 'rollouts_per_problem': 'group-size'}
    """
    column_of_name = {plain(column): column for column in reversed(columns)}
    columns_of = {
        ours: [column_of_name[name] for name in names.split() if name in column_of_name]
        for ours, names in names_of.items()
    }
    return {ours: columns[0] for ours, columns in columns_of.items() if columns}


def spellings_of(need: str) -> str:
    """Return a regular expression for the spellings of ``n``, ``B_p`` or ``seed`` in run names.

    >>> bool(re.fullmatch(spellings_of("n"), "groupsize")), bool(re.fullmatch(spellings_of("B_p"), "bs"))
    (True, True)
    """
    full_name = {symbol: name for name, symbol in SYMBOL.items()}.get(need, need)
    return "|".join(f"{_ABBREVIATIONS[need]} {CALLED[full_name]}".replace("_", "_?").split())


def counts(name: str) -> str:
    """Return what a column with this name counts, per record or from the start, or "" if nothing.

    ``both`` means that it could count rollouts or problems, as samples do.

    >>> [counts(name) for name in ("total_episodes", "num_groups", "samples", "num_tokens", "reward")]
    ['rollouts', 'problems', 'both', '', '']
    """
    plain_name = plain(name)
    if any(plain_name in CALLED[ours].split() for ours in SPLIT[:2]):
        return ""
    if plain_name in CALLED["compute"].split():
        return "rollouts"
    words = {word.rstrip("s") for word in plain_name.split("_")}
    if not _COUNTER_NAME.fullmatch(plain_name) or words.isdisjoint(_COUNTER_WORDS):
        return ""
    if words & {"prompt", "problem", "question", "group"}:
        return "problems"
    return "both" if words & {"sample", "sequence"} else "rollouts"


def settable(name: str, prefix: str) -> str:
    """Return the name in code of a settable value; raise `InputError` for values that a log measures."""
    name = ALIASES.get(name, name)
    if name in _MEASURED_VALUES:
        raise InputError(f"{prefix}: {name} comes from the log and cannot be set")
    known_names = [*ALIASES, *WHOLE, *_BOOLEAN_VALUES, *_TEXT_VALUES]
    if name not in known_names and (nearest_name := nearest(name, known_names, cutoff=0.8)):
        raise InputError(f"{prefix}: unknown name {name!r}; did you mean {nearest_name!r}?")
    return name


def value_of(name: str, text: str, prefix: str) -> Any:
    """Return the value that a text sets for a `settable` name.

    Raises an `InputError` that starts with ``prefix`` if it is invalid.
    """
    is_boolean = text.lower() in ("true", "false")
    value = text if name in _TEXT_VALUES else text.lower() == "true" if is_boolean else as_number(text)
    if name in _BOOLEAN_VALUES and not isinstance(value, bool):
        raise InputError(f"{prefix}: {name} must be true or false")
    if name in WHOLE and (type(value) is not int or whole(value, WHOLE[name]) is None):
        raise InputError(f"{prefix}: {name} must be a whole number, {WHOLE[name]} or more")
    return value


def as_number(text: str) -> Any:
    """Convert text to the number that it spells; return other text unchanged, including "nan" and "inf".

    >>> as_number("8"), as_number("inf"), as_number("1" + 400 * "0") == "1" + 400 * "0"
    (8, 'inf', True)
    """
    number = parse_number(text)  # an integer may be too large for a float
    return number if number is not None and math.isfinite(float(text)) else text
