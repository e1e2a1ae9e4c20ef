"""Fit the model-size law: how fast models of different size N learn (Tan et al., arXiv 2509.25300).

    log10 L = −K(N) · log10 X + E(N),    K(N) = K_max / (1 + N0 / N),    L = 1 − pass@1

X is compute (in FLOPs, 6 N T, where T is the number of tokens trained on) or data (prompts). K_max is the
exponent of an infinitely large model, and N0 is the size at which K is half of K_max. E(N) is free for each
size. Runs of one size are averaged step by step, and the fit minimises squared error in L, as the authors do.
Every size has the same weight, regardless of its number of checkpoints. Without saturation, K_max and N0
diverge together while the largest size's exponent κ = K(N_m) does not, so the fit searches κ, N0 and E(N):

    K(N) = κ (1 + N0 / N_m) / (1 + N0 / N)

Intervals come from resampling with the run as the unit. Each run has a deviation curve,

    e(step) = (L − L̄ − s · ln(X / X̄)) / √(L̄ (1 − L̄))

where L is the run's loss at X, L̄ and X̄ are the means over runs of its size, and s is the slope of L̄ in ln
X, so losses are compared at the same X. The unit of e is the standard deviation of one answer. With m
problems, the error of an evaluation is thus 1/√m at any size. A draw shifts each mean curve by

    √(L (1 − L) / R) · Σ_d h_d e_d / √ν · √(ν / χ²_ν),    h_d ~ N(0, 1)

and repeats the whole fit. The sum is over the deviations e_d of the runs of *all* sizes, which are assumed to
vary equally in this unit. R is the number of runs in the mean, and ν = runs − sizes is the number of degrees
of freedom. The last factor, drawn once per draw, turns normal intervals into Student's t intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.arguments import checked
from isolaw.commands import Placeholder, option
from isolaw.errors import DataError, Refused, shown, unknown
from isolaw.evidence import Quantity, Simulated, estimated
from isolaw.fits.curves.bootstrap import inflation
from isolaw.fits.document.codec import encoded
from isolaw.fits.flags import Code, Flag
from isolaw.fits.selection import Floats

X = Literal["compute", "data"]

_LEAST_SIZES = 3
_LEAST_POINTS = 5
_LEAST_VARIANCE = 1e-6  # smallest variance of one answer, for steps at which all are right or all are wrong
_LEAST_EXPONENT = 1e-9  # smaller exponents are rounding error
_N0_MARGIN = 30.0  # how far N0 is searched below and above the sizes
_MOST_DECADES = 100.0  # limit on the change of a fitted curve over a size's checkpoints, and on its level
_FIRST_KAPPA = 0.05
_LN10, _TINY = float(np.log(10.0)), 1e-12


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
    @checked
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
        losses = _numbers(table, x, sources[0])
        means = losses.groupby(["model_size", "step"], as_index=False).agg(
            x=(x, "mean"), loss=("loss", "mean"), runs=("runs", "sum")
        )
        sizes, size_index = np.unique(means["model_size"].to_numpy(), return_inverse=True)
        if len(sizes) < _LEAST_SIZES:
            raise Refused(
                f"model sizes {', '.join(f'{n:g}' for n in sizes)}: K(N) has two parameters, so "
                f"{_LEAST_SIZES} sizes are needed. Add runs of other sizes"
            )
        x_counts = means.groupby("model_size")["x"].nunique()
        if x_counts.min() < _LEAST_POINTS:
            raise Refused(
                f"N = {x_counts.idxmin():g} has checkpoints at {x_counts.min()} different {x}; "
                f"{_LEAST_POINTS} are needed. Evaluate this size at more steps, or leave it out"
            )
        deviations, freedom = _deviations(losses if runs is None else _numbers(runs, x, sources[1]), x)
        step, mean_x, loss, counts = (means[name].to_numpy(float) for name in ("step", "x", "loss", "runs"))
        simulated = Simulated.among(Simulated.of_table(frame) for frame in (table, runs) if frame is not None)
        return cls(sizes, size_index, step, mean_x, loss, counts, deviations, freedom, x, simulated)


def _numbers(table: pd.DataFrame, x: str, source: str) -> pd.DataFrame:
    """Return the required columns of a table as numbers: model_size, step, X, loss, run and runs."""
    outcome_column = "loss" if "loss" in table.columns else "reward"
    positive = (0.0, np.inf, "neither", "a positive number")
    allowed_ranges = dict.fromkeys(("model_size", "runs"), positive)
    allowed_ranges |= dict.fromkeys(("step", x), (0.0, np.inf, "left", "a number, not negative"))
    allowed_ranges[outcome_column] = (0.0, 1.0, "both", "a share from 0 to 1")
    columns = ["model_size", "step", x, outcome_column] + ["runs"] * ("runs" in table.columns)
    for name in columns:
        if name not in table.columns:
            text = unknown("column", "reward or loss" if name == "reward" else name, map(str, table.columns))
            raise DataError(
                f"{source}: {text}; map it with " + option("columns", name, Placeholder("column"))
            )
    numbers = table[columns].apply(pd.to_numeric, errors="coerce").astype(np.float64)
    for name in columns:
        low, high, inclusive, expected = allowed_ranges[name]
        is_valid = numbers[name].between(low, high, inclusive)  # type: ignore[arg-type]
        if not is_valid.all():
            row = f"{table.index.name or 'row'} {table.index[~is_valid][0]}"
            value = shown(str(table[name][~is_valid].iloc[0]))
            raise DataError(f"{source}: {row}: {name}: found {value}; expected {expected}")
    if outcome_column == "reward":
        numbers["loss"] = 1.0 - numbers["reward"]
    numbers["run"] = table["run"].astype(object) if "run" in table.columns else None
    if "runs" not in numbers.columns:
        numbers["runs"] = 1.0
    has_run_id = numbers["run"].notna() | ("run" not in table.columns)
    repeats = numbers[has_run_id & numbers.duplicated(["model_size", "step", "run"], keep=False)]
    if len(repeats):
        n, step = repeats["model_size"].iloc[0], repeats["step"].iloc[0]
        raise DataError(
            f"{source}: N = {n:g} has several rows of step {step:g}; if they are from different runs, name "
            "the column of the runs: " + option("columns", "run", Placeholder("column"))
        )
    return numbers[numbers[x] > 0]  # log X does not exist before the first step


def _deviations(table: pd.DataFrame, x: str) -> tuple[list[tuple[Floats, Floats]], int]:
    """Return each run's e at the steps that all runs of its size share, and the degrees of freedom."""
    deviations: list[tuple[Floats, Floats]] = []
    freedom = 0
    for _, size_table in table[table["run"].notna()].groupby("model_size"):
        shared_steps = size_table.pivot(index="step", columns="run", values=["loss", x]).dropna()
        run_count = shared_steps["loss"].shape[1]
        if run_count < 2 or len(shared_steps) < _LEAST_POINTS:
            continue
        loss, log_x = shared_steps["loss"].to_numpy(np.float64), np.log(shared_steps[x].to_numpy(np.float64))
        mean, mean_log_x = loss.mean(axis=1), log_x.mean(axis=1)
        shift = np.polyfit(mean_log_x, mean, 1)[0] * (log_x - mean_log_x[:, None])
        e = (loss - mean[:, None] - shift) / np.sqrt(np.maximum(mean * (1 - mean), _LEAST_VARIANCE))[:, None]
        steps = shared_steps.index.to_numpy(np.float64)
        deviations += [(steps, e[:, run]) for run in range(run_count)]
        freedom += run_count - 1
    return deviations, freedom


