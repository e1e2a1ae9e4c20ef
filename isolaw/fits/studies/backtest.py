"""Backtest: would small runs have predicted the best allocation of a larger budget?

isolaw fits a law to the checkpoints with compute ≤ c of all seeds but one. The law, and simple rules that a
practitioner would use instead, recommend an allocation for budgets above c. Each recommendation is evaluated
on the held-out seed, with a reward surface fitted to all of that seed's checkpoints:

    loss = max over measured allocations of the surface − the surface at the allocation

The loss is averaged over held-out seeds. An n beyond the measured range counts as the nearest measured n. The
maximum of a noisy surface is biased upward. This raises the loss of every rule equally, so differences
between rules are unbiased. With only one seed, recommendations are evaluated on later checkpoints of the same
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np

from isolaw.allocation import BatchShape, axis_of
from isolaw.arguments import checked
from isolaw.errors import InputError, Refused
from isolaw.evidence import number
from isolaw.fits.allocations import FAR, comparable_compute, reached_compute, times_beyond
from isolaw.fits.document.schema import GridEntry
from isolaw.fits.frontier import TOLERANCE, supported_range
from isolaw.fits.law_document import grid_entry
from isolaw.fits.metric import bounds, read_reward, unit_of
from isolaw.fits.pipeline import DRAWS, fit_selection
from isolaw.fits.predict import choose
from isolaw.fits.rules import simple_rules
from isolaw.fits.selection import LEAST_CURVES, Configuration, Floats, Hold, select, usual_hold
from isolaw.fits.surface.estimate import Surface, estimate
from isolaw.fits.surface.slices import Slices, slices
from isolaw.runs import ReadKeywords, Runs, Source

_BUDGETS = 4
_MOST_HELD_OUT = 5  # seeds: each is a fit
USUAL_N = 16
_PLACE_TOLERANCE = 1e-6  # tolerance in comparisons of places, in doublings


class RuleResult(TypedDict):
    """The result of one rule, which is isolaw's recommendation or a practitioner's choice without a law."""

    allocations: list[list[list[int]]]  #: [B_p, n] for each budget and split
    loss: list[float]  #: loss of reward relative to the best measured allocation, for each budget
    mean_loss: float  #: mean of ``loss`` over budgets
    #: the mean ``difference`` in loss from isolaw, and its ``standard_error`` over seeds (None for one seed)
    against_isolaw: dict[str, float | None]


class BacktestResult(TypedDict):
    """The result of `backtest`: the losses of isolaw and of simple rules at larger budgets."""

    simulated: bool  #: whether a simulator made any of the runs
    fit_below: float
    budgets: list[float]  #: the larger budgets C
    held_out: Literal["seed", "later checkpoints"]
    seeds: int
    tolerance: float  #: rewards within this difference count as equal, in the metric's own units
    rules: dict[str, RuleResult]  #: results of ``isolaw`` and of each baseline


class _Judgement(NamedTuple):
    """A rule's choice and loss at each budget."""

    shapes: list[BatchShape]
    loss: Floats


