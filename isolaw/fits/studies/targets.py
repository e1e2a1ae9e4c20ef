"""Compute the rollouts, steps and hours with which configurations reach a reward, and fit two laws to them.

    rollouts   N(B_p, n, lr) to a target, at the first crossing of a smoothed curve
    laws       the critical batch B_crit of each n, and how the best lr grows with B_p and n
               (`isolaw.fits.studies.target_model`)

A run's curve is smoothed up to its peak by isotonic regression. The result is the rising step function with
the smallest squared distance, whose steps are as long as the noise requires. The smoothed curve crosses a
target between the centres of two steps, and only if at least two evaluations are at or above the target, so a
single lucky evaluation does not count. A run counts until it collapses. isolaw pools the runs of one
configuration: N is their geometric mean. N is only a lower bound if a run misses the target, so a lucky run
never represents all runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import pandas as pd
from scipy.stats import t as student

from isolaw.allocation import Cell
from isolaw.arguments import checked
from isolaw.commands import option
from isolaw.config.run import lr_ratio
from isolaw.errors import DataError, InputError, Refused
from isolaw.evidence import LEVEL, Quantity
from isolaw.fits.flags import Code, Flag, Flagged, flags_of_simulated
from isolaw.fits.metric import read_reward
from isolaw.fits.selection import Floats, differing, measured_points, rows_with
from isolaw.fits.studies.profile import LEAST_FREEDOM
from isolaw.fits.studies.target_laws import CriticalBatch, LrLaw, critical_batches, fit_lr_law
from isolaw.fits.studies.target_model import TargetData
from isolaw.registry import Shown
from isolaw.runs import ReadKeywords, Source, full_names, plain
from isolaw.step_cost import Cost, Spent

_LEAST_POINTS = 3  # fewest evaluations of a run
_LEAST_ABOVE = 2
_AROUND_PEAK = 2  # number of evaluations on either side of the centre of the running median
# Default targets, as shares of the rise that half of the configurations reach.
_SHARES = (0.5, 0.6, 0.7, 0.8, 0.9)
_MOST_BLOCKS = 12


@dataclass(frozen=True)
class TargetRow(Cell):
    """The rollouts, steps and hours that one configuration needs for a target.

    ``lr`` is the optimiser's lr at this batch, or None if it was not recorded. ``recipe`` contains the other
    settings in which the sweep's runs differ. The interval of ``rollouts`` is for the geometric mean of runs
    that reach the target. The interval uses the deviation of log N between runs of one configuration, pooled
    over all configurations. Without repeated runs, there is no interval.
    """

    lr: float | None
    recipe: dict[str, Any]
    target: float
    runs: int
    reached: int  #: number of runs that reach the target
    rollouts: Quantity
    steps: Quantity
    spent: Spent | None  #: cost of the steps; None without a cost, or if it is unknown for this size


@dataclass(frozen=True)
class TargetStudy(Flagged, Shown):
    """The result of `to_target`: rollouts, steps and critical batches for each target reward."""

    TEXT = "text.studies.targets"

    metric: str
    eval_set: str
    targets: tuple[float, ...]
    rows: tuple[TargetRow, ...]  #: sorted by target, B_p, n and lr
    critical: tuple[CriticalBatch, ...]  #: for each n with three B_p, and each target
    lr: LrLaw | None  #: None if no (B_p, n) ran with several lr, or if too few runs reach a target
    flags: tuple[Flag, ...]


@checked
def to_target(
    runs: Source,
    targets: Sequence[float] | None = None,
    metric: str | None = None,
    *,
    eval_set: str | None = None,
    where: Mapping[str, Any] | None = None,
    cost: Cost | None = None,
    **reading: Unpack[ReadKeywords],
) -> TargetStudy:
    """Return the rollouts and steps to target rewards, the critical batches, and the law of the best lr.

    Parameters
    ----------
    runs
        recorded runs, or a source that `isolaw.read` reads with ``reading``. They can differ in B_p, n, lr
        and seed. If they also differ in recipe, each recipe has its own level (in log N).
    targets
        target rewards; by default five, from 50 % to 90 % of the rise that half of the configurations reach.
    metric, eval_set, where
        the same as in `isolaw.fit`.
    cost
        cost of a step (`isolaw.read_cost`).

    Raises
    ------
    DataError, InputError
        an argument is wrong, or the runs lack the data that it names.
    Refused
        no run reaches a target.

    >>> import isolaw
    >>> runs = isolaw.sweep({"sweep": {"compute": 60_000, "seeds": 2}, "problems": {"n_train": 200},
    ...     "grid": {"problems_per_batch": [4, 8, 16, 32], "rollouts_per_problem": [8]},
    ...     "executor": {"kind": "inline"}})
    >>> result = to_target(runs, [0.5])
    >>> [row.problems_per_batch for row in result.rows], result.rows[0].reached
    ([4, 8, 16, 32], 2)
    """
    runs, metric, eval_set, metric_flags = read_reward(runs, metric, eval_set, reading)
    points = measured_points(runs, metric, eval_set)
    table = rows_with(
        runs.table().loc[lambda t: t.index.isin(points["run_id"].unique())], full_names(where or {})
    )
    flags = [*metric_flags, *(Flag(Code.AS_READ, note) for note in runs.notes)]
    table = table.assign(lr=_trained_lr(table))
    recipe_columns = _recipe_columns(table, runs.source)
    if recipe_columns:
        text = f"the runs differ in {', '.join(recipe_columns)}; isolaw fits a level for each recipe"
        flags.append(Flag(Code.BLOCKS, text))
    table, curves = _run_curves(points, table, flags)
    levels = _target_levels(targets, table, curves, metric)
    crossed_at = np.array([[crossing(*curve, level) for level in levels] for curve in curves])
    if not (crossed_at > 0).any():
        highest = max(float(smoothed(*curve)[1][-1]) for curve in curves)
        raise Refused(
            f"{runs.source}: no run reaches {metric} = {min(levels):g} in two evaluations (the highest: "
            f"{highest:.3g}); choose a lower target, or run longer"
        )
    run_ends = np.array([curve[0][-1] for curve in curves])
    run_starts = np.array([curve[0][curve[0] > 0][0] for curve in curves])
    data = _target_data(levels, crossed_at, (run_starts, run_ends), table, recipe_columns)
    critical = critical_batches(data, flags)
    lr_rule = fit_lr_law(data)
    rows = _target_rows(data, table, recipe_columns, cost)
    flags[:0] = flags_of_simulated(runs.select(table.index).simulated)
    return TargetStudy(metric, eval_set, tuple(levels), rows, critical, lr_rule, tuple(flags))


def lr_law(runs: Source, metric: str | None, eval_set: str | None, where: Mapping[str, Any]) -> LrLaw | None:
    """Return the law of the best lr over B_p and n at the default targets, or None if the runs show none."""
    try:
        return to_target(runs, None, metric, eval_set=eval_set, where=where).lr
    except (Refused, DataError):
        return None


def smoothed(compute: Floats, reward: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the centres, rewards and sizes of the S steps in the isotonic fit of a curve.

    ``compute`` and ``reward`` (P,) are the checkpoints of one run, in order. The part after the peak of the
    running median is left out.
    """
    from scipy.optimize import isotonic_regression

    offsets = range(-_AROUND_PEAK, _AROUND_PEAK + 1)
    last_index = reward.size - 1
    median = np.median([reward[np.clip(np.arange(reward.size) + i, 0, last_index)] for i in offsets], axis=0)
    until_peak = slice(0, int(median.argmax()) + _AROUND_PEAK + 1)
    compute, reward = compute[until_peak], reward[until_peak]
    fit = isotonic_regression(reward)
    sizes = np.diff(fit.blocks)
    return np.add.reduceat(compute, fit.blocks[:-1]) / sizes, fit.x[fit.blocks[:-1]], sizes


