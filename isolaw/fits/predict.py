"""The allocation for a budget: regret first.

Near the optimum reward is flat, so n* is often badly identified, and harmlessly so. What matters is what
an allocation may lose. In each draw d the fitted rewards at the budget C are a function r_d of the
allocation (for ``surface`` the smooth one over log n and log B_p, for ``paper`` the curves themselves), and

    expected regret of a = mean_d [ max r_d − r_d(a) ]
    P(a within ε of the best) = share of draws with max r_d − r_d(a) ≤ ε

The recommendation is the measured, affordable configuration with the least expected regret; M follows as
floor(C / (n · B_p)); a budget in tokens or seconds pays for as many steps as the measured runs' mean cost of
a step allows. n* at the budget, with its interval, comes with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from isolaw.allocation import Allocation
from isolaw.errors import InputError
from isolaw.fits.codec import encoded
from isolaw.fits.flags import Code, Flag, having
from isolaw.fits.frontier.trace import TOLERANCE
from isolaw.fits.law import Law
from isolaw.fits.law_document import LawDocument
from isolaw.fits.quantity import REFUSED, Quantity, from_draws
from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.polynomial import FLAT, LEAST_LEVELS, fit_surface, highest


@dataclass(frozen=True)
class Option:
    """A measured configuration at the budget.

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
    """

    allocation: Allocation
    reward: Quantity
    expected_regret: float
    probability: float | None
    step_cost: float

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        a = self.allocation
        return {
            "rollouts_per_problem": a.rollouts_per_problem,
            "problems_per_batch": a.problems_per_batch,
            "steps": a.steps,
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
        measured configurations by expected regret, the recommended one first; those expected to lose more
        than 0.005 are left out.
    n_star
        the n of highest reward at the budget, with its interval.
    law_n
        the n that the logistic law names there; refused where none was fitted, or n* falls.
    epochs
        B_p · M / D, None where D is unknown.
    flags
        reasons for care.
    """

    compute: int
    unit: str
    options: list[Option]
    n_star: Quantity
    law_n: Quantity
    epochs: float | None
    flags: list[Flag]

    @property
    def allocation(self) -> Allocation:
        """The recommended (B_p, n, M)."""
        return self.options[0].allocation

    @property
    def reward(self) -> Quantity:
        """Predicted reward of the recommended allocation."""
        return self.options[0].reward

    @property
    def unspent(self) -> int:
        """What of the budget makes no whole step."""
        return self.compute - round(self.allocation.steps * self.options[0].step_cost)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data; every estimate as value, interval, status."""
        a = self.allocation
        return {
            "compute": self.compute,
            "unit": self.unit,
            "rollouts_per_problem": a.rollouts_per_problem,
            "problems_per_batch": a.problems_per_batch,
            "steps": a.steps,
            "unspent": self.unspent,
            "reward": self.reward.to_dict(),
            "expected_regret": self.options[0].expected_regret,
            "probability_within_0.005": self.options[0].probability,
            "n_star": self.n_star.to_dict(),
            "law_n": self.law_n.to_dict(),
            "epochs": self.epochs,
            "options": [option.to_dict() for option in self.options],
            "flags": encoded(self.flags),
        }


_WILD = 60.0  # log2 of an n that no one runs
_EDGE = 1e-6  # of an n: as near to an end of the grid is there
_FAR = 10.0  # times the largest compute measured: beyond, nothing is claimed
_BEYOND = 0.025  # share of draws with the best n at the grid's end that is worth a word
_MOST = 1e15  # rollouts that no budget pays for


@dataclass(frozen=True)
class _Candidate:
    configuration: Configuration  # its place and number of runs; no checkpoints
    reward: Floats  # of its curve at the budget, (1 + D,)
    bounded: bool  # the ceiling of its curve is determined

    @property
    def n(self) -> int:
        return self.configuration.rollouts_per_problem

    @property
    def b(self) -> int:
        return self.configuration.problems_per_batch


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
    alone = {c.n for c in candidates}
    if len(alone) == 1:
        text = f"only n = {alone.pop()} competes at this budget; how it compares is not known"
        flags.append(Flag(Code.ONE_N, text))
    reward, best, n_star = _rewards(document.method, candidates)
    factor = budget / max(entry.measured[1] for entry in document.grid)
    if budget >= max(e.measured[1] + e.step_cost for e in document.grid):
        text = f"{factor:.3g} times the largest compute that was measured"
        flags.append(Flag(Code.EXTRAPOLATION, text))
        n_star = _continued(law, budget, n_star)
    options = _options(candidates, reward, best, budget, known=factor <= _FAR)
    chosen = next(c for c in candidates if (c.b, c.n) == _place(options[0]))
    star = _n_star(n_star, candidates, document, budget, factor, flags)
    law_n = _law_n(law, budget, factor)
    flags += _flags(law, chosen, options, factor)
    epochs = _epochs(document, options[0].allocation, n_train_problems, flags)
    unit = "rollouts" if document.setting == "fixed-b" else document.x.unit
    return Prediction(budget, unit, options, star, law_n, epochs, flags)


def _place(option: Option) -> tuple[int, int]:
    return option.allocation.problems_per_batch, option.allocation.rollouts_per_problem


def _candidates(law: Law, budget: int, cap: int | None, flags: list[Flag]) -> list[_Candidate]:
    """The healthy configurations, measured at the budget, of which it pays for a step under the cap."""
    # As on the frontier, a curve competes where it was measured; beyond the end, those that got there.
    at = min(float(budget), max(entry.measured[1] for entry in law.document.grid))
    unstable = {e.problems_per_batch: e.reason for e in law.document.health.batches if e.reason}
    out: list[_Candidate] = []
    other: list[_Candidate] = []
    batches = []
    for entry, curve in zip(law.document.grid, law.document.curves, strict=True):
        b, n = entry.problems_per_batch, entry.rollouts_per_problem
        batches.append(entry.step_cost)
        if entry.step_cost > budget or (cap is not None and b * n > cap):
            continue
        reward = law.curves(b, n)(budget)[:, 0]
        nothing = np.empty(0)
        seeds, cost = (0,) * entry.runs, entry.step_cost
        place = Configuration(b, n, nothing, nothing, np.empty(0, dtype=np.int64), seeds, cost)
        low, high = entry.measured
        measured = low <= at < high + cost
        (out if measured else other).append(_Candidate(place, reward, curve.ceiling == "seen"))
    largest = max((c.configuration.step_cost for c in out + other), default=0.0)
    if other and not out:
        text = "of the configurations that fit, none was measured at this budget"
        flags.append(Flag(Code.EXTRAPOLATION, text))
    absent = sorted({c.n for c in other} - {c.n for c in out})
    if out and absent:
        listed = ", ".join(map(str, absent))
        text = f"n = {listed} were not measured at this budget, so they do not compete"
        flags.append(Flag(Code.CENSORED, text))
    out = out or other
    if not out:
        limit = f"a budget of {budget}" if min(batches) > budget else f"max_batch_rollouts = {cap}"
        raise InputError(
            f"{limit} does not allow one step of the smallest measured batch, {min(batches):.6g} "
            f"{law.document.x.unit}"
        )
    stable = [c for c in out if c.b not in unstable]
    for b in sorted({c.b for c in out} & set(unstable)):
        kept = "left out" if stable else "kept, since no other was measured"
        flags.append(Flag(Code.UNSTABLE_BATCH, f"B_p = {b} ({unstable[b]}), {kept}"))
    if largest < max(batches):
        text = "larger batches were measured, but do not fit the budget or the cap"
        flags.append(Flag(Code.LIMITED, text))
    return stable or out


def _rewards(method: str, candidates: list[_Candidate]) -> tuple[Floats, Floats, Floats]:
    """Rewards of the candidates (K, 1 + D), the best there is (1 + D), and log2 n of it (1 + D).

    The latter is NaN where no n is better than another.
    """
    curves = np.array([c.reward for c in candidates])
    log2_n = np.log2([float(c.n) for c in candidates])
    if method == "paper" or np.unique(log2_n).size < LEAST_LEVELS:
        best = curves.max(axis=0)
        flat = (best - curves.min(axis=0) <= FLAT * np.abs(best)) & (len(curves) > 1)
        return curves, best, np.where(flat, np.nan, log2_n[highest(curves, 0)])
    surface = fit_surface(
        [c.configuration for c in candidates], curves.T[:, :, None], np.ones((len(candidates), 1), dtype=bool)
    )
    ridge = surface.ridge()
    smooth = surface.at(*surface.plane)[:, 0].T
    best = np.maximum(ridge.reward[:, 0], smooth.max(axis=0))
    return smooth, best, np.where(ridge.below & ridge.above, np.nan, ridge.log2_n)[:, 0]


def _options(
    candidates: list[_Candidate], reward: Floats, best: Floats, budget: int, known: bool
) -> list[Option]:
    regret = best - reward
    drawn = regret[:, 1:] if regret.shape[1] > 1 else regret
    out = []
    for candidate, own, row in zip(candidates, drawn, reward, strict=True):
        status: Any = "ok" if candidate.bounded and known else "not_identified"
        out.append(
            Option(
                Allocation(candidate.b, candidate.n, int(budget // candidate.configuration.step_cost)),
                from_draws(row[0], row[1:], status),
                float(own.mean()),
                float(np.mean(own <= TOLERANCE)) if regret.shape[1] > 1 else None,
                candidate.configuration.step_cost,
            )
        )
    # Of equals (but for rounding) the one with fewer rollouts for each problem, then the smaller batch.
    out.sort(key=lambda o: (round(o.expected_regret, 12), *_place(o)[::-1]))
    return [o for i, o in enumerate(out) if i == 0 or o.expected_regret <= TOLERANCE]


def _n_star(
    log2_n: Floats,
    candidates: list[_Candidate],
    document: LawDocument,
    budget: int,
    factor: float,
    flags: list[Flag],
) -> Quantity:
    """n* at the budget; a bound where it is an end of what was measured and can be paid for."""
    low, high = (f(float(c.n) for c in candidates) for f in (min, max))
    n = np.exp2(log2_n)
    levels = np.unique([c.n for c in candidates]) if document.method == "paper" else None
    if math.isnan(n[0]):
        flags.append(Flag(Code.FLAT, "at this budget no measured n is better than another"))
        return REFUSED
    draws = np.where(n >= high - _EDGE, np.inf, np.where(n <= low + _EDGE, -np.inf, n))
    largest = max(g.rollouts_per_problem for g in document.grid)
    status: Any = "ok"
    if draws[0] == np.inf:
        status = "lower_bound"
        where = "measured" if high == largest else "that was measured here and fits"
        flags.append(Flag(Code.GRID_EDGE, f"the best n may be larger than {high:g}, the largest {where}"))
    elif draws[0] == -np.inf:
        status = "upper_bound"
        text = f"the best n may be smaller than {low:g}, the smallest measured"
        flags.append(Flag(Code.GRID_EDGE, text))
    elif high == largest and draws.size > 1:
        beyond = float(np.mean(draws[1:] == np.inf))
        if beyond > _BEYOND:
            text = f"in {beyond:.0%} of draws n* is the largest measured, {high:g}, or more"
            flags.append(Flag(Code.GRID_EDGE, text))
    if factor > _FAR:
        return Quantity(float(n[0]), None, "not_identified")
    return from_draws(float(n[0]), draws[1:], status, levels)


def _continued(law: Law, budget: int, log2_n: Floats) -> Floats:
    """n* beyond what was measured: the curves continued, and the law continued, which bend differently.

    On simulated truth the first comes out a quarter of a doubling too high at three times the compute, and
    the second a sixth too low; the mean of their logarithms, in every draw, is closer than either.
    """
    other = _law_log2_n(law, budget)
    if law.document.method == "paper" or other is None:
        return log2_n
    ends = np.log2(law.levels[[0, -1]].astype(np.float64))
    other = np.clip(other, *ends)
    return (log2_n + other) / 2


def _law_log2_n(law: Law, budget: int) -> Floats | None:
    """log2 n of the logistic at the budget, (1 + D,); None where there is no such law."""
    document, logistic = law.document, law.logistic
    if logistic is None or not document.comparison.monotone:
        return None
    x = float(budget)
    if document.setting == "fixed-b":
        x = float(budget // document.fixed["batch_rollouts"])
    if x < 1:
        return None
    return np.clip(logistic([math.log10(x) if document.x.log10 else x])[:, 0], -_WILD, _WILD)


def _law_n(law: Law, budget: int, factor: float) -> Quantity:
    """The n of the law at the budget."""
    log2_n = _law_log2_n(law, budget)
    if log2_n is None:
        return REFUSED
    n, levels = np.exp2(log2_n), law.levels
    draws = np.where(n >= levels[-1] - _EDGE, np.inf, np.where(n <= levels[0] + _EDGE, -np.inf, n))
    if factor > _FAR:
        return Quantity(float(n[0]), None, "not_identified")
    if np.isinf(draws[0]):  # as n*, also where it levels off at the end of what was measured
        outside: Any = "lower_bound" if draws[0] > 0 else "upper_bound"
        return from_draws(float(np.clip(n[0], levels[0], levels[-1])), draws[1:], outside)
    return from_draws(float(n[0]), draws[1:])


def _flags(law: Law, chosen: _Candidate, options: list[Option], factor: float) -> list[Flag]:
    """Reasons for care that do not depend on n* itself."""
    document = law.document
    out: list[Flag] = []

    def flag(code: Code, text: str) -> None:
        out.append(Flag(code, text))

    batches = sorted({g.problems_per_batch for g in document.grid})
    if len(batches) > 1 and document.setting == "joint":  # at fixed B it follows from n
        if chosen.b == batches[-1]:
            flag(Code.BATCH_EDGE, f"the best B_p may be larger than {chosen.b}, the largest measured")
        elif chosen.b == batches[0] > 1:
            flag(Code.BATCH_EDGE, f"the best B_p may be smaller than {chosen.b}, the smallest measured")
    if not chosen.bounded:
        flag(Code.OPEN_CEILING, "the ceiling of the chosen curve is not determined by what was measured")
    if factor > _FAR:
        flag(
            Code.FAR,
            f"more than {_FAR:g} times what was measured: nothing supports this n* and this reward",
        )
    if options[0].expected_regret > TOLERANCE:
        flag(
            Code.UNCERTAIN,
            f"even the best choice is expected to lose {options[0].expected_regret:.3f}; more seeds help",
        )
    out += having(document.flags, Code.ONE_SEED, Code.TWO_SEEDS, Code.MISFIT)
    if len(law.draws) <= 1:
        why = "their file is missing" if document.bootstrap.draws else "fitted with none"
        flag(
            Code.NO_DRAWS,
            f"{why}, so nothing has an interval, and regret is that of the estimate alone",
        )
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
