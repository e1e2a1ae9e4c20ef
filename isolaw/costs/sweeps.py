"""Compute the time that a sweep's runs have taken so far, and the time that they still need."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from isolaw.config import RunSpec
from isolaw.costs.recorded import REST
from isolaw.step_cost import HOUR_S, Cost, CostOrigin, Spent
from isolaw.store import SweepStore


def left(
    directory: str | Path | None,
    runs: Iterable[RunSpec],
    cost: Cost,
    price: float | None = None,
    share: float = 1.0,
) -> Spent | None:
    """Return the cost of the steps, evaluations and starts that ``runs`` still need from their last states.

    Returns None if the cost of some steps is unknown. Evaluations and starts count only if the cost model
    includes them. ``share`` is the part of this work that will be done: a race executes a part of its grid.
    Without a ``directory`` no run has begun.
    """
    store = None if directory is None else SweepStore(directory)
    seconds = 0.0
    for run in runs:
        kept: list[dict[str, Any]] = []
        if store is not None and store.exists:
            stored = store.run(run.run_id)
            kept = stored.recorded().up_to(stored.last_state).checkpoints
        reached = int(kept[-1]["step"]) if kept else -1
        rest = cost.seconds(
            *run.shape,
            run.steps - max(reached, 0),
            evaluations=sum(step > reached for step in run.schedule()),
            starts=1,
        )
        if rest is None:
            return None
        seconds += float(rest)
    return Spent(cost.estimate(share * seconds), cost, price)


class Remaining(NamedTuple):
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


def by_configuration(
    directory: str | Path,
    runs: Iterable[RunSpec],
    cost_of: Callable[[RunSpec], Cost | None],
    share: float = 1.0,
) -> list[Remaining]:
    """Return the remaining work of ``runs`` for each (B_p, n), ascending; empty if a cost is unknown.

    ``share`` is as in `left`.
    """
    groups: dict[tuple[int, int], list[RunSpec]] = {}
    for run in runs:
        groups.setdefault(run.shape, []).append(run)
    out = []
    for shape, group in sorted(groups.items()):
        cost = cost_of(group[0])
        spent = None if cost is None else left(directory, group, cost, share=share)
        if spent is None:
            return []
        out.append(Remaining(*shape, len(group), spent))
    return out


def gpu_hours(remaining: Sequence[Remaining]) -> float:
    """Return the GPU hours of all configurations together."""
    return sum(float(rest.spent.gpu_hours) for rest in remaining if rest.spent.gpu_hours)


def estimated(remaining: Sequence[Remaining]) -> dict[str, Any]:
    """Return the estimated cost of a sweep's remaining work as JSON-able data."""
    return {
        "source": str(CostOrigin.ESTIMATE),
        "gpu_hours": gpu_hours(remaining),
        "configurations": [
            {
                "problems_per_batch": left_over.problems_per_batch,
                "rollouts_per_problem": left_over.rollouts_per_problem,
                "runs": left_over.runs,
                "gpus": left_over.spent.cost.gpus,
                "seconds_of_a_step": {name: part.step_s for name, part in left_over.spent.cost.parts.items()},
                "tokens_per_gpu_s": left_over.tokens_per_gpu_s,
                "tokens_per_response": left_over.spent.cost.per_rollout,
                **left_over.spent.to_dict(),
            }
            for left_over in remaining
        ],
    }


def so_far(runs: Iterable[Sequence[Mapping[str, Any]]]) -> dict[str, Any] | None:
    """Return the ``hours``, the ``gpu_hours`` and the ``seconds`` by part that runs have recorded so far.

    The part ``start`` is the time before step 0, and ``rest`` is the wall time outside all other parts.
    ``gpu_hours`` is None if a run did not record its GPUs or had none. Returns None if no run has recorded
    any time.
    """
    seconds: Counter[str] = Counter()
    total = gpu_s = 0.0
    known = True
    for lines in runs:
        if not lines:
            continue
        wall_s, parts = float(lines[-1]["wall_s"]), lines[-1].get("seconds") or {}
        gpus = (lines[-1].get("machine") or {}).get("gpus")
        known = known and bool(gpus)
        total, gpu_s = total + wall_s, gpu_s + wall_s * (gpus or 0)
        start = lines[0]["wall_s"] - sum((lines[0].get("seconds") or {}).values()) if parts else 0.0
        rest = max(wall_s - start - sum(parts.values()), 0.0)
        seconds.update({**parts, "start": start, REST: rest})
    if not total:
        return None
    return {"hours": total / HOUR_S, "gpu_hours": gpu_s / HOUR_S if known else None, "seconds": dict(seconds)}