def crossing(compute: Floats, reward: Floats, target: float) -> float:
    """Return the compute at which the smoothed curve crosses ``target``, or NaN if it does not.

    0 stands for a curve that is above the target from its first evaluation: the crossing was before it.

    >>> c = np.arange(0.0, 110.0, 10.0)
    >>> round(crossing(c, c / 100, 0.55), 9), crossing(c, np.where(c == 100, 1.0, 0.0), 0.5)
    (55.0, nan)
    >>> crossing(c, 0.5 + c / 100, 0.4)
    0.0
    """
    centres, levels, sizes = smoothed(compute, reward)
    index = int(np.searchsorted(levels, target))
    if sizes[index:].sum() < _LEAST_ABOVE:
        return math.nan
    if index == 0:
        return 0.0
    return float(np.interp(target, levels[index - 1 : index + 1], centres[index - 1 : index + 1]))


def _trained_lr(table: pd.DataFrame) -> Any:
    """Return the lr with which each run trained.

    If a sweep recorded the base lr, its rule ``lr_scaling`` scales this lr to the batch.
    """
    if "lr" not in table.columns:
        return np.nan
    lr = pd.to_numeric(table["lr"], errors="coerce").astype(np.float64)
    if "lr_scaling" not in table.columns:
        return lr
    rows = zip(table["problems_per_batch"], table["rollouts_per_problem"], table["lr_scaling"], strict=True)
    return lr * [lr_ratio(b, n, str(rule)) if isinstance(rule, str) else 1.0 for b, n, rule in rows]


