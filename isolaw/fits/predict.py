"""`Prediction`: the allocation for a budget, regret first.

Near the optimum reward is flat, so n* is often badly identified, and harmlessly so. What matters is what
an allocation may lose. In each draw d rewards at the budget C are a function r_d of the allocation (for
``surface`` over all n and B_p between measured ones, for ``paper`` over the measured ones), and

    expected regret of a = mean_d [ max r_d − r_d(a) ]
    P(a within ε of the best) = share of draws with max r_d − r_d(a) ≤ ε

isolaw recommends the affordable configuration with the least expected regret, among the measured ones and, on
a surface, those with an n of 2^k or 3 · 2^k between them. M = floor(C / (n · B_p)); a budget in tokens or
seconds pays for as many steps as their mean measured cost allows. n*, B_p* and M* = C / (B_p* n*) come with
their intervals.

Extrapolation starts where fewer than three n were measured, since isolaw cannot compare fewer. Up to three
times that compute there are intervals, up to ten times a bound; beyond, isolaw recommends nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from isolaw.allocation import Allocation
from isolaw.errors import InputError
from isolaw.fits.document.codec import encoded
from isolaw.fits.document.flags import Code, Flag, having
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.frontier.candidates import FAR, INTERVALS, Candidate, affordable, between, comparable
from isolaw.fits.frontier.optimum import law_n, optimum
from isolaw.fits.frontier.trace import TOLERANCE
from isolaw.fits.law import Law
from isolaw.fits.quantity import REFUSED, Quantity, estimated, number
from isolaw.fits.selection import Floats
from isolaw.fits.surface.slices import Slices, slices
from isolaw.runs import as_html

_MOST = 1e15  # rollouts that no budget pays for
_EDGE = 1e-6  # doublings


@dataclass(frozen=True)
class Option:
    """A configuration at the budget."""

    allocation: Allocation
    reward: Quantity
    expected_regret: float  #: mean over draws of the best reward minus its own
    probability: float | None  #: share of draws in which it is within 0.005 of the best; None without draws
    step_cost: float  #: in the unit of the budget
    measured: bool = True  #: otherwise its n lies between measured n

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return {
            **_split(self.allocation),
            "measured": self.measured,
            "reward": encoded(self.reward),
            "expected_regret": self.expected_regret,
            "probability_within_0.005": self.probability,
        }


@dataclass(frozen=True)
class Prediction:
    """A recommended allocation and what is known about it."""

    compute: int  #: the budget C
    unit: str  #: what it counts: rollouts, tokens or seconds
    #: configurations by expected regret, the recommended one first; those expected to lose more than 0.005
    #: are left out. Empty where nothing can be compared.
    options: list[Option]
    #: n, B_p and M of highest reward at the budget; a value without an interval where it is held
    n_star: Quantity
    b_star: Quantity
    m_star: Quantity
    law_n: Quantity  #: the n that the preferred law names there; refused where none is preferred
    epochs: float | None  #: B_p · M / D, None where D is unknown, or nothing is recommended
    comparable: int  #: the largest budget at which at least three n can be compared
    flags: list[Flag]  #: reasons for care

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

    def _repr_html_(self) -> str:
        a = self.allocation
        head = f"Budget: {number(self.compute)} {self.unit}. " + (
            "isolaw recommends no allocation."
            if a is None
            else f"n = {a.rollouts_per_problem}, B_p = {a.problems_per_batch}, M = {a.steps:,}."
        )
        rows = [
            {
                "n": o.allocation.rollouts_per_problem,
                "B_p": o.allocation.problems_per_batch,
                "M": f"{o.allocation.steps:,}",
                "reward": str(o.reward),
                "expected loss": f"{o.expected_regret:.4f}",
                f"within {TOLERANCE} of the best": "" if o.probability is None else f"{o.probability:.0%}",
            }
            for o in self.options
        ]
        flags = [f"Caution: {flag.text}." for flag in self.flags]
        return as_html([head, f"n* (highest fitted reward): {self.n_star}.", *flags], pd.DataFrame(rows))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data; every estimate as value, interval, status; null where nothing is known."""
        best = self.options[0] if self.options else None
        return {
            "compute": self.compute,
            "unit": self.unit,
            **_split(self.allocation),
            "unspent": self.unspent,
            "reward": encoded(self.reward),
            "expected_regret": best and best.expected_regret,
            "probability_within_0.005": best and best.probability,
            **{name: encoded(getattr(self, name)) for name in ("n_star", "b_star", "m_star", "law_n")},
            "epochs": self.epochs,
            "comparable": self.comparable,
            "options": [option.to_dict() for option in self.options],
            "flags": encoded(self.flags),
        }


def predict(
    law: Law, compute: float, max_batch_rollouts: int | None = None, n_train_problems: int | None = None
) -> Prediction:
    """Return the allocation for a budget (see `Law.predict`)."""
    if not 1 <= compute <= _MOST:
        raise InputError(f"compute: found {compute:g}; expected a number of rollouts from 1 to {_MOST:g}")
    budget = int(compute)
    document = law.document
    flags: list[Flag] = []
    candidates = affordable(document, budget, max_batch_rollouts, flags)
    if law.surface is not None:
        candidates += between(candidates, document.setting)
    reach = comparable(document.grid)
    factor = budget / reach if reach else math.inf
    cut = _cut(law, budget, candidates)
    flags += _extrapolation(document, budget, reach, factor)
    n_star, b_star, m_star = optimum(cut, document, budget, candidates, factor, flags)
    options = [] if factor > FAR else _options(cut, candidates, budget, factor)
    flags += _flags(law, candidates, options)
    return Prediction(
        budget,
        "rollouts" if document.setting == "fixed-b" else document.x.unit,
        options,
        n_star,
        b_star,
        m_star,
        law_n(law, budget, factor),
        _epochs(document, options[0].allocation, n_train_problems, flags) if options else None,
        int(min(FAR * reach, _MOST)),
        flags,
    )


def _split(allocation: Allocation | None) -> dict[str, int | None]:
    names = ("rollouts_per_problem", "problems_per_batch", "steps")
    return {name: getattr(allocation, name, None) for name in names}


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
    if law.surface is None:
        reward = np.array([law.curves(*e.key)(budget)[:, 0] for e in candidates])
        return Slices(
            np.array([budget]), places[:, 0], places[:, 1], reward.T[:, None], np.arange(len(candidates))
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
    out = []
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
