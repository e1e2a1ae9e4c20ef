"""Describe this machine's GPUs, and set the environment variables that torch, vLLM and DeepSpeed read.

Importing this module loads none of these libraries.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import NoReturn

from isolaw.children import GROUP, SECRET
from isolaw.machine import machine_memory, nvidia_smi, visible_gpus

# Without a GPU, vLLM gets one process, one thread and no compilation: spinning OpenMP threads on a shared
# machine are many times slower than one thread. DeepSpeed uses gloo instead of its shared-memory operator.
_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "DS_ACCELERATOR": "cpu",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
# vLLM's runner V1, the default of 0.24 and 0.28 for most models, draws seeded requests one by one. The log
# level differs from `_CPU` because vLLM prints many irrelevant warnings without a GPU. Batches of varying
# lengths fragment memory if segments have a fixed size; vLLM disables expandable segments for its own pool.
_GPU = {
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}
_ALWAYS = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # so that weights are not copied to another process
    "TOKENIZERS_PARALLELISM": "false",
}
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@functools.cache
def gpus() -> int:
    """Return the number of NVIDIA GPUs visible to this process, without importing torch."""
    return len(visible_gpus())


@functools.cache
def gpu_memory() -> int:
    """Return the memory in bytes of the smallest GPU visible to this process; 0 without a GPU.

    The number is from nvidia-smi, or from `on_machines`.
    """
    if _memory is not None:
        return _memory
    return min((int(row[2]) * 2**20 for row in _listed_gpus() if row[2].isdigit()), default=0)


@functools.cache
def gpu_name() -> str:
    """Return the name of the GPUs visible to this process; "" if it is unknown, or if there are several."""
    if _memory is not None:
        return _name
    names = {row[3] for row in _listed_gpus()}
    return names.pop() if len(names) == 1 else ""


@functools.cache
def _listed_gpus() -> list[list[str]]:
    """Return index, UUID, MiB and name of each visible GPU, or of all GPUs if no visible GPU is found."""
    lines = nvidia_smi("--query-gpu=index,uuid,memory.total,name", "--format=csv,noheader,nounits")
    rows = [[field.strip() for field in line.split(",", 3)] for line in lines]
    gpus_listed, visible = [row for row in rows if len(row) == 4], visible_gpus()
    return [
        row for row in gpus_listed if any(row[0] == name or row[1].startswith(name) for name in visible)
    ] or gpus_listed


@functools.cache
def host_memory() -> int:
    """Return the memory in bytes of this machine or its control group; 0 if planning for other machines."""
    return 0 if _cores else machine_memory()


def cores() -> int:
    """Return the number of cores of this machine, or of the machines that `on_machines` describes."""
    return _cores or os.cpu_count() or 1


# Cores, GPU memory and GPU name of the machine that runs are planned for; 0 and None mean this machine.
_cores = 0
_memory: int | None = None
_name = ""


@contextlib.contextmanager
def on_machines(cpus: int, gpu_count: int, gpu_bytes: int | None = None, gpu: str = "") -> Iterator[None]:
    """Make `cores`, `gpus`, `gpu_memory` and `gpu_name` describe other machines inside a ``with`` block.

    A login node uses this to plan for GPU nodes. The login node knows the memory and name of these GPUs only
    from ``gpu_bytes`` and ``gpu``, which this call or an enclosing call can give. The nodes' host memory is
    unknown.
    """
    global _cores, _memory, _name
    before, visible = (_cores, _memory, _name), os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(gpu_count)))
    _cores, _memory, _name = cpus, (_memory or 0) if gpu_bytes is None else gpu_bytes, gpu or _name
    _clear_caches()
    try:
        yield
    finally:
        _cores, _memory, _name = before
        del os.environ["CUDA_VISIBLE_DEVICES"]
        os.environ |= {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        _clear_caches()


def _clear_caches() -> None:
    """Clear the cached GPUs and memory sizes, for use after the visible GPUs have changed."""
    for cached_function in (gpus, gpu_memory, gpu_name, host_memory, _listed_gpus):
        cached_function.cache_clear()


def prepare() -> None:
    """Set the variables that torch, vLLM and DeepSpeed read at import, unless the user has set them."""
    for name, value in {**_ALWAYS, **(_GPU if gpus() else _CPU)}.items():
        os.environ.setdefault(name, value)
    if not gpus() and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


_holds_model = False  # whether this process has loaded a model


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Call `prepare`, disable garbage collection inside the block, and freeze the imported objects.

    Importing torch, transformers and vLLM creates millions of objects, none of them garbage. vLLM collects
    garbage several times while it starts. Scanning these objects would take a third of the time for the
    imports and the start. Frozen objects are excluded from later collections. After `stop_freezing`, objects
    are no longer frozen.
    """
    prepare()
    module_count, was_enabled = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        if len(sys.modules) > module_count and not _holds_model:
            gc.freeze()


def stop_freezing() -> None:
    """Stop later imports from freezing objects, so that the weights of a model can be freed.

    The parts of a trainer refer to each other, and so do the parts of vLLM. Only the garbage collector can
    therefore free them.
    """
    global _holds_model
    _holds_model = True


def unranked() -> dict[str, str]:
    """Return the environment variables of this process, except variables that identify a rank."""
    excluded = (*_RANK_VARIABLES, GROUP, SECRET)
    return {n: v for n, v in os.environ.items() if n not in excluded and not n.startswith("TORCHELASTIC")}


@contextlib.contextmanager
def single_process() -> Iterator[None]:
    """Unset a rank's variables inside the block, so that a library in one rank starts as a single process."""
    variables = {name: os.environ.pop(name) for name in set(os.environ) - set(unranked())}
    try:
        yield
    finally:
        for name in _RANK_VARIABLES:  # the library can have set it
            os.environ.pop(name, None)
        os.environ.update(variables)


def leave(status: int) -> NoReturn:
    """End this process immediately, because the destructors of torch, DeepSpeed and vLLM conflict."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def installed(name: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return importlib.util.find_spec(name) is not None
