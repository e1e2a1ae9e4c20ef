"""Choose the reward to fit, which is avg@4 on validation or the only metric that can replace it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from isolaw.commands import argument, option
from isolaw.errors import DataError, InputError, Spelled, Wording, shown
from isolaw.fits.flags import Code, Flag
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.selection import Configuration, Floats
from isolaw.metrics import falls, is_accuracy, is_mean_accuracy
from isolaw.runs import ReadKeywords, Runs, Source, listed

_PERCENT = 100.0
_WIDEST = 2.0  # largest span of the curves, in units
_ROUNDING = 1e-9
_NARROW_SPAN = 10 * TOLERANCE


def unit_of(metric: str, configurations: Sequence[Configuration]) -> float:
    """Return the unit of a metric, a power of ten.

    >>> def unit(metric, *reward):
    ...     compute, run = np.arange(2.0), np.zeros(2, int)
    ...     return unit_of(metric, [Configuration(32, 8, compute, np.array(reward), run, (0,), 256.0)])
    >>> unit("avg@4", 0.0, 0.02), unit("avg@4", 12.0, 64.0), unit("score", -0.4, 0.9), unit("return", 80, 450)
    (1.0, 100.0, 1.0, 1000.0)
    >>> unit("score", 0.1, 0.2), unit("score", 0.001, 0.004), unit("score", 50.001, 50.004)
    (1.0, 0.01, 0.01)
    """
    lowest, highest = _usual_range([c.reward for c in configurations])
    lowest_mean, highest_mean = _usual_range([c.mean for c in configurations])
    span = highest_mean - lowest_mean
    if is_accuracy(metric) and lowest >= -_WIDEST and highest <= _PERCENT:
        return _PERCENT if highest > _WIDEST else 1.0  # estimates of a share can be slightly outside [0, 1]
    if lowest >= 0 and highest <= 1 and span >= _NARROW_SPAN:
        return 1.0
    return 1.0 if span == 0 else 10.0 ** math.ceil(math.log10(span / _WIDEST) - _ROUNDING)


def bounds(metric: str, configurations: Sequence[Configuration]) -> tuple[float, float]:
    """Return the smallest and the largest possible reward: 0 and 1 (or 100) for shares of problems.

    >>> c = Configuration(32, 8, np.arange(2.0), np.array([0.1, 0.5]), np.zeros(2, int), (0,), 256.0)
    >>> bounds("avg@4", [c]), bounds("val_acc", [c]), bounds("score", [c])
    ((0.0, 1.0), (0.0, 1.0), (-inf, inf))
    """
    lowest = min(float(c.reward.min()) for c in configurations)
    highest = max(float(c.reward.max()) for c in configurations)
    unit = unit_of(metric, configurations)
    is_share = is_accuracy(metric) and unit in (1.0, _PERCENT) and lowest >= 0 and highest <= unit
    return (0.0, unit) if is_share else (-math.inf, math.inf)


def _usual_range(rewards: Sequence[Floats]) -> tuple[float, float]:
    """Return the 1st and 99th percentiles of the rewards, so that outliers cannot determine the unit."""
    values = np.concatenate([reward.ravel() for reward in rewards])
    return float(np.quantile(values, 0.01, method="lower")), float(np.quantile(values, 0.99, method="higher"))


METRIC, EVAL_SET = "avg@4", "validation"
_MOST_LISTED, _LONGEST_NAME = 20, 100
_REWARD = re.compile(r"(?:^|[^a-z])(?:reward|score|success)(?![a-z])")  # names of metrics that rise
_CHOICE = "Choose with " + argument("metric") + " and " + argument("eval_set") + "; "


def choose(runs: Runs, metric: str | None = None, eval_set: str | None = None) -> tuple[str, str, list[Flag]]:
    """Return the metric and evaluation set to fit, and a flag if isolaw chose them.

    The default is ``avg@4`` on ``validation``. If it was not measured, isolaw chooses the only mean accuracy
    (``avg@8``, ``pass@1``) on held-out problems. If there is none, it chooses the only other accuracy
    (``best@8``), or the only reward or score (``reward@1``).

    ``metric`` and ``eval_set`` are the user's choices, or None. Raises `DataError` with a list of the
    measured metrics if none or several qualify, and `InputError` for a metric that falls as training
    improves.

    >>> row = dict(run_id="a", problem_set="easy", algorithm="grpo", problems_per_batch=32,
    ...            rollouts_per_problem=8, seed=0, step=1, compute=256, eval_set="aime24",
    ...            metric="avg@8", value=0.5)
    >>> metric, eval_set, flags = choose(Runs(pd.DataFrame([row])))
    >>> metric, eval_set, flags[0].text
    ('avg@8', 'aime24', 'reward is avg@8 on aime24, the only accuracy measured')
    """
    if metric is not None and falls(metric):
        raise InputError(_falling_text(metric, float(runs.points["value"].max())))
    if metric is not None and eval_set is not None:
        return metric, eval_set, []
    series = runs.points.groupby(["eval_set", "metric"])["run_id"].agg(["nunique", "size"])
    if (eval_set or EVAL_SET, metric or METRIC) in series.index:
        return metric or METRIC, eval_set or EVAL_SET, []
    pairs = [
        (str(measured_on), str(name))
        for measured_on, name in series.index
        if name == (metric or name) and measured_on == (eval_set or measured_on)
    ]
    held_out = [pair for pair in pairs if pair[0] != "train" or eval_set]
    if metric is not None:
        matches = held_out or pairs
    else:
        matches = [pair for pair in held_out if is_mean_accuracy(pair[1])]
        matches = matches or [pair for pair in held_out if is_accuracy(pair[1])]
        matches = matches or [pair for pair in held_out if _REWARD.search(pair[1]) and not falls(pair[1])]
    if len(matches) != 1:
        raise DataError(_refusal(series, metric, eval_set, len(matches), runs.source))
    measured_on, name = matches[0]
    description = "such" if metric else "accuracy" if is_accuracy(name) else "reward"
    text = f"reward is {name} on {measured_on}, the only {description} measured"
    return name, measured_on, [Flag(Code.REWARD_CHOSEN, text)]


def read_reward(
    source: Source, metric: str | None, eval_set: str | None, reading: ReadKeywords
) -> tuple[Runs, str, str, list[Flag]]:
    """Return the runs of a source, and the result of `choose` for them."""
    from isolaw.readers.read import as_runs

    runs = as_runs(source, metric, **reading)
    return runs, *choose(runs, metric, eval_set)


def only_evaluation(measured: Iterable[tuple[str, str]]) -> str:
    """Return the only metric on held-out problems that can rise, or ""; pairs have the set and the metric."""
    names = [name for eval_set, name in measured if eval_set != "train" and not falls(name)]
    return names[0] if len(names) == 1 and len(names[0]) <= _LONGEST_NAME else ""


def _falling_text(metric: str, largest: float) -> Wording:
    is_share = "loss" not in metric.lower() and largest <= 1
    name, negated = ("accuracy", f"1-{metric}") if is_share else ("score", f"-{metric}")
    way = f"In a table with a column {metric}, {negated} rises: " + option("columns", name, negated)
    return Wording(
        f"metric: found {shown(metric)}, which falls as training improves; expected a metric that rises. "
    ) + (
        way
        if metric.isidentifier() and len(metric) <= _LONGEST_NAME
        else "Negate it in a table and fit that column"
    )


def _refusal(
    series: pd.DataFrame, metric: str | None, eval_set: str | None, count: int, source: str
) -> Wording:
    on_train = series.index.get_level_values("eval_set") == "train"
    other_metrics = [
        f"{_short(name)} on {_short(on)} ({_counts(row)})" for (on, name), row in series[~on_train].iterrows()
    ]
    missing = f"{_short(metric or METRIC)} on {_short(eval_set or EVAL_SET)}"
    text = (
        f"{source + ': ' if source else ''}found no {missing}, and "
        f"{count or 'no'} metrics that could replace it. "
        + _CHOICE
        + f"measured metrics: {listed(other_metrics, _MOST_LISTED) or 'none'}"
    )
    if metric is None and (only := only_evaluation(series.index)):
        return text + f"; if {_short(only)} is a reward: " + argument("metric", only)
    train_metrics = [_short(name) for _, name in series[on_train].index]
    if "reward" in train_metrics:
        way = Spelled('metric="reward", eval_set="train"', ["--metric", "reward", "--eval-set", "train"])
        return text + "; the training reward is " + way + f" ({_counts(series.loc['train', 'reward'])})"
    return text + (f"; on train: {listed(train_metrics, _MOST_LISTED)}" if train_metrics else "")


def _short(name: str) -> str:
    return shown(name, str, _LONGEST_NAME)


def _counts(row: pd.Series) -> str:
    runs, points = row["nunique"], row["size"]
    return f"{runs} run{'' if runs == 1 else 's'}, {points:,} checkpoint{'' if points == 1 else 's'}"
