"""Run one rank of a multi-process run: ``python -m isolaw.backends.real.train.ranks ADDRESS PORT``.

`isolaw.executors.launcher` starts this process. It connects to the engine (`isolaw.children`),
receives the job, and executes `loop.train`. The engine decides at which checkpoints a state is written, and
the first process forwards this decision to the others.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

from isolaw.backends.real import environment
from isolaw.backends.real.options import RealOptions, samplers_of
from isolaw.children import EngineConnection
from isolaw.config import RunSpec
from isolaw.documents.validation import parse_section
from isolaw.errors import RunError
from isolaw.machine import visible_gpus


def _main(address: str, port: int) -> None:
    """Receive the job from the engine at ``address`` and ``port``, and execute it as one of its ranks."""
    environment.prepare()
    is_first = os.environ["RANK"] == "0"
    engine = EngineConnection(address, port)
    job = engine.receive()
    spec = parse_section(RunSpec, job["spec"], source="the job")
    state = Path(job["state"]) if job["state"] else None
    try:
        _choose_gpus(RealOptions.of(spec).streaming)
        with environment.importing():
            from isolaw.backends.real.train import loop, process_group

        for checkpoint in loop.train(spec, state, engine.stopping.is_set):
            if is_first:
                engine.send(asdict(replace(checkpoint, save=None)))
            # Every process follows the message to the first one.
            while (message := process_group.exchange(engine.receive() if is_first else None)[0]).get("save"):
                assert checkpoint.save is not None
                checkpoint.save(Path(message["save"]))
                if is_first:
                    engine.send({})
        engine.end({"done": True})
    except RunError as error:
        # Any process can detect the fault; the others only notice that this process has ended.
        engine.end({"failed": str(error)})
        raise
    environment.leave(0)


def _choose_gpus(sampler_count: int) -> None:
    """Set CUDA_VISIBLE_DEVICES to the GPU of this process and the GPUs of its samplers, if it has any.

    Call this before torch counts the GPUs. The first GPUs of a machine belong to its trainer processes, and
    the next GPUs to its samplers. vLLM features that need the GPUs of peers are disabled.
    """
    if not environment.gpus():
        return
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    rank, world, local_rank, local_world = (int(os.environ[name]) for name in names)
    sampler_offset = local_world - samplers_of(rank - local_rank, world, sampler_count).start
    devices = [local_rank, *(sampler_offset + sampler for sampler in samplers_of(rank, world, sampler_count))]
    visible = visible_gpus()
    if devices[-1] >= len(visible):
        process = "process" if local_rank >= len(visible) else "a sampler of process"
        listed = f"{', '.join(visible)} (CUDA_VISIBLE_DEVICES or nvidia-smi)"
        raise RunError(f"{process} {local_rank} of this machine has no separate GPU; visible GPUs: {listed}")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible[device] for device in devices)
    os.environ["LOCAL_RANK"] = "0"
    for name in ("VLLM_ALLREDUCE_USE_SYMM_MEM", "VLLM_ALLREDUCE_USE_FLASHINFER"):
        os.environ.setdefault(name, "0")
    environment.gpus.cache_clear()


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
