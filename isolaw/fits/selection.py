"""Select the runs that a fit uses, and group them into one `Configuration` for each (B_p, n).

``hold`` is the quantity that a law holds fixed:

    B_p        n varies                                          x = C
    B          B = B_p · n is fixed; n trades with B_p           x = M = C / B
    n          B_p varies and takes the place of n in the law    x = C
    nothing    B_p and n vary                                    x = C

C counts rollouts; tokens can replace it if the runs recorded them. isolaw rejects runs that differ
in any other setting (problem set, algorithm, lr, …) until one value is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.allocation import AxisName, Cell
from isolaw.commands import argument, option
from isolaw.errors import DataError, InputError, Refused, shown, unknown
from isolaw.evidence import number
from isolaw.fits.flags import Code, Flag, flags_with
from isolaw.runs import SYMBOL_OF, Runs, full_names, listed, plain

Floats = NDArray[np.float64]
Hold = Literal["B_p", "B", "n", "nothing"]
X = Literal["compute", "tokens"]
# The column that a law keeps fixed for each ``hold``.
COLUMN_OF_HOLD: dict[str, str] = {
    "B_p": "problems_per_batch",
    "B": "batch_rollouts",
    "n": "rollouts_per_problem",
}
LEAST_CURVES = 3
MACHINE_ATTRIBUTES = ("max_batch_rollouts", "framework")  # no settings of the training
LEAST_CHECKPOINTS = 5
_MOST_LISTED = 4


@dataclass(frozen=True)
class Configuration(Cell):
    """The checkpoints of all runs of one (B_p, n), grouped by run and in order of compute."""

    # Compute in rollouts (or tokens) and the metric at each checkpoint, (P,) each.
    compute: Floats
    reward: Floats
    run: NDArray[np.int64]  # index of the run that each checkpoint belongs to, from 0 to runs − 1, (P,)
    seeds: tuple[int, ...]  # the seed of each run, (runs,)
    # Cost of a step in the unit of ``compute``: B rollouts, or the mean cost in tokens.
    step_cost: float

    @property
    def runs(self) -> int:
        """The number of runs of this configuration."""
        return len(self.seeds)

    @cached_property
    def checkpoints(self) -> Floats:
        """The distinct values of compute at which runs were evaluated, in ascending order."""
        return np.unique(self.compute)

    @cached_property
    def log_checkpoints(self) -> Floats:
        """The logarithms of `checkpoints`. Step 0 counts as half the first positive compute."""
        first_positive = self.checkpoints[self.checkpoints > 0][0]
        return np.log(np.maximum(self.checkpoints, first_positive / 2))

    @cached_property
    def runs_at(self) -> Floats:
        """The number of runs that were evaluated at each of the `checkpoints`."""
        return np.unique(self.compute, return_counts=True)[1].astype(np.float64)

    @cached_property
    def mean(self) -> Floats:
        """The mean reward over runs at each of the `checkpoints`."""
        return np.asarray(np.bincount(self.index, self.reward) / self.runs_at)

    @cached_property
    def index(self) -> NDArray[np.int64]:
        """Index into `checkpoints` for each value of ``compute``."""
        return np.searchsorted(self.checkpoints, self.compute)

    def of_run(self, run: int) -> tuple[Floats, Floats]:
        """Return the compute and the rewards of one run's checkpoints."""
        is_run = self.run == run
        return self.compute[is_run], self.reward[is_run]

    @property
    def measured(self) -> tuple[float, float]:
        """The first and last measured compute. The first is 0 if step 0 was measured."""
        return float(self.compute.min()), float(self.compute.max())

    @property
    def end(self) -> float:
        """The compute up to which the last measured reward applies, one step after its checkpoint."""
        return self.measured[1] + self.step_cost

    def covers(self, compute: Floats) -> NDArray[np.bool_]:
        """Return a mask of the computes that are within this configuration's measured range."""
        return (compute >= self.measured[0] * (1 - 1e-9)) & (compute < self.end)


def varies_in_batch(log2_n: Floats, log2_b: Floats) -> bool:
    """Return whether B_p varies independently of n, which means that neither B_p nor B is constant."""
    return bool(np.unique(log2_b).size > 1 and np.unique((log2_n + log2_b).round(9)).size > 1)


@dataclass(frozen=True)
class Selection:
    """The configurations and runs that a fit uses, the values that it holds fixed, and flags about them."""

    metric: str
    eval_set: str
    hold: Hold
    x: X
    configurations: list[Configuration]
    fixed: dict[str, Any]
    epochs_seen: float | None
    n_train_problems: int | None
    run_ids: list[str]
    flags: list[Flag]
    diverged: tuple[Cell, ...] = ()  # configurations of which at least half of the runs diverged


