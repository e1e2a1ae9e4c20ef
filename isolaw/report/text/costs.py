"""Costs as text: hours, GPU hours and money, with their source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isolaw.allocation import Cell
from isolaw.evidence import columns, count, interval, number, share
from isolaw.report.document import Caution
from isolaw.step_cost import CostOrigin

if TYPE_CHECKING:
    from isolaw.evidence import Quantity
    from isolaw.preview import RemainingWork
    from isolaw.step_cost import Cost, Spent


def spent(spending: Spent | None, cost: Cost) -> str:
    """Return a sentence with the hours, GPU hours and money that runs cost."""
    if spending is None:
        return f"The cost is unknown, since all timed steps have one size; they are from {origin(cost)}."
    if spending.gpu_hours is None:
        amounts = [_in_unit(spending.hours, "hours of run time")]
    else:
        amounts = [_in_unit(spending.gpu_hours, "GPU hours")]
        if cost.gpus != 1:
            amounts.append(f"{number(spending.hours.value)} hours on {cost.gpus} GPUs")
    if spending.money is not None:
        amounts.append(
            f"{number(spending.money.value)} at {cost.price:g} per {'GPU ' * bool(spending.gpu_hours)}hour"
        )
    return f"Cost: {', '.join(amounts)}, estimated from {origin(cost)}."


def short(spending: Spent | None) -> str:
    """Return a comma and the hours of an option; empty if the hours are not known."""
    if spending is None:
        return ""
    hours, unit = (spending.gpu_hours, "GPU hours") if spending.gpu_hours else (spending.hours, "hours")
    return f", {number(hours.value)} {unit}"


def origin(cost: Cost) -> str:
    """Return the source of a cost as text.

    >>> from isolaw.costs import read
    >>> origin(read("examples/data/real-arithmetic.parquet"))
    '36 recorded runs (examples/data/real-arithmetic.parquet; GPUs not recorded)'
    """
    gpu_name = f" × {cost.gpu}" if cost.gpu else f" {'GPU' if cost.gpus == 1 else 'GPUs'}"
    gpus = "GPUs not recorded" if cost.gpus is None else f"{cost.gpus}{gpu_name}" if cost.gpus else "no GPU"
    details = "; ".join(part for part in (cost.where, gpus) if part)
    if cost.source is CostOrigin.RECORDED:
        return f"{count(cost.runs, 'recorded run')} ({details})"
    if cost.source is CostOrigin.ESTIMATE:
        return f"the shape of the model ({details})"
    return f"the given throughputs ({details})"


def estimated(remaining: Sequence[RemainingWork]) -> list[str]:
    """Return the estimated cost of a sweep by (B_p, n), and its assumptions; empty without an estimate."""
    if not remaining:
        return []
    from isolaw.preview import gpu_hours  # imported here, since answers do not need the backends

    rows = [["B_p", "n", "runs", "GPUs of a run", "s per step", "tokens/s per GPU", "GPU hours"]]
    for work in remaining:
        cost, shape = (
            work.spent.cost,
            (work.problems_per_batch, work.rollouts_per_problem),
        )
        numbers = (cost.step(*shape) or 0.0, work.tokens_per_gpu_s, gpu_hours([work]))
        rows.append([*map(str, shape), str(work.runs), str(cost.gpus), *map(number, numbers)])
    total, tokens = gpu_hours(remaining), remaining[0].spent.cost.per_rollout
    return [
        f"The remaining runs take an estimated {number(total)} GPU hours:",
        *(f"  {line}" for line in columns(rows, ">>>>>>>")),
        "Nothing was timed: the estimate extrapolates from small models on one GPU (docs/costs.md).",
        f"It assumes responses of {number(tokens)} tokens on average, half of recipe.max_response_tokens.",
        "For a reliable cost, pass measured seconds of a step, or a directory of finished runs, with --cost.",
    ]


def validation(cost: Cost) -> str:
    """Return the errors of the cost model on left-out configurations, in one sentence."""
    left_out = cost.left_out
    if left_out is None:
        return "isolaw did not cross-validate the cost, which requires recorded steps of three sizes."
    group_name = "configurations" if len(left_out.errors) > 1 else "batch sizes"
    return (
        f"Each of {left_out.configurations} {group_name} was predicted from the others: the median error is "
        f"{100 * left_out.median:.0f} %, and {100 * left_out.inside:.0f} % of the step times are inside "
        "intervals."
    )


def extrapolated(cost: Cost, shapes: Sequence[tuple[int, int]]) -> list[Caution]:
    """Return a caution that names the configurations for which no step was timed, if there are any."""
    untimed = " and of ".join(Cell(*shape).label for shape in shapes if cost.extrapolates(*shape))
    return [Caution(f"the cost of {untimed} is extrapolated: no such step was timed.")] if untimed else []


def _time_by_part(seconds: Mapping[str, float]) -> str:
    """Return the share of each part in a total time, the largest first.

    >>> _time_by_part({"sync": 10.0, "generate": 60.0, "train": 30.0})
    'generate 60 %, train 30 %, sync 10 %'
    """
    total = sum(seconds.values()) or 1.0
    largest_first = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share(part_s / total)}" for name, part_s in largest_first if part_s > 0)


def hours_so_far(state: Mapping[str, Any]) -> str:
    """Return the hours that a sweep's runs took, from `isolaw.engine.status`; empty if not known."""
    spending = state.get("spent")
    if not spending:
        return ""
    time_by_part = _time_by_part(spending["seconds"])
    if spending["gpu_hours"] is not None:
        return f"{number(spending['gpu_hours'])} GPU hours so far ({time_by_part})"
    return f"{number(spending['hours'])} hours of run time so far ({time_by_part})"


def _in_unit(quantity: Quantity, unit: str) -> str:
    ends = "" if quantity.interval is None else f" ({interval(quantity.interval)})"
    return f"{number(quantity.value)} {unit}{ends}"