@checked
def backtest(
    runs: Source,
    fit_below: float,
    metric: str | None = None,
    *,
    eval_set: str | None = None,
    hold: Hold | None = None,
    where: Mapping[str, Any] | None = None,
    method: Literal["surface", "paper"] = "surface",
    draws: int = DRAWS,
    seed: int = 0,
    progress: Callable[[float], None] = lambda _: None,
    **reading: Unpack[ReadKeywords],
) -> BacktestResult:
    """Fit the checkpoints up to the compute ``fit_below``, and evaluate recommendations for larger budgets.

    ``progress`` is called with the share done. All other arguments, including keywords for reading, are the
    same as in `isolaw.fit`.

    Raises
    ------
    InputError
        ``fit_below`` is not within the measured range of compute.
    Refused
        there are too few measurements below or above ``fit_below``.

    >>> import isolaw
    >>> runs = isolaw.sweep({"sweep": {"compute": 800_000, "seeds": 2},
    ...     "grid": {"rollouts_per_problem": [8, 32, 128, 512]}, "executor": {"kind": "inline"}})
    >>> result = backtest(runs, 200_000, draws=10)
    >>> sorted(result["rules"])
    ['IsoFLOP', 'best measured', 'isolaw', 'largest n', 'n = 16']
    """
    runs, metric, eval_set, _ = read_reward(runs, metric, eval_set, reading)
    hold = hold or usual_hold(runs, where)
    selection = select(runs, metric, eval_set, hold, where)
    low, high = supported_range(selection.configurations)[0], horizon(selection.configurations)
    if not low < fit_below < high:
        expected = f"a measured compute, {number(low)} to {number(high)}"
        raise InputError(f"fit_below: found {number(fit_below)}; expected {expected}")
    where = selection.fixed
    budgets = np.geomspace(fit_below, high, _BUDGETS + 1)[1:]
    seeds = sorted(set.intersection(*(set(c.seeds) for c in selection.configurations)))[:_MOST_HELD_OUT]
    splits = len(seeds) if len(seeds) > 1 else 1
    judgements: list[dict[str, _Judgement]] = []
    for training, judging in _splits(runs, seeds):
        progress(len(judgements) / splits)
        judges = select(judging, metric, eval_set, hold, where).configurations
        if not _is_judged(judges, budgets):
            raise Refused(
                "fewer than 3 different n were measured at the larger budgets, so isolaw cannot judge the "
                "choices; run them for longer"
            )
        small_runs = training.part(lambda table: table["compute"] <= fit_below)
        below = select(small_runs, metric, eval_set, hold, where)
        if times_beyond(budgets[-1], [grid_entry(c) for c in below.configurations]) > FAR:
            raise _no_allocation(fit_below, budgets)
        try:
            law = fit_selection(small_runs, below, method, draws=draws, seed=seed, equations=False, points=1)
        except Refused as error:
            raise Refused(f"the runs below {number(fit_below)} do not support a law: {error}") from None
        options = [choose(law, float(c)).options for c in budgets]
        if not all(options):
            raise _no_allocation(fit_below, budgets)
        best = [option.allocation for option, *_ in options]
        shapes = [(a.problems_per_batch, a.rollouts_per_problem) for a in best]
        choices = {"isolaw": shapes, **_baselines(below.configurations, budgets)}
        surface = estimate(judges, 0, bounds=bounds(metric, judges), unit=unit_of(metric, judges))
        judgements.append(_judge(surface, judges, budgets, choices))
    return {
        "simulated": runs.select(selection.run_ids).simulated.json,
        "fit_below": float(fit_below),
        "budgets": budgets.tolist(),
        "held_out": "seed" if splits > 1 else "later checkpoints",
        "seeds": splits,
        "tolerance": TOLERANCE * unit_of(metric, selection.configurations),
        "rules": {rule: _summary(rule, judgements) for rule in judgements[0]},
    }


def horizon(grid: Sequence[GridEntry | Configuration]) -> float:
    """Return the largest compute at which the runs can judge a choice.

    It is the compute of the longest run, or if fewer than three n ran that far, the compute that three n
    reached.
    """
    longest = max(entry.measured[1] for entry in grid)
    return longest if comparable_compute(grid) > longest else reached_compute(grid) or longest


def _is_judged(configurations: list[Configuration], budgets: Floats) -> bool:
    """Return whether runs measured enough n at every budget to judge a choice."""
    n_values = np.array([c.rollouts_per_problem for c in configurations])
    is_covered = np.array([c.covers(budgets) for c in configurations])
    return min(np.unique(n_values[mask]).size for mask in is_covered.T) >= LEAST_CURVES


def _splits(runs: Runs, seeds: list[int]) -> Iterator[tuple[Runs, Runs]]:
    """Yield pairs of training and evaluation runs, with each seed held out in turn.

    With fewer than two seeds, both parts of the only pair contain all runs.
    """
    if len(seeds) < 2:
        yield runs, runs
        return
    table = runs.table()
    for seed in seeds:
        is_held_out = table["seed"] == seed
        yield runs.select(table.index[~is_held_out]), runs.select(table.index[is_held_out])


