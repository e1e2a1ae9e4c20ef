"""`predict`: the allocation for a budget, regret first.

Near the optimum reward is flat, so n* is often badly identified, and harmlessly so. What matters is what
an allocation may lose. In each draw d rewards at the budget C are a function r_d of the allocation (for
``surface`` over all n and B_p between measured ones, for ``paper`` over the measured ones), and

    expected regret of a = mean_d [ max r_d − r_d(a) ]
    P(a within ε of the best) = share of draws with max r_d − r_d(a) ≤ ε

isolaw recommends the affordable configuration with the least expected regret, among the measured ones and, on
a surface, those with an n of 2^k or 3 · 2^k between them. M = floor(C / (n · B_p)); a budget in tokens or
seconds pays for as many steps as their mean measured cost allows. A budget in hours needs the cost of a step
S(B_p · n) (`isolaw.costs.model`). It gives every (B_p, n) a compute of its own, at which the candidates
compete: C = hours / S(B_p · n) · B_p · n. n*, B_p* and M* = C / (B_p* n*) come with their intervals.

Extrapolation starts where fewer than three n were measured, since isolaw cannot compare fewer. Up to three
times that compute there are intervals, up to ten times a bound; beyond, isolaw recommends nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from isolaw.allocation import Allocation
from isolaw.costs.model import Cost, checked_price, parse_hours
from isolaw.errors import InputError, at_command_line
from isolaw.fits.cell import Cell
from isolaw.fits.document.flags import Code, Flag, having
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.frontier.candidates import (
    FAR,
    INTERVALS,
    Candidate,
    affordable,
    between,
    comparable,
    cost_flags,
    in_seconds,
)
from isolaw.fits.frontier.optimum import law_n, optimum
from isolaw.fits.frontier.trace import TOLERANCE
from isolaw.fits.law import Law
from isolaw.fits.prediction import Option, Prediction
from isolaw.fits.quantity import REFUSED, estimated
from isolaw.fits.selection import Floats
from isolaw.fits.surface.slices import Slices, slices

__all__ = ["Option", "Prediction", "predict", "rewards", "seconds_of"]

_MOST = 1e15  # rollouts that no budget pays for
_EDGE = 1e-6  # doublings


def predict(
    law: Law,
    compute: float | str,
    max_batch_rollouts: int | None = None,
    n_train_problems: int | None = None,
    cost: Cost | None = None,
    price: float | None = None,
) -> Prediction:
    """Return the allocation for a budget (see `Law.predict`)."""
    asked = compute.strip() if isinstance(compute, str) else ""
    seconds = seconds_of(asked, cost) if asked else None
    if not isinstance(compute, str) and not 1 <= compute <= _MOST:
        raise InputError(f"compute: found {compute:g}; expected a number of rollouts from 1 to {_MOST:g}")
    budget = int(_MOST if isinstance(compute, str) else compute)
    document = law.document
    flags: list[Flag] = []
    candidates = affordable(document, budget, max_batch_rollouts, flags)
    if law.surface is not None:
        candidates += between(candidates, document.setting)
    if seconds is not None and cost is not None:
        budget = int(seconds)
        candidates = in_seconds(candidates, cost, seconds, flags)
    farthest = int(max(budget * c.rate for c in candidates))
    reach = comparable(document.grid)
    factor = farthest / reach if reach else math.inf
    cut = _cut(law, budget, candidates)
    flags += _extrapolation(document, farthest, reach, factor)
    n_star, b_star, m_star = optimum(cut, document, budget, candidates, factor, flags)
    options = [] if factor > FAR else _options(cut, candidates, budget, factor)
    flags += _flags(law, candidates, options)
    if options and cost is not None:
        a = options[0].allocation
        flags += cost_flags(cost, Cell(a.problems_per_batch, a.rollouts_per_problem))
    return Prediction(
        budget,
        "seconds" if asked else "rollouts" if document.setting == "fixed-b" else document.x.unit,
        options,
        n_star,
        b_star,
        m_star,
        REFUSED if asked else law_n(law, budget, factor),
        _epochs(document, options[0].allocation, n_train_problems, flags) if options else None,
        int(min(FAR * reach, _MOST) * budget / farthest if asked else min(FAR * reach, _MOST)),
        flags,
        asked,
        cost,
        checked_price(price),
    )


def seconds_of(asked: str, cost: Cost | None) -> float:
    """Return the seconds of the machine that a budget in hours pays for."""
    parse_hours(asked)
    if cost is None:
        how = "--cost SOURCE" if at_command_line.get() else "cost=isolaw.read_cost(SOURCE)"
        raise InputError(f"budget: found {asked!r}; a budget in hours requires the cost of a step: {how}")
    seconds = cost.budget_seconds(asked)
    if not 1 <= seconds <= _MOST:
        raise InputError(f"budget: found {asked!r}, {seconds:.3g} s; expected 1 to {_MOST:g} s")
    return seconds


def _extrapolation(document: LawDocument, budget: int, reach: float, factor: float) -> list[Flag]:
    """How far the budget is beyond the largest measured compute, and beyond the last one with three n."""
    ends = {e.rollouts_per_problem: e.end for e in document.grid}
    longest = max(e.end for e in document.grid)
    out = []
    if budget >= longest:
        out.append(Flag(Code.EXTRAPOLATION, f"{budget / longest:.3g} times the largest measured compute"))
    if factor > INTERVALS:
        short = ", ".join(str(n) for n, end in sorted(ends.items()) if end * INTERVALS < budget)
        text = (
            f"{factor:.3g} times the compute to which three n ran ({reach:.3g}): "
            + ("" if factor > FAR else "n* is a bound at most; ")
            + f"run n = {short} to {budget / INTERVALS:.3g} or more"
        )
        out.append(Flag(Code.FAR if factor > FAR else Code.CENSORED, text))
    return out


def _cut(law: Law, budget: int, candidates: list[Candidate]) -> Slices:
    """The surface, or the curves, at the budget."""
    places = np.array([c.place for c in candidates])
    compute = np.array([budget * c.rate for c in candidates])
    if law.surface is None or any(c.rate != 1.0 for c in candidates):  # these alone compete
        reward = rewards(law, candidates, compute)
        return Slices(
            np.array([budget]), places[:, 0], places[:, 1], reward[:, None], np.arange(len(candidates))
        )
    low, high = places.min(axis=0) - _EDGE, places.max(axis=0) + _EDGE
    largest = places.sum(axis=1).max() + _EDGE

    def allowed(u: Floats, v: Floats) -> NDArray[np.bool_]:
        inside = (u >= low[0]) & (u <= high[0]) & (v >= low[1]) & (v <= high[1])
        return np.asarray(inside & (u + v <= largest))

    more = [c.place[0] for c in candidates if not c.measured]
    found = slices(law.surface, np.array([float(budget)]), allowed, more)
    near = np.abs(places[:, :1] - found.log2_n) + np.abs(places[:, 1:] - found.log2_b)
    return replace(found, place=near.argmin(axis=1))


def rewards(law: Law, cells: Sequence[Cell], compute: Floats) -> Floats:
    """Return the fitted reward of K cells at a compute each, and that of every draw: (1 + draws, K)."""
    if law.surface is None:
        return np.array([law.curves(*e.key)(c)[:, 0] for e, c in zip(cells, compute, strict=True)]).T
    places = np.array([cell.place for cell in cells])
    return law.surface.rewards(places[:, 0], places[:, 1], compute)


def _options(cut: Slices, candidates: list[Candidate], budget: int, factor: float) -> list[Option]:
    reward = cut.reward[:, 0]
    regret = reward.max(axis=1, keepdims=True) - reward[:, cut.place]
    drawn = regret[1:] if len(regret) > 1 else regret
    out = [
        Option(
            Allocation(*e.key, int(budget // e.step_cost)),
            estimated(reward[:, at], "ok" if factor <= INTERVALS else "not_identified"),
            float(own.mean()),
            float(np.mean(own <= TOLERANCE)) if len(regret) > 1 else None,
            e.step_cost,
            e.measured,
        )
        for e, own, at in zip(candidates, drawn.T, cut.place, strict=True)
    ]
    # Of equals (but for rounding) the one with fewer rollouts for each problem, then the smaller batch.
    out.sort(
        key=lambda o: (
            round(o.expected_regret, 12), o.allocation.rollouts_per_problem, o.allocation.problems_per_batch
        )
    )  # fmt: skip
    # An allocation between measured ones is recommended only where it is expected to lose next to nothing.
    out = [o for o in out if o.measured or o.expected_regret <= TOLERANCE]
    return [o for i, o in enumerate(out) if i == 0 or o.expected_regret <= TOLERANCE]


def _flags(law: Law, candidates: list[Candidate], options: list[Option]) -> list[Flag]:
    """Reasons for care that do not depend on n* itself."""
    document = law.document
    out = having(document.flags, Code.SIMULATED, Code.PARTLY_SIMULATED)
    batches = sorted({e.problems_per_batch for e in candidates})
    if options and document.setting == "joint":  # at fixed B it follows from n
        chosen = options[0].allocation.problems_per_batch
        for at, side in ((batches[-1], "larg"), (batches[0], "small")):
            if chosen == at > 1 and len(batches) > 1:
                text = f"the best B_p may be {side}er than {at}, the {side}est measured"
                out.append(Flag(Code.BATCH_EDGE, text))
    if options and options[0].expected_regret > TOLERANCE:
        text = f"even the best choice is expected to lose {options[0].expected_regret:.3f}; more seeds help"
        out.append(Flag(Code.UNCERTAIN, text))
    out += having(document.flags, Code.ONE_SEED, Code.TWO_SEEDS, Code.LACK_OF_FIT)
    if document.method == "paper":
        out += having(document.flags, Code.MISFIT)
    if len(law.draws) <= 1:
        why = "their file is missing" if document.bootstrap.draws else "the fit made none"
        text = f"{why}, so nothing has an interval, and regret is that of the estimate alone"
        out.append(Flag(Code.NO_DRAWS, text))
    return out


def _epochs(
    document: LawDocument, allocation: Allocation, n_train_problems: int | None, flags: list[Flag]
) -> float | None:
    """B_p · M / D, with a flag where no run made as many passes."""
    size = n_train_problems if n_train_problems is not None else document.n_train_problems
    if size is None:
        return None
    if size < 1:
        raise InputError(f"n_train_problems: found {size}; expected a positive number of problems")
    epochs = allocation.problems_per_batch * allocation.steps / size
    seen, trained_on = document.epochs_seen, document.n_train_problems
    if seen is None or epochs > seen:
        most = "the runs did not record theirs" if seen is None else f"the runs made {seen:.1f} at most"
        flags.append(Flag(Code.EPOCHS, f"{epochs:,.1f} passes over {size:,} problems; {most}"))
    if trained_on is not None and size < trained_on:
        text = f"the runs had {trained_on:,}; with fewer the best n may be smaller"
        flags.append(Flag(Code.FEWER_PROBLEMS, text))
    return epochs
