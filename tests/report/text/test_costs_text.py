"""Costs in words: GPU hours where GPUs are known, hours of run time elsewhere, no number where nothing is."""

from __future__ import annotations

from dataclasses import replace

from isolaw.report.text import costs
from isolaw.step_cost import Cost, CostOrigin, Spent, StepPart

COST = Cost(
    {"step": StepPart(2.0, 1e-3)}, 100.0, "tokens", CostOrigin.RECORDED, "runs/my", 8,
    "NVIDIA H100 80GB HBM3",
    batches=(64, 128, 256), runs=9, error=0.1,
)  # fmt: skip


def said(cost: Cost) -> str:
    seconds = cost.seconds(8, 8, 100)
    return costs.spent(seconds and Spent(seconds, cost), cost)


def test_on_gpus() -> None:
    assert said(replace(COST, price=2.5)) == (
        "Cost: 1.87 GPU hours (95 % interval: 1.21–2.87), 0.233 hours on 8 GPUs, 4.67 at 2.5 per GPU hour, "
        "estimated from 9 recorded runs (runs/my; 8 × NVIDIA H100 80GB HBM3)."
    )
    one = replace(COST, gpus=1, gpu="", error=None)
    assert said(one) == "Cost: 0.233 GPU hours, estimated from 9 recorded runs (runs/my; 1 GPU)."


def test_without_gpus() -> None:
    none, unknown = replace(COST, gpus=0, gpu=""), replace(COST, gpus=None, gpu="")
    for cost, where in ((none, "no GPU"), (unknown, "GPUs not recorded")):
        assert said(replace(cost, price=0.5)) == (
            "Cost: 0.233 hours of run time (95 % interval: 0.152–0.359), 0.117 at 0.5 per hour, "
            f"estimated from 9 recorded runs (runs/my; {where})."
        )


def test_where_nothing_is_known() -> None:
    one = replace(COST, batches=(128,), error=None)
    assert said(one).startswith("The cost is unknown, since all timed steps have one size")
    assert costs.short(None) == costs.hours_so_far({}) == costs.hours_so_far({"spent": None}) == ""


def test_sources_are_labelled() -> None:
    shape = replace(COST, source=CostOrigin.ESTIMATE, where="qwen2.5-7b@h100-80g:8", gpu="h100-80g")
    assert costs.origin(shape) == "the shape of the model (qwen2.5-7b@h100-80g:8; 8 × h100-80g)"
    rate = replace(COST, source=CostOrigin.RATE, where="12/s@8", gpu="")
    assert costs.origin(rate) == "the given throughputs (12/s@8; 8 GPUs)"
