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


def spent(cost_so_far: Spent | None, cost: Cost) -> str:
    """Return a sentence with the hours, GPU hours and money that runs cost."""
    if cost_so_far is None:
        return f"The cost is unknown, since all timed steps have one size; they are from {origin(cost)}."
    if cost_so_far.gpu_hours is None:
        parts = [_interval(cost_so_far.hours, "hours of run time")]
    else:
        parts = [_interval(cost_so_far.gpu_hours, "GPU hours")]
        if cost.gpus != 1:
            parts.append(f"{number(cost_so_far.hours.value)} hours on {cost.gpus} GPUs")
    if cost_so_far.money is not None:
        parts.append(
            f"{number(cost_so_far.money.value)} at {cost.price:g} per "
            f"{'GPU ' * bool(cost_so_far.gpu_hours)}hour"
        )
    return f"Cost: {', '.join(parts)}, estimated from {origin(cost)}."


def short(cost_so_far: Spent | None) -> str:
    """Return a comma and the hours of an option; empty if the hours are not known."""
    if cost_so_far is None:
        return ""
    hours, unit = (
        (cost_so_far.gpu_hours, "GPU hours") if cost_so_far.gpu_hours else (cost_so_far.hours, "hours")
    )
    return f", {number(hours.value)} {unit}"


def origin(cost: Cost) -> str:
    """Return the source of a cost as text.

    >>> from isolaw.costs import read
    >>> origin(read("examples/data/real-arithmetic.parquet"))
    '36 recorded runs (examples/data/real-arithmetic.parquet; GPUs not recorded)'
    """
    kind = f" × {cost.gpu}" if cost.gpu else f" {'GPU' if cost.gpus == 1 else 'GPUs'}"
    gpus = "GPUs not recorded" if cost.gpus is None else f"{cost.gpus}{kind}" if cost.gpus else "no GPU"
    where = "; ".join(part for part in (cost.where, gpus) if part)
    if cost.source is CostOrigin.RECORDED:
        return f"{count(cost.runs, 'recorded run')} ({where})"
    if cost.source is CostOrigin.ESTIMATE:
        return f"the shape of the model ({where})"
    return f"the given throughputs ({where})"


def estimated(configurations: Sequence[RemainingWork]) -> list[str]:
    """Return the estimated cost of a sweep by (B_p, n), and its assumptions; empty without an estimate."""
    if not configurations:
        return []
    from isolaw.preview import gpu_hours  # imported here, since answers do not need the backends

    rows = [["B_p", "n", "runs", "GPUs of a run", "s per step", "tokens/s per GPU", "GPU hours"]]
    for configuration in configurations:
        cost, shape = (
            configuration.spent.cost,
            (configuration.problems_per_batch, configuration.rollouts_per_problem),
        )
        numbers = (cost.step(*shape) or 0.0, configuration.tokens_per_gpu_s, gpu_hours([configuration]))
        rows.append([*map(str, shape), str(configuration.runs), str(cost.gpus), *map(number, numbers)])
    total, tokens = gpu_hours(configurations), configurations[0].spent.cost.per_rollout
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
    kind = "configurations" if len(left_out.errors) > 1 else "batch sizes"
    return (
        f"Each of {left_out.configurations} {kind} was predicted from the others: the median error is "
        f"{100 * left_out.median:.0f} %, and {100 * left_out.inside:.0f} % of the step times are inside "
        "intervals."
    )


def extrapolated(cost: Cost, shapes: Sequence[tuple[int, int]]) -> list[Caution]:
    """Return a caution that names the configurations for which no step was timed, if there are any."""
    far = " and of ".join(Cell(*shape).label for shape in shapes if cost.extrapolates(*shape))
    return [Caution(f"the cost of {far} is extrapolated: no such step was timed.")] if far else []


def _ends(quantity: Quantity) -> str:
    return number(quantity.value) + ("" if quantity.interval is None else f" ({interval(quantity.interval)})")


def _time_by_part(seconds: Mapping[str, float]) -> str:
    """Return the share of each part in a total time, the largest first.

    >>> _time_by_part({"sync": 10.0, "generate": 60.0, "train": 30.0})
    'generate 60 %, train 30 %, sync 10 %'
    """
    total = sum(seconds.values()) or 1.0
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share(part / total)}" for name, part in ordered if part > 0)


def hours_so_far(state: Mapping[str, Any]) -> str:
    """Return the hours that a sweep's runs took, from `isolaw.engine.status`; empty if not known."""
    cost_so_far = state.get("spent")
    if not cost_so_far:
        return ""
    parts = _time_by_part(cost_so_far["seconds"])
    if cost_so_far["gpu_hours"] is not None:
        return f"{number(cost_so_far['gpu_hours'])} GPU hours so far ({parts})"
    return f"{number(cost_so_far['hours'])} hours of run time so far ({parts})"


def _interval(quantity: Quantity, unit: str) -> str:
    value, *ends = _ends(quantity).split(" ", 1)
    return " ".join([value, unit, *ends])
