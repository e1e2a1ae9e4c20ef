"""Costs as text: hours, GPU hours and money, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isolaw.report.text.numbers import count, interval, number, share
from isolaw.step_cost import CostOrigin

if TYPE_CHECKING:
    from isolaw.step_cost import Cost, Estimate, Spent


def spent(own: Spent | None, cost: Cost) -> str:
    """Return what something costs, in a sentence."""
    if own is None:
        return f"Cost: not known; {origin(cost)} timed steps of one size only."
    if own.gpu_hours is None:
        parts = [_interval(own.hours, "hours of run time")]
    else:
        parts = [_interval(own.gpu_hours, "GPU hours")]
        if cost.gpus != 1:
            parts.append(f"{number(own.hours.value)} hours on {cost.gpus} GPUs")
    if own.money is not None:
        parts.append(f"{number(own.money.value)} at {own.price:g} per {'GPU ' * bool(own.gpu_hours)}hour")
    return f"Cost: {', '.join(parts)}; from {origin(cost)}."


def short(own: Spent | None) -> str:
    """Return the hours of an option, after a comma; empty where they are not known."""
    if own is None:
        return ""
    hours, unit = (own.gpu_hours, "GPU hours") if own.gpu_hours else (own.hours, "hours")
    return f", {number(hours.value)} {unit}"


def origin(cost: Cost) -> str:
    """Return where a cost comes from.

    >>> from isolaw.costs import read
    >>> origin(read("examples/data/real-arithmetic.parquet"))
    '36 recorded runs (examples/data/real-arithmetic.parquet; GPUs not recorded)'
    """
    kind = f" × {cost.gpu}" if cost.gpu else f" {'GPU' if cost.gpus == 1 else 'GPUs'}"
    gpus = "GPUs not recorded" if cost.gpus is None else f"{cost.gpus}{kind}" if cost.gpus else "no GPU"
    where = "; ".join(part for part in (cost.where, gpus) if part)
    if cost.source is CostOrigin.RECORDED:
        return f"{count(cost.runs, 'recorded run')} ({where})"
    if cost.source is CostOrigin.DOCTOR:
        return f"isolaw doctor --gpu ({where}), for its own model: {cost.model}"
    return f"the throughputs given ({where})"


def time_by_part(seconds: Mapping[str, float]) -> str:
    """Return the shares of a time by part, the largest first.

    >>> time_by_part({"sync": 10.0, "generate": 60.0, "train": 30.0})
    'generate 60%, train 30%, sync 10%'
    """
    total = sum(seconds.values()) or 1.0
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {share(own / total)}" for name, own in ordered if own > 0)


def hours_so_far(state: Mapping[str, Any]) -> str:
    """Return the hours that the runs of a sweep took (`isolaw.engine.status`); empty where not known."""
    own = state.get("spent")
    if not own:
        return ""
    if own["gpu_hours"] is not None:
        return f"{number(own['gpu_hours'])} GPU hours so far ({time_by_part(own['seconds'])})"
    return f"{number(own['hours'])} hours of run time so far ({time_by_part(own['seconds'])})"


def _interval(own: Estimate, unit: str) -> str:
    ends = "" if own.low is None else f" ({interval((own.low, own.high))})"
    return f"{number(own.value)} {unit}{ends}"