def _no_allocation(fit_below: float, budgets: Floats) -> Refused:
    end = number(budgets[-1])
    return Refused(f"from checkpoints up to {number(fit_below)}, isolaw recommends no allocation for {end}")


def _baselines(measured: list[Configuration], budgets: Floats) -> dict[str, list[BatchShape]]:
    """Return what simple rules choose without a law (`isolaw.fits.rules`, the largest n, and a usual n).

    IsoFLOP chooses along the line of the best measured allocation.
    """
    largest = max(measured, key=lambda c: (c.rollouts_per_problem, -c.problems_per_batch))
    near = min(measured, key=lambda c: (abs(np.log2(c.rollouts_per_problem / USUAL_N)), c.problems_per_batch))
    rules = simple_rules(measured)
    best = next(c for c in measured if c.key == rules.best)
    choice_of_rule = {"largest n": largest, "best measured": best, f"n = {USUAL_N}": near}
    shapes = {rule: [c.key] * budgets.size for rule, c in choice_of_rule.items()}
    if rules.isoflop is not None:  # the measured configuration next to its choice
        axis, levels = axis_of(measured), [rules.choices(float(c))["isoflop"] for c in budgets]
        any_batch = axis == "problems_per_batch" or len({c.batch_rollouts for c in measured}) == 1
        on_line = [c for c in measured if any_batch or c.problems_per_batch == best.problems_per_batch]
        shapes["IsoFLOP"] = [min(on_line, key=lambda c: abs(np.log2(c.level(axis) / n))).key for n in levels]
    return shapes


def _judge(
    surface: Surface,
    configurations: list[Configuration],
    budgets: Floats,
    choices: dict[str, list[BatchShape]],
) -> dict[str, _Judgement]:
    n = np.array([c.rollouts_per_problem for c in configurations])
    between = [np.log2(shape)[::-1] for shape in choices["isolaw"] if n.min() < shape[1] < n.max()]
    cut = slices(surface, budgets, more=np.array(between) if between else None)
    best = cut.reward[0].max(axis=1)
    result = {}
    for rule, shapes in choices.items():
        indices = [index for shape in shapes if (index := _index_of(cut, shape)) is not None]
        if len(indices) < len(shapes):
            raise Refused(f"the runs that judge were not made near the choice of the rule {rule!r}")
        result[rule] = _Judgement(shapes, best - cut.reward[0, np.arange(budgets.size), indices])
    return result


def _index_of(cut: Slices, shape: BatchShape) -> int | None:
    """Return the index of an allocation (B_p, n) in the slices, or None if the slices lack it.

    n is clipped to the measured range.
    """
    b, n = np.log2(shape)
    log2_batch = b + n  # B, if it is fixed
    n = float(np.clip(n, cut.log2_n.min(), cut.log2_n.max()))
    if np.ptp(cut.log2_n + cut.log2_b) < _PLACE_TOLERANCE < np.ptp(cut.log2_b):
        b = log2_batch - n
    distance = np.abs(cut.log2_n - n) + np.abs(cut.log2_b - b)
    return int(distance.argmin()) if distance.min() < _PLACE_TOLERANCE else None


def _summary(rule: str, judgements: list[dict[str, _Judgement]]) -> RuleResult:
    loss, isolaw_loss = (np.array([split[name].loss for split in judgements]) for name in (rule, "isolaw"))
    difference = (loss - isolaw_loss).mean(axis=1)
    error = float(difference.std(ddof=1) / np.sqrt(difference.size)) if difference.size > 1 else None
    by_budget = zip(*(split[rule].shapes for split in judgements), strict=True)
    return {
        "allocations": [[list(shape) for shape in shapes] for shapes in by_budget],
        "loss": loss.mean(axis=0).tolist(),
        "mean_loss": float(loss.mean()),
        "against_isolaw": {"difference": float(difference.mean()), "standard_error": error},
    }
