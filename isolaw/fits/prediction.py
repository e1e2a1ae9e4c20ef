"""`Prediction`: a recommended allocation with its estimates, the result of `predict`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from isolaw import commands
from isolaw.allocation import Allocation
from isolaw.evidence import REFUSED, Quantity, Simulated, number
from isolaw.fits.document.codec import encoded
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.flags import Code, Flag, flags_with, simulated_from_flags
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.next_step import NextStep, sweep_of, with_command
from isolaw.registry import Shown, public
from isolaw.step_cost import Cost, Spent


@dataclass(frozen=True)
class Option:
    """An allocation of the budget, with its predicted reward and its expected loss."""

    allocation: Allocation
    reward: Quantity
    expected_loss: float  #: mean over draws of the best reward minus the reward of this allocation
    #: Share of draws in which its reward is within the tolerance of the best; None without draws.
    probability: float | None
    step_cost: float  #: cost of one step, in the unit of the budget
    measured: bool = True  #: whether the runs include it
    beyond: float = 0.0  #: number of doublings past the measured n and B_p

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return {
            **_allocation_fields(self.allocation),
            "measured": self.measured,
            "reward": encoded(self.reward),
            "expected_loss": self.expected_loss,
            "probability_within_tolerance": self.probability,
        }


@dataclass(frozen=True, repr=False)
class Prediction(Shown):
    """A recommended allocation with its estimates. ``print`` shows it as ``isolaw predict`` does.

    >>> import isolaw
    >>> runs = isolaw.sweep({"sweep": {"compute": 400_000, "seeds": 3},
    ...     "grid": {"rollouts_per_problem": [8, 32, 128, 512]}, "executor": {"kind": "inline"}})
    >>> p = isolaw.fit(runs, draws=20).predict("500k")
    >>> p.n * p.B_p * p.M <= 500_000
    True
    >>> print(p)
    Simulated runs. For 500k rollouts: n = ...
    """

    TEXT = "text.prediction.document"

    compute: int  #: the budget C
    unit: str  #: unit of the budget: rollouts, tokens or seconds
    #: Allocations as `isolaw.fits.predict` ranks them, the recommended one first; empty if nothing can be
    #: compared. A law leaves out allocations with an expected loss above its tolerance.
    options: list[Option]
    #: The n, B_p and M with the highest reward at the budget. What the law holds fixed has no interval.
    n_star: Quantity
    b_star: Quantity
    m_star: Quantity
    epochs: float | None  #: B_p · M / D; None if D is unknown or nothing is recommended
    comparable: int  #: the largest budget at which at least three n can be compared
    flags: list[Flag]  #: reasons for care
    asked: str = ""  #: a budget in hours as the user gave it; ``compute`` is then in seconds
    cost: Cost | None = None  #: cost of a step
    compared: tuple[int, int] | None = None  #: the smallest and the largest n that competed
    #: The smallest and the largest B_p that competed; None unless B_p varied independently of n.
    compared_batches: tuple[int, int] | None = None
    #: the n that simple rules choose: the best measured one, and IsoFLOP (`isolaw.fits.rules`)
    rules: dict[str, float] = field(default_factory=dict)
    #: the runs that are worth their price before the final run, if any (`isolaw.fits.next_step`)
    step: NextStep | None = None
    document: LawDocument | None = field(default=None, compare=False)  #: document of the law behind it

    def __repr__(self) -> str:
        a = self.allocation
        best = "no allocation" if a is None else f"n = {self.n}, B_p = {self.B_p}, M = {self.M}"
        loss_text = "" if self.loss is None else f"; expected loss {self.loss:.4f}"
        budget = self.asked or f"{number(self.compute)} {self.unit}"
        return f"<Prediction: {self.simulated.title(f'{budget}: {best}{loss_text}')}>"

    @property
    def tolerance(self) -> float:
        """The difference within which rewards count as equal: 0.005 of the metric's unit."""
        return TOLERANCE if self.document is None else self.document.tolerance

    @property
    def n(self) -> int | None:
        """Rollouts per problem of the recommended allocation. n, B_p and M are None if there is none."""
        return None if self.allocation is None else self.allocation.rollouts_per_problem

    @property
    def B_p(self) -> int | None:
        """Problems per batch of the recommended allocation."""
        return None if self.allocation is None else self.allocation.problems_per_batch

    @property
    def M(self) -> int | None:
        """Update steps of the recommended allocation."""
        return None if self.allocation is None else self.allocation.steps

    @property
    def loss(self) -> float | None:
        """Expected loss of the recommended allocation relative to the best allocation, in reward."""
        return self.options[0].expected_loss if self.options else None

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
        """The part of the budget that is too small for another step."""
        if not self.options:
            return None
        best = self.options[0]
        return self.compute - round(best.allocation.steps * best.step_cost)

    def spent(self, option: Option) -> Spent | None:
        """Return the cost of an option's steps, or None if the cost is unknown."""
        a = option.allocation
        seconds = self.cost and self.cost.seconds(a.problems_per_batch, a.rollouts_per_problem, a.steps)
        return Spent(seconds, self.cost) if seconds and self.cost else None

    @cached_property
    def next(self) -> NextStep:
        """What to do next: runs to add, or the final run, with their command."""
        assert self.document is not None
        sweep, a = sweep_of(self.document), self.allocation
        if flags_with(self.document.flags, Code.FLAT):
            return NextStep("Check the metric, or train until it rises.", "The reward never changed.")
        if flags_with(self.flags, Code.NO_DRAWS):
            return NextStep("Fit with draws: without them, isolaw cannot tell which run is worth its price.")
        if self.step is not None:
            return with_command(self.step, self.document)
        if a is None:
            return NextStep("Choose a smaller budget.")
        file, shape = Path(sweep) / "sweep.toml", (a.problems_per_batch, a.rollouts_per_problem)
        can_continue = sweep and file.is_file() and not self.asked
        command = str(commands.spend(file, shape, self.compute)) if can_continue else ""
        what = (
            "No further run is needed"
            if self.options[0].expected_loss <= self.tolerance
            else "No run pays for itself"
        )
        return NextStep(f"{what}; spend the budget.", "", command, final=a)

    @property
    def overrides(self) -> str:
        """The allocation as settings of the trainer that made the runs; empty without an adapter for it."""
        a, framework = self.allocation, self.document.framework if self.document else ""
        if a is None or not framework:
            return ""
        words = public("trainer_overrides")(framework, a.problems_per_batch, a.rollouts_per_problem, a.steps)
        return commands.quoted(words)

    @property
    def simulated(self) -> Simulated:
        """Whether a simulator made the runs behind the prediction."""
        return simulated_from_flags(self.flags)

    def _cost_fields(self, option: Option | None) -> dict[str, Any]:
        spent = option and self.spent(option)
        return spent.to_dict() if spent else dict.fromkeys(("hours", "gpu_hours", "price", "money"))

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data. An estimate has a value, an interval and a status, null if unknown."""
        best = self.options[0] if self.options else None
        return {
            "simulated": self.simulated.json,
            "compute": self.compute,
            "unit": self.unit,
            "budget": self.asked or None,
            **_allocation_fields(self.allocation),
            "unspent": self.unspent,
            "cost": None if self.cost is None else {**self._cost_fields(best), **self.cost.to_dict()},
            "reward": encoded(self.reward),
            "expected_loss": self.loss,
            "probability_within_tolerance": best and best.probability,
            "tolerance": self.tolerance,
            **{name: encoded(getattr(self, name)) for name in ("n_star", "b_star", "m_star")},
            "epochs": self.epochs,
            "comparable": self.comparable,
            "compared_n": None if self.compared is None else list(self.compared),
            "compared_b_p": None if self.compared_batches is None else list(self.compared_batches),
            "rules": self.rules,
            "next": self.next.to_dict(),
            "overrides": self.overrides or None,
            "options": [
                option.to_dict() | ({} if self.cost is None else {"cost": self._cost_fields(option)})
                for option in self.options
            ],
            "flags": encoded(self.flags),
        }


def _allocation_fields(allocation: Allocation | None) -> dict[str, int | None]:
    names = ("rollouts_per_problem", "problems_per_batch", "steps")
    return {name: getattr(allocation, name, None) for name in names}
