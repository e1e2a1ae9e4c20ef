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
from isolaw.fits import collapses
from isolaw.fits import frontier as frontiers
from isolaw.fits import law_document as doc
from isolaw.fits.allocations import INTERVALS, comparable
from isolaw.fits.blas import one_blas_thread
from isolaw.fits.curves.learning_curves import (
    FAMILIES,
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
from isolaw.fits.health import smallest_stable_B_p
from isolaw.fits.law import Law
from isolaw.fits.law_flags import flags_of
from isolaw.fits.laws.comparison import Fitted, compared, fit_laws, rules
from isolaw.fits.laws.equations import Logistic, fit_logistic
from isolaw.fits.metric import bounds, read_reward, unit_of
from isolaw.fits.rules import simple_rules
from isolaw.fits.selection import (
    LEAST_CURVES,
    OF_THE_MACHINE,
    Configuration,
    Hold,
    Selection,
    X,
    select,
    usual_hold,
    varied,
)
from isolaw.fits.surface.bootstrap import Unit, resample
from isolaw.fits.surface.estimate import Surface, estimate
from isolaw.fits.surface.slices import slices
from isolaw.runs import SYMBOL_OF, ReadKeywords, Runs, Source

METHODS = ("surface", "paper")
DRAWS = 400
_MOST_FAILED = 0.05  # above this share of failures, the remaining draws are not a fair sample
UNITS = {"compute": "rollouts", "tokens": "tokens", "wall_s": "seconds", "steps": "steps"}


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
        unit of a budget: ``compute`` (rollouts), or ``tokens`` or ``wall_s`` if the runs recorded them.
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
    if curve not in FAMILIES:
        raise InputError(f"curve: found {shown(curve)}; expected {', '.join(FAMILIES)}")
    positive = isinstance(records, int | float) and math.isfinite(records) and records > 0
    if records not in ("auto", "off", None) and not positive:
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
    traced: bool = True,
) -> Law:
    """Fit a law to runs that were selected, with the arguments of `fit`.

    Unless ``traced``, the law has only the ends of its frontier, no equation and no crossovers: predictions
    of an allocation use none of these.
    """
    hold, metric, eval_set = selection.hold, selection.metric, selection.eval_set
    if method == "surface":
        selection = collapses.steady(selection)
    configurations = selection.configurations
    unit_of_reward = unit_of(metric, configurations)
    curves: list[Curves] = []
    width: float | None = None  # of the bins of record points
    failed: dict[str, int] = {}
    surface: Surface | None = None
    with one_blas_thread():
        if method == "surface":
            surface = estimate(configurations, draws, seed, bounds(metric, configurations), unit_of_reward)
            unit: Unit = "run" if surface.model.observations.freedom else "lack of fit"
        else:
            samples, unit = resample(configurations, curve, draws, seed)
            if records == "auto":
                width = WIDTH * unit_of_reward
            elif isinstance(records, int | float):
                width = float(records)
            curves, failed = _fit_all(selection, samples, curve, width)
        of_curves = [*zip(configurations, curves, strict=True)] if curves else []
        low, high = frontiers.supported_range(configurations)
        scale = 1 / selection.fixed["batch_rollouts"] if hold == "B" else 1.0
        compute = np.geomspace(low, high, frontiers.POINTS if traced else 2)
        compute = compute[np.any([c.covers(compute) for c in configurations], axis=0)]
        abscissa = compute * scale if hold == "B" else np.log10(compute)
        laws: dict[str, Fitted] = {}
        if surface is None:
            frontier = frontiers.trace(configurations, curves, compute, unit_of_reward)
            falls = [doc.below_curve(c, curve) for c, curve in of_curves]
            path = frontiers.strict_path(frontier)
            rewards = frontiers.curve_rewards(configurations, curves, low)
            logistic = _fit_law(path, abscissa)
            law = None if logistic is None else logistic(abscissa)[0]
            comparison = rules(frontier, law, min(c.runs for c in configurations))
        else:
            cut = slices(surface, compute, unit=unit_of_reward)
            falls = doc.falls(cut, configurations)
            reach = INTERVALS * comparable(configurations)
            frontier = frontiers.cut_frontier(cut, configurations, reach, unit_of_reward)
            path = frontiers.ridge_path(cut, configurations, reach)
            rewards = frontier.compute, frontier.reward
            logistic = _fit_law(path, abscissa)
            laws = fit_laws(cut, path, abscissa, logistic) if traced and hold != "nothing" else {}
            comparison = compared(laws, path, configurations, TOLERANCE * unit_of_reward)
    n = SYMBOL_OF[varied(hold)]
    parameters = doc.parameters(path, abscissa, logistic, comparison, selection.flags, n)
    fitted = runs.select(selection.run_ids)
    health = smallest_stable_B_p(fitted, metric, eval_set)
    selection.flags.extend(
        Flag(Code.UNSTABLE_BATCH, f"at B_p = {b.problems_per_batch}, {b.reason}")
        for b in health.batches
        if b.reason
    )
    name: Literal[X, "steps"] = "steps" if hold == "B" else selection.x
    document = LawDocument(
        hold=hold,
        fixed=selection.fixed,
        metric=metric,
        eval_set=eval_set,
        method=method,
        curve=curve if curves else None,
        records=width,
        x=Axis(name, UNITS[name], hold != "B", (low * scale, high * scale)),
        grid=tuple(doc.grid_entry(c) for c in configurations),
        sources=(runs.source,) if runs.source else (),
        n_train_problems=selection.n_train_problems,
        epochs_seen=selection.epochs_seen,
        params=parameters,
        frontier=doc.frontier_entries(frontier, path, scale, stepwise=method == "paper"),
        crossovers=doc.crossover_entries(configurations, *rewards, low, scale) if traced else (),
        curves=tuple(doc.curve_entry(c, curve) for c, curve in of_curves),
        bootstrap=DrawsInfo(unit, draws, sum(failed.values()), failed, seed),
        comparison=comparison,
        health=health,
        rules=simple_rules(configurations),
        surface=None if surface is None else surface_info(surface),
        tolerance=TOLERANCE * unit_of_reward,
        diverged=selection.diverged,
        **_machine(fitted),
    )
    flags = [*flags_of_simulated(fitted.simulated), *flags_of(selection, path, document, scale, falls)]
    document = replace(document, flags=tuple(flags))
    parameters_of = {c.key: curve.parameters() for c, curve in of_curves}
    return Law(document, Draws(parameters_of, logistic, {n: f.theta for n, f in laws.items()}, surface))


