"""The text of predictions, answers and laws: verdict, reason and next step in three lines, then the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from isolaw.errors import InputError
from isolaw.evidence import amount, in_reward, interval, number, share
from isolaw.fits.allocations import INTERVALS, comparable_compute, reached_compute
from isolaw.fits.flags import Code, flags_with
from isolaw.fits.law import Law
from isolaw.fits.next_step import NextStep, one_more_seed
from isolaw.report.document import Caution, Document, Passage, Stanza, Table, TableCell
from isolaw.report.text import costs
from isolaw.report.text import law as law_text
from isolaw.runs import SYMBOL_OF
from isolaw.step_cost import parse_hours

if TYPE_CHECKING:
    from isolaw.evidence import Quantity
    from isolaw.fits.document.schema import LawDocument
    from isolaw.fits.gain import Gain
    from isolaw.fits.predict import Prediction

_MOST_WEAK = 3
_STANDARD_ERRORS = 2.0
_LEAST_LEFTOVER = 0.05  # of the budget: what is left over is worth a word from here on
# Flags that other lines already state.
_STATED_ELSEWHERE = (Code.FAR, Code.SIMULATED)
# The flags most likely to change the answer, in order.
_FIRST = (
    Code.DIVERGED, Code.NO_DRAWS, Code.LIMITED, Code.NO_GAIN, Code.ONE_SEED, Code.LACK_OF_FIT, Code.CENSORED,
    Code.TWO_SEEDS, Code.GRID_EDGE, Code.BATCH_EDGE, Code.EXTRAPOLATION,
)  # fmt: skip


def document(prediction: Prediction) -> Document:
    """Return the document of a prediction."""
    return Document.of("prediction", _blocks(prediction), prediction.to_dict())


def answer(prediction: Prediction) -> str:
    """Return the recommendation in one sentence, or say that there is none."""
    allocation = prediction.allocation
    if allocation is None:
        return f"isolaw recommends no allocation for {_budget_text(prediction)}."
    leftover = prediction.unspent or 0
    is_large = leftover > _LEAST_LEFTOVER * prediction.compute
    rest = f" ({amount(leftover)} {prediction.unit} left over)" if is_large else ""
    return (
        f"For {_budget_text(prediction)}: n = {allocation.rollouts_per_problem:,}, "
        f"B_p = {allocation.problems_per_batch:,}, M = {allocation.steps:,} steps{rest}."
    )


def loss(prediction: Prediction) -> str:
    """Return the expected loss of the recommendation, or the reason why there is none."""
    law = _law(prediction)
    if not prediction.options:
        flags = flags_with(prediction.flags, Code.FLAT) or flags_with(prediction.flags, Code.FAR)
        return " ".join(f"{text}." for text in law_text.notes(flags))
    option, symbol = prediction.options[0], SYMBOL_OF[law.axis]
    among = ""
    if prediction.compared is not None:
        among = f" of {symbol} = {_range(prediction.compared)}"
        if prediction.compared_batches is not None:
            among += f" and B_p = {_range(prediction.compared_batches)}"
    text = f"Expected loss {in_reward(option.expected_loss, law.tolerance)} in {law.metric} "
    text += f"against the best{among}"
    if option.probability is not None:
        text += f"; {share(option.probability)} of draws lose at most {law.tolerance:g}"
    if option.measured:
        return f"{text}."
    side = "outside" if option.beyond else "inside"
    return f"{text}. No run has this allocation, which is {side} the measured range."


def _verdict(prediction: Prediction) -> list[str]:
    """Return three lines: the allocation, how good it is, and the next step.

    Two more are the command of the next step and the settings for the trainer, where they are known.
    """
    reward = f" Predicted {_law(prediction).metric}: {prediction.reward}." if prediction.options else ""
    next_step, overrides = prediction.next, prediction.overrides
    others = [f"  {next_step.command}"] if next_step.command else []
    others += [f"{_law(prediction).framework}: {overrides}"] if overrides else []
    return [answer(prediction), f"{loss(prediction)}{reward}", f"Next: {next_step}", *others]


def prediction_lines(prediction: Prediction, nearest: Prediction | None = None) -> list[str]:
    """Return the `_verdict`, and what it rests on.

    If ``prediction`` has no recommendation, the lines show ``nearest``, from `largest_with_recommendation`.
    """
    return Passage("", _blocks(prediction, nearest)).lines()


def _blocks(prediction: Prediction, nearest: Prediction | None = None) -> list[Stanza]:
    blocks: list[Stanza] = [*_verdict(prediction)]
    if not prediction.options:
        if nearest is not None:
            blocks += [largest_answer(nearest), *_blocks(nearest)[1:]]
        return blocks
    blocks += [line for line in (cost_line(prediction), _optimum(prediction), rules(prediction)) if line]
    if len(prediction.options) > 1:
        law = _law(prediction)
        blocks += [
            f"Other choices with an expected loss of at most {law.tolerance:g}:",
            choices(prediction, 1),
        ]
    if prediction.epochs is not None:
        blocks.append(f"The allocation makes {number(prediction.epochs)} passes over the training problems.")
    return blocks + [Caution(f"{note}.") for note in law_text.notes(prediction.flags)]


def choices(prediction: Prediction, start: int = 0) -> Table:
    """Return the choices from the ``start`` on as a table."""
    tolerance, rows = prediction.tolerance, []
    for option in prediction.options[start:]:
        allocation = option.allocation
        share_of_draws = None if option.probability is None else share(option.probability)
        rows.append(
            {
                "n": f"{allocation.rollouts_per_problem:,}", "B_p": f"{allocation.problems_per_batch:,}",
                "M": f"{allocation.steps:,}",
                "expected loss": in_reward(option.expected_loss, tolerance),
                f"within {tolerance:g} of the best": share_of_draws,
                "hours": costs.short(prediction.spent(option)).removeprefix(", ") or None,
                "measured": "yes" if option.measured else "no",
            }
        )  # fmt: skip
    return replace(Table.by_column(rows, ">"), indent="  ")


def answer_lines(
    prediction: Prediction, backtest: Mapping[str, Any] | str, bought: Gain | None, nearest: Prediction | None
) -> list[str]:
    """Return the `_verdict` of an answer and five more lines at most; the arguments are its parts."""
    answer_line, *others = _verdict(prediction)
    law = _law(prediction)
    lines = [f"{answer_line}{_failure_warning(prediction, backtest)}", *others]
    if prediction.options:
        lines += [line for line in (cost_line(prediction), _gain_sentence(prediction, bought)) if line]
        lines.append(" ".join(filter(None, (_optimum(prediction), rules(prediction)))))
    elif nearest is not None:
        lines += [largest_answer(nearest), loss(nearest)]
    lines.append(f"Backtest: {backtest_line(backtest, law.metric)}")
    stated = _STATED_ELSEWHERE if prediction.options else (*_STATED_ELSEWHERE, Code.FLAT)
    weak = [flag for flag in prediction.flags if flag.code not in stated]
    rank: dict[str, int] = {code: i for i, code in enumerate(_FIRST)}
    weak.sort(key=lambda flag: rank.get(flag.code, len(_FIRST)))
    if weak:
        more = f" {len(weak) - _MOST_WEAK} more in the report." if len(weak) > _MOST_WEAK else ""
        lines.append(f"Weak points: {'. '.join(law_text.notes(weak[:_MOST_WEAK]))}.{more}")
    return lines


def _gain_sentence(prediction: Prediction, bought: Gain | None) -> str:
    """Return a sentence about the gain of the budget over the compute of the existing runs."""
    law = _law(prediction)
    if bought is None:
        is_covered = not prediction.asked and prediction.compute <= reached_compute(law.grid)
        return f"The runs cover this budget: they go to {_reach_text(law)}." if is_covered else ""
    today = bought.today
    note = "" if not today.options or today.options[0].measured else ", not measured"
    return f"Gain over the best at {_reach_text(law)} (n = {today.n}{note}): {_difference(bought.reward)}."


def _reach_text(law: LawDocument) -> str:
    unit = "rollouts" if law.x.name == "steps" else law.x.unit
    compute = amount(reached_compute(law.grid))
    return f"{compute} {unit}, the most that three {SYMBOL_OF[law.axis]} were trained to"


def _difference(difference: Quantity) -> str:
    interval_text = "" if difference.interval is None else f" ({interval(difference.interval)})"
    return f"{number(round(difference.value or 0.0, 4) + 0.0)}{interval_text}"


def _law(prediction: Prediction) -> LawDocument:
    assert prediction.document is not None
    return prediction.document


def _range(ends: tuple[int, int]) -> str:
    low, high = (f"{value:,}" for value in ends)
    return low if low == high else f"{low}–{high}"


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
        budget = _largest_hours(prediction)
    result = predicted(law, budget, **limits)
    return result if result is not None and result.options else None


def budget_beyond(law: Law) -> int | None:
    """Return a budget beyond the runs that has a recommendation, or None if there is none.

    The budget is at most three times the compute that three n reached, because intervals end there.
    """
    budget = _round_down(int(INTERVALS * comparable_compute(law.document.grid)))
    prediction = predicted(law, budget)
    if prediction is not None and not prediction.options:
        prediction = largest_with_recommendation(law, prediction)
    return None if prediction is None else prediction.compute


def at_the_end(law: Law, **limits: Any) -> Prediction | None:
    """Return the prediction for the largest compute that three n reached, or None if there is none.

    ``limits`` are arguments of `Law.predict`.
    """
    budget = reached_compute(law.document.grid)
    return predicted(law, budget, **limits) if budget else None


def _round_down(budget: int) -> int:
    """Round a budget down to three digits, so that its printed value is exact."""
    digit = 10 ** max(len(str(budget)) - 3, 0)
    return budget // digit * digit


def largest_answer(prediction: Prediction) -> str:
    """Return the recommendation of `largest_with_recommendation` in one sentence."""
    return answer(prediction).replace("For ", "The largest budget with a recommendation is ")


def stars(prediction: Prediction) -> dict[str, str]:
    """Return n* and B_p* at the budget as text, by name, without those that the law holds fixed.

    The text of n* is its interval and not its value. n*, which has the highest reward, can differ from the
    recommended n, which is the round or measured n with the lowest loss, and each text should name one n.
    """
    if not prediction.options:
        return {}
    n_star = prediction.n_star
    texts = {"n*": law_text.star(n_star), "B_p*": law_text.star(prediction.b_star)}
    is_bound = n_star.status in ("lower_bound", "upper_bound") and _law(prediction).method == "paper"
    if is_bound and flags_with(prediction.flags, Code.CENSORED):
        texts["n*"] += ", which is only a bound so far beyond the runs"
    return {f"{name}*": texts[f"{name}*"] for name in chosen(_law(prediction))}


def chosen(document: LawDocument) -> tuple[str, ...]:
    """Return the symbols of what a law chooses for a budget: n, B_p, or with ``hold="nothing"`` both."""
    return {"nothing": ("n", "B_p"), "n": ("B_p",)}.get(document.hold, ("n",))


def rules(prediction: Prediction) -> str:
    """Return what simple rules choose, in one sentence; empty without a recommendation or with hours."""
    if prediction.allocation is None or not prediction.rules:
        return ""
    names = {"best_measured": "best measured", "isoflop": "IsoFLOP profiles"}
    choices = [f"{number(round(n))} ({names[rule]})" for rule, n in prediction.rules.items()]
    return f"Simple rules choose {SYMBOL_OF[_law(prediction).axis]} = {' and '.join(choices)}."


def _optimum(prediction: Prediction) -> str:
    """Return the n and B_p of the highest reward in one line; empty without a recommendation."""
    optima = " and ".join(f"{name} {text}" for name, text in stars(prediction).items())
    return f"Highest reward at {optima}." if optima else ""


def cost_line(prediction: Prediction) -> str:
    """Return the cost of the recommended allocation; empty without a recommendation or a cost."""
    if not prediction.options or prediction.cost is None:
        return ""
    return costs.spent(prediction.spent(prediction.options[0]), prediction.cost)


def _budget_text(prediction: Prediction) -> str:
    """Return the budget as text, such as ``6M rollouts`` or ``384gpuh``."""
    return prediction.asked or f"{amount(prediction.compute)} {prediction.unit}"


def _largest_hours(prediction: Prediction) -> str:
    """Return the largest budget with a recommendation, in the requested kind of hours, rounded down."""
    hours, of_gpus = parse_hours(prediction.asked)
    digits = f"{hours * prediction.comparable / prediction.compute * 0.995:.3g}"
    return f"{digits}{'gpuh' if of_gpus else 'h'}"


def _best_rule(result: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the result of the simple rule with the lowest mean loss."""
    losses_of_rule = {rule: losses for rule, losses in result["rules"].items() if rule != "isolaw"}
    return min(losses_of_rule.items(), key=lambda item: item[1]["mean_loss"])


