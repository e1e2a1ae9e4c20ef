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

_ANSWER_S = 30.0  # time limit for nvidia-smi in seconds

# For example, cu130, nvidia-nccl-cu13==2.29.7 or cuda-toolkit[cublas]==13.0.3.
_CUDA = re.compile(r"\bcu(\d\d)\d?\b|^cuda-toolkit\b[^=;]*==\s*(\d+)")


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
    def on_gpu(self) -> bool:
        """True if isolaw can use a GPU."""
        return bool(self.gpus) and self.visible_gpus > 0

    @property
    def takes_pinned_set(self) -> bool:
        """True if isolaw's pinned CPU packages support this machine."""
        return self.system == "Linux" and self.machine == "x86_64" and "AVX2" in self.vector

    @property
    def build_of_torch(self) -> str:
        """The build of torch, such as ``cpu`` or ``cu130``, from its version or requirements.

        It is ``""`` if torch is not installed.
        """
        if "torch" not in self.packages:
            return ""
        local = self.packages["torch"].partition("+")[2]
        wanted = [Requirement(text).name for text in self.requires.get("torch", ())]
        return local or ("cuda" if any(n.startswith(("nvidia-", "cuda-")) for n in wanted) else "cpu")

    @property
    def cuda_of_torch(self) -> int:
        """The major version of CUDA that torch is built for, or 0 if it is unknown."""
        named = [self.build_of_torch, *self.requires.get("torch", ())]
        matches = [_CUDA.search(text) for text in named]
        return next((int(match[1] or match[2]) for match in matches if match), 0)


def examine(checked: Iterable[str]) -> Machine:
    """Return the facts about this machine, with the requirements of the packages in ``checked``."""
    packages: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if distribution.name:  # an interrupted pip leaves packages without a name
            packages.setdefault(str(canonicalize_name(distribution.name)), distribution.version)
    return Machine(
        python=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        vector=_vector(),
        memory_bytes=machine_memory(),
        free_disk_bytes=shutil.disk_usage(".").free,
        gpus=_gpus(),
        visible_gpus=len(visible_gpus()),
        libnuma=_loads("libnuma.so.1"),
        compiler=any(map(shutil.which, ("cc", "gcc", "clang"))),
        header=Path(sysconfig.get_path("include"), "Python.h").is_file(),
        packages=packages,
        requires={
            name: tuple(importlib.metadata.requires(name) or ()) for name in checked if name in packages
        },
    )


def _vector() -> tuple[str, ...]:
    lines = _text("/proc/cpuinfo").splitlines()
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return tuple(name for flag, name in (("avx2", "AVX2"), ("avx512f", "AVX512")) if flag in flags)


def machine_memory() -> int:
    """Return the machine's memory in bytes, or the limit of its control group if this is smaller."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _text("/sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def _text(path: str) -> str:
    """Return the content of a system file, or "" if it does not exist."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="utf-8")
    return ""


def _gpus() -> tuple[_Gpu, ...]:
    listed = nvidia_smi("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    rows = [[part.strip() for part in line.rsplit(",", 2)] for line in listed]
    return tuple(
        _Gpu(row[0], int(row[1]) * 2**20 if row[1].isdigit() else 0, row[2]) for row in rows if len(row) == 3
    )


def visible_gpus() -> list[str]:
    """Return the indices or UUIDs of the GPUs that this process can use.

    For a partitioned GPU, these are the UUIDs of its MIG devices.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() not in ("", "-1")]
    instances: dict[str, list[str]] = {}
    for line in nvidia_smi("-L"):
        if gpu := re.match(r"GPU (\d+): ", line):
            instances[gpu[1]] = []
        elif instances and (part := re.search(r"\(UUID: (MIG-[^)]+)\)", line)):
            instances[list(instances)[-1]].append(part[1])
    return [name for gpu, parts in instances.items() for name in parts or [gpu]]


def nvidia_smi(*options: str) -> list[str]:
    """Return the lines that nvidia-smi prints, or an empty list if it is missing or does not answer."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", *options]
    try:  # nvidia-smi can hang in the driver, where even SIGKILL does not end it
        done = children.run(command, _ANSWER_S, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return []
    except subprocess.TimeoutExpired:
        logging.getLogger(__name__).warning(
            f"nvidia-smi has not answered for {_ANSWER_S:.0f} s; isolaw assumes that there is no GPU"
        )
        return []
    return done.stdout.splitlines()


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


# Machines by their GPUs

# The memory of each GPU in MiB, as nvidia-smi shows it in documents of NVIDIA and of cloud providers.
_MIB = {
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
# By a part of the name that nvidia-smi prints, or of a name of `_MIB`; the first match counts.
_SPEEDS = {
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
    speeds = (peaks for card, peaks in _SPEEDS.items() if re.search(rf"\b{card}\b", name, re.IGNORECASE))
    return next((CardSpeed(tflops * 1e12, tb * 1e12) for tflops, tb in speeds), None)


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
    free = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]+)?)g(?:i?b)?", name)
    mib = float(free[1]) * 2**10 if free else _MIB.get(name, 0)
    if not mib or not re.fullmatch(r"[1-9][0-9]{0,3}|", count):
        accepted = f"a name, or a memory in GiB, e.g. 80g, and :COUNT; names are {', '.join(_MIB)}"
        close = nearest(name, _MIB) if name not in _MIB else ""
        raise SpecError([Issue("--machine", found=text, accepted=accepted, nearest=close)])
    return Cards(int(count or 1), int(mib * 2**20), "" if free else name)
