"""Compare two recipes (or models, or problem sets) by their learning curves, as ScaleRL does.

In Khatri et al., arXiv 2510.13786, the reward R as a function of compute C is a Hill curve,

    R(C) = R0 + (A − R0) / (1 + (C_mid / C)^B)

from R0 to the ceiling A. A shows which recipe ends higher; the midpoint C_mid and the exponent B show which
recipe learns faster. Three results come from a pool of families (`isolaw.fits.curves.pooled`), since
checkpoints rarely distinguish the families: the ceiling, rewards past the runs, and the end predicted from
the first half. The recipes are compared at each common (B_p, n) and on average. Intervals come from
resampling the runs (`isolaw.fits.surface.bootstrap`), and each draw repeats all fits. If both recipes ran the
same seeds, draws pair runs by seed, so effects that the recipes share cancel in the difference. Otherwise,
the draws of the recipes are independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Unpack

import numpy as np

from isolaw.allocation import BatchShape
from isolaw.arguments import checked
from isolaw.errors import DataError, Refused
from isolaw.evidence import Quantity, Simulated, Status, estimated
from isolaw.fits.blas import one_blas_thread
from isolaw.fits.curves.learning_curves import Curves, enough_points
from isolaw.fits.curves.pooled import pooled
from isolaw.fits.document.codec import encoded
from isolaw.fits.flags import Code, Flag, Flagged, flags_of_simulated
from isolaw.fits.metric import bounds, unit_of
from isolaw.fits.pipeline import DRAWS
from isolaw.fits.selection import (
    MACHINE_ATTRIBUTES,
    Configuration,
    Floats,
    configurations_of,
    differing,
    measured_points,
)
from isolaw.fits.surface.bootstrap import Unit, resample
from isolaw.registry import Shown
from isolaw.runs import ReadKeywords, Runs, Source, plain

_ByShape = dict[BatchShape, Configuration]  # the configurations of one recipe, by (B_p, n)
_WIDEST_INTERVAL = 10.0  # times the measured rewards: an interval that is wider says nothing about a reward
_FAR = 10.0  # multiple of the measured compute beyond which isolaw states no reward
_LOGARITHMS = ("C_mid",)  # quantities that are averaged and subtracted in log (geometric means and ratios)
_BY_GRAVITY: list[Status] = ["ok", "not_identified", "refused"]


class TwoRecipes(NamedTuple):
    """A quantity of two recipes, with the difference second − first (for C_mid, the ratio second / first)."""

    first: Quantity
    second: Quantity
    difference: Quantity


@dataclass(frozen=True)
class Contrast:
    """The comparison of two recipes at one configuration, or on average."""

    configurations: list[BatchShape]  #: one (B_p, n), or all (B_p, n) that the mean covers
    #: The compared quantities by name: ``A``, ``B`` and ``C_mid`` of the curves through all checkpoints;
    #: ``end``, the reward measured at the largest common compute; ``predicted``, the prediction of ``end``
    #: from the first half of this compute; ``error``, predicted minus measured; and ``reward``, the reward at
    #: the budget if there is one.
    rows: dict[str, TwoRecipes]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        shapes = [{"problems_per_batch": b, "rollouts_per_problem": n} for b, n in self.configurations]
        return {"configurations": shapes, **{name: encoded(row._asdict()) for name, row in self.rows.items()}}


@dataclass(frozen=True)
class RecipeComparison(Flagged, Shown):
    """The result of `compare`: the differences between the rewards and the curves of two recipes."""

    TEXT = "text.comparisons.recipes"

    DERIVED = ("simulated", "notes")

    names: tuple[str, str]
    facts: dict[str, tuple[Any, Any]]  # each hold in which the recipes differ, with both values
    metric: str
    eval_set: str
    compute: float | None
    contrasts: list[Contrast]  # one for each common (B_p, n)
    mean: Contrast  # means of A, B and C_mid are over configurations in which both curves are determined
    paired: bool  # whether draws pair the runs by seed
    units: tuple[Unit, Unit]  # unit of resampling, for each recipe
    flags: list[Flag]  # reasons for care before trusting the numbers

    @property
    def notes(self) -> list[str]:
        """The texts of the ``flags``."""
        return [flag.text for flag in self.flags]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data, with every quantity as value, interval and status."""
        return {key: value for key, value in super().to_dict().items() if key != "warnings"}