def backtest_failed(result: Mapping[str, Any] | str) -> bool:
    """Return whether a simple rule beat isolaw's choices by more than the tolerance and the noise."""
    if isinstance(result, str):
        return False
    against = _best_rule(result)[1]["against_isolaw"]
    return bool(
        -against["difference"]
        > max(result["tolerance"], _STANDARD_ERRORS * (against["standard_error"] or 0.0))
    )


def _better_rule(prediction: Prediction, backtest: Mapping[str, Any] | str) -> tuple[str, int] | None:
    """Return the simple rule that did better in the backtest, and what it chooses for this budget.

    The result is None if no rule did, or if it chooses the recommended n (or B_p).
    """
    best, document = prediction.allocation, prediction.document
    if best is None or document is None or isinstance(backtest, str) or not backtest_failed(backtest):
        return None
    rule, result = _best_rule(backtest)
    judged = result["allocations"][-1][0][document.axis != "problems_per_batch"]
    choices = {
        "best measured": prediction.rules.get("best_measured"),
        "IsoFLOP": prediction.rules.get("isoflop"),
    }
    if document.axis != "problems_per_batch" and prediction.compared is not None:
        measured = max(entry.rollouts_per_problem for entry in document.grid)
        choices["largest n"] = min(measured, prediction.compared[1])
    level = round(choices.get(rule) or judged)
    return None if level == getattr(best, document.axis) else (rule, level)


