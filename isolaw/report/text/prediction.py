"""A prediction as text: the recommendation, its expected loss, n*."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isolaw.errors import InputError
from isolaw.fits.allocations import INTERVALS, comparable
from isolaw.fits.cell import about
from isolaw.fits.flags import Code, having
from isolaw.fits.frontier import TOLERANCE
from isolaw.report.text import costs
from isolaw.report.text import law as law_text
from isolaw.report.text.numbers import number, quantity, share
from isolaw.step_cost import parse_hours

if TYPE_CHECKING:
    from isolaw.fits.document.schema import LawDocument
    from isolaw.fits.law import Law
    from isolaw.fits.predict import Prediction
    from isolaw.fits.quantity import Quantity
    from isolaw.step_cost import Cost

_FIXED = {"fixed-bp": "B_p*", "fixed-b": "M*"}


def answer(prediction: Prediction) -> str:
    """Return the recommendation in one sentence, without a number where there is none."""
    a = prediction.allocation
    if a is None:
        return "isolaw recommends no allocation for this budget."
    return (
        f"For a budget of {_named(prediction)}: "
        f"n = {a.rollouts_per_problem} rollouts for each of B_p = {a.problems_per_batch} problems, "
        f"M = {a.steps:,} steps."
    )


def run_first(prediction: Prediction, document: LawDocument) -> str:
    """Return which n beyond the measured ones to run before the budget is spent; empty where none."""
    if not prediction.run_first:
        return ""
    listed = ", ".join(str(n) for n in prediction.run_first)
    reach = f"C = {number(comparable(document.grid))}" + (
        "" if document.x.unit == "steps" else f" {document.x.unit}"
    )
    return f"Run n = {listed} first, to {reach} each: the best n may lie beyond the measured ones."


def loss(prediction: Prediction, document: LawDocument) -> str:
    """Return the expected loss of the recommendation, or why there is no recommendation."""
    if not prediction.options:
        far = having(prediction.flags, Code.FAR)
        return " ".join(f"{_named(prediction)} is {flag.text}." for flag in far)
    best = prediction.options[0]
    among = ""
    if prediction.compared is not None:
        low, high = prediction.compared
        among = f" with n from {number(low)} to {number(high)}" if low < high else f" with n = {number(low)}"
        among = about(among, document.axis)
    text = (
        f"Expected loss: {best.expected_regret:.4f} in {document.metric} against the best allocation{among}"
    )
    if best.probability is not None:
        text += f"; within {TOLERANCE} of it in {share(best.probability)} of draws"
    n = best.allocation.rollouts_per_problem
    if document.axis == "problems_per_batch":
        n = best.allocation.problems_per_batch
    where = "beyond the measured n" if best.beyond else "between measured n"
    unmeasured = "" if best.measured else f" No run has n = {n}; it is {where}."
    return f"{text}.{about(unmeasured, document.axis)}"


def largest_with_recommendation(law: Law, prediction: Prediction, **limits: Any) -> Prediction | None:
    """Return the prediction for the largest budget with a recommendation; None if ``prediction`` has one.

    ``limits`` are those of `Law.predict`. The budget has three digits, so that the printed budget is exact.
    """
    if prediction.options or not prediction.comparable:
        return None
    budget: float | str = _round_down(prediction.comparable)
    if prediction.asked:
        budget = _hours(prediction)
    try:
        found = law.predict(budget, **limits)
    except InputError:  # it does not pay for a step
        return None
    return found if found.options else None


def budget_beyond(law: Law) -> int | None:
    """Return a budget beyond the runs for which the law recommends an allocation; None where it has none.

    It is three times the compute that three n reached, up to which there are intervals, or less.
    """
    budget = _round_down(int(INTERVALS * comparable(law.document.grid)))
    try:
        found = law.predict(budget)
    except InputError:  # it does not pay for a step
        return None
    nearest = found if found.options else largest_with_recommendation(law, found)
    return None if nearest is None else nearest.compute


def _round_down(budget: int) -> int:
    """Three digits, so that the printed budget is exact."""
    digit = 10 ** max(len(str(budget)) - 3, 0)
    return budget // digit * digit


def largest_answer(prediction: Prediction) -> str:
    """Return the recommendation of `largest_with_recommendation` in one sentence."""
    return answer(prediction).replace("For a budget of", "The largest budget with a recommendation is")


def star(q: Quantity) -> str:
    """Return n*, B_p* or M*; no number where it is not known."""
    return "not known" if q.status in ("not_identified", "refused") else quantity(q)


def n_star(prediction: Prediction) -> str:
    """Return n* at the budget, or that it is a bound or not known; empty without a recommendation."""
    if not prediction.options:
        return ""
    bound = prediction.n_star.status in ("lower_bound", "upper_bound")
    far = bound and not prediction.models and having(prediction.flags, Code.CENSORED)
    return star(prediction.n_star) + ("; so far beyond the runs only a bound" if far else "")


def split(prediction: Prediction, document: LawDocument) -> dict[str, str]:
    """Return B_p* and M* at the budget by their names, as far as they are known."""
    if not prediction.options:
        return {}
    out = {}
    for name, q in {"B_p*": prediction.b_star, "M*": prediction.m_star}.items():
        said = name == "B_p*" and document.axis == "problems_per_batch"
        if q.status != "refused" and not said:
            fixed = name == _FIXED.get(document.setting)
            how = "fixed" if name == "B_p*" else "C / B"
            out[name] = f"{number(q.value)} ({how})" if fixed else star(q)
    return out


def by_law(prediction: Prediction) -> str:
    """Return n* at the budget by the preferred law; empty where it gives none."""
    q = prediction.law_n
    return "" if q.status in ("refused", "not_identified") else quantity(q)


def prediction_lines(prediction: Prediction, document: LawDocument) -> list[str]:
    """Return the allocation, what it costs, its expected loss and its reward; or why there is none."""
    if not prediction.options:
        return [answer(prediction), loss(prediction, document)]
    return [
        f"{answer(prediction).removesuffix('.')} ({prediction.unspent:,} {prediction.unit} left over).",
        *([] if prediction.cost is None else [cost_line(prediction, prediction.cost)]),
        loss(prediction, document),
        f"Predicted {document.metric}: {quantity(prediction.reward)}.",
    ]


def optimum(prediction: Prediction, document: LawDocument) -> str:
    """Return n*, and B_p* and M* as far as they are known, in one line."""
    parts = {"n* (highest fitted reward)": n_star(prediction), **split(prediction, document)}
    return "; ".join(f"{name}: {text}" for name, text in parts.items())


def prediction_summary(
    prediction: Prediction, document: LawDocument, nearest: Prediction | None = None
) -> list[str]:
    """Return a recommendation, line by line; without one, ``nearest`` of `largest_with_recommendation`."""
    if not prediction.options:
        lines = prediction_lines(prediction, document)
        if nearest is not None:
            lines.append(f"{largest_answer(nearest).partition(': ')[0]}:")
            lines += [f"  {line}" for line in prediction_summary(nearest, document)]
        return lines
    first, *rest = prediction_lines(prediction, document)
    lines = [first, *([own] if (own := run_first(prediction, document)) else []), *rest]
    name, by = law_text.law_name(law_text.preferred(document) or ""), by_law(prediction)
    lines.append(
        about("n* (highest fitted reward): ", document.axis)
        + (quantity(prediction.b_star) if document.axis == "problems_per_batch" else n_star(prediction))
        + (f"; {name} law: {by}." if by else ".")
    )
    if parts := split(prediction, document):
        lines.append("; ".join(f"{name}: {text}" for name, text in parts.items()) + ".")
    if len(prediction.options) > 1:
        lines.append(f"Other choices with an expected loss of at most {TOLERANCE}:")
    for other in prediction.options[1:]:
        b = other.allocation
        where = "" if other.measured else " (not measured)"
        text = f"  n = {b.rollouts_per_problem}, B_p = {b.problems_per_batch}, M = {b.steps:,}{where}: "
        text += f"expected loss {other.expected_regret:.4f}"
        if other.probability is not None:
            text += f", within {TOLERANCE} of the best in {share(other.probability)} of draws"
        lines.append(text + costs.short(prediction.spent(other)))
    if prediction.epochs is not None:
        lines.append(f"Epochs: {number(prediction.epochs)} passes over the training problems.")
    return lines + [f"Caution: {note}." for note in law_text.notes(prediction.flags)]


def cost_line(prediction: Prediction, cost: Cost) -> str:
    """Return what the recommended allocation costs; empty without one."""
    if not prediction.options:
        return ""
    return costs.spent(prediction.spent(prediction.options[0]), cost)


def _named(prediction: Prediction) -> str:
    return prediction.asked or f"C = {number(prediction.compute)} {prediction.unit}"


def _hours(prediction: Prediction) -> str:
    """The largest budget with a recommendation, as hours of the kind that was asked for, rounded down."""
    hours, of_gpus = parse_hours(prediction.asked)
    digits = f"{hours * prediction.comparable / prediction.compute * 0.995:.3g}"
    return f"{digits}{'gpuh' if of_gpus else 'h'}"
