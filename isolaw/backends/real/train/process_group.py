"""The process group of a run: objects travel over gloo, tensors over NCCL, and no rank gives up early."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

from isolaw.backends.real import environment

TIMEOUT_HOURS = 4.0


def start(timeout_hours: float = TIMEOUT_HOURS) -> None:
    """Start the default group, of one process unless torchrun says otherwise; once per process.

    Ranks wait for each other while one of them still generates, scores, or writes the state, which takes
    longer than the 10 minutes that NCCL and the 30 that gloo grant. DeepSpeed and vLLM create further groups
    and name no timeout, so torch's defaults change too.
    """
    alone = "RANK" not in os.environ  # which torchrun sets
    if alone:
        os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed asks for it
    if dist.is_initialized():  # by vLLM, or for the previous run
        return
    timeout = timedelta(hours=timeout_hours)
    distributed_c10d.default_pg_timeout = timeout
    distributed_c10d.default_pg_nccl_timeout = timeout
    backend = "cpu:gloo,cuda:nccl" if environment.gpus() else "gloo"
    if alone:  # a group of this process: no port, nothing in the environment of its children
        dist.init_process_group(backend, timeout=timeout, store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group(backend, timeout=timeout)
