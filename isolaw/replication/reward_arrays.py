"""Rewards of a sweep as arrays: (seeds, n, budgets)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolaw.replication.verdicts import Floats
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
    where: Mapping[str, Any],
) -> Floats:
    """Return the reward of each n at each budget, from one sweep whose schedule contains the budgets.

    With S seeds, N values of n and X ascending ``budgets`` C the result is (S, N, X): NaN before a run's
    first step, after the end of a diverged run, and where no run exists. ``where`` fixes columns or
    attributes of the runs, such as ``{"lr": 0.02}``.
    """
    points = runs.points
    points = points[(points["metric"] == metric) & (points["eval_set"] == eval_set)]
    out = np.full((len(seeds), len(levels), len(budgets)), np.nan)
    for run_id, own in points.sort_values("compute").groupby("run_id", sort=False):
        facts = {**runs.attributes.get(str(run_id), {}), **own.iloc[0].to_dict()}
        seed, n = facts["seed"], facts["rollouts_per_problem"]
        if seed not in seeds or n not in levels or any(facts.get(k) != v for k, v in where.items()):
            continue
        batch = facts["problems_per_batch"] * n
        compute, value = own["compute"].to_numpy(), own["value"].to_numpy()
        at = np.searchsorted(compute, budgets * _NUDGE, side="right") - 1
        # The schedule evaluates the last step that a budget pays for.
        reached = (at >= 0) & (budgets * _NUDGE >= batch) & (compute[at] > budgets - batch)
        out[seeds.index(seed), levels.index(n)] = np.where(reached, value[at], np.nan)
    return out


def settled(values: Floats, every: int) -> Floats:
    """Return rewards (…, X) at every ``every``-th budget, each the mean since the one before it.

    A reward at one C depends on how far the run is through its epoch: noise between problems cancels when the
    run has visited each equally often. All seeds are equally far, so no interval over seeds contains this
    effect; a mean over half an octave mostly removes it. ``values`` (…, every · X + 1) are NaN where a run
    had not begun or had ended, and so is the result where the last value is NaN.

    >>> settled(np.array([np.nan, 1.0, 3.0, 5.0, np.nan]), 2)
    array([ 2., nan])
    """
    size = (values.shape[-1] - 1) // every
    index = every * np.arange(size)[:, None] + np.arange(every + 1)
    windows = values[..., index]
    known = np.isfinite(windows)
    mean = np.where(known, windows, 0.0).sum(axis=-1) / np.maximum(known.sum(axis=-1), 1)
    return np.where(known[..., -1], mean, np.nan)