def _machine(runs: Runs) -> dict[str, Any]:
    """Return what runs say about their machine: the smallest cap on B_p · n, and their only framework."""
    known = runs.table()
    cap, framework = (known[name].dropna() if name in known else [] for name in OF_THE_MACHINE)
    names = {*framework}
    return {
        "max_batch_rollouts": int(min(cap)) if len(cap) else None,
        "framework": str(names.pop()) if len(names) == 1 else "",
    }


def _fit_all(
    selection: Selection,
    samples: list[NDArray[np.float64]],
    family: str,
    width: float | None,
) -> tuple[list[Curves], dict[str, int]]:
    """Fit every curve to the data and to each draw. Draws in which a curve fails are dropped.

    Returns the curves, and the number of failed draws by reason.
    """
    configurations = selection.configurations
    pairs = list(zip(configurations, samples, strict=True))
    if width is None:
        return [fit_curves(c.checkpoints, c.mean + s, c.runs_at[None], family) for c, s in pairs], {}
    rewards = [c.reward + sample[:, c.index] for c, sample in pairs]
    weights = [_records(c, reward, width) for c, reward in zip(configurations, rewards, strict=True)]
    # In these configurations the reward hardly rises. They are kept, since their n could be the best.
    flat = [i for i, weight in enumerate(weights) if not enough_points(weight[:1])[0]]
    if flat:
        listed = "; ".join(configurations[i].label for i in flat)
        if len(configurations) - len(flat) < LEAST_CURVES:
            raise Refused(
                f"fewer than {LEAST_CURVES} curves rise by the 5 record points that a fit needs; these do "
                f'not: {listed}. Run them for longer, or fit all checkpoints (in Python: records="off")'
            )
        text = f"isolaw fits all checkpoints of curves that hardly rise: {listed}"
        selection.flags.append(Flag(Code.HARDLY_RISES, text))
    for i in flat:
        weights[i][:] = 1.0
    usable = np.all([weight.sum(axis=1) >= 3 for weight in weights], axis=0)
    usable[0] = True
    lost = int((~usable).sum())
    failed = {"a curve with fewer than 3 points": lost} if lost else {}
    if lost > _MOST_FAILED * usable.size:
        usable[1:] = False
        text = 'too many draws failed; add seeds, or fit all checkpoints (in Python: records="off")'
        selection.flags.append(Flag(Code.NO_INTERVALS, text))
    return [
        fit_curves(c.compute, reward[usable], weight[usable], family)
        for c, reward, weight in zip(configurations, rewards, weights, strict=True)
    ], failed


def _records(c: Configuration, reward: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """Return weights of shape (D, P): 1 where a checkpoint is a record point of its run, 0 elsewhere."""
    out = np.empty(reward.shape)
    for run in range(c.runs):
        out[:, c.run == run] = record_mask(reward[:, c.run == run], width)
    return out


def _fit_law(path: NStarPath, x: NDArray[np.float64]) -> Logistic | None:
    """Fit the logistic law to n*, with censored points as bounds. Return None if all points are bounds."""
    if x.size < 5 or path.censored[0].all() or np.ptp(x) == 0:
        return None
    law = fit_logistic(x, path.log2_n, path.below, path.above)
    return law if np.all(np.isfinite(law(x)[0])) else None
