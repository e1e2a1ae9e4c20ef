"""Preview a sweep: memory, machines, commands, and the hours that remain. Nothing is written.

`read_cost` reads the cost of a step, on which hours rest, or estimates it from the shape of a model.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from isolaw import backends, costs, executors
from isolaw.arguments import checked
from isolaw.backend import Outlook
from isolaw.backends.real.train.memory.from_shape import cost_of_shape
from isolaw.config import RunSpec, SweepSpec
from isolaw.design.directory import race_of
from isolaw.resolve import ResolvedSweep, resume_point
from isolaw.step_cost import Cost, CostOrigin, Spent
from isolaw.store import SweepStore

_Value = TypeVar("_Value")
_PRICED = re.compile(r"(?P<source>.+),\s*(?P<price>[0-9]*\.?[0-9]+)/h", re.S)


def share_of_grid(spec: SweepSpec, runs: Sequence[RunSpec]) -> float:
    """Return the part of a grid's rollouts that a new sweep may generate: all, or the spend of a race."""
    if spec.design.kind != "race":
        return 1.0
    return min(race_of(spec, runs).spend / sum(run.rollouts for run in runs), 1.0)


def remaining_cost(
    directory: str | Path | None, runs: Iterable[RunSpec], cost: Cost, share: float = 1.0
) -> Spent | None:
    """Return the cost of the steps, evaluations and starts that ``runs`` still need from their last states.

    Returns None if the cost of some steps is unknown. Evaluations and starts count only if the cost model
    includes them. ``share`` is the part of this work that will be done: a race executes a part of its grid.
    Without a ``directory`` no run has begun.
    """
    store = None if directory is None else SweepStore(directory)
    seconds = 0.0
    for run in runs:
        last_step = -1
        if store is not None and store.exists:
            last_step, _ = resume_point(store.run(run.run_id), run)
        run_seconds = cost.seconds(
            *run.shape,
            run.steps - max(last_step, 0),
            evaluations=sum(step > last_step for step in run.schedule()),
            starts=1,
        )
        if run_seconds is None:
            return None
        seconds += float(run_seconds)
    return Spent(cost.estimate(share * seconds), cost)


class RemainingWork(NamedTuple):
    """The remaining work of the runs of one (B_p, n), and its estimated cost."""

    problems_per_batch: int
    rollouts_per_problem: int
    runs: int
    spent: Spent

    @property
    def tokens_per_gpu_s(self) -> float:
        """Response tokens per second of a step, on each of its GPUs."""
        cost, b, n = self.spent.cost, self.problems_per_batch, self.rollouts_per_problem
        return cost.per_rollout * b * n / (cost.step(b, n) or math.inf) / (cost.gpus or 1)


def _remaining_work(
    directory: str | Path,
    runs: Iterable[RunSpec],
    cost_of: Callable[[RunSpec], Cost | None],
    share: float = 1.0,
) -> list[RemainingWork]:
    """Return the remaining work of ``runs`` for each (B_p, n), ascending; empty if a cost is unknown.

    ``share`` is as in `remaining_cost`.
    """
    runs_by_shape: dict[tuple[int, int], list[RunSpec]] = {}
    for run in runs:
        runs_by_shape.setdefault(run.shape, []).append(run)
    remaining = []
    for shape, alike in sorted(runs_by_shape.items()):
        cost = cost_of(alike[0])
        spent = None if cost is None else remaining_cost(directory, alike, cost, share)
        if spent is None:
            return []
        remaining.append(RemainingWork(*shape, len(alike), spent))
    return remaining


def gpu_hours(remaining: Sequence[RemainingWork]) -> float:
    """Return the GPU hours of all configurations together."""
    return sum(float(work.spent.gpu_hours) for work in remaining if work.spent.gpu_hours)


def _estimated(remaining: Sequence[RemainingWork]) -> dict[str, Any]:
    """Return the estimated cost of a sweep's remaining work as JSON-able data."""
    return {
        "source": str(CostOrigin.ESTIMATE),
        "gpu_hours": gpu_hours(remaining),
        "configurations": [
            {
                "problems_per_batch": work.problems_per_batch,
                "rollouts_per_problem": work.rollouts_per_problem,
                "runs": work.runs,
                "gpus": work.spent.cost.gpus,
                "seconds_of_a_step": {name: part.step_s for name, part in work.spent.cost.parts.items()},
                "tokens_per_gpu_s": work.tokens_per_gpu_s,
                "tokens_per_response": work.spent.cost.per_rollout,
                **work.spent.to_dict(),
            }
            for work in remaining
        ],
    }


