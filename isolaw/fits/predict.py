"""The allocation for a budget: n rounded to a measured one, B_p, M = floor(C / (n · B_p)).

Beside the law's answer stands what each measured configuration would lose, since near the optimum
reward is flat and n* may be badly, and harmlessly, identified.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from isolaw.allocation import Allocation
from isolaw.errors import InputError
from isolaw.fits.compare import nearest_level
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.law import Law
from isolaw.fits.quantity import Quantity, Status, from_draws
from isolaw.fits.select import Floats


@dataclass(frozen=True)
class Alternative:
    """A measured configuration at the budget.

    Attributes
    ----------
    allocation
        how it would spend the budget.
    reward
        its predicted reward.
    expected_regret
        mean over draws of the best configuration's reward minus its own.
    probability
        share of draws in which it is within 0.005 of the best.
    """

    allocation: Allocation
    reward: Quantity
    expected_regret: float
    probability: float | None

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
    compute
        the budget C.
    allocation
        the recommended (B_p, n, M).
    rollouts_per_problem
        n with its interval over draws, in measured n.
    reward
        predicted reward at the end.
    near_optimal
        measured configurations expected to lose at most 0.005, best first; the recommended one is
        always among them.
    epochs
        B_p · M / D, None where D is unknown.
    flags
        reasons for care, each ``name: explanation``.
    """

    compute: int
    allocation: Allocation
    rollouts_per_problem: Quantity
    reward: Quantity
    near_optimal: list[Alternative]
    epochs: float | None
    flags: list[str]

    @property
    def unspent(self) -> int:
        """Rollouts of the budget that make no whole step."""
        return self.compute - self.allocation.compute

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data; every quantity as value, interval, status."""
        exact: dict[str, Quantity] = {
            "problems_per_batch": Quantity(float(self.allocation.problems_per_batch)),
            "steps": Quantity(float(self.allocation.steps)),
            "unspent": Quantity(float(self.unspent)),
        }
        return {
            "compute": self.compute,
            "rollouts_per_problem": self.rollouts_per_problem.to_dict(),
            **{name: quantity.to_dict() for name, quantity in exact.items()},
            "reward": self.reward.to_dict(),
            "epochs": Quantity(self.epochs, None, "ok" if self.epochs is not None else "refused").to_dict(),
            "near_optimal": [a.to_dict() for a in self.near_optimal],
            "flags": self.flags,
        }


_FAR = 10.0  # times the largest compute measured: beyond, nothing is claimed


@dataclass(frozen=True)
class _Candidate:
    problems_per_batch: int
    rollouts_per_problem: int
    reward: Floats  # (1 + D,) at the budget
    bounded: bool  # the ceiling of its curve is determined
    competes: bool  # its reward was measured at the budget, or at the end of all runs if that is less


def predict(
    law: Law, compute: float, max_batch_rollouts: int | None = None, n_train_problems: int | None = None
) -> Prediction:
    """Return the allocation for a budget (see `Law.predict`)."""
    if not math.isfinite(compute) or compute < 1:
        raise InputError(f"compute {compute!r}: accepted: a positive number of rollouts")
    budget = int(compute)
    document = law.document
    candidates = _affordable(law, budget, max_batch_rollouts)
    competing = [c for c in candidates if c.competes] or candidates
    flags: list[str] = []
    n, quantity_n = _choose_n(law, budget, candidates, competing, flags)
    chosen = _choose_batch(document["setting"], [c for c in candidates if c.rollouts_per_problem == n])
    allocation = Allocation.within(budget, chosen.problems_per_batch, n)
    if chosen not in competing:
        flags.append(f"reward: n = {n} was not measured at this budget, others were")
        competing = [*competing, chosen]
    factor = budget / max(entry["measured"][1] for entry in document["grid"])
    known = chosen.bounded and factor <= _FAR
    reward = from_draws(chosen.reward[0], chosen.reward[1:], "ok" if known else "not_identified")
    flags += _reward_flags(document, chosen, competing, factor)
    flags += _data_flags(law)
    epochs = _epochs(document, allocation, n_train_problems, flags)
    alternatives = _alternatives(competing, chosen, budget)
    return Prediction(budget, allocation, quantity_n, reward, alternatives, epochs, flags)


def _affordable(law: Law, budget: int, cap: int | None) -> list[_Candidate]:
    """The measured configurations under the cap of which the budget pays for at least one step."""
    out, smallest = [], None
    # As on the frontier, a curve competes where it was measured; beyond the end, those that got there.
    at = min(float(budget), max(entry["measured"][1] for entry in law.document["grid"]))
    for entry, curve in zip(law.document["grid"], law.document["curves"], strict=True):
        b, n = entry["problems_per_batch"], entry["rollouts_per_problem"]
        smallest = min(b * n, smallest or b * n)
        if b * n > budget or (cap is not None and b * n > cap):
            continue
        reward = law.curves(b, n)(budget)[:, 0]
        low, high = entry["measured"]
        competes = low <= at < high + b * n
        out.append(_Candidate(b, n, reward, curve["A"]["status"] == "ok", competes))
    if not out:
        limit = f"a budget of {budget}" if smallest and smallest > budget else f"max_batch_rollouts = {cap}"
        raise InputError(
            f"{limit} does not allow one step of the smallest measured batch, {smallest} rollouts"
        )
    return out


def _choose_n(
    law: Law, budget: int, candidates: list[_Candidate], competing: list[_Candidate], flags: list[str]
) -> tuple[int, Quantity]:
    """The law's n at the budget, rounded to a measured and affordable one."""
    document, levels, logistic = law.document, law.levels, law.logistic
    x = _x(document, budget)
    if logistic is not None:
        log2_n = logistic([math.log10(x) if document["x"]["log10"] else x])[:, 0]
    else:
        best = np.argmax([c.reward for c in competing], axis=0)
        log2_n = np.log2([c.rollouts_per_problem for c in competing])[best]
        flags.append("no law: n is the best measured curve at this budget")
    affordable = np.isin(levels, [c.rollouts_per_problem for c in candidates])
    free = levels[nearest_level(log2_n, levels)]
    wanted, n = int(free[0]), int(levels[nearest_level(log2_n[:1], levels, affordable[:, None])[0]])
    factor = x / document["x"]["range"][1]
    if factor > 1:
        flags.append(f"extrapolation: {factor:.3g} times the largest budget that was measured")
    elif x < document["x"]["range"][0]:
        flags.append("extrapolation: below the smallest budget at which all n can be compared")
    if wanted != n:
        flags.append(f"limited: the law asks for n = {wanted}, whose batch does not fit")
        return n, Quantity(float(n))
    status = _status(document, n, levels, x, flags)
    if factor > _FAR and status == "ok":
        status = "not_identified"
    return n, from_draws(float(n), free[1:], status, levels)


