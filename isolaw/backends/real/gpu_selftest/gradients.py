"""Compare the trainer's bfloat16 gradient at each ZeRO stage with a float32 gradient computed on the CPU.

All gradients are for the same rollouts. A process without a GPU also executes this module, to compute the
float32 gradient.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

from isolaw import children
from isolaw.backends.real import environment
from isolaw.backends.real.gpu_selftest.record import Record
from isolaw.backends.real.gpu_selftest.workload import Workload

_RESPONSE = {"cuda": 64, "cpu": 16}
# bfloat16 has 8 significant bits, and rounding errors add up over the layers. The relative error is 0.02 for
# the tiny model on a CPU, and 0.145 for the model of 24 layers on an H200.
_ACCEPTED = {"float32": 1e-3, "bfloat16": 0.2}
_LIMIT_S = 150.0
_STAGES = (0, 1, 2, 3)
_ATTENTION = ("attention", "attn", "flash", "fmha", "sdpa")


def run(work: Workload, record: Record) -> None:
    """Draw one batch, and compare its gradients at all ZeRO stages with the reference."""
    from isolaw.backends.real.train.loop import Run

    drawn = Run(_spec(work, "bfloat16", 0))
    batch = drawn.generate()
    batch.save(work.folder / "batch.safetensors", drawn.ranks)
    drawn.close()
    cores = {"OMP_NUM_THREADS": str(os.cpu_count() or 1)} if work.on_gpu else {}
    without_gpu = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", **cores}
    command = [sys.executable, "-P", "-m", __name__, str(work.folder), work.device]
    children.run(command, _LIMIT_S, env=without_gpu).check_returncode()
    from safetensors.torch import load_file

    exact = load_file(work.folder / "gradient.safetensors")
    # In float32, a GPU uses padded blocks of rows instead of bfloat16's variable-length attention kernel.
    for dtype, stage in [("float32", 0)] * work.on_gpu + [("bfloat16", stage) for stage in _STAGES]:
        what = f"ZeRO {stage}: ‖gradient in {dtype} - float32 on the CPU‖ / ‖float32 on the CPU‖"
        limit = _ACCEPTED[dtype]
        try:
            found, paths = gradient(work, dtype, stage, profiled=(dtype, stage) == ("bfloat16", 0))
        except Exception as error:  # the next ZeRO stage can still work
            record.check(f"{what}: {type(error).__name__}: {error}", None, f"at most {limit:g}", False)
            continue
        record.at_most(what, _difference(found, exact), limit)
        if paths:
            record.measure(attention=paths)


def _spec(work: Workload, dtype: str, stage: int) -> Any:
    # The tolerance is large because sampling and training can differ in precision.
    real = {"dtype": dtype, "zero_stage": stage, "sampler": "transformers", "logprob_tolerance": 1.0}
    return work.spec(1, real=real, recipe={"max_response_tokens": _RESPONSE[work.device]})


def gradient(
    work: Workload, dtype: str, stage: int, profiled: bool = False
) -> tuple[dict[str, Any], list[str]]:
    """Return the gradient of a step on the saved batch and, if ``profiled``, the attention kernels' names."""
    import torch

    from isolaw.backends.real.train.batch import Batch
    from isolaw.backends.real.train.loop import Run

    run = Run(_spec(work, dtype, stage))
    batch = Batch.load(work.folder / "batch.safetensors", run.ranks)
    run.generate = lambda: batch  # type: ignore[method-assign]
    update, found = run.trainer.update, {}

    def watched(lr: float) -> float:
        found.update(run.trainer.gradients())
        return update(lr)

    run.trainer.update = watched  # type: ignore[method-assign]
    try:
        if not profiled:
            run.advance()
            return found, []
        with torch.profiler.profile(activities=torch.profiler.supported_activities()) as profile:
            run.advance()
        names = {event.key for event in profile.key_averages()}
        return found, sorted(name for name in names if any(part in name.lower() for part in _ATTENTION))[:12]
    finally:
        run.close()


def _difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return the relative difference ‖x - y‖ / ‖y‖ over all tensors, NaN if their names differ."""
    if one.keys() != other.keys():
        return math.nan
    square = sum(float((one[name].double() - other[name].double()).square().sum()) for name in one)
    return math.sqrt(square / sum(float(value.double().square().sum()) for value in other.values()))


def main(folder: str, device: str) -> None:
    """Compute the float32 gradient of the saved batch, and write it to the folder."""
    environment.prepare()
    from safetensors.torch import save_file

    work = Workload(Path(folder), device)
    found, _ = gradient(work, "float32", 0)
    whole = {name: value.contiguous() for name, value in found.items()}
    save_file(whole, work.folder / "gradient.safetensors")
    environment.leave(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
