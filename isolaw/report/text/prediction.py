"""The text of a prediction: the recommendation, its expected loss, n* and the runs to add next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from isolaw.errors import InputError
from isolaw.fits.allocations import INTERVALS, comparable, reached
from isolaw.fits.flags import Code, having
from isolaw.report.document import Document
from isolaw.report.text import costs
from isolaw.report.text import law as law_text
from isolaw.report.text.numbers import in_reward, number, share
from isolaw.report.text.runs_to_add import next_line
from isolaw.runs import SYMBOL_OF
from isolaw.step_cost import parse_hours

if TYPE_CHECKING:
    from isolaw.design.decisions import Decision
    from isolaw.fits.document.schema import LawDocument
    from isolaw.fits.law import Law
    from isolaw.fits.predict import Prediction
    from isolaw.step_cost import Cost


_DIFFERS = 2.0  # factor beyond which the choice of a simple rule is mentioned


def document(prediction: Prediction) -> Document:
    """Return the document of a prediction."""
    assert prediction.document is not None
    lines = prediction_summary(prediction, prediction.document)
    return Document.of("prediction", lines, prediction.to_dict())


def answer(prediction: Prediction) -> str:
    """Return the recommendation in one sentence, or say that there is none."""
    a = prediction.allocation
    if a is None:
        return "isolaw recommends no allocation for this budget."
    return (
        f"For a budget of {_named(prediction)}: "
        f"n = {a.rollouts_per_problem} rollouts for each of B_p = {a.problems_per_batch} problems, "
        f"M = {a.steps:,} steps."
    )


def loss(prediction: Prediction, document: LawDocument) -> str:
    """Return the expected loss of the recommendation, or the reason why there is none."""
    if not prediction.options:
        flat = having(prediction.flags, Code.FLAT)
        far = having(prediction.flags, Code.FAR) if not flat else []
        return " ".join(
            [*(f"{caution.text[0].upper()}{caution.text[1:]}." for caution in flat),
             *(f"{_named(prediction)} is {caution.text}." for caution in far)]
        )  # fmt: skip
    best, symbol = prediction.options[0], SYMBOL_OF[document.axis]
    among = ""
    if prediction.compared is not None:
        low, high = prediction.compared
        among = f"from {number(low)} to {number(high)}" if low < high else f"= {number(low)}"
        among = f" with {symbol} {among}"
        if prediction.compared_batches is not None:
            least, most = prediction.compared_batches
            among += f" and B_p from {number(least)} to {number(most)}"
    text = (
        f"The expected loss is {in_reward(best.expected_loss, document.tolerance)} in {document.metric} "
        f"against the best allocation{among}"
    )
    if best.probability is not None:
        text += f"; in {share(best.probability)} of draws the loss is at most {document.tolerance:g}"
    if best.measured:
        return f"{text}."
    n, b = best.allocation.rollouts_per_problem, best.allocation.problems_per_batch
    if prediction.compared_batches is not None:
        side = "outside" if best.beyond else "within"
        return f"{text}. No run has n = {n} at B_p = {b}, which is {side} the measured range."
    where = f"beyond the measured {symbol}" if best.beyond else f"between measured {symbol}"
    return f"{text}. No run has {symbol} = {getattr(best.allocation, document.axis)}, which is {where}."


def predicted(law: Law, budget: float | str, **limits: Any) -> Prediction | None:
    """Return the prediction for a budget, or None if the budget is below one step of the smallest batch.

    ``limits`` are arguments of `Law.predict`.
    """
    try:
        return law.predict(budget, **limits)
    except InputError:
        return None


def largest_with_recommendation(law: Law, prediction: Prediction, **limits: Any) -> Prediction | None:
    """Return the prediction for the largest budget with a recommendation, or None if ``prediction`` has one.

    Also returns None if no budget has a recommendation. ``limits`` are arguments of `Law.predict`. The budget
    is rounded to three digits so that its printed value is exact.
    """
    if prediction.options or not prediction.comparable:
        return None
    budget: float | str = _round_down(prediction.comparable)
    if prediction.asked:
        budget = _hours(prediction)
    result = predicted(law, budget, **limits)
    return result if result is not None and result.options else None


def budget_beyond(law: Law) -> int | None:
    """Return a budget beyond the runs that has a recommendation, or None if there is none.

    The budget is at most three times the compute that three n reached, because intervals end there.
    """
    budget = _round_down(int(INTERVALS * comparable(law.document.grid)))
    prediction = predicted(law, budget)
    if prediction is not None and not prediction.options:
        prediction = largest_with_recommendation(law, prediction)
    return None if prediction is None else prediction.compute


def at_the_end(law: Law, **limits: Any) -> Prediction | None:
    """Return the prediction for the largest compute that three n reached, or None if there is none.

    ``limits`` are arguments of `Law.predict`.
    """
    budget = reached(law.document.grid)
    return predicted(law, budget, **limits) if budget else None


def _round_down(budget: int) -> int:
    """Round a budget down to three digits, so that its printed value is exact."""
    digit = 10 ** max(len(str(budget)) - 3, 0)
    return budget // digit * digit


def largest_answer(prediction: Prediction) -> str:
    """Return the recommendation of `largest_with_recommendation` in one sentence."""
    return answer(prediction).replace("For a budget of", "The largest budget with a recommendation is")


def stars(prediction: Prediction, document: LawDocument) -> dict[str, str]:
    """Return n* and B_p* at the budget as text, by name, without those that the law holds fixed.

    The text of n* is its interval and not its value. n*, which has the highest reward, can differ from the
    recommended n, which is the round or measured n with the lowest loss, and each text should name one n.
    """
    if not prediction.options:
        return {}
    q = prediction.n_star
    bound = q.status in ("lower_bound", "upper_bound")
    far = (
        ", which is only a bound so far beyond the runs"
        if bound and having(prediction.flags, Code.CENSORED)
        else ""
    )
    out = {"n*": law_text.star(q) + far, "B_p*": law_text.star(prediction.b_star)}
    return {f"{name}*": out[f"{name}*"] for name in chosen(document)}


def chosen(document: LawDocument) -> tuple[str, ...]:
    """Return the symbols of what a law chooses for a budget: n, B_p, or with ``hold="nothing"`` both."""
    return {"nothing": ("n", "B_p"), "n": ("B_p",)}.get(document.hold, ("n",))


def prediction_lines(prediction: Prediction, document: LawDocument) -> list[str]:
    """Return the allocation with its cost, expected loss and reward, or say why there is none."""
    if not prediction.options:
        return [answer(prediction), loss(prediction, document)]
    return [
        f"{answer(prediction).removesuffix('.')} ({prediction.unspent:,} {prediction.unit} left over).",
        *([] if prediction.cost is None else [cost_line(prediction, prediction.cost)]),
        loss(prediction, document),
        f"Predicted {document.metric}: {prediction.reward}.{rules(prediction, document)}",
    ]


def rules(prediction: Prediction, document: LawDocument) -> str:
    """Return a sentence on what simple rules choose if one is more than a doubling away, else nothing."""
    if prediction.allocation is None:
        return ""
    recommended = getattr(prediction.allocation, document.axis)
    if all(max(n / recommended, recommended / n) <= _DIFFERS for n in prediction.rules.values()):
        return ""
    names = {"best_measured": "the best measured one", "isoflop": "IsoFLOP profiles"}
    choices = [f"{number(round(n))} ({names[rule]})" for rule, n in prediction.rules.items()]
    return f" Simple rules choose {SYMBOL_OF[document.axis]} = {' and '.join(choices)}."


def optimum(prediction: Prediction, document: LawDocument) -> str:
    """Return the n and B_p of the highest reward in one line; empty without a recommendation."""
    parts = ", and ".join(
        f"{name}, the {name.removesuffix('*')} with the highest reward, is {text}"
        for name, text in stars(prediction, document).items()
    )
    return f"{parts}." if parts else ""


def found_at_the_end(prediction: Prediction, document: LawDocument) -> str:
    """Return one line with the recommendation at the largest compute that three n reached, and its loss."""
    if not prediction.options:
        return loss(prediction, document)
    a, lost = prediction.options[0].allocation, prediction.options[0].expected_loss
    return (
        f"At {_named(prediction)}, the largest compute that three {SYMBOL_OF[document.axis]} reached, "
        f"isolaw recommends n = {a.rollouts_per_problem}, B_p = {a.problems_per_batch}. "
        f"The expected loss is {in_reward(lost, document.tolerance)} in {document.metric}."
    )


def prediction_summary(
    prediction: Prediction,
    document: LawDocument,
    nearest: Prediction | None = None,
    race: Sequence[Decision] = (),
) -> list[str]:
    """Return the lines of a recommendation, with the runs to add next.

    If ``prediction`` has no recommendation, the lines show ``nearest``, from `largest_with_recommendation`.
    ``race`` contains the decisions that chose the runs, if any.
    """
    if not prediction.options:
        lines = prediction_lines(prediction, document)
        if nearest is not None:
            lines.append(f"{largest_answer(nearest).partition(': ')[0]}:")
            lines += [f"  {line}" for line in prediction_summary(nearest, document)[:-1]]
        return [*lines, next_line(prediction, document, race)]
    lines = [*prediction_lines(prediction, document), optimum(prediction, document)]
    if len(prediction.options) > 1:
        lines.append(f"Other choices with an expected loss of at most {document.tolerance:g}:")
    for other in prediction.options[1:]:
        b = other.allocation
        where = "" if other.measured else " (not measured)"
        text = f"  n = {b.rollouts_per_problem}, B_p = {b.problems_per_batch}, M = {b.steps:,}{where}: "
        text += f"expected loss {in_reward(other.expected_loss, document.tolerance)}"
        if other.probability is not None:
            text += f", within {document.tolerance:g} of the best in {share(other.probability)} of draws"
        lines.append(text + costs.short(prediction.spent(other)))
    if prediction.epochs is not None:
        lines.append(f"The allocation makes {number(prediction.epochs)} passes over the training problems.")
    lines += [f"Caution: {note}." for note in law_text.notes(prediction.flags)]
    return [*lines, next_line(prediction, document, race)]


def cost_line(prediction: Prediction, cost: Cost) -> str:
    """Return the cost of the recommended allocation; empty without a recommendation."""
    if not prediction.options:
        return ""
    return costs.spent(prediction.spent(prediction.options[0]), cost)


def _named(prediction: Prediction) -> str:
    return prediction.asked or f"C = {number(prediction.compute)} {prediction.unit}"


def _hours(prediction: Prediction) -> str:
    """Return the largest budget with a recommendation, in the requested kind of hours, rounded down."""
    hours, of_gpus = parse_hours(prediction.asked)
    digits = f"{hours * prediction.comparable / prediction.compute * 0.995:.3g}"
    return f"{digits}{'gpuh' if of_gpus else 'h'}"
