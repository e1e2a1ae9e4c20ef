"""Compare the planned peak memory of training on a GPU with the measured peak."""

from __future__ import annotations

from typing import Any

from isolaw.backends.real.gpu_selftest.record import Record
from isolaw.backends.real.gpu_selftest.workload import Workload
from isolaw.backends.real.train.memory import planner
from isolaw.backends.real.train.memory.footprint import GIB

_ACCEPTED = 0.15


def run(work: Workload, record: Record) -> None:
    """Make two updates, and compare the peak memory of the second with the plan."""
    if not work.on_gpu:
        record.skip("torch counts a process's allocations on GPUs only")
        return
    import torch

    from isolaw.backends.real.train.loop import Run

    spec = work.spec(2, real={"sampler": "transformers", "logprob_tolerance": 1e3})
    run = Run(spec)
    batch = run.generate()
    # Use one batch twice, so that both updates have the same shapes. The second update is then off-policy.
    run.generate = lambda: batch  # type: ignore[method-assign]
    run.advance()  # creates AdamW's moments
    sampler: Any = run.worker.sampler
    others = sum(p.numel() * p.element_size() for p in sampler.model.parameters() if p.is_cuda)
    between = torch.cuda.memory_allocated() - others
    torch.cuda.reset_peak_memory_stats()
    run.advance()
    peak = torch.cuda.max_memory_allocated() - others
    own = planner.plan(spec)
    plan = own.footprint.tensors() if own else None  # bytes of training, without the sampler
    record.measure(
        measured_gib=round(peak / GIB, 3),
        between_updates_gib=round(between / GIB, 3),
        planned_gib=None if plan is None else round(plan / GIB, 3),
    )
    if plan is None:
        record.skip("measured; there is no plan to compare with")
    else:
        error = abs(plan - peak) / peak
        record.at_most("|planned - measured| / measured peak of an update", error, _ACCEPTED)
