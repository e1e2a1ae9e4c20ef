"""Backtest: would the small runs have told what to do with a larger budget?

The law is fitted to the checkpoints with compute ≤ c of all seeds but one, and names an allocation for
budgets above c; so do rules that a practitioner would use instead. Each is judged on the seed left out, by
the reward surface fitted to all of its checkpoints:

    regret = max over measured allocations of the surface − the surface at the allocation

and the mean is taken over the seeds left out in turn. The maximum of a noisy surface is too high, so every
rule's regret is too large by the same amount: differences are fair. With one seed there is nothing to leave
out; then the same runs' later checkpoints judge, and the result says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from isolaw.errors import InputError, Refused
from isolaw.fits.frontier.trace import supported_range
from isolaw.fits.law import Law
from isolaw.fits.metric import choose
from isolaw.fits.pipeline import bounds, fit
from isolaw.fits.selection import LEAST_CURVES, Configuration, Floats, select
from isolaw.fits.surface.estimate import Surface, estimate
from isolaw.fits.surface.slices import Slices, slices
from isolaw.runs import Runs

_BUDGETS = 4
FIXED = 16
_SAME = 1e-6  # doublings


def backtest(
    runs: Runs,
    fit_below: float,
    metric: str | None = None,
    *,
    eval_set: str | None = None,
    setting: Any = "fixed-bp",
    fixed: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Fit below a compute, and judge what that recommends above it.

    Parameters
    ----------
    runs
        as for `isolaw.fit`.
    fit_below
        c: checkpoints beyond it are not seen by the fit.
    metric, eval_set, setting, fixed, options
        as for `isolaw.fit`.

    Returns
    -------
    ``fit_below``, ``budgets`` (C each), ``held_out`` ("seed" or "later checkpoints"), ``seeds``, and
    ``rules``: for ``isolaw`` and each baseline its ``allocations`` (B_p, n) by budget, one of every split,
    ``regret`` by budget, its mean, ``against_isolaw`` (mean difference and its standard error over seeds,
    None for one), and for isolaw ``n_star_error`` in doublings.

    Raises
    ------
    InputError
        nothing was measured above c.
    Refused
        too little was measured below it, or above it.

    >>> import isolaw
    >>> runs = isolaw.sweep({"sweep": {"compute": 800_000, "seeds": 2},
    ...     "grid": {"rollouts_per_problem": [8, 32, 128, 512]}, "executor": {"kind": "inline"}})
    >>> result = backtest(runs, 200_000, bootstrap=50)
    >>> sorted(result["rules"])
    ['best small run', 'isolaw', 'largest n', 'n = 16']
    """
    metric, eval_set, _ = choose(runs, metric, eval_set)
    selection = select(runs, metric, eval_set, setting, fixed)
    low, high = supported_range(selection.configurations)
    if not low < fit_below < high:
        raise InputError(
            f"fit_below {fit_below:g}: accepted: a compute inside the measured range, {low:.4g} to {high:.4g}"
        )
    fixed = {**(fixed or {}), **selection.fixed}
    keywords: dict[str, Any] = {"eval_set": eval_set, "setting": setting, "fixed": fixed}
    budgets = np.geomspace(fit_below, high, _BUDGETS + 1)[1:]
    splits = _splits(runs, [set(c.seeds) for c in selection.configurations])
    judged: list[dict[str, Any]] = []
    for training, judging in splits:
        small = Runs(training.points[training.points["compute"] <= fit_below], training.attributes)
        try:
            law = fit(small, metric, **keywords, **options)
        except Refused as error:
            raise Refused(f"below {fit_below:g} there is too little to fit: {error}") from None
        chosen = select(judging, metric, eval_set, setting, fixed).configurations
        surface = estimate(chosen, 0, bounds=bounds(metric, chosen))
        judged.append(_judge(law, surface, chosen, budgets, _baselines(small, metric, keywords)))
    return {
        "fit_below": float(fit_below),
        "budgets": budgets.tolist(),
        "held_out": "seed" if len(splits) > 1 else "later checkpoints",
        "seeds": len(splits),
        "rules": {rule: _summary(rule, judged) for rule in judged[0]},
    }


