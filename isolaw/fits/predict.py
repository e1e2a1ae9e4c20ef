"""The allocation for a budget: regret first.

Near the optimum reward is flat, so n* is often badly identified, and harmlessly so. What matters is what
an allocation may lose. In each draw d rewards at the budget C are a function r_d of the allocation (for
``surface`` over all n and B_p between those that were measured, for ``paper`` over those that were), and

    expected regret of a = mean_d [ max r_d − r_d(a) ]
    P(a within ε of the best) = share of draws with max r_d − r_d(a) ≤ ε

The recommendation is the affordable configuration with the least expected regret, among those that were
measured and, on a surface, those with an n of 2^k or 3 · 2^k between them; M follows as floor(C / (n · B_p));
a budget in tokens or seconds pays for as many steps as the measured runs' mean cost of a step allows. n*,
B_p* and M* = C / (B_p* n*) at the budget, with their intervals, come with it.

How far runs carry is counted from where a third n still ran: with fewer there is nothing to compare. Up to
three times that there are intervals, up to ten a bound at most; beyond, no recommendation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isolaw.allocation import Allocation
from isolaw.errors import InputError
from isolaw.fits.codec import encoded
from isolaw.fits.flags import Code, Flag, having
from isolaw.fits.frontier.trace import TOLERANCE
from isolaw.fits.law import Law
from isolaw.fits.law_document import GridEntry, LawDocument
from isolaw.fits.laws.families import LAWS
from isolaw.fits.quantity import REFUSED, Quantity, Status, from_draws
from isolaw.fits.selection import LEAST_CURVES, Floats
from isolaw.fits.surface.slices import FLAT, highest, slices

INTERVALS = 3.0  # times the compute to which three n ran: intervals up to there
FAR = 10.0  # and no recommendation beyond
_MOST = 1e15  # rollouts that no budget pays for
_EDGE = 1e-6  # doublings: as near to an end of the grid is there
_BEYOND = 0.025  # share of draws with the best n at the grid's end that is worth a word


@dataclass(frozen=True)
class Option:
    """A configuration at the budget.

    Attributes
    ----------
    allocation
        how it would spend the budget.
    reward
        its predicted reward.
    expected_regret
        mean over draws of the best reward minus its own.
    probability
        share of draws in which it is within 0.005 of the best; None without draws.
    step_cost
        what a step costs, in the budget's unit.
    measured
        whether there are runs of it; its n lies between measured ones if not.
    """

    allocation: Allocation
    reward: Quantity
    expected_regret: float
    probability: float | None
    step_cost: float
    measured: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        a = self.allocation
        return {
            "rollouts_per_problem": a.rollouts_per_problem,
            "problems_per_batch": a.problems_per_batch,
            "steps": a.steps,
            "measured": self.measured,
            "reward": self.reward.to_dict(),
            "expected_regret": self.expected_regret,
            "probability_within_0.005": self.probability,
        }


@dataclass(frozen=True)
class Prediction:
    """A recommended allocation and what is known about it.

    Attributes
    ----------
    compute, unit
        the budget C, and what it counts: rollouts, tokens or seconds.
    options
        configurations by expected regret, the recommended one first; those expected to lose more
        than 0.005 are left out. Empty where nothing can be compared.
    n_star, b_star, m_star
        n, B_p and M of highest reward at the budget; a value without an interval where it is held.
    law_n
        the n that the preferred law names there; refused where none is preferred.
    epochs
        B_p · M / D, None where D is unknown, or nothing is recommended.
    comparable
        the largest budget at which at least three n can be compared.
    flags
        reasons for care.
    """

    compute: int
    unit: str
    options: list[Option]
    n_star: Quantity
    b_star: Quantity
    m_star: Quantity
    law_n: Quantity
    epochs: float | None
    comparable: int
    flags: list[Flag]

    @property
    def allocation(self) -> Allocation | None:
        """The recommended (B_p, n, M)."""
        return self.options[0].allocation if self.options else None

    @property
    def reward(self) -> Quantity:
        """Predicted reward of the recommended allocation."""
        return self.options[0].reward if self.options else REFUSED

    @property
    def unspent(self) -> int | None:
        """What of the budget makes no whole step."""
        if not self.options:
            return None
        best = self.options[0]
        return self.compute - round(best.allocation.steps * best.step_cost)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data; every estimate as value, interval, status; null where nothing is known."""
        a = self.allocation
        best = self.options[0] if self.options else None
        return {
            "compute": self.compute,
            "unit": self.unit,
            "rollouts_per_problem": a and a.rollouts_per_problem,
            "problems_per_batch": a and a.problems_per_batch,
            "steps": a and a.steps,
            "unspent": self.unspent,
            "reward": self.reward.to_dict(),
            "expected_regret": best and best.expected_regret,
            "probability_within_0.005": best and best.probability,
            "n_star": self.n_star.to_dict(),
            "b_star": self.b_star.to_dict(),
            "m_star": self.m_star.to_dict(),
            "law_n": self.law_n.to_dict(),
            "epochs": self.epochs,
            "comparable": self.comparable,
            "options": [option.to_dict() for option in self.options],
            "flags": encoded(self.flags),
        }


