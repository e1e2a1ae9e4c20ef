"""`Study`: runs, the law fitted to them or why there is none, and what figures and the page draw of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw import metrics
from isolaw.errors import IsolawError
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.law import Law
from isolaw.fits.selection import Setting, hold, select
from isolaw.runs import Runs

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Study:
    """What is reported on.

    Attributes
    ----------
    runs
        all runs of the sources.
    metric, eval_set
        what counts as reward.
    law
        what was fitted; None where the runs cannot carry a law.
    refused
        why not.
    fixed
        what was asked to be held, as ``{"lr": 0.02}``; the runs that differ are left out of every picture.
    """

    runs: Runs
    metric: str
    eval_set: str
    law: Law | None = None
    refused: str = ""
    fixed: dict[str, Any] = field(default_factory=dict)

    @property
    def document(self) -> LawDocument | None:
        """The law's document."""
        return None if self.law is None else self.law.document

    @cached_property
    def held(self) -> Runs:
        """The runs that are alike in what is held, whatever their B_p and n."""
        table = self.runs.table()
        own = self.document.fixed if self.document else {}
        held = {k: v for k, v in {**own, **self.fixed}.items() if k in table and k != "problems_per_batch"}
        return self.runs.select(hold(table, held).index) if held else self.runs

    @cached_property
    def levels(self) -> list[int]:
        """Every n among the runs, ascending."""
        return sorted(int(n) for n in self.held.points["rollouts_per_problem"].unique())

    @cached_property
    def batches(self) -> list[int]:
        """Every B_p among the runs, ascending."""
        return sorted(int(b) for b in self.held.points["problems_per_batch"].unique())

    def rows(self, metric: str | None = None, eval_set: str | None = None) -> pd.DataFrame:
        """Return the rows of one metric, of the reward unless named."""
        points = self.held.points
        chosen = (points["metric"] == (metric or self.metric)) & (
            points["eval_set"] == (eval_set or self.eval_set)
        )
        return points[chosen]

    def fitted(self) -> pd.DataFrame:
        """Return the rows of the reward that the law was fitted to; all of them without a law."""
        rows = self.rows()
        if self.document is None:
            return rows
        places = {(g.problems_per_batch, g.rollouts_per_problem) for g in self.document.grid}
        pairs = zip(rows["problems_per_batch"], rows["rollouts_per_problem"], strict=True)
        return rows[[place in places for place in pairs]]

    def x(self, rows: pd.DataFrame) -> Floats:
        """Return the abscissa of rows in the law's unit: rollouts, tokens, seconds, or steps (``fixed-b``).

        NaN where it was not recorded.
        """
        name = self.document.x.name if self.document else "compute"
        if name == "steps":
            batch = rows["problems_per_batch"] * rows["rollouts_per_problem"]
            return (rows["compute"] / batch).to_numpy(np.float64)
        values = rows[name].astype("Float64").mask(rows["step"] == 0, 0.0)
        return values.to_numpy(np.float64, na_value=np.nan)


def spread(study: Study) -> tuple[int, list[str]] | None:
    """Return k and the names of best@k and worst@k, of the largest k that both were measured with."""
    there = [p for p in map(metrics.parse, study.held.metrics(study.eval_set)) if p]
    both = [k for kind, k in there if kind == "best" and k > 1 and ("worst", k) in there]
    return (max(both), [f"best@{max(both)}", f"worst@{max(both)}"]) if both else None


def one_batch(study: Study) -> int:
    """Return the B_p with the most n; the smallest of those."""
    counts = study.rows().groupby("problems_per_batch")["rollouts_per_problem"].nunique()
    return int(counts[counts == counts.max()].index.min())


def usual_setting(runs: Runs, fixed: Mapping[str, Any] | None = None) -> Setting:
    """Return the setting that fits how B_p and n vary among the runs that have what is fixed.

    ``fixed-bp`` where there is one B_p, ``fixed-b`` where all runs share B = B_p · n, else ``joint``.
    """
    table = runs.table()
    table = hold(table, {name: value for name, value in (fixed or {}).items() if name in table})
    if table["problems_per_batch"].nunique() == 1:
        return "fixed-bp"
    one_batch = (table["problems_per_batch"] * table["rollouts_per_problem"]).nunique() == 1
    return "fixed-b" if one_batch else "joint"


def is_of(law: Law, runs: Runs) -> bool:
    """Return whether ``law`` was fitted to these runs, by their configurations and checkpoints."""
    d = law.document
    x = d.x.name
    try:
        selection = select(runs, d.metric, d.eval_set, d.setting, d.fixed, "compute" if x == "steps" else x)
    except (IsolawError, KeyError):
        return False
    found = [
        (c.problems_per_batch, c.rollouts_per_problem, c.runs, c.compute.size, *c.measured)
        for c in selection.configurations
    ]
    kept = [
        (g.problems_per_batch, g.rollouts_per_problem, g.runs, g.checkpoints, *g.measured) for g in d.grid
    ]
    return found == kept
