"""`predict`: recommend the allocation with the smallest expected loss for a budget.

The reward is flat near the optimum, so n* is often poorly identified. This does no harm, since only the loss
of reward matters. Let r_d(a) be the reward of allocation a at the budget C in draw d:

    expected loss of a = mean_d [ max r_d − r_d(a) ]
    P(a within ε of the best) = share of draws with max r_d − r_d(a) ≤ ε    (ε: the law's tolerance)

isolaw recommends the affordable configuration with the smallest expected loss. For ``paper``, it must be
measured. For ``surface``, n can also be 2^k or 3 · 2^k between measured n. If the budget is beyond the runs,
or the best n or B_p could be, more candidates compete. The n of these candidates extends from a quarter of
the smallest to four times the largest measured n. If B_p varies independently, B_p extends from half to twice
the measured range. The loss by which candidates are ranked grows by `_RISK` for each doubling from the best
measured configuration, and by 2 `_RISK` for each doubling past the measured range, since n* moves less in
real sweeps than models predict (docs/evidence.md). The former begins at the end of the runs, and is full at
twice their compute.

M = floor(C / (n · B_p)). A budget in tokens buys steps at their mean measured cost. A budget in
hours requires the seconds S(B_p · n) of a step (`isolaw.step_cost`), and gives every (B_p, n) its own
compute, C = hours / S(B_p · n) · B_p · n. n*, B_p* and M* = C / (B_p* n*) have intervals.

Extrapolation starts where fewer than three n were measured, since isolaw compares at least three. Intervals
extend to ten times this compute. For ``paper`` they extend to three times, and n* is only a bound beyond.
Past ten times, isolaw recommends nothing. For ``surface``, no allocation competes at more than ten times the
compute of the nearest runs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from isolaw.allocation import Allocation, BatchShape, Cell
from isolaw.errors import InputError, Spelled, shown
from isolaw.evidence import amount, estimated, in_reward, number
from isolaw.fits.allocations import (
    FAR,
    INTERVALS,
    LEAST_STEPS,
    CandidateAllocation,
    affordable_candidates,
    comparable_compute,
    cost_flags,
    drop_far,
    inner_candidates,
    near_runs,
    outer_candidates,
    price_in_seconds,
    reached_compute,
    times_beyond,
)
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.draws import LawPosterior
from isolaw.fits.flags import Code, Flag, flags_with
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.next_step import SHARE, NextStep, Purse, three_longer_runs, worth_running
from isolaw.fits.optimum import may_be_outside, optimum
from isolaw.fits.prediction import Option, Prediction
from isolaw.fits.selection import Floats, Hold
from isolaw.fits.surface.estimate import Surface
from isolaw.fits.surface.slices import RewardModel, Slices, slices
from isolaw.runs import SYMBOL_OF
from isolaw.step_cost import LARGEST_BUDGET, Cost, multiplied, parse_budget, parse_hours

__all__ = ["Option", "Prediction", "predict", "seconds_of"]

_LEAST_BEYOND = 1.005  # smallest multiple of the largest compute that counts as beyond; others print as 1
_PLACE_TOLERANCE = 1e-6  # tolerance in comparisons of places, in doublings
_SMALLER_BUDGETS = 6  # smaller budgets to which the predicted reward is compared
_RISK = 0.001  # penalty for each doubling away from what was measured, in units of reward


@dataclass(frozen=True)
class _Choice:
    """The candidates for a budget with their rewards, and the options among them, the best first."""

    budget: int  # in rollouts, tokens or steps; in seconds if the budget is in hours
    hours: str  # a budget in hours as the user gave it
    measured: list[CandidateAllocation]
    candidates: list[CandidateAllocation]
    goes_outside: bool  # whether allocations outside the measured range compete
    farthest: int  # the largest compute that the budget buys
    cut: Slices
    options: list[Option]
    flags: list[Flag]  # about the candidates


def choose(
    law: LawPosterior, compute: float | str, max_batch_rollouts: int | None = None, cost: Cost | None = None
) -> _Choice:
    """Return the allocations for a budget, without what else `predict` says about them."""
    compute = parse_budget(multiplied(parse_budget(compute), reached_compute(law.document.grid)))
    hours = compute if isinstance(compute, str) else ""
    seconds = seconds_of(hours, cost) if hours else None
    budget = int(LARGEST_BUDGET if isinstance(compute, str) else compute)
    document = law.document
    flags: list[Flag] = []
    cap = max_batch_rollouts or document.max_batch_rollouts
    candidates = affordable_candidates(document, budget, cap, flags)
    if law.surface is not None:
        diverged = {cell.key for cell in document.diverged}
        candidates += [c for c in inner_candidates(candidates, document.hold) if c.key not in diverged]
    outer = [] if law.surface is None else outer_candidates(document, candidates, budget, cap)
    if seconds is not None and cost is not None:
        budget = int(seconds)
        candidates = price_in_seconds(candidates, cost, seconds, flags)
        with contextlib.suppress(InputError):  # none of the candidates has a known cost
            outer = price_in_seconds(outer, cost, seconds / LEAST_STEPS, []) if outer else []
    measured = candidates
    # In hours, fast steps give the most compute: where that is too far away, the rest is no answer either.
    too_far = [c for c in measured if hours and times_beyond(budget * c.rate, document.grid) > FAR]
    if law.surface is not None and not too_far:
        candidates = drop_far(document, candidates, budget, flags)
        outer = near_runs(document, outer, budget)
    farthest = int(max(budget * c.rate for c in candidates))
    times = times_beyond(farthest, document.grid)
    surface = law.surface and law.surface.drawn()
    goes_outside = surface is not None and 1 < times <= FAR
    cut = _cut(law, surface, budget, candidates + outer if goes_outside else candidates)
    if surface is not None and times <= 1 and may_be_outside(cut):
        goes_outside = True
        cut = _cut(law, surface, budget, candidates + outer)
    candidates += outer if goes_outside else []
    options: list[Option] = []
    if times <= FAR and not flags_with(document.flags, Code.FLAT):  # without a difference, none is best
        is_unsure = document.method == "paper" and times > INTERVALS
        risks = np.zeros(len(candidates))
        if surface is not None:
            share = np.clip(math.log2(farthest / reached_compute(document.grid)), 0.0, 1.0)
            moves = np.array([_doublings_between(document.rules.best, c, document.hold) for c in candidates])
            risks = _RISK * (2 * np.array([c.beyond for c in candidates]) + share * moves)
        options = _options_of(cut, candidates, budget, risks, is_unsure, document.tolerance, document.unit)
    return _Choice(budget, hours, measured, candidates, goes_outside, farthest, cut, options, flags)


def predict(
    law: LawPosterior,
    compute: float | str,
    max_batch_rollouts: int | None = None,
    n_train_problems: int | None = None,
    cost: Cost | None = None,
) -> Prediction:
    """Return the allocation for a budget (see `isolaw.fits.law.Law.predict`)."""
    document, choice = law.document, choose(law, compute, max_batch_rollouts, cost)
    budget, hours, candidates, cut = choice.budget, choice.hours, choice.candidates, choice.cut
    times, surface = times_beyond(choice.farthest, document.grid), law.surface and law.surface.drawn()
    options, flags = choice.options, choice.flags + _extrapolation_flags(document, choice.farthest, times)
    flat_flags = flags_with(document.flags, Code.FLAT)
    n_star_flags: list[Flag] = []
    n_star, b_star, m_star = optimum(cut, document, budget, candidates, times, n_star_flags)
    flags += [*(flat_flags or n_star_flags), *_flags(law, candidates, options)]
    if options and surface is not None and not hours:
        flags += _fall_flags(surface, document, budget, candidates, options[0])
    max_compute = min(FAR * comparable_compute(document.grid), LARGEST_BUDGET)
    n_values = [c.level(document.axis) for c in candidates]
    choices = {} if hours or not options else document.rules.choices(budget)
    rules = {rule: min(n, max(n_values)) for rule, n in choices.items()}  # of what the limits allow
    batches = [c.problems_per_batch for c in candidates]
    unit = "seconds" if hours else "rollouts" if document.hold == "B" else document.x.unit
    purse = Purse(budget, unit, cost)
    step: NextStep | None = None
    if options:
        allocation, loss = options[0].allocation, options[0].expected_loss
        cell = Cell(allocation.problems_per_batch, allocation.rollouts_per_problem)
        flags += cost_flags(cost, cell) if cost is not None else []
        cap = max_batch_rollouts or document.max_batch_rollouts
        if choice.goes_outside and cap is not None and 2 * cell.batch_rollouts > cap:
            flags.append(Flag(Code.LIMITED, f"B_p · n is at most {cap:,} rollouts on your hardware"))
        recommended = next(c for c in candidates if c.key == cell.key)
        budgets = budget * recommended.rate * np.array([1 - SHARE, 1.0])
        fall = 0.0
        if law.surface or recommended.measured:
            fall = float(-np.subtract(*_rewards(law, [recommended, recommended], budgets)[0]))
        step = worth_running(cut, document, purse, candidates, allocation, loss, fall, surface)
    elif times > FAR and not flat_flags:
        todays = np.full(len(choice.measured), reached_compute(document.grid))
        step = three_longer_runs(document, purse, choice.measured, _rewards(law, choice.measured, todays)[0])
    return Prediction(
        budget, unit, options, n_star, b_star, m_star,
        _epochs(document, options[0].allocation, n_train_problems, flags) if options else None,
        int(max_compute * budget / choice.farthest if hours else max_compute),
        flags, hours, cost,
        (min(n_values), max(n_values)),
        (min(batches), max(batches)) if document.hold == "nothing" and min(batches) < max(batches) else None,
        rules, step, document,
    )  # fmt: skip


def seconds_of(hours: str, cost: Cost | None) -> float:
    """Return the wall time in seconds that a budget in hours or GPU hours pays for."""
    parse_hours(hours)
    if cost is None:
        way = Spelled("cost=isolaw.read_cost(SOURCE)", ["--cost", "SOURCE"])
        raise InputError(
            f"budget: found {shown(hours)}; a budget in hours requires the cost of a step: " + way
        )
    seconds = cost.budget_seconds(hours)
    if not 1 <= seconds <= LARGEST_BUDGET:
        raise InputError(f"budget: found {shown(hours)}, {seconds:.3g} s; expected 1 to {LARGEST_BUDGET:g} s")
    return seconds


def _extrapolation_flags(document: LawDocument, budget: int, times: float) -> list[Flag]:
    """Return flags for a budget beyond the largest measured compute, or beyond the compute of three n."""
    longest, longest_end = (
        max(ends) for ends in zip(*((entry.measured[1], entry.end) for entry in document.grid), strict=True)
    )
    symbol, flags = SYMBOL_OF[document.axis], []
    if budget >= _LEAST_BEYOND * longest_end:
        text = f"this budget is {number(float(f'{budget / longest:.3g}'))}× the longest run"
        flags.append(Flag(Code.EXTRAPOLATION, text))
    if times > INTERVALS:
        reach = reached_compute(document.grid)
        unit = "rollouts" if document.x.name == "steps" else document.x.unit
        text = (
            f"long extrapolation: fewer than three values of {symbol} ran past {amount(reach)} {unit}; this "
            f"budget is {number(float(f'{budget / reach:.2g}'))}× that"
        )
        if document.method == "paper" and times <= FAR:
            text += f", so {symbol}* is at most a bound"
        flags.append(Flag(Code.FAR if times > FAR else Code.CENSORED, text))
    return flags


def _cut(
    law: LawPosterior, model: RewardModel | None, budget: int, candidates: list[CandidateAllocation]
) -> Slices:
    """Return the rewards of all candidates at the budget, from the reward model or the learning curves."""
    places = np.array([candidate.place for candidate in candidates])
    compute = np.array([budget * candidate.rate for candidate in candidates])
    compute_axis, unit = np.array([float(budget)]), law.document.unit
    # Without a model, only measured configurations compete. With a rate, each candidate has its own compute.
    if model is None or any(candidate.rate != 1.0 for candidate in candidates):
        log2_n, log2_b = places.T
        predicted = (
            _rewards(law, candidates, compute) if model is None else model.rewards(log2_n, log2_b, compute)
        )
        return Slices(compute_axis, log2_n, log2_b, predicted[:, None], np.arange(len(candidates)), unit)
    low, high = places.min(axis=0) - _PLACE_TOLERANCE, places.max(axis=0) + _PLACE_TOLERANCE
    largest = places.sum(axis=1).max() + _PLACE_TOLERANCE

    def allowed(u: Floats, v: Floats) -> NDArray[np.bool_]:
        is_inside = (u >= low[0]) & (u <= high[0]) & (v >= low[1]) & (v <= high[1])
        return np.asarray(is_inside & (u + v <= largest))

    unmeasured = places[[not candidate.measured for candidate in candidates]]
    cut = slices(model, compute_axis, allowed, unmeasured if unmeasured.size else None, unit)
    distance = np.abs(places[:, :1] - cut.log2_n) + np.abs(places[:, 1:] - cut.log2_b)
    return replace(cut, place=distance.argmin(axis=1))


def _rewards(law: LawPosterior, cells: Sequence[Cell], compute: Floats) -> Floats:
    """Return fitted and drawn rewards of K allocations, each at its own compute, of shape (1 + draws, K)."""
    if law.surface is None:
        return np.array([law.curves(*cell.key)(x)[:, 0] for cell, x in zip(cells, compute, strict=True)]).T
    places = np.array([cell.place for cell in cells])
    return law.surface.rewards(places[:, 0], places[:, 1], compute)


def _options_of(
    cut: Slices,
    candidates: Sequence[CandidateAllocation],
    budget: int,
    risks: Floats,
    unsure: bool = False,
    most_loss: float = math.inf,
    unit: float = 1.0,
) -> list[Option]:
    """Return the best candidate, and all others that lose at most ``most_loss``, the best first.

    ``cut`` contains the rewards at the budget. Candidates are ranked by their expected loss plus their
    ``risks``. If ``unsure``, the rewards have no intervals. ``unit`` is the reward's unit.
    """
    reward = cut.reward[:, 0]
    loss = reward.max(axis=1, keepdims=True) - reward[:, cut.place]
    drawn_loss = loss[1:] if len(loss) > 1 else loss
    expected_loss = drawn_loss.mean(axis=0)

    def order(k: int) -> tuple[float, int, int]:
        # Break ties (up to rounding) by fewer rollouts per problem, then by fewer problems per batch.
        c = candidates[k]
        return round(expected_loss[k] / unit + risks[k], 12), c.rollouts_per_problem, c.problems_per_batch

    best, *others = sorted(range(len(candidates)), key=order)
    indices = [best, *(k for k in others if expected_loss[k] <= most_loss)]
    return [
        Option(
            Allocation(*c.key, int(budget // c.step_cost)),
            estimated(reward[:, cut.place[k]], "not_identified" if unsure else "ok"),
            float(expected_loss[k]),
            float(np.mean(drawn_loss[:, k] <= TOLERANCE * unit)) if len(loss) > 1 else None,
            c.step_cost,
            c.measured,
            c.beyond,
        )
        for k, c in ((k, candidates[k]) for k in indices)
    ]


def _doublings_between(shape: BatchShape, cell: Cell, hold: Hold) -> float:
    """Return the doublings of n, and of B_p unless it follows from n, between a configuration and a cell."""
    n_doublings, b_doublings = np.abs(np.subtract(cell.place, Cell(*shape).place))
    return float(n_doublings if hold == "B" else n_doublings + b_doublings)


def _flags(law: LawPosterior, candidates: list[CandidateAllocation], options: list[Option]) -> list[Flag]:
    """Return the flags of a prediction that do not depend on n*."""
    document = law.document
    flags = flags_with(document.flags, Code.SIMULATED)
    batches = sorted({candidate.problems_per_batch for candidate in candidates if candidate.measured})
    if options and document.hold == "nothing":  # with fixed B, B_p follows from n
        best_batch = options[0].allocation.problems_per_batch
        smallest, largest = batches[0], batches[-1]
        if smallest < largest and (best_batch >= largest or best_batch <= smallest > 1):
            edge, side = (largest, "larg") if best_batch >= largest else (smallest, "small")
            text = f"the best B_p may be {side}er than {edge:,}, the {side}est that ran"
            flags.append(Flag(Code.BATCH_EDGE, text))
    if options and options[0].expected_loss > document.tolerance:
        loss_text = in_reward(options[0].expected_loss, document.tolerance, 3)
        text = f"even the best choice is expected to lose {loss_text}"
        flags.append(Flag(Code.UNCERTAIN, text))
    flags += flags_with(document.flags, Code.ONE_SEED, Code.TWO_SEEDS, Code.LONE_RUNS, Code.LACK_OF_FIT)
    if len(law.draws) <= 1:
        reason = "the file of draws is missing" if document.bootstrap.draws else "the fit made no draws"
        text = f"{reason}, so there are no intervals, no next run, and only losses of the estimate"
        flags.append(Flag(Code.NO_DRAWS, text))
    return flags


def _fall_flags(
    surface: Surface,
    document: LawDocument,
    budget: int,
    candidates: Sequence[CandidateAllocation],
    best: Option,
) -> list[Flag]:
    """Return a flag if a smaller budget, from the compute that three n reached on, has a higher reward."""
    reach, predicted = reached_compute(document.grid), best.reward.value
    if budget <= reach or predicted is None:
        return []
    places = np.array([c.place for c in candidates])
    budgets = np.geomspace(reach, budget, _SMALLER_BUDGETS + 1)[:-1]
    u, v = (np.tile(axis, budgets.size) for axis in places.T)
    rewards = surface.means(u, v, np.repeat(budgets, len(places))).reshape(budgets.size, -1).max(axis=1)
    index = int(rewards.argmax())
    if rewards[index] <= predicted + document.tolerance / 10:
        return []
    gain_text = in_reward(float(rewards[index]) - predicted, document.tolerance)
    cause = (
        "rewards of these runs fall late"
        if flags_with(document.flags, Code.LATE_FALL)
        else "the curves, extended past the runs, bend down"
    )
    text = (
        f"more compute is not predicted to help: {document.metric} is {gain_text} higher at "
        f"{amount(budgets[index])}, since {cause}"
    )
    return [Flag(Code.NO_GAIN, text)]


def _epochs(
    document: LawDocument, allocation: Allocation, n_train_problems: int | None, flags: list[Flag]
) -> float | None:
    """Return the number of epochs B_p · M / D, and add a flag if no run made as many passes."""
    problem_count = n_train_problems if n_train_problems is not None else document.n_train_problems
    if problem_count is None:
        return None
    if problem_count < 1:
        raise InputError(f"n_train_problems: found {problem_count}; expected a positive number of problems")
    epochs = allocation.problems_per_batch * allocation.steps / problem_count
    most, trained_on = document.epochs_seen, document.n_train_problems
    if most is None or epochs > most:
        seen = "the runs did not record their passes" if most is None else f"the runs made at most {most:.1f}"
        text = f"the allocation makes {epochs:,.1f} passes over {problem_count:,} problems; {seen}"
        flags.append(Flag(Code.EPOCHS, text))
    if trained_on is not None and problem_count < trained_on:
        text = f"the runs had {trained_on:,} problems; with fewer problems the best n may be smaller"
        flags.append(Flag(Code.FEWER_PROBLEMS, text))
    return epochs
