"""Check the driver and the libraries, and check that each GPU multiplies matrices correctly."""

from __future__ import annotations

import platform
import time
from typing import Any

from isolaw import doctor
from isolaw.backends.real.gpu_selftest.record import Record
from isolaw.backends.real.gpu_selftest.workload import Workload

_SIDE = {"cuda": 8192, "cpu": 256}
# Accepted error of a product of bfloat16 matrices summed in float32, compared with float64.
_ROUNDING = 2.0**-8


def run(work: Workload, record: Record) -> None:
    """Import the libraries, multiply matrices on each device, and record the results."""
    machine = doctor.examine()
    findings = doctor.diagnose(machine) + doctor.try_imports(machine)
    faults = [f"{finding.what} (mend: {finding.mend})" for finding in findings if finding.fault]
    record.check("faults that isolaw doctor finds", faults or "none", "none", not faults)

    import torch

    record.measure(
        python=platform.python_version(),
        cuda=torch.version.cuda,
        cudnn=torch.backends.cudnn.version() if work.on_gpu else None,
        nccl=".".join(map(str, torch.cuda.nccl.version())) if work.on_gpu else None,
    )
    if not work.on_gpu:
        error, _ = _product(torch, torch.device("cpu"))
        record.at_most("error of a bfloat16 matrix product", error, _ROUNDING)
        return
    count, named = torch.cuda.device_count(), machine.visible_gpus
    record.check("GPUs that torch sees", count, str(named), count == named)
    record.measure(gpus=[_facts(torch, index) for index in range(count)])
    for index in range(count):
        error, tflops = _product(torch, torch.device("cuda", index))
        record.at_most(f"GPU {index}: error of a bfloat16 matrix product", error, _ROUNDING)
        record.measure(**{f"gpu_{index}_matrix_tflops": tflops})


def _facts(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    others = [i for i in range(torch.cuda.device_count()) if i != index]
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "memory_gib": round(total / 2**30, 2),
        "free_gib": round(free / 2**30, 2),
        "bfloat16": torch.cuda.is_bf16_supported(),
        "reaches": [i for i in others if torch.cuda.can_device_access_peer(index, i)],
    }


def _product(torch: Any, device: Any) -> tuple[float, float | None]:
    """Return the maximum error of a matrix product relative to its largest entry, and TFLOP/s on a GPU."""
    side = _SIDE[device.type]
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(side, side, generator=generator, device=device).bfloat16() for _ in range(2))
    rows = slice(0, 64)
    exact = a[rows].double() @ b.double()
    error = float(((a @ b)[rows].double() - exact).abs().max() / exact.abs().max())
    if device.type == "cpu":
        return error, None
    times = []
    for _ in range(10):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        a @ b
        torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return error, round(2 * side**3 / min(times) / 1e12, 1)
