"""Prepare and resample learning curves of several model sizes, as input to the model-size law.

Runs of one size are averaged step by step, as in Tan et al. (arXiv 2509.25300). Each run also has a deviation
curve, which keeps the variation between runs:

    e(step) = (L − L̄ − s · ln(X / X̄)) / √(L̄ (1 − L̄))

where L is the run's loss at X, L̄ and X̄ are the means over runs of its size, and s is the slope of L̄ in ln
X, so losses are compared at the same X. The unit of e is the standard deviation of one answer. With m
problems, the error of an evaluation is thus 1/√m at any size. A draw of the model-size law shifts each mean
curve by

    √(L (1 − L) / R) · Σ_d h_d e_d / √ν · √(ν / χ²_ν),    h_d ~ N(0, 1)

The sum is over the deviations e_d of the runs of *all* sizes, which are assumed to vary equally in this unit.
R is the number of runs in the mean, and ν = runs − sizes is the number of degrees of freedom. The last
factor, drawn once per draw, turns normal intervals into Student's t intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.commands import Placeholder, option
from isolaw.errors import DataError, Refused, shown, unknown
from isolaw.evidence import Simulated
from isolaw.fits.selection import Floats
from isolaw.fits.surface.bootstrap import inflation

X = Literal["compute", "data"]

_LEAST_SIZES = 3
_LEAST_POINTS = 5
_LEAST_VARIANCE = 1e-6  # smallest variance of one answer, for steps at which all are right or all are wrong


@dataclass(frozen=True)
class SizeCurves:
    """The mean curve of each model size, and the deviations of single runs from it."""

    sizes: Floats  #: N in ascending order, in the table's unit, (S,)
    of: NDArray[np.int64]  #: index of each checkpoint's size, in ascending order, (P,)
    step: Floats  #: update steps, (P,)
    x: Floats  #: X, (P,)
    loss: Floats  #: L = 1 − pass@1, (P,)
    runs: Floats  #: number of runs that each checkpoint averages, (P,)
    deviations: list[tuple[Floats, Floats]]  #: steps and e of each run, for sizes with several runs
    freedom: int  #: degrees of freedom of the deviations: runs minus sizes
    x_name: X
    simulated: Simulated = Simulated.NO  #: whether a simulator made the runs, according to the table

    @classmethod
    def from_table(
        cls,
        table: pd.DataFrame,
        x: X = "compute",
        runs: pd.DataFrame | None = None,
        sources: tuple[str, str] = ("table", "runs"),
    ) -> SizeCurves:
        """Return the mean curves and deviations of the runs in a table.

        ``table`` has a row for each evaluation, with the columns ``model_size``, ``step``, ``x`` (``compute``
        or ``data``; rows with 0 are left out), and ``reward`` or ``loss`` = 1 − reward. The columns ``run``
        and ``runs`` (the number of runs that a row averages) are optional. If ``table`` contains only means,
        the argument ``runs`` is a table of the same form from which to take the deviations. ``sources``
        contains the names of the two tables for messages.

        Raises
        ------
        DataError
            a column is missing, a value is invalid, or an evaluation is repeated.
        Refused
            there are fewer than three sizes, or a size has fewer than five checkpoints.

        >>> step = np.arange(1, 7)
        >>> one = pd.DataFrame({"model_size": 1, "step": step, "data": 512 * step, "reward": 0.1})
        >>> table = pd.concat([one, one.assign(model_size=3), one.assign(model_size=9)])
        >>> SizeCurves.from_table(table, "data").sizes
        array([1., 3., 9.])
        """
        losses = _checked(table, x, sources[0])
        mean = losses.groupby(["model_size", "step"], as_index=False).agg(
            x=(x, "mean"), loss=("loss", "mean"), runs=("runs", "sum")
        )
        sizes, of = np.unique(mean["model_size"].to_numpy(), return_inverse=True)
        if len(sizes) < _LEAST_SIZES:
            raise Refused(
                f"model sizes {', '.join(f'{n:g}' for n in sizes)}: K(N) has two parameters, so "
                f"{_LEAST_SIZES} sizes are needed. Add runs of other sizes"
            )
        different = mean.groupby("model_size")["x"].nunique()
        if different.min() < _LEAST_POINTS:
            raise Refused(
                f"N = {different.idxmin():g} has checkpoints at {different.min()} different {x}; "
                f"{_LEAST_POINTS} are needed. Evaluate this size at more steps, or leave it out"
            )
        deviations, freedom = _deviations(losses if runs is None else _checked(runs, x, sources[1]), x)
        step, at, loss, count = (mean[name].to_numpy(np.float64) for name in ("step", "x", "loss", "runs"))
        simulated = Simulated.among(Simulated.of_table(part) for part in (table, runs) if part is not None)
        return cls(sizes, of, step, at, loss, count, deviations, freedom, x, simulated)


def _checked(table: pd.DataFrame, x: str, source: str) -> pd.DataFrame:
    """Return the required columns of a table as numbers: model_size, step, X, loss, run and runs."""
    outcome = "loss" if "loss" in table.columns else "reward"
    needed = ["model_size", "step", x, outcome] + ["runs"] * ("runs" in table.columns)
    for name in needed:
        if name not in table.columns:
            asked = "reward or loss" if name == "reward" else name
            text = unknown("column", asked, map(str, table.columns))
            raise DataError(
                f"{source}: {text}; map it with " + option("columns", name, Placeholder("column"))
            )
    out = table[needed].apply(pd.to_numeric, errors="coerce").astype(np.float64)
    for name in needed:
        good, expected = out[name].between(0.0, np.inf, "left"), "a number, not negative"
        if name == outcome:
            good, expected = out[name].between(0.0, 1.0), "a share from 0 to 1"
        elif name in ("model_size", "runs"):
            good, expected = out[name].between(0.0, np.inf, "neither"), "a positive number"
        if not good.all():
            row = f"{table.index.name or 'row'} {table.index[~good][0]}"
            value = str(table[name][~good].iloc[0])
            raise DataError(f"{source}: {row}: {name}: found {shown(value)}; expected {expected}")
    if outcome == "reward":
        out["loss"] = 1.0 - out["reward"]
    out["run"] = table["run"].astype(object) if "run" in table.columns else None
    if "runs" not in out.columns:
        out["runs"] = 1.0
    named = out["run"].notna() | ("run" not in table.columns)
    twice = out[named & out.duplicated(["model_size", "step", "run"], keep=False)]
    if len(twice):
        n, step = twice["model_size"].iloc[0], twice["step"].iloc[0]
        raise DataError(
            f"{source}: N = {n:g} has several rows of step {step:g}; if they are from different runs, name "
            "the column of the runs: " + option("columns", "run", Placeholder("column"))
        )
    return out[out[x] > 0]  # log X does not exist before the first step


def _deviations(table: pd.DataFrame, x: str) -> tuple[list[tuple[Floats, Floats]], int]:
    """Return each run's e at the steps that all runs of its size share, and the degrees of freedom."""
    out: list[tuple[Floats, Floats]] = []
    freedom = 0
    for _, rows in table[table["run"].notna()].groupby("model_size"):
        wide = rows.pivot(index="step", columns="run", values=["loss", x]).dropna()
        runs = wide["loss"].shape[1]
        if runs < 2 or len(wide) < _LEAST_POINTS:
            continue
        loss, log_x = wide["loss"].to_numpy(np.float64), np.log(wide[x].to_numpy(np.float64))
        mean, at = loss.mean(axis=1), log_x.mean(axis=1)
        along = np.polyfit(at, mean, 1)[0] * (log_x - at[:, None])
        e = (loss - mean[:, None] - along) / np.sqrt(np.maximum(mean * (1 - mean), _LEAST_VARIANCE))[:, None]
        steps = wide.index.to_numpy(np.float64)
        out += [(steps, e[:, run]) for run in range(runs)]
        freedom += runs - 1
    return out, freedom


