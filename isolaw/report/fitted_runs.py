"""`FittedRuns`: the runs with their law, or the reason why there is none; the input of figures and pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.errors import InputError, IsolawError, Refused
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.flags import Code, flags_with
from isolaw.fits.health import DIAGNOSTICS
from isolaw.fits.law import Law
from isolaw.fits.metric import choose
from isolaw.fits.pipeline import fit_selection
from isolaw.fits.selection import rows_with, select, usual_hold
from isolaw.fits.studies.backtest import backtest, horizon
from isolaw.runs import Runs

Floats = NDArray[np.float64]
SHAPE_COLUMNS = ["problems_per_batch", "rollouts_per_problem"]
# Checkpoints within these factors of C are averaged, since runs of different batches end at different C.
_LEAST_SHARE, _MOST_SHARE = 0.8, 1.1
_BACKTEST_SHARES = (8, 4, 2)
_BACKTEST_DRAWS = 100
_SHORTEST_DIVISOR = 16  # configurations that end before a sixteenth of the largest compute are ignored


@dataclass(frozen=True)
class FittedRuns:
    """The subject of a report: all runs, the metric used as reward, and the law."""

    runs: Runs
    metric: str
    eval_set: str
    law: Law | None = None  # None if the runs do not support a law
    no_law: str = ""  # the reason why there is no law
    fixed: dict[str, Any] = field(default_factory=dict)  # values shared by all runs that are drawn

    @classmethod
    def fitted_to(cls, runs: Runs, keywords: Mapping[str, Any], equations: bool = True) -> FittedRuns:
        """Fit a law to runs and return both, or the reason why there is no law.

        ``keywords`` are for `isolaw.fit`. Without ``equations`` the law has no laws of n*(C)
        (`with_equations`).
        """
        fixed = keywords["where"]
        metric, eval_set, flags = choose(runs, keywords["metric"], keywords["eval_set"])
        options = {name: keywords[name] for name in ("method", "draws", "seed") if name in keywords}
        try:
            selection = select(runs, metric, eval_set, keywords.get("hold") or usual_hold(runs, fixed), fixed)
            selection.flags[:0] = flags
            law = fit_selection(runs, selection, equations=equations, **options)
        except Refused as error:
            return cls(runs, metric, eval_set, None, str(error), fixed)
        return cls(runs, metric, eval_set, law, fixed=fixed)

    def with_equations(self) -> FittedRuns:
        """Return the same with laws of n*(C), which figures and pages show, from the same reward model."""
        assert self.law is not None
        document, info = self.law.document, self.law.document.bootstrap
        selection = select(self.runs, self.metric, self.eval_set, document.hold, self.fixed)
        selection.flags[:0] = flags_with(document.flags, Code.REWARD_CHOSEN)
        surface = self.law.surface
        law = fit_selection(self.runs, selection, draws=info.draws, seed=info.seed, surface=surface)
        return replace(self, law=law)

    def backtest(
        self, seed: int = 0, progress: Callable[[float], None] = lambda _: None
    ) -> Mapping[str, Any] | str:
        """Backtest these runs; return the result, or the reason why there is none.

        The backtest fits checkpoints up to an eighth of the largest compute that it can judge, or up to a
        quarter or a half if an eighth is not enough.
        """
        document = self.document
        if document is None:
            return "there is no law"
        if document.x.name not in ("compute", "steps"):
            return f"isolaw does not backtest budgets in {document.x.unit}"
        metrics_needed = [self.metric, *DIAGNOSTICS]  # the fit uses no other metric
        keywords: dict[str, Any] = {
            "metric": self.metric, "eval_set": self.eval_set, "hold": document.hold, "where": document.fixed,
            "method": document.method, "draws": min(_BACKTEST_DRAWS, document.bootstrap.draws), "seed": seed,
        }  # fmt: skip
        runs = self.selected.part(lambda table: table["metric"].isin(metrics_needed))
        reason = ""
        for divisor in _BACKTEST_SHARES:
            try:
                return backtest(runs, horizon(document.grid) / divisor, progress=progress, **keywords)
            except InputError:
                reason = "some n have no checkpoint in the first half of the compute"
            except IsolawError as error:
                reason = str(error)
        return reason

    @property
    def document(self) -> LawDocument | None:
        """The document of the study's law, or None without a law."""
        return None if self.law is None else self.law.document

    @cached_property
    def selected(self) -> Runs:
        """The runs with the fixed values, at any B_p and n."""
        table = self.runs.table()
        fixed = {**(self.document.fixed if self.document else {}), **self.fixed}
        fixed = {key: fixed[key] for key in fixed if key in table and key != "problems_per_batch"}
        return self.runs.select(rows_with(table, fixed).index) if fixed else self.runs

    @cached_property
    def levels(self) -> list[int]:
        """The distinct n of the runs, ascending."""
        return sorted(int(level) for level in self.selected.points["rollouts_per_problem"].unique())

    @cached_property
    def batches(self) -> list[int]:
        """The distinct B_p of the runs, ascending."""
        return sorted(int(level) for level in self.selected.points["problems_per_batch"].unique())

    def metric_rows(self, metric: str | None = None) -> pd.DataFrame:
        """Return the rows of ``metric``, by default of the reward."""
        points = self.selected.points
        return points[(points["metric"] == (metric or self.metric)) & (points["eval_set"] == self.eval_set)]

    def fitted_rows(self) -> pd.DataFrame:
        """Return the reward rows that the law was fitted to, or all reward rows without a law."""
        rows = self.metric_rows()
        if self.document is None:
            return rows
        shapes = {entry.key for entry in self.document.grid}
        row_shapes = zip(rows["problems_per_batch"], rows["rollouts_per_problem"], strict=True)
        return rows[[shape in shapes for shape in row_shapes]]

    def x_values(self, rows: pd.DataFrame) -> Floats:
        """Return x of each row in rollouts, tokens or steps, as in the law; NaN if not recorded."""
        name = self.document.x.name if self.document else "compute"
        if name == "steps":
            batch = rows["problems_per_batch"] * rows["rollouts_per_problem"]
            return (rows["compute"] / batch).to_numpy(np.float64)
        values = rows[name].astype("Float64").mask(rows["step"] == 0, 0.0)
        return values.to_numpy(np.float64, na_value=np.nan)

    def rewards_at_one_compute(self) -> tuple[float, pd.DataFrame]:
        """Return the largest compute that all configurations reached, and their measured rewards there.

        The table is that of `_final_rewards`.
        """
        rows = self.metric_rows()
        compute = _common_compute(rows)
        return compute, _final_rewards(rows, compute)


