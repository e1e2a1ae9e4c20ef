"""Plain words for a recommendation: the answer, what it loses, and what n* is; or why there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolaw.errors import InputError
from isolaw.fits.document.flags import Code, Flag, having
from isolaw.report.text import words

if TYPE_CHECKING:
    from isolaw.fits.document.schema import LawDocument
    from isolaw.fits.law import Law
    from isolaw.fits.prediction import Prediction
    from isolaw.fits.quantity import Quantity

_HELD = {"fixed-bp": "B_p*", "fixed-b": "M*"}


def answer(prediction: Prediction) -> str:
    """Return a recommendation in one sentence; one without a number where nothing is recommended."""
    a = prediction.allocation
    if a is None:
        return "No allocation can be recommended for this budget."
    return (
        f"For a budget of C = {_budget(prediction)}: "
        f"n = {a.rollouts_per_problem} rollouts for each of B_p = {a.problems_per_batch} problems, "
        f"M = {a.steps:,} steps."
    )


def loss(prediction: Prediction, document: LawDocument) -> str:
    """Return what a recommendation is expected to lose, or why there is none."""
    if not prediction.options:
        return " ".join(
            f"C = {_budget(prediction)} is {flag.text}." for flag in having(prediction.flags, Code.FAR)
        )
    best = prediction.options[0]
    text = f"Expected to lose {best.expected_regret:.4f} in {document.metric} against the best there is"
    if best.probability is not None:
        text += f"; within 0.005 of it in {words.share(best.probability)} of draws"
    n = best.allocation.rollouts_per_problem
    return f"{text}." + ("" if best.measured else f" No run had n = {n}: it lies between measured n.")


def instead(
    law: Law,
    prediction: Prediction,
    max_batch_rollouts: int | None = None,
    n_train_problems: int | None = None,
) -> Prediction | None:
    """Return the recommendation for the largest budget that has one; None where ``prediction`` is one.

    The budget has three digits, so that what is printed is what was predicted.
    """
    if prediction.options or not prediction.comparable:
        return None
    digit = 10 ** max(len(str(prediction.comparable)) - 3, 0)
    budget = prediction.comparable // digit * digit
    try:
        found = law.predict(budget, max_batch_rollouts=max_batch_rollouts, n_train_problems=n_train_problems)
    except InputError:  # it does not pay for a step
        return None
    return found if found.options else None


def instead_answer(prediction: Prediction) -> str:
    """Return the recommendation of `instead` in one sentence."""
    _, _, split = answer(prediction).partition(": ")
    return f"The largest budget with a recommendation is C = {_budget(prediction)}: {split}"


def star(q: Quantity) -> str:
    """Return n*, B_p* or M*; no number where it is not known."""
    return "not known" if q.status in ("not_identified", "refused") else words.quantity(q)


def n_star(prediction: Prediction) -> str:
    """Return n* at the budget, or that it is a bound or not known; empty where nothing is recommended."""
    if not prediction.options:
        return ""
    text = star(prediction.n_star)
    bound = prediction.n_star.status in ("lower_bound", "upper_bound")
    if bound and having(prediction.flags, Code.CENSORED):
        return f"{text}; so far beyond the runs only a bound"
    return text


def split(prediction: Prediction, document: LawDocument) -> dict[str, str]:
    """Return B_p* and M* at the budget by their names, as far as they are known."""
    found = {"B_p*": prediction.b_star, "M*": prediction.m_star}
    if not prediction.options:
        return {}
    held = _HELD.get(document.setting)
    how = "held" if held == "B_p*" else "C / B"
    return {
        name: f"{words.number(q.value)} ({how})" if name == held else star(q)
        for name, q in found.items()
        if q.status != "refused"
    }


def by_law(prediction: Prediction) -> str:
    """Return n* at the budget by the preferred law; empty where it states none."""
    q = prediction.law_n
    return "" if q.status in ("refused", "not_identified") else words.quantity(q)


def prediction_summary(
    prediction: Prediction, document: LawDocument, nearest: Prediction | None = None
) -> list[str]:
    """Return a recommendation, line by line.

    Parameters
    ----------
    prediction
        for the budget.
    document
        of the law.
    nearest
        where nothing is recommended: what `instead` returns.
    """
    if not prediction.options:
        lines = [answer(prediction), loss(prediction, document)]
        if nearest is not None:
            lines.append(f"The largest budget with a recommendation is C = {_budget(nearest)}:")
            lines += [f"  {line}" for line in prediction_summary(nearest, document)]
        return lines
    lines = [
        f"{answer(prediction).removesuffix('.')} ({prediction.unspent:,} {prediction.unit} left over).",
        loss(prediction, document),
        f"{document.metric} then: {words.quantity(prediction.reward)}.",
    ]
    law = by_law(prediction)
    by = f"; by the law ({words.law_name(words.preferred(document) or '')}) {law}" if law else ""
    lines.append(f"n*, where the fitted reward is highest: {n_star(prediction)}{by}.")
    if parts := split(prediction, document):
        lines.append("; ".join(f"{name}: {text}" for name, text in parts.items()) + ".")
    if len(prediction.options) > 1:
        lines.append("Others expected to lose at most 0.005:")
    for other in prediction.options[1:]:
        near = (
            f", within 0.005 of the best in {words.share(other.probability)} of draws"
            if other.probability is not None
            else ""
        )
        b = other.allocation
        lines.append(
            f"  n = {b.rollouts_per_problem}, B_p = {b.problems_per_batch}, "
            f"M = {b.steps:,}{'' if other.measured else ' (no run had it)'}: "
            f"loses {other.expected_regret:.4f}{near}"
        )
    if prediction.epochs is not None:
        lines.append(f"Epochs: {words.number(prediction.epochs)} passes over the training problems.")
    return lines + [_care(flag) for flag in prediction.flags]


def _budget(prediction: Prediction) -> str:
    return f"{words.number(prediction.compute)} {prediction.unit}"


def _care(flag: Flag) -> str:
    return f"Take care: {words.flag(flag)}."
