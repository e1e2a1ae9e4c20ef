"""Read the facts about this machine without heavy imports, and describe other machines by their GPUs.

Versions and requirements come from the metadata of installed packages, facts about the processor from
``/proc``, and this machine's GPUs from ``nvidia-smi``. ``h100-80g:8`` means eight H100 GPUs with 80 GB each.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import logging
import os
import platform
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from isolaw import children
from isolaw.errors import Issue, SpecError, nearest

_SMI_S = 30.0  # time limit for nvidia-smi in seconds

# For example, cu130, nvidia-nccl-cu13==2.29.7 or cuda-toolkit[cublas]==13.0.3.
_CUDA_VERSION = re.compile(r"\bcu(\d\d)\d?\b|^cuda-toolkit\b[^=;]*==\s*(\d+)")


@dataclass(frozen=True)
class _Gpu:
    """A GPU of this machine, as nvidia-smi lists it."""

    name: str
    memory_bytes: int
    driver: str


@dataclass(frozen=True)
class Machine:
    """The facts about a machine; cores, memory and disk include only the share that this process can use."""

    python: str  # version; this field and the next two are named as in `platform`
    system: str
    machine: str
    cores: int
    vector: tuple[str, ...]  # AVX2 and AVX512, if the processor has them
    memory_bytes: int
    free_disk_bytes: int
    gpus: tuple[_Gpu, ...] = ()  # all GPUs that nvidia-smi lists
    visible_gpus: int = 0  # number of GPUs (or MIG devices) that this process can use
    libnuma: bool = True  # whether libnuma.so.1 loads
    compiler: bool = True  # whether a C compiler exists
    header: bool = True  # whether Python.h exists, which C extensions include
    packages: Mapping[str, str] = field(default_factory=dict)  # installed versions by normalised name
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # requirements of some packages

    @property
    def has_usable_gpu(self) -> bool:
        """True if isolaw can use a GPU."""
        return bool(self.gpus) and self.visible_gpus > 0

    @property
    def takes_pinned_packages(self) -> bool:
        """True if isolaw's pinned CPU packages support this machine."""
        return self.system == "Linux" and self.machine == "x86_64" and "AVX2" in self.vector

    @property
    def torch_build(self) -> str:
        """The build of torch, such as ``cpu`` or ``cu130``, from its version or requirements.

        It is ``""`` if torch is not installed.
        """
        if "torch" not in self.packages:
            return ""
        build = self.packages["torch"].partition("+")[2]
        required = [Requirement(text).name for text in self.requires.get("torch", ())]
        return build or ("cuda" if any(name.startswith(("nvidia-", "cuda-")) for name in required) else "cpu")

    @property
    def torch_cuda_major(self) -> int:
        """The major version of CUDA that torch is built for, or 0 if it is unknown."""
        texts = [self.torch_build, *self.requires.get("torch", ())]
        matches = [_CUDA_VERSION.search(text) for text in texts]
        return next((int(match[1] or match[2]) for match in matches if match), 0)


def examine(package_names: Iterable[str]) -> Machine:
    """Return the facts about this machine, with the requirements of the packages in ``package_names``."""
    packages: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if distribution.name:  # an interrupted pip leaves packages without a name
            packages.setdefault(str(canonicalize_name(distribution.name)), distribution.version)
    return Machine(
        python=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        vector=_vector_extensions(),
        memory_bytes=machine_memory(),
        free_disk_bytes=shutil.disk_usage(".").free,
        gpus=_gpus(),
        visible_gpus=len(visible_gpus()),
        libnuma=_loads("libnuma.so.1"),
        compiler=any(map(shutil.which, ("cc", "gcc", "clang"))),
        header=Path(sysconfig.get_path("include"), "Python.h").is_file(),
        packages=packages,
        requires={
            name: tuple(importlib.metadata.requires(name) or ()) for name in package_names if name in packages
        },
    )


def _vector_extensions() -> tuple[str, ...]:
    lines = _read_text("/proc/cpuinfo").splitlines()
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return tuple(name for flag, name in (("avx2", "AVX2"), ("avx512f", "AVX512")) if flag in flags)


def machine_memory() -> int:
    """Return the machine's memory in bytes, or the limit of its control group if this is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read_text("/sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def _read_text(path: str) -> str:
    """Return the content of a system file, or "" if it does not exist."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8")
    return ""


