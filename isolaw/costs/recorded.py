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
_LEAST = 3  # fewest batch sizes for cross-validation
_LEAST_CELLS = 6  # fewest configurations with independent B_p and n for the models tail and effects
APART_S = 5.0  # fewest seconds between two lines of a trainer's log that count; isolaw polls it every 0.25 s
_StepParts = dict[str, StepPart]


@dataclass(frozen=True)
class Timed:
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
    ) -> Timed:
        """Return the recorded times of a run from the lines of its ``points.jsonl``."""
        known = all(line["tokens"] is not None for line in lines)
        timed = [line.get("seconds") for line in lines]
        names = sorted({name for parts in timed for name in parts or ()}) if all(timed) else []
        machine: Mapping[str, Any] = next(
            (recorded for line in reversed(lines) if (recorded := line.get("machine"))), {}
        )
        return cls(
            run_id,
            b,
            n,
            np.array([line["step"] for line in lines], float),
            np.array([line["tokens"] for line in lines], float) if known else None,
            np.array([line["wall_s"] for line in lines], float),
            np.array([bool(line["rows"]) for line in lines]),
            {name: np.array([parts.get(name, 0.0) for parts in timed if parts]) for name in names},
            machine.get("gpus"),
            machine.get("gpu") or "",
            model,
        )

    @classmethod
    def of_trainer(cls, run_id: str, b: int, n: int, lines: Sequence[Mapping[str, Any]]) -> Timed | None:
        """Return the times of a run of the command backend, or None if fewer than two are known.

        isolaw uses the seconds of a step that the trainer logs. Without them, it uses the times at which
        steps appeared in the log while isolaw followed it. Log lines come in bursts, so lines less than
        `APART_S` after the last one are left out. A step of such a trainer includes its evaluation.
        """
        rows = [row for line in lines for row in line["rows"]]
        target = ("train", STEP_SECONDS)
        logged = [row["value"] for row in rows if (row["eval_set"], row["metric"]) == target]
        seen: list[Mapping[str, Any]] = []
        for line in lines:
            if "machine" in line and (not seen or line["wall_s"] >= seen[-1]["wall_s"] + APART_S):
                seen.append(line)
        gpus = next((line["machine"]["gpus"] for line in lines if "machine" in line), None)
        if logged:
            return cls.of_seconds(run_id, b, n, logged, gpus)
        if len(seen) < 2:
            return None
        step, wall_s = (np.array([line[name] for line in seen], float) for name in ("step", "wall_s"))
        return cls(run_id, b, n, step, None, wall_s, np.zeros(step.size, bool), {}, gpus)

    @classmethod
    def of_seconds(
        cls, run_id: str, b: int, n: int, seconds: Sequence[float], gpus: int | None = None, model: str = ""
    ) -> Timed:
        """Return the times of a run from the logged seconds of some of its steps.

        The seconds are summed as if the steps were consecutive.
        """
        step: Floats = np.arange(len(seconds) + 1, dtype=np.float64)
        wall_s: Floats = np.append(0.0, np.cumsum(seconds)).astype(np.float64)
        return cls(run_id, b, n, step, None, wall_s, np.zeros(step.size, bool), {}, gpus, model=model)


def of_runs(runs: Runs, where: str = "") -> Cost:
    """Return the cost of a step from a table of runs with ``wall_s``. The GPUs of the runs are unknown.

    For a run without ``wall_s``, isolaw uses the metric ``step_seconds``, which contains the seconds per step
    in its log.
    """
    points = runs.points.drop_duplicates(["run_id", "step"]).sort_values(["run_id", "step"])
    models = {run_id: str(attribute.get("model", "")) for run_id, attribute in runs.attributes.items()}
    told = runs.points[(runs.points["metric"] == STEP_SECONDS) & (runs.points["eval_set"] == "train")]
    counted = {run_id: rows["value"].to_numpy(float) for run_id, rows in told.groupby("run_id")}
    timed = []
    backends = {
        run_id: str(attribute["backend"])
        for run_id, attribute in runs.attributes.items()
        if "backend" in attribute
    }
    for backend in backends.values():  # a log without a backend is of a trainer
        check_backend(backend, where or runs.source)
    for run_id, rows in points.groupby("run_id"):
        b, n = (int(rows[name].iloc[0]) for name in ("problems_per_batch", "rollouts_per_problem"))
        # The clock of a command's runs is isolaw's, which reads several steps at once.
        if rows["wall_s"].isna().any() or traits(backends.get(run_id)).by_command:
            if (seconds := counted.get(run_id)) is not None:
                timed.append(Timed.of_seconds(str(run_id), b, n, seconds, model=models.get(run_id, "")))
            continue
        tokens = None if rows["tokens"].isna().any() else rows["tokens"].to_numpy(float)
        step, wall_s = rows["step"].to_numpy(float), rows["wall_s"].to_numpy(float)
        every = np.ones(step.size, bool)
        timed.append(Timed(str(run_id), b, n, step, tokens, wall_s, every, {}, model=models.get(run_id, "")))
    return fit(timed, where or runs.source)


