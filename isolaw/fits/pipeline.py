"""From runs to a law, the paper's way (arXiv 2603.12151, section 4), and its bootstrap.

record points → learning curves → frontier → n*(C) → law; every draw repeats all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.errors import InputError, Refused
from isolaw.fits import document as doc
from isolaw.fits import frontier as frontiers
from isolaw.fits.bootstrap import resample, stream, weights_of_runs
from isolaw.fits.choose import choose
from isolaw.fits.compare import rules
from isolaw.fits.curves import FAMILIES, Curves, enough_points, fit_curves
from isolaw.fits.frontier import Frontier
from isolaw.fits.law import FORMAT, Law
from isolaw.fits.logistic import Logistic, fit_logistic
from isolaw.fits.records import WIDTH
from isolaw.fits.select import LEAST_CURVES, Configuration, Selection, Setting, select
from isolaw.runs import Runs

DRAWS = 400
MOST_DRAWS = 10_000
_MOST_FAILED = 0.05  # above this share the draws that are left are not a fair sample


def fit(
    runs: Runs,
    metric: str | None = None,
    *,
    eval_set: str | None = None,
    setting: Setting = "fixed-bp",
    fixed: Mapping[str, Any] | None = None,
    curve: str = "exp",
    records: float | Literal["off"] | None = WIDTH,
    bootstrap: int = DRAWS,
    seed: int = 0,
) -> Law:
    """Fit the allocation law.

    Parameters
    ----------
    runs
        recorded runs (`isolaw.read`, `isolaw.sweep`).
    metric, eval_set
        what counts as reward; ``avg@4`` on ``validation``, or the only accuracy there is
        (`isolaw.fits.choose`).
    setting
        ``fixed-bp``, ``fixed-b`` or ``joint``.
    fixed
        what is held, as ``{"problems_per_batch": 32}``; any column or attribute of the runs.
    curve
        ``exp`` or ``hill``.
    records
        bin width of record points; ``"off"`` or None fits all checkpoints.
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
    records = None if records == "off" else records
    if records is not None and not (math.isfinite(records) and records > 0):
        raise InputError(f"records {records!r}: accepted: a positive width of reward, or off")
    if not 0 <= bootstrap <= MOST_DRAWS:
        raise InputError(f"bootstrap {bootstrap}: accepted: draws up to {MOST_DRAWS}, 0 for none")
    metric, eval_set, said = choose(runs, metric, eval_set)
    selection = select(runs, metric, eval_set, setting, fixed)
    selection.warnings[:0] = said
    configurations, curves, failed = _fit_all(selection, curve, records, bootstrap, seed)
    low, high = frontiers.supported_range(configurations)
    compute = np.geomspace(low, high, frontiers.POINTS)
    covered = np.any([c.covers(compute) for c in configurations], axis=0)
    frontier = frontiers.trace(configurations, curves, compute[covered])
    scale = 1 / selection.fixed["batch_rollouts"] if setting == "fixed-b" else 1.0
    x = frontier.compute * scale if setting == "fixed-b" else np.log10(frontier.compute)
    logistic = _fit_law(frontier, x)
    comparison = rules(frontier, None if logistic is None else logistic(x)[0])
    parameters = doc.parameters(frontier, x, logistic, comparison["verdict"], selection.warnings)
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
        "grid": [doc.grid_entry(c) for c in configurations],
        "sources": [runs.source] if runs.source else [],
        "n_train_problems": selection.n_train_problems,
        "epochs_seen": selection.epochs_seen,
        "params": {k: q.to_dict() for k, q in parameters.items()},
        "frontier": doc.frontier_entries(frontier, scale, bootstrap),
        "crossovers": doc.crossover_entries(configurations, curves, low, scale, bootstrap),
        "curves": [doc.curve_entry(c, k) for c, k in zip(configurations, curves, strict=True)],
        "bootstrap": {
            "unit": doc.unit(configurations),
            "draws": bootstrap,
            "failed": sum(failed.values()),
            "reasons": failed,
            "seed": seed,
        },
        "comparison": {
            **comparison,
            "curves": {"basis": "rms of all checkpoints about their curves", **_misfit(configurations)},
        },
    }
    document["warnings"] = doc.warnings_of(selection, configurations, frontier, document, scale)
    return Law(document, _draws(configurations, curves, logistic))


