"""Fit the cost of a step to recorded runs, by non-negative least squares.

Between two recorded checkpoints, a run made k steps with T tokens and e evaluations in w seconds. If the run
recorded the seconds s of each part of a step, each part has its own equation. The rest of w (or all of w, if
the run recorded no parts) has an equation that includes the evaluations:

    part:      s = k · a + T · b
    the rest:  w − Σ s = k · a + T · b + e · c

All coefficients are ≥ 0 (`scipy.optimize.nnls`: Lawson and Hanson, Solving Least Squares Problems, 1974).
Each equation is divided by its w, since the error of a time is proportional to the time. An interval in which
the machine did other work, or in which a run loaded its model again, then has a bounded effect.

If B_p and n vary independently over at least six configurations, three models compete. The model *line* is
the equation above. The model *tail* adds a term k · log2(B_p) to the generation, or to the whole step if
parts are not recorded. The model *effects* extends *tail* by an effect of each configuration
(`isolaw.step_cost`), which is the median of log(measured / predicted) over its runs. isolaw leaves out
each configuration in turn, and keeps the model that predicts the medians of the left-out configurations with
the smallest root mean square error. Of equal models, isolaw keeps the simplest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isolaw.errors import DataError
from isolaw.metrics import STEP_SECONDS
from isolaw.registry import traits
from isolaw.step_cost import Cost, CostOrigin, LeftOut, StepEffects, StepPart, student

if TYPE_CHECKING:
    from isolaw.runs import Runs

Floats = NDArray[np.float64]
REST = "rest"  # the wall time outside the recorded parts of a step
WHOLE = "step"  # a whole step, if its parts were not recorded
EVALUATE = "evaluate"
GENERATE = "generate"
_LEAST_BATCHES = 3  # fewest batch sizes for cross-validation
_LEAST_CELLS = 6  # fewest configurations with independent B_p and n for the models tail and effects
APART_S = 5.0  # fewest seconds between two lines of a trainer's log that count; isolaw polls it every 0.25 s
_StepParts = dict[str, StepPart]


@dataclass(frozen=True)
class RunTimes:
    """The recorded checkpoints of one run, in order: P counts and times since the run began."""

    run_id: str
    problems_per_batch: int
    rollouts_per_problem: int
    step: Floats
    tokens: Floats | None
    wall_s: Floats
    evaluated: NDArray[np.bool_]
    seconds: Mapping[str, Floats]  # seconds by part of a step; empty if parts were not recorded
    gpus: int | None = None
    gpu: str = ""
    model: str = ""

    @property
    def batch(self) -> int:
        """B = B_p · n, the rollouts per step."""
        return self.problems_per_batch * self.rollouts_per_problem

    @classmethod
    def of_lines(
        cls, run_id: str, b: int, n: int, lines: Sequence[Mapping[str, Any]], model: str = ""
    ) -> RunTimes:
        """Return the recorded times of a run from the lines of its ``points.jsonl``."""
        has_tokens = all(line["tokens"] is not None for line in lines)
        part_seconds = [line.get("seconds") for line in lines]
        names = sorted({name for parts in part_seconds for name in parts or ()}) if all(part_seconds) else []
        machine: Mapping[str, Any] = next(
            (line_machine for line in reversed(lines) if (line_machine := line.get("machine"))), {}
        )
        return cls(
            run_id,
            b,
            n,
            np.array([line["step"] for line in lines], float),
            np.array([line["tokens"] for line in lines], float) if has_tokens else None,
            np.array([line["wall_s"] for line in lines], float),
            np.array([bool(line["rows"]) for line in lines]),
            {name: np.array([parts.get(name, 0.0) for parts in part_seconds if parts]) for name in names},
            machine.get("gpus"),
            machine.get("gpu") or "",
            model,
        )

    @classmethod
    def of_trainer(cls, run_id: str, b: int, n: int, lines: Sequence[Mapping[str, Any]]) -> RunTimes | None:
        """Return the times of a run of the command backend, or None if fewer than two are known.

        isolaw uses the seconds of a step that the trainer logs. Without them, it uses the times at which
        steps appeared in the log while isolaw followed it. Log lines come in bursts, so lines less than
        `APART_S` after the last one are left out. A step of such a trainer includes its evaluation.
        """
        rows = [row for line in lines for row in line["rows"]]
        step_metric = ("train", STEP_SECONDS)
        logged_seconds = [row["value"] for row in rows if (row["eval_set"], row["metric"]) == step_metric]
        spaced: list[Mapping[str, Any]] = []
        for line in lines:
            if "machine" in line and (not spaced or line["wall_s"] >= spaced[-1]["wall_s"] + APART_S):
                spaced.append(line)
        gpus = next((line["machine"]["gpus"] for line in lines if "machine" in line), None)
        if logged_seconds:
            return cls.of_seconds(run_id, b, n, logged_seconds, gpus)
        if len(spaced) < 2:
            return None
        step, wall_s = (np.array([line[name] for line in spaced], float) for name in ("step", "wall_s"))
        return cls(run_id, b, n, step, None, wall_s, np.zeros(step.size, bool), {}, gpus)

    @classmethod
    def of_seconds(
        cls, run_id: str, b: int, n: int, seconds: Sequence[float], gpus: int | None = None, model: str = ""
    ) -> RunTimes:
        """Return the times of a run from the logged seconds of some of its steps.

        The seconds are summed as if the steps were consecutive.
        """
        step: Floats = np.arange(len(seconds) + 1, dtype=np.float64)
        wall_s: Floats = np.append(0.0, np.cumsum(seconds)).astype(np.float64)
        return cls(run_id, b, n, step, None, wall_s, np.zeros(step.size, bool), {}, gpus, model=model)


def of_runs(runs: Runs, source: str = "") -> Cost:
    """Return the cost of a step from a table of runs with ``wall_s``. The GPUs of the runs are unknown.

    For a run without ``wall_s``, isolaw uses the metric ``step_seconds``, which contains the seconds per step
    in its log.
    """
    points = runs.points.drop_duplicates(["run_id", "step"]).sort_values(["run_id", "step"])
    models = {run_id: str(a.get("model", "")) for run_id, a in runs.attributes.items()}
    step_rows = runs.points[(runs.points["metric"] == STEP_SECONDS) & (runs.points["eval_set"] == "train")]
    seconds_by_run = {run_id: rows["value"].to_numpy(float) for run_id, rows in step_rows.groupby("run_id")}
    times = []
    backend_by_run = {run_id: str(a["backend"]) for run_id, a in runs.attributes.items() if "backend" in a}
    for backend in backend_by_run.values():  # a log without a backend is of a trainer
        check_backend(backend, source or runs.source)
    for run_id, rows in points.groupby("run_id"):
        b, n = (int(rows[name].iloc[0]) for name in ("problems_per_batch", "rollouts_per_problem"))
        # The clock of a command's runs is isolaw's, which reads several steps at once.
        if rows["wall_s"].isna().any() or traits(backend_by_run.get(run_id)).by_command:
            if (seconds := seconds_by_run.get(run_id)) is not None:
                times.append(RunTimes.of_seconds(str(run_id), b, n, seconds, model=models.get(run_id, "")))
            continue
        tokens = None if rows["tokens"].isna().any() else rows["tokens"].to_numpy(float)
        step, wall_s = rows["step"].to_numpy(float), rows["wall_s"].to_numpy(float)
        evaluated, model = np.ones(step.size, bool), models.get(run_id, "")
        times.append(RunTimes(str(run_id), b, n, step, tokens, wall_s, evaluated, {}, model=model))
    return fit(times, source or runs.source)


def check_backend(backend: str, source: str) -> None:
    """Raise `DataError` for simulated or replayed runs, whose time is not the time of training a model."""
    if not traits(backend).trains:
        raise DataError(f"{source}: runs of backend {backend}; expected runs that train a model")


def fit(times: Sequence[RunTimes], source: str) -> Cost:
    """Return the cost of a step from recorded runs; raise `DataError` if they recorded no time."""
    counts_by_machine = Counter({(run.gpus, run.gpu, run.model): 0 for run in times})
    for run in times:
        counts_by_machine[run.gpus, run.gpu, run.model] += int(run.step[-1] > run.step[0])
    if not times or not any(counts_by_machine.values()):
        text = "no run recorded the wall time of a step, so the cost of a step is unknown"
        raise DataError(f"{source}: {text}")
    machine = max(counts_by_machine, key=lambda key: counts_by_machine[key])
    used = [run for run in times if (run.gpus, run.gpu, run.model) == machine and run.step[-1] > run.step[0]]
    notes = []
    if others := sum(counts_by_machine.values()) - len(used):
        notes.append(
            f"isolaw leaves out {others} of {others + len(used)} runs, which are on other machines or of "
            "other models"
        )
    unit = "tokens" if all(run.tokens is not None for run in used) else "rollouts"
    intervals = _Intervals.of(used, unit)
    batches = sorted({run.batch for run in used})
    configurations = sorted({(run.problems_per_batch, run.rollouts_per_problem) for run in used})
    validation = _validate(intervals) if len(batches) >= _LEAST_BATCHES else None
    model = validation.left_out.model if validation else "line"
    parts, evaluation_s = intervals.fit(model != "line")
    effects = intervals.effects(parts, evaluation_s) if model == "effects" else None
    starts = [run.wall_s[0] - run.evaluated[0] * evaluation_s for run in used if run.step[0] == 0]
    return Cost(
        parts,
        float(intervals.units.sum() / (intervals.steps * intervals.batch).sum()),
        unit,
        CostOrigin.RECORDED,
        source,
        *machine,
        evaluation_s=evaluation_s,
        start_s=max(float(np.mean(starts)), 0.0) if starts else None,
        batches=tuple(batches),
        configurations=len(configurations),
        runs=len(used),
        error=validation and validation.error,
        notes=tuple(notes),
        effects=effects,
        timed=tuple(configurations),
        left_out=validation and validation.left_out,
    )


@dataclass(frozen=True)
class _Intervals:
    """The intervals between consecutive checkpoints of runs, as arrays with one value per interval."""

    run: NDArray[np.int64]
    problems: Floats  # B_p
    batch: Floats
    steps: Floats
    units: Floats
    evaluations: Floats
    wall_s: Floats
    seconds: Mapping[str, Floats]

    @classmethod
    def of(cls, runs: Sequence[RunTimes], unit: str) -> _Intervals:
        """Return the intervals of runs. Parts of a step are used only if all runs recorded them."""
        names = (
            sorted({name for run in runs for name in run.seconds}) if all(run.seconds for run in runs) else []
        )
        columns: dict[str, list[Floats]] = {}
        for index, run in enumerate(runs):
            steps = np.diff(run.step)
            units = np.diff(run.tokens) if unit == "tokens" and run.tokens is not None else steps * run.batch
            values_of = {
                "run": np.full(steps.size, float(index)),
                "problems": np.full(steps.size, float(run.problems_per_batch)),
                "batch": np.full(steps.size, float(run.batch)),
                "steps": steps,
                "units": units,
                "evaluations": run.evaluated[1:].astype(float),
                "wall_s": np.diff(run.wall_s),
                **{f".{name}": np.diff(run.seconds.get(name, np.zeros(run.step.size))) for name in names},
            }
            for name, values in values_of.items():
                columns.setdefault(name, []).append(values)
        joined = {name: np.concatenate(values) for name, values in columns.items()}
        is_valid = (joined["wall_s"] > 0) & (joined["steps"] > 0)
        joined = {name: values[is_valid] for name, values in joined.items()}
        seconds = {name: joined.pop(f".{name}") for name in names}
        return cls(run=joined.pop("run").astype(np.int64), seconds=seconds, **joined)

    def subset(self, mask: NDArray[np.bool_]) -> _Intervals:
        """Return the intervals that ``mask`` selects."""
        columns = {name: values[mask] for name, values in vars(self).items() if name != "seconds"}
        return _Intervals(**columns, seconds={name: values[mask] for name, values in self.seconds.items()})

    @property
    def cells(self) -> NDArray[np.int64]:
        """The (B_p, n) of each interval's run, with one row per interval."""
        return np.stack([self.problems, self.batch / self.problems], axis=1).round().astype(np.int64)

    @property
    def is_separable(self) -> bool:
        """Whether B_p and n vary independently over enough configurations for the models tail and effects."""
        cells = np.unique(self.cells, axis=0)
        design = np.stack([np.ones(len(cells)), cells.prod(axis=1), np.log2(cells[:, 0])], axis=1)
        both_vary = all(np.unique(column).size > 1 for column in cells.T)
        return both_vary and len(cells) >= _LEAST_CELLS and int(np.linalg.matrix_rank(design)) == 3

    def fit(self, tail: bool = False) -> tuple[_StepParts, float]:
        """Fit the model line or ``tail``, and return the parts of a step and the seconds of an evaluation."""
        parts: _StepParts = {}
        doublings = self.steps * np.log2(self.problems)
        for name, seconds in self.seconds.items():
            if name != EVALUATE:
                tail_columns = (doublings,) if tail and name == GENERATE else ()
                parts[name] = StepPart(*self._solve(seconds, self.steps, self.units, *tail_columns))
        rest = np.maximum(self.wall_s - sum(self.seconds.values(), np.zeros_like(self.wall_s)), 0.0)
        evaluations = self.seconds.get(EVALUATE, np.zeros_like(rest))
        tail_columns = (doublings,) if tail and not parts else ()
        a, b, c, *effects = self._solve(rest, self.steps, self.units, self.evaluations, *tail_columns)
        parts[REST if parts else WHOLE] = StepPart(a, b, *effects)
        return parts, c + (self._solve(evaluations, self.evaluations)[0] if evaluations.any() else 0.0)

    def _solve(self, seconds: Floats, *columns: Floats) -> list[float]:
        """Return the coefficients ≥ 0 of the columns.

        With only one batch size, T is proportional to k, and its coefficient is 0.
        """
        from scipy.optimize import nnls

        design = np.stack(columns, axis=1)
        if np.unique(self.batch).size == 1 and len(columns) > 1:
            design[:, 1] = 0.0
        solution, _ = nnls(design / self.wall_s[:, None], seconds / self.wall_s)
        return [float(value) for value in solution]

    def log_errors(self, parts: _StepParts, evaluation_s: float) -> tuple[NDArray[np.int64], Floats]:
        """Return the (B_p, n) of R runs and their log(measured / predicted seconds).

        The arrays have shapes (R, 2) and (R,).
        """
        a, b, c = (sum(part[i] for part in parts.values()) for i in range(3))
        steps = self.steps * (a + c * np.log2(self.problems))
        predicted = steps + b * self.units + evaluation_s * self.evaluations
        runs, first_rows, run_of_row = np.unique(self.run, return_index=True, return_inverse=True)
        totals = (np.bincount(run_of_row, column, len(runs)) for column in (predicted, self.wall_s))
        predicted_s, measured_s = totals
        with np.errstate(divide="ignore"):
            return self.cells[first_rows], np.log(measured_s) - np.log(np.maximum(predicted_s, 0.0))

    def effects(self, parts: _StepParts, evaluation_s: float) -> StepEffects:
        """Return the effect of each configuration: its error under the equation with these parts."""
        run_cells, errors = self.log_errors(parts, evaluation_s)
        cells, cell = np.unique(run_cells, axis=0, return_inverse=True)
        effects = np.array([np.median(errors[cell == index]) for index in range(len(cells))])
        # For normal errors, the standard deviation is 1.4826 times the median absolute deviation.
        repeats = np.abs(errors - effects[cell])[np.bincount(cell)[cell] > 1]
        spread = 1.4826 * float(np.median(repeats)) if repeats.size else 0.0
        return StepEffects(tuple((int(b), int(n)) for b, n in cells), tuple(map(float, effects)), spread)