def sign_of_difference(difference: Quantity, neutral: float = 0.0) -> int | None:
    """Return 1 (−1) if the difference is significantly above (below) ``neutral``, and 0 if it is neither.

    Returns None if the difference has no interval, or is not determined.
    """
    if difference.interval is None or difference.status != "ok":
        return None
    low, high = difference.interval
    if low is not None and low > neutral:
        return 1
    return -1 if high is not None and high < neutral else 0


class Foreseen(NamedTuple):
    """A quantity of one recipe. ``draws`` (1 + D,) contains the estimate, followed by D draws."""

    draws: Floats
    status: Status


@checked
def compare(
    first: Source,
    second: Source,
    metric: str = "avg@4",
    *,
    eval_set: str = "validation",
    compute: float | None = None,
    names: tuple[str, str] = ("first", "second"),
    draws: int = DRAWS,
    seed: int = 0,
    **reading: Unpack[ReadKeywords],
) -> RecipeComparison:
    """Compare two recipes, each from its own source: runs, or any source that `isolaw.read` reads.

    ``metric`` on ``eval_set`` is the reward. ``compute`` is an optional budget in rollouts at which rewards
    are compared. ``names`` are labels of the recipes. ``draws`` is the number of draws (0 for no intervals),
    ``seed`` is their seed, and ``reading`` contains keywords of `isolaw.read`.

    Raises
    ------
    DataError
        a source lacks the metric, or contains several recipes.
    Refused
        no configuration is in both sources.

    >>> import isolaw
    >>> def recipe(lr):
    ...     return isolaw.sweep({"sweep": {"compute": 100_000, "seeds": 2}, "recipe": {"lr": lr},
    ...         "problems": {"n_train": 200}, "grid": {"rollouts_per_problem": [16]},
    ...         "executor": {"kind": "inline"}})
    >>> result = compare(recipe(0.002), recipe(0.02), names=("slow", "fast"), draws=50)
    >>> result.facts, result.paired, result.mean.rows["C_mid"].difference.value < 1
    ({'lr': (0.002, 0.02)}, True, True)
    """
    from isolaw.readers.read import as_runs

    first, second = as_runs(first, metric, **reading), as_runs(second, metric, **reading)
    flags = flags_of_simulated(Simulated.among([first.simulated, second.simulated]))
    recipes = [
        _by_shape(*source, metric, eval_set, flags) for source in zip((first, second), names, strict=True)
    ]
    shapes = _common_shapes(recipes, names, flags)
    matched = [[recipe[shape] for shape in shapes] for recipe in recipes]
    paired = all(a.seeds == b.seeds and a.runs > 1 for a, b in zip(*matched, strict=True))
    # If the recipes are paired, one random seed gives runs of the same seed the same weights in both recipes.
    with one_blas_thread():
        (samples_a, unit_a), (samples_b, unit_b) = (
            resample(configurations, "hill", draws, seed if paired else 2 * seed + i)
            for i, configurations in enumerate(matched)
        )
    pairs = []
    for a, b, sample_a, sample_b in zip(*matched, samples_a, samples_b, strict=True):
        end = min(a.measured[1], b.measured[1])
        scale = bounds(metric, [a, b]), unit_of(metric, [a, b])
        estimates_a, estimates_b = (
            foresee(c, sample, end, compute, seed, *scale) for c, sample in ((a, sample_a), (b, sample_b))
        )
        pairs.append((estimates_a, estimates_b))
    contrasts = [
        Contrast([shape], _without_wide({name: _two_recipes(name, a[name], b[name]) for name in a}))
        for shape, (a, b) in zip(shapes, pairs, strict=True)
    ]
    rising = [shape for shape, (a, b) in zip(shapes, pairs, strict=True) if _gravest(a["A"], b["A"]) != "ok"]
    if rising:
        flags.append(Flag(Code.STILL_RISING, f"the ceiling is not determined at {_shape_list(rising)}"))
    flags += _flags(matched, names, (unit_a, unit_b), paired)
    facts = _differing_attributes(first, second)
    if "problem_set" in facts:
        text = "the problem sets differ, so ceilings may differ because of the problems or the recipe"
        flags.append(Flag(Code.OTHER_PROBLEMS, text))
    return RecipeComparison(
        names, facts, metric, eval_set, compute, contrasts, Contrast(shapes, _mean_rows(pairs)), paired,
        (unit_a, unit_b), flags,
    )  # fmt: skip


