"""Facts about this machine, gathered without importing anything heavy.

Versions and requirements come from the metadata of installed packages, the processor from ``/proc``, GPUs
from ``nvidia-smi``.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from isolaw.backends.real import environment

# cu130, nvidia-nccl-cu13==2.29.7, cuda-toolkit[cublas]==13.0.3
_CUDA = re.compile(r"\bcu(\d\d)\d?\b|^cuda-toolkit\b[^=;]*==\s*(\d+)")


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver lists it."""

    name: str
    memory_bytes: int
    driver: str


@dataclass(frozen=True)
class Machine:
    """What was found.

    Attributes
    ----------
    python, system, machine
        versions and names, as `platform` has them.
    cores, vector
        processors that this process may use; which of AVX2 and AVX512 they have.
    memory_bytes, free_disk_bytes
        what this process may use; what is free where it was started.
    gpus, visible_gpus
        all that ``nvidia-smi`` lists; how many CUDA_VISIBLE_DEVICES leaves or, if it is wrong, claims.
    libnuma, compiler
        whether ``libnuma.so.1`` can be loaded, and whether there is a C compiler.
    packages
        versions of what is installed, by normalised name.
    requires
        requirements, as metadata has them, of those that are checked.
    """

    python: str
    system: str
    machine: str
    cores: int
    vector: tuple[str, ...]
    memory_bytes: int
    free_disk_bytes: int
    gpus: tuple[Gpu, ...] = ()
    visible_gpus: int = 0
    libnuma: bool = True
    compiler: bool = True
    packages: Mapping[str, str] = field(default_factory=dict)
    requires: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU to use."""
        return bool(self.gpus) and self.visible_gpus > 0

    @property
    def takes_pinned_set(self) -> bool:
        """Whether the pinned CPU set is for this machine."""
        return self.system == "Linux" and self.machine == "x86_64" and "AVX2" in self.vector

    @property
    def build_of_torch(self) -> str:
        """``cpu``, ``cu130``, …, or ``""`` without torch: the version says it, or what the build requires."""
        if "torch" not in self.packages:
            return ""
        local = self.packages["torch"].partition("+")[2]
        wanted = [Requirement(text).name for text in self.requires.get("torch", ())]
        return local or ("cuda" if any(n.startswith(("nvidia-", "cuda-")) for n in wanted) else "cpu")

    @property
    def cuda_of_torch(self) -> int:
        """The major version of CUDA that torch is built for; 0 where that is not known."""
        named = [self.build_of_torch, *self.requires.get("torch", ())]
        found = [_CUDA.search(text) for text in named]
        return next((int(match[1] or match[2]) for match in found if match), 0)


def examine(checked: Iterable[str]) -> Machine:
    """Return the facts of this machine, and what the packages ``checked`` require; imports none of them."""
    packages: dict[str, str] = {}
    for found in importlib.metadata.distributions():
        if found.name:  # not so the leftovers of an interrupted pip
            packages.setdefault(str(canonicalize_name(found.name)), found.version)
    return Machine(
        python=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        vector=_vector(),
        memory_bytes=_memory(),
        free_disk_bytes=shutil.disk_usage(".").free,
        gpus=_gpus(),
        visible_gpus=environment.gpus(),
        libnuma=_loads("libnuma.so.1"),
        compiler=any(map(shutil.which, ("cc", "gcc", "clang"))),
        packages=packages,
        requires={
            name: tuple(importlib.metadata.requires(name) or ()) for name in checked if name in packages
        },
    )


def _vector() -> tuple[str, ...]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ()
    flags = next((line.split() for line in text.splitlines() if line.startswith("flags")), [])
    return tuple(name for flag, name in (("avx2", "AVX2"), ("avx512f", "AVX512")) if flag in flags)


def _memory() -> int:
    """Bytes of memory: the machine's, or its control group's where that has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total


def _gpus() -> tuple[Gpu, ...]:
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    rows = [[part.strip() for part in line.rsplit(",", 2)] for line in done.stdout.splitlines()]
    return tuple(
        Gpu(row[0], int(row[1]) * 2**20 if row[1].isdigit() else 0, row[2]) for row in rows if len(row) == 3
    )


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