def _recipe_columns(table: pd.DataFrame, source: str) -> list[str]:
    """Return the attributes in which the runs differ, other than B_p, n, lr and seed."""
    names = differing(table.drop(columns=["lr", "lr_scaling"], errors="ignore"))
    for name in names:
        if table[name].astype(str).nunique() > _MOST_BLOCKS:
            raise DataError(
                f"{source}: the runs have {table[name].nunique()} values of {name}; expected at most "
                f"{_MOST_BLOCKS} recipes. Choose with " + option("where", name, plain(table[name].iloc[0]))
            )
    return names


def _run_curves(
    points: pd.DataFrame, table: pd.DataFrame, flags: list[Flag]
) -> tuple[pd.DataFrame, list[tuple[Floats, Floats]]]:
    """Return the runs with enough evaluations, and their curves."""
    points_by_run = dict(tuple(points.sort_values("compute").groupby("run_id")))
    short = [run_id for run_id in table.index if len(points_by_run[run_id]) < _LEAST_POINTS]
    if short:
        text = f"{len(short)} runs have fewer than {_LEAST_POINTS} evaluations, so isolaw leaves them out"
        flags.append(Flag(Code.LEFT_OUT, text))
    table = table.drop(index=short)
    if table.empty:
        raise Refused(
            f"no run has {_LEAST_POINTS} evaluations; isolaw needs them to find when a run reaches a target"
        )
    tables = [points_by_run[run_id] for run_id in table.index]
    return table, [(p["compute"].to_numpy(np.float64), p["value"].to_numpy(np.float64)) for p in tables]


def _target_levels(
    targets: Sequence[float] | None, table: pd.DataFrame, curves: list[tuple[Floats, Floats]], metric: str
) -> list[float]:
    """Return the targets in ascending order; raise unless each exceeds the reward at which runs begin."""
    start = float(np.median([reward[0] for _, reward in curves]))
    if targets is None:
        tops = pd.Series([smoothed(*curve)[1][-1] for curve in curves], index=table.index)
        shapes = [table["problems_per_batch"], table["rollouts_per_problem"]]
        top = float(tops.groupby(shapes).max().median())
        if not top > start:
            raise Refused(f"{metric} does not rise from {start:.3g}, so there is no target to reach")
        return [float(f"{start + fraction * (top - start):.3g}") for fraction in _SHARES]
    levels = sorted({float(target) for target in targets})
    invalid = [f"{level:g}" for level in levels if not (math.isfinite(level) and level > start)]
    if invalid or not levels:
        raise InputError(
            f"targets: found {', '.join(invalid) or 'nothing'}; expected rewards above {start:.3g}, where "
            f"the runs begin ({metric})"
        )
    return levels