def after_backtest(prediction: Prediction, backtest: Mapping[str, Any] | str) -> Prediction:
    """Return the prediction; if a simple rule did better, its next step is not to spend the budget.

    The step stays if it trains other runs, or if the rule chooses the same n (or B_p).
    """
    better_rule, best = _better_rule(prediction, backtest), prediction.allocation
    if better_rule is None or best is None or prediction.step is not None:
        return prediction
    (rule, level), document = better_rule, _law(prediction)
    symbol, recommended = SYMBOL_OF[document.axis], getattr(best, document.axis)
    rival = f"{symbol} = {level:,}, the choice of the rule {rule!r}, and {symbol} = {recommended:,}"
    what = f"Do not spend the budget yet: train one more seed of {rival}."
    step = NextStep(what, "The rule did better in the backtest.", "", one_more_seed(document, best, level))
    return replace(prediction, step=step)


def _failure_warning(prediction: Prediction, backtest: Mapping[str, Any] | str) -> str:
    if (better_rule := _better_rule(prediction, backtest)) is None:
        return ""
    return (
        f" Do not rely on it: in the backtest of these runs, the simple rule {better_rule[0]!r} did better."
    )


def backtest_line(result: Mapping[str, Any] | str, metric: str) -> str:
    """Return a backtest in one sentence, or the reason why there is none."""
    if isinstance(result, str):
        return f"none; {result.rstrip('.')}."

    def loss_of(rule: str) -> str:
        return in_reward(result["rules"][rule]["mean_loss"], result["tolerance"])

    judges = "held-out seeds" if result["held_out"] == "seed" else "the same runs' later checkpoints"
    rule_losses = [f"{loss_of(rule)} ({rule})" for rule in result["rules"] if rule != "isolaw"]
    rules_text = " and ".join(filter(None, (", ".join(rule_losses[:-1]), rule_losses[-1])))
    return (
        f"fitted up to {amount(result['fit_below'])}, isolaw's choices for up to "
        f"{amount(result['budgets'][-1])} lost {loss_of('isolaw')} in {metric} on {judges}; "
        f"simple rules lost {rules_text}."
    )