def select(
    runs: Runs,
    metric: str,
    eval_set: str,
    hold: Hold,
    fixed: Mapping[str, Any] | None = None,
    x: X = "compute",
    allow_few: bool = False,
) -> Selection:
    """Select the runs of a hold (see the module's docstring).

    ``fixed`` selects runs by the values of columns or attributes, such as ``{"B_p": 32}`` or
    ``{"problems_per_batch": 32}``; ``batch_rollouts`` is B. ``x`` is the unit of a budget: ``compute``
    (rollouts) or ``tokens``. If ``allow_few``, one curve is enough.

    Raises
    ------
    DataError
        the runs lack the metric, evaluation set or ``x``, or differ in a setting that is not fixed.
    Refused
        there are too few curves; the message lists the runs to add.
    """
    if x != "compute" and hold == "B":
        raise InputError(f"x: found {shown(x)}; expected compute: where B is fixed the law is in steps")
    points = _with_x_as_compute(measured_points(runs, metric, eval_set), x, runs.source)
    table = runs.table().loc[lambda t: t.index.isin(points["run_id"].unique())]
    table["batch_rollouts"] = table["problems_per_batch"] * table["rollouts_per_problem"]
    flags = [Flag(Code.AS_READ, note) for note in runs.notes]
    fixed_at = full_names(fixed or {})
    table = all_runs = rows_with(table, fixed_at)
    held_column = COLUMN_OF_HOLD.get(hold)
    if held_column is not None and held_column not in fixed_at:
        fixed_at[held_column] = _choose_held_value(table, held_column, law_axis(hold), flags)
        table = table[table[held_column] == fixed_at[held_column]]
    for name in differing(table.drop(columns="batch_rollouts")):
        values = sorted({str(value) for value in table[name]})
        example = next(plain(value) for value in table[name] if str(value) == values[0])
        raise DataError(
            f"{runs.source}: the runs differ in {name} ({', '.join(values)}), but a law describes one value. "
            "Choose with " + option("where", name, example)
        )
    configurations = configurations_of(points, table, flags, x)
    diverged = _flag_diverged(runs, points, table, metric, eval_set, flags)
    if not allow_few:
        _refuse_too_few(configurations, hold, flags, all_runs)
    elif not configurations:
        raise Refused("no configuration has a curve: " + "; ".join(flag.text for flag in flags))
    epochs, problems = _epochs(configurations, table)
    shapes = {c.key for c in configurations}
    keys = table[["problems_per_batch", "rollouts_per_problem"]].itertuples(name=None)
    run_ids = [str(run_id) for run_id, *key in keys if tuple(key) in shapes]
    return Selection(
        metric, eval_set, hold, x, configurations, fixed_at, epochs, problems, run_ids, flags, diverged
    )


def _flag_diverged(
    runs: Runs, points: pd.DataFrame, table: pd.DataFrame, metric: str, eval_set: str, flags: list[Flag]
) -> tuple[Cell, ...]:
    """Flag the runs whose reward became NaN, in training or evaluation.

    Returns the configurations of which at least half of the runs diverged. They are the cause themselves,
    while the other runs of the remaining configurations show what the diverged ones would have reached.
    """
    diverged_points = runs.diverged
    is_reward = (diverged_points["metric"] == metric) & (diverged_points["eval_set"] == eval_set)
    is_reward |= (diverged_points["metric"] == "reward") & (diverged_points["eval_set"] == "train")
    has_diverged = table.index.isin(diverged_points["run_id"][is_reward])
    if not has_diverged.any():
        return ()
    last_steps = points.groupby("run_id")["step"].max()
    cells, descriptions = [], []
    table = table.assign(ended=has_diverged)
    for key, members in table.groupby(["problems_per_batch", "rollouts_per_problem"]):
        if count := int(members["ended"].sum()):
            cell, steps = Cell(*map(int, key)), last_steps[members.index[members["ended"]]]
            steps_text = f"step {steps.min()}" + (f" to {steps.max()}" if steps.min() < steps.max() else "")
            descriptions.append(f"{count} of {len(members)} runs of {cell.label}, after {steps_text}")
            cells += [cell] if 2 * count >= len(members) else []
    flags.append(Flag(Code.DIVERGED, f"the reward became NaN in {listed(descriptions, _MOST_LISTED, '; ')}"))
    return tuple(cells)


def differing(table: pd.DataFrame) -> list[str]:
    """Return the columns in which the runs differ, except B_p, n, seed and the limit on B_p · n.

    The list is empty for runs of one recipe.
    """
    table = table.drop(columns=["problems_per_batch", "rollouts_per_problem", "seed"])
    table = table.drop(columns=[*MACHINE_ATTRIBUTES], errors="ignore")
    return [str(name) for name in table.columns if table[name].astype(str).nunique() > 1]


