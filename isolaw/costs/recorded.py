"""The cost of a step from recorded runs, by non-negative least squares.

Between two recorded checkpoints a run made k steps with T tokens and e evaluations in w seconds. With the
seconds of its parts, each part has an equation of its own; what the parts leave of w, or all of it where
they were not recorded, has one with the evaluations:

    part:      s = k · a + T · b
    the rest:  w − Σ s = k · a + T · b + e · c

All with a, b, c ≥ 0 (`scipy.optimize.nnls`: Lawson and Hanson, Solving Least Squares Problems, 1974). Each
equation is divided by its w: time varies in proportion to itself, and a stretch in which the machine was busy
with something else, or a run loaded its model again, then has a bounded effect.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isolaw.errors import DataError
from isolaw.step_cost import Cost, CostOrigin, StepPart

if TYPE_CHECKING:
    from isolaw.runs import Runs

Floats = NDArray[np.float64]
REST = "rest"  # of the wall time
WHOLE = "step"  # a step whose parts were not recorded
EVALUATE = "evaluate"
_LEAST = 3  # batch sizes, for the error of one that is left out


@dataclass(frozen=True)
class Timed:
    """A run's recorded checkpoints, in their order: numbers and times since its beginning, each (P,)."""

    run_id: str
    problems_per_batch: int
    rollouts_per_problem: int
    step: Floats
    tokens: Floats | None
    wall_s: Floats
    evaluated: NDArray[np.bool_]
    seconds: Mapping[str, Floats]  # by part; empty where they were not recorded
    gpus: int | None = None
    gpu: str = ""
    model: str = ""

    @property
    def batch(self) -> int:
        """B_p · n."""
        return self.problems_per_batch * self.rollouts_per_problem

    @classmethod
    def of_lines(
        cls, run_id: str, b: int, n: int, lines: Sequence[Mapping[str, Any]], model: str = ""
    ) -> Timed:
        """Return a run from the lines of its ``points.jsonl``."""
        known = all(line["tokens"] is not None for line in lines)
        timed = [line.get("seconds") for line in lines]
        names = sorted({name for own in timed for name in own or ()}) if all(timed) else []
        machine: Mapping[str, Any] = next(
            (own for line in reversed(lines) if (own := line.get("machine"))), {}
        )
        return cls(
            run_id,
            b,
            n,
            np.array([line["step"] for line in lines], float),
            np.array([line["tokens"] for line in lines], float) if known else None,
            np.array([line["wall_s"] for line in lines], float),
            np.array([bool(line["rows"]) for line in lines]),
            {name: np.array([own.get(name, 0.0) for own in timed if own]) for name in names},
            machine.get("gpus"),
            machine.get("gpu") or "",
            model,
        )


def of_runs(runs: Runs, where: str = "") -> Cost:
    """Return the cost of a step from a table of runs with ``wall_s``; their GPUs are not known."""
    points = runs.points.drop_duplicates(["run_id", "step"]).sort_values(["run_id", "step"])
    models = {run_id: str(own.get("model", "")) for run_id, own in runs.attributes.items()}
    timed = []
    for own in runs.attributes.values():
        check_backend(str(own.get("backend", "real")), where or runs.source)
    for run_id, own in points.groupby("run_id"):
        if own["wall_s"].isna().any():
            continue
        b, n = (int(own[name].iloc[0]) for name in ("problems_per_batch", "rollouts_per_problem"))
        tokens = None if own["tokens"].isna().any() else own["tokens"].to_numpy(float)
        step, wall_s = own["step"].to_numpy(float), own["wall_s"].to_numpy(float)
        every = np.ones(step.size, bool)
        timed.append(Timed(str(run_id), b, n, step, tokens, wall_s, every, {}, model=models.get(run_id, "")))
    return fit(timed, where or runs.source)


def check_backend(backend: str, where: str) -> None:
    """Raise `DataError` for runs whose time is a simulator's, or that of copying recorded runs."""
    if backend != "real":
        raise DataError(f"{where}: runs of backend {backend}; their time says nothing about training a model")


