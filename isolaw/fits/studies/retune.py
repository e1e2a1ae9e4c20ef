"""n*(C) with the learning rate (or another axis) chosen anew for every budget.

A larger n at lr ∝ √B also lowers the noise floor, as a smaller lr would: part of "n* rises with C" may be
annealing in disguise. The control is to let every n have the lr that is best for it at each budget::

    r'_s(n, C) = r_s(n, C; l),    l = argmax_l mean_{s' ≠ s} r_s'(n, C; l)

for seed s: the lr is chosen on the *other* seeds and rewarded on this one, so that what was only lucky
for one run earns nothing. A run with a constant lr that has reached C is the run whose budget was C.
The result is a table of runs like any other, one for each (B_p, n, seed), and is fitted like any other;
that seeds choose for each other couples them a little, which intervals over seeds leave out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from isolaw.errors import DataError, Refused, unknown
from isolaw.fits.selection import hold, measured_points
from isolaw.runs import Runs, plain

_CONFIGURATION = ["problems_per_batch", "rollouts_per_problem"]


@dataclass(frozen=True)
class Retuned:
    """Runs with an axis chosen anew at each checkpoint.

    Attributes
    ----------
    runs
        one for each (B_p, n, seed), without the attribute.
    chosen
        what all seeds together choose at each configuration's last checkpoint: a row for each, with
        ``problems_per_batch, rollouts_per_problem, compute``, the attribute, and whether it is at the
        ``edge`` of the values that were run.
    best
        the one value whose highest final reward, over all configurations, is highest.
    """

    runs: Runs
    chosen: pd.DataFrame
    best: Any


def retune(
    runs: Runs, metric: str, eval_set: str, name: str = "lr", fixed: Mapping[str, Any] | None = None
) -> Retuned:
    """Choose attribute ``name`` anew for every configuration, seed and checkpoint.

    Parameters
    ----------
    runs
        a sweep with ``name`` as an axis; its runs share their checkpoints and seeds.
    metric, eval_set
        what counts as reward.
    name
        a numeric attribute of runs.
    fixed
        use only runs with these columns or attributes.

    Raises
    ------
    DataError
        runs have no such attribute, or the metric was not measured.
    Refused
        fewer than two values of it, or fewer than two seeds.

    >>> import isolaw
    >>> runs = isolaw.sweep({"sweep": {"compute": 50_000, "seeds": 2},
    ...     "grid": {"rollouts_per_problem": [8, 32], "lr": [0.01, 0.04]}, "executor": {"kind": "inline"}})
    >>> tuned = retune(runs, "avg@4", "validation")
    >>> len(runs), len(tuned.runs), "lr" in tuned.runs.table().columns
    (8, 4, False)
    """
    table = runs.table()
    if name in (*_CONFIGURATION, "seed"):
        raise DataError(f"{runs.source}: {name} is no setting to choose; accepted: a recipe key, as lr")
    if name not in table.columns:
        raise DataError(f"{runs.source}: {unknown('attribute', name, table.columns, 'there are')}")
    table = hold(table, dict(fixed or {}))
    runs = runs.select(table.index)
    values = sorted(table[name].dropna().unique())
    if not values:
        raise Refused(f"no run has a value of {name}")
    if len(values) < 2:
        raise Refused(
            f"all runs have {name} = {plain(values[0])}; a sweep with grid.{name} = […] has several"
        )
    points = measured_points(runs, metric, eval_set).join(table[[name]], on="run_id")
    rows, chosen, final = [], [], dict.fromkeys(values, -np.inf)
    for (b, n), group in points.groupby(_CONFIGURATION):
        rewards = _shared(group, name, f"B_p = {b}, n = {n}")
        mean = rewards.groupby(level=name).mean()
        for value in mean.index:
            final[value] = max(final[value], float(mean.loc[value].fillna(-np.inf).iloc[-1]))
        steps = group.drop_duplicates("step").set_index("step")["compute"]
        last = mean.iloc[:, -1].idxmax()
        chosen.append(
            {
                "problems_per_batch": b,
                "rollouts_per_problem": n,
                "compute": int(steps[mean.columns[-1]]),
                name: plain(last),
                "edge": last in (mean.index[0], mean.index[-1]),
            }
        )
        for seed, reward in _tuned(rewards, name):
            first = group.iloc[0]
            rows.append(
                pd.DataFrame(
                    {
                        "run_id": f"{name} re-tuned, B_p = {b}, n = {n}, seed {seed}",
                        "problem_set": first["problem_set"],
                        "algorithm": first["algorithm"],
                        "problems_per_batch": b,
                        "rollouts_per_problem": n,
                        "seed": seed,
                        "step": reward.index,
                        "compute": steps[reward.index].to_numpy(),
                        "eval_set": eval_set,
                        "metric": metric,
                        "value": reward.to_numpy(),
                    }
                )
            )
    whole = pd.concat(rows, ignore_index=True)
    common = _common_attributes(runs, name)
    attributes = dict.fromkeys(whole["run_id"].unique(), common)
    tuned = Runs(whole, attributes, runs.source, runs.notes)
    return Retuned(tuned, pd.DataFrame(chosen), plain(max(final, key=lambda v: final[v])))


def _shared(group: pd.DataFrame, name: str, label: str) -> pd.DataFrame:
    """Rewards of one configuration: rows (value, seed), columns steps; NaN where not all seeds have one.

    A value that let a run diverge is thus out of the choice from there on.
    """
    if group.duplicated([name, "seed", "step"]).any():
        raise DataError(
            f"runs with {label} differ in more than {name}; --fixed NAME=VALUE chooses among them"
        )
    seeds = group["seed"].nunique()
    if seeds < 2:
        raise Refused(f"{label}: one seed; {name} is chosen on some seeds and judged on others: add a seed")
    rewards = group.pivot(index=[name, "seed"], columns="step", values="value")
    complete = rewards.notna().groupby(level=name).transform("sum") == seeds
    shared = rewards.where(complete).dropna(axis="columns", how="all")
    if shared.empty:
        raise Refused(f"{label}: its seeds share no checkpoint at the same {name}")
    return shared


def _tuned(rewards: pd.DataFrame, name: str) -> Iterator[tuple[int, pd.Series]]:
    """The reward of each seed with the value that the other seeds choose at each step."""
    seeds = rewards.index.get_level_values("seed")
    for seed in seeds.unique():
        others = rewards[seeds != seed].groupby(level=name).mean().fillna(-np.inf)
        own = rewards[seeds == seed].droplevel("seed").loc[others.index]
        best = others.to_numpy().argmax(axis=0)
        yield int(seed), pd.Series(own.to_numpy()[best, np.arange(best.size)], index=rewards.columns)


def _common_attributes(runs: Runs, name: str) -> dict[str, Any]:
    """Attributes that all runs share."""
    every = list(runs.attributes.values())
    first = every[0] if every else {}
    return {k: v for k, v in first.items() if k != name and all(a.get(k) == v for a in every)}