def measured_points(runs: Runs, metric: str, eval_set: str) -> pd.DataFrame:
    """Return the rows of one metric on one evaluation set.

    If there are none, raise a `DataError` that lists the existing metrics or sets.
    """
    points = runs.points
    eval_sets = sorted(points["eval_set"].unique())
    if eval_set not in eval_sets:
        raise DataError(f"{runs.source}: {unknown('evaluation set', eval_set, eval_sets, 'there are')}")
    metrics = runs.metrics(eval_set)
    if metric not in metrics:
        raise DataError(f"{runs.source}: {eval_set!r} has {unknown('metric', metric, metrics, 'there are')}")
    return points[(points["eval_set"] == eval_set) & (points["metric"] == metric)]


def _with_x_as_compute(points: pd.DataFrame, x: X, source: str) -> pd.DataFrame:
    """Return the points with ``x`` in place of compute. Step 0 has a cost of 0."""
    if x == "compute":
        return points
    values = points[x].astype("Float64").mask(points["step"] == 0, 0.0)
    if values.isna().any():
        point = points.loc[values.isna().idxmax()]
        raise DataError(f"{source}: {x} was not recorded in run {point['run_id']!r}, step {point['step']}")
    points = points.assign(compute=values.astype(np.float64)).sort_values(["run_id", "step"])
    is_same_run = points["run_id"].eq(points["run_id"].shift())
    decreases = is_same_run & ~(points["compute"] > points["compute"].shift())
    if decreases.any():
        point = points.loc[decreases.idxmax()]
        raise DataError(f"{source}: {x} does not grow at step {point['step']} of run {point['run_id']!r}")
    return points


def rows_with(table: pd.DataFrame, values: dict[str, Any]) -> pd.DataFrame:
    """Return the runs of ``table`` with these ``values`` of columns.

    The values are replaced with the table's, which have the right type.
    """
    for name, value in values.items():
        if name not in table.columns:
            missing = unknown("column", name, table.columns, "there are")
            raise DataError(option("where", name, value) + f": {missing}")
        matching = table[table[name].map(lambda v, value=value: v == value or str(v) == str(value))]
        if matching.empty:
            present = sorted(
                table[name].unique(), key=lambda v: (0, v) if isinstance(v, Real) else (1, str(v))
            )
            existing = ", ".join(map(str, present))
            raise DataError(option("where", name, value) + f": no run has it; existing values: {existing}")
        table = matching
        values[name] = plain(table[name].iloc[0])
    return table


def usual_hold(runs: Runs, where: Mapping[str, Any] | None = None) -> Hold:
    """Choose ``hold`` for a law of these runs, from how B_p and n vary among the runs that ``where`` selects.

    The result is ``B_p`` if all runs share B_p, ``B`` if all runs share B = B_p · n, and otherwise
    ``nothing``.
    """
    table, filters = runs.table(), full_names(where or {})
    table["batch_rollouts"] = table["problems_per_batch"] * table["rollouts_per_problem"]
    table = rows_with(table, {name: value for name, value in filters.items() if name in table})
    if table["problems_per_batch"].nunique() == 1:
        return "B_p"
    return "B" if table["batch_rollouts"].nunique() == 1 else "nothing"


def law_axis(hold: Hold) -> AxisName:
    """Return the axis of a law with this ``hold``: n, or B_p."""
    return "problems_per_batch" if hold == "n" else "rollouts_per_problem"


def _choose_held_value(table: pd.DataFrame, axis: str, level_axis: AxisName, flags: list[Flag]) -> int:
    """Return the value of ``axis`` with the most n (or B_p); ties go to the smallest value."""
    counts = table.groupby(axis)[level_axis].nunique()
    best = int(counts[counts == counts.max()].index.min())
    if others := [str(level) for level in counts.index if level != best]:
        reason = f"it has the most {SYMBOL_OF[level_axis]}"
        text = f"isolaw chose {axis} = {best}, since {reason}; other values are {', '.join(others)}"
        flags.append(Flag(Code.AXIS_CHOSEN, text))
    return best