def check_backend(backend: str, where: str) -> None:
    """Raise `DataError` for simulated or replayed runs, whose time is not the time of training a model."""
    if not traits(backend).trains:
        raise DataError(f"{where}: runs of backend {backend}; expected runs that train a model")


def fit(timed: Sequence[Timed], where: str) -> Cost:
    """Return the cost of a step from recorded runs; raise `DataError` if they recorded no time."""
    kinds = Counter({(run.gpus, run.gpu, run.model): 0 for run in timed})
    for run in timed:
        kinds[run.gpus, run.gpu, run.model] += int(run.step[-1] > run.step[0])
    if not timed or not any(kinds.values()):
        raise DataError(f"{where}: no run recorded the wall time of a step, so the cost of a step is unknown")
    chosen = max(kinds, key=lambda kind: kinds[kind])
    kept = [run for run in timed if (run.gpus, run.gpu, run.model) == chosen and run.step[-1] > run.step[0]]
    notes = []
    if others := sum(kinds.values()) - len(kept):
        notes.append(
            f"isolaw leaves out {others} of {others + len(kept)} runs, which are on other machines or of "
            "other models"
        )
    unit = "tokens" if all(run.tokens is not None for run in kept) else "rollouts"
    table = _Intervals.of(kept, unit)
    batches = sorted({run.batch for run in kept})
    configurations = sorted({(run.problems_per_batch, run.rollouts_per_problem) for run in kept})
    validated = _validate(table) if len(batches) >= _LEAST else None
    model = validated.kept.model if validated else "line"
    parts, evaluation_s = table.fitted(model != "line")
    effects = table.effects(parts, evaluation_s) if model == "effects" else None
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
        error=validated and validated.error,
        notes=tuple(notes),
        effects=effects,
        timed=tuple(configurations),
        left_out=validated and validated.kept,
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
    def of(cls, timed: Sequence[Timed], unit: str) -> _Intervals:
        """Return the intervals of runs. Parts of a step are used only if all runs recorded them."""
        names = (
            sorted({name for run in timed for name in run.seconds}) if all(r.seconds for r in timed) else []
        )
        columns: dict[str, list[Floats]] = {}
        for index, run in enumerate(timed):
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
        whole = {name: np.concatenate(values) for name, values in columns.items()}
        sound = (whole["wall_s"] > 0) & (whole["steps"] > 0)
        whole = {name: values[sound] for name, values in whole.items()}
        seconds = {name: whole.pop(f".{name}") for name in names}
        return cls(run=whole.pop("run").astype(np.int64), seconds=seconds, **whole)

    def only(self, kept: NDArray[np.bool_]) -> _Intervals:
        """Return the intervals that the mask ``kept`` selects."""
        columns = {name: values[kept] for name, values in vars(self).items() if name != "seconds"}
        return _Intervals(**columns, seconds={name: values[kept] for name, values in self.seconds.items()})

    @property
    def cells(self) -> NDArray[np.int64]:
        """The (B_p, n) of each interval's run, with one row per interval."""
        return np.stack([self.problems, self.batch / self.problems], axis=1).round().astype(np.int64)

    @property
    def apart(self) -> bool:
        """Whether B_p and n vary independently over enough configurations for the models tail and effects."""
        cells = np.unique(self.cells, axis=0)
        design = np.stack([np.ones(len(cells)), cells.prod(axis=1), np.log2(cells[:, 0])], axis=1)
        varied = all(np.unique(column).size > 1 for column in cells.T)
        return varied and len(cells) >= _LEAST_CELLS and int(np.linalg.matrix_rank(design)) == 3

    def fitted(self, tail: bool = False) -> tuple[_StepParts, float]:
        """Fit the model line or ``tail``, and return the parts of a step and the seconds of an evaluation."""
        parts: _StepParts = {}
        doublings = self.steps * np.log2(self.problems)
        for name, seconds in self.seconds.items():
            if name != EVALUATE:
                more = (doublings,) if tail and name == GENERATE else ()
                parts[name] = StepPart(*self._solved(seconds, self.steps, self.units, *more))
        rest = np.maximum(self.wall_s - sum(self.seconds.values(), np.zeros_like(self.wall_s)), 0.0)
        evaluations = self.seconds.get(EVALUATE, np.zeros_like(rest))
        more = (doublings,) if tail and not parts else ()
        a, b, c, *effects = self._solved(rest, self.steps, self.units, self.evaluations, *more)
        parts[REST if parts else WHOLE] = StepPart(a, b, *effects)
        return parts, c + (self._solved(evaluations, self.evaluations)[0] if evaluations.any() else 0.0)

    def _solved(self, seconds: Floats, *columns: Floats) -> list[float]:
        """Return the coefficients ≥ 0 of the columns.

        With only one batch size, T is proportional to k, and its coefficient is 0.
        """
        from scipy.optimize import nnls

        design = np.stack(columns, axis=1)
        if np.unique(self.batch).size == 1 and len(columns) > 1:
            design[:, 1] = 0.0
        solution, _ = nnls(design / self.wall_s[:, None], seconds / self.wall_s)
        return [float(value) for value in solution]

    def errors(self, parts: _StepParts, evaluation_s: float) -> tuple[NDArray[np.int64], Floats]:
        """Return the (B_p, n) of R runs and their log(measured / predicted seconds).

        The arrays have shapes (R, 2) and (R,).
        """
        a, b, c = (sum(part[i] for part in parts.values()) for i in range(3))
        steps = self.steps * (a + c * np.log2(self.problems))
        predicted = steps + b * self.units + evaluation_s * self.evaluations
        runs, first, of_row = np.unique(self.run, return_index=True, return_inverse=True)
        said, took = (np.bincount(of_row, column, len(runs)) for column in (predicted, self.wall_s))
        with np.errstate(divide="ignore"):
            return self.cells[first], np.log(took) - np.log(np.maximum(said, 0.0))

    def effects(self, parts: _StepParts, evaluation_s: float) -> StepEffects:
        """Return the effect of each configuration: its error under the equation with these parts."""
        of_run, errors = self.errors(parts, evaluation_s)
        places, of_row = np.unique(of_run, axis=0, return_inverse=True)
        seen = np.array([np.median(errors[of_row == place]) for place in range(len(places))])
        # For normal errors, the standard deviation is 1.4826 times the median absolute deviation.
        several = np.bincount(of_row)[of_row] > 1
        spread = 1.4826 * float(np.median(np.abs(errors - seen[of_row])[several])) if several.any() else 0.0
        return StepEffects(tuple((int(b), int(n)) for b, n in places), tuple(map(float, seen)), spread)


