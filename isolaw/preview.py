"""Preview the execution of a plan: memory, machines, commands and hours. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from isolaw import backends, executors
from isolaw.backend import Outlook
from isolaw.config import RunSpec
from isolaw.costs import sweeps
from isolaw.costs.sweeps import Remaining
from isolaw.resolve import Plan
from isolaw.store import SweepStore

if TYPE_CHECKING:
    from isolaw.design.play import Schedule
    from isolaw.step_cost import Cost, Spent

_T = TypeVar("_T")


@dataclass(frozen=True)
class Preview:
    """A plan for a sweep's directory, and the needs of its execution.

    ``cost`` is the user's cost of a step, None without one; ``price`` is the price of a GPU hour.
    """

    plan: Plan
    directory: Path
    cost: Cost | None = None
    price: float | None = None

    @cached_property
    def outlook(self) -> Outlook:
        """The backend's knowledge about the runs before they execute."""
        store = SweepStore(self.directory.absolute())
        backend = backends.get(self.plan.spec.sweep.backend)
        return self._planned(lambda: backend.outlook(self.plan.runs, lambda run: store.run(run.run_id).out))

    @cached_property
    def place(self) -> dict[str, Any]:
        """The place where unfinished runs would execute, and the jobs to submit (`executors.describe`)."""
        by_id = {run.run_id: run for run in self.plan.runs}
        todo = [by_id[run_id] for run_id in self.plan.todo]
        return self._planned(lambda: executors.describe(self.directory, self.plan.spec.executor, todo))

    @cached_property
    def schedule(self) -> Schedule | None:
        """The schedule of a race under an assumed truth; None for a grid, and once the race has begun."""
        adaptive = self.plan.adaptive
        if adaptive is None or len(adaptive.history) > 1 or self.plan.begun:
            return None
        from isolaw.design.play import schedule

        return schedule(adaptive, self.plan.spec)

    @cached_property
    def runs(self) -> list[RunSpec]:
        """The runs that remain; for a race that has not begun, the runs of its schedule."""
        if self.schedule is not None and self.plan.adaptive is not None:
            return self.plan.adaptive.asked(self.schedule.decisions)
        return self.plan.unfinished

    @cached_property
    def commands(self) -> list[dict[str, Any]]:
        """The commands that would train the unfinished runs; empty for other backends."""
        left = set(self.plan.todo)
        return [own for own in self.outlook.commands if own["run_id"] in left]

    @cached_property
    def spent(self) -> Spent | None:
        """The time of the remaining runs by ``cost``; None without ``cost``, or if the time is not known."""
        if self.cost is None:
            return None
        return sweeps.left(self.directory, self.runs, self.cost, self.price)

    @cached_property
    def estimates(self) -> list[Remaining]:
        """Without ``cost``, the backend's estimate for each (B_p, n); empty if it has none."""
        backend = backends.get(self.plan.spec.sweep.backend)
        if self.cost is not None:
            return []
        return self._planned(lambda: sweeps.by_configuration(self.directory, self.runs, backend.estimate))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data, as ``isolaw sweep --dry-run --json`` prints it."""
        cost = self.cost
        commands = {"commands": self.commands} if self.commands else {}
        known = None if cost is None else {**(self.spent.to_dict() if self.spent else {}), **cost.to_dict()}
        return {
            **self.plan.to_dict(),
            "memory": self.outlook.memory,
            "executor": self.place,
            "dry_run": True,
            **commands,
            "schedule": self.schedule and self.schedule.to_dict(),
            "cost": sweeps.estimated(self.estimates) if self.estimates else known,
        }

    def _planned(self, value: Callable[[], _T]) -> _T:
        """Return a value, computed for the machines that the plan is for."""
        spec = self.plan.spec
        with (
            executors.planned_for(self.plan.cards, spec.executor, spec.sweep.backend),
            executors.machines(spec.executor, spec.sweep.backend),
        ):
            return value()
