"""Two recipes side by side (`isolaw.fits.studies.recipes`): their numbers, and what they come to in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from isolaw.fits.quantity import Quantity
from isolaw.fits.surface.bootstrap import Unit


class Row(NamedTuple):
    """One quantity of two recipes, and the second's less the first's (for C_mid: divided by it)."""

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
        the largest compute that both have; ``predicted``: what the first half of that compute says of
        it; ``error``: predicted less measured; ``reward``: at the budget asked for, if any.
    """

    configurations: list[tuple[int, int]]
    rows: dict[str, Row]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        names = ("problems_per_batch", "rollouts_per_problem")
        rows = {name: {k: q.to_dict() for k, q in row._asdict().items()} for name, row in self.rows.items()}
        return {"configurations": [dict(zip(names, c, strict=True)) for c in self.configurations], **rows}


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes
    ----------
    names
        of the two recipes.
    facts
        in what they differ: each fact's value in the first and in the second.
    metric, eval_set, compute
        what was compared, and the budget, if any.
    contrasts
        one for each common (B_p, n).
    mean
        their mean; that of A, B and C_mid over the configurations where both curves are determined.
    paired
        whether the runs were drawn by common seeds.
    units
        what was drawn, for each recipe.
    verdict
        in words: ``ceiling``, ``speed``, ``reward`` (with a budget), ``first half``.
    notes
        what a reader must know.
    """

    names: tuple[str, str]
    facts: dict[str, tuple[Any, Any]]
    metric: str
    eval_set: str
    compute: float | None
    contrasts: list[Contrast]
    mean: Contrast
    paired: bool
    units: tuple[Unit, Unit]
    verdict: dict[str, str]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data; every quantity as value, interval, status."""
        return {
            "names": list(self.names),
            "facts": {name: list(values) for name, values in self.facts.items()},
            "metric": self.metric,
            "eval_set": self.eval_set,
            "compute": self.compute,
            "paired": self.paired,
            "units": list(self.units),
            "contrasts": [c.to_dict() for c in self.contrasts],
            "mean": self.mean.to_dict(),
            "verdict": self.verdict,
            "notes": self.notes,
        }


def verdict(names: tuple[str, str], rows: Mapping[str, Row], compute: float | None) -> dict[str, str]:
    """Say which recipe ends higher, which is faster, and whether the first half would have told.

    Parameters
    ----------
    names
        of the recipes.
    rows
        as in `Contrast`.
    compute
        the budget of the row ``reward``, if there is one.

    >>> def row(difference, low, high):
    ...     return Row(Quantity(0.6), Quantity(0.6 + difference), Quantity(difference, (low, high)))
    >>> rows = {"A": row(0.03, 0.01, 0.05), "C_mid": row(1.5, 0.7, 3.0), "end": row(0.02, 0.01, 0.03),
    ...         "predicted": row(0.01, -0.02, 0.04)}
    >>> for words in verdict(("old", "new"), rows, None).values():
    ...     print(words)
    new has the higher ceiling, by 0.03 (95 %: 0.01 to 0.05)
    neither is faster beyond noise: C_mid of new is 1.5 times that of old (95 %: 0.7 to 3)
    new ends 0.02 higher (95 %: 0.01 to 0.03); the first half would not have told
    """
    out = {"ceiling": _ceiling(names, rows["A"].difference, "has the higher ceiling")}
    out["speed"] = _speed(names, rows["C_mid"].difference)
    if compute is not None:
        out["reward"] = _ceiling(names, rows["reward"].difference, f"is better at C = {compute:.4g}")
    out["first half"] = _first_half(names, rows["end"].difference, rows["predicted"].difference)
    return out


def side(difference: Quantity, neutral: float = 0.0) -> int | None:
    """Return 1 (−1) if the difference is above (below) neutral beyond noise, 0 if not, None if unknown."""
    if difference.interval is None or difference.status != "ok":
        return None
    low, high = difference.interval
    if low is not None and low > neutral:
        return 1
    return -1 if high is not None and high < neutral else 0


def _ceiling(names: tuple[str, str], difference: Quantity, what: str) -> str:
    value = difference.value
    if value is None or difference.status != "ok":
        return f"which {what} is not known: the curves do not determine it"
    if value == 0:
        return f"neither {what}: they are equal"
    ahead = names[value > 0]
    found = side(difference)
    if found is None:
        return f"{ahead} {what}, by {abs(value):.3g} (no interval, so that may be noise)"
    if found:
        return f"{ahead} {what}, by {abs(value):.3g} ({_interval(difference, value < 0)})"
    return f"neither {what} beyond noise: {ahead} by {abs(value):.3g} ({_interval(difference, value < 0)})"


def _speed(names: tuple[str, str], ratio: Quantity) -> str:
    if ratio.value is None or ratio.status != "ok":
        return "which is faster is not known: the curves do not determine it"
    if ratio.value == 1:
        return "neither is faster: they are equal"
    text = f"C_mid of {names[1]} is {ratio.value:.3g} times that of {names[0]}"
    found = side(ratio, 1.0)
    if found is None:
        return f"{text} (no interval, so that may be noise)"
    said = f"{text} ({_interval(ratio)})"
    if found == 0:
        return f"neither is faster beyond noise: {said}"
    return f"{names[found < 0]} is faster: {said}"


def _first_half(names: tuple[str, str], measured: Quantity, predicted: Quantity) -> str:
    truth, told = side(measured), side(predicted)
    if measured.value is None:
        return "whether it would have told is not known: they were measured at no common compute"
    if truth is None:
        equal = "they end alike" if measured.value == 0 else "the rewards at the end have no interval"
        return f"whether it would have told is not known: {equal}"
    size = f"{abs(measured.value):.3g}"
    if truth:
        text = f"{names[truth > 0]} ends {size} higher ({_interval(measured, truth < 0)}); the first half"
        if told is None:
            return f"{text} cannot be fitted"
        outcome = {
            truth: "would have told so",
            0: "would not have told",
            -truth: "would have told the opposite",
        }
        return f"{text} {outcome[told]}"
    text = f"at the end they differ by no more than noise ({_interval(measured)}); the first half"
    if told is None:
        return f"{text} cannot be fitted"
    return f"{text} {'would have claimed a difference' if told else 'claims no difference either'}"


def _interval(q: Quantity, negated: bool = False) -> str:
    """The interval in words; of the negative, where the sentence is turned round."""
    assert q.interval is not None
    low, high = q.interval
    if negated:
        low, high = (None if high is None else -high), (None if low is None else -low)
    if low is None or high is None:
        return f"95 %: {high:.3g} or less" if low is None else f"95 %: {low:.3g} or more"
    return f"95 %: {low:.3g} to {high:.3g}"
