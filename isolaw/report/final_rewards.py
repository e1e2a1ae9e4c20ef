"""The reward that each configuration had reached at one compute: from the checkpoints, without a fit."""

from __future__ import annotations

import pandas as pd

# Checkpoints around C that are averaged: runs of different batches do not end at the same C to a rollout.
_FROM, _TO = 0.8, 1.1
_SHORTEST = 16  # configurations that end before a sixteenth of the largest compute are left out
PLACE = ["problems_per_batch", "rollouts_per_problem"]


def common_compute(points: pd.DataFrame) -> float:
    """Return the largest compute that every configuration reached.

    Configurations whose runs all ended before a sixteenth of the largest compute do not count.

    >>> common_compute(pd.DataFrame({"problems_per_batch": 32, "rollouts_per_problem": [8, 8, 16],
    ...                              "compute": [256, 2560, 2048]}))
    2048.0
    """
    ends = points.groupby(PLACE)["compute"].max()
    return float(ends[ends >= ends.max() / _SHORTEST].min())


def finals(points: pd.DataFrame, compute: float) -> pd.DataFrame:
    """Return the reward of each configuration at ``compute``, a row each.

    Parameters
    ----------
    points
        rows of one metric on one evaluation set.
    compute
        C. Of each run the checkpoints between 0.8 C and 1.1 C are averaged, then the runs; one without such
        checkpoints is left out.

    Returns
    -------
    `PLACE`, ``runs``, ``value``, and ``error``, the standard error over runs (NaN of a single run).

    >>> points = pd.DataFrame({"run_id": list("aab"), "problems_per_batch": 1, "rollouts_per_problem": 2,
    ...                        "compute": [8, 10, 10], "value": [0.4, 0.6, 0.7]})
    >>> finals(points, 10)["value"].tolist()
    [0.6]
    """
    near = points[points["compute"].between(_FROM * compute, _TO * compute)]
    runs = near.groupby([*PLACE, "run_id"])["value"].mean()
    grouped = runs.groupby(PLACE)
    table = pd.DataFrame({"runs": grouped.size(), "value": grouped.mean(), "error": grouped.sem()})
    return table.reset_index()
