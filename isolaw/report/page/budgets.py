"""The positions of the budget slider, with the text of each prediction, since the page computes nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from isolaw.evidence import amount, in_reward, number, share
from isolaw.fits.allocations import FAR, comparable_compute
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
        return [prediction for prediction in self.predictions if prediction.options]


def budgets(law: Law, compute: float | str | None, **limits: Any) -> Budgets:
    """Predict at every position, from the start of the frontier to the largest budget with a recommendation.

    The slider starts at ``compute`` (or at the rollouts that hours buy), by default at the largest measured
    position with a recommendation. Raises `InputError` if ``compute`` is less than one step.
    """
    if isinstance(compute, str):
        predicted = law.predict(compute, **limits)
        rollouts = None if predicted.allocation is None else predicted.allocation.compute
        compute = rollouts if predicted.asked else predicted.compute
    grid = law.document.grid
    largest = max(entry.measured[1] for entry in grid)
    start = law.document.x.range[0] * law_text.steps_scale(law.document)
    predictions: dict[int, Prediction] = {}
    for stop in _preferred_numbers(start, max(FAR * comparable_compute(grid), largest)):
        if (p := text.predicted(law, stop, **limits)) is not None:
            predictions[stop] = p
    today = text.at_the_end(law, **limits)
    if today is not None:
        predictions.setdefault(today.compute, today)
    if compute is None:
        measured = [stop for stop in predictions if stop <= largest * 1.01 and predictions[stop].options]
        compute = max(measured, default=min(predictions, default=largest))
    predictions[int(compute)] = law.predict(compute, **limits)
    stops = sorted(predictions)
    refused = next((p for p in predictions.values() if not p.options), None)
    nearest = None if refused is None else text.largest_with_recommendation(law, refused, **limits)
    return Budgets([predictions[stop] for stop in stops], stops.index(int(compute)), nearest, today)


def _preferred_numbers(low: float, high: float) -> list[int]:
    """Return the preferred numbers from ``low`` to ``high``.

    >>> _preferred_numbers(600, 1500)
    [680, 1000, 1500]
    """
    decades = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    numbers = (round(number * 10.0**decade) for decade in decades for number in _E6)
    return sorted({stop for stop in numbers if low <= stop <= high})


def _with_hard_spaces(sentence: str) -> str:
    """Return a sentence with nonbreaking spaces between each symbol and its number."""
    return sentence.replace(" = ", "\u00a0=\u00a0")


def budget_texts(prediction: Prediction, law: Law, positions: Budgets) -> dict[str, Any]:
    """Return the page's texts for a prediction. Texts for unknown values are empty."""
    document, allocation = law.document, prediction.allocation
    n, b, m = ("–",) * 3
    if allocation is not None:
        counts = (allocation.rollouts_per_problem, allocation.problems_per_batch, allocation.steps)
        n, b, m = (f"{count:,}" for count in counts)
    loss, stars, next_step = text.loss(prediction), text.stars(prediction), prediction.next
    substitute = positions.nearest if allocation is None else None
    return {
        "x": prediction.compute / law_text.steps_scale(document),
        "budget": f"{amount(prediction.compute)} {prediction.unit}",
        "n": n,
        "b": b,
        "m": m,
        "spoken": "no recommendation" if allocation is None else f"n {n}, B_p {b}, M {m}",
        "answer": _with_hard_spaces(prediction.simulated.first(text.answer(prediction))),
        "loss": loss,
        "instead": "" if substitute is None else _with_hard_spaces(text.largest_answer(substitute)),
        "reward": "" if allocation is None else str(prediction.reward),
        "best": "" if allocation is None else best(prediction, document),
        "n_star": stars.get("n*", ""),
        "b_star": stars.get("B_p*", ""),
        "epochs": "" if prediction.epochs is None else number(prediction.epochs),
        "rules": text.rules(prediction),
        "cost": text.cost_line(prediction).removeprefix("Cost: "),
        "next": str(next_step),
        "command": next_step.command,
        "flags": law_text.notes(prediction.flags),
        "options": [_option_texts(option, prediction.tolerance) for option in prediction.options[1:]],
    }


def best(prediction: Prediction, document: LawDocument) -> str:
    """Return the recommended n as text, or B_p for a law of B_p, or n and B_p with ``hold="nothing"``."""
    return ", ".join(f"{name} = {getattr(prediction, name):,}" for name in text.chosen(document))


def _option_texts(option: Option, tolerance: float) -> list[str]:
    allocation = option.allocation
    share_of_draws = "" if option.probability is None else share(option.probability)
    counts = (allocation.rollouts_per_problem, allocation.problems_per_batch, allocation.steps)
    loss = in_reward(option.expected_loss, tolerance)
    return [*(f"{count:,}" for count in counts), "yes" if option.measured else "no", loss, share_of_draws]