@dataclass(frozen=True)
class _Candidate:
    problems_per_batch: int
    rollouts_per_problem: int
    step_cost: float
    measured: bool

    @property
    def place(self) -> tuple[float, float]:
        """log2 n and log2 B_p."""
        return math.log2(self.rollouts_per_problem), math.log2(self.problems_per_batch)


@dataclass(frozen=True)
class _Cut:
    """Rewards at the budget of G allocations, (1 + D, G), and which of them are the K candidates."""

    log2_n: Floats
    log2_b: Floats
    reward: Floats
    candidates: NDArray[np.int64]

    @property
    def best(self) -> NDArray[np.int64]:
        return highest(self.reward, 1)


def predict(
    law: Law, compute: float, max_batch_rollouts: int | None = None, n_train_problems: int | None = None
) -> Prediction:
    """Return the allocation for a budget (see `Law.predict`)."""
    if not 1 <= compute <= _MOST:
        raise InputError(f"compute {compute:g}: accepted: a number of rollouts from 1 to {_MOST:g}")
    budget = int(compute)
    document = law.document
    flags: list[Flag] = []
    candidates = _candidates(law, budget, max_batch_rollouts, flags)
    if law.surface is not None:
        candidates += _between(candidates, document.setting)
    reach = comparable(document.grid)
    factor = budget / reach if reach else math.inf
    cut = _cut(law, budget, candidates)
    unit = "rollouts" if document.setting == "fixed-b" else document.x.unit
    longest = max(entry.measured[1] + entry.step_cost for entry in document.grid)
    if budget >= longest:
        text = f"{budget / longest:.3g} times the largest compute that was measured"
        flags.append(Flag(Code.EXTRAPOLATION, text))
    if factor > INTERVALS:
        flags.append(_too_far(document, budget, reach, factor))
    star, b_star, m_star = _stars(cut, document, budget, candidates, factor, flags)
    options = [] if factor > FAR else _options(cut, candidates, budget, factor)
    flags += _flags(law, candidates, options)
    epochs = None
    if options:
        epochs = _epochs(document, options[0].allocation, n_train_problems, flags)
    law_n = _law_n(law, budget, factor)
    most = int(min(FAR * reach, _MOST))
    return Prediction(budget, unit, options, star, b_star, m_star, law_n, epochs, most, flags)


def comparable(grid: Sequence[GridEntry]) -> float:
    """The compute to which at least three n ran: up to there, and somewhat beyond, n can be compared."""
    ends: dict[int, float] = {}
    for entry in grid:
        n = entry.rollouts_per_problem
        ends[n] = max(ends.get(n, 0.0), entry.measured[1] + entry.step_cost)
    return sorted(ends.values())[-LEAST_CURVES] if len(ends) >= LEAST_CURVES else 0.0


def _too_far(document: LawDocument, budget: int, reach: float, factor: float) -> Flag:
    ends = {e.rollouts_per_problem: e.measured[1] + e.step_cost for e in document.grid}
    short = ", ".join(str(n) for n, end in sorted(ends.items()) if end * INTERVALS < budget)
    text = (
        f"{factor:.3g} times the compute to which three n ran ({reach:.3g}): "
        + ("nothing is recommended; " if factor > FAR else "n* is a bound at most; ")
        + f"run n = {short} to {budget / INTERVALS:.3g} or more"
    )
    return Flag(Code.FAR if factor > FAR else Code.CENSORED, text)


