"""Collect the input of a calibration: how runs were trained, what they measured, and what isolaw assumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.calibration import recorded
from benchmarks.calibration.simulation import Protocol, SimulatedCell
from benchmarks.calibration.space import Beforehand, Space
from isolaw import metrics
from isolaw.commands import option
from isolaw.errors import DataError, InputError, Refused, shown
from isolaw.fits.flags import Code, Flag, flags_with
from isolaw.fits.metric import choose
from isolaw.fits.selection import Configuration, configurations_of, differing, measured_points, rows_with
from isolaw.runs import Runs, full_names
from isolaw.simulators.model import Floats
from isolaw.simulators.problems import difficulty

BINS = 14  # number of bins of log C for each configuration
LEAST_CELLS = 2
# Prior standard deviations if runs were not evaluated before their first step. That of the mean is in logits.
_UNMEASURED_SD = 0.5
_SPREAD, _SPREAD_SD, _MEASURED_SPREAD_SD = 4.0, 1.0, 0.3


@dataclass(frozen=True)
class Observed:
    """The measured rewards of runs, and what a simulation needs to repeat the runs.

    ``reward``, of shape (P,), contains the rewards at the steps of ``protocol``, one cell after the other.
    ``lr_scaling`` is the rule for lr(B). ``ends``, of length K, contains the largest measured C of each cell.
    ``assumed`` contains a sentence for each value that the runs did not record.
    """

    runs: Runs
    metric: str
    eval_set: str
    protocol: Protocol
    space: Space
    reward: Floats
    lr_scaling: str
    ends: tuple[float, ...]
    assumed: tuple[str, ...]

    @property
    def recipe(self) -> dict[str, Any]:
        """The part of the recipe that a simulation repeats, with the rule for lr(B)."""
        return {
            "lr_scaling": self.lr_scaling,
            "replacement": self.protocol.replacement,
            **self.protocol.update,
        }


def observe(
    runs: Runs,
    metric: str | None = None,
    eval_set: str | None = None,
    where: Mapping[str, Any] | None = None,
    problems: str | None = None,
    n_train: int | None = None,
    until: float | None = None,
) -> Observed:
    """Return the input of a calibration. The parameters are those of `calibrate`.

    Raises
    ------
    DataError, InputError
        the metric is not a mean of successes, the runs differ in more than B_p, n and seed, or a simulation
        cannot repeat a value that they record.
    Refused
        there are fewer than two configurations.
    """
    metric, eval_set, chosen = choose(runs, metric, eval_set)
    if (parsed := metrics.parse(metric)) is not None and parsed[0] != "avg":
        raise InputError(f"metric: found {shown(metric)}; expected a mean of successes, e.g. avg@4")
    points = measured_points(runs, metric, eval_set)
    table = runs.table().loc[lambda t: t.index.isin(points["run_id"])]
    table = rows_with(table, full_names(where or {}))
    recorded.check(runs.source, table, points[points["run_id"].isin(table.index)])
    if names := [name for name in differing(table) if not _follows_batch(table, name)]:
        values = sorted({str(value) for value in table[names[0]]})
        raise DataError(
            f"{runs.source}: the runs differ in {names[0]} ({', '.join(values)}); choose with "
            + option("where", names[0], values[0])
        )
    points = points[points["run_id"].isin(table.index)]
    if not points["value"].between(0, 1).all():
        low, high = points["value"].min(), points["value"].max()
        raise DataError(
            f"{metric}: found values from {low:.3g} to {high:.3g}; expected shares of successes in [0, 1]"
        )
    if until is not None:
        if not until > 0:
            raise InputError(f"until: found {until:g}; expected a positive C in rollouts")
        points = points[points["compute"] <= until]
    flags: list[Flag] = []
    configurations = configurations_of(points, table[table.index.isin(points["run_id"])], flags)
    if len(configurations) < LEAST_CELLS:
        raise Refused(
            f"a calibration needs runs of at least {LEAST_CELLS} configurations; found {len(configurations)}"
            + ("" if until is None else f" up to C = {until:,.0f} (until)")
            + "".join(f" ({flag.text})" for flag in flags_with(flags, Code.LEFT_OUT))
        )
    assumed = [flag.text for flag in (*chosen, *flags)]
    sizes = recorded.sizes(points, table, metric, n_train, assumed)
    rule = recorded.lr_rule(configurations, table, runs.source, assumed)
    cells, reward = [], []
    for configuration in configurations:
        batch = configuration.problems_per_batch * configuration.rollouts_per_problem
        if configuration.checkpoints[-1] < batch:
            raise DataError(
                f"{runs.source}: compute: found at most {configuration.checkpoints[-1]:g} for "
                f"{configuration.label}; expected rollouts, {batch:,} for each step"
            )
        cell, means = _cell(configuration, recorded.lr_factor(*configuration.key, rule), sizes.samples)
        cells.append(cell)
        reward.append(means)
        if text := _left_early(configuration):
            assumed.append(text)
    protocol = Protocol(
        tuple(cells),
        sizes.train,
        sizes.validation,
        shared=not runs.simulated,
        replacement=bool(table["replacement"].iloc[0]) if "replacement" in table.columns else False,
        update=recorded.update_of(table),
    )
    if problems is not None:
        difficulty(problems)
        before: Beforehand | str = problems
    else:
        before = _beforehand(runs, configurations, table, eval_set, sizes.validation, assumed)
    space = Space.of(before, kl=recorded.has_kl(table, assumed))
    ends = tuple(float(c.checkpoints[-1]) for c in configurations)
    rewards = np.concatenate(reward)
    return Observed(runs, metric, eval_set, protocol, space, rewards, rule, ends, tuple(assumed))


def _left_early(configuration: Configuration) -> str:
    """Describe the assumption about runs that end before half the C of others in their configuration."""
    ends = np.array([configuration.compute[configuration.run == i].max() for i in range(configuration.runs)])
    short = ends < ends.max() / 2
    if not short.any():
        return ""
    return (
        f"{configuration.label}: {short.sum()} of {len(ends)} runs end by C = {ends[short].max():,.0f} of "
        f"{ends.max():,.0f}; isolaw assumes that they would have continued like the others"
    )


def _follows_batch(table: pd.DataFrame, name: str) -> bool:
    """Return whether lr differs only between configurations, as it does if it follows B."""
    values = table.groupby(["problems_per_batch", "rollouts_per_problem"])[name].nunique()
    return name == "lr" and bool((values == 1).all())


def _cell(configuration: Configuration, factor: float, samples: int) -> tuple[SimulatedCell, Floats]:
    """Return a cell and its mean rewards, with the checkpoints binned by log C into at most `BINS` bins."""
    batch = configuration.problems_per_batch * configuration.rollouts_per_problem
    compute, reward = configuration.checkpoints, configuration.mean
    step = np.round(compute / batch).astype(int)
    start = compute <= 0
    x = np.log(np.maximum(compute, batch / 2))
    later = x[~start]
    edges = np.linspace(later.min(), later.max(), BINS)
    group = np.where(start, -1, np.abs(x[:, None] - edges).argmin(axis=1))
    steps, answers, means = [], [], []
    for one in np.unique(group):
        inside = group == one
        steps.append(int(np.median(step[inside]) + 0.5))
        answers.append(int(samples * inside.sum()))
        means.append(float(reward[inside].mean()))
    runs = configuration.runs
    cell = SimulatedCell(*configuration.key, factor, tuple(steps), tuple(answers), runs)
    return cell, np.array(means)


def _beforehand(
    runs: Runs, configurations: list[Configuration], table: pd.DataFrame, eval_set: str, validation: int,
    assumed: list[str],
) -> Beforehand:  # fmt: skip
    """Estimate μ and ν of the problems' success before training, from the evaluation at step 0.

    μ comes from the reward. ν comes from best@k and worst@k, or from the counts of single problems.
    """
    at_start = [c.mean[0] for c in configurations if c.checkpoints[0] == 0]
    if not at_start:
        first = float(np.clip(np.mean([c.mean[0] for c in configurations]), 1e-3, 1 - 1e-3))
        assumed.append(
            "the runs have no reward before the first step, so isolaw fits the difficulty of problems"
        )
        return Beforehand(first, _UNMEASURED_SD, _SPREAD, _SPREAD_SD)
    mean = float(np.clip(np.mean(at_start), 0.5 / validation, 1 - 0.5 / validation))
    sd = 1 / np.sqrt(validation * mean * (1 - mean))
    rows = runs.points[runs.points["run_id"].isin(table.index) & (runs.points["eval_set"] == eval_set)]
    others = rows[rows["step"] == 0].groupby("metric")["value"].mean()
    known = {parsed: float(v) for name, v in others.items() if (parsed := metrics.parse(str(name)))}
    spread = _spread(mean, {key: v for key, v in known.items() if key[0] != "avg" and key[1] > 1})
    if spread is None:
        spread = _spread(mean, _from_counts(runs, table, eval_set))
    if spread is None:
        assumed.append(
            "the runs recorded neither best@k nor single problems, so isolaw fits how problems differ"
        )
        return Beforehand(mean, sd, _SPREAD, _SPREAD_SD)
    return Beforehand(mean, sd, spread, _MEASURED_SPREAD_SD)


def _from_counts(runs: Runs, table: pd.DataFrame, eval_set: str) -> dict[tuple[str, int], float]:
    """Return best@2 and worst@2 at step 0, computed from the counts of single problems."""
    rows = runs.problems
    if rows is None:
        return {}
    rows = rows[rows["run_id"].isin(table.index) & (rows["step"] == 0) & (rows["eval_set"] == eval_set)]
    rows = rows[rows["samples"] >= 2]
    if rows.empty:
        return {}
    samples = int(rows["samples"].min())
    rows = rows[rows["samples"] == samples]
    return {
        (kind, 2): float(metrics.evaluate(f"{kind}@2", rows["correct"].to_numpy(), samples))
        for kind in ("best", "worst")
    }


def _spread(mean: float, known: Mapping[tuple[str, int], float]) -> float | None:
    """Return the ν for which Beta(μ ν, (1 − μ) ν) comes closest to the measured best@k and worst@k.

    For Beta(a, b), worst@k is E[p^k] = Π_{i<k} (a + i) / (a + b + i). best@k is 1 − E[(1 − p)^k], where a and
    b are swapped.

    >>> round(_spread(0.5, {("worst", 2): 1 / 3, ("best", 2): 2 / 3}), 1)  # uniform
    2.0
    """
    if not known:
        return None
    nu = np.geomspace(0.05, 1000.0, 400)
    error = np.zeros_like(nu)
    for (kind, k), value in known.items():
        share = mean if kind == "worst" else 1 - mean
        i = np.arange(k)[:, None]
        all_of = np.prod((share * nu + i) / (nu + i), axis=0)
        error += (all_of - (value if kind == "worst" else 1 - value)) ** 2
    return float(nu[error.argmin()])
