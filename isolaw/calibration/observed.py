"""Runs as a calibration sees them: how they were made, what they measured, and what nobody wrote down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from isolaw import metrics
from isolaw.calibration.simulation import Cell, Protocol
from isolaw.calibration.space import Beforehand, Space
from isolaw.config.run import POWERS, REFERENCE_BATCH
from isolaw.errors import DataError, InputError, Refused, option
from isolaw.fits.document.flags import Flag
from isolaw.fits.metric import choose
from isolaw.fits.selection import Configuration, configurations_of, differing, hold, measured_points
from isolaw.runs import Runs, full_names, plain
from isolaw.simulators.interference import SIZES
from isolaw.simulators.model import Floats
from isolaw.simulators.problems import difficulty

BINS = 14  # of log C, for each configuration
LEAST_CELLS = 2
_VALIDATION = 300
# Of runs whose first evaluation is not before their first step: logits of the mean.
_UNMEASURED_SD = 0.5
_SPREAD, _SPREAD_SD, _MEASURED_SPREAD_SD = 4.0, 1.0, 0.3
_UPDATE: dict[str, Any] = {"advantage": str, "zero_variance_filter": bool, "staleness": int}


@dataclass(frozen=True)
class Observed:
    """What a calibration fits: ``reward`` (P,) is that of ``protocol``'s steps, cell after cell.

    ``assumed`` says in words what the runs did not record.
    """

    runs: Runs
    metric: str
    eval_set: str
    protocol: Protocol
    space: Space
    reward: Floats
    assumed: tuple[str, ...]

    @property
    def recipe(self) -> dict[str, Any]:
        """How the runs were trained, as far as a simulation repeats it, with the rule lr(B) follows."""
        cells = self.protocol.cells
        batch = np.log([c.problems_per_batch * c.rollouts_per_problem for c in cells])
        slope = np.polyfit(batch, np.log([c.factor for c in cells]), 1)[0] if np.ptp(batch) > 0 else 0.5
        rule = min(POWERS, key=lambda name: abs(POWERS[name] - slope))
        return {"lr_scaling": rule, "replacement": self.protocol.replacement, **self.protocol.update}


def observe(
    runs: Runs,
    metric: str | None = None,
    eval_set: str | None = None,
    fixed: Mapping[str, Any] | None = None,
    problems: str | None = None,
    n_train: int | None = None,
    until: float | None = None,
) -> Observed:
    """Return what `isolaw.calibration.calibrate.calibrate` fits; the parameters are its.

    Raises
    ------
    DataError, InputError
        the metric is no mean of successes, or the runs differ in more than B_p, n and seed.
    Refused
        fewer than two configurations.
    """
    metric, eval_set, chosen = choose(runs, metric, eval_set)
    if (parsed := metrics.parse(metric)) is not None and parsed[0] != "avg":
        raise InputError(f"metric: found {metric!r}; expected a mean of successes, e.g. avg@4")
    points = measured_points(runs, metric, eval_set)
    table = runs.table().loc[lambda t: t.index.isin(points["run_id"])]
    table = hold(table, full_names(fixed or {}))
    if names := [name for name in differing(table) if not _follows_batch(table, name)]:
        values = sorted({str(value) for value in table[names[0]]})
        raise DataError(
            f"{runs.source}: the runs differ in {names[0]} ({', '.join(values)}); choose with "
            f"{option('fixed', names[0], values[0])}"
        )
    points = points[points["run_id"].isin(table.index)]
    if not points["value"].between(0, 1).all():
        low, high = points["value"].min(), points["value"].max()
        raise DataError(
            f"{metric}: found values from {low:.3g} to {high:.3g}; a share of successes is in [0, 1]"
        )
    if until is not None:
        points = points[points["compute"] <= until]
    flags: list[Flag] = []
    found = configurations_of(points, table[table.index.isin(points["run_id"])], flags)
    if len(found) < LEAST_CELLS:
        raise Refused(f"a calibration needs runs of {LEAST_CELLS} configurations or more; found {len(found)}")
    assumed = [flag.text for flag in (*chosen, *flags)]
    sizes = _sizes(points, table, metric, n_train, assumed)
    cells, reward = [], []
    factors = _factors(found, table, assumed)
    for configuration, factor in zip(found, factors, strict=True):
        cell, own = _cell(configuration, factor, sizes.samples)
        cells.append(cell)
        reward.append(own)
    update = {
        key: kind(plain(table[key].iloc[0]))
        for key, kind in _UPDATE.items()
        if key in table.columns and table[key].notna().all()
    }
    protocol = Protocol(
        tuple(cells),
        sizes.train,
        sizes.validation,
        shared=not runs.simulated,
        replacement=bool(table["replacement"].iloc[0]) if "replacement" in table.columns else False,
        update=update,
    )
    if problems is not None:
        difficulty(problems)
        before: Beforehand | str = problems
    else:
        before = _beforehand(runs, found, table, metric, eval_set, sizes.validation, assumed)
    space = Space.of(before, kl=_has_kl(table, assumed))
    return Observed(runs, metric, eval_set, protocol, space, np.concatenate(reward), tuple(assumed))


def _follows_batch(table: pd.DataFrame, name: str) -> bool:
    """Whether lr differs only between configurations, as where it follows B."""
    own = table.groupby(["problems_per_batch", "rollouts_per_problem"])[name].nunique()
    return name == "lr" and bool((own == 1).all())


@dataclass(frozen=True)
class _Sizes:
    train: int
    validation: int
    samples: int


def _sizes(
    points: pd.DataFrame, table: pd.DataFrame, metric: str, n_train: int | None, assumed: list[str]
) -> _Sizes:
    recorded = pd.to_numeric(table.get("n_train_problems", pd.Series(dtype=float)), errors="coerce").dropna()
    train = n_train or (int(recorded.iloc[0]) if len(recorded) else 0)
    if not train:
        train = SIZES[0]
        assumed.append(f"D is not recorded: {train:,} training problems are assumed (--n-train)")
    known = points["n_problems"].dropna()
    validation = int(known.iloc[0]) if len(known) else _VALIDATION
    if not len(known):
        assumed.append(f"the size of the validation set is not recorded: {validation} problems are assumed")
    answers = points["n_samples"].dropna()
    parsed = metrics.parse(metric)
    samples = int(answers.iloc[0]) if len(answers) else parsed[1] if parsed else 1
    return _Sizes(train, validation, samples)


def _factors(found: list[Configuration], table: pd.DataFrame, assumed: list[str]) -> list[float]:
    """lr(B) / η of each configuration, 1 at B = 1 under the square-root rule."""
    batch = np.array([c.problems_per_batch * c.rollouts_per_problem for c in found], dtype=float)
    rule = table["lr_scaling"].iloc[0] if "lr_scaling" in table.columns else None
    if rule in POWERS:
        return [lr_factor(v, rule) for v in batch]
    if "lr" in table.columns and table["lr"].notna().all():
        own = table.groupby(["problems_per_batch", "rollouts_per_problem"])["lr"].first()
        lr = np.array([float(own[c.key]) for c in found])
        return [float(v) for v in lr / np.exp(np.mean(np.log(lr / np.sqrt(batch))))]
    assumed.append("lr is not recorded: lr ∝ √B is assumed")
    return [lr_factor(v) for v in batch]


def lr_factor(batch: float, rule: str = "sqrt") -> float:
    """Return lr(B) / η; under each rule η is what the square-root rule has at B = 1."""
    return float(np.sqrt(REFERENCE_BATCH) * (batch / REFERENCE_BATCH) ** POWERS[rule])


def _cell(configuration: Configuration, factor: float, samples: int) -> tuple[Cell, Floats]:
    """A configuration's checkpoints in at most `BINS` bins of log C, and the mean reward of each."""
    batch = configuration.problems_per_batch * configuration.rollouts_per_problem
    compute, reward = configuration.checkpoints, configuration.mean
    step = np.round(compute / batch).astype(int)
    start = compute <= 0
    x = np.log(np.maximum(compute, batch / 2))
    later = x[~start]
    edges = np.linspace(later.min(), later.max(), BINS)
    group = np.where(start, -1, np.abs(x[:, None] - edges).argmin(axis=1))
    steps, answers, means = [], [], []
    for own in np.unique(group):
        inside = group == own
        steps.append(int(np.median(step[inside]) + 0.5))
        answers.append(int(samples * inside.sum()))
        means.append(float(reward[inside].mean()))
    runs = configuration.runs
    cell = Cell(*configuration.key, factor, tuple(steps), tuple(answers), runs)
    return cell, np.array(means)


