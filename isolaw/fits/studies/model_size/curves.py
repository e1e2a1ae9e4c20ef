"""Learning curves of several model sizes, as the model-size law wants them (`law`).

Runs of one size are averaged step by step, as Tan et al. (arXiv 2509.25300) do. How runs differ is kept
beside it: for each run the curve

    e(step) = (L − L̄ − s · ln(X / X̄)) / √(L̄ (1 − L̄))

which is its distance from the mean L̄ of its size's runs (at the same X: s is the mean curve's slope in ln X),
in units of the standard deviation of one answer. In that unit sizes are comparable: evaluations on m
problems alone would give 1/√m.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.errors import DataError, Refused, unknown

Floats = NDArray[np.float64]
X = Literal["compute", "data"]

_LEAST_SIZES = 3
_LEAST_POINTS = 5
_LEAST_VARIANCE = 1e-6  # of one answer, where all are right or all are wrong


@dataclass(frozen=True)
class SizeCurves:
    """The mean curve of each model size, and how single runs differ from theirs.

    Attributes
    ----------
    sizes
        N, ascending, (S,), in the table's unit.
    of
        which size a checkpoint belongs to, (P,), ascending.
    step, x, loss, runs
        of each checkpoint, (P,): update step, X, L = 1 − pass@1 and how many runs it is the mean of.
    deviations
        for each run that has others beside it: its steps and e there.
    freedom
        degrees of freedom of the deviations: runs less sizes.
    x_name
        ``compute`` or ``data``.
    """

    sizes: Floats
    of: NDArray[np.int64]
    step: Floats
    x: Floats
    loss: Floats
    runs: Floats
    deviations: list[tuple[Floats, Floats]]
    freedom: int
    x_name: X

    @classmethod
    def from_table(
        cls,
        table: pd.DataFrame,
        x: X = "compute",
        runs: pd.DataFrame | None = None,
        sources: tuple[str, str] = ("table", "runs"),
    ) -> SizeCurves:
        """Average a table's runs.

        Parameters
        ----------
        table
            a row for each evaluation: ``model_size``, ``step``, ``compute`` or ``data``, ``reward`` or
            ``loss`` = 1 − reward; where it has them also ``run`` (empty where unknown) and ``runs`` (how
            many a row is the mean of).
        x
            the column that is X; rows with X = 0 stay out.
        runs
            another table of this form, whose runs give the deviations (for means without runs).
        sources
            what messages call the two.

        Raises
        ------
        DataError
            a column is missing, a value is not usable, or an evaluation is repeated.
        Refused
            fewer than three sizes, or a size with fewer than five checkpoints.

        >>> step = np.arange(1, 7)
        >>> one = pd.DataFrame({"model_size": 1, "step": step, "data": 512 * step, "reward": 0.1})
        >>> table = pd.concat([one, one.assign(model_size=3), one.assign(model_size=9)])
        >>> SizeCurves.from_table(table, "data").sizes
        array([1., 3., 9.])
        """
        own = _checked(table, x, sources[0])
        mean = own.groupby(["model_size", "step"], as_index=False).agg(
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
                f"{_LEAST_POINTS} are needed. Evaluate it at more steps, or leave the size out"
            )
        deviations, freedom = _deviations(own if runs is None else _checked(runs, x, sources[1]), x)
        step, at, loss, count = (mean[name].to_numpy(np.float64) for name in ("step", "x", "loss", "runs"))
        return cls(sizes, of, step, at, loss, count, deviations, freedom, x)


def _checked(table: pd.DataFrame, x: str, source: str) -> pd.DataFrame:
    """Return the columns that are used, as numbers: model_size, step, X, loss, run, runs."""
    outcome = "loss" if "loss" in table.columns else "reward"
    needed = ["model_size", "step", x, outcome] + ["runs"] * ("runs" in table.columns)
    for name in needed:
        if name not in table.columns:
            asked = "reward or loss" if name == "reward" else name
            said = unknown("column", asked, map(str, table.columns))
            raise DataError(f"{source}: {said}; map it with --column {name}=<column>")
    out = table[needed].apply(pd.to_numeric, errors="coerce").astype(np.float64)
    for name in needed:
        good, accepted = np.isfinite(out[name]) & (out[name] >= 0), "a number, not negative"
        if name == outcome:
            good, accepted = out[name].between(0.0, 1.0), "a share from 0 to 1"
        elif name in ("model_size", "runs"):
            good, accepted = good & (out[name] > 0), "a positive number"
        if not good.all():
            row = f"{table.index.name or 'row'} {table.index[~good][0]}"
            found = str(table[name][~good].iloc[0])
            raise DataError(f"{source}: {name} in {row}: found {found!r}; accepted: {accepted}")
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
            f"{source}: N = {n:g} has several rows of step {step:g}; if they are different runs, name the "
            "column that tells them apart: --column run=<column>"
        )
    return out[out[x] > 0]  # before the first step there is no log X


def _deviations(table: pd.DataFrame, x: str) -> tuple[list[tuple[Floats, Floats]], int]:
    """Return each run's e at the steps that all runs of its size have, and the degrees of freedom."""
    out: list[tuple[Floats, Floats]] = []
    freedom = 0
    for _, own in table[table["run"].notna()].groupby("model_size"):
        wide = own.pivot(index="step", columns="run", values=["loss", x]).dropna()
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