def _shifts(curves: SizeCurves, fitted: Floats, draws: int, seed: int) -> Floats:
    """Return the shift in L that each draw adds to the mean curves, as an array of shape (draws, P).

    ``fitted`` is the law's L at the P checkpoints. Some size needs several runs.
    """
    rng = np.random.default_rng(seed)
    t_factor = inflation(curves.freedom, draws, rng)[:, None]
    scale = np.sqrt(np.clip(fitted * (1.0 - fitted), 0.0, None) / (curves.runs * curves.freedom))
    shifts = np.empty((draws, fitted.size))
    for index in range(len(curves.sizes)):
        steps = curves.step[curves.of == index]
        deviation_pairs = [_deviations_at(steps, *deviation) for deviation in curves.deviations]
        measured, mirrored = (np.array(deviations) for deviations in zip(*deviation_pairs, strict=True))
        h = rng.standard_normal((2, draws, len(deviation_pairs)))
        shifts[:, curves.of == index] = h[0] @ measured + h[1] @ mirrored
    return shifts * scale * t_factor


def _deviations_at(steps: Floats, run_steps: Floats, e: Floats) -> tuple[Floats, Floats]:
    """Return a run's deviations at ``steps`` in two parts: measured values, and values mirrored at the ends.

    The parts are drawn independently, since equal errors at several steps would cancel in K.
    """
    last = run_steps.size - 1
    gap_before, gap_after = run_steps[0] - steps, steps - run_steps[-1]
    position = np.interp(steps, run_steps, np.arange(run_steps.size))
    position = np.where(gap_before > 0, gap_before / (run_steps[1] - run_steps[0]), position)
    position = np.where(gap_after > 0, last + gap_after / (run_steps[-1] - run_steps[-2]), position)
    index = np.rint(position).astype(np.int64) % (2 * last)
    values = e[np.where(index > last, 2 * last - index, index)]
    is_measured = (gap_before <= 0) & (gap_after <= 0)
    return np.where(is_measured, values, 0.0), np.where(is_measured, 0.0, values)


