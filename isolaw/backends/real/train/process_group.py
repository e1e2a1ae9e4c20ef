"""The process group of a run: objects over gloo, tensors over NCCL, with a long time limit."""

from __future__ import annotations

import os
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

from isolaw.backends.real import environment


def start(timeout_hours: float = 4.0) -> None:
    """Start the default group, once per process; without torchrun it has one process.

    Ranks wait for each other while one of them generates, scores, or writes the state, which takes longer
    than NCCL's 10 minutes and gloo's 30. DeepSpeed and vLLM create further groups with torch's default
    timeouts, so these change too.
    """
    alone = "RANK" not in os.environ  # which torchrun sets
    if alone:
        os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed reads it
    if dist.is_initialized():  # by vLLM or the previous run
        return
    timeout = timedelta(hours=timeout_hours)
    distributed_c10d.default_pg_timeout = timeout
    distributed_c10d.default_pg_nccl_timeout = timeout
    backend = "cpu:gloo,cuda:nccl" if environment.gpus() else "gloo"
    if alone:  # a group of this process: no port, nothing in the environment of its children
        dist.init_process_group(backend, timeout=timeout, store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group(backend, timeout=timeout)
