"""Compute the findings, and the curves of their figures, from the runs of a battery."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.replication import rules
from benchmarks.replication.battery import (
    ETA_FACTORS,
    N_EST,
    N_TRAIN,
    PER_BUDGET,
    PER_OCTAVE,
    SETS,
    TABULAR_COMPUTE,
    TABULAR_LEVELS,
    Battery,
    schedule,
)
from benchmarks.replication.smoothing import path
from benchmarks.replication.verdicts import Finding, Floats, interval, leave_one_out
from isolaw.runs import Runs

PlotSeries = dict[str, Any]
_NUDGE = 1 + 1e-9  # ensures that a budget of whole batches pays for its last step despite rounding


class MeasuredFindings:
    """The findings and figures of one battery. ``runs`` maps each experiment to its runs."""

    def __init__(self, battery: Battery, runs: Mapping[str, Runs]) -> None:
        self.battery, self.runs = battery, runs
        self.findings: list[Finding] = []
        self.pictures: dict[str, PlotSeries] = {}
        self.main = {name: self._rewards(name) for name in SETS}
        self._rises()
        self._compared()
        self._batches()
        self._alone()
        self._landscapes()
        self._sizes()
        self._decoupled()

    def _rewards(
        self,
        experiment: str,
        metric: str = "avg@4",
        eval_set: str = "validation",
        *,
        levels: Sequence[int] | None = None,
        batch: int | None = None,
        evaluated: Floats | None = None,
        **where: Any,
    ) -> Floats:
        b, runs = self.battery, self.runs[experiment]
        budgets = schedule(b.compute) if evaluated is None else evaluated
        where["problems_per_batch"] = batch or b.batch
        values = rewards(runs, metric, eval_set, b.seeds, levels or b.levels, budgets, where)
        return settled(values, PER_BUDGET)

    def _last(self, experiment: str, *args: Any, **kwargs: Any) -> Floats:
        """Return the rewards of S seeds and N values of n at the largest budget, of shape (S, N)."""
        return self._rewards(experiment, *args, **kwargs)[:, :, -1]

    def _picture(self, key: str, curves: Mapping[str, Any], **axes: Any) -> None:
        self.pictures[key] = {"levels": self.battery.levels, **axes, "curves": curves}

    def _rises(self) -> None:
        """Add finding F1 (n* rises with C) and its control with η re-tuned at each n and C."""
        b, curves = self.battery, {}
        for name, values in self.main.items():
            self.findings.append(rules.rises(name, b.levels, values))
            curves[name] = {"sqrt": _path(b.levels, values)}
            if b.control:
                eta = b.eta(name)
                each = [values if f == 1 else self._rewards(f"{name}-eta", lr=eta * f) for f in ETA_FACTORS]
                tuned, share = rules.retuned(np.stack(each, axis=3))
                self.findings.append(rules.lr_control(name, b.levels, values, tuned, ETA_FACTORS, share))
                curves[name]["retuned"] = _path(b.levels, tuned)
        self._picture("F1", curves, x=b.budgets.tolist())

    def _compared(self) -> None:
        """Add findings F2 and F3, which compare problem sets and metrics at the largest C."""
        levels = self.battery.levels
        end = {name: values[:, :, -1] for name, values in self.main.items()}
        self.findings.append(rules.harder(levels, end["easy"], end["hard"]))
        self._picture("F2", {name: _below(v) for name, v in end.items()})
        curves = {}
        for name in SETS:
            worst, best = (self._last(name, metric) for metric in ("worst@4", "best@4"))
            self.findings.append(rules.sharpening(name, levels, worst, best))
            curves[name] = {"worst@4": _below(worst), "best@4": _below(best)}
        self._picture("F3", curves)

    def _batches(self) -> None:
        """Add finding F4: B_p matters less than n, and at fixed B a large M needs a large n."""
        b = self.battery
        sizes, coarse = b.moderate_batches, b.coarse_levels
        each = [
            self._last("easy" if size == b.batch else "easy-batches", levels=coarse, batch=size)
            for size in sizes
        ]
        values = np.stack(each, axis=1)
        self.findings.append(rules.batches(coarse, sizes, values, b.batch))
        batch, levels = b.fixed_batch
        paths = {}
        for name, rule in (("easy", rules.shifts), ("hard", rules.turns)):
            parts = [self._rewards(f"{name}-fixed-b", levels=[n], batch=batch // n) for n in levels]
            fixed = np.concatenate(parts, axis=1)
            self.findings.append(rule(levels, batch, fixed))
            paths[name] = _path(levels, fixed)
        self._picture(
            "F4",
            paths,
            levels=coarse,
            batches=_bands(map(str, sizes), _within(values, (1, 2))),
            batch=batch,
            x=(b.budgets / batch).tolist(),
            fixed_levels=levels,
        )

    def _alone(self) -> None:
        """Add finding F5a: on a single problem, more steps beat a larger n."""
        evaluated, levels, curves = schedule(TABULAR_COMPUTE), TABULAR_LEVELS, {}
        for rule in self.battery.tabular:
            values = self._rewards(f"tabular-{rule}", levels=levels, batch=1, evaluated=evaluated)
            self.findings.append(rules.alone(rule, levels, values))
            curves[rule] = _path(levels, values)
        self._picture("F5a", curves, x=evaluated[PER_BUDGET::PER_BUDGET].tolist(), levels=list(levels))

    def _landscapes(self) -> None:
        """Add finding F5b: with many problems, a larger n leaves fewer problems unsolved."""
        curves = {}
        for name in SETS:
            zero, gini = (self._last(name, metric) for metric in ("zero_fraction", "gini"))
            train = self._last(name, "zero_fraction", "train")
            self.findings.append(rules.landscape(name, self.battery.levels, zero, gini, train))
            curves[name] = {"zero-pass": _band(_within(zero)), "Gini": _band(_within(gini))}
        self._picture("F5b", curves)

    def _sizes(self) -> None:
        """Add finding F6: a smaller training set caps n* at a lower value."""
        b = self.battery
        each = {d: self._rewards(f"easy-d{d}") for d in b.training_sizes[:-1]}
        each[b.training_sizes[-1]] = self.main["easy"]
        values = np.stack([v[:, :, -1] for v in each.values()], axis=1)
        self.findings.append(rules.capped(b.levels, b.training_sizes, values))
        self._picture("F6", {str(d): _path(b.levels, v) for d, v in each.items()}, x=b.budgets.tolist())

    def _decoupled(self) -> None:
        """Add finding F7: advantages computed from more rollouts than the gradient uses."""
        b = self.battery
        if not b.decoupled:
            nothing = np.full(len(b.seeds), np.nan)
            for name in SETS:
                self.findings += rules.decoupled(name, (N_EST, N_TRAIN), *[nothing] * 4)
            return
        # Compare at equal steps, which runs with n = n_train reach at smaller budgets.
        shift = PER_OCTAVE * round(math.log2(N_EST / N_TRAIN))
        curves = {}
        for name in SETS:
            both = self._rewards(f"{name}-decoupled", levels=[N_EST])[:, 0]
            full, part = (self.main[name][:, b.levels.index(n)] for n in (N_EST, N_TRAIN))
            ends = (both[:, -1], full[:, -1], part[:, -1 - shift], part[:, -1])
            self.findings += rules.decoupled(name, (N_EST, N_TRAIN), *ends)
            values = np.stack([full[:, shift:], both[:, shift:], part[:, :-shift]], axis=1)
            curves[name] = _bands((f"n = {N_EST}", "decoupled", f"n = {N_TRAIN}"), _within(values))
        self.pictures["F7"] = {"curves": curves, "x": (b.budgets[shift:] / (b.batch * N_EST)).tolist()}


def _band(rows: Floats) -> PlotSeries:
    """Return a curve and its pointwise interval, with None where not measured.

    ``rows`` has shape (1 + S, X): the curve over all seeds, then the curves without each seed.
    """
    parts = zip(("value", "low", "high"), interval(rows), strict=True)
    return {k: [float(v) if np.isfinite(v) else None for v in part] for k, part in parts}


def _bands(names: Iterable[str], rows: Floats) -> PlotSeries:
    """Return several curves and their intervals by name, from rows of shape (1 + S, curves, X)."""
    return {name: _band(rows[:, i]) for i, name in enumerate(names)}


def _path(levels: Sequence[int], values: Floats) -> PlotSeries:
    """Return the curve of log2 n* over the budgets, with its interval."""
    return _band(path(levels, leave_one_out(values)).log2_n)


def _within(values: Floats, over: int | tuple[int, ...] = 1) -> Floats:
    """Return rewards minus their mean ``over`` these axes, which removes effects shared within a seed.

    ``values`` has shape (S, …).
    """
    known = np.isfinite(values).all(axis=0)  # a batch above the cap was not run
    total = np.where(known, values, 0.0).sum(axis=over, keepdims=True)
    shared = total / np.maximum(np.where(known, 1, np.zeros_like(values)).sum(axis=over, keepdims=True), 1)
    return leave_one_out(values - shared + shared.mean(axis=0))


def _below(values: Floats) -> PlotSeries:
    """Return rewards of shape (S, N), relative to the best value of their mean, with intervals."""
    rows = leave_one_out(values)
    return _band(rows - rows.max(axis=1, keepdims=True))


def rewards(
    runs: Runs,
    metric: str,
    eval_set: str,
    seeds: Sequence[int],
    levels: Sequence[int],
    budgets: Floats,
    where: Mapping[str, Any],
) -> Floats:
    """Return the reward of each n at each budget, from one sweep whose schedule contains the budgets.

    For S seeds, N values of n and X ascending ``budgets`` C, the result has shape (S, N, X). Rewards are NaN
    before a run's first step, after the end of a diverged run, and if there is no run. ``where`` selects runs
    by columns or attributes, such as ``{"lr": 0.02}``.
    """
    points = runs.points
    points = points[(points["metric"] == metric) & (points["eval_set"] == eval_set)]
    out = np.full((len(seeds), len(levels), len(budgets)), np.nan)
    for run_id, rows in points.sort_values("compute").groupby("run_id", sort=False):
        facts = {**runs.attributes.get(str(run_id), {}), **rows.iloc[0].to_dict()}
        seed, n = facts["seed"], facts["rollouts_per_problem"]
        if seed not in seeds or n not in levels or any(facts.get(k) != v for k, v in where.items()):
            continue
        batch = facts["problems_per_batch"] * n
        compute, value = rows["compute"].to_numpy(), rows["value"].to_numpy()
        at = np.searchsorted(compute, budgets * _NUDGE, side="right") - 1
        # The schedule has an evaluation at the last step that a budget pays for.
        reached = (at >= 0) & (budgets * _NUDGE >= batch) & (compute[at] > budgets - batch)
        out[seeds.index(seed), levels.index(n)] = np.where(reached, value[at], np.nan)
    return out


def settled(values: Floats, every: int) -> Floats:
    """Return rewards at every ``every``-th budget, each averaged over the budgets since the previous one.

    A reward at one C depends on the run's position in its epoch, because noise between problems cancels only
    once all problems were visited equally often. All seeds are at the same position, so intervals over seeds
    do not contain this effect. A mean over half an octave removes most of this effect. ``values`` has shape
    (…, every · X + 1), with NaN where a run had not started or had ended, and the result has shape (…, X). A
    mean is NaN where the last value of its window is NaN.

    >>> settled(np.array([np.nan, 1.0, 3.0, 5.0, np.nan]), 2)
    array([ 2., nan])
    """
    size = (values.shape[-1] - 1) // every
    index = every * np.arange(size)[:, None] + np.arange(every + 1)
    windows = values[..., index]
    known = np.isfinite(windows)
    mean = np.where(known, windows, 0.0).sum(axis=-1) / np.maximum(known.sum(axis=-1), 1)
    return np.where(known[..., -1], mean, np.nan)
