"""Fit n*(C) with the learning rate (or another axis) re-tuned for every budget.

A larger n at lr ∝ √B lowers the noise floor, as a smaller lr would, so part of the rise of n* with C could be
an annealing effect. As a control, every n gets its best lr at each budget::

    r'_s(n, C) = r_s(n, C; l),    l = argmax_l mean_{s' ≠ s} r_s'(n, C; l)

where r_s(n, C; l) is the reward of seed s at learning rate l. The lr of a seed is chosen by the *other*
seeds, so a lucky run gains nothing. At constant lr, a run that has reached C equals a run with the budget C.
The result is a table of runs, one for each (B_p, n, seed), which is fitted like any other table. Intervals
over seeds ignore that each seed's lr depends on the other seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import pandas as pd

from isolaw.arguments import checked
from isolaw.commands import Placeholder, option
from isolaw.errors import DataError, Refused, unknown
from isolaw.fits.law import Law
from isolaw.fits.metric import choose
from isolaw.fits.pipeline import fit
from isolaw.fits.selection import measured_points, rows_with
from isolaw.runs import ReadKeywords, Runs, Source, full_names, plain

_CONFIGURATION = ["problems_per_batch", "rollouts_per_problem"]
_COLUMNS = ["problem_set", "algorithm", *_CONFIGURATION, "seed", "step", "compute"]


@dataclass(frozen=True)
class Retuned:
    """Runs in which an axis, such as lr, has its best value at each checkpoint."""

    runs: Runs  # one run for each (B_p, n, seed), without the re-tuned attribute
    # The value chosen by all seeds together at each configuration's last checkpoint. The columns are
    # ``problems_per_batch``, ``rollouts_per_problem``, ``compute``, the attribute, and ``edge``, which is
    # True if the chosen value is the smallest or the largest.
    chosen: pd.DataFrame
    best: Any  # the value with the highest final reward of any configuration


@checked
def retune(
    runs: Source,
    metric: str,
    eval_set: str,
    name: str = "lr",
    where: Mapping[str, Any] | None = None,
    **reading: Unpack[ReadKeywords],
) -> Retuned:
    """Re-tune the attribute ``name`` for every configuration, seed and checkpoint.

    ``runs`` is a sweep with the numeric attribute ``name`` as an axis, or a source that `isolaw.read` reads
    with ``reading``. The runs must share checkpoints and seeds. ``where`` selects runs by columns or
    attributes.

    Raises
    ------
    DataError
        the runs do not have the attribute, or the metric was not measured.
    Refused
        there are fewer than two values of the attribute, or fewer than two seeds.

    >>> import isolaw
    >>> runs = isolaw.sweep({"sweep": {"compute": 50_000, "seeds": 2},
    ...     "grid": {"rollouts_per_problem": [8, 32], "lr": [0.01, 0.04]}, "executor": {"kind": "inline"}})
    >>> tuned = retune(runs, "avg@4", "validation")
    >>> len(runs), len(tuned.runs), "lr" in tuned.runs.table().columns
    (8, 4, False)
    """
    from isolaw.readers.read import as_runs

    runs = as_runs(runs, metric, **reading)
    points = points_with(runs, metric, eval_set, name, where)
    tables = []
    for (b, n), group in points.groupby(_CONFIGURATION):
        label = f"B_p = {b}, n = {n}"
        if group["seed"].nunique() < 2:
            raise Refused(
                f"{label}: found one seed; expected two or more, since isolaw chooses {name} on some seeds "
                "and judges it on the others. Add a seed"
            )
        tuned_rewards = _tuned_rewards(_shared_rewards(group, name), name).stack().rename("value")
        checkpoints = group.drop_duplicates(["seed", "step"])[_COLUMNS].join(
            tuned_rewards, on=["seed", "step"], how="inner"
        )
        ids = [f"{name} re-tuned, {label}, seed {seed}" for seed in checkpoints["seed"]]
        tables.append(checkpoints.assign(run_id=ids, eval_set=eval_set, metric=metric))
    tuned = pd.concat(tables, ignore_index=True)
    attributes = _common_attributes(runs.select(points["run_id"].unique()), name)
    tuned_runs = Runs(tuned, dict.fromkeys(tuned["run_id"].unique(), attributes), runs.source, runs.notes)
    return Retuned(tuned_runs, *final_rewards(points, name)[1:])


def points_with(
    runs: Runs, metric: str, eval_set: str, name: str, where: Mapping[str, Any] | None
) -> pd.DataFrame:
    """Return the rewards of the selected runs, with the attribute ``name``. Raises as `retune` does."""
    table = runs.table()
    if name in (*_CONFIGURATION, "seed"):
        raise DataError(f"{runs.source}: found {name}; expected a recipe key to re-tune, e.g. lr")
    if name not in table.columns:
        raise DataError(f"{runs.source}: {unknown('attribute', name, table.columns, 'there are')}")
    table = rows_with(table, full_names(where or {}))
    values = sorted(table[name].dropna().unique())
    if len(values) < 2:
        found = f"all runs have {name} = {plain(values[0])}" if values else f"no run has a value of {name}"
        raise Refused(f"{found}; a sweep with grid.{name} = […] has several")
    return measured_points(runs.select(table.index), metric, eval_set).join(table[[name]], on="run_id")


def final_rewards(points: pd.DataFrame, name: str) -> tuple[pd.DataFrame, pd.DataFrame, Any]:
    """Return the reward of each value at the last checkpoint, `Retuned.chosen` and `Retuned.best`.

    The reward is the mean of the seeds, NaN unless all seeds have one. One seed is enough.
    """
    rows = []
    for shape, group in points.groupby(_CONFIGURATION):
        rewards = _shared_rewards(group, name)
        compute = int(group.loc[group["step"] == rewards.columns[-1], "compute"].iloc[0])
        means = rewards.groupby(level=name).mean().iloc[:, -1]
        edges = (means.index[0], means.index[-1])
        rows += [[*shape, compute, plain(value), value in edges, mean] for value, mean in means.items()]
    table = pd.DataFrame(rows, columns=[*_CONFIGURATION, "compute", name, "edge", "reward"])
    chosen = table.loc[table.groupby(_CONFIGURATION)["reward"].idxmax()].drop(columns="reward")
    best = table.groupby(name)["reward"].max().idxmax()
    return table, chosen.reset_index(drop=True), plain(best)


def fit_retuned(
    runs: Runs, name: str, keywords: Mapping[str, Any]
) -> tuple[Any, dict[str, Law], pd.DataFrame]:
    """Fit the law at one value of ``name`` (``one``), and the law with ``name`` re-tuned (``retuned``).

    ``keywords`` are passed to `isolaw.fit`; ``where`` can contain the single value. Returns this value, which
    is otherwise `Retuned.best`, the laws, and `Retuned.chosen`. Raises as `retune` and `isolaw.fit` do.
    """
    metric, eval_set, _ = choose(runs, keywords["metric"], keywords["eval_set"])
    other_filters = {key: value for key, value in keywords["where"].items() if key != name}
    tuned = retune(runs, metric, eval_set, name, other_filters)
    value = keywords["where"].get(name, tuned.best)
    fixed_law = fit(runs, **{**keywords, "where": {**other_filters, name: value}})
    retuned_law = fit(tuned.runs, **{**keywords, "where": other_filters})
    return value, {"one": fixed_law, "retuned": retuned_law}, tuned.chosen


def _shared_rewards(group: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the rewards of one configuration, with rows (value, seed) and one column per step.

    A reward is NaN unless all seeds have a reward at the same value and step. A value at which a run diverged
    thus cannot be chosen after that step.
    """
    label = "B_p = {}, n = {}".format(*group[_CONFIGURATION].iloc[0])
    if group.duplicated([name, "seed", "step"]).any():
        example = option("where", "NAME", Placeholder("value"))
        raise DataError(f"runs with {label} differ in more than {name}; choose among them with " + example)
    rewards = group.pivot(index=[name, "seed"], columns="step", values="value")
    is_complete = rewards.notna().groupby(level=name).transform("sum") == group["seed"].nunique()
    shared = rewards.where(is_complete).dropna(axis="columns", how="all")
    if shared.empty:
        raise Refused(f"{label}: the seeds share no checkpoint at the same {name}")
    return shared


def _tuned_rewards(rewards: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the reward of each seed (rows) at each step (columns), at the value that other seeds choose."""
    seeds = rewards.index.get_level_values("seed")
    reward_of_seed = {}
    for seed in seeds.unique():
        other_seeds = rewards[seeds != seed].groupby(level=name).mean().fillna(-np.inf)
        this_seed = rewards[seeds == seed].droplevel("seed").loc[other_seeds.index]
        best_row = other_seeds.to_numpy().argmax(axis=0)
        reward_of_seed[seed] = this_seed.to_numpy()[best_row, np.arange(best_row.size)]
    return pd.DataFrame(reward_of_seed, index=rewards.columns).T.rename_axis(index="seed")


def _common_attributes(runs: Runs, name: str) -> dict[str, Any]:
    """Return the attributes that have the same value in all runs, except the axis ``name``."""
    attributes = list(runs.attributes.values())
    first_run = attributes[0] if attributes else {}
    return {k: v for k, v in first_run.items() if k != name and all(a.get(k) == v for a in attributes)}
