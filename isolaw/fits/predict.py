"""`predict`: recommend the allocation with the smallest expected loss for a budget.

The reward is flat near the optimum, so n* is often poorly identified. This does no harm, since only the loss
of reward matters. Let r_d(a) be the reward of allocation a at the budget C in draw d:

    expected loss of a = mean_d [ max r_d − r_d(a) ]
    P(a within ε of the best) = share of draws with max r_d − r_d(a) ≤ ε    (ε: the law's tolerance)

isolaw recommends the affordable configuration with the smallest expected loss. For ``paper``, it must be
measured. For ``surface``, n can also be 2^k or 3 · 2^k between measured n. If the budget is beyond the runs,
or the best n or B_p could be, more candidates compete. The n of these candidates extends from a quarter of
the smallest to four times the largest measured n. If B_p varies independently, B_p extends from half to twice
the measured range. The loss by which candidates are ranked then grows by `_RISK` for each doubling past the
measured range, and by `_UNMEASURED` for a candidate without runs.

M = floor(C / (n · B_p)). A budget in tokens or seconds buys steps at their mean measured cost. A budget in
hours requires the seconds S(B_p · n) of a step (`isolaw.step_cost`), and gives every (B_p, n) its own
compute, C = hours / S(B_p · n) · B_p · n. n*, B_p* and M* = C / (B_p* n*) have intervals.

Extrapolation starts where fewer than three n were measured, since isolaw compares at least three. Intervals
extend to ten times this compute. For ``paper`` they extend to three times, and n* is only a bound beyond.
Past ten times, isolaw recommends nothing. For ``surface``, no allocation competes at more than ten times the
compute of the nearest runs. A law's n* is stated only within the runs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from isolaw.allocation import Allocation, Cell
from isolaw.errors import InputError, Spelled, shown
from isolaw.evidence import REFUSED, amount, estimated, in_reward, number
from isolaw.fits.allocations import (
    FAR,
    INTERVALS,
    LEAST_STEPS,
    CandidateAllocation,
    affordable,
    between,
    beyond,
    comparable,
    cost_flags,
    in_reach,
    in_seconds,
    reached,
    times_beyond,
    within_reach,
)
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.draws import LawPosterior
from isolaw.fits.flags import Code, Flag, having
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.next_step import SHARE, NextStep, Purse, three_longer, worth_running
from isolaw.fits.optimum import law_n, may_be_outside, optimum
from isolaw.fits.prediction import Option, Prediction
from isolaw.fits.selection import Floats
from isolaw.fits.surface.estimate import Surface
from isolaw.fits.surface.slices import RewardModel, Slices, slices
from isolaw.runs import SYMBOL_OF
from isolaw.step_cost import LARGEST_BUDGET, Cost, multiplied, parse_budget, parse_hours

__all__ = ["Option", "Prediction", "predict", "seconds_of"]

_BEYOND = 1.005  # smallest multiple of the largest compute that counts as beyond; smaller ones print as 1
_EDGE = 1e-6  # tolerance in comparisons of places, in doublings
_EARLIER = 6  # smaller budgets to which the predicted reward is compared
_RISK = 0.002  # penalty of a candidate for each doubling past the measured range, in units of reward
_UNMEASURED = 0.0005  # penalty of a candidate without runs, since its reward is interpolated


def predict(
    law: LawPosterior,
    compute: float | str,
    max_batch_rollouts: int | None = None,
    n_train_problems: int | None = None,
    cost: Cost | None = None,
) -> Prediction:
    """Return the allocation for a budget (see `isolaw.fits.law.Law.predict`)."""
    compute = parse_budget(multiplied(parse_budget(compute), reached(law.document.grid)))
    asked = compute if isinstance(compute, str) else ""
    seconds = seconds_of(asked, cost) if asked else None
    budget = int(LARGEST_BUDGET if isinstance(compute, str) else compute)
    document = law.document
    flags: list[Flag] = []
    cap = max_batch_rollouts or document.max_batch_rollouts
    candidates = affordable(document, budget, cap, flags)
    if law.surface is not None:
        diverged = {cell.key for cell in document.diverged}
        candidates += [c for c in between(candidates, document.hold) if c.key not in diverged]
    outer = [] if law.surface is None else beyond(document, candidates, budget, cap)
    if seconds is not None and cost is not None:
        budget = int(seconds)
        candidates = in_seconds(candidates, cost, seconds, flags)
        with contextlib.suppress(InputError):  # none of the candidates has a known cost
            outer = in_seconds(outer, cost, seconds / LEAST_STEPS, []) if outer else []
    measured = candidates
    if law.surface is not None:
        candidates = within_reach(document, candidates, budget, flags)
        outer = in_reach(document, outer, budget)
    farthest = int(max(budget * c.rate for c in candidates))
    factor = times_beyond(farthest, document.grid)
    surface = law.surface and law.surface.drawn()
    outside = surface is not None and 1 < factor <= FAR
    cut = _cut(law, surface, budget, candidates + outer if outside else candidates)
    if surface is not None and factor <= 1 and may_be_outside(cut):
        outside = True
        cut = _cut(law, surface, budget, candidates + outer)
    candidates += outer if outside else []
    flags += _extrapolation(document, farthest, factor)
    constant = having(document.flags, Code.FLAT)  # the reward never changed, so no allocation is the best
    of_n: list[Flag] = []
    n_star, b_star, m_star = optimum(cut, document, budget, candidates, factor, of_n)
    flags += constant or of_n
    unsure = document.method == "paper" and factor > INTERVALS
    options: list[Option] = []
    if factor <= FAR and not constant:
        options = _options_of(cut, candidates, budget, unsure, document.tolerance, document.unit)
    flags += _flags(law, candidates, options)
    if options and surface is not None and not asked:
        flags += _falls(surface, document, budget, candidates, options[0])
    rules = {} if asked or not options else document.rules.chosen(budget)
    most = min(FAR * comparable(document.grid), LARGEST_BUDGET)
    n = [c.level(document.axis) for c in candidates]
    b = [c.problems_per_batch for c in candidates]
    unit = "seconds" if asked else "rollouts" if document.hold == "B" else document.x.unit
    purse = Purse(budget, unit, cost)
    step: NextStep | None = None
    if options:
        a = options[0].allocation
        chosen = Cell(a.problems_per_batch, a.rollouts_per_problem)
        flags += cost_flags(cost, chosen) if cost is not None else []
        if outside and cap is not None and 2 * chosen.batch_rollouts > cap:
            flags.append(Flag(Code.LIMITED, f"B_p · n is at most {cap:,} rollouts on your hardware"))
        best = next(c for c in candidates if c.key == chosen.key)
        fewer = budget * best.rate * np.array([1 - SHARE, 1.0])
        fall = (
            float(-np.subtract(*_rewards(law, [best, best], fewer)[0]))
            if law.surface or best.measured
            else 0.0
        )
        step = worth_running(cut, document, purse, candidates, a, options[0].expected_loss, fall)
    elif factor > FAR and not constant:
        ends = np.full(len(measured), reached(document.grid))
        step = three_longer(document, purse, measured, _rewards(law, measured, ends)[0])
    return Prediction(
        budget,
        unit,
        options,
        n_star,
        b_star,
        m_star,
        REFUSED if asked or (outside and factor > 1) else law_n(law, budget, factor),
        _epochs(document, options[0].allocation, n_train_problems, flags) if options else None,
        int(most * budget / farthest if asked else most),
        flags,
        asked,
        cost,
        (min(n), max(n)),
        (min(b), max(b)) if document.hold == "nothing" and min(b) < max(b) else None,
        rules,
        step,
        document,
    )


def seconds_of(asked: str, cost: Cost | None) -> float:
    """Return the wall time in seconds that a budget in hours or GPU hours pays for."""
    parse_hours(asked)
    if cost is None:
        how = Spelled("cost=isolaw.read_cost(SOURCE)", ["--cost", "SOURCE"])
        raise InputError(
            f"budget: found {shown(asked)}; a budget in hours requires the cost of a step: " + how
        )
    seconds = cost.budget_seconds(asked)
    if not 1 <= seconds <= LARGEST_BUDGET:
        raise InputError(f"budget: found {shown(asked)}, {seconds:.3g} s; expected 1 to {LARGEST_BUDGET:g} s")
    return seconds


def _extrapolation(document: LawDocument, budget: int, factor: float) -> list[Flag]:
    """Return flags for a budget beyond the largest measured compute, or beyond the compute of three n."""
    longest, begun = (
        max(ends) for ends in zip(*((e.measured[1], e.end) for e in document.grid), strict=True)
    )
    n, out = SYMBOL_OF[document.axis], []
    if budget >= _BEYOND * begun:
        text = f"this budget is {number(float(f'{budget / longest:.2g}'))}× the longest run"
        out.append(Flag(Code.EXTRAPOLATION, text))
    if factor > INTERVALS:
        reach = reached(document.grid)
        unit = "rollouts" if document.x.name == "steps" else document.x.unit
        text = (
            f"long extrapolation: fewer than three values of {n} ran past {amount(reach)} {unit}; this "
            f"budget is {number(float(f'{budget / reach:.2g}'))}× that"
        )
        if document.method == "paper" and factor <= FAR:
            text += f", so {n}* is at most a bound"
        out.append(Flag(Code.FAR if factor > FAR else Code.CENSORED, text))
    return out


def _cut(
    law: LawPosterior, model: RewardModel | None, budget: int, candidates: list[CandidateAllocation]
) -> Slices:
    """Return the rewards of all candidates at the budget, from the reward model or the learning curves."""
    places = np.array([c.place for c in candidates])
    compute = np.array([budget * c.rate for c in candidates])
    at, unit = np.array([float(budget)]), law.document.unit
    # Without a model, only measured configurations compete. With a rate, each candidate has its own compute.
    if model is None or any(c.rate != 1.0 for c in candidates):
        log2_n, log2_b = places.T
        predicted = (
            _rewards(law, candidates, compute) if model is None else model.rewards(log2_n, log2_b, compute)
        )
        return Slices(at, log2_n, log2_b, predicted[:, None], np.arange(len(candidates)), unit)
    low, high = places.min(axis=0) - _EDGE, places.max(axis=0) + _EDGE
    largest = places.sum(axis=1).max() + _EDGE

    def allowed(u: Floats, v: Floats) -> NDArray[np.bool_]:
        inside = (u >= low[0]) & (u <= high[0]) & (v >= low[1]) & (v <= high[1])
        return np.asarray(inside & (u + v <= largest))

    more = places[[not c.measured for c in candidates]]
    cut = slices(model, at, allowed, more if more.size else None, unit)
    near = np.abs(places[:, :1] - cut.log2_n) + np.abs(places[:, 1:] - cut.log2_b)
    return replace(cut, place=near.argmin(axis=1))


def _rewards(law: LawPosterior, cells: Sequence[Cell], compute: Floats) -> Floats:
    """Return fitted and drawn rewards of K allocations, each at its own compute, of shape (1 + draws, K)."""
    if law.surface is None:
        return np.array([law.curves(*e.key)(c)[:, 0] for e, c in zip(cells, compute, strict=True)]).T
    places = np.array([cell.place for cell in cells])
    return law.surface.rewards(places[:, 0], places[:, 1], compute)


def _options_of(
    cut: Slices,
    candidates: Sequence[CandidateAllocation],
    budget: int,
    unsure: bool = False,
    most: float = math.inf,
    unit: float = 1.0,
) -> list[Option]:
    """Return the best candidate, and all others that lose at most ``most``, in order of expected loss.

    Each doubling past the measured range adds `_RISK` to the loss that determines the order. ``cut``
    contains the rewards at the budget. If ``unsure``, the rewards have no intervals. ``unit`` is the reward's
    unit.
    """
    reward = cut.reward[:, 0]
    loss = reward.max(axis=1, keepdims=True) - reward[:, cut.place]
    drawn = loss[1:] if len(loss) > 1 else loss
    expected = drawn.mean(axis=0)

    def order(k: int) -> tuple[float, int, int]:
        # Break ties (up to rounding) by fewer rollouts per problem, then by fewer problems per batch.
        c = candidates[k]
        risk = _RISK * c.beyond + _UNMEASURED * (not c.measured)
        return round(expected[k] / unit + risk, 12), c.rollouts_per_problem, c.problems_per_batch

    best, *others = sorted(range(len(candidates)), key=order)
    kept = [best, *(k for k in others if expected[k] <= most)]
    return [
        Option(
            Allocation(*e.key, int(budget // e.step_cost)),
            estimated(reward[:, cut.place[k]], "not_identified" if unsure else "ok"),
            float(expected[k]),
            float(np.mean(drawn[:, k] <= TOLERANCE * unit)) if len(loss) > 1 else None,
            e.step_cost,
            e.measured,
            e.beyond,
        )
        for k, e in ((k, candidates[k]) for k in kept)
    ]


def _flags(law: LawPosterior, candidates: list[CandidateAllocation], options: list[Option]) -> list[Flag]:
    """Return the flags of a prediction that do not depend on n*."""
    document = law.document
    out = having(document.flags, Code.SIMULATED, Code.PARTLY_SIMULATED)
    batches = sorted({e.problems_per_batch for e in candidates if e.measured})
    if options and document.hold == "nothing":  # with fixed B, B_p follows from n
        chosen = options[0].allocation.problems_per_batch
        smallest, largest = batches[0], batches[-1]
        if smallest < largest and (chosen >= largest or chosen <= smallest > 1):
            at, side = (largest, "larg") if chosen >= largest else (smallest, "small")
            text = f"the best B_p may be {side}er than {at:,}, the {side}est that ran"
            out.append(Flag(Code.BATCH_EDGE, text))
    if options and options[0].expected_loss > document.tolerance:
        lost = in_reward(options[0].expected_loss, document.tolerance, 3)
        text = f"even the best choice is expected to lose {lost}"
        out.append(Flag(Code.UNCERTAIN, text))
    out += having(document.flags, Code.ONE_SEED, Code.TWO_SEEDS, Code.LONE_RUNS, Code.LACK_OF_FIT)
    if len(law.draws) <= 1:
        why = "the file of draws is missing" if document.bootstrap.draws else "the fit made no draws"
        text = f"{why}, so there are no intervals, no expected loss, and no next run"
        out.append(Flag(Code.NO_DRAWS, text))
    return out


def _falls(
    surface: Surface,
    document: LawDocument,
    budget: int,
    candidates: Sequence[CandidateAllocation],
    best: Option,
) -> list[Flag]:
    """Return a flag if a smaller budget, from the compute that three n reached on, has a higher reward."""
    reach, now = reached(document.grid), best.reward.value
    if budget <= reach or now is None:
        return []
    places = np.array([c.place for c in candidates])
    earlier = np.geomspace(reach, budget, _EARLIER + 1)[:-1]
    u, v = (np.tile(axis, earlier.size) for axis in places.T)
    mean = surface.means(u, v, np.repeat(earlier, len(places))).reshape(earlier.size, -1).max(axis=1)
    at = int(mean.argmax())
    if mean[at] <= now + document.tolerance / 10:
        return []
    fall = in_reward(float(mean[at]) - now, document.tolerance)
    why = (
        "rewards of these runs fall late"
        if having(document.flags, Code.LATE_FALL)
        else "the curves, extended past the runs, bend down"
    )
    text = (
        f"more compute is not predicted to help: {document.metric} is {fall} higher at "
        f"{amount(earlier[at])}, since {why}"
    )
    return [Flag(Code.NO_GAIN, text)]


def _epochs(
    document: LawDocument, allocation: Allocation, n_train_problems: int | None, flags: list[Flag]
) -> float | None:
    """Return the number of epochs B_p · M / D, and add a flag if no run made as many passes."""
    size = n_train_problems if n_train_problems is not None else document.n_train_problems
    if size is None:
        return None
    if size < 1:
        raise InputError(f"n_train_problems: found {size}; expected a positive number of problems")
    epochs = allocation.problems_per_batch * allocation.steps / size
    seen, trained_on = document.epochs_seen, document.n_train_problems
    if seen is None or epochs > seen:
        most = "the runs did not record their passes" if seen is None else f"the runs made at most {seen:.1f}"
        text = f"the allocation makes {epochs:,.1f} passes over {size:,} problems; {most}"
        flags.append(Flag(Code.EPOCHS, text))
    if trained_on is not None and size < trained_on:
        text = f"the runs had {trained_on:,} problems; with fewer problems the best n may be smaller"
        flags.append(Flag(Code.FEWER_PROBLEMS, text))
    return epochs