class _Validated(NamedTuple):
    kept: LeftOut
    error: float  # root mean square error over runs of the model that was kept


def _validate(table: _Intervals) -> _Validated:
    """Predict each configuration (or batch size) from all others with every model, and select the best."""
    groups = table.cells if table.apart else table.batch[:, None].astype(np.int64)
    names = ("line", "tail", "effects") if table.apart else ("line",)
    by_name: dict[str, list[Floats]] = {name: [] for name in names}
    deviations: list[float] = []
    places = np.unique(groups, axis=0)
    for place in places:
        left = (groups == place).all(axis=1)
        rest, held = table.only(~left), table.only(left)
        for name in names:
            fitted = rest.fitted(name != "line")
            errors = held.errors(*fitted)[1]
            if name == "effects":
                mean, deviation = rest.effects(*fitted).at(*map(int, place))
                errors = errors - mean
                deviations.append(deviation)
            by_name[name].append(errors)
    medians = {name: np.array([np.median(errors) for errors in of_part]) for name, of_part in by_name.items()}
    rms = {name: float(np.sqrt(np.mean(median**2))) for name, median in medians.items()}
    kept = min(rms, key=lambda name: (round(rms[name], 6), list(rms).index(name)))
    error = float(np.sqrt(np.mean(np.concatenate(by_name[kept]) ** 2)))
    half = student(len(places) - 1) * (np.array(deviations) if kept == "effects" else error)
    median = medians[kept]
    inside = float(np.mean(np.abs(median) <= half + 1e-9))
    return _Validated(LeftOut(kept, len(places), float(np.median(np.abs(median))), inside, rms), error)