def _candidates(law: Law, budget: int, cap: int | None, flags: list[Flag]) -> list[_Candidate]:
    """The healthy configurations of which the budget pays for a step under the cap."""
    grid = law.document.grid
    unstable = {e.problems_per_batch: e.reason for e in law.document.health.batches if e.reason}
    out = [
        e for e in grid
        if e.step_cost <= budget and (cap is None or e.problems_per_batch * e.rollouts_per_problem <= cap)
    ]  # fmt: skip
    smallest = min(e.step_cost for e in grid)
    if not out:
        limit = f"a budget of {budget}" if smallest > budget else f"max_batch_rollouts = {cap}"
        raise InputError(
            f"{limit} does not allow one step of the smallest measured batch, {smallest:.6g} "
            f"{law.document.x.unit}"
        )
    if max(e.step_cost for e in out) < max(e.step_cost for e in grid):
        text = "larger batches were measured, but do not fit the budget or the cap"
        flags.append(Flag(Code.LIMITED, text))
    stable = [e for e in out if e.problems_per_batch not in unstable]
    for b in sorted({e.problems_per_batch for e in out} & set(unstable)):
        kept = "left out" if stable else "kept, since no other was measured"
        flags.append(Flag(Code.UNSTABLE_BATCH, f"B_p = {b} ({unstable[b]}), {kept}"))
    return [
        _Candidate(e.problems_per_batch, e.rollouts_per_problem, e.step_cost, True) for e in stable or out
    ]


