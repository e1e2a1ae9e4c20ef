"""The stops of the budget slider: what `isolaw predict` says at each, in words.

Nothing is computed in the page: it shows, for the budget chosen, what was computed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from isolaw.errors import InputError
from isolaw.fits.frontier.candidates import FAR, comparable
from isolaw.fits.law import Law
from isolaw.fits.prediction import Prediction
from isolaw.report.figures.series import steps_scale
from isolaw.report.text import answer as answer_words
from isolaw.report.text import words

# The preferred numbers E24 of IEC 60063: 24 to the decade, evenly spread in log C, and round.
_E24 = (
    1.0, 1.1, 1.2, 1.3, 1.5, 1.6, 1.8, 2.0, 2.2, 2.4, 2.7, 3.0,
    3.3, 3.6, 3.9, 4.3, 4.7, 5.1, 5.6, 6.2, 6.8, 7.5, 8.2, 9.1,
)  # fmt: skip


@dataclass(frozen=True)
class Budgets:
    """Predictions at every stop of the slider, and the stop at which it stands first.

    ``nearest`` is the recommendation for the largest budget that has one, where some stops have none.
    """

    predictions: list[Prediction]
    first: int
    nearest: Prediction | None = None

    @property
    def answer(self) -> Prediction:
        """The prediction that the page opens with."""
        return self.predictions[self.first]


def budgets(
    law: Law,
    compute: float | None,
    max_batch_rollouts: int | None = None,
    n_train_problems: int | None = None,
) -> Budgets:
    """Predict at every stop, from where the frontier begins to where nothing is recommended any more.

    Parameters
    ----------
    law
        what was fitted.
    compute
        the budget to open with; unless given the largest stop that was measured and has a recommendation.
    max_batch_rollouts, n_train_problems
        as for `Law.predict`.

    Raises
    ------
    InputError
        ``compute`` does not pay for a step, or no stop does.
    """
    grid = law.document.grid
    largest = max(entry.measured[1] for entry in grid)
    start = law.document.x.range[0] * steps_scale(law.document)
    options = {"max_batch_rollouts": max_batch_rollouts, "n_train_problems": n_train_problems}
    found: dict[int, Prediction] = {}
    problem: InputError | None = None
    for stop in stops(start, max(FAR * comparable(grid), largest)):
        try:
            found[stop] = law.predict(stop, **options)
        except InputError as error:  # not one step of the smallest batch
            problem = error
    if compute is None:
        if not found:
            raise problem or InputError("no budget pays for a step")
        measured = [stop for stop in found if stop <= largest * 1.01 and found[stop].options]
        compute = max(measured, default=min(found))
    found[int(compute)] = law.predict(compute, **options)
    ordered = sorted(found)
    refused = next((p for p in found.values() if not p.options), None)
    nearest = None if refused is None else answer_words.instead(law, refused, **options)
    return Budgets([found[stop] for stop in ordered], ordered.index(int(compute)), nearest)


def stops(low: float, high: float) -> list[int]:
    """Return the preferred numbers from ``low`` to ``high``.

    >>> stops(900, 1300)
    [910, 1000, 1100, 1200, 1300]
    """
    decades = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    every = (round(number * 10.0**decade) for decade in decades for number in _E24)
    return sorted({stop for stop in every if low <= stop <= high})


def unbroken(sentence: str) -> str:
    """Return a sentence in which no line ends between a symbol and its number."""
    return sentence.replace(" = ", "\u00a0=\u00a0")


def instead(own: Budgets, prediction: Prediction) -> str:
    """Return the recommendation for a smaller budget where there is none for this one, else nothing."""
    if prediction.options or own.nearest is None:
        return ""
    return unbroken(answer_words.instead_answer(own.nearest))


def shown(prediction: Prediction, law: Law, own: Budgets) -> dict[str, Any]:
    """Return what the page shows of a prediction; every text is ready, and empty where nothing is known."""
    document = law.document
    a = prediction.allocation
    n, b, m = ("–",) * 3
    if a is not None:
        n, b, m = (f"{v:,}" for v in (a.rollouts_per_problem, a.problems_per_batch, a.steps))
    loss = answer_words.loss(prediction, document)
    split = answer_words.split(prediction, document)
    return {
        "x": prediction.compute / steps_scale(document),
        "budget": f"{words.number(prediction.compute)} {prediction.unit}",
        "n": n,
        "b": b,
        "m": m,
        "told": "no recommendation" if a is None else f"n {n}, B_p {b}, M {m}",
        "answer": unbroken(answer_words.answer(prediction)),
        "loss": loss,
        "instead": instead(own, prediction),
        "lost": loss if prediction.options else "",
        "reward": words.quantity(prediction.reward) if prediction.options else "",
        "n_star": answer_words.n_star(prediction),
        "b_star": split.get("B_p*", ""),
        "m_star": split.get("M*", ""),
        "law_n": answer_words.by_law(prediction),
        "epochs": words.number(prediction.epochs) if prediction.epochs is not None else "",
        "flags": [words.flag(flag) for flag in prediction.flags],
        "options": [
            [
                f"{o.allocation.rollouts_per_problem:,}",
                f"{o.allocation.problems_per_batch:,}",
                f"{o.allocation.steps:,}",
                "yes" if o.measured else "no",
                f"{o.expected_regret:.4f}",
                "" if o.probability is None else words.share(o.probability),
            ]
            for o in prediction.options[1:]
        ],
    }
