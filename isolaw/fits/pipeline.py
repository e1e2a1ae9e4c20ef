"""`fit`: fit a law to runs, with every step repeated in every draw.

surface  runs → the reward model over (log n, log B_p, log C) → its ridge n*(C) → laws  (the default)
paper    record points → learning curves → envelope → strict n*(C) → law     (arXiv 2603.12151, section 4)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from isolaw.arguments import checked
from isolaw.errors import InputError, Refused, shown
from isolaw.evidence import REFUSED, Quantity
from isolaw.fits import collapses
from isolaw.fits import frontier as frontiers
from isolaw.fits import law_document as doc
from isolaw.fits.allocations import INTERVALS, comparable_compute
from isolaw.fits.blas import one_blas_thread
from isolaw.fits.curves.bootstrap import ResamplingUnit, resample
from isolaw.fits.curves.learning_curves import (
    WIDTH,
    Curves,
    enough_points,
    fit_curves,
    record_mask,
)
from isolaw.fits.document.schema import Axis, DrawsInfo, LawDocument
from isolaw.fits.draws import Draws, surface_info
from isolaw.fits.flags import Code, Flag, flags_of_simulated
from isolaw.fits.frontier import TOLERANCE, NStarPath
from isolaw.fits.health import batch_health
from isolaw.fits.law import Law
from isolaw.fits.law_flags import flags_of
from isolaw.fits.laws.comparison import compare_laws, fit_laws, judge_logistic
from isolaw.fits.laws.equations import Logistic, fit_logistic
from isolaw.fits.metric import bounds, read_reward, unit_of
from isolaw.fits.rules import simple_rules
from isolaw.fits.selection import (
    LEAST_CURVES,
    MACHINE_ATTRIBUTES,
    Configuration,
    Hold,
    Selection,
    X,
    law_axis,
    select,
    usual_hold,
)
from isolaw.fits.surface.estimate import Surface, estimate
from isolaw.fits.surface.slices import slices
from isolaw.runs import SYMBOL_OF, ReadKeywords, Runs, Source

DRAWS = 400
_MOST_FAILED_SHARE = 0.05  # above this share of failures, the remaining draws are not a fair sample
UNITS = {"compute": "rollouts", "tokens": "tokens", "steps": "steps"}


@checked
def fit(
    runs: Source,
    metric: str | None = None,
    *,
    eval_set: str | None = None,
    hold: Hold | None = None,
    where: Mapping[str, Any] | None = None,
    x: X = "compute",
    method: Literal["surface", "paper"] = "surface",
    curve: Literal["exp", "hill", "power"] = "exp",
    records: float | Literal["auto", "off"] | None = "auto",
    draws: int = DRAWS,
    seed: int = 0,
    **reading: Unpack[ReadKeywords],
) -> Law:
    """Fit an allocation law to runs.

    Parameters
    ----------
    runs
        recorded runs (`isolaw.read`, `isolaw.sweep`), or a source that `isolaw.read` reads, such as a path or
        a DataFrame.
    metric, eval_set
        the reward; by default ``avg@4`` on ``validation``, or the only accuracy (`isolaw.fits.metric`).
    hold
        quantity that the law holds fixed: ``B_p``, ``B`` (= B_p · n), ``n`` (a law of B_p) or ``nothing``. By
        default B_p if all runs have the same, B if only B is the same, and otherwise nothing.
    where
        use only runs with these values of columns or attributes, e.g. ``{"B_p": 32}``.
    x
        unit of a budget: ``compute`` (rollouts), or ``tokens`` if the runs recorded them.
    method
        ``surface`` or ``paper`` (see the module's docstring).
    curve, records
        of the method ``paper`` alone: the family of learning curves, and the width of the bins of record
        points (``auto``: 0.005 of the metric's unit, `isolaw.fits.metric`); ``"off"`` or None fits all
        checkpoints.
    draws
        number of draws; 0 gives no intervals.
    seed
        seed of the draws.
    reading
        keywords of `isolaw.read` for a path or a DataFrame: ``columns``, ``set``, …

    Raises
    ------
    DataError, InputError
        an argument is wrong, or the runs lack the data that it names.
    Refused
        the runs do not support a law; the message lists what to add.

    >>> import isolaw
    >>> runs = isolaw.sweep({"sweep": {"compute": 400_000, "seeds": 3},
    ...     "grid": {"rollouts_per_problem": [8, 32, 128, 512]}, "executor": {"kind": "inline"}})
    >>> law = isolaw.fit(runs, where={"problems_per_batch": 32}, draws=50)
    >>> 8 <= law.document.frontier[-1].n_star.value <= 512
    True
    """
    is_width = isinstance(records, int | float) and math.isfinite(records) and records > 0
    if records not in ("auto", "off", None) and not is_width:
        raise InputError(f"records: found {shown(records)}; expected a positive width of reward, auto or off")
    runs, metric, eval_set, flags = read_reward(runs, metric, eval_set, reading)
    selection = select(runs, metric, eval_set, hold or usual_hold(runs, where), where, x)
    selection.flags[:0] = flags
    return fit_selection(runs, selection, method, curve, records, draws, seed)


def fit_selection(
    runs: Runs,
    selection: Selection,
    method: Literal["surface", "paper"] = "surface",
    curve: Literal["exp", "hill", "power"] = "exp",
    records: float | str | None = "auto",
    draws: int = DRAWS,
    seed: int = 0,
    equations: bool = True,
    surface: Surface | None = None,
    points: int = frontiers.POINTS,
) -> Law:
    """Fit a law to runs that were selected, with the arguments of `fit`.

    Without ``equations`` it has no laws of n*(C) and no crossovers, which predictions do not use. ``surface``
    is the reward model if it is already fitted to these runs. n* is computed at ``points`` budgets.
    """
    hold, metric, eval_set = selection.hold, selection.metric, selection.eval_set
    if method == "surface":
        selection = collapses.without_collapses(selection)
    configurations = selection.configurations
    reward_unit = unit_of(metric, configurations)
    curves: list[Curves] = []
    bin_width: float | None = None  # of the bins of record points
    failures: dict[str, int] = {}
    with one_blas_thread():
        if method == "surface":
            reward_bounds = bounds(metric, configurations)
            surface = surface or estimate(configurations, draws, seed, reward_bounds, reward_unit)
            resampling_unit: ResamplingUnit = "run" if surface.model.observations.freedom else "lack of fit"
        else:
            deviations, resampling_unit = resample(configurations, curve, draws, seed)
            if records == "auto":
                bin_width = WIDTH * reward_unit
            elif isinstance(records, int | float):
                bin_width = float(records)
            curves, failures = _fit_all_curves(selection, deviations, curve, bin_width)
        fitted_curves = [*zip(configurations, curves, strict=True)] if curves else []
        low, high = frontiers.supported_range(configurations)
        x_per_compute = 1 / selection.fixed["batch_rollouts"] if hold == "B" else 1.0
        compute = np.geomspace(low, high, points)
        compute = compute[np.any([c.covers(compute) for c in configurations], axis=0)]
        law_x = compute * x_per_compute if hold == "B" else np.log10(compute)
        if surface is None:
            frontier = frontiers.trace(configurations, curves, compute, reward_unit)
            falls = [doc.late_shortfall(c, curve) for c, curve in fitted_curves]
            n_star_path = frontiers.strict_path(frontier)
            curve_rewards = frontiers.curve_rewards(configurations, curves, low)
            logistic = _fit_law(n_star_path, law_x) if equations else None
            seeds = min(c.runs for c in configurations)
            comparison = judge_logistic(frontier, n_star_path, logistic is not None, seeds)
        else:
            reward_slices = slices(surface, compute, unit=reward_unit)
            falls = doc.late_falls(reward_slices, configurations)
            interval_end = INTERVALS * comparable_compute(configurations)
            frontier = frontiers.cut_frontier(reward_slices, configurations, reward_unit)
            n_star_path = frontiers.ridge_path(reward_slices, configurations, interval_end)
            curve_rewards = frontier.compute, frontier.reward
            logistic = _fit_law(n_star_path, law_x) if equations else None
            has_laws = equations and hold != "nothing"
            laws = fit_laws(reward_slices, n_star_path, law_x, logistic) if has_laws else {}
            comparison = compare_laws(laws, n_star_path, configurations, TOLERANCE * reward_unit)
    symbol = SYMBOL_OF[law_axis(hold)]
    law_parameters: dict[str, Quantity] = dict.fromkeys(doc.LAW_PARAMETERS, REFUSED)
    if equations:
        law_parameters = doc.parameters(n_star_path, law_x, logistic, comparison, selection.flags, symbol)
    used_runs = runs.select(selection.run_ids)
    health = batch_health(used_runs, metric, eval_set)
    selection.flags.extend(
        Flag(Code.UNSTABLE_BATCH, f"at B_p = {batch.problems_per_batch}, {batch.reason}")
        for batch in health
        if batch.reason
    )
    x_name: Literal[X, "steps"] = "steps" if hold == "B" else selection.x
    document = LawDocument(
        hold=hold,
        fixed=selection.fixed,
        metric=metric,
        eval_set=eval_set,
        method=method,
        curve=curve if curves else None,
        records=bin_width,
        x=Axis(x_name, UNITS[x_name], hold != "B", (low * x_per_compute, high * x_per_compute)),
        grid=tuple(doc.grid_entry(c) for c in configurations),
        sources=(runs.source,) if runs.source else (),
        n_train_problems=selection.n_train_problems,
        epochs_seen=selection.epochs_seen,
        params=law_parameters,
        frontier=doc.frontier_entries(
            frontier, n_star_path, x_per_compute, None if surface is None else reward_slices.along
        ),
        crossovers=doc.crossover_entries(configurations, *curve_rewards, low, x_per_compute)
        if equations
        else (),
        curves=tuple(doc.curve_entry(c, curve) for c, curve in fitted_curves),
        bootstrap=DrawsInfo(resampling_unit, draws, sum(failures.values()), failures, seed),
        comparison=comparison,
        health=health,
        rules=simple_rules(configurations),
        surface=None if surface is None else surface_info(surface),
        tolerance=TOLERANCE * reward_unit,
        diverged=selection.diverged,
        **_machine(used_runs),
    )
    flags = [
        *flags_of_simulated(used_runs.simulated),
        *flags_of(selection, n_star_path, document, x_per_compute, falls),
    ]
    document = replace(document, flags=tuple(flags))
    return Law(document, Draws({c.key: curve.parameters() for c, curve in fitted_curves}, surface))


def _machine(runs: Runs) -> dict[str, Any]:
    """Return what runs say about their machine: the smallest cap on B_p · n, and their only framework."""
    table = runs.table()
    caps, frameworks = (table[name].dropna() if name in table else [] for name in MACHINE_ATTRIBUTES)
    framework_names = {*frameworks}
    return {
        "max_batch_rollouts": int(min(caps)) if len(caps) else None,
        "framework": str(framework_names.pop()) if len(framework_names) == 1 else "",
    }


def _fit_all_curves(
    selection: Selection,
    deviations: list[NDArray[np.float64]],
    family: str,
    bin_width: float | None,
) -> tuple[list[Curves], dict[str, int]]:
    """Fit every curve to the data and to each draw. Draws in which a curve fails are dropped.

    Returns the curves, and the number of failed draws by reason.
    """
    configurations = selection.configurations
    pairs = list(zip(configurations, deviations, strict=True))
    if bin_width is None:
        return [fit_curves(c.checkpoints, c.mean + s, c.runs_at[None], family) for c, s in pairs], {}
    rewards = [c.reward + sample[:, c.index] for c, sample in pairs]
    weights = [_record_mask(c, reward, bin_width) for c, reward in zip(configurations, rewards, strict=True)]
    # In these configurations the reward hardly rises. They are kept, since their n could be the best.
    flat_indices = [i for i, weight in enumerate(weights) if not enough_points(weight[:1])[0]]
    if flat_indices:
        labels = "; ".join(configurations[i].label for i in flat_indices)
        if len(configurations) - len(flat_indices) < LEAST_CURVES:
            raise Refused(
                f"fewer than {LEAST_CURVES} curves rise by the 5 record points that a fit needs; these do "
                f'not: {labels}. Run them for longer, or fit all checkpoints (in Python: records="off")'
            )
        text = f"isolaw fits all checkpoints of curves that hardly rise: {labels}"
        selection.flags.append(Flag(Code.HARDLY_RISES, text))
    for i in flat_indices:
        weights[i][:] = 1.0
    is_usable = np.all([weight.sum(axis=1) >= 3 for weight in weights], axis=0)
    is_usable[0] = True
    failed_draws = int((~is_usable).sum())
    reasons = {"a curve with fewer than 3 points": failed_draws} if failed_draws else {}
    if failed_draws > _MOST_FAILED_SHARE * is_usable.size:
        is_usable[1:] = False
        text = 'too many draws failed; add seeds, or fit all checkpoints (in Python: records="off")'
        selection.flags.append(Flag(Code.NO_INTERVALS, text))
    return [
        fit_curves(c.compute, reward[is_usable], weight[is_usable], family)
        for c, reward, weight in zip(configurations, rewards, weights, strict=True)
    ], reasons


def _record_mask(c: Configuration, reward: NDArray[np.float64], bin_width: float) -> NDArray[np.float64]:
    """Return weights of shape (D, P): 1 where a checkpoint is a record point of its run, 0 elsewhere."""
    weights = np.empty(reward.shape)
    for run in range(c.runs):
        weights[:, c.run == run] = record_mask(reward[:, c.run == run], bin_width)
    return weights


def _fit_law(path: NStarPath, x: NDArray[np.float64]) -> Logistic | None:
    """Fit the logistic law to n*, with censored points as bounds. Return None if all points are bounds."""
    if x.size < 5 or path.censored[0].all() or np.ptp(x) == 0:
        return None
    law = fit_logistic(x, path.log2_n, path.below, path.above)
    return law if np.all(np.isfinite(law(x)[0])) else None