def _fit_all(
    selection: Selection, family: str, records: float | None, draws: int, seed: int
) -> tuple[list[Configuration], list[Curves], dict[str, int]]:
    """Fit every curve on the data and on each draw; drop the draws that any curve fails."""
    kept, samples, flat = [], [], []
    run_weights = weights_of_runs(selection.configurations, draws, seed)
    for configuration, run_weight in zip(selection.configurations, run_weights, strict=True):
        rng = stream(configuration, seed)
        reward, weights = resample(configuration, family, records, run_weight, rng)
        if not enough_points(weights[:1])[0]:
            # Its reward hardly rises, which is no reason to leave out what may be the best n.
            flat.append(configuration.label)
            reward, weights = resample(configuration, family, None, run_weight, stream(configuration, seed))
        kept.append(configuration)
        samples.append((reward, weights))
    if flat:
        listed = "; ".join(flat)
        if len(kept) - len(flat) < LEAST_CURVES:
            raise Refused(
                f"fewer than {LEAST_CURVES} curves rise by the 5 record points that a fit needs "
                f"(these do not: {listed}); longer runs may, and --records off fits all of them"
            )
        selection.warnings.append(f"hardly rises, so all its checkpoints are fitted: {listed}")
    usable = np.all([(w > 0).sum(axis=1) >= 3 for _, w in samples], axis=0)
    usable[0] = True
    failed = {"a curve with fewer than 3 points": int((~usable).sum())} if not usable.all() else {}
    if np.mean(~usable) > _MOST_FAILED:
        usable[1:] = False
        selection.warnings.append("no intervals: too many draws failed; more seeds, or --records off, help")
    curves = []
    for configuration, (reward, weights) in zip(kept, samples, strict=True):
        chosen = reward if len(reward) == 1 else reward[usable]
        curves.append(fit_curves(configuration.compute, chosen, weights[usable], family))
    return kept, curves, failed


def _misfit(configurations: list[Configuration]) -> dict[str, float]:
    """The root mean squared residual of each curve family, corrected for its parameters."""
    points = sum(c.compute.size for c in configurations)
    out = {}
    for name, family in FAMILIES.items():
        sse = 0.0
        for c in configurations:
            curve = fit_curves(c.compute, c.reward[None], np.ones((1, c.reward.size)), name)
            sse += float(curve.rms[0] ** 2) * c.reward.size
        parameters = len(configurations) * (2 + len(family.shape_names))
        out[name] = math.sqrt(sse / max(points - parameters, 1))
    return out


def _fit_law(frontier: Frontier, x: NDArray[np.float64]) -> Logistic | None:
    """Fit the law to strict n*, censored points as bounds; None where nothing but bounds is known."""
    log2_n = np.log2(frontier.levels)[frontier.strict]
    bounded = frontier.censored[0]
    if x.size < 5 or bounded.all() or np.ptp(x) == 0:
        return None
    law = fit_logistic(x, log2_n, frontier.below, frontier.above)
    return law if np.all(np.isfinite(law(x)[0])) else None


def _draws(configurations: list[Configuration], curves: list[Curves], law: Logistic | None) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    if law is not None:
        columns.update(b=law.b, L=law.L, k=law.k, x0=law.x0)
    for c, curve in zip(configurations, curves, strict=True):
        prefix = f"{c.problems_per_batch}x{c.rollouts_per_problem}."
        columns.update({prefix + name: values for name, values in curve.parameters().items()})
    return pd.DataFrame(columns)
