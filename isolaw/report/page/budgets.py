"""The positions of the budget slider, with the text of each prediction, since the page computes nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from isolaw.evidence import amount, in_reward, number, share
from isolaw.fits.allocations import FAR, comparable
from isolaw.fits.document.schema import LawDocument
from isolaw.fits.law import Law
from isolaw.fits.predict import Option, Prediction
from isolaw.report.text import law as law_text
from isolaw.report.text import prediction as text

# The E6 series of preferred numbers (IEC 60063): 6 round values per decade, evenly spaced in log C.
_E6 = (1.0, 1.5, 2.2, 3.3, 4.7, 6.8)


@dataclass(frozen=True)
class Budgets:
    """The predictions at all positions of the slider, and its initial position."""

    predictions: list[Prediction]
    first: int
    nearest: Prediction | None = None  # at the largest budget with a recommendation, if a position has none
    today: Prediction | None = None  # at the largest compute that three n reached; one of the positions

    @property
    def answer(self) -> Prediction:
        """The prediction that the page shows first."""
        return self.predictions[self.first]

    @property
    def recommended(self) -> list[Prediction]:
        """The predictions with a recommendation: the frontier that the page draws."""
        return [p for p in self.predictions if p.options]


def budgets(law: Law, compute: float | str | None, **limits: Any) -> Budgets:
    """Predict at every position, from the start of the frontier to the largest budget with a recommendation.

    The slider starts at ``compute`` (or at the rollouts that hours buy), by default at the largest measured
    position with a recommendation. Raises `InputError` if ``compute`` is less than one step.
    """
    if isinstance(compute, str):
        asked = law.predict(compute, **limits)
        bought = None if asked.allocation is None else asked.allocation.compute
        compute = bought if asked.asked else asked.compute
    grid = law.document.grid
    largest = max(entry.measured[1] for entry in grid)
    start = law.document.x.range[0] * law_text.steps_scale(law.document)
    predictions: dict[int, Prediction] = {}
    for stop in _stops(start, max(FAR * comparable(grid), largest)):
        if (prediction := text.predicted(law, stop, **limits)) is not None:
            predictions[stop] = prediction
    today = text.at_the_end(law, **limits)
    if today is not None:
        predictions.setdefault(today.compute, today)
    if compute is None:
        measured = [stop for stop in predictions if stop <= largest * 1.01 and predictions[stop].options]
        compute = max(measured, default=min(predictions, default=largest))
    predictions[int(compute)] = law.predict(compute, **limits)
    ordered = sorted(predictions)
    refused = next((p for p in predictions.values() if not p.options), None)
    nearest = None if refused is None else text.largest_with_recommendation(law, refused, **limits)
    return Budgets([predictions[stop] for stop in ordered], ordered.index(int(compute)), nearest, today)


def _stops(low: float, high: float) -> list[int]:
    """Return the preferred numbers from ``low`` to ``high``.

    >>> _stops(600, 1500)
    [680, 1000, 1500]
    """
    decades = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    every = (round(number * 10.0**decade) for decade in decades for number in _E6)
    return sorted({stop for stop in every if low <= stop <= high})


def _unbroken(sentence: str) -> str:
    """Return a sentence with nonbreaking spaces between each symbol and its number."""
    return sentence.replace(" = ", "\u00a0=\u00a0")


def shown(prediction: Prediction, law: Law, nearest: Budgets) -> dict[str, Any]:
    """Return the page's texts for a prediction. Texts for unknown values are empty."""
    document, a = law.document, prediction.allocation
    n, b, m = ("–",) * 3
    if a is not None:
        n, b, m = (f"{v:,}" for v in (a.rollouts_per_problem, a.problems_per_batch, a.steps))
    loss, stars, step = text.loss(prediction), text.stars(prediction), prediction.next
    instead = nearest.nearest if a is None else None
    return {
        "x": prediction.compute / law_text.steps_scale(document),
        "budget": f"{amount(prediction.compute)} {prediction.unit}",
        "n": n,
        "b": b,
        "m": m,
        "spoken": "no recommendation" if a is None else f"n {n}, B_p {b}, M {m}",
        "answer": _unbroken(prediction.simulated.first(text.answer(prediction))),
        "loss": loss,
        "instead": "" if instead is None else _unbroken(text.largest_answer(instead)),
        "reward": "" if a is None else str(prediction.reward),
        "best": "" if a is None else best(prediction, document),
        "n_star": stars.get("n*", ""),
        "b_star": stars.get("B_p*", ""),
        "epochs": "" if prediction.epochs is None else number(prediction.epochs),
        "rules": text.rules(prediction),
        "cost": text.cost_line(prediction).removeprefix("Cost: "),
        "next": str(step),
        "command": step.command,
        "flags": law_text.notes(prediction.flags),
        "options": [_option(option, prediction.tolerance) for option in prediction.options[1:]],
    }


def best(prediction: Prediction, document: LawDocument) -> str:
    """Return the recommended n as text, or B_p for a law of B_p, or n and B_p with ``hold="nothing"``."""
    return ", ".join(f"{name} = {getattr(prediction, name):,}" for name in text.chosen(document))


def _option(o: Option, tolerance: float) -> list[str]:
    a = o.allocation
    within = "" if o.probability is None else share(o.probability)
    counts = (a.rollouts_per_problem, a.problems_per_batch, a.steps)
    lost = in_reward(o.expected_loss, tolerance)
    return [*(f"{v:,}" for v in counts), "yes" if o.measured else "no", lost, within]