def fitted(law: Law) -> Document:
    """Return the lines of `law_lines`, the residuals, the compared laws and the notes; for pages also n*(C).

    Each compared law has its parameters with 95 % intervals, its mean loss in reward, and the share of draws
    in which it loses less than a constant n.
    """
    document = law.document
    notes = [f"Note: {note}." for note in law_text.notes(document.flags)]
    table = laws(document)
    lines: list[Stanza] = [*law_lines(law), *_residuals(law), *([table] if table else []), *notes]
    passages = [Passage("", lines), Passage("n* by budget", [_frontier(document)])]
    return Document("law of n*", passages, law.to_dict())


def _residuals(law: Law) -> list[str]:
    """Return what the fit misses, in one sentence; empty for a law that keeps no rewards."""
    table = law.residuals()
    if table.empty:
        return []
    tolerance, residual = law.document.tolerance, table["residual"]
    cells = table.assign(residual=residual.abs()).groupby(["problems_per_batch", "rollouts_per_problem"])
    mean = cells["residual"].mean()
    b, n = mean.idxmax()
    rms, worst = (in_reward(float(value), tolerance) for value in ((residual**2).mean() ** 0.5, mean.max()))
    return [
        f"Residuals of {len(table):,} mean rewards: {rms} (root mean square), largest for B_p = {b}, n = {n} "
        f"({worst} on average). law.residuals() lists them."
    ]