class _Validation(NamedTuple):
    left_out: LeftOut
    error: float  # root mean square error over runs of the model that was kept


def _validate(intervals: _Intervals) -> _Validation:
    """Predict each configuration (or batch size) from all others with every model, and select the best."""
    groups = intervals.cells if intervals.is_separable else intervals.batch[:, None].astype(np.int64)
    models = ("line", "tail", "effects") if intervals.is_separable else ("line",)
    errors_by_model: dict[str, list[Floats]] = {model: [] for model in models}
    deviations: list[float] = []
    cells = np.unique(groups, axis=0)
    for cell in cells:
        is_left_out = (groups == cell).all(axis=1)
        training, test = intervals.subset(~is_left_out), intervals.subset(is_left_out)
        for model in models:
            fitted = training.fit(model != "line")
            errors = test.log_errors(*fitted)[1]
            if model == "effects":
                mean, deviation = training.effects(*fitted).at(*map(int, cell))
                errors = errors - mean
                deviations.append(deviation)
            errors_by_model[model].append(errors)
    medians = {model: np.array([np.median(e) for e in errors]) for model, errors in errors_by_model.items()}
    rms = {model: float(np.sqrt(np.mean(errors**2))) for model, errors in medians.items()}
    best = min(rms, key=lambda model: (round(rms[model], 6), list(rms).index(model)))
    error = float(np.sqrt(np.mean(np.concatenate(errors_by_model[best]) ** 2)))
    half_width = student(len(cells) - 1) * (np.array(deviations) if best == "effects" else error)
    distances = np.abs(medians[best])
    coverage = float(np.mean(distances <= half_width + 1e-9))
    return _Validation(LeftOut(best, len(cells), float(np.median(distances)), coverage, rms), error)