def fit(timed: Sequence[Timed], where: str) -> Cost:
    """Return the cost of a step from recorded runs; raise `DataError` where they recorded no time."""
    kinds = Counter({(run.gpus, run.gpu, run.model): 0 for run in timed})
    for run in timed:
        kinds[run.gpus, run.gpu, run.model] += int(run.step[-1] > run.step[0])
    if not timed or not any(kinds.values()):
        raise DataError(f"{where}: no run recorded the wall time of a step, so its cost is not known")
    chosen = max(kinds, key=lambda kind: kinds[kind])
    kept = [run for run in timed if (run.gpus, run.gpu, run.model) == chosen and run.step[-1] > run.step[0]]
    notes = []
    if others := sum(kinds.values()) - len(kept):
        notes.append(f"left out: {others} of {others + len(kept)} runs, on other machines or of other models")
    unit = "tokens" if all(run.tokens is not None for run in kept) else "rollouts"
    table = _Intervals.of(kept, unit)
    parts, evaluation_s = table.fitted()
    batches = sorted({run.batch for run in kept})
    configurations = {(run.problems_per_batch, run.rollouts_per_problem) for run in kept}
    starts = [run.wall_s[0] - run.evaluated[0] * evaluation_s for run in kept if run.step[0] == 0]
    return Cost(
        parts,
        float(table.units.sum() / (table.steps * table.batch).sum()),
        unit,
        CostOrigin.RECORDED,
        where,
        *chosen,
        evaluation_s=evaluation_s,
        start_s=max(float(np.mean(starts)), 0.0) if starts else None,
        batches=tuple(batches),
        configurations=len(configurations),
        runs=len(kept),
        error=table.error() if len(batches) >= _LEAST else None,
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class _Intervals:
    """Stretches of runs between checkpoints, (I,) each, and the seconds of their parts."""

    run: NDArray[np.int64]
    batch: Floats
    steps: Floats
    units: Floats
    evaluations: Floats
    wall_s: Floats
    seconds: Mapping[str, Floats]

    @classmethod
    def of(cls, timed: Sequence[Timed], unit: str) -> _Intervals:
        """Return the intervals of runs; parts count where all runs recorded them."""
        names = (
            sorted({name for run in timed for name in run.seconds}) if all(r.seconds for r in timed) else []
        )
        columns: dict[str, list[Floats]] = {}
        for index, run in enumerate(timed):
            steps = np.diff(run.step)
            units = np.diff(run.tokens) if unit == "tokens" and run.tokens is not None else steps * run.batch
            own = {
                "run": np.full(steps.size, float(index)),
                "batch": np.full(steps.size, float(run.batch)),
                "steps": steps,
                "units": units,
                "evaluations": run.evaluated[1:].astype(float),
                "wall_s": np.diff(run.wall_s),
                **{f".{name}": np.diff(run.seconds.get(name, np.zeros(run.step.size))) for name in names},
            }
            for name, values in own.items():
                columns.setdefault(name, []).append(values)
        whole = {name: np.concatenate(values) for name, values in columns.items()}
        sound = (whole["wall_s"] > 0) & (whole["steps"] > 0)
        whole = {name: values[sound] for name, values in whole.items()}
        seconds = {name: whole.pop(f".{name}") for name in names}
        return cls(run=whole.pop("run").astype(np.int64), seconds=seconds, **whole)

    def only(self, kept: NDArray[np.bool_]) -> _Intervals:
        """Return some of the intervals."""
        own = {name: values[kept] for name, values in vars(self).items() if name != "seconds"}
        return _Intervals(**own, seconds={name: values[kept] for name, values in self.seconds.items()})

    def fitted(self) -> tuple[dict[str, StepPart], float]:
        """Return the parts of a step, and the seconds of an evaluation."""
        parts: dict[str, StepPart] = {}
        for name, seconds in self.seconds.items():
            if name != EVALUATE:
                parts[name] = StepPart(*self._solved(seconds, self.steps, self.units))
        rest = np.maximum(self.wall_s - sum(self.seconds.values(), np.zeros_like(self.wall_s)), 0.0)
        evaluations = self.seconds.get(EVALUATE, np.zeros_like(rest))
        a, b, c = self._solved(rest, self.steps, self.units, self.evaluations)
        parts[REST if parts else WHOLE] = StepPart(a, b)
        return parts, c + (self._solved(evaluations, self.evaluations)[0] if evaluations.any() else 0.0)

    def _solved(self, seconds: Floats, *columns: Floats) -> list[float]:
        """Coefficients ≥ 0 of columns; with one batch size T says nothing that the steps do not say."""
        from scipy.optimize import nnls

        design = np.stack(columns, axis=1)
        if np.unique(self.batch).size == 1 and len(columns) > 1:
            design[:, 1] = 0.0
        found, _ = nnls(design / self.wall_s[:, None], seconds / self.wall_s)
        return [float(value) for value in found]

    def error(self) -> float:
        """Return the root mean square of log(measured / predicted seconds), each batch size left out."""
        errors = []
        for batch in np.unique(self.batch):
            own = self.batch == batch
            parts, evaluation_s = self.only(~own).fitted()
            step_s = sum(part.step_s for part in parts.values())
            unit_s = sum(part.unit_s for part in parts.values())
            predicted = step_s * self.steps + unit_s * self.units + evaluation_s * self.evaluations
            for run in np.unique(self.run[own]):
                of_run = self.run == run
                said = float(predicted[of_run].sum())
                errors.append(math.log(float(self.wall_s[of_run].sum()) / said) if said > 0 else math.inf)
        return float(np.sqrt(np.mean(np.square(errors))))
