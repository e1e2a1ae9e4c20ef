"""Preview the execution of a sweep: memory, machines, commands and hours. Nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from isolaw import backends, executors
from isolaw.backend import Outlook
from isolaw.config import RunSpec, SweepSpec
from isolaw.costs import sweeps
from isolaw.costs.sweeps import Remaining
from isolaw.design.directory import race_of
from isolaw.resolve import ResolvedSweep
from isolaw.store import SweepStore

if TYPE_CHECKING:
    from isolaw.step_cost import Cost, Spent

_T = TypeVar("_T")


def share_of_grid(spec: SweepSpec, runs: Sequence[RunSpec]) -> float:
    """Return the part of a grid's rollouts that a new sweep may generate: all, or the spend of a race."""
    if spec.design.kind != "race":
        return 1.0
    return min(race_of(spec, runs).spend / sum(run.rollouts for run in runs), 1.0)


@dataclass(frozen=True)
class Preview:
    """A resolved sweep in its directory, and the needs of its execution.

    ``cost`` is the user's cost of a step, None without one; ``price`` is the price of a GPU hour.
    """

    resolved: ResolvedSweep
    directory: Path
    cost: Cost | None = None
    price: float | None = None

    @cached_property
    def outlook(self) -> Outlook:
        """The backend's knowledge about the runs before they execute."""
        store = SweepStore(self.directory.absolute())
        backend = backends.get(self.resolved.spec.sweep.backend)
        runs, nodes = self.resolved.runs, self.resolved.spec.executor.nodes
        return self._on_machines(lambda: backend.outlook(runs, lambda run: store.run(run.run_id).out, nodes))

    @cached_property
    def place(self) -> dict[str, Any]:
        """The place where unfinished runs would execute, and the jobs to submit (`executors.describe`)."""
        by_id = {run.run_id: run for run in self.resolved.runs}
        todo = [by_id[run_id] for run_id in self.resolved.todo]
        executor = self.resolved.spec.executor
        return self._on_machines(lambda: executors.describe(self.directory, executor, todo))

    @cached_property
    def remaining(self) -> tuple[list[RunSpec], float]:
        """The runs that remain, and the part of their work that the sweep may do.

        A race that has not begun may do the part of its grid that its spend allows.
        """
        adaptive = self.resolved.adaptive
        if adaptive is None or len(adaptive.history) > 1 or self.resolved.begun:
            return self.resolved.unfinished, 1.0
        runs = [*adaptive.grid.values()]
        return runs, share_of_grid(self.resolved.spec, runs)

    @cached_property
    def commands(self) -> list[dict[str, Any]]:
        """The commands that would train the unfinished runs; empty for other backends."""
        left = set(self.resolved.todo)
        return [command for command in self.outlook.commands if command["run_id"] in left]

    @cached_property
    def spent(self) -> Spent | None:
        """The time of the remaining runs by ``cost``; None without ``cost``, or if the time is not known."""
        if self.cost is None:
            return None
        runs, share = self.remaining
        return sweeps.left(self.directory, runs, self.cost, self.price, share)

    @cached_property
    def estimates(self) -> list[Remaining]:
        """Without ``cost``, the backend's estimate for each (B_p, n); empty if it has none."""
        backend = backends.get(self.resolved.spec.sweep.backend)
        if self.cost is not None:
            return []
        runs, share = self.remaining
        return self._on_machines(
            lambda: sweeps.by_configuration(self.directory, runs, backend.estimate, share)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data, as ``isolaw sweep --dry-run --json`` prints it."""
        cost = self.cost
        commands = {"commands": self.commands} if self.commands else {}
        known = None if cost is None else {**(self.spent.to_dict() if self.spent else {}), **cost.to_dict()}
        return {
            **self.resolved.to_dict(),
            "memory": self.outlook.memory,
            "executor": self.place,
            "dry_run": True,
            **commands,
            "cost": sweeps.estimated(self.estimates) if self.estimates else known,
        }

    def _on_machines(self, value: Callable[[], _T]) -> _T:
        """Return a value, computed for the machines that the sweep is resolved for."""
        spec = self.resolved.spec
        with (
            executors.planned_for(self.resolved.cards, spec.executor, spec.sweep.backend),
            executors.machines(spec.executor, spec.sweep.backend),
        ):
            return value()