def _by_shape(runs: Runs, name: str, metric: str, eval_set: str, flags: list[Flag]) -> _ByShape:
    """Return the configurations of one recipe, and add flags about its runs."""
    points = measured_points(runs, metric, eval_set)
    runs = runs.select(points["run_id"].unique())
    if mixed := differing(runs.table()):
        raise DataError(
            f"{runs.source or name}: the runs differ in {', '.join(mixed)}; "
            "each recipe needs a source of its own"
        )
    notes = [Flag(Code.AS_READ, note) for note in runs.notes]
    configurations = configurations_of(points, runs.table(), notes)
    flags += [Flag(flag.code, f"{name}: {flag.text}") for flag in notes]
    return {c.key: c for c in configurations}


def _common_shapes(recipes: list[_ByShape], names: tuple[str, str], flags: list[Flag]) -> list[BatchShape]:
    shapes = sorted(set(recipes[0]) & set(recipes[1]))
    unmatched = [
        f"only {name} has {_shape_list(own_shapes)}"
        for name, recipe in zip(names, recipes, strict=True)
        if (own_shapes := sorted(set(recipe) - set(shapes)))
    ]
    if not shapes:
        raise Refused(
            f"the recipes share no (B_p, n) with 5 checkpoints "
            f"({'; '.join(unmatched + [flag.text for flag in flags])}). "
            "Run one configuration with both recipes"
        )
    flags += [Flag(Code.NOT_COMPARED, f"not compared: {text}") for text in unmatched]
    return shapes


def _shape_list(shapes: list[BatchShape]) -> str:
    return ", ".join(f"(B_p = {b}, n = {n})" for b, n in shapes)


def foresee(
    c: Configuration,
    sample: Floats,
    end: float,
    budget: float | None,
    seed: int = 0,
    bounds: tuple[float, float] = (-math.inf, math.inf),
    unit: float = 1.0,
) -> dict[str, Foreseen]:
    """Return the quantities of one recipe at one configuration, keyed as in `Contrast.rows`.

    ``sample`` (1 + D, P) contains the deviations of the draws from the mean of the runs. ``end`` is the
    largest common compute.
    """
    compute, reward = c.checkpoints, c.mean + sample
    curves = pooled(compute, reward, c.runs_at[None], seed, bounds, unit)
    hill = curves.fits["hill"]
    assert isinstance(hill, Curves)
    ceiling, is_determined = curves.ceiling()
    estimates = {"A": Foreseen(ceiling, "ok" if is_determined else "not_identified")}
    status: Status = "not_identified" if hill.open_ended[0] else "ok"
    for name, values in hill.parameters().items():
        if name in ("B", "C_mid"):
            estimates[name] = Foreseen(np.log(values) if name in _LOGARITHMS else values, status)
    refused = Foreseen(np.full(len(reward), np.nan), "refused")
    estimates |= {"end": refused, "predicted": refused, "error": refused}
    if np.any(compute <= end):
        last_compute = compute[compute <= end][-1]
        estimates["end"] = Foreseen(reward[:, compute == last_compute][:, 0], "ok")
        early = compute <= last_compute / 2
        if enough_points(early.astype(np.float64)):
            early_fit = pooled(compute[early], reward[:, early], c.runs_at[None, early], seed, bounds, unit)
            estimates["predicted"] = Foreseen(early_fit(last_compute), "ok")
            estimates["error"] = Foreseen(estimates["predicted"].draws - estimates["end"].draws, "ok")
    if budget is not None:
        is_near_runs = compute[0] <= budget <= _FAR * compute[-1]
        estimates["reward"] = Foreseen(curves(budget), "ok" if is_near_runs else "not_identified")
    return estimates


