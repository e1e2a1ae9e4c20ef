"""Read the measurements of a recipe check's stage: rewards by (B_p, n, lr) and seed at a horizon."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from isolaw.design.directory import EVAL_SET
from isolaw.fits.health import health
from isolaw.fits.selection import measured_points
from isolaw.recipe_check.stages import CheckSweep
from isolaw.runs import Runs
from isolaw.store import SweepStore

LrCell = tuple[int, int, float]  # (B_p, n, lr)
_BEFORE = (0.75, 0.87, 1.0)  # each reward is a mean over these shares of the horizon, against noise


@dataclass(frozen=True)
class MeasuredCurves:
    """The learning curve of each (B_p, n, lr) and seed, and the runs that failed.

    ``failed`` contains the cause for each cell with a run that did not reach its end. ``unstable`` contains
    the sign of instability for each cell with an unhealthy run (`isolaw.fits.health`).
    """

    curves: Mapping[LrCell, Mapping[int, pd.DataFrame]] = field(default_factory=dict)
    failed: Mapping[LrCell, str] = field(default_factory=dict)
    unstable: Mapping[LrCell, str] = field(default_factory=dict)
    runs: Runs | None = None  # the runs that reached their end

    def at(self, key: LrCell, compute: float) -> dict[int, float] | None:
        """Return the reward of each seed near ``compute`` rollouts, or None if a run failed or is missing."""
        if key in self.failed or key not in self.curves:
            return None
        points = np.log(compute * np.array(_BEFORE))
        out = {}
        for seed, curve in self.curves[key].items():
            after = curve[curve["compute"] > 0]
            values = np.interp(points, np.log(after["compute"]), after["value"])
            out[seed] = float(values.mean())
        return out

    def mean(self, key: LrCell, compute: float) -> float:
        """Return the mean reward over seeds, or −inf if a run failed."""
        own = self.at(key, compute)
        return -np.inf if own is None else float(np.mean(list(own.values())))


def read(stage: CheckSweep, metric: str, runs: Collection[Any]) -> MeasuredCurves:
    """Return the measurements of ``runs``, the planned runs of a stage."""
    store = SweepStore(stage.directory)
    asked = {run.run_id: run for run in runs}
    failed: dict[LrCell, str] = {}
    for run_id, run in asked.items():
        stored = store.run(run_id)
        if not stored.recorded().is_done(run):
            cause = stored.failure or {}
            failed.setdefault(_key(run), str(cause.get("cause", "not finished")))
    done = [run_id for run_id, run in asked.items() if _key(run) not in failed]
    if not done:
        return MeasuredCurves(failed=failed)
    collected = store.collect().select(done)
    points = measured_points(collected, metric, EVAL_SET).sort_values("step")
    curves: dict[LrCell, dict[int, pd.DataFrame]] = {}
    for run_id, curve in points.groupby("run_id"):
        run = asked[str(run_id)]
        curves.setdefault(_key(run), {})[run.seed] = curve[["compute", "value"]]
    signs = {own.run_id: own.reasons[0] for own in health(collected, metric, EVAL_SET) if own.signs}
    unstable = {_key(asked[run_id]): reason for run_id, reason in sorted(signs.items())}
    return MeasuredCurves(curves, failed, unstable, collected)


def _key(run: Any) -> LrCell:
    return *run.shape, run.recipe.lr
