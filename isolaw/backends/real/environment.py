"""What must be set before torch is imported, and which device there is. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator

from isolaw.errors import RunError

# vLLM without a GPU: one process, one thread (spinning OpenMP threads on a shared machine are many times
# slower than one), no compilation. DeepSpeed: gloo instead of its own shared-memory operator.
_CPU = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "DS_ACCELERATOR": "cpu",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
# Of vLLM on GPUs. Runner V1, the default of 0.24 and 0.28 for most models, draws seeded requests one by one.
# Warnings are shown; without a GPU there are many that mean nothing.
_GPU = {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
_ALWAYS = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # In-process vLLM: weights are handed over without a copy through another process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
_DISTRIBUTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@functools.cache
def choose_gpus(processes: int) -> None:
    """Give a worker of the sweep GPUs of its own, ``processes`` of them by its place, before torch looks."""
    place = os.environ.get("ISOLAW_WORKER")
    if gpus() and place is not None and "torch" not in sys.modules:
        there, first = visible(), int(place) * processes
        own = there[first : first + processes]
        if not own:
            most = len(there) // processes
            raise RunError(f"worker {place} has none of the {len(there)} GPUs; executor.jobs: at most {most}")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        gpus.cache_clear()


def visible() -> list[str]:
    """Return the names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them.

    Those are numbers or UUIDs; of a GPU that is cut into MIG devices the UUIDs of these.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return list(_listed())
    return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]


@functools.cache
def gpus() -> int:
    """Return how many NVIDIA GPUs this process may use, without importing torch."""
    return len(visible())


def _listed() -> tuple[str, ...]:
    """Return the GPUs of this machine."""
    try:
        told = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found: dict[str, list[str]] = {}
    for line in told.stdout.splitlines():
        if gpu := re.match(r"GPU (\d+): ", line):
            found[gpu[1]] = []
        elif found and (part := re.search(r"\(UUID: (MIG-[^)]+)\)", line)):
            found[list(found)[-1]].append(part[1])
    return tuple(name for gpu, parts in found.items() for name in parts or [gpu])


@functools.cache
def gpu_memory() -> int:
    """Return the bytes of the smallest GPU that this process may use, as nvidia-smi has it, or 0."""
    if _memory is not None:
        return _memory
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    rows = [[part.strip() for part in line.split(",")] for line in listed.stdout.splitlines()]
    found = [row for row in rows if len(row) == 3 and row[2].isdigit()]
    mine = [row for row in found if any(row[0] == name or row[1].startswith(name) for name in visible())]
    return min((int(row[2]) * 2**20 for row in mine or found), default=0)


def cores() -> int:
    """Return how many cores this machine has."""
    return _cores or os.cpu_count() or 1


# Of the machines that runs are planned for, where these are others.
_cores = 0
_memory: int | None = None


@contextlib.contextmanager
def on_machines(cpus: int, gpu_count: int, gpu_bytes: int | None = None) -> Iterator[None]:
    """While entered, `cores`, `gpus` and `gpu_memory` are those of other machines.

    A login node plans for GPU nodes: the memory of their GPUs is not known unless it is told, here or by
    whoever has entered before.
    """
    global _cores, _memory
    before, kept = os.environ.get("CUDA_VISIBLE_DEVICES"), (_cores, _memory)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(gpu_count)))
    _cores, _memory = cpus, (_memory or 0) if gpu_bytes is None else gpu_bytes
    gpus.cache_clear()
    gpu_memory.cache_clear()
    try:
        yield
    finally:
        _cores, _memory = kept
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        gpus.cache_clear()
        gpu_memory.cache_clear()


def prepare() -> None:
    """Set what torch, vLLM and DeepSpeed read at import; what the user has set stays."""
    for name, value in {**_ALWAYS, **(_GPU if gpus() else _CPU)}.items():
        os.environ.setdefault(name, value)
    if not gpus() and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@contextlib.contextmanager
def single_process() -> Iterator[None]:
    """While entered, the environment says nothing of torchrun: a library inside one rank starts alone."""
    names = [n for n in os.environ if n in _DISTRIBUTED or n.startswith("TORCHELASTIC")]
    kept = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        for name in _DISTRIBUTED:  # the library's own
            os.environ.pop(name, None)
        os.environ.update(kept)


def installed(name: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return importlib.util.find_spec(name) is not None


def version(*distributions: str) -> str:
    """Return the version of the first of these distributions that is installed, or ``""``."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""