def _common_compute(points: pd.DataFrame) -> float:
    """Return the largest compute that every configuration reached.

    Configurations that ended before a sixteenth of the largest compute are ignored.

    >>> _common_compute(pd.DataFrame({"problems_per_batch": 32, "rollouts_per_problem": [8, 8, 16],
    ...                              "compute": [256, 2560, 2048]}))
    2048.0
    """
    ends = points.groupby(SHAPE_COLUMNS)["compute"].max()
    return float(ends[ends >= ends.max() / _SHORTEST_DIVISOR].min())


def _final_rewards(points: pd.DataFrame, compute: float) -> pd.DataFrame:
    """Return a table of the measured reward of each configuration at C = ``compute``.

    ``points`` contains rows of one metric on one evaluation set. The reward is first averaged within each
    run, between 0.8 C and 1.1 C, and then over runs. The columns are `SHAPE_COLUMNS`, ``runs``, ``value`` and
    ``error``, which is the standard error over runs (NaN for a single run).

    >>> points = pd.DataFrame({"run_id": list("aab"), "problems_per_batch": 1, "rollouts_per_problem": 2,
    ...                        "compute": [8, 10, 10], "value": [0.4, 0.6, 0.7]})
    >>> _final_rewards(points, 10)["value"].tolist()
    [0.6]
    """
    nearby = points[points["compute"].between(_LEAST_SHARE * compute, _MOST_SHARE * compute)]
    grouped = nearby.groupby([*SHAPE_COLUMNS, "run_id"])["value"].mean().groupby(SHAPE_COLUMNS)
    table = pd.DataFrame({"runs": grouped.size(), "value": grouped.mean(), "error": grouped.sem()})
    return table.reset_index()