def configurations_of(
    points: pd.DataFrame,
    table: pd.DataFrame,
    flags: list[Flag],
    x: X = "compute",
    least: int = LEAST_CHECKPOINTS,
) -> list[Configuration]:
    """Return one `Configuration` for each (B_p, n) of ``table``, which has one row per run.

    Configurations with fewer than ``least`` checkpoints are left out and flagged.
    """
    configurations = []
    points = points.sort_values(["run_id", "compute"])
    run_ids, starts = np.unique(points["run_id"].to_numpy(str), return_index=True)
    columns = {name: points[name].to_numpy(np.float64) for name in ("compute", "value", "step")}
    ends = [*starts[1:].tolist(), len(points)]
    curves_by_run = {
        run_id: {name: values[start:end] for name, values in columns.items()}
        for run_id, start, end in zip(run_ids.tolist(), starts.tolist(), ends, strict=True)
    }
    table = table.sort_values("seed", kind="stable")
    for (b, n), cell_runs in table.groupby(["problems_per_batch", "rollouts_per_problem"]):
        cell_runs = _without_copies(cell_runs, curves_by_run, f"n = {n}", flags)
        curves = [curves_by_run[run_id] for run_id in cell_runs.index]
        step_cost = float(b * n)  # does not depend on how steps are numbered
        if x != "compute":
            spent, steps = (sum(curve[name][-1] for curve in curves) for name in ("compute", "step"))
            step_cost = float(spent / max(steps, 1))
        compute, reward = (np.concatenate([curve[name] for curve in curves]) for name in ("compute", "value"))
        run_index = np.repeat(np.arange(len(curves)), [curve["value"].size for curve in curves])
        seeds = tuple(int(seed) for seed in cell_runs["seed"])
        configuration = Configuration(int(b), int(n), compute, reward, run_index, seeds, step_cost)
        if (checkpoints := configuration.checkpoints.size) < least:
            text = f"isolaw leaves out {configuration.label}: it has {checkpoints} checkpoints, and a curve "
            flags.append(Flag(Code.LEFT_OUT, f"{text}needs {least}"))
        else:
            configurations.append(configuration)
    return configurations


def _without_copies(
    cell_runs: pd.DataFrame, curves_by_run: Mapping[str, Mapping[str, Floats]], label: str, flags: list[Flag]
) -> pd.DataFrame:
    """Drop exact copies of runs, since one log under two seeds would show no variation between runs."""
    first_ids: dict[bytes, str] = {}
    for run_id in cell_runs.index:
        curve = curves_by_run[run_id]
        first_ids.setdefault(curve["compute"].tobytes() + curve["value"].tobytes(), run_id)
    if len(first_ids) == len(cell_runs):
        return cell_runs
    copies = len(cell_runs) - len(first_ids)
    text = f"{label}: {copies} runs are exact copies of others; isolaw counts them once"
    flags.append(Flag(Code.COPIES, text))
    return cell_runs.loc[list(first_ids.values())]


def _refuse_too_few(
    configurations: list[Configuration], hold: Hold, flags: list[Flag], table: pd.DataFrame
) -> None:
    axis = law_axis(hold)
    symbol = SYMBOL_OF[axis]
    levels = sorted({c.level(axis) for c in configurations})
    if len(levels) < LEAST_CURVES:
        column = COLUMN_OF_HOLD.get(hold)
        where = f" at the same {SYMBOL_OF.get(column, 'B = B_p · n')}" if column else ""
        level_text = ", ".join(map(str, levels)) or "none"
        raise Refused(
            f"{symbol}*(C) needs at least three values of {symbol}{where}; found {len(levels)} ({symbol} = "
            f"{level_text}). Add runs with other {symbol}"
            + _hold_hint(table, hold)
            + "".join(f" ({flag.text})" for flag in flags_with(flags, Code.LEFT_OUT))
        )
    edges = np.unique([end for c in configurations for end in c.measured])
    is_covered = np.array([c.covers(edges) for c in configurations])
    cell_levels = np.array([c.level(axis) for c in configurations])
    if max(np.unique(cell_levels[mask]).size for mask in is_covered.T) < LEAST_CURVES:
        ranges = "; ".join(
            f"{c.label}: {number(c.measured[0])} to {number(c.measured[1])}" for c in configurations
        )
        raise Refused(
            f"no three values of {symbol} were evaluated at the same compute ({ranges}). Train the smaller "
            f"{symbol} for more steps, or evaluate the larger {symbol} earlier"
        )


def _hold_hint(table: pd.DataFrame, hold: Hold) -> str:
    """Return a hint at a hold that fits these runs, or an empty string if there is none."""
    one_n = table["rollouts_per_problem"].nunique() == 1
    if one_n and hold != "n" and table["problems_per_batch"].nunique() >= LEAST_CURVES:
        return ", or use " + argument("hold", "n")
    return ", or use " + argument("hold", "nothing") if hold in ("B", "n") and not one_n else ""


def _epochs(configurations: list[Configuration], table: pd.DataFrame) -> tuple[float | None, int | None]:
    """Return the largest number of passes over the training problems, and the number of problems.

    Both values are None if the runs did not record the number of problems.
    """
    if "n_train_problems" not in table.columns or table["n_train_problems"].isna().any():
        return None, None
    value = table["n_train_problems"].iloc[0]
    problem_count = pd.to_numeric(value, errors="coerce")
    if not problem_count >= 1:
        text = repr(value) if isinstance(value, str) else value  # show the value, not the type, of numbers
        raise DataError(f"n_train_problems: found {text}; expected a positive number of problems")
    visits = max(c.measured[1] / c.step_cost * c.problems_per_batch for c in configurations)
    return visits / int(problem_count), int(problem_count)
