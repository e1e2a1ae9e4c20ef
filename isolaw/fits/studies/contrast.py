"""What a comparison of two recipes finds (`isolaw.fits.studies.recipes`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from isolaw.fits.document.codec import encoded
from isolaw.fits.quantity import Quantity
from isolaw.fits.surface.bootstrap import Unit

Place = tuple[int, int]


class Row(NamedTuple):
    """A quantity of two recipes, and their difference: the second less the first (C_mid: divided by it)."""

    first: Quantity
    second: Quantity
    difference: Quantity


@dataclass(frozen=True)
class Contrast:
    """The two recipes at one configuration, or on average.

    Attributes
    ----------
    configurations
        the (B_p, n): one, or all that the mean is over.
    rows
        ``A``, ``B``, ``C_mid`` of the curves through all checkpoints; ``end``: the reward measured at
        the largest compute that both have; ``predicted``: its prediction from the first half of that
        compute; ``error``: predicted less measured; ``reward``: at the budget, if there is one.
    """

    configurations: list[Place]
    rows: dict[str, Row]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        places = [{"problems_per_batch": b, "rollouts_per_problem": n} for b, n in self.configurations]
        return {"configurations": places, **{name: encoded(row._asdict()) for name, row in self.rows.items()}}


@dataclass(frozen=True)
class RecipeComparison:
    """What `isolaw.fits.studies.recipes.compare` found."""

    names: tuple[str, str]
    facts: dict[str, tuple[Any, Any]]  # in what the recipes differ: both values
    metric: str
    eval_set: str
    compute: float | None
    contrasts: list[Contrast]  # one for each common (B_p, n)
    mean: Contrast  # that of A, B and C_mid over the configurations where both curves are determined
    paired: bool  # whether the runs were drawn by common seeds
    units: tuple[Unit, Unit]  # what was drawn, for each recipe
    notes: list[str]  # for the reader

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data; every quantity as value, interval, status."""
        contrasts = [c.to_dict() for c in self.contrasts]
        return {**encoded(self), "contrasts": contrasts, "mean": self.mean.to_dict()}


def side(difference: Quantity, neutral: float = 0.0) -> int | None:
    """Return 1 (−1) if the difference is above (below) neutral beyond noise, 0 if not, None if unknown."""
    if difference.interval is None or difference.status != "ok":
        return None
    low, high = difference.interval
    if low is not None and low > neutral:
        return 1
    return -1 if high is not None and high < neutral else 0
