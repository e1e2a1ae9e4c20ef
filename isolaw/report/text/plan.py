"""The document of a plan: the expected loss and cost of sweeps on simulated truths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isolaw.design import sweep_file, truths
from isolaw.design.forecast import ALIKE, Range
from isolaw.report.document import Bullets, Document, Passage, Stanza, Table
from isolaw.report.text import costs
from isolaw.report.text.numbers import count, number, share
from isolaw.step_cost import HOUR_S, Spent

if TYPE_CHECKING:
    from isolaw.design.forecast import DesignOutcome, SweepForecast
    from isolaw.design.truths import Truth

_SHOWN = 3  # most truths to name


def document(found: SweepForecast, price: float | None = None) -> Document:
    """Return the document of a plan. ``price`` is the price of one GPU hour."""
    asked = found.question
    simulated = len(found.truths) - found.from_runs
    plays = f"{count(found.repetitions, 'play')} on each truth"
    also = f" and {found.from_runs} fitted to your runs" if found.from_runs else ""
    lines: list[Stanza] = [
        f"isolaw played each sweep on {count(simulated, 'simulated truth')}{also}, with {plays}. "
        "No model was trained.",
        f"The target is C = {number(asked.target)} rollouts. The whole grid of {len(asked.cells)} "
        f"configurations and {count(len(asked.spec.sweep.seeds), 'seed')} costs {number(asked.grid)} "
        "rollouts.",
        f"The sweep may spend {number(asked.budget.rollouts)} rollouts, "
        f"{_share(asked.budget.rollouts, asked.grid)} of the grid{_place(found)}.",
    ]
    if found.unreliable:
        lines.append(
            f"This plan is unreliable: below {number(asked.unreliable_below)} rollouts (a tenth of the grid, "
            "or of 9 n with 3 seeds to the target), no design found the best allocation reliably. Spend "
            "more, or lower the target."
        )
    passages = [
        Passage("", lines),
        Passage("Designs", [_table(found, price)]),
        Passage("Recommendation", [*_recommendation(found), *_rate(found)]),
        Passage("Assumptions", [Bullets("", assumptions(found))], printed=True),
    ]
    return Document(f"plan to C = {number(asked.target)}", passages, _data(found, price))


def assumptions(found: SweepForecast) -> list[str]:
    """Return the assumptions of the plan, in one or two sentences each."""
    asked = found.question
    answers = truths.answers_of(asked.spec)
    out = [
        *_origin(found),
        "Rewards are mean accuracies"
        + (f" over {answers:,} validation answers" if answers else ", measured exactly")
        + ". Runs with the same seed share its effects, and no run fails.",
        f"The best allocation is the best of these {len(asked.cells)} configurations; the plan considers no "
        "others.",
    ]
    if outside := truths.outside(asked.cells):
        named = ", ".join(f"(B_p = {b}, n = {n})" for b, n in outside[:_SHOWN])
        more = f" and {len(outside) - _SHOWN} more" if len(outside) > _SHOWN else ""
        out.append(
            f"The truths cover B_p from 8 to 128 and n from 8 to 2,048. For {named}{more}, isolaw assumes "
            "the rewards of the nearest configuration in this range."
        )
    if found.compared:
        out.append(
            f"isolaw weights the truths by their agreement with {count(found.compared, 'configuration')} of "
            "your runs, apart from the level of the rewards. The effective number of truths is "
            f"{found.effective_truths:.1f}. "
            + (
                f"{found.from_runs} truths are fitted to these runs and have half of the weight."
                if found.from_runs
                else "No truth is fitted to your runs, since they do not reach the target around the grid."
            )
        )
    if (clock := asked.budget.clock) is not None:
        out.append(
            f"Times are from {costs.origin(clock.cost)}, with {count(clock.places, 'run')} at a time. The "
            "runs of one decision end before the runs of the next decision begin."
        )
    return out


def _origin(found: SweepForecast) -> list[str]:
    """Describe the truths that the plan uses."""
    kinds = " and ".join(f"the {kind} problem set" for kind in truths.kinds_of(found.question.spec))
    return [
        f"{len(found.truths) - found.from_runs} truths are from a simulator (version "
        f"{truths.simulator_version()}) on {kinds}; about a third of them are calibrated to the paper's "
        "runs. Your model may learn differently from all of them.",
        "Relative to the target, your model learns as fast as the truths do relative to C = 3e6.",
    ]


def _data(found: SweepForecast, price: float | None) -> dict[str, Any]:
    asked, best = found.question, found.recommended
    clock = asked.budget.clock
    return {
        "simulated": found.simulated.json,
        "target": asked.target,
        "spend": asked.budget.rollouts,
        "hours": asked.hours,
        "required_rollouts_per_s": required_rate(found),
        "gpus": asked.gpus,
        "grid_rollouts": asked.grid,
        "unreliable": found.unreliable,
        "unreliable_below": asked.unreliable_below,
        "designs": [_row(found, row, price) for row in found.rows],
        "recommended": best and best.candidate.name,
        "sweep": best and sweep_file.content(asked, best.candidate),
        "truths": [] if best is None else [_truth(*item) for item in found.losses(best)],
        "effective_truths": found.effective_truths,
        "truths_from_runs": found.from_runs,
        "simulator": truths.simulator_version(),
        "repetitions": found.repetitions,
        "assumptions": assumptions(found),
        "cost": clock and clock.cost.to_dict(),
    }


def _row(found: SweepForecast, row: DesignOutcome, price: float | None) -> dict[str, Any]:
    clock, candidate = found.question.budget.clock, row.candidate
    cost: dict[str, Any] = {"gpu_hours": None, "hours": None, "money": None}
    if clock is not None and row.work_s is not None and row.wall_s is not None:
        work, wall = (Range(*(value / HOUR_S for value in own)) for own in (row.work_s, row.wall_s))
        spent = Spent(clock.cost.estimate(row.work_s.value), clock.cost, price)
        cost["hours"] = wall.to_dict()
        if clock.cost.gpus:
            cost["gpu_hours"] = Range(*(value * clock.cost.gpus for value in work)).to_dict()
        cost["money"] = spent.money and spent.money.value
    return {
        "name": candidate.name,
        "kind": candidate.kind,
        "seeds": candidate.seeds,
        "configurations": [list(key) for key in candidate.cells],
        "compute": candidate.horizon or found.question.target,
        "cut_short": _cut(found, row),
        "expected_loss": row.loss.to_dict(),
        "probability_within_tolerance": row.within,
        "rollouts": row.rollouts.to_dict(),
        "runs": row.runs.to_dict(),
        **cost,
    }


def _truth(truth: Truth, weight: float, loss: float) -> dict[str, Any]:
    return {
        "name": truth.name,
        "weight": weight,
        "best": list(truth.best),
        "reward": truth.rewards()[truth.best],
        "expected_loss": loss,
    }


def _table(found: SweepForecast, price: float | None) -> Table:
    clock = found.question.budget.clock
    gpus = clock.cost.gpus if clock else None
    rows = []
    for row in found.rows:
        cut = f", to C = {number(row.candidate.horizon)}" if _cut(found, row) else ""
        rows.append(
            {
                "design": f"{row.candidate.name}{cut}",
                "runs": f"{row.runs.value:.0f}",
                "rollouts": number(row.rollouts.value),
                "of grid": _share(row.rollouts.value, found.question.grid),
                "GPU hours": _hours(row.work_s, gpus) if gpus else None,
                "hours": _hours(row.wall_s) if clock else None,
                "price": _hours(row.work_s, price * (gpus or 1)) if price else None,
                "expected loss": f"{row.loss.value:.4f}",
                "90 % interval": f"{row.loss.low:.4f}–{row.loss.high:.4f}",
                "within 0.005": share(row.within),
            }
        )
    return Table.by_column(rows, "<>")


def _recommendation(found: SweepForecast) -> list[Stanza]:
    best = found.recommended
    if best is None:
        return ["isolaw recommends no sweep: every design exceeds the hours. Allow more hours or GPUs."]
    worst, _, most = max(found.losses(best), key=lambda item: item[2])
    lines: list[Stanza] = [
        f"The plan recommends the design {best.candidate.name!r}. The expected loss of its allocation at the "
        f"target is {best.loss.value:.4f} (90 % interval over truths and plays: {best.loss.low:.4f}–"
        f"{best.loss.high:.4f}); in {share(best.within)} of plays the loss is at most 0.005. "
        f"On its worst truth ({worst.name}), the design loses {most:.4f}."
    ]
    if best.loss.value > min(row.loss.value for row in found.rows):
        lines.append(
            f"Among the designs {_asked_of(found, best)}, it is the cheapest with an expected loss within "
            f"{ALIKE} of the least."
        )
    matter = [item for item in found.losses(best)[:_SHOWN] if item[2] > 0]
    if matter:
        items = [
            f"{truth.name} (best: B_p = {truth.best[0]}, n = {truth.best[1]}): {loss:.4f}"
            + (f", weight {share(weight)}" if found.compared else "")
            for truth, weight, loss in matter
        ]
        lines.append(Bullets("It loses most on these truths:", items, "  "))
    return lines


def required_rate(found: SweepForecast) -> float | None:
    """Return the rollouts per second, over all GPUs, with which the recommended sweep ends within the hours.

    Returns None if no hours were given, or if a cost already determines the time.
    """
    asked, best = found.question, found.recommended
    if best is None or asked.hours is None or asked.budget.clock is not None:
        return None
    return best.rollouts.value / (asked.hours * HOUR_S)


def _rate(found: SweepForecast) -> list[str]:
    rate, asked = required_rate(found), found.question
    if rate is None:
        return []
    own = number(rate / (asked.gpus or 1))
    per = f"{own} rollouts/s on each of {count(asked.gpus, 'GPU')}" if asked.gpus else f"{own} rollouts/s"
    length = asked.spec.recipe.max_response_tokens
    tokens = f" (at most {number(rate / (asked.gpus or 1) * length)} tokens/s)" if length else ""
    return [
        f"To end within {asked.hours:g} hours, the sweep requires {per}{tokens} on average, including "
        "training and evaluations. isolaw does not know the speed of your GPUs: --cost converts hours into "
        "rollouts, limits the spend, and adds GPU hours to the table (docs/costs.md)."
    ]


def _asked_of(found: SweepForecast, best: DesignOutcome) -> str:
    parts = [] if _cut(found, best) else ["to the target"]
    return " and ".join([*parts, *(["within the hours"] if found.question.budget.hours else [])]) or "above"


def _cut(found: SweepForecast, row: DesignOutcome) -> bool:
    return row.candidate.cut_short(found.question.target)


def _hours(own: Range | None, gpus: float = 1) -> str:
    return "" if own is None else number(own.value / HOUR_S * gpus)


def _share(value: float, of: float) -> str:
    return f"{100 * value / of:.0f} %"


def _place(found: SweepForecast) -> str:
    budget, gpus = found.question.budget, found.question.gpus
    if budget.clock is None:
        return ""
    if budget.hours is None:
        return f", on {count(gpus, 'GPU')}" if gpus else ""
    on = f" on {count(gpus, 'GPU')}" if gpus else ""
    return f", and {budget.hours:g} hours{on}"
