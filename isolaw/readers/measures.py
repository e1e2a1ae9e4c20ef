"""The kind of a metric: from training or an evaluation, a reward or not, in fractions or in percent.

isolaw judges by a metric's name, by the names next to it, and by its values. Tables, consoles and frameworks
use the same rules. `isolaw.metrics` decides whether it is an accuracy, and whether it falls as training
improves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.commands import option
from isolaw.errors import DataError
from isolaw.metrics import is_accuracy, is_reward
from isolaw.readers import frameworks
from isolaw.readers.names import MAYBE, guess

HELD_OUT = {"val", "valid", "validation", "eval", "evaluation", "test", "holdout", "heldout"}
_TRAINING = {"train", "training", "rollout", "batch"}
# Words that mark kinds of rows, but are not names of columns.
_EVALUATING = HELD_OUT | {"evaluate", "evaluating", "validate", "validating", "testing", "dev"}
_UPDATING = _TRAINING | {"trn", "update", "optimize", "optimise", "optimization", "step", "learn"}
# Names of fields that mark a row as training or evaluation.
PHASES = (
    *("split", "phase", "mode", "stage", "eval_set", "kind", "type", "set"),
    *("event", "tag", "what", "job"),
)
# Words of columns in tables of evaluations, whose n_samples are the problems of a benchmark.
_BENCHMARKS = HELD_OUT | {"benchmark", "benchmarks", "task", "pass"}
_TRUTHS = {"true": True, "yes": True, "1": True, "1.0": True}
_TRUTHS |= {"false": False, "no": False, "0": False, "0.0": False}
# Names that only a training log has next to a reward.
_TRAINER = re.compile(
    r"(?:.*[/_ .])?(?:loss|kl|grad_?norm|lr|learning[_ ]rate|entropy|(?:response|completions?)_length)"
    r"(?:[/_ ].*)?",
    re.I,
)
# Names of a loss, and names that a trainer logs with it; a table of samples with losses has none of these.
_LOSS = re.compile(r"(?:(?:train|eval|val|valid|validation|test)[/_])?(?:loss|nll|perplexity|ppl)", re.I)
_WITH_A_LOSS = re.compile(
    r"(?:(?:train|eval|val)[/_])?(?:lr\b.*|learning_rate|epoch|(?:global_?)?step|grad_?norm"
    r"|num_tokens|mean_token_accuracy|runtime)",
    re.I,
)
# DPO has no rollouts: rewards/chosen and rewards/margins are computed from a data set. token_acc and seq_acc
# are shares of the labels, in supervised training.
_OF_LABELS = re.compile(r"rewards?/(?:chosen|rejected|margins|accuracies)|(?:token|seq)_acc", re.I)
_OF_RL = re.compile(
    r"(?:^|[/_.])(?:advantages?|kl|pass|rollouts?|completions?|response_length|actor|critic|ppo|policy|avg)"
    r"(?:$|[/_.@])",
    re.I,
)
# Names of evaluations: avg@4, pass_1, aime24, gsm8k, math_500.
_OF_A_BENCHMARK = re.compile(
    r"@|(?:^|[/_. -])(?:(?:pass|best|maj|avg|mean|worst)_?(?:at_?)?\d"
    r"|(?=[a-z]*\d)(?=\d*[a-z])[a-z\d]{4,}(?![a-z\d])|(?:math|amc|aime|mmlu|gpqa|minerva|olympiad(?:bench)?|humaneval|mbpp|livecodebench|arc|hellaswag)(?![a-z]))",
    re.I,
)
_PERCENT = {"pct", "percent", "percentage", "perc"}
_R = re.compile(r"(?:[a-z]+[_ ])?(?:r|rew)", re.I)  # short names of a reward
_SUMMARIES = {"best", "max", "ema", "smooth", "smoothed", "running", "rolling", "moving"}
_OF_FORM = {"format", "token"}  # shares of well-formed answers, or of the labels of supervised training
_NUMBER_OF = re.compile(r"(?:n|num|number|count)[_ /]|.*[_ /]counts?$", re.I)
_LEAST_FRACTION, _LEAST_JUMP = 0.05, 50  # between consecutive evaluations
_ABOVE_ONE = 1 + 1e-6
Floats = NDArray[np.float64]


def _numeric(frame: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    return list(map(str, frame[list(columns)].select_dtypes("number")))


def _misleads(column: str) -> bool:
    """Return whether a column is the best so far, smoothed, a number of values or of form, by its name."""
    words = words_of(column)
    summary = words & _SUMMARIES and "@" not in column
    return bool(summary or words & _OF_FORM or _NUMBER_OF.match(column))


def likely_reward(frame: pd.DataFrame, columns: Sequence[str]) -> str:
    """Return the column that looks most like a held-out accuracy or reward, or "" if none does."""
    numeric, every = _numeric(frame, columns), list(map(str, frame.columns))
    return min(
        list(filter(is_reward, numeric)) or list(filter(_R.fullmatch, numeric)),
        key=lambda column: (
            _misleads(column),
            of_training(column, every),
            not words_of(column) & HELD_OUT,
            not is_accuracy(column),
            "reward" not in words_of(column),
        ),
        default="",
    )


def only_accuracy(frame: pd.DataFrame, columns: Sequence[str]) -> str:
    """Return the only accuracy of a table, or "" if it has none, several, or a held-out reward."""
    accuracies = [c for c in _numeric(frame, columns) if is_accuracy(c) and not _misleads(c)]
    return accuracies[0] if accuracies == [likely_reward(frame, columns)] else ""


def maybe_shape(frame: pd.DataFrame, columns: Sequence[str]) -> dict[str, str]:
    """Return the columns that could contain B_p or n: with a looser name, and few distinct positive integers.

    >>> frame = pd.DataFrame({"batch": [32] * 12, "group": [4, 16] * 6, "samples": range(1, 13)})
    >>> maybe_shape(frame, ["batch", "group", "samples"])
    {'rollouts_per_problem': 'group', 'problems_per_batch': 'batch'}
    >>> maybe_shape(pd.DataFrame({"n_samples": [8] * 9, "loss": 0.1}), ["n_samples"])
    {'rollouts_per_problem': 'n_samples'}
    >>> maybe_shape(pd.DataFrame({"n_samples": [30] * 9, "benchmark": "aime"}), ["n_samples"])
    {}
    """
    numeric = {name: frame[name].dropna() for name in columns if pd.api.types.is_numeric_dtype(frame[name])}
    every = [str(column) for column in frame.columns]
    of_evaluations = any(words_of(name) & _BENCHMARKS for name in every)
    if of_evaluations and not any(map(is_measured_by_trainer, every)):
        numeric = {name: values for name, values in numeric.items() if "samples" not in words_of(name)}
    fitting = [
        name
        for name, values in numeric.items()
        if len(values)
        and (values >= 1).all()
        and (values % 1 == 0).all()
        and values.nunique() <= len(values) / 5
    ]
    return guess(fitting, MAYBE)


def is_measured_by_trainer(column: str) -> bool:
    """Return whether a name is a loss, a KL divergence, a learning rate or the like, of a training step.

    >>> [is_measured_by_trainer(name) for name in ("train/loss", "kl_div", "lr", "val_loss", "reward")]
    [True, True, True, False, False]
    """
    return bool(_TRAINER.fullmatch(column)) and not words_of(column) & HELD_OUT


def words_of(column: str) -> set[str]:
    """Return the words in a column's name.

    >>> sorted(words_of("Val/mean_reward"))
    ['mean', 'reward', 'val']
    """
    return set(re.split(r"[^a-z]+", column.lower()))


def eval_set_of(value: object) -> str:
    """Return ``train`` or ``validation`` for a text that is a name for either, "" for any other text.

    >>> eval_set_of("Eval"), eval_set_of("train"), eval_set_of("aime24")
    ('validation', 'train', '')
    """
    word = value.strip().lower() if isinstance(value, str) else ""
    return "validation" if word in _EVALUATING else "train" if word in _UPDATING else ""


def says_its_set(name: str) -> bool:
    """Return whether a metric's name says that it is of an evaluation, or of training.

    >>> [says_its_set(name) for name in ("val_acc", "avg@4", "gsm8k_acc", "train_acc", "acc", "running_r")]
    [True, True, True, True, False, False]
    """
    return bool(words_of(name) & (HELD_OUT | _TRAINING)) or bool(_OF_A_BENCHMARK.search(name))


def of_training(column: str, columns: Sequence[str]) -> bool:
    """Return whether a column is measured on training batches, judged by its name and those of its line.

    What is printed with a loss, a gradient norm, a KL divergence or a learning rate is of the training batch,
    unless its name says otherwise: val, eval, a benchmark, avg@k. So is a reward next to the same metric of
    an evaluation.

    >>> names = ("train_acc", "running_r", "acc", "val_reward", "aime24_acc", "avg@4")
    >>> [of_training(name, ["step", "loss", name]) for name in names]
    [True, True, True, False, False, False]
    >>> of_training("acc", ["step", "acc", "val_acc"]), of_training("mean_reward", ["step", "mean_reward"])
    (True, False)
    """
    words = words_of(column)
    if words & HELD_OUT:
        return False
    if words & _TRAINING or frameworks.of_training(column):
        return True
    if _OF_A_BENCHMARK.search(column):
        return False
    said = [
        name
        for name in columns
        if words_of(name) & HELD_OUT and (is_reward(name) or words_of(name) <= HELD_OUT)
    ]
    return bool(said and is_reward(column)) or any(map(is_measured_by_trainer, columns))


def is_supervised(keys: Iterable[str]) -> bool:
    """Return whether metric keys belong to supervised training: losses, and no metric of RL.

    >>> is_supervised(["loss", "token_acc", "learning_rate"]), is_supervised(["loss", "epoch", "reward"])
    (True, False)
    """
    keys = list(keys)
    return (
        any(_LOSS.fullmatch(key) for key in keys)
        and any(_WITH_A_LOSS.fullmatch(key) for key in keys)
        and not any((is_reward(key) or _OF_RL.search(key)) and not _OF_LABELS.search(key) for key in keys)
    )


def named_percent(name: str) -> bool:
    """Return whether a name says that its values are in percent.

    >>> [named_percent(name) for name in ("acc_pct", "val/percent_solved", "acc%", "acc")]
    [True, True, True, False]
    """
    return "%" in name or not _PERCENT.isdisjoint(words_of(name))


def in_percent(
    metric: str, curves: Mapping[str, Floats], given: Mapping[str, bool]
) -> tuple[list[str], dict[str, str]]:
    """Return the runs in which a metric is in percent, and the problems of runs whose unit is unclear.

    ``curves`` has each run's values, and ``given`` the units that are known. An accuracy above 1 and at most
    100 is in percent. A run whose accuracies stay below 1 could also be in percent; if only some runs are,
    the smaller group has the problem. Other rewards are never in percent unless their name says so.

    >>> in_percent("acc", {"a": np.array([10.0, 40.0]), "b": np.array([20.0, 50.0])}, {})
    (['a', 'b'], {})
    >>> in_percent("acc", {"a": np.array([10.0, 40.0]), "b": np.array([0.2]), "c": np.array([0.1])}, {})
    ([], {'a': 'is in percent in a (up to 40), but at most 0.2 in b'})
    """
    percent, fractions = [run for run in curves if given.get(run)], []
    detected, problems = list[str](), dict[str, str]()
    for run, value in curves.items():
        low, high = float(np.nanmin(value)), float(np.nanmax(value))
        if run in given or not (named_percent(metric) or is_accuracy(metric)) or low < 0 or high > 100:
            continue
        if named_percent(metric):
            percent.append(run)
        elif high > _ABOVE_ONE and _changes_unit(value):
            problems[run] = f"is a fraction and a percentage in {run}"
        elif high > _ABOVE_ONE:
            detected.append(run)
        elif high > 0:  # all zeros are the same in both units
            fractions.append(run)
    if detected and fractions:
        one, other = detected[0], fractions[0]
        text = f"is in percent in {one} (up to {np.nanmax(curves[one]):g}), but at most "
        text += f"{np.nanmax(curves[other]):g} in {other}"
        problems |= dict.fromkeys(detected if len(detected) < len(fractions) else fractions, text)
    return [*percent, *(run for run in detected if run not in problems)], problems


def _changes_unit(value: Any) -> bool:
    """Return whether an accuracy changes between fraction and percent within one run.

    >>> _changes_unit([0.3, 0.35, 40.0]), _changes_unit([0.3, 2.0, 9.0])
    (True, False)
    """
    known = np.asarray(value, dtype=np.float64)
    low, high = np.minimum(known[1:], known[:-1]), np.maximum(known[1:], known[:-1])
    return bool(np.any((low > _LEAST_FRACTION) & (low <= 1) & (high > _LEAST_JUMP * low)))


def of_rows(table: pd.DataFrame, columns: Sequence[str], source: str) -> tuple[str, pd.Series | None]:
    """Return the column of ``columns`` that marks each row as training or evaluation, with its marks.

    The column is a flag (``is_eval``, ``do_eval``, ``validation``, ``is_train``), or contains words for
    training and evaluation. Only rows with a ``value`` count; all others are marked as train. If there is
    no such column, returns ``("", None)``.

    Raises `DataError` if the words in a column are clear only in some rows.
    """
    measured = table["value"].notna()
    for column in columns:
        said = _flagged(column, table[column]) if measured.any() else None
        if said is not None and (said[measured] != "").all():
            return column, said.where(measured, "train")
    unclear = []
    for column in columns:
        if pd.api.types.is_numeric_dtype(table[column]):
            continue
        said = table[column].map(eval_set_of)
        words = set(said[measured])
        known, named = words - {""}, column.lower() in PHASES
        if "" not in words and (len(known) == 2 or (known and named)):
            return column, said.where(measured, "train")
        unclear += [column] if named and known and "" in words else []
    for column in unclear:
        said = table[column].map(eval_set_of)
        clear, other = (table.index[measured & rows][0] for rows in (said != "", said == ""))
        raise DataError(
            f"{source}: column {column} is {table[column][clear]!r} in {table.index.name} {clear}, which is "
            f"{said[clear]}, but {table[column][other]!r} in {table.index.name} {other}, which may be of "
            "training or not. "
            + option("columns", "eval_set", column)
            + " takes its texts as the evaluation "
            "sets (train is that of training batches)"
        )
    return "", None


def _flagged(column: str, cells: pd.Series) -> pd.Series | None:
    """Return ``train`` or ``validation`` for each cell of a flag ("" if empty); None for other columns."""
    words = words_of(column)
    name = words - {"is", "do", "in", "flag", "mode"}
    if len(name) != 1 or not name <= HELD_OUT | _TRAINING:
        return None
    truths = cells.map(lambda cell: _TRUTHS.get(str(cell).strip().lower()), na_action="ignore")
    if truths[cells.notna()].isna().any():
        return None
    values = set(truths.dropna())
    sure = "is" in words or (pd.api.types.is_bool_dtype(cells.dropna().infer_objects()) and "do" not in words)
    if values == {True} and truths.isna().any():  # some logs write the flag only where it is true
        truths = truths.where(truths.notna(), False)
    elif not values or (len(values) == 1 and not sure):  # a setting or a metric
        return None
    true, false = ("validation", "train") if name <= HELD_OUT else ("train", "validation")
    return truths.map({True: true, False: false}).fillna("")
