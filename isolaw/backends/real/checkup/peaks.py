"""Planned against measured peaks of a GPU's memory."""

from __future__ import annotations

from typing import Any

from isolaw.backends.real import environment
from isolaw.backends.real.checkup.record import Record
from isolaw.backends.real.checkup.workplace import Workplace

_ACCEPTED = 0.15


def planned(spec: Any) -> float | None:
    """Return the planned peak of tensors while training, without the sampler's, on the first GPU in bytes.

    None where nothing is planned.
    """
    from isolaw.backends.real.train import memory

    own = memory.plan(spec)
    if own is None:
        return None
    parts = own.phases["train"]
    return float(
        sum(size for part, size in parts.items() if part != "reserve" and not part.startswith("sampler"))
    )


def run(work: Workplace, record: Record) -> None:
    """Make two updates and compare the largest allocation of the second with the plan."""
    if not work.on_gpu:
        record.skip("torch counts a process's allocations on GPUs only")
        return
    environment.prepare()
    import torch

    from isolaw.backends.real.train.loop import Run

    spec = work.spec(2, real={"sampler": "transformers", "logprob_tolerance": 1.0})
    run = Run(spec)
    batch = run.generate()
    run.generate = lambda: batch  # type: ignore[method-assign]
    run.advance()  # AdamW's moments exist from now
    sampler: Any = run.actor.sampler
    others = sum(p.numel() * p.element_size() for p in sampler.model.parameters() if p.is_cuda)
    between = torch.cuda.memory_allocated() - others
    torch.cuda.reset_peak_memory_stats()
    run.advance()
    peak = torch.cuda.max_memory_allocated() - others
    plan = planned(spec)
    gib = 2**30
    record.measure(
        measured_gib=round(peak / gib, 3),
        between_updates_gib=round(between / gib, 3),
        planned_gib=None if plan is None else round(plan / gib, 3),
    )
    if plan is None:
        record.skip("measured; there is no plan to compare with")
    else:
        record.at_most(
            "|planned - measured| / measured peak of an update", abs(plan - peak) / peak, _ACCEPTED
        )
