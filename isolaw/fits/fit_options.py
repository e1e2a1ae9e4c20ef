"""Find the options that ``isolaw fit`` needs for given runs, so that the commands isolaw prints work."""

from __future__ import annotations

from typing import Any, get_args

import pandas as pd

from isolaw.errors import DataError, Refused
from isolaw.fits.metric import choose, only_evaluation
from isolaw.fits.selection import Hold, differing, rows_with, select, usual_hold
from isolaw.metrics import is_accuracy
from isolaw.runs import Runs


def fit_options(runs: Runs, given_metric: str | None = None) -> list[str]:
    """Return the options with which ``isolaw fit`` accepts these runs.

    The list is empty if the defaults work. Where ``isolaw fit`` requires a choice, this function chooses the
    reward that most runs measured. For each attribute in which the runs differ, it chooses the value with the
    most n. ``given_metric`` is the metric that the command already names. Raises `Refused` if no choice
    leaves enough runs for a law.

    >>> rows = [dict(run_id=str(n), problem_set="easy", algorithm="grpo", problems_per_batch=32,
    ...              rollouts_per_problem=n, seed=0, step=s, compute=32 * n * s, eval_set=each,
    ...              metric="reward", value=s / (s + n))
    ...         for each in ("math", "code") for n in (8, 16, 32) for s in range(1, 40)]
    >>> fit_options(Runs(pd.DataFrame(rows)))
    ['--metric', 'reward', '--eval-set', 'code']
    """
    metric, eval_set, arguments = choose_reward(runs, given_metric)
    table = runs.table()
    measured_ids = runs.points.query("metric == @metric and eval_set == @eval_set")["run_id"].unique()
    fixed = _choose_values(table[table.index.isin(measured_ids)])
    first_refusal: Refused | None = None
    default_hold = usual_hold(runs, fixed)
    for hold in sorted(get_args(Hold), key=lambda name: name != default_hold):
        try:
            select(runs, metric, eval_set, hold, fixed)
        except Refused as error:
            first_refusal = first_refusal or error
            continue
        except DataError:  # runs still differ in a way that this hold does not fix
            continue
        arguments += [word for name, value in fixed.items() for word in ("--where", f"{name}={value}")]
        return [*arguments, *([] if hold == default_hold else ["--hold", hold])]
    raise first_refusal or Refused("the runs differ in more than B_p, n and seed")


def choose_reward(runs: Runs, given_metric: str | None = None) -> tuple[str, str, list[str]]:
    """Return the metric, the evaluation set, and the options that select them if isolaw requires a choice."""
    try:
        metric, eval_set, _ = choose(runs, given_metric)
    except DataError:
        counts = runs.points.groupby(["eval_set", "metric"])["run_id"].agg(["nunique", "size"])
        names = {given_metric} if given_metric else {"reward", only_evaluation(counts.index)}
        names |= set() if given_metric else set(filter(is_accuracy, counts.index.unique("metric")))
        candidates = [pair for pair in counts.index if pair[1] in names]
        if not candidates:
            raise Refused("the runs have no accuracy and no reward to fit") from None

        def rank(pair: tuple[str, str]) -> tuple[Any, ...]:
            run_count, point_count = counts.loc[pair]
            return pair[0] == "train", -run_count, not is_accuracy(pair[1]), -point_count, pair

        eval_set, metric = min(candidates, key=rank)
        return metric, eval_set, [*([] if given_metric else ["--metric", metric]), "--eval-set", eval_set]
    return metric, eval_set, []


def _choose_values(table: pd.DataFrame) -> dict[str, Any]:
    """Choose a value for each attribute in which the runs differ: the value that ran with the most n."""
    fixed: dict[str, Any] = {}
    while names := differing(table):
        name = names[0]
        with_value = table[table[name].notna()]
        if with_value.empty:
            break
        n_count_by_value = with_value.groupby(with_value[name].astype(str))["rollouts_per_problem"].nunique()
        value = with_value[with_value[name].astype(str) == n_count_by_value.idxmax()][name].iloc[0]
        table = rows_with(table, {name: value})
        fixed[name] = value
    return fixed