def _gpus() -> tuple[_Gpu, ...]:
    lines = nvidia_smi("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    rows = [[field.strip() for field in line.rsplit(",", 2)] for line in lines]
    return tuple(
        _Gpu(row[0], int(row[1]) * 2**20 if row[1].isdigit() else 0, row[2]) for row in rows if len(row) == 3
    )


def visible_gpus() -> list[str]:
    """Return the indices or UUIDs of the GPUs that this process can use.

    For a partitioned GPU, these are the UUIDs of its MIG devices.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    migs_of_gpu: dict[str, list[str]] = {}
    for line in nvidia_smi("-L"):
        if gpu := re.match(r"GPU (\d+): ", line):
            migs_of_gpu[gpu[1]] = []
        elif migs_of_gpu and (mig := re.search(r"\(UUID: (MIG-[^)]+)\)", line)):
            migs_of_gpu[list(migs_of_gpu)[-1]].append(mig[1])
    return [name for gpu, migs in migs_of_gpu.items() for name in migs or [gpu]]


def nvidia_smi(*options: str) -> list[str]:
    """Return the lines that nvidia-smi prints, or an empty list if it is missing or does not answer."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", *options]
    try:  # nvidia-smi can hang in the driver, where even SIGKILL does not end it
        result = children.run(command, _SMI_S, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return []
    except subprocess.TimeoutExpired:
        logging.getLogger(__name__).warning(
            f"nvidia-smi has not answered for {_SMI_S:.0f} s; isolaw assumes that there is no GPU"
        )
        return []
    return result.stdout.splitlines()


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


# Machines by their GPUs

# The memory of each GPU in MiB, as nvidia-smi shows it in documents of NVIDIA and of cloud providers.
_GPU_MIB = {
    "a10g-24g": 23_028,
    "a100-40g": 40_960,
    "a100-80g": 81_920,
    "b200-180g": 183_359,
    "h100-80g": 81_559,
    "h200-141g": 143_771,
    "l4-24g": 23_034,
    "l40s-48g": 46_068,
    "rtx3090-24g": 24_576,
    "rtx4090-24g": 24_564,
}


class CardSpeed(NamedTuple):
    """The peaks of a GPU on its data sheet."""

    flops: float  # dense bfloat16 with float32 accumulation, FLOP/s
    bandwidth: float  # of its memory, bytes/s


# TFLOP/s and TB/s from NVIDIA's data sheets, which print twice the TFLOP/s for most of them, "with sparsity".
# By a part of the name that nvidia-smi prints, or of a name of `_GPU_MIB`; the first match counts.
_GPU_SPEEDS = {
    "B200": (2250.0, 8.0),
    "H200 NVL": (835.5, 4.8),
    "H200": (989.4, 4.8),
    "H100 NVL": (835.5, 3.9),
    "H100 PCIe": (756.5, 2.0),
    "H100": (989.4, 3.35),
    "A100.*80": (312.0, 2.0),
    "A100": (312.0, 1.555),
    "A10G": (70.0, 0.6),
    "L40S": (362.1, 0.864),
    "L4": (121.0, 0.3),
    "RTX ?4090": (165.2, 1.008),
    "RTX ?3090": (71.2, 0.936),
}


def card_speed(name: str) -> CardSpeed | None:
    """Return the peaks of a GPU; None for an unknown card, or for a partition of a card.

    >>> card_speed("NVIDIA H100 80GB HBM3") == card_speed("h100-80g")
    True
    >>> card_speed("NVIDIA H100 PCIe").flops / 1e12, card_speed("NVIDIA H20")
    (756.5, None)
    """
    if re.search(r"\bMIG\b", name):
        return None
    speeds = (peaks for card, peaks in _GPU_SPEEDS.items() if re.search(rf"\b{card}\b", name, re.IGNORECASE))
    return next((CardSpeed(tflops * 1e12, terabytes * 1e12) for tflops, terabytes in speeds), None)


@dataclass(frozen=True)
class Cards:
    """The GPUs of one machine: their number, the memory of each in bytes, and their name if it is known."""

    count: int
    gpu_bytes: int
    name: str = ""


def cards(text: str) -> Cards:
    """Return the GPUs of a machine from ``NAME:COUNT`` (COUNT is 1 by default).

    Raises `SpecError` for any other form.

    >>> cards("h100-80g:8")
    Cards(count=8, gpu_bytes=85520809984, name='h100-80g')
    >>> cards("80g:2").gpu_bytes / 2**30
    80.0
    """
    name, _, count = text.strip().lower().partition(":")
    memory = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]+)?)g(?:i?b)?", name)
    mib = float(memory[1]) * 2**10 if memory else _GPU_MIB.get(name, 0)
    if not mib or not re.fullmatch(r"[1-9][0-9]{0,3}|", count):
        accepted = f"a name, or a memory in GiB, e.g. 80g, and :COUNT; names are {', '.join(_GPU_MIB)}"
        suggestion = nearest(name, _GPU_MIB) if name not in _GPU_MIB else ""
        raise SpecError([Issue("GPUs", found=text, accepted=accepted, nearest=suggestion)])
    return Cards(int(count or 1), int(mib * 2**20), "" if memory else name)