def _x(document: dict[str, Any], budget: int) -> float:
    """The law's x at a budget: C, or the whole steps that it pays for."""
    if document["setting"] == "fixed-b":
        return float(budget // document["fixed"]["batch_rollouts"])
    return float(budget)


def _status(document: dict[str, Any], n: int, levels: Any, x: float, flags: list[str]) -> Status:
    """Whether n at this budget is an estimate or a bound."""
    if n == levels[-1]:
        flags.append(f"grid edge: n = {n} is the largest measured; the best n may be larger")
        return "lower_bound"
    if n == levels[0]:
        flags.append(f"grid edge: n = {n} is the smallest measured; the best n may be smaller")
        return "upper_bound"
    at = min(document["frontier"], key=lambda p: abs(math.log(p["x"] / x)))
    if at["censored"]:
        flags.append(f"censored: near this budget n* is only a bound ({', '.join(at['censored_by'])})")
        return "lower_bound" if at["n_star"]["status"] == "lower_bound" else "not_identified"
    return "ok"


def _choose_batch(setting: str, members: list[_Candidate]) -> _Candidate:
    """``joint``: the smallest B_p within tolerance of the best at this n. Else there is only one."""
    if setting != "joint":
        return members[0]
    best = max(c.reward[0] for c in members)
    return min((c for c in members if c.reward[0] >= best - TOLERANCE), key=lambda c: c.problems_per_batch)


def _alternatives(candidates: list[_Candidate], chosen: _Candidate, budget: int) -> list[Alternative]:
    reward = np.array([c.reward for c in candidates])  # (K, 1 + D)
    regret = reward.max(axis=0) - reward
    draws = regret[:, 1:] if regret.shape[1] > 1 else regret
    out = []
    for candidate, own, row in zip(candidates, draws, reward, strict=True):
        if own.mean() > TOLERANCE and candidate is not chosen:
            continue
        out.append(
            Alternative(
                Allocation.within(budget, candidate.problems_per_batch, candidate.rollouts_per_problem),
                from_draws(row[0], row[1:], "ok" if candidate.bounded else "not_identified"),
                float(own.mean()),
                float(np.mean(own <= TOLERANCE)) if regret.shape[1] > 1 else None,
            )
        )
    return sorted(out, key=lambda a: a.expected_regret)


def _reward_flags(
    document: dict[str, Any], chosen: _Candidate, competing: list[_Candidate], factor: float
) -> list[str]:
    out = []
    if not chosen.bounded:
        out.append("reward: the ceiling of the chosen curve is not determined by what was measured")
    best = max(competing, key=lambda c: c.reward[0])
    loss = float(best.reward[0] - chosen.reward[0])
    if loss > TOLERANCE:
        out.append(
            f"curves disagree: the fitted curves put n = {best.rollouts_per_problem}, B_p = "
            f"{best.problems_per_batch} ahead by {loss:.3f} at this budget"
        )
    if factor > _FAR:
        out.append(f"far: more than {_FAR:g} times what was measured, so neither n nor reward is stated")
    if document["comparison"]["verdict"] == "no law":
        out.append("weak law: along the frontier the logistic law does no better than a constant n")
    return out


def _data_flags(law: Law) -> list[str]:
    """What limits every prediction from these runs."""
    document = law.document
    out = []
    if all(entry["runs"] == 1 for entry in document["grid"]):
        out.append("one seed: intervals leave out the variation between seeds")
    out += [f"misfit: {warning}" for warning in document["warnings"] if warning.startswith("--curve")]
    if len(law.draws) <= 1:
        draws = document["bootstrap"]["draws"]
        out.append(
            "no draws: "
            + ("their file is missing, so" if draws else "fitted with none, so")
            + " nothing has an interval"
        )
    return out


def _epochs(
    document: dict[str, Any], allocation: Allocation, n_train_problems: int | None, flags: list[str]
) -> float | None:
    """B_p · M / D, with a flag where the runs never went round that often."""
    size = n_train_problems if n_train_problems is not None else document["n_train_problems"]
    if size is None:
        return None
    if size < 1:
        raise InputError(f"n_train_problems {size}: accepted: a positive number of training problems")
    epochs = allocation.problems_per_batch * allocation.steps / size
    seen = document["epochs_seen"]
    if seen is None:
        flags.append(
            f"epochs: {epochs:.1f} passes over {size} problems; the runs do not say how many they made"
        )
    elif epochs > seen:
        flags.append(f"epochs: {epochs:,.1f} passes over {size:,} problems, the runs saw {seen:.1f} at most")
    trained_on = document["n_train_problems"]
    if trained_on is not None and size < trained_on:
        flags.append(f"fewer problems: the runs had {trained_on:,}; with fewer the best n may be smaller")
    return epochs
