"""Rewards of a sweep as arrays: (seeds, n, budgets)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolaw.findings.estimate import Floats
from isolaw.runs import Runs

_NUDGE = 1 + 1e-9  # a budget that is a whole number of batches pays for its last step


def rewards(
    runs: Runs,
    metric: str,
    eval_set: str,
    *,
    seeds: Sequence[int],
    levels: Sequence[int],
    budgets: NDArray[np.float64],
    where: Mapping[str, Any] | None = None,
) -> Floats:
    """Return what each n had reached when a budget was spent.

    Parameters
    ----------
    runs
        of one sweep whose schedule holds the budgets, so that nothing is interpolated.
    metric, eval_set
        what is measured.
    seeds, levels
        S seeds and N values of n.
    budgets
        C, ascending, (X,).
    where
        columns or attributes of the runs that are fixed, as ``{"lr": 0.02}``.

    Returns
    -------
    (S, N, X); NaN before a run's first step, and where there is no such run or it ended before (diverged).
    """
    points = runs.points
    points = points[(points["metric"] == metric) & (points["eval_set"] == eval_set)]
    out = np.full((len(seeds), len(levels), len(budgets)), np.nan)
    for run_id, own in points.sort_values("compute").groupby("run_id", sort=False):
        facts = {**runs.attributes.get(str(run_id), {}), **own.iloc[0].to_dict()}
        seed, n = facts["seed"], facts["rollouts_per_problem"]
        if seed not in seeds or n not in levels or any(facts.get(k) != v for k, v in (where or {}).items()):
            continue
        batch = facts["problems_per_batch"] * n
        compute, value = own["compute"].to_numpy(), own["value"].to_numpy()
        at = np.searchsorted(compute, budgets * _NUDGE, side="right") - 1
        # The schedule looks at the last step that a budget pays for.
        reached = (at >= 0) & (budgets * _NUDGE >= batch) & (compute[at] > budgets - batch)
        out[seeds.index(seed), levels.index(n)] = np.where(reached, value[at], np.nan)
    return out


def settled(values: Floats, looks: int) -> Floats:
    """Return rewards at every ``looks``-th budget, each the mean of the looks since the one before it.

    A reward at one C depends on how far the run is through its epoch: noise between problems cancels
    when each has been visited equally often. All seeds are equally far, so no interval over seeds
    contains that; a mean over the looks of half an octave mostly does away with it.

    Parameters
    ----------
    values
        rewards (…, looks · X + 1); NaN where a run had not begun or had ended.

    Returns
    -------
    (…, X); NaN where the last look is.

    >>> settled(np.array([np.nan, 1.0, 3.0, 5.0, np.nan]), 2)
    array([ 2., nan])
    """
    size = (values.shape[-1] - 1) // looks
    index = looks * np.arange(size)[:, None] + np.arange(looks + 1)
    windows = values[..., index]
    known = np.isfinite(windows)
    mean = np.where(known, windows, 0.0).sum(axis=-1) / np.maximum(known.sum(axis=-1), 1)
    return np.where(known[..., -1], mean, np.nan)