class _Fits(NamedTuple):
    """D fits. ln N0 and the objective have shape (D,); K(N) and E(N) have shape (D, S)."""

    log_n0: Floats
    K: Floats
    E: Floats
    sse: Floats


@dataclass(frozen=True)
class SizeLaw:
    """A fitted law of the loss L as a function of the model size N and of compute or data X."""

    curves: SizeCurves
    fits: _Fits  # the estimate, followed by D draws

    @cached_property
    def N0(self) -> Quantity:
        """The size at which K(N) is half of K_max, in the unit of N."""
        at_zero = self.fits.log_n0 <= _log_n0_bounds(self.curves.sizes)[0]
        quantity = self._if_saturating(np.where(at_zero, 0.0, np.exp(self.fits.log_n0)))
        return Quantity(0.0, quantity.interval, "upper_bound") if at_zero[0] else quantity

    @cached_property
    def K_max(self) -> Quantity:
        """K_max, the exponent of an infinitely large model."""
        return self._if_saturating(
            self.fits.K[:, -1] * (1 + np.exp(self.fits.log_n0) / self.curves.sizes[-1])
        )

    @cached_property
    def K(self) -> dict[float, Quantity]:
        """The exponent K(N) of each fitted model size N."""
        return {float(n): estimated(k) for n, k in zip(self.curves.sizes, self.fits.K.T, strict=True)}

    @cached_property
    def E(self) -> dict[float, Quantity]:
        """The offset E(N), in log10 L, of each fitted model size N."""
        return {float(n): estimated(e) for n, e in zip(self.curves.sizes, self.fits.E.T, strict=True)}

    def _if_saturating(self, values: Floats) -> Quantity:
        """Return a quantity that diverges with N0, with its status.

        If the estimate of N0 is at the upper end of its search range, the quantity is unknown. If only draws
        are, it is a lower bound.
        """
        values = np.where(self.fits.log_n0 >= _log_n0_bounds(self.curves.sizes)[1], np.inf, values)
        if not np.isfinite(values[0]):
            return Quantity(None, None, "not_identified")
        quantity = estimated(values)
        if quantity.interval is not None and quantity.interval[1] is None:
            return Quantity(quantity.value, quantity.interval, "lower_bound")
        return quantity

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data, with every estimate as value, interval and status."""
        return {
            "format": "isolaw.size/1",
            "simulated": self.curves.simulated.json,
            "x": self.curves.x_name,
            "checkpoints": int(self.curves.x.size),
            "sse": float(self.fits.sse[0]),
            "params": encoded({"K_max": self.K_max, "N0": self.N0}),
            "sizes": encoded([{"model_size": n, "K": self.K[n], "E": self.E[n]} for n in self.K]),
            "warnings": [flag.text for flag in self.flags],
        }

    @property
    def flags(self) -> list[Flag]:
        """The reasons for care with the fitted law."""
        flags, (low, high), text = [], _log_n0_bounds(self.curves.sizes), ""
        if self.fits.log_n0[0] >= high:
            text = (
                f"K(N) grows in proportion to N up to N = {self.curves.sizes[-1]:g}: the runs show no "
                "saturation, so K_max and N0 are not identified. Add runs of larger models"
            )
        elif self.fits.log_n0[0] <= low:
            text = "K(N) is the same for all sizes: N0 may be 0. Add runs of smaller models"
        elif "lower_bound" in (self.N0.status, self.K_max.status):
            text = "N0 and K_max have no upper bound. Add runs of larger models, or more runs of each size"
        if text:
            flags.append(Flag(Code.UNSATURATED, text))
        if not self.curves.freedom:
            text = "no size has two runs, so there are no intervals. Add the column run"
            flags.append(Flag(Code.ONE_SEED, text))
        return flags


@checked
def fit_sizes(curves: SizeCurves, draws: int = 400, seed: int = 0) -> SizeLaw:
    """Fit the model-size law to three or more sizes.

    ``draws`` is the number of draws, and ``seed`` is their seed. Raise `Refused` if the reward does not rise
    with X.

    >>> N, step = np.repeat([1.0, 4.0, 16.0, 64.0], 20), np.tile(np.arange(1.0, 21.0), 4)
    >>> L = 10 ** (-0.15 / (1 + 17 / N) * np.log10(512 * step))
    >>> table = pd.DataFrame({"model_size": N, "step": step, "data": 512 * step, "loss": L})
    >>> law = fit_sizes(SizeCurves.from_table(table, "data"), draws=0)
    >>> round(law.K_max.value, 6), round(law.N0.value, 4)
    (0.15, 17.0)
    """
    levels = np.log10(np.maximum(_size_means(curves, curves.loss), _TINY))
    log_n0_starts = np.linspace(*_log_n0_bounds(curves.sizes), 9)[1:-1]
    candidates = [_descend(curves, curves.loss, np.array([_FIRST_KAPPA, v, *levels])) for v in log_n0_starts]
    estimate = min(candidates, key=lambda optimum: float(optimum.cost))
    if estimate.x[0] <= _LEAST_EXPONENT:
        raise Refused(
            f"reward does not rise with {curves.x_name}: no learning speed to fit. Add later checkpoints"
        )
    optima = [estimate]
    if draws and curves.freedom:
        weight = _root_weights(curves)
        shifts = _shifts(curves, curves.loss + estimate.fun / weight, draws, seed)
        optima += [_descend(curves, curves.loss + shift, estimate.x) for shift in shifts]
    kappa, log_n0, *levels_of_size = np.array([optimum.x for optimum in optima]).T
    K = kappa[:, None] * _relative_exponents(log_n0[:, None], curves.sizes)[0]
    E = np.stack(levels_of_size, axis=1) + K * _size_means(curves, np.log10(curves.x))
    return SizeLaw(curves, _Fits(log_n0, K, E, 2 * np.array([optimum.cost for optimum in optima])))


def _log_n0_bounds(sizes: Floats) -> tuple[float, float]:
    """Return the search range of ln N0.

    Below this range, all sizes have the same K within 3 %; above it, K ∝ N within 3 %.
    """
    return float(np.log(sizes[0] / _N0_MARGIN)), float(np.log(sizes[-1] * _N0_MARGIN))


def _relative_exponents(log_n0: Any, sizes: Floats) -> tuple[Floats, Floats]:
    """Return K / κ and its derivative in ln N0 at the ascending ``sizes`` (S,)."""
    n0, largest = np.exp(log_n0), sizes[-1]
    relative = (1 + n0 / largest) / (1 + n0 / sizes)
    return relative, relative * (n0 / (largest + n0) - n0 / (sizes + n0))


def _size_means(curves: SizeCurves, values: Floats) -> Floats:
    """Return the mean of ``values`` (P,) over the checkpoints of each size, with shape (S,)."""
    return np.asarray(np.bincount(curves.of, values) / np.bincount(curves.of))


def _root_weights(curves: SizeCurves) -> Floats:
    """Return the square root of each checkpoint's weight, 1 / (the number of checkpoints of its size)."""
    return np.asarray(1 / np.sqrt(np.bincount(curves.of))[curves.of])