def _has_kl(table: pd.DataFrame, assumed: list[str]) -> bool:
    if "kl" not in table.columns or table["kl"].isna().any():
        assumed.append("the weight of the KL penalty is not recorded: it is fitted")
        return True
    return bool((pd.to_numeric(table["kl"], errors="coerce") != 0).any())


def _beforehand(
    runs: Runs, found: list[Configuration], table: pd.DataFrame, metric: str, eval_set: str, validation: int,
    assumed: list[str],
) -> Beforehand:  # fmt: skip
    """μ and ν before training: the reward of step 0, and how far best@k, worst@k or counts spread there."""
    at_start = [c.mean[0] for c in found if c.checkpoints[0] == 0]
    if not at_start:
        first = float(np.clip(np.mean([c.mean[0] for c in found]), 1e-3, 1 - 1e-3))
        assumed.append("nothing was measured before the first step: the difficulty of the problems is fitted")
        return Beforehand(first, _UNMEASURED_SD, _SPREAD, _SPREAD_SD)
    mean = float(np.clip(np.mean(at_start), 0.5 / validation, 1 - 0.5 / validation))
    sd = 1 / np.sqrt(validation * mean * (1 - mean))
    own = runs.points[runs.points["run_id"].isin(table.index) & (runs.points["eval_set"] == eval_set)]
    others = own[own["step"] == 0].groupby("metric")["value"].mean()
    known = {parsed: float(v) for name, v in others.items() if (parsed := metrics.parse(str(name)))}
    spread = _spread(mean, {key: v for key, v in known.items() if key[0] != "avg" and key[1] > 1})
    if spread is None:
        spread = _spread(mean, _from_counts(runs, table, eval_set))
    if spread is None:
        assumed.append("neither best@k nor single problems are recorded: how unlike problems are is fitted")
        return Beforehand(mean, sd, _SPREAD, _SPREAD_SD)
    return Beforehand(mean, sd, spread, _MEASURED_SPREAD_SD)


def _from_counts(runs: Runs, table: pd.DataFrame, eval_set: str) -> dict[tuple[str, int], float]:
    """best@2 and worst@2 from the counts of single problems at step 0."""
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
    """ν of the Beta(μ ν, (1 − μ) ν) whose best@k and worst@k are nearest to these.

    Of Beta(a, b), E[p^k] = Π_{i<k} (a + i) / (a + b + i), and E[(1 − p)^k] with a and b exchanged.

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
