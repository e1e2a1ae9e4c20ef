"""Plain words for a recommendation: the answer, what it loses, and what n* is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isolaw.fits.flags import Code, Flag, having
from isolaw.report import words
from isolaw.report.series import formula, steps_scale

if TYPE_CHECKING:
    from isolaw.fits.law_document import LawDocument
    from isolaw.fits.predict import Prediction


def answer(prediction: Prediction) -> str:
    """Return a recommendation in one sentence."""
    a = prediction.allocation
    if one_n(prediction):
        return (
            f"At C = {words.number(prediction.compute)} {prediction.unit} only "
            f"n = {a.rollouts_per_problem} was measured, so the best n cannot be told; "
            f"with B_p = {a.problems_per_batch} that makes M = {a.steps:,} steps."
        )
    return (
        f"For a budget of C = {words.number(prediction.compute)} {prediction.unit}: "
        f"n = {a.rollouts_per_problem} rollouts for each of B_p = {a.problems_per_batch} problems, "
        f"M = {a.steps:,} steps."
    )


def one_n(prediction: Prediction) -> bool:
    """Return whether there was but one n to choose from."""
    return bool(having(prediction.flags, Code.ONE_N))


def by_law(prediction: Prediction, document: LawDocument) -> str:
    """Return n* at the budget by the law that the rewards prefer; empty where it states none."""
    name = words.preferred(document)
    if name is None:
        return ""
    if name == "logistic":
        return "" if prediction.law_n.value is None else words.quantity(prediction.law_n)
    scale = steps_scale(document)
    n = formula(document, prediction.compute // scale * scale)
    if n is None or having(prediction.flags, Code.FAR):
        return ""
    levels = [g.rollouts_per_problem for g in document.grid]
    if n > max(levels):
        return f"more than {max(levels)}, the largest measured"
    if n < min(levels):
        return f"less than {min(levels)}, the smallest measured"
    law = document.comparison.laws[name]
    if name == "constant" and law.interval:  # the same n at every C
        return f"{words.number(float(n))} ({words.interval([2**end for end in law.interval[0]])})"
    return words.number(float(n))


def loss(prediction: Prediction, document: LawDocument) -> str:
    """Return what a recommendation is expected to lose."""
    best = prediction.options[0]
    if one_n(prediction):
        n = best.allocation.rollouts_per_problem
        return f"What n = {n} loses against another n is not known: run others to this budget."
    text = f"Expected to lose {best.expected_regret:.4f} in {document.metric} against the best there is"
    if best.probability is None:
        return f"{text}."
    return f"{text}; within 0.005 of it in {words.share(best.probability)} of draws."


def prediction_summary(prediction: Prediction, document: LawDocument) -> list[str]:
    """Return a recommendation, line by line."""
    far = having(prediction.flags, Code.FAR)
    lines = [
        f"{answer(prediction).removesuffix('.')} ({prediction.unspent:,} {prediction.unit} left over).",
        *map(_care, far),
        loss(prediction, document),
        f"{document.metric} then: {words.quantity(prediction.reward)}.",
    ]
    law = by_law(prediction, document)
    by = f"by the law ({words.preferred(document)}) {law}" if law else ""
    if not one_n(prediction):
        star = f"n*, where the fitted reward is highest: {words.quantity(prediction.n_star)}"
        lines.append(f"{star}; {by}." if by else f"{star}.")
    elif by:
        lines.append(f"n* {by}.")
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
            f"M = {b.steps:,}: loses {other.expected_regret:.4f}{near}"
        )
    if prediction.epochs is not None:
        lines.append(f"Epochs: {words.number(prediction.epochs)} passes over the training problems.")
    return lines + [_care(flag) for flag in prediction.flags if flag not in far]


def _care(flag: Flag) -> str:
    return f"Take care: {words.flag(flag)}."