def _descend(curves: SizeCurves, loss: Floats, start: Floats) -> Any:
    """Return SciPy's least-squares optimum for the losses L (P,), from the start θ = (κ, ln N0, e(N)).

    e(N) is log10 L at the mean of a size's log10 X. Unlike E(N), it hardly depends on K(N). The residuals are
    those of Σ_N mean (10^(e(N) − K(N) (log10 X − mean log10 X)) − L)².
    """
    from scipy.optimize import least_squares

    log_x, weight, rows = np.log10(curves.x), _root_weights(curves), np.arange(loss.size)
    centred = log_x - _size_means(curves, log_x)[curves.of]

    def fitted(theta: Floats) -> Floats:
        K = theta[0] * _relative_exponents(theta[1], curves.sizes)[0]
        return np.asarray(weight * 10.0 ** (theta[2:][curves.of] - K[curves.of] * centred))

    def jacobian(theta: Floats) -> Floats:
        relative, slope = _relative_exponents(theta[1], curves.sizes)
        by_level = _LN10 * fitted(theta)
        out = np.zeros((loss.size, theta.size))
        out[:, 0] = -by_level * centred * relative[curves.of]
        out[:, 1] = -by_level * centred * theta[0] * slope[curves.of]
        out[rows, 2 + curves.of] = by_level
        return out

    low, high = _log_n0_bounds(curves.sizes)
    max_kappa, levels = _MOST_DECADES / np.abs(centred).max(), np.full(curves.sizes.size, _MOST_DECADES)
    return least_squares(
        lambda theta: fitted(theta) - weight * loss,
        start,
        jacobian,
        bounds=(np.array([-max_kappa, low, *-levels]), np.array([max_kappa, high, *levels])),
        method="dogbox",  # reaches bounds exactly
        x_scale="jac",
        xtol=1e-12,
        ftol=1e-14,
        gtol=1e-14,
    )