@dataclass(frozen=True)
class Preview:
    """A resolved sweep in its directory, and the needs of its execution.

    ``cost`` is the user's cost of a step, None without one.
    """

    resolved: ResolvedSweep
    directory: Path
    cost: Cost | None = None

    @cached_property
    def outlook(self) -> Outlook:
        """The backend's knowledge about the runs before they execute."""
        store = SweepStore(self.directory.absolute())
        backend = backends.get(self.resolved.spec.sweep.backend)
        runs, nodes = self.resolved.runs, self.resolved.spec.executor.nodes
        return self._on_machines(lambda: backend.outlook(runs, lambda run: store.run(run.run_id).out, nodes))

    @cached_property
    def executor(self) -> dict[str, Any]:
        """The place where unfinished runs would execute, and the jobs to submit (`executors.describe`)."""
        runs_by_id = {run.run_id: run for run in self.resolved.runs}
        todo = [runs_by_id[run_id] for run_id in self.resolved.todo]
        section = self.resolved.spec.executor
        return self._on_machines(lambda: executors.describe(self.directory, section, todo))

    @cached_property
    def remaining_runs(self) -> tuple[list[RunSpec], float]:
        """The runs that remain, and the part of their work that the sweep may do.

        A race that has not begun may do the part of its grid that its spend allows.
        """
        adaptive = self.resolved.adaptive
        if adaptive is None or len(adaptive.history) > 1 or self.resolved.begun_count:
            return self.resolved.unfinished, 1.0
        runs = [*adaptive.grid.values()]
        return runs, share_of_grid(self.resolved.spec, runs)

    @cached_property
    def commands(self) -> list[dict[str, Any]]:
        """The commands that would train the unfinished runs; empty for other backends."""
        return [command for command in self.outlook.commands if command["run_id"] in self.resolved.todo]

    @cached_property
    def spent(self) -> Spent | None:
        """The time of the remaining runs by ``cost``; None without ``cost``, or if the time is not known."""
        if self.cost is None:
            return None
        runs, share = self.remaining_runs
        return remaining_cost(self.directory, runs, self.cost, share)

    @cached_property
    def estimates(self) -> list[RemainingWork]:
        """Without ``cost``, the backend's estimate for each (B_p, n); empty if it has none."""
        backend = backends.get(self.resolved.spec.sweep.backend)
        if self.cost is not None:
            return []
        runs, share = self.remaining_runs
        return self._on_machines(lambda: _remaining_work(self.directory, runs, backend.estimate, share))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data, as ``isolaw sweep --dry-run --json`` prints it."""
        cost = self.cost
        commands = {"commands": self.commands} if self.commands else {}
        facts = None if cost is None else {**(self.spent.to_dict() if self.spent else {}), **cost.to_dict()}
        return {
            **self.resolved.to_dict(),
            "memory": self.outlook.memory,
            "executor": self.executor,
            "dry_run": True,
            **commands,
            "cost": _estimated(self.estimates) if self.estimates else facts,
        }

    def _on_machines(self, compute: Callable[[], _Value]) -> _Value:
        """Return a value, computed for the machines that the sweep is resolved for."""
        spec = self.resolved.spec
        with (
            executors.planned_for(self.resolved.cards, spec.executor, spec.sweep.backend),
            executors.machines(spec.executor, spec.sweep.backend),
        ):
            return compute()


@checked
def read_cost(source: Any, price: float | None = None) -> Cost:
    """Return the cost model of a source, with the price of an hour.

    Parameters
    ----------
    source
        one of the following:

        - a model and GPUs, such as ``"qwen2.5-7b@h100-80g:8"``: an estimate, for which nothing is timed. The
          model is a known name or a ``config.json``; ``/2048`` at the end limits the tokens of a response;
        - two numbers: rollouts a second and GPUs, such as ``"12/s@8"``;
        - a sweep's directory;
        - runs with ``wall_s``, as `isolaw.Runs` or in any form that `isolaw.read` accepts;
        - a `Cost`.

        A text can end in the price: ``"runs/easy,2.5/h"``.
    price
        price of a GPU hour, or of an hour of a machine without GPUs.

    Raises
    ------
    InputError
        the source does not exist, is not of these kinds, or records no time.

    >>> read_cost("12/s@8").gpu_hours(32, 64, 100).value
    37.9...
    >>> read_cost("12/s@8,2.5/h").price
    2.5
    """
    if isinstance(source, str) and not os.path.lexists(source) and (match := _PRICED.fullmatch(source)):
        return read_cost(match["source"], float(match["price"]))
    estimated = cost_of_shape(source) if isinstance(source, str) else None
    cost = costs.read(source) if estimated is None else estimated
    return cost if price is None else replace(cost, price=price)
