"""The text of an answer, in at most eight lines, from the allocation to the most informative next runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isolaw.fits.allocations import reached
from isolaw.fits.flags import Code
from isolaw.report.text import law as law_text
from isolaw.report.text import prediction as words
from isolaw.report.text.numbers import in_reward, interval, number

if TYPE_CHECKING:
    from isolaw.evidence import Quantity
    from isolaw.fits.document.schema import LawDocument
    from isolaw.fits.gain import Gain
    from isolaw.fits.prediction import Prediction

_MOST_WEAK = 3
_STANDARD_ERRORS = 2.0
# Flags that other lines of the answer already state.
_SAID = (Code.FAR, Code.SIMULATED, Code.PARTLY_SIMULATED)
# The flags most likely to change the answer, in order.
_FIRST = (
    Code.DIVERGED, Code.NO_DRAWS, Code.ONE_SEED, Code.LACK_OF_FIT, Code.CENSORED, Code.TWO_SEEDS,
    Code.GRID_EDGE, Code.BATCH_EDGE, Code.EXTRAPOLATION,
)  # fmt: skip


def answer_lines(
    prediction: Prediction,
    document: LawDocument,
    backtest: Mapping[str, Any] | str,
    bought: Gain | None,
    nearest: Prediction | None,
    next_step: object,
    failed: str = "",
) -> list[str]:
    """Return the lines of the answer; the arguments are the parts of `isolaw.Answer`."""
    first, *rest = words.prediction_lines(prediction, document)
    lines = [f"{first}{_failed(backtest)}", *rest]
    if prediction.options:
        lines[-1] = f"{lines[-1]} {_buys(prediction, document, bought)}".rstrip()
        lines.append(words.optimum(prediction, document))
    elif nearest is not None:
        lines += [words.largest_answer(nearest), words.loss(nearest, document)]
    lines.append(f"Backtest: {backtest_line(backtest, document.metric)}")
    said = _SAID if prediction.options else (*_SAID, Code.FLAT)
    weak = [flag for flag in prediction.flags if flag.code not in said]
    weak.sort(key=lambda flag: _FIRST.index(flag.code) if flag.code in _FIRST else len(_FIRST))
    if weak or failed:
        most = _MOST_WEAK - bool(failed)
        notes = [*([failed] if failed else []), *law_text.notes(weak[:most])]
        more = f"; and {len(weak) - most} more" if len(weak) > most else ""
        listed = "; ".join(f"({i}) {note}" for i, note in enumerate(notes, 1))
        lines.append(f"Weak points: {listed}{more}.")
    return [*lines, f"Next: {next_step}"]


def _buys(prediction: Prediction, document: LawDocument, bought: Gain | None) -> str:
    """Return a sentence about the gain of the budget over the compute of the existing runs."""
    if bought is None:
        reach = reached(document.grid)
        within = not prediction.asked and prediction.compute <= reach
        return f"The runs cover this budget: three n or more ran to C = {number(reach)}." if within else ""
    today = bought.today
    reward = (
        "" if today.reward.value is None else f", with a predicted reward of {number(today.reward.value)}"
    )
    ran = "" if not today.options or today.options[0].measured else " (no run has it)"
    return (
        f"The gain over the best allocation at C = {number(today.compute)} is {_difference(bought.reward)}. "
        f"C = {number(today.compute)} is the largest compute that three n reached; for it isolaw recommends "
        f"n = {today.n}{ran}{reward}.{_comes_down(prediction, bought)}"
    )


def _difference(q: Quantity) -> str:
    ends = "" if q.interval is None else f" ({interval(q.interval)})"
    return f"{number(round(q.value or 0.0, 4) + 0.0)}{ends}"


def _comes_down(prediction: Prediction, bought: Gain) -> str:
    """Explain why the smaller budget has a larger best n, or return an empty string if it does not."""
    if bought.kept is None:
        return ""
    low, high = bought.kept.interval or (None, None)
    known = low is not None and low > 0 and high is not None
    so = "the best n falls between these budgets" if known else "the runs do not show which n is better"
    return (
        f" At C = {number(prediction.compute)} the reward of n = {prediction.n} minus the reward "
        f"of n = {bought.today.n} is {_difference(bought.kept)}, so {so}."
    )


def _best_rule(result: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the result of the simple rule with the lowest mean loss."""
    others = {rule: losses for rule, losses in result["rules"].items() if rule != "isolaw"}
    return min(others.items(), key=lambda other: other[1]["mean_loss"])


def backtest_failed(result: Mapping[str, Any] | str) -> bool:
    """Return whether a simple rule beat isolaw's choices by more than the tolerance and the noise."""
    if isinstance(result, str):
        return False
    tolerance = result["tolerance"]
    ahead = -_best_rule(result)[1]["against_isolaw"]["difference"]
    error = _best_rule(result)[1]["against_isolaw"]["standard_error"] or 0.0
    return bool(ahead > max(tolerance, _STANDARD_ERRORS * error))


def _failed(result: Mapping[str, Any] | str) -> str:
    if not backtest_failed(result) or isinstance(result, str):
        return ""
    return (
        " Do not rely on this allocation: in the backtest of these runs, the simple rule "
        f"{_best_rule(result)[0]!r} did better."
    )


def backtest_line(result: Mapping[str, Any] | str, metric: str) -> str:
    """Return a backtest in one sentence, or the reason why there is none."""
    if isinstance(result, str):
        return f"none; {result.rstrip('.')}."

    def lost(rule: str) -> str:
        return in_reward(result["rules"][rule]["mean_loss"], result["tolerance"])

    judges = "held-out seeds" if result["held_out"] == "seed" else "the same runs' later checkpoints"
    others = [f"{lost(rule)} ({rule})" for rule in result["rules"] if rule != "isolaw"]
    listed = " and ".join(filter(None, (", ".join(others[:-1]), others[-1])))
    return (
        f"with a fit up to C = {number(result['fit_below'])}, isolaw's choices for budgets up to C = "
        f"{number(result['budgets'][-1])} lost {lost('isolaw')} in {metric} on {judges}. "
        f"Simple rules lost {listed}."
    )