def _between(measured: list[_Candidate], setting: str) -> list[_Candidate]:
    """Configurations with an n of 2^k or 3 · 2^k between two that were measured at this B_p (or B)."""
    out = []
    lines: dict[int, list[_Candidate]] = {}
    for c in measured:
        batch = c.problems_per_batch * c.rollouts_per_problem
        lines.setdefault(batch if setting == "fixed-b" else c.problems_per_batch, []).append(c)
    for held, line in lines.items():
        line.sort(key=lambda c: c.rollouts_per_problem)
        for low, high in pairwise(line):
            ends = low.rollouts_per_problem, high.rollouts_per_problem
            for n in sorted(f << k for f in (1, 3) for k in range(40) if ends[0] < f << k < ends[1]):
                if setting == "fixed-b" and held % n:
                    continue
                share = math.log(n / ends[0]) / math.log(ends[1] / ends[0])
                cost = low.step_cost ** (1 - share) * high.step_cost**share
                out.append(_Candidate(held // n if setting == "fixed-b" else held, n, cost, False))
    return out


def _cut(law: Law, budget: int, candidates: list[_Candidate]) -> _Cut:
    """The surface, or the curves, at the budget."""
    places = np.array([c.place for c in candidates])
    if law.surface is None:
        reward = np.array(
            [law.curves(e.problems_per_batch, e.rollouts_per_problem)(budget)[:, 0] for e in candidates]
        )
        return _Cut(places[:, 0], places[:, 1], reward.T, np.arange(len(candidates)))
    low, high = places.min(axis=0) - _EDGE, places.max(axis=0) + _EDGE
    largest = places.sum(axis=1).max() + _EDGE

    def allowed(u: Floats, v: Floats) -> NDArray[np.bool_]:
        inside = (u >= low[0]) & (u <= high[0]) & (v >= low[1]) & (v <= high[1])
        return np.asarray(inside & (u + v <= largest))

    more = [c.place[0] for c in candidates if not c.measured]
    found = slices(law.surface, np.array([float(budget)]), allowed, more)
    near = np.abs(places[:, :1] - found.log2_n) + np.abs(places[:, 1:] - found.log2_b)
    return _Cut(found.log2_n, found.log2_b, found.reward[:, 0], near.argmin(axis=1))


def _options(cut: _Cut, candidates: list[_Candidate], budget: int, factor: float) -> list[Option]:
    regret = cut.reward.max(axis=1, keepdims=True) - cut.reward[:, cut.candidates]
    drawn = regret[1:] if len(regret) > 1 else regret
    status: Status = "ok" if factor <= INTERVALS else "not_identified"
    out = []
    for e, own, at in zip(candidates, drawn.T, cut.candidates, strict=True):
        out.append(
            Option(
                Allocation(e.problems_per_batch, e.rollouts_per_problem, int(budget // e.step_cost)),
                from_draws(float(cut.reward[0, at]), cut.reward[1:, at], status),
                float(own.mean()),
                float(np.mean(own <= TOLERANCE)) if len(regret) > 1 else None,
                e.step_cost,
                e.measured,
            )
        )
    # Of equals (but for rounding) the one with fewer rollouts for each problem, then the smaller batch.
    out.sort(
        key=lambda o: (
            round(o.expected_regret, 12), o.allocation.rollouts_per_problem, o.allocation.problems_per_batch
        )
    )  # fmt: skip
    # What was not measured is recommended only where it is known to lose next to nothing.
    out = [o for o in out if o.measured or o.expected_regret <= TOLERANCE]
    return [o for i, o in enumerate(out) if i == 0 or o.expected_regret <= TOLERANCE]


def _stars(
    cut: _Cut,
    document: LawDocument,
    budget: int,
    candidates: list[_Candidate],
    factor: float,
    flags: list[Flag],
) -> tuple[Quantity, Quantity, Quantity]:
    """n*, B_p* and M* at the budget; bounds where they are ends of what was measured and can be paid for."""
    top, bottom = cut.reward.max(axis=1), cut.reward.min(axis=1)
    if top[0] - bottom[0] <= FLAT * max(abs(top[0]), abs(bottom[0])):
        flags.append(Flag(Code.FLAT, "at this budget no measured n is better than another"))
        return REFUSED, REFUSED, REFUSED
    n, b = cut.log2_n[cut.best], cut.log2_b[cut.best]
    known = top - bottom > FLAT * np.maximum(np.abs(top), np.abs(bottom))
    stepwise = document.method == "paper"
    levels = np.unique([e.rollouts_per_problem for e in candidates]) if stepwise else None
    star = _star(np.where(known, n, np.nan), cut.log2_n, factor, levels)
    _edges(star, n, cut, document, flags)
    batch = math.log2(budget) - cut.log2_n - cut.log2_b  # log2 M of each allocation
    steps = math.log2(budget) - n - b
    counted = document.x.unit in ("rollouts", "steps")
    if document.setting == "fixed-b":
        held = Quantity(float(budget / document.fixed["batch_rollouts"]))
        return star, _star(b, cut.log2_b, factor, None), held
    if document.setting == "fixed-bp":
        held = Quantity(float(document.fixed["problems_per_batch"]))
        return star, held, _star(steps, batch, factor, None) if counted else REFUSED
    at_end = np.isclose(n, cut.log2_n.max()) | np.isclose(n, cut.log2_n.min())
    at_end |= np.isclose(b, cut.log2_b.max()) | np.isclose(b, cut.log2_b.min())
    # Where n* or B_p* is a bound, so is M*, on the side of the smaller or of the larger batches.
    ends = np.where(steps > np.median(steps), batch.max(), batch.min())
    m_star = _star(np.where(at_end, ends, steps), batch, factor, None, float(np.exp2(steps[0])))
    return star, _star(b, cut.log2_b, factor, None), m_star if counted else REFUSED


def _star(
    log2: Floats, grid: Floats, factor: float, levels: NDArray[np.int64] | None, value: float | None = None
) -> Quantity:
    """2^log2 of the estimate, with the interval of its draws, an end open where they are at the grid's."""
    low, high = float(grid.min()), float(grid.max())
    at = float(np.exp2(log2[0])) if value is None else value
    if factor > FAR or math.isnan(at):
        return Quantity(at if math.isfinite(at) else None, None, "not_identified")
    ends = np.where(log2 >= high - _EDGE, np.inf, np.where(log2 <= low + _EDGE, -np.inf, np.exp2(log2)))
    status: Status = "ok"
    if value is None and np.isinf(ends[0]):
        status = "lower_bound" if ends[0] > 0 else "upper_bound"
    elif factor > INTERVALS:
        status = "lower_bound" if np.log2(at) > (low + high) / 2 else "upper_bound"
    found = from_draws(at, ends[1:], status, levels)
    if found.interval is None:
        return found
    a, b = found.interval
    return Quantity(at, (a and min(a, at), b and max(b, at)), found.status)


def _edges(star: Quantity, log2_n: Floats, cut: _Cut, document: LawDocument, flags: list[Flag]) -> None:
    """Say where n* is, or may be, beyond an end of the grid."""
    low, high = (float(np.exp2(v)) for v in (cut.log2_n.min(), cut.log2_n.max()))
    largest = max(g.rollouts_per_problem for g in document.grid)
    at_top, at_bottom = (np.isclose(log2_n, v) for v in (np.log2(high), np.log2(low)))
    if at_top[0]:
        where = "measured" if high == largest else "that was measured here and fits"
        flags.append(Flag(Code.GRID_EDGE, f"the best n may be larger than {high:g}, the largest {where}"))
    elif at_bottom[0]:
        text = f"the best n may be smaller than {low:g}, the smallest measured"
        flags.append(Flag(Code.GRID_EDGE, text))
    elif high == largest and at_top.size > 1 and at_top[1:].mean() > _BEYOND:
        text = f"in {at_top[1:].mean():.0%} of draws n* is the largest measured, {high:g}, or more"
        flags.append(Flag(Code.GRID_EDGE, text))


def _law_n(law: Law, budget: int, factor: float) -> Quantity:
    """The n of the preferred law at the budget."""
    document = law.document
    name = document.comparison.preferred
    if name == "non-monotone" and budget > max(e.measured[1] + e.step_cost for e in document.grid):
        return REFUSED  # a parabola says nothing of what comes after its turn
    theta = None if name is None else law.theta(name)
    if theta is None or name is None:
        return REFUSED
    x = float(budget)
    if document.setting == "fixed-b":
        x = float(budget // document.fixed["batch_rollouts"])
    if x < 1:
        return REFUSED
    log2_n = LAWS[name](np.array([math.log10(x) if document.x.log10 else x]), theta)[:, 0]
    return _star(np.clip(log2_n, *np.log2(law.levels[[0, -1]])), np.log2(law.levels), factor, None)


def _flags(law: Law, candidates: list[_Candidate], options: list[Option]) -> list[Flag]:
    """Reasons for care that do not depend on n* itself."""
    document = law.document
    out: list[Flag] = []
    batches = sorted({e.problems_per_batch for e in candidates})
    if len(batches) > 1 and document.setting == "joint" and options:  # at fixed B it follows from n
        chosen = options[0].allocation.problems_per_batch
        if chosen == batches[-1]:
            text = f"the best B_p may be larger than {chosen}, the largest measured"
            out.append(Flag(Code.BATCH_EDGE, text))
        elif chosen == batches[0] > 1:
            text = f"the best B_p may be smaller than {chosen}, the smallest measured"
            out.append(Flag(Code.BATCH_EDGE, text))
    if options and options[0].expected_regret > TOLERANCE:
        text = f"even the best choice is expected to lose {options[0].expected_regret:.3f}; more seeds help"
        out.append(Flag(Code.UNCERTAIN, text))
    carried = [Code.ONE_SEED, Code.TWO_SEEDS, Code.LACK_OF_FIT]
    if document.method == "paper":
        carried.append(Code.MISFIT)
    out += having(document.flags, *carried)
    if len(law.draws) <= 1:
        drawn = document.bootstrap.draws
        text = ("their file is missing, so" if drawn else "fitted with none, so") + (
            " nothing has an interval, and regret is that of the estimate alone"
        )
        out.append(Flag(Code.NO_DRAWS, text))
    return out


def _epochs(
    document: LawDocument, allocation: Allocation, n_train_problems: int | None, flags: list[Flag]
) -> float | None:
    """B_p · M / D, with a flag where the runs never went round that often."""
    size = n_train_problems if n_train_problems is not None else document.n_train_problems
    if size is None:
        return None
    if size < 1:
        raise InputError(f"n_train_problems {size}: accepted: a positive number of training problems")
    epochs = allocation.problems_per_batch * allocation.steps / size
    seen = document.epochs_seen
    if seen is None:
        text = f"{epochs:.1f} passes over {size} problems; the runs do not say how many they made"
        flags.append(Flag(Code.EPOCHS, text))
    elif epochs > seen:
        text = f"{epochs:,.1f} passes over {size:,} problems, the runs saw {seen:.1f} at most"
        flags.append(Flag(Code.EPOCHS, text))
    trained_on = document.n_train_problems
    if trained_on is not None and size < trained_on:
        text = f"the runs had {trained_on:,}; with fewer the best n may be smaller"
        flags.append(Flag(Code.FEWER_PROBLEMS, text))
    return epochs
