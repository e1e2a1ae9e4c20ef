"""`Question`: the input of a plan, which consists of a grid, a target, a limit on the spend, and GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isolaw import allocation
from isolaw.allocation import BatchShape
from isolaw.config import RunSpec, SweepSpec
from isolaw.config.sections import percent
from isolaw.costs import Cost, read_cost
from isolaw.design import directory
from isolaw.design.candidate_sweeps import Budget, CandidateSweep, candidates
from isolaw.design.clock import Clock
from isolaw.design.decisions import Decision, DecisionStage, Request
from isolaw.design.race import RUNGS
from isolaw.documents.validation import located
from isolaw.errors import InputError, Issue, MessageLines, SpecError, shown
from isolaw.fits.selection import Floats
from isolaw.step_cost import HOUR_S, is_hours, parse_rollouts

_LARGEST = 1e15  # rollouts
RELIABLE = 0.1  # with a smaller share of a grid of 9 n with 3 seeds, no design was reliable
_REFERENCE_RUNS = 27


@dataclass(frozen=True)
class Question:
    """A sweep over a grid, and the limit on what the planned runs may spend.

    ``spec.sweep.compute`` is the target. ``runs`` contains all runs of the grid. The runs' settings are
    unresolved, since the model and the problems need not exist.
    """

    spec: SweepSpec
    runs: list[RunSpec]
    budget: Budget
    gpus: int | None = None
    hours: float | None = None  # wall time on these GPUs; no limit without a cost

    @property
    def cells(self) -> tuple[BatchShape, ...]:
        """The cells (B_p, n) that a plan can recommend."""
        return tuple(sorted({run.shape for run in self.runs} - set(self.spec.design.forbidden)))

    @property
    def target(self) -> int:
        """The budget C, in rollouts, for which the user needs an allocation."""
        return self.spec.sweep.compute

    @property
    def grid(self) -> int:
        """The rollouts that all runs of the grid generate in total up to the target."""
        return sum(run.rollouts for run in self.runs)

    @property
    def unreliable_below(self) -> int:
        """The number of rollouts below which isolaw calls all designs unreliable."""
        return int(RELIABLE * max(_REFERENCE_RUNS * self.target, self.grid))

    @property
    def checkpoints(self) -> dict[BatchShape, Floats]:
        """The C at which each cell is evaluated."""
        return {
            (b, n): np.array(steps, dtype=float) * (b * n) for (b, n), steps in evaluated(self.runs).items()
        }

    def candidates(self) -> list[CandidateSweep]:
        """Return the designs that the limits allow."""
        return candidates(self.spec, self.runs, self.budget)


def evaluated(runs: list[RunSpec]) -> dict[BatchShape, list[int]]:
    """Return the steps at which each cell is evaluated."""
    first = {run.shape: run for run in reversed(runs)}
    return {key: run.schedule() for key, run in sorted(first.items())}


def question(
    sweep: SweepSpec | Mapping[str, Any] | str | Path,
    target: float | str | None = None,
    spend: float | str | None = None,
    gpus: int | None = None,
    hours: float | None = None,
    cost: Any = None,
    settings: tuple[str, ...] = (),
) -> Question:
    """Check the arguments of a plan and return them as a `Question`.

    The parameters are those of `isolaw.design.forecast.plan`. Raises `SpecError` or `InputError` with every
    issue that prevents an answer.
    """
    if hours is not None and not (math.isfinite(hours) and hours > 0):
        raise InputError(f"hours: found {shown(hours)}; expected a positive number")
    if gpus is not None and gpus < 1:
        raise InputError(f"gpus: found {gpus}; expected at least 1")
    if gpus is not None and hours is None and cost is None:
        raise InputError(
            "gpus: the number of GPUs has no effect without hours or a cost; add --hours H or --cost SOURCE"
        )
    file = sweep if isinstance(sweep, str | Path) else None
    if file is not None:
        spec = SweepSpec.read(file, settings)
    elif isinstance(sweep, Mapping):
        spec = SweepSpec.parse(sweep)
    elif isinstance(sweep, SweepSpec):
        spec = sweep
    else:
        found = type(sweep).__name__
        raise InputError(f"sweep: found {found}; expected a TOML file, a SweepSpec or a mapping")
    whole = _target(target, spec.sweep.compute)
    own = spec.sweep.model_copy(update={"compute": whole})
    spec = spec.model_copy(update={"sweep": own})
    runs, issues = _runs(spec)
    if not issues:  # with an unlimited spend, since `candidates` decides what the budget allows
        free = spec.design.model_copy(update={"kind": "race", "spend": 1.0})
        issues = directory.issues_of(spec.model_copy(update={"design": free}), runs)
    if issues:
        error = SpecError(issues)
        raise error if file is None else located(error, file, settings)
    return Question(spec, runs, _budget(spec, runs, spend, gpus, hours, cost), gpus, hours)


def _target(target: float | str | None, compute: int) -> int:
    if target is None:
        return compute
    target = parse_rollouts(target)
    if not 1 <= target <= _LARGEST:
        raise InputError(
            f"target: found {shown(target)}; expected rollouts, e.g. 1e7, at most {_LARGEST:.0e}"
        )
    return int(target)


def _runs(spec: SweepSpec) -> tuple[list[RunSpec], list[Issue]]:
    """Return the unresolved runs of the grid, and the grid's issues."""
    issues = allocation.grid_issues(*spec.axes)
    pairs = allocation.grid(*spec.axes)[0]
    given, compute = spec.evaluation, spec.sweep.compute
    schedule = given.model_copy(
        update={
            "start": given.start or min([b * n for b, n in pairs] + [compute]),
            "end": given.end or compute,
            "horizons": tuple(sorted({compute // part for part in RUNGS})),
        }
    )
    out = []
    for b, n in pairs:
        if compute < b * n:
            accepted = f"at least one batch, {b * n} (B_p = {b}, n = {n})"
            issues.append(Issue("sweep.compute", found=compute, accepted=accepted))
        cell = {"problems_per_batch": b, "rollouts_per_problem": n, "evaluation": schedule}
        out += [
            RunSpec(backend=spec.sweep.backend, seed=seed, compute=compute, **cell)
            for seed in spec.sweep.seeds
        ]
    return out, issues


def _budget(
    spec: SweepSpec,
    runs: list[RunSpec],
    spend: float | str | None,
    gpus: int | None,
    hours: float | None,
    cost: Any,
) -> Budget:
    grid = sum(run.rollouts for run in runs)
    in_hours = isinstance(spend, str) and is_hours(spend)
    if cost is None and in_hours:
        text = MessageLines(
            "--cost: missing; GPU hours become rollouts only with the cost of a step. Expected one of:",
            "  --cost DIRECTORY: real runs that recorded their time (or a table of runs with wall_s)",
            "  --cost isolaw-gpu-report.json: the report of isolaw doctor --gpu",
            "  --cost throughput.toml: your own throughputs, as in examples/data/throughput.toml",
        )
        raise InputError(text)
    if cost is None:
        return Budget(_rollouts(spec.design.spend if spend is None else spend, grid))
    clock = _clock(read_cost(cost), runs, gpus)
    most = grid
    if spend is not None and not in_hours:
        most = _rollouts(spend, grid)
    elif hours is None and not in_hours:
        most = _rollouts(spec.design.spend, grid)
    whole = tuple(Request(*directory.key_of(run), run.compute) for run in runs)
    work = clock.time([Decision(DecisionStage.GRID, whole)]).work_s
    if hours is not None:
        most = min(most, int(grid * hours * HOUR_S * clock.places / work))
    if in_hours:
        most = min(most, int(grid * clock.cost.budget_seconds(str(spend)) / work))
    return Budget(most, hours, clock)


def _clock(cost: Cost, runs: list[RunSpec], gpus: int | None) -> Clock:
    where = cost.where or str(cost.source)
    if any(cost.step(*run.shape) is None for run in runs):
        raise InputError(f"{where}: all timed steps have one size, so the cost of other B_p · n is unknown")
    if gpus is None:
        return Clock(cost, 1, evaluated(runs))
    if not cost.gpus:
        why = "does not record the GPUs of a run" if cost.gpus is None else "has no GPUs"
        raise InputError(
            f"gpus: found {gpus}, but {where} {why}; expected hours without gpus, for one run at a time"
        )
    if gpus < cost.gpus:
        raise InputError(f"gpus: found {gpus}; expected at least {cost.gpus}, which a run needs in {where}")
    return Clock(cost, gpus // cost.gpus, evaluated(runs))


def _rollouts(spend: float | str, grid: int) -> int:
    """Return a spend in rollouts, given as a share of the grid (20% or 0.2) or as a number of rollouts."""
    try:
        share = percent(spend)
        value = parse_rollouts(share)
    except InputError:
        value = math.nan
    value = value * grid if value <= 1 else value
    if not (math.isfinite(value) and value > 0):
        accepted = "a share of the grid (20%), rollouts (2e7), or GPU hours (384gpuh, with a cost)"
        raise InputError(f"spend: found {shown(spend)}; expected {accepted}")
    return int(value)