def _frontier(document: LawDocument) -> Table:
    """Return a table of n* at about eight points of the frontier, which only pages show."""
    header = [law_text.symbol(document), "n*", "reward at n*"]
    points = document.frontier[:: -max(len(document.frontier) // 8, 1)][::-1]
    rows = [[number(point.x), str(point.n_star), str(point.reward)] for point in points]
    return Table.of([header, *rows], page_only=header)


def law_lines(law: Law) -> list[str]:
    """Return the lines that `isolaw fit` prints: the answer where the runs end, then the law and n*(C)."""
    best = at_the_end(law)
    return [*([] if best is None else _verdict(best)), *law_text.law_summary(law.document)]


def laws(document: LawDocument) -> Table | None:
    """Return the compared laws with their parameters θ and losses, or None without a comparison."""
    comparison = document.comparison
    if not comparison.laws:
        return None
    rows = []
    for name, law in comparison.laws.items():
        is_preferred, shares = name == comparison.preferred, law.better.get("constant")
        label = TableCell(law_text.law_name(name) + " (preferred)" * is_preferred, kind="good" * is_preferred)
        texts = law_text.form_equation(name, document), law_text.parameters(name, law)
        versus = TableCell("", "") if shares is None else TableCell(share(shares), shares)
        rows.append(
            [label, *map(TableCell, texts), TableCell.lost(law.mean_loss, document.tolerance), versus]
        )
    heads = ["law", "n*(C) is", "parameters (95 % interval)", "mean loss", "better than a constant, in draws"]
    return Table(
        "laws", "The laws that were compared, by their loss of reward along n*", heads, rows, long=True
    )
