"""`LoggedRun`: the facts and curves of one run, from all of its logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd

from isolaw.errors import joined
from isolaw.readers.found_logs import FoundLog, LogStatus
from isolaw.readers.how_to_read import Assignment
from isolaw.readers.raw_log import RawLog
from isolaw.readers.resolve import Resolved
from isolaw.readers.stitch import RunCurves
from isolaw.runs import IDENTITY

# Facts that are columns of the table, or lead to one; all others are attributes of the run.
_NO_ATTRIBUTE = {*IDENTITY, "rollouts_per_step", "logging_steps", "n_problems", "n_samples"}


@dataclass
class LoggedRun(FoundLog):
    """A run assembled from one or more logs, with its curves."""

    curves: RunCurves = field(default_factory=RunCurves)
    # Sources of the facts: the configurations and counts of the run's parts, and the user's settings.
    configurations: list[RawLog] = field(default_factory=list)
    assignments: dict[str, Assignment] = field(default_factory=dict)

    def leave_out(self, status: LogStatus, message: str, needs: Sequence[str] = ()) -> None:
        """Mark the run as one that cannot be fitted, with the reason."""
        self.status, self.message, self.needs = status, message, list(dict.fromkeys(needs))

    def take(self, resolved: Resolved) -> None:
        """Store the resolved facts of the run."""
        self.facts, self.notes = resolved.facts, resolved.notes
        problems, needs = list(resolved.problems), list(resolved.needs)
        if self.curves.unnumbered:
            needs.append("logging_steps")
            problems.append(
                "the log has no steps; set logging_steps, the number of update steps between two records"
            )
        if problems:
            self.leave_out(LogStatus.NEEDS, joined(". ", problems), needs)
        else:
            self.leave_out(LogStatus.READY, "")

    @property
    def identity(self) -> tuple[Any, ...]:
        """Values that identify the run: two different runs differ in at least one of them."""
        attributes = sorted((name, repr(value)) for name, value in self.attributes.items())
        return (*(self.facts[name].value for name in IDENTITY), *attributes)

    @property
    def attributes(self) -> dict[str, Any]:
        """The run's attributes (lr, model, on_policy, …)."""
        return {name: fact.value for name, fact in self.facts.items() if name not in _NO_ATTRIBUTE}

    def table(self) -> pd.DataFrame:
        """Return the rows of the run in the data model's table."""
        batch = self.facts["rollouts_per_step"].value
        pieces = []
        for (eval_set, metric), curve in self.curves.of.items():
            end = [self.curves.diverged[at]] if (at := (eval_set, metric)) in self.curves.diverged else []
            nan = [math.nan] * len(end)
            step = np.append(curve.step, np.array(end, np.int64))
            compute = np.ceil(step * batch - 1e-6).astype(np.int64)  # a batch can last several steps
            columns = {"step": step, "compute": compute, "wall_s": np.append(curve.wall_s, nan)}
            value = np.append(curve.value, nan)
            pieces.append(pd.DataFrame({**columns, "eval_set": eval_set, "metric": metric, "value": value}))
        names = [name for name in (*IDENTITY, "n_problems", "n_samples") if name in self.facts]
        fixed = {name: self.facts[name].value for name in names}
        return pd.concat(pieces, ignore_index=True).assign(run_id=self.run, **fixed)

    def candidate(self) -> FoundLog:
        """Return the run as an entry in the list of logs, without its curves."""
        for (eval_set, metric), curve in self.curves.of.items():
            self.metrics.setdefault(eval_set, {})[metric] = curve.step.size
        self.left_out = dict(self.curves.dropped)
        if self.curves.ignored:
            self.left_out["names that are not metrics (such as timings)"] = len(self.curves.ignored)
        self.steps = None if self.curves.unnumbered else self.curves.steps
        if self.steps and (batch := self.facts.get("rollouts_per_step")):
            first, last = self.steps
            self.compute = math.ceil(first * batch.value), math.ceil(last * batch.value)
        known = {each.name: getattr(self, each.name) for each in fields(FoundLog)}
        return FoundLog(**known | {"notes": [*self.notes, *self.curves.notes]})
