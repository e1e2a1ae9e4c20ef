"""`Prediction`: an allocation with its expected regret; n*, B_p* and M* with their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isolaw.allocation import Allocation
from isolaw.fits.document.codec import encoded
from isolaw.fits.document.flags import Flag
from isolaw.fits.quantity import REFUSED, Quantity


@dataclass(frozen=True)
class Option:
    """A configuration at the budget."""

    allocation: Allocation
    reward: Quantity
    expected_regret: float  # mean over draws of the best reward minus its own
    probability: float | None  # share of draws in which it is within 0.005 of the best; None without draws
    step_cost: float  # in the unit of the budget
    measured: bool = True  # otherwise its n lies between measured n

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


def _split(allocation: Allocation | None) -> dict[str, int | None]:
    names = ("rollouts_per_problem", "problems_per_batch", "steps")
    return {name: getattr(allocation, name, None) for name in names}