def _target_data(
    targets: list[float],
    crossed_at: Floats,
    ends: tuple[Floats, Floats],
    table: pd.DataFrame,
    recipe_columns: list[str],
) -> TargetData:
    is_reached, starts_above = crossed_at > 0, crossed_at == 0
    bounds = np.where(starts_above, *(end[:, None] for end in ends))
    recipe_index = np.zeros(len(table), dtype=np.int64)
    if recipe_columns:  # the recipe of most runs first
        names = table[recipe_columns].astype(str).agg(" ".join, axis=1)
        recipe_index = names.map({name: i for i, name in enumerate(names.value_counts().index)}).to_numpy()
    lr = table["lr"].to_numpy(np.float64)
    return TargetData(
        np.array(targets),
        np.log(np.where(is_reached, crossed_at, np.maximum(bounds, 1.0))),
        is_reached,
        table["problems_per_batch"].to_numpy(np.float64),
        table["rollouts_per_problem"].to_numpy(np.float64),
        None if np.isnan(lr).any() else lr,
        recipe_index,
        starts_above,
    )


def _target_rows(
    data: TargetData,
    table: pd.DataFrame,
    recipe_columns: list[str],
    cost: Cost | None,
) -> tuple[TargetRow, ...]:
    """Return a row for each configuration and target, with the runs of a configuration pooled."""
    columns = ["problems_per_batch", "rollouts_per_problem", "lr", *recipe_columns]
    group_of = table[columns].fillna(-1.0).astype(str).groupby(columns, sort=False).ngroup().to_numpy()
    outcomes = zip(data.log_rollouts.T, data.reached.T, strict=True)
    log_widths = [_log_half_width(log_rollouts, reached, group_of) for log_rollouts, reached in outcomes]
    rows = []
    for group in range(group_of.max() + 1):
        in_group = group_of == group
        first_run = table[in_group].iloc[0]
        b, n = int(first_run["problems_per_batch"]), int(first_run["rollouts_per_problem"])
        lr = None if math.isnan(first_run["lr"]) else float(first_run["lr"])
        for j, target in enumerate(data.targets):
            is_reached = data.reached[in_group, j]
            value = math.exp(data.log_rollouts[in_group, j].mean())
            rollouts = Quantity(value, None, "ok" if is_reached.all() else "lower_bound")
            log_width = log_widths[j]
            if log_width is not None and is_reached.all():
                factor = math.exp(log_width / math.sqrt(in_group.sum()))
                rollouts = Quantity(value, (value / factor, value * factor))
            steps = rollouts / (b * n)
            seconds = cost and cost.seconds(b, n, max(round(value / (b * n)), 1))
            spent = Spent(seconds, cost) if cost and seconds else None
            recipe = {name: plain(first_run[name]) for name in recipe_columns}
            counts = (float(target), int(in_group.sum()), int(is_reached.sum()))
            rows.append(TargetRow(b, n, lr, recipe, *counts, rollouts, steps, spent))
    return tuple(sorted(rows, key=lambda row: (row.target, row.key, row.lr or 0.0, str(row.recipe))))


def _log_half_width(log_rollouts: Floats, is_reached: Any, group_index: Any) -> float | None:
    """Return half the width of the 95 % interval of one run's log N, from repeated configurations.

    Returns None if there are too few repeated runs.
    """
    groups = pd.Series(log_rollouts[is_reached]).groupby(group_index[is_reached])
    freedom = int((groups.size() - 1).sum())
    if freedom < LEAST_FREEDOM:
        return None
    variance = float(((groups.size() - 1) * groups.var().fillna(0.0)).sum()) / freedom
    return float(student.ppf((1 + LEVEL) / 2, freedom)) * math.sqrt(variance)
