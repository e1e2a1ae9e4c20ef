"""The kind of a metric: from training or an evaluation, a reward or not, in fractions or in percent.

isolaw judges by a metric's name, by the names next to it, and by its values. Tables, consoles and frameworks
use the same rules. `isolaw.metrics` decides whether it is an accuracy, and whether it falls as training
improves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
_TRAINING_WORDS = {"train", "training", "rollout", "batch"}
# Words that mark kinds of rows, but are not names of columns.
_EVAL_PHASES = HELD_OUT | {"evaluate", "evaluating", "validate", "validating", "testing", "dev"}
_TRAIN_PHASES = _TRAINING_WORDS | {"trn", "update", "optimize", "optimise", "optimization", "step", "learn"}
# Names of fields that mark a row as training or evaluation.
PHASES = (
    *("split", "phase", "mode", "stage", "eval_set", "kind", "type", "set"),
    *("event", "tag", "what", "job"),
)
# Words of columns in tables of evaluations, whose n_samples are the problems of a benchmark.
_BENCHMARK_WORDS = HELD_OUT | {"benchmark", "benchmarks", "task", "pass"}
_METRIC_OF_K = re.compile(r"(?:@|[_ ]at[_ ])k(?![a-z])", re.I)
_BOOLEANS = {"true": True, "yes": True, "1": True, "1.0": True}
_BOOLEANS |= {"false": False, "no": False, "0": False, "0.0": False}
# Names that only a training log has next to a reward.
_TRAINER_METRIC = re.compile(
    r"(?:.*[/_ .])?(?:loss|kl|grad_?norm|lr|learning[_ ]rate|entropy|(?:response|completions?)_length)"
    r"(?:[/_ ].*)?",
    re.I,
)
# Names of evaluations: avg@4, pass_1, aime24, gsm8k, math_500.
_BENCHMARK_METRIC = re.compile(
    r"@|(?:^|[/_. -])(?:(?:pass|best|maj|avg|mean|worst)_?(?:at_?)?\d"
    r"|(?=[a-z]*\d)(?=\d*[a-z])[a-z\d]{4,}(?![a-z\d])|(?:math|amc|aime|mmlu|gpqa|minerva|olympiad(?:bench)?|humaneval|mbpp|livecodebench|arc|hellaswag)(?![a-z]))",
    re.I,
)
_PERCENT_WORDS = {"pct", "percent", "percentage", "perc"}
_SHORT_REWARD = re.compile(r"(?:[a-z]+[_ ])?(?:r|rew)", re.I)  # short names of a reward
_SUMMARY_WORDS = {"best", "max", "ema", "smooth", "smoothed", "running", "rolling", "moving"}
_FORM_WORDS = {"format", "token"}  # shares of well-formed answers, or of the labels of supervised training
_WHOLE_REWARD = {"reward", "rewards", "mean", "avg", "average", "total"}
_COUNT_NAME = re.compile(r"(?:n|num|number|count)[_ /]|.*[_ /]counts?$", re.I)
_MIN_FRACTION, _MIN_JUMP = 0.05, 50  # between consecutive evaluations
_MAX_FRACTION = 1 + 1e-6
Floats = NDArray[np.float64]


def _numeric_columns(frame: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    return list(map(str, frame[list(columns)].select_dtypes("number")))


def _is_misleading(column: str) -> bool:
    """Return whether a column is the best so far, smoothed, a number of values or of form, by its name."""
    words = words_of(column)
    is_summary = words & _SUMMARY_WORDS and "@" not in column
    return bool(is_summary or words & _FORM_WORDS or _COUNT_NAME.match(column))


def likely_reward(frame: pd.DataFrame, columns: Sequence[str]) -> str:
    """Return the column that looks most like a held-out accuracy or reward, or "" if none does."""
    numeric, all_columns = _numeric_columns(frame, columns), list(map(str, frame.columns))
    return min(
        list(filter(is_reward, numeric)) or list(filter(_SHORT_REWARD.fullmatch, numeric)),
        key=lambda column: (
            _is_misleading(column),
            is_of_training(column, all_columns),
            not words_of(column) & HELD_OUT,
            not is_accuracy(column),
            "reward" not in words_of(column),
            not words_of(column) <= HELD_OUT | _WHOLE_REWARD,  # else it can be one part of it
        ),
        default="",
    )


def only_accuracy(frame: pd.DataFrame, columns: Sequence[str]) -> str:
    """Return the only accuracy of a table, or "" if it has none, several, or a held-out reward."""
    accuracies = [c for c in _numeric_columns(frame, columns) if is_accuracy(c) and not _is_misleading(c)]
    return accuracies[0] if accuracies == [likely_reward(frame, columns)] else ""


def maybe_sizes(frame: pd.DataFrame, columns: Sequence[str]) -> dict[str, str]:
    """Return the columns that could contain B_p or n: with a looser name, and few distinct positive integers.

    >>> frame = pd.DataFrame({"batch": [32] * 12, "group": [4, 16] * 6, "samples": range(1, 13)})
    >>> maybe_sizes(frame, ["batch", "group", "samples"])
    {'rollouts_per_problem': 'group', 'problems_per_batch': 'batch'}
    >>> maybe_sizes(pd.DataFrame({"n_samples": [8] * 9, "loss": 0.1}), ["n_samples"])
    {'rollouts_per_problem': 'n_samples'}
    >>> maybe_sizes(pd.DataFrame({"n_samples": [30] * 9, "benchmark": "aime"}), ["n_samples"])
    {}
    >>> maybe_sizes(pd.DataFrame({"k": [4] * 9, "pass@k": 0.1}), ["k"])
    {}
    """
    values_of = {name: frame[name].dropna() for name in columns if pd.api.types.is_numeric_dtype(frame[name])}
    all_columns = [str(column) for column in frame.columns]
    has_benchmarks = any(words_of(name) & _BENCHMARK_WORDS for name in all_columns)
    if has_benchmarks and not any(map(is_measured_by_trainer, all_columns)):
        values_of = {name: values for name, values in values_of.items() if "samples" not in words_of(name)}
    candidates = [
        name
        for name, values in values_of.items()
        if len(values)
        and not names_eval_sets(name, all_columns)
        and (values >= 1).all()
        and (values % 1 == 0).all()
        and values.nunique() <= len(values) / 5
    ]
    return guess(candidates, MAYBE)


def names_eval_sets(column: str, columns: Sequence[str]) -> bool:
    """Return whether a column can distinguish evaluations: by their benchmark, or by the k of pass@k.

    >>> [names_eval_sets(name, ["pass_at_k"]) for name in ("dataset", "k", "n")]
    [True, True, False]
    """
    is_k = column.lower() == "k" and any(map(_METRIC_OF_K.search, columns))
    return is_k or bool(words_of(column) & (_BENCHMARK_WORDS | {"dataset", "datasets"}))


def is_measured_by_trainer(column: str) -> bool:
    """Return whether a name is a loss, a KL divergence, a learning rate or the like, of a training step.

    >>> [is_measured_by_trainer(name) for name in ("train/loss", "kl_div", "lr", "val_loss", "reward")]
    [True, True, True, False, False]
    """
    return bool(_TRAINER_METRIC.fullmatch(column)) and not words_of(column) & HELD_OUT


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
    return "validation" if word in _EVAL_PHASES else "train" if word in _TRAIN_PHASES else ""


def names_its_set(name: str) -> bool:
    """Return whether a metric's name says that it is of an evaluation, or of training.

    >>> [names_its_set(name) for name in ("val_acc", "avg@4", "gsm8k_acc", "train_acc", "acc", "running_r")]
    [True, True, True, True, False, False]
    """
    return bool(words_of(name) & (HELD_OUT | _TRAINING_WORDS)) or bool(_BENCHMARK_METRIC.search(name))


def is_of_training(column: str, columns: Sequence[str]) -> bool:
    """Return whether a column is measured on training batches, judged by its name and those of its line.

    What is printed with a loss, a gradient norm, a KL divergence or a learning rate is of the training batch,
    unless its name says otherwise: val, eval, a benchmark, avg@k. So is a reward next to the same metric of
    an evaluation.

    >>> names = ("train_acc", "running_r", "acc", "val_reward", "aime24_acc", "avg@4")
    >>> [is_of_training(name, ["step", "loss", name]) for name in names]
    [True, True, True, False, False, False]
    >>> is_of_training("acc", ["step", "acc", "val_acc"]), is_of_training("mean_r", ["step", "mean_r"])
    (True, False)
    """
    words = words_of(column)
    if words & HELD_OUT:
        return False
    if words & _TRAINING_WORDS or frameworks.of_training(column):
        return True
    if _BENCHMARK_METRIC.search(column):
        return False
    held_out = [
        name
        for name in columns
        if words_of(name) & HELD_OUT and (is_reward(name) or words_of(name) <= HELD_OUT)
    ]
    return bool(held_out and is_reward(column)) or any(map(is_measured_by_trainer, columns))


def names_percent(name: str) -> bool:
    """Return whether a name says that its values are in percent.

    >>> [names_percent(name) for name in ("acc_pct", "val/percent_solved", "acc%", "acc")]
    [True, True, True, False]
    """
    return "%" in name or not _PERCENT_WORDS.isdisjoint(words_of(name))


def runs_in_percent(
    metric: str, curves: Mapping[str, Floats], is_percent: Mapping[str, bool]
) -> tuple[list[str], dict[str, str]]:
    """Return the runs in which a metric is in percent, and the problems of runs whose unit is unclear.

    ``curves`` has each run's values, and ``is_percent`` the units that are known. An accuracy above 1 and at
    most 100 is in percent, unless it is called a reward. A run whose accuracies stay below 1 could also be in
    percent; if only some runs are, the smaller group has the problem. Other rewards are never in percent
    unless their name says so.

    >>> runs_in_percent("acc", {"a": np.array([10.0, 40.0]), "b": np.array([20.0, 50.0])}, {})
    (['a', 'b'], {})
    >>> runs_in_percent("acc", {"a": np.array([10.0, 40.0]), "b": np.array([0.2]), "c": np.array([0.1])}, {})
    ([], {'a': 'is in percent in a (up to 40), but at most 0.2 in b'})
    """
    percent_runs, fraction_runs = [run for run in curves if is_percent.get(run)], list[str]()
    detected_runs, problems = list[str](), dict[str, str]()
    for run, values in curves.items():
        lowest, highest = float(np.nanmin(values)), float(np.nanmax(values))
        is_share = is_accuracy(metric) and not words_of(metric) & {"reward", "rewards"}
        can_be_percent = (names_percent(metric) or is_share) and lowest >= 0 and highest <= 100
        if run in is_percent or not can_be_percent:
            continue
        if names_percent(metric):
            percent_runs.append(run)
        elif highest > _MAX_FRACTION and _changes_unit(values):
            problems[run] = f"is a fraction and a percentage in {run}"
        elif highest > _MAX_FRACTION:
            detected_runs.append(run)
        elif highest > 0:  # all zeros are the same in both units
            fraction_runs.append(run)
    if detected_runs and fraction_runs:
        percent_run, fraction_run = detected_runs[0], fraction_runs[0]
        text = f"is in percent in {percent_run} (up to {np.nanmax(curves[percent_run]):g}), but at most "
        text += f"{np.nanmax(curves[fraction_run]):g} in {fraction_run}"
        unclear_runs = detected_runs if len(detected_runs) < len(fraction_runs) else fraction_runs
        problems |= dict.fromkeys(unclear_runs, text)
    return [*percent_runs, *(run for run in detected_runs if run not in problems)], problems


def _changes_unit(value: Any) -> bool:
    """Return whether an accuracy changes between fraction and percent within one run.

    >>> _changes_unit([0.3, 0.35, 40.0]), _changes_unit([0.3, 2.0, 9.0])
    (True, False)
    """
    values = np.asarray(value, dtype=np.float64)
    lower, higher = np.minimum(values[1:], values[:-1]), np.maximum(values[1:], values[:-1])
    return bool(np.any((lower > _MIN_FRACTION) & (lower <= 1) & (higher > _MIN_JUMP * lower)))


def phases_of_rows(table: pd.DataFrame, columns: Sequence[str], source: str) -> tuple[str, pd.Series | None]:
    """Return the column of ``columns`` that marks each row as training or evaluation, with its marks.

    The column is a flag (``is_eval``, ``do_eval``, ``validation``, ``is_train``), or contains words for
    training and evaluation. Only rows with a ``value`` count; all others are marked as train. If there is
    no such column, returns ``("", None)``.

    Raises `DataError` if the words in a column are clear only in some rows.
    """
    is_measured = table["value"].notna()
    for column in columns:
        phases = _eval_set_of_flag(column, table[column]) if is_measured.any() else None
        if phases is not None and (phases[is_measured] != "").all():
            return column, phases.where(is_measured, "train")
    unclear_columns = []
    for column in columns:
        if pd.api.types.is_numeric_dtype(table[column]):
            continue
        phases = table[column].map(eval_set_of)
        values = set(phases[is_measured])
        phase_words, is_phase_name = values - {""}, column.lower() in PHASES
        if "" not in values and (len(phase_words) == 2 or (phase_words and is_phase_name)):
            return column, phases.where(is_measured, "train")
        unclear_columns += [column] if is_phase_name and phase_words and "" in values else []
    for column in unclear_columns:
        phases = table[column].map(eval_set_of)
        clear, unclear = (table.index[is_measured & mask][0] for mask in (phases != "", phases == ""))
        raise DataError(
            f"{source}: column {column} is {table[column][clear]!r} in {table.index.name} {clear}, which is "
            f"{phases[clear]}, but {table[column][unclear]!r} in {table.index.name} {unclear}, which may be "
            "of training or not. "
            + option("columns", "eval_set", column)
            + " takes its texts as the evaluation "
            "sets (train is that of training batches)"
        )
    return "", None


def _eval_set_of_flag(column: str, cells: pd.Series) -> pd.Series | None:
    """Return ``train`` or ``validation`` for each cell of a flag ("" if empty); None for other columns."""
    words = words_of(column)
    subject = words - {"is", "do", "in", "flag", "mode"}
    if len(subject) != 1 or not subject <= HELD_OUT | _TRAINING_WORDS:
        return None
    booleans = cells.map(lambda cell: _BOOLEANS.get(str(cell).strip().lower()), na_action="ignore")
    if booleans[cells.notna()].isna().any():
        return None
    values = set(booleans.dropna())
    is_boolean = pd.api.types.is_bool_dtype(cells.dropna().infer_objects())
    is_sure = "is" in words or (is_boolean and "do" not in words)
    if values == {True} and booleans.isna().any():  # some logs write the flag only where it is true
        booleans = booleans.where(booleans.notna(), False)
    elif not values or (len(values) == 1 and not is_sure):  # a setting or a metric
        return None
    if_true, if_false = ("validation", "train") if subject <= HELD_OUT else ("train", "validation")
    return booleans.map({True: if_true, False: if_false}).fillna("")
