"""Test all-reduce with NCCL over all GPUs of this machine, or with gloo over two processes.

The test's processes also execute this module.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from isolaw import children
from isolaw.backends.real import environment
from isolaw.backends.real.gpu_selftest.record import Record
from isolaw.backends.real.gpu_selftest.workload import Workload
from isolaw.engine_connection import GROUP

_SIZES = {"cuda": (2**10, 2**20, 2**26, 2**29), "cpu": (2**10, 2**20, 2**24)}  # bytes
_REPEATS = 5
_LIMIT_S = 100.0
_WAITING_S = 60.0


def run(work: Workload, record: Record) -> None:
    """Start one process for each GPU, or two processes on the CPU, and record their results."""
    count = environment.gpus() if work.on_gpu else 2
    out = work.folder / "all-reduce.json"
    command = [sys.executable, "-P", "-m", __name__, str(out), work.device]
    group = json.dumps({"file": str(work.folder / "all-reduce.store")})
    until = time.monotonic() + _LIMIT_S
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for place in map(str, range(count)):
            own = {"RANK": place, "LOCAL_RANK": place, "WORLD_SIZE": str(count), GROUP: group}
            ranks.append(children.start(command, stdin=subprocess.DEVNULL, env={**os.environ, **own}))
        for rank in ranks:
            if code := rank.wait(max(until - time.monotonic(), 0.0)):
                raise subprocess.CalledProcessError(code, command)
    finally:
        for rank in ranks:
            children.end(rank)
    rows = json.loads(out.read_text(encoding="utf-8"))
    record.measure(processes=count, backend="nccl" if work.on_gpu else "gloo", all_reduce=rows)
    wrong = sum(row["wrong"] for row in rows)
    record.check(f"wrong sums of an all-reduce over {count} processes", wrong, "0", wrong == 0)


def main(out: str, device: str) -> None:
    """Reduce arrays that differ between ranks, and compare the result with the known sum in each process."""
    import torch
    import torch.distributed as dist

    from isolaw.backends.real.train import process_group

    rank = int(os.environ["LOCAL_RANK"])
    place, wait = torch.device("cpu"), torch.cpu.synchronize
    if device == "cuda":
        place, wait = torch.device("cuda", rank), torch.cuda.synchronize
        torch.cuda.set_device(place)
    # The time limit matters if another process has ended.
    process_group.start(_WAITING_S / 3600, "nccl" if device == "cuda" else "gloo")
    world = dist.get_world_size()
    rows = []
    for size in _SIZES[device]:
        pattern = torch.arange(size // 4, device=place).remainder(251).float()  # sums are exact
        seconds = []
        for _ in range(_REPEATS):
            values = pattern * (dist.get_rank() + 1)
            dist.barrier()
            wait()
            began = time.perf_counter()
            dist.all_reduce(values)
            wait()
            seconds.append(time.perf_counter() - began)
        wrong = (values != pattern * (world * (world + 1) // 2)).sum()
        dist.all_reduce(wrong)
        # Bus bandwidth as in nccl-tests: the traffic per link, comparable for any number of processes.
        traffic = 2 * (world - 1) / world * size / 1e9 / min(seconds)
        bandwidth = round(traffic, 3) if world > 1 else None
        rows.append({"bytes": size, "seconds": min(seconds), "bus_gb_per_s": bandwidth, "wrong": int(wrong)})
    if dist.get_rank() == 0:
        Path(out).write_text(json.dumps(rows), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
