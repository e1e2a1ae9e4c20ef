"""Sample, sleep, update, reload and wake 20 times, to check the transfer of weights and the memory use.

The run is executed by `train.loop`, with vLLM and one step of staleness. With staleness, the loop also
measures how much an update changes log-probabilities (``ratio_max``). If the mismatch is far below this
change, the sampler has received the weights.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

from isolaw.backends.real.gpu_selftest.record import Record
from isolaw.backends.real.gpu_selftest.workload import Workload

CYCLES = 20
_RESPONSE = 128  # maximum tokens; checks do not depend on the length, and drawing takes most of a cycle
# Limits of the mismatch with correct weights, as in the first cycle. Large bfloat16 weights round coarsely.
_MISMATCH = {"float32": 1e-4, "bfloat16": 0.15}
_WORSE = 1.25
_GROWTH_MIB = 128.0
_KEPT = ("mismatch", "mismatch_max", "ratio_max", "grad_norm", "response_length")


def run(work: Workload, record: Record) -> None:
    """Execute the run, and check the measurements of its steps."""
    from isolaw.backends.real.train import loop

    spec = work.spec(
        CYCLES,
        recipe={"staleness": 1, "max_response_tokens": min(work.response, _RESPONSE)},
        real={"sampler": "vllm", "logprob_tolerance": 10.0},
        evaluation={"points": 1000},  # after every step
    )
    rows: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    waking = _timed_waking()
    for checkpoint in loop.train(spec, None):
        if checkpoint.step:
            measured = {row.metric: row.value for row in checkpoint.rows if row.eval_set == "train"}
            now = {**checkpoint.seconds, **waking}
            took = {part: round(s - seconds.get(part, 0.0), 3) for part, s in now.items()}
            seconds = now
            rows.append({key: measured.get(key) for key in _KEPT} | _memory(work) | {"seconds": took})
            record.measure(cycles=rows, dtype=work.dtype, sleeps=work.on_gpu)
    record.check("cycles", len(rows), str(CYCLES), len(rows) == CYCLES)
    largest, ratio = _largest(rows, "mismatch"), _largest(rows, "ratio_max")
    what = "mean |Δ log p| between sampler and trainer, largest of all cycles"
    first = rows[0]["mismatch"] if rows else None
    record.at_most(what, largest, _MISMATCH[work.dtype])
    if work.on_gpu:  # on a CPU (float32), both values are only rounding, and the limit above is tight
        worse = largest / first if largest is not None and first else None
        record.at_most("the same, relative to the first cycle", worse, _WORSE)
    moved = math.log(ratio) if ratio else None
    what = "largest change of a log-probability by one update (what stale weights would show)"
    shows = moved is not None and largest is not None and moved > largest
    record.check(what, moved, "above the largest mismatch", shows)
    for kind in _memory(work):
        record.at_most(f"growth of {kind} from cycles 6 to 10 to the last 5", growth(rows, kind), _GROWTH_MIB)


def _timed_waking() -> dict[str, float]:
    """Make vLLM measure the time that it takes to map its memory again, as part of the weight transfer.

    Return a dictionary of seconds by part, which later wake-ups update. The step's "sync" time includes them.
    """
    from isolaw.backends.real.rollout.vllm_sampler import VLLMSampler

    seconds: dict[str, float] = {}
    wake = VLLMSampler._wake

    def timed(self: VLLMSampler, tag: str) -> None:
        began = time.perf_counter()
        wake(self, tag)
        seconds[f"wake {tag}"] = seconds.get(f"wake {tag}", 0.0) + time.perf_counter() - began

    VLLMSampler._wake = timed  # type: ignore[method-assign]
    return seconds


def growth(rows: list[dict[str, Any]], kind: str) -> float | None:
    """Return the growth of a memory's maximum use between cycles 6 to 10 and the last 5 cycles.

    The first 5 cycles are excluded, because they fill caches.
    """
    early, late = (_largest(part, kind) for part in (rows[5:10], rows[-5:]))
    return None if early is None or late is None else late - early


def _largest(rows: list[dict[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row[key] is not None]
    return None if len(values) < len(rows) or not values else max(values)


def _memory(work: Workload) -> dict[str, float]:
    """Return the memory in use in MiB, of this process and of the GPU.

    The GPU's memory is measured for the whole device, because torch would include the memory of a sleeping
    vLLM.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    out = {"host_mib": round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)}
    if work.on_gpu:
        import torch

        free, total = torch.cuda.mem_get_info()
        out["gpu_mib"] = round((total - free) / 2**20, 1)
    return out