def _two_recipes(name: str, first: Foreseen, second: Foreseen) -> TwoRecipes:
    difference = Foreseen(second.draws - first.draws, _gravest(first, second))
    quantities = [_quantity_of(estimate) for estimate in (first, second, difference)]
    return TwoRecipes(*(q.through(math.exp) for q in quantities) if name in _LOGARITHMS else quantities)


def _without_wide(rows: dict[str, TwoRecipes]) -> dict[str, TwoRecipes]:
    """Return the rows, in which rewards with intervals far wider than the measured rewards are unknown.

    The curves of a metric without bounds, such as a score, can leave its ceiling open by orders of magnitude.
    """
    end_rewards = [abs(quantity.value) for quantity in rows["end"] if quantity.value is not None]
    widest_interval = _WIDEST_INTERVAL * max(end_rewards, default=0.0) or math.inf

    def without_wide_interval(quantity: Quantity) -> Quantity:
        low, high = quantity.interval or (0.0, 0.0)
        is_wide = low is not None and high is not None and high - low > widest_interval
        return replace(quantity, interval=None, status="not_identified") if is_wide else quantity

    return {
        name: TwoRecipes(*map(without_wide_interval, row)) if name in ("A", "reward", "predicted") else row
        for name, row in rows.items()
    }


def _quantity_of(estimate: Foreseen) -> Quantity:
    """Return the quantity, without an interval if every draw is at the same bound of the reward."""
    quantity = estimated(*estimate)
    if quantity.interval is not None and quantity.interval[0] == quantity.interval[1]:
        return replace(quantity, interval=None)
    return quantity


def _gravest(*estimates: Foreseen) -> Status:
    return max((estimate.status for estimate in estimates), key=_BY_GRAVITY.index)


def _mean_rows(pairs: list[tuple[dict[str, Foreseen], dict[str, Foreseen]]]) -> dict[str, TwoRecipes]:
    """Average each quantity over the configurations in which it is determined for both recipes.

    If there is none, the average is over all configurations.
    """
    rows = {}
    for name in pairs[0][0]:
        determined = [(a[name], b[name]) for a, b in pairs if a[name].status == b[name].status == "ok"]
        determined = determined or [(a[name], b[name]) for a, b in pairs]
        means = [
            Foreseen(np.mean([estimate.draws for estimate in group], axis=0), _gravest(*group))
            for group in zip(*determined, strict=True)
        ]
        rows[name] = _two_recipes(name, *means)
    return _without_wide(rows)


def _flags(
    recipes: list[list[Configuration]], names: tuple[str, str], units: tuple[Unit, Unit], paired: bool
) -> list[Flag]:
    """Return flags for the variation that the intervals leave out."""
    flags = []
    for configurations, name, unit in zip(recipes, names, units, strict=True):
        if unit == "block":
            text = f"{name}: one seed, so its intervals leave out the variation between runs"
            flags.append(Flag(Code.ONE_SEED, text))
        elif unit == "lack of fit":
            text = (
                f"{name}: one seed, so isolaw estimates the variation between runs from their scatter about "
                "a smooth function of n"
            )
            flags.append(Flag(Code.ONE_SEED, text))
        elif lone := [c.label for c in configurations if c.runs == 1]:
            text = f"{name}: one seed at {'; '.join(lone)}; isolaw assumes the same variation as elsewhere"
            flags.append(Flag(Code.LONE_RUNS, text))
    seeds = [{s for c in configurations for s in c.seeds} for configurations in recipes]
    if not paired and "block" not in units and seeds[0] & seeds[1]:
        flags += [Flag(Code.UNPAIRED, "the recipes share only some seeds, so isolaw does not pair the runs")]
    return flags


def _differing_attributes(first: Runs, second: Runs) -> dict[str, tuple[Any, Any]]:
    """Return both values of each attribute in which the recipes differ."""
    attributes = [
        {str(name): plain(value) for name, value in runs.table().iloc[0].items()} for runs in (first, second)
    ]
    ignored = ("problems_per_batch", "rollouts_per_problem", "seed", *MACHINE_ATTRIBUTES)
    values = {
        name: (attributes[0].get(name), attributes[1].get(name))
        for name in attributes[0] | attributes[1]
        if name not in ignored
    }
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}
