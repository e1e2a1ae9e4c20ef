"""From runs to a law, the paper's way (arXiv 2603.12151, section 4), and its bootstrap.

record points → learning curves → frontier → n*(C) → law; every draw repeats all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.errors import InputError, Refused
from isolaw.fits import frontier as frontiers
from isolaw.fits.bootstrap import resample
from isolaw.fits.compare import rules
from isolaw.fits.curves import FAMILIES, Curves, enough_points, fit_curves
from isolaw.fits.frontier import Crossover, Frontier
from isolaw.fits.law import FORMAT, Law
from isolaw.fits.logistic import Logistic, fit_logistic
from isolaw.fits.quantity import REFUSED, Quantity, from_draws
from isolaw.fits.records import WIDTH
from isolaw.fits.select import LEAST_CURVES, Configuration, Selection, Setting, select
from isolaw.runs import Runs

DRAWS = 400
# The plateau is stated only if the law has come this close to it (in doublings of n) where measured.
_FLAT_WITHIN = 0.5
_LEAST_ON_PLATEAU = 5


def fit(
    runs: Runs,
    metric: str = "avg@4",
    *,
    eval_set: str = "validation",
    setting: Setting = "fixed-bp",
    fixed: Mapping[str, Any] | None = None,
    curve: str = "exp",
    records: float | None = WIDTH,
    bootstrap: int = DRAWS,
    seed: int = 0,
) -> Law:
    """Fit the allocation law.

    Parameters
    ----------
    runs
        recorded runs (`isolaw.read`, `isolaw.sweep`).
    metric, eval_set
        what counts as reward.
    setting
        ``fixed-bp``, ``fixed-b`` or ``joint``.
    fixed
        what is held, as ``{"problems_per_batch": 32}``; any column or attribute of the runs.
    curve
        ``exp`` or ``hill``.
    records
        bin width of record points; None fits all checkpoints.
    bootstrap
        number of draws; 0: no intervals.
    seed
        of the draws.

    Raises
    ------
    DataError, InputError
        the runs do not hold what is asked for.
    Refused
        the runs cannot carry a law; the message says what to add.

    >>> import isolaw
    >>> runs = isolaw.sweep({"sweep": {"compute": 400_000, "seeds": 3},
    ...     "grid": {"rollouts_per_problem": [8, 32, 128, 512]}, "executor": {"kind": "inline"}})
    >>> law = isolaw.fit(runs, fixed={"problems_per_batch": 32}, bootstrap=50)
    >>> law.document["frontier"][-1]["n_star_strict"] in (8, 32, 128, 512)
    True
    """
    if curve not in FAMILIES:
        raise InputError(f"curve {curve!r}: accepted: {', '.join(FAMILIES)}")
    if records is not None and not (math.isfinite(records) and records > 0):
        raise InputError(f"records {records!r}: accepted: a positive width of reward, or off")
    if bootstrap < 0:
        raise InputError(f"bootstrap {bootstrap}: accepted: a number of draws, 0 for none")
    selection = select(runs, metric, eval_set, setting, fixed)
    configurations, curves, failed = _fit_all(selection, curve, records, bootstrap, seed)
    low, high = frontiers.supported_range(configurations)
    compute = np.geomspace(low, high, frontiers.POINTS)
    covered = np.any([c.covers(compute) for c in configurations], axis=0)
    frontier = frontiers.trace(configurations, curves, compute[covered])
    scale = 1 / selection.fixed["batch_rollouts"] if setting == "fixed-b" else 1.0
    x = frontier.compute * scale if setting == "fixed-b" else np.log10(frontier.compute)
    logistic = _fit_law(frontier, x)
    document = {
        "format": FORMAT,
        "setting": setting,
        "fixed": selection.fixed,
        "metric": metric,
        "eval_set": eval_set,
        "method": "paper",
        "curve": curve,
        "records": records,
        "x": {
            "name": "steps" if setting == "fixed-b" else "compute",
            "unit": "steps" if setting == "fixed-b" else "rollouts",
            "log10": setting != "fixed-b",
            "range": [low * scale, high * scale],
        },
        "grid": [_grid_entry(c) for c in configurations],
        "sources": [runs.source] if runs.source else [],
        "n_train_problems": selection.n_train_problems,
        "epochs_seen": selection.epochs_seen,
        "params": {k: q.to_dict() for k, q in _parameters(frontier, x, logistic, configurations).items()},
        "frontier": _frontier_entries(frontier, scale, bootstrap),
        "crossovers": _crossover_entries(configurations, curves, low, scale, bootstrap),
        "curves": [_curve_entry(c, k) for c, k in zip(configurations, curves, strict=True)],
        "bootstrap": {
            "unit": "run" if min(c.runs for c in configurations) > 1 else "block of residuals",
            "draws": bootstrap,
            "failed": sum(failed.values()),
            "reasons": failed,
            "seed": seed,
        },
        "comparison": rules(frontier, None if logistic is None else logistic(x)[0]),
    }
    document["warnings"] = _warnings(selection, configurations, frontier, document, scale)
    return Law(document, _draws(configurations, curves, logistic))


def _fit_all(
    selection: Selection, family: str, records: float | None, draws: int, seed: int
) -> tuple[list[Configuration], list[Curves], dict[str, int]]:
    """Fit every curve on the data and on each draw; drop the draws that any curve fails."""
    kept, samples = [], []
    for configuration in selection.configurations:
        key = (configuration.problems_per_batch, configuration.rollouts_per_problem)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
        reward, weights = resample(configuration, family, records, draws, rng)
        if not enough_points(weights[:1])[0]:
            selection.warnings.append(
                f"left out: {configuration.label} has {int((weights[0] > 0).sum())} record points, a curve "
                "needs 5; its reward hardly rises (--records off fits all checkpoints)"
            )
            continue
        kept.append(configuration)
        samples.append((reward, weights))
    if len({c.rollouts_per_problem for c in kept}) < LEAST_CURVES:
        raise Refused(
            f"only {len(kept)} curves have enough points for a law, {LEAST_CURVES} are needed: "
            + "; ".join(selection.warnings)
        )
    usable = np.all([(w > 0).sum(axis=1) >= 3 for _, w in samples], axis=0)
    usable[0] = True
    failed = {"a curve with fewer than 3 points": int((~usable).sum())} if not usable.all() else {}
    curves = []
    for configuration, (reward, weights) in zip(kept, samples, strict=True):
        chosen = reward if len(reward) == 1 else reward[usable]
        curves.append(fit_curves(configuration.compute, chosen, weights[usable], family))
    return kept, curves, failed


def _fit_law(frontier: Frontier, x: NDArray[np.float64]) -> Logistic | None:
    """Fit the law to strict n*, censored points as bounds; None where nothing but bounds is known."""
    log2_n = np.log2(frontier.levels)[frontier.strict]
    bounded = frontier.censored[0]
    if x.size < 5 or bounded.all() or np.ptp(x) == 0:
        return None
    both = frontier.below & frontier.above
    law = fit_logistic(x, log2_n, frontier.below & ~both, frontier.above & ~both)
    return law if np.all(np.isfinite(law(x)[0])) else None


def _parameters(
    frontier: Frontier, x: NDArray[np.float64], law: Logistic | None, configurations: list[Configuration]
) -> dict[str, Quantity]:
    names = ("b", "L", "k", "x0")
    if law is None:
        return dict.fromkeys((*names, "saturation"), REFUSED)
    strict, censored = frontier.strict[0], frontier.censored[0]
    known = np.flatnonzero(~censored)
    distinct = np.unique(strict[known]).size
    floor_seen = bool(known.size) and law(x[known[0]])[0, 0] - law.b[0] < _FLAT_WITHIN
    saturation = _saturation(frontier, x, law)
    shape_known = not law.on_bound[0] and distinct > 1 and law.L[0] > 0
    rise_known = shape_known and floor_seen and saturation.status == "ok"
    out = {
        "b": from_draws(law.b[0], law.b[1:], "ok" if shape_known and floor_seen else "upper_bound"),
        "L": from_draws(law.L[0], law.L[1:], "ok" if rise_known else "not_identified"),
        "k": from_draws(law.k[0], law.k[1:], "ok" if rise_known else "not_identified"),
        "x0": from_draws(law.x0[0], law.x0[1:], "ok" if rise_known else "not_identified"),
        "saturation": saturation,
    }
    return out


def _saturation(frontier: Frontier, x: NDArray[np.float64], law: Logistic) -> Quantity:
    """The n at which the law levels off, stated only where the data show it level off.

    Needs: the frontier at the end of its range neither censored nor at the grid's edge; the law
    within half a doubling of its plateau there, over at least five points; a plateau below the
    largest n in the estimate and in 97.5 % of draws. If the frontier ends at the grid's largest n
    with its neighbour measured, that n is a lower bound.
    """
    strict = frontier.strict[0]
    top = frontier.levels.size - 1
    if strict[-1] == top and not frontier.alone[0, -1]:
        reached = float(frontier.levels[strict[-1]])
        return from_draws(reached, frontier.levels[frontier.strict[1:, -1]], "lower_bound", discrete=True)
    edge = math.log2(frontier.levels[top]) - _FLAT_WITHIN
    flat = int(np.sum(law.plateau[0] - law(x)[0][~frontier.censored[0]] < _FLAT_WITHIN))
    identified = (
        not frontier.censored[0, -1]
        and flat >= _LEAST_ON_PLATEAU
        and law.plateau[0] <= edge
        and float(np.mean(law.plateau[1:] > edge + _FLAT_WITHIN)) <= 0.025
    )
    return from_draws(2.0 ** law.plateau[0], 2.0 ** law.plateau[1:]) if identified else REFUSED


def _grid_entry(c: Configuration) -> dict[str, Any]:
    return {
        "problems_per_batch": c.problems_per_batch,
        "rollouts_per_problem": c.rollouts_per_problem,
        "runs": c.runs,
        "checkpoints": int(c.compute.size),
        "measured": list(c.measured),
    }


def _frontier_entries(frontier: Frontier, scale: float, draws: int) -> list[dict[str, Any]]:
    levels = frontier.levels
    out = []
    for i, compute in enumerate(frontier.compute):
        below, above = bool(frontier.below[0, i]), bool(frontier.above[0, i])
        status: Any = "ok"
        if below or above:
            status = "not_identified" if below and above else "lower_bound" if below else "upper_bound"
        strict = int(levels[frontier.strict[0, i]])
        reasons = []
        if strict in (levels[0], levels[-1]):
            reasons.append("grid edge")
        if frontier.alone[0, i]:
            reasons.append("a neighbouring n was not measured here")
        sampled = levels[frontier.strict[1:, i]] if draws else None
        out.append(
            {
                "x": float(compute * scale),
                "n_star": from_draws(float(strict), sampled, status, discrete=True).to_dict(),
                "n_star_strict": strict,
                "n_star_tolerance": int(levels[frontier.tolerance[0, i]]),
                "reward": from_draws(float(frontier.best[0, i]), frontier.best[1:, i]).to_dict(),
                "censored": below or above,
                "censored_by": reasons,
            }
        )
    return out


def _crossover_entries(
    configurations: list[Configuration], curves: list[Curves], first: float, scale: float, draws: int
) -> list[dict[str, Any]]:
    out = []
    for crossing in frontiers.crossovers(configurations, curves, first):
        if crossing.supported:
            q = from_draws(crossing.draws[0] * scale, crossing.draws[1:] * scale if draws else None)
        else:
            q = _unsupported(crossing, scale)
        entry = q.to_dict()
        pair = {"from": crossing.from_, "to": crossing.to}
        out.append({**pair, "x": entry.pop("value"), "supported": crossing.supported, **entry})
    return out


def _unsupported(crossing: Crossover, scale: float) -> Quantity:
    """Where two curves would cross if continued, and the side on which the data leave it."""
    value = crossing.extrapolated * scale
    if crossing.shared is None:
        return Quantity(value, None, "not_identified")
    low, high = (end * scale for end in crossing.shared)
    if crossing.draws[0] > 0:
        # Not overtaken by the end of the shared range, or in some draws a little before.
        floor = float(np.quantile(crossing.draws, 0.05, method="inverted_cdf")) * scale
        return Quantity(value, (min(max(floor, low), high), None), "lower_bound")
    ceiling = float(np.quantile(crossing.draws, 0.95, method="inverted_cdf")) * scale
    return Quantity(value, (None, max(min(ceiling, high), low)), "upper_bound")


def _curve_entry(c: Configuration, curve: Curves) -> dict[str, Any]:
    parameters = curve.parameters()
    status: Any = "not_identified" if curve.on_bound[0] else "ok"
    return {
        "problems_per_batch": c.problems_per_batch,
        "rollouts_per_problem": c.rollouts_per_problem,
        **{
            name: from_draws(float(v[0]), v[1:], "ok" if name == "R0" else status).to_dict()
            for name, v in parameters.items()
        },
        "rms": float(curve.rms[0]),
        "measured": list(c.measured),
    }


def _draws(configurations: list[Configuration], curves: list[Curves], law: Logistic | None) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    if law is not None:
        columns.update(b=law.b, L=law.L, k=law.k, x0=law.x0)
    for c, curve in zip(configurations, curves, strict=True):
        prefix = f"{c.problems_per_batch}x{c.rollouts_per_problem}."
        columns.update({prefix + name: values for name, values in curve.parameters().items()})
    return pd.DataFrame(columns)


def _warnings(
    selection: Selection,
    configurations: list[Configuration],
    frontier: Frontier,
    document: dict[str, Any],
    scale: float,
) -> list[str]:
    out = []
    single = [c for c in configurations if c.runs == 1]
    if len(single) == len(configurations):
        out.append("one seed per configuration: intervals leave out the variation between seeds")
    elif single:
        out.append(f"one seed only, whose variation intervals leave out: {', '.join(c.label for c in single)}")
    top = int(frontier.levels[-1])
    at_top = frontier.compute[frontier.strict[0] == frontier.levels.size - 1] * scale
    symbol = "M" if selection.setting == "fixed-b" else "C"
    if at_top.size:
        out.append(
            f"n = {top} is the grid's edge: from {symbol} = {at_top.min():.3g} the frontier is at the largest "
            "n, so n* there is a lower bound; add runs with larger n"
        )
    alone = frontier.compute[frontier.alone[0]] * scale
    if alone.size:
        out.append(
            f"censored at {alone.size} of {frontier.compute.size} points ({symbol} = {alone.min():.3g} to "
            f"{alone.max():.3g}): a neighbouring n was not measured there"
        )
    if not document["comparison"]["monotone"]:
        out.append("n* comes down again by more than 0.005 in reward: a monotone law does not describe it")
    if document["params"]["saturation"]["status"] == "refused":
        out.append("no saturation level is stated: the data do not show n* levelling off inside the grid")
    unidentified = [
        f"B_p = {k['problems_per_batch']}, n = {k['rollouts_per_problem']}"
        for k in document["curves"]
        if k["A"]["status"] != "ok"
    ]
    if unidentified:
        out.append(f"still rising where measured, so the ceiling A is not determined: {'; '.join(unidentified)}")
    if document["bootstrap"]["failed"]:
        out.append(f"{document['bootstrap']['failed']} bootstrap draws failed: {document['bootstrap']['reasons']}")
    return out + selection.warnings