def _splits(runs: Runs, seeds: list[set[int]]) -> list[tuple[Runs, Runs]]:
    """Every seed that all configurations have, left out in turn; all runs on both sides if there is one."""
    shared = sorted(set.intersection(*seeds))
    if len(shared) < 2:
        return [(runs, runs)]
    table = runs.table()
    out = []
    for seed in shared:
        held = table["seed"] == seed
        out.append((runs.select(table.index[~held]), runs.select(table.index[held])))
    return out


def _baselines(small: Runs, metric: str, keywords: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """What one would do without a law, as (B_p, n)."""
    found = select(small, metric, keywords["eval_set"], keywords["setting"], keywords["fixed"]).configurations
    largest = max(found, key=lambda c: (c.rollouts_per_problem, -c.problems_per_batch))
    # The best run at the end of the small budget: the mean of its last tenth of checkpoints.
    best = max(found, key=lambda c: float(c.mean[-max(1, c.mean.size // 10) :].mean()))
    near = min(found, key=lambda c: (abs(np.log2(c.rollouts_per_problem / FIXED)), c.problems_per_batch))
    places = {"largest n": largest, "best small run": best, f"n = {FIXED}": near}
    return {name: (c.problems_per_batch, c.rollouts_per_problem) for name, c in places.items()}


def _judge(
    law: Law,
    surface: Surface,
    configurations: list[Configuration],
    budgets: Floats,
    baselines: Mapping[str, tuple[int, int]],
) -> dict[str, Any]:
    predictions = [law.predict(float(c)) for c in budgets]
    ours = [p.allocation for p in predictions if p.allocation is not None]
    if len(ours) < len(predictions):
        raise Refused(
            f"from runs of less than {budgets[0]:.3g} nothing is recommended for {budgets[-1]:.3g}; "
            "choose a larger --fit-below"
        )
    places: dict[str, list[tuple[int, int]]] = {
        "isolaw": [(a.problems_per_batch, a.rollouts_per_problem) for a in ours],
        **{name: [place] * budgets.size for name, place in baselines.items()},
    }
    n = np.array([c.rollouts_per_problem for c in configurations])
    between = [float(np.log2(own)) for _, own in places["isolaw"] if n.min() < own < n.max()]
    judge = slices(surface, budgets, more=between)
    compared = [
        np.unique(n[[c.covers(budgets[x : x + 1])[0] for c in configurations]]).size >= LEAST_CURVES
        for x in range(budgets.size)
    ]
    best = judge.reward[0].max(axis=1)
    out: dict[str, Any] = {}
    for name, chosen in places.items():
        losses = [
            float(best[x] - judge.reward[0, x, at]) if compared[x] and at is not None else np.nan
            for x, at in enumerate(_where(judge, place) for place in chosen)
        ]
        out[name] = {"places": chosen, "losses": losses}
    star = np.log2([p.n_star.value or np.nan for p in predictions])
    out["isolaw"]["error"] = (star - judge.log2_n[judge.best[0]]).tolist()
    return out


def _where(judge: Slices, place: tuple[int, int]) -> int | None:
    """The allocation that is (B_p, n), None where the judge has no runs on either side of it."""
    b, n = np.log2(place)
    distance = np.abs(judge.log2_n - n) + np.abs(judge.log2_b - b)
    return int(distance.argmin()) if distance.min() < _SAME else None


def _summary(rule: str, judged: list[dict[str, Any]]) -> dict[str, Any]:
    losses = np.array([split[rule]["losses"] for split in judged])
    ours = np.array([split["isolaw"]["losses"] for split in judged])
    if np.isnan(losses).any():
        raise Refused(
            "at the larger budgets fewer than 3 different n were measured, so there is nothing to judge by; "
            "run the smaller n for longer, or choose a smaller --fit-below"
        )
    difference = (losses - ours).mean(axis=1)
    error = float(difference.std(ddof=1) / np.sqrt(difference.size)) if difference.size > 1 else None
    out: dict[str, Any] = {
        "allocations": [
            [list(place) for place in places]
            for places in zip(*(split[rule]["places"] for split in judged), strict=True)
        ],
        "regret": losses.mean(axis=0).tolist(),
        "mean_regret": float(losses.mean()),
        "against_isolaw": {"difference": float(difference.mean()), "standard_error": error},
    }
    if rule == "isolaw":
        out["n_star_error"] = np.mean([split[rule]["error"] for split in judged], axis=0).tolist()
    return out
