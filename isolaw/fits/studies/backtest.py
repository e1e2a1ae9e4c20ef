"""Backtest: would small runs have predicted the best allocation of a larger budget?

isolaw fits a law to the checkpoints with compute ≤ c of all seeds but one, and the law recommends an
allocation for budgets above c. So do rules that a practitioner would use instead. The held-out seed judges
each recommendation by a reward surface fitted to all of that seed's checkpoints:

    loss = max over measured allocations of the surface − the surface at the allocation

averaged over held-out seeds. An n beyond the measured ones is judged as the nearest measured n. The maximum
of a noisy surface is biased upward, which raises every rule's loss equally, so differences are fair. With
one seed, the later checkpoints of the same runs judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np

from isolaw.allocation import BatchShape
from isolaw.errors import InputError, Refused
from isolaw.fits.frontier import TOLERANCE, supported_range
from isolaw.fits.metric import choose
from isolaw.fits.pipeline import fit
from isolaw.fits.predict import Prediction
from isolaw.fits.quantity import number
from isolaw.fits.reward_unit import bounds, unit_of
from isolaw.fits.selection import LEAST_CURVES, Configuration, Floats, select, setting_of
from isolaw.fits.surface.estimate import Surface, estimate
from isolaw.fits.surface.slices import Slices, slices
from isolaw.renamed import renamed
from isolaw.runs import Runs
from isolaw.source import ReadKeywords, Source

_BUDGETS = 4
FIXED = 16
_SAME = 1e-6  # doublings


class RuleResult(TypedDict):
    """The result of one rule: isolaw's recommendation, or a practitioner's choice without a law."""

    allocations: list[list[list[int]]]  #: [B_p, n], by budget and split
    loss: list[float]  #: by budget: the reward that the rule loses against the best measured allocation
    mean_loss: float  #: over budgets
    regret: list[float]  #: the former name of ``loss``, for one more minor release
    mean_regret: float  #: the former name of ``mean_loss``
    #: the mean ``difference`` in loss, and its ``standard_error`` over seeds, None for one seed
    against_isolaw: dict[str, float | None]
    n_star_error: NotRequired[list[float]]  #: only for isolaw: error of n* in doublings, by budget


class BacktestResult(TypedDict):
    """The result of `backtest`: what isolaw and simple rules lose at larger budgets."""

    simulated: bool | str  #: whether a simulator made the runs: true, false or "partly"
    fit_below: float
    budgets: list[float]  #: C each
    held_out: Literal["seed", "later checkpoints"]
    seeds: int
    tolerance: float  #: rewards this close count as equal, in the metric's own units
    rules: dict[str, RuleResult]  #: ``isolaw`` and each baseline


class _Judged(NamedTuple):
    """A rule's choice at each budget, its loss there, and the law's error in n*."""

    places: list[BatchShape]
    loss: Floats
    error: Floats


@renamed
def backtest(
    runs: Source,
    fit_below: float,
    metric: str | None = None,
    *,
    eval_set: str | None = None,
    hold: Any = "B_p",
    where: Mapping[str, Any] | None = None,
    **options: Any,
) -> BacktestResult:
    """Fit the checkpoints up to the compute ``fit_below``, and judge the recommendations above it.

    All other arguments, including those for reading, are those of `isolaw.fit`.

    Raises
    ------
    InputError
        nothing was measured above ``fit_below``.
    Refused
        too little was measured below it, or above it.

    >>> import isolaw
    >>> runs = isolaw.sweep({"sweep": {"compute": 800_000, "seeds": 2},
    ...     "grid": {"rollouts_per_problem": [8, 32, 128, 512]}, "executor": {"kind": "inline"}})
    >>> result = backtest(runs, 200_000, draws=50)
    >>> sorted(result["rules"])
    ['best small run', 'isolaw', 'largest n', 'n = 16']
    """
    reading: Any = {name: options.pop(name) for name in ReadKeywords.__annotations__ if name in options}
    from isolaw.readers.read import as_runs

    runs = as_runs(runs, metric, **reading)
    metric, eval_set, _ = choose(runs, metric, eval_set)
    setting = setting_of(hold)
    selection = select(runs, metric, eval_set, setting, where)
    low, high = supported_range(selection.configurations)
    if not low < fit_below < high:
        accepted = f"a measured compute, {number(low)} to {number(high)}"
        raise InputError(f"fit_below: found {number(fit_below)}; expected {accepted}")
    where = selection.fixed
    budgets = np.geomspace(fit_below, high, _BUDGETS + 1)[1:]
    splits = _splits(runs, [set(c.seeds) for c in selection.configurations])
    judged = []
    for training, judging in splits:
        small = Runs(training.points[training.points["compute"] <= fit_below], training.attributes)
        try:
            law = fit(small, metric, eval_set=eval_set, hold=hold, where=where, **options)
        except Refused as error:
            raise Refused(f"the runs below {number(fit_below)} do not support a law: {error}") from None
        before, after = (
            select(own, metric, eval_set, setting, where).configurations for own in (small, judging)
        )
        predictions = [law.predict(float(c)) for c in budgets]
        places = {"isolaw": _recommended(predictions, fit_below, budgets), **_baselines(before, budgets)}
        surface = estimate(after, 0, bounds=bounds(metric, after))
        judged.append(_judge(predictions, surface, after, budgets, places))
    return {
        "simulated": runs.select(selection.run_ids).simulated.json,
        "fit_below": float(fit_below),
        "budgets": budgets.tolist(),
        "held_out": "seed" if len(splits) > 1 else "later checkpoints",
        "seeds": len(splits),
        "tolerance": TOLERANCE * unit_of(metric, selection.configurations),
        "rules": {rule: _summary(rule, judged) for rule in judged[0]},
    }


def _splits(runs: Runs, seeds: list[set[int]]) -> list[tuple[Runs, Runs]]:
    """Return (training, judging) runs with each seed held out in turn; with one seed, all runs are both."""
    shared = sorted(set.intersection(*seeds))
    if len(shared) < 2:
        return [(runs, runs)]
    table = runs.table()
    out = []
    for seed in shared:
        held = table["seed"] == seed
        out.append((runs.select(table.index[~held]), runs.select(table.index[held])))
    return out


def _recommended(predictions: list[Prediction], fit_below: float, budgets: Floats) -> list[BatchShape]:
    found = [p.allocation for p in predictions]
    chosen = [(a.problems_per_batch, a.rollouts_per_problem) for a in found if a is not None]
    if len(chosen) < len(found):
        raise Refused(
            f"from checkpoints up to {number(fit_below)}, isolaw recommends no allocation for "
            f"{number(budgets[-1])}; choose a larger --fit-below"
        )
    return chosen


def _baselines(found: list[Configuration], budgets: Floats) -> dict[str, list[BatchShape]]:
    """Return a practitioner's choices without a law, the same at every budget."""
    largest = max(found, key=lambda c: (c.rollouts_per_problem, -c.problems_per_batch))
    # The best run at the end of the small budget, by the mean of its last tenth of checkpoints.
    best = max(found, key=lambda c: float(c.mean[-max(1, c.mean.size // 10) :].mean()))
    near = min(found, key=lambda c: (abs(np.log2(c.rollouts_per_problem / FIXED)), c.problems_per_batch))
    chosen = {"largest n": largest, "best small run": best, f"n = {FIXED}": near}
    return {k: [c.key] * budgets.size for k, c in chosen.items()}


def _judge(
    predictions: list[Prediction],
    surface: Surface,
    configurations: list[Configuration],
    budgets: Floats,
    places: dict[str, list[BatchShape]],
) -> dict[str, _Judged]:
    n = np.array([c.rollouts_per_problem for c in configurations])
    between = [np.log2(own)[::-1] for own in places["isolaw"] if n.min() < own[1] < n.max()]
    judge = slices(surface, budgets, more=np.array(between) if between else None)
    covered = np.array([c.covers(budgets) for c in configurations])
    best = judge.reward[0].max(axis=1)
    star = np.log2([p.n_star.value or np.nan for p in predictions])
    error = star - judge.log2_n[judge.best[0]]
    out = {}
    for name, chosen in places.items():
        loss = np.full(budgets.size, np.nan)
        for x, place in enumerate(chosen):
            at = _where(judge, place)
            if at is not None and np.unique(n[covered[:, x]]).size >= LEAST_CURVES:
                loss[x] = best[x] - judge.reward[0, x, at]
        out[name] = _Judged(chosen, loss, error)
    return out


def _where(judge: Slices, place: BatchShape) -> int | None:
    """Return the index of the allocation (B_p, n), n clipped to the measured range; None if there is none."""
    b, n = np.log2(place)
    held_b = b + n  # B, if it is fixed
    n = float(np.clip(n, judge.log2_n.min(), judge.log2_n.max()))
    if np.ptp(judge.log2_n + judge.log2_b) < _SAME < np.ptp(judge.log2_b):
        b = held_b - n
    distance = np.abs(judge.log2_n - n) + np.abs(judge.log2_b - b)
    return int(distance.argmin()) if distance.min() < _SAME else None


def _summary(rule: str, judged: list[dict[str, _Judged]]) -> RuleResult:
    loss, ours = (np.array([split[name].loss for split in judged]) for name in (rule, "isolaw"))
    if np.isnan(loss).any():
        raise Refused(
            "fewer than 3 different n were measured at the larger budgets, so isolaw cannot judge the "
            "choices; run the smaller n for longer, or choose a smaller --fit-below"
        )
    difference = (loss - ours).mean(axis=1)
    error = float(difference.std(ddof=1) / np.sqrt(difference.size)) if difference.size > 1 else None
    by_budget = zip(*(split[rule].places for split in judged), strict=True)
    out: RuleResult = {
        "allocations": [[list(place) for place in places] for places in by_budget],
        "loss": loss.mean(axis=0).tolist(),
        "mean_loss": float(loss.mean()),
        "regret": loss.mean(axis=0).tolist(),
        "mean_regret": float(loss.mean()),
        "against_isolaw": {"difference": float(difference.mean()), "standard_error": error},
    }
    if rule == "isolaw":
        out["n_star_error"] = np.mean([split[rule].error for split in judged], axis=0).tolist()
    return out