def shifts(curves: SizeCurves, fitted: Floats, draws: int, seed: int) -> Floats:
    """Return the shift in L that each draw adds to the mean curves, as an array of shape (draws, P).

    ``fitted`` is the law's L at the P checkpoints, and ``seed`` is the seed of the draws. Some size needs
    several runs.
    """
    rng = np.random.default_rng(seed)
    wider = inflation(curves.freedom, draws, rng)[:, None]
    scale = np.sqrt(np.clip(fitted * (1.0 - fitted), 0.0, None) / (curves.runs * curves.freedom))
    out = np.empty((draws, fitted.size))
    for size in range(len(curves.sizes)):
        step = curves.step[curves.of == size]
        pairs = [_at_steps(step, *deviation) for deviation in curves.deviations]
        within, beyond = (np.array(part) for part in zip(*pairs, strict=True))
        h = rng.standard_normal((2, draws, len(pairs)))
        out[:, curves.of == size] = h[0] @ within + h[1] @ beyond
    return out * scale * wider


def _at_steps(step: Floats, known: Floats, e: Floats) -> tuple[Floats, Floats]:
    """Return a run's deviations at ``step`` in two parts: measured values, and values mirrored at the ends.

    The parts are drawn independently, since equal errors at several steps would cancel in K.
    """
    last = known.size - 1
    before, after = known[0] - step, step - known[-1]
    position = np.interp(step, known, np.arange(known.size))
    position = np.where(before > 0, before / (known[1] - known[0]), position)
    position = np.where(after > 0, last + after / (known[-1] - known[-2]), position)
    index = np.rint(position).astype(np.int64) % (2 * last)
    values = e[np.where(index > last, 2 * last - index, index)]
    measured = (before <= 0) & (after <= 0)
    return np.where(measured, values, 0.0), np.where(measured, 0.0, values)
