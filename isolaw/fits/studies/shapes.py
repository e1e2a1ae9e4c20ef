"""Compare two configurations (B_p, n) at a budget in rollouts or hours, or by the cost of reaching a reward.

The two rewards are drawn jointly, from the surface fitted to all runs (`isolaw.fits.surface.estimate`). Runs
of other configurations therefore contribute, a configuration without runs gets a wider interval, and common
effects cancel in the difference. In draw d

    at C          Δ_d = r_d(A, C) − r_d(B, C)
    in h hours    Δ_d = r_d(A, C_A) − r_d(B, C_B),  C_X = h / S_d(X) · B_p · n
    to a reward r the ratio C_d(A) / C_d(B), with C_d(X) the first C at which r_d(X, C) reaches r

where S_d is the seconds of a step, drawn from their interval (`isolaw.step_cost`). The probability that A is
better is the share of draws in which it is. Rewards are means over runs of any seed, so two single runs
differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import numpy as np

from isolaw.allocation import BatchShape, Cell, shape_of
from isolaw.arguments import checked
from isolaw.errors import InputError, Refused
from isolaw.evidence import REFUSED, Quantity, estimated, from_draws, number
from isolaw.fits import collapses
from isolaw.fits.allocations import FAR, REACH, reached_compute
from isolaw.fits.flags import Code, Flag, Flagged, flags_of_simulated
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.metric import bounds, read_reward, unit_of
from isolaw.fits.pipeline import DRAWS
from isolaw.fits.predict import seconds_of
from isolaw.fits.selection import Configuration, Floats, select
from isolaw.fits.surface.estimate import Surface, estimate
from isolaw.registry import Shown
from isolaw.runs import ReadKeywords, Source
from isolaw.step_cost import Cost, multiplied, parse_budget

_POINTS = 32  # number of C at which curves are drawn


@dataclass(frozen=True)
class ShapeComparison(Flagged, Shown):
    """The result of `compare_shapes`.

    ``quantity`` is the name of the compared quantity: the ``reward``, or the ``rollouts`` or ``hours`` to a
    reward. ``difference`` is A − B for rewards, and A / B otherwise. Three fields are probabilities:
    ``probability`` that A is better, ``equal`` that the rewards are within ``tolerance`` of each other, and
    ``neither`` that neither configuration reaches the reward.
    """

    TEXT = "text.comparisons.shapes"

    shapes: tuple[BatchShape, BatchShape]
    runs: tuple[int, int]  #: numbers of runs of A and of B
    others: int  #: number of runs of other configurations
    metric: str
    eval_set: str
    quantity: Literal["reward", "rollouts", "hours"]
    asked: str
    a: Quantity
    b: Quantity
    difference: Quantity
    probability: float
    flags: list[Flag]
    tolerance: float  #: rewards within this difference count as equal, in the metric's own units
    compute: tuple[float, float] | None = None  #: C at which A and B are compared
    equal: float | None = None
    neither: float | None = None


class DrawnShapes:
    """Joint draws of the rewards of two configurations, given the runs."""

    def __init__(
        self,
        surface: Surface,
        shapes: tuple[BatchShape, BatchShape],
        configurations: list[Configuration],
    ) -> None:
        self.surface = surface.drawn()
        self.configurations = configurations
        self.shapes = shapes
        self.places = np.array([Cell(*shape).place for shape in shapes])
        self.log_ends = np.log([_nearby_end(place, configurations) for place in self.places])

    def rewards(self, compute: tuple[float, float], flags: list[Flag]) -> Floats:
        """Return the rewards of both configurations, each at its own compute, with shape (1 + D, 2)."""
        self._check(np.array(compute), flags)
        return self.surface.rewards(self.places[:, 0], self.places[:, 1], np.array(compute))

    def curves(self, max_compute: float) -> tuple[Floats, Floats]:
        """Return computes (P,) up to ``max_compute``, and the rewards of both configurations there.

        The rewards have shape (1 + D, 2, P).
        """
        start = min(c.checkpoints[c.checkpoints > 0][0] for c in self.configurations)
        compute = np.geomspace(start, max_compute, _POINTS)
        u, v = (np.repeat(axis, _POINTS) for axis in self.places.T)
        rewards = self.surface.rewards(u, v, np.tile(compute, 2))
        return compute, rewards.reshape(len(rewards), 2, _POINTS)

    def at_each(self, compute: Floats, flags: list[Flag]) -> Floats:
        """Return the rewards at computes that differ between draws, with shape (1 + D, 2)."""
        self._check(compute[0], flags)
        grid, rewards = self.curves(float(compute.max()))
        log_grid = np.log(grid)
        interpolated = np.empty_like(compute)
        for draw, curves in enumerate(rewards):
            interpolated[draw] = [np.interp(np.log(compute[draw, k]), log_grid, curves[k]) for k in range(2)]
        return interpolated

    def _check(self, compute: Floats, flags: list[Flag]) -> None:
        """Raise `Refused` for computes too far past the runs, and flag other computes past the runs."""
        ends = np.exp(self.log_ends)
        ratios = compute / ends
        if ratios.max() > FAR:
            worst = int(ratios.argmax())
            raise Refused(
                f"{Cell(*self.shapes[worst]).label}: C = {number(compute[worst])} is {ratios[worst]:.3g} "
                f"times the compute of the runs there ({number(ends[worst])}); isolaw compares up to {FAR:g} "
                f"times. Extend these runs to {number(compute[worst] / FAR)} or more"
            )
        if ratios.max() > 1 + 1e-6:
            text = f"the comparison is at {ratios.max():.3g} times the compute of the runs"
            flags.append(Flag(Code.EXTRAPOLATION, text))


def _nearby_end(place: Floats, configurations: list[Configuration]) -> float:
    """Return the compute to which runs went near a place: a mean over configurations by distance."""
    weights = np.array([1 / (((c.place - place) ** 2).sum() + 1e-3) ** 2 for c in configurations])
    return float(np.exp(weights @ np.log([c.end for c in configurations]) / weights.sum()))


@checked
def compare_shapes(
    runs: Source,
    a: BatchShape | str | Mapping[str, int],
    b: BatchShape | str | Mapping[str, int],
    *,
    compute: float | str | None = None,
    target: float | None = None,
    cost: Cost | None = None,
    metric: str | None = None,
    eval_set: str | None = None,
    where: Mapping[str, Any] | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    **reading: Unpack[ReadKeywords],
) -> ShapeComparison:
    """Compare two configurations (B_p, n), given the runs of a source. Neither needs runs of its own.

    A configuration is ``(128, 8)``, ``"B_p=128, n=8"``, ``"128x8"`` or ``{"B_p": 128, "n": 8}``.

    Pass either ``compute`` or ``target``. ``compute`` is a budget in rollouts, or with the ``cost`` of a step
    in hours (``"48h"`` of a machine, ``"384gpuh"``). ``target`` is a reward, and is compared in hours if
    there is a ``cost``. ``where`` selects runs by column, and ``draws`` is the number of draws.

    Raises
    ------
    InputError
        an argument is wrong.
    DataError
        the runs lack the metric, or differ in a hold that is not fixed.
    Refused
        a configuration is too far from the runs.

    >>> import isolaw
    >>> runs = isolaw.sweep({"sweep": {"compute": 400_000, "seeds": 3},
    ...     "grid": {"rollouts_per_problem": [8, 32, 128, 512]}, "executor": {"kind": "inline"}})
    >>> result = compare_shapes(runs, (32, 64), (32, 8), compute=4e5, draws=50)
    >>> result.runs, result.probability > 0.5, result.compute
    ((0, 3), True, (400000.0, 400000.0))
    """
    if (compute is None) == (target is None):
        argument_count = "none" if compute is None else "both"
        raise InputError(f"compare: found {argument_count}; expected either compute or target")
    if not draws:
        raise InputError("draws: found 0; expected 1 or more, since a probability is a share of draws")
    a, b = shape_of(a), shape_of(b)
    if a == b:
        raise InputError(f"compare: found the same configuration twice, {Cell(*a).label}")
    runs, metric, eval_set, flags = read_reward(runs, metric, eval_set, reading)
    selection = collapses.without_collapses(select(runs, metric, eval_set, "nothing", where, allow_few=True))
    flags = [*flags_of_simulated(runs.select(selection.run_ids).simulated), *flags, *selection.flags]
    configurations = selection.configurations
    _check_near((a, b), configurations)
    unit = unit_of(metric, configurations)
    surface = estimate(configurations, draws, seed, bounds(metric, configurations), unit)
    pair = DrawnShapes(surface, (a, b), configurations)
    run_counts = {c.key: c.runs for c in configurations}
    counts = run_counts.pop(a, 0), run_counts.pop(b, 0)
    common: dict[str, Any] = {
        "shapes": (a, b), "runs": counts, "others": sum(run_counts.values()),
        "metric": metric, "eval_set": eval_set, "tolerance": TOLERANCE * unit, "flags": flags,
    }  # fmt: skip
    if target is not None:
        asked = f"{metric} = {target:g}"
        return ShapeComparison(**common, asked=asked, **_target_fields(pair, target, cost, flags))
    assert compute is not None
    budget = parse_budget(multiplied(parse_budget(compute), reached_compute(configurations)))
    if isinstance(budget, str):
        asked, seconds = budget, seconds_of(budget, cost)
        assert cost is not None  # `seconds_of` raises otherwise
        step_times = _step_seconds(pair, cost)
        computes = seconds / step_times * np.array([b * n for b, n in (a, b)])
        run_compute = float(computes[0, 0]), float(computes[0, 1])
        rewards = pair.at_each(computes, flags)
    else:
        run_compute = budget, budget
        asked, rewards = f"C = {number(budget)}", pair.rewards(run_compute, flags)
    return ShapeComparison(**common, asked=asked, **_reward_fields(pair, rewards, run_compute))


def _check_near(shapes: tuple[BatchShape, BatchShape], configurations: list[Configuration]) -> None:
    """Raise `Refused` if a configuration is far from the runs, or differs in a value that all runs share."""
    problems = []
    for axis, name in enumerate(("B_p", "n")):
        levels = sorted({c.key[axis] for c in configurations})
        for shape in dict.fromkeys(shapes):
            value, low, high = shape[axis], levels[0], levels[-1]
            if low <= value <= high:
                continue
            if len(levels) == 1:
                problems.append(f"{name} = {value}: all runs have {name} = {low}")
            elif not low / REACH <= value <= high * REACH:
                problems.append(f"{name} = {value}: more than {REACH} times outside the runs ({low}–{high})")
    if problems:
        raise Refused(f"{'; '.join(problems)}. First run a configuration with this value and one seed")


def _step_seconds(pair: DrawnShapes, cost: Cost) -> Floats:
    """Return draws of the seconds of a step for both configurations, with shape (1 + D, 2).

    Half of the variance of log seconds is common to both configurations.
    """
    steps = [cost.seconds(*shape, 1) for shape in pair.shapes]
    untimed = [Cell(*shape).label for shape, step in zip(pair.shapes, steps, strict=True) if step is None]
    if untimed:
        raise Refused(f"cost: found no step time for {'; '.join(untimed)}; time a step of each configuration")
    timed = [step for step in steps if step is not None]
    seconds = np.array([float(step) for step in timed])
    highest = [float(step) if step.interval is None else step.interval[1] for step in timed]
    deviation = np.log(np.array(highest) / seconds) / 1.96
    z = np.random.default_rng((pair.surface.seed, 7)).standard_normal((pair.surface.of_draw.size, 3))
    noise = deviation * (z[:, :1] + z[:, 1:]) / math.sqrt(2)
    return np.asarray(np.vstack([seconds, seconds * np.exp(noise)]))


def _reward_fields(pair: DrawnShapes, rewards: Floats, compute: tuple[float, float]) -> dict[str, Any]:
    """Return the fields of a `ShapeComparison` that compares rewards at a budget."""
    difference = rewards[:, 0] - rewards[:, 1]
    return {
        "quantity": "reward",
        "compute": compute,
        "a": estimated(rewards[:, 0]),
        "b": estimated(rewards[:, 1]),
        "difference": estimated(difference),
        "probability": float(np.mean(difference[1:] > 0)),
        "equal": float(np.mean(np.abs(difference[1:]) <= TOLERANCE * pair.surface.unit)),
    }


def _target_fields(pair: DrawnShapes, target: float, cost: Cost | None, flags: list[Flag]) -> dict[str, Any]:
    """Return the fields of a `ShapeComparison` that compares the rollouts (or hours) to a reward."""
    max_c = FAR * float(np.exp(pair.log_ends.min()))
    compute, rewards = pair.curves(max_c)
    amounts = np.array([[_crossing(compute, curve, target) for curve in row] for row in rewards])
    unit: Literal["rollouts", "hours"] = "rollouts"
    if cost is not None:
        unit = "hours"
        amounts *= _step_seconds(pair, cost) / np.array([b * n for b, n in pair.shapes]) / 3600
    draws = amounts[1:]
    is_reached = np.isfinite(draws)
    if not is_reached.any():
        raise Refused(f"target: no draw of either configuration reaches {target:g} by C = {number(max_c)}")
    if np.where(np.isfinite(amounts[0]), amounts[0], 0.0).max() > np.exp(pair.log_ends.min()) and not cost:
        flags.append(Flag(Code.EXTRAPOLATION, f"{target:g} is only reached past the compute of the runs"))
    is_unreached = ~is_reached.any(axis=1)
    return {
        "quantity": unit,
        "a": _censored(amounts[0, 0], draws[:, 0]),
        "b": _censored(amounts[0, 1], draws[:, 1]),
        "difference": _ratio(amounts[0], draws[~is_unreached]),
        "probability": float(np.mean(draws[:, 0] < draws[:, 1])),
        "neither": float(np.mean(is_unreached)),
    }


def _ratio(amounts: Floats, draws: Floats) -> Quantity:
    """Return the ratio A / B of the rollouts or hours that reach a reward.

    In draws in which only one configuration reaches the reward, the ratio is 0 or infinite.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        value, *logs = np.log(np.vstack([amounts, draws]))[:, 0] - np.log(np.vstack([amounts, draws]))[:, 1]
    return from_draws(value if math.isfinite(value) else float(np.median(logs)), logs).through(math.exp)


def _crossing(compute: Floats, curve: Floats, target: float) -> float:
    """Return the first C at which a curve reaches the target, or infinity if it does not.

    The curve is interpolated linearly in log C.
    """
    index = int(np.argmax(curve >= target))
    if curve[index] < target:
        return math.inf
    if index == 0:
        return float(compute[0])
    fraction = (target - curve[index - 1]) / (curve[index] - curve[index - 1])
    return float(np.exp(np.log(compute[index - 1]) * (1 - fraction) + np.log(compute[index]) * fraction))


def _censored(value: float, draws: Floats) -> Quantity:
    """Return a quantity with an interval, which is open at the top if enough draws are infinite.

    The quantity is a lower bound if both the estimate and the median draw are infinite.
    """
    centre = value if math.isfinite(value) else float(np.quantile(draws, 0.5, method="inverted_cdf"))
    if math.isfinite(centre):
        return from_draws(centre, draws)
    low = float(np.quantile(draws, 0.05, method="inverted_cdf"))
    return Quantity(low, (low, None), "lower_bound") if 0 < low < math.inf else REFUSED
