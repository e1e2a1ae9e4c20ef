"""What is set before torch is imported."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolaw.backends.real import environment
from isolaw.machine import visible_gpus


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A machine whose nvidia-smi lists four GPUs, and an environment where nothing is set yet."""
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\nfor i in 0 1 2 3; do echo "GPU $i: A (UUID: GPU-$i)"; done\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ours = (*environment._CPU, *environment._GPU, *environment._ALWAYS, *environment._RANK_VARIABLES)
    for name in (*ours, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")  # so that it is put back, whatever is set meanwhile
        monkeypatch.delenv(name)
    environment.gpus.cache_clear()
    yield program
    environment.gpus.cache_clear()


def seen() -> tuple[int, list[str]]:
    environment.gpus.cache_clear()
    return environment.gpus(), visible_gpus()


def test_how_many_gpus(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen() == (4, ["0", "1", "2", "3"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert seen() == (2, ["2", "5"])
    for nothing in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        assert seen()[0] == 0
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    machine.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    assert seen() == (0, [])
    monkeypatch.setenv("PATH", str(machine.parent / "nowhere"))
    assert seen() == (0, [])


def test_names_of_gpus(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """UUIDs and MIG devices as well as numbers."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937, MIG-1f1a4d6e ,-1")
    assert seen() == (2, ["GPU-8932f937", "MIG-1f1a4d6e"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    machine.write_text(
        "#!/bin/sh\necho 'GPU 0: A (UUID: GPU-a)'\n"
        "echo '  MIG 3g.40gb   Device  0: (UUID: MIG-b)'\necho '  MIG 3g.40gb   Device  1: (UUID: MIG-c)'\n"
        "echo 'GPU 1: A (UUID: GPU-d)'\n"
    )
    assert seen() == (3, ["MIG-b", "MIG-c", "1"])


def test_prepare_sets_what_the_user_has_not(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    environment.prepare()
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert "DS_ACCELERATOR" not in os.environ  # with GPUs
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    environment.gpus.cache_clear()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    environment.prepare()
    assert os.environ["DS_ACCELERATOR"] == "cpu"
    assert (os.environ["OMP_NUM_THREADS"], os.environ["VLLM_LOGGING_LEVEL"]) == ("3", "DEBUG")


@pytest.mark.real
@pytest.mark.slow
def test_nothing_heavy_is_imported_and_torch_is_told_when_it_is_there() -> None:
    code = (
        "import sys; from isolaw.backends.real import environment; environment.prepare(); "
        "print({'torch', 'vllm', 'deepspeed', 'transformers'} & set(sys.modules)); "
        "import torch; torch.set_num_threads(2); environment.prepare(); print(torch.get_num_threads())"
    )
    clean = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    clean["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["set()", "1"]


def test_what_is_imported_is_no_garbage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_once.py").write_text("import gc\ncollecting = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(environment, "_holds_model", False)
    counts = [gc.get_freeze_count()]
    for _ in range(2):
        with environment.importing():
            import imported_once
        assert gc.isenabled()
        counts.append(gc.get_freeze_count())
    assert not imported_once.collecting
    assert counts[0] < counts[1] == counts[2]  # frozen where there was something new
    with pytest.raises(ImportError), environment.importing():
        import no_such_package  # noqa: F401
    assert gc.isenabled()


class Weights:
    """As vLLM's and DeepSpeed's parts do, it refers to itself."""

    def __init__(self) -> None:
        self.own = self


def test_weights_are_let_go_though_a_library_was_imported_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_late.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(environment, "_holds_model", False)
    environment.stop_freezing()
    weights = Weights()
    alive = weakref.ref(weights)
    with environment.importing():
        import imported_late  # noqa: F401
    del weights
    gc.collect()
    assert alive() is None


def test_a_library_that_starts_alone_inside_torchrun(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "r"}
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    kept = dict(os.environ)
    with environment.single_process():
        assert not set(before) & set(os.environ)
        os.environ.update(RANK="0", MASTER_ADDR="127.0.0.1")
    assert dict(os.environ) == kept


def test_what_is_installed() -> None:
    assert environment.installed("isolaw")
    assert not environment.installed("no_such_package")


def test_plans_for_other_machines(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login node plans for GPU nodes, and the other way round; afterwards all is as it was."""
    before = (environment.gpus(), environment.cores(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    assert before[0] == 4
    with environment.on_machines(cpus=96, gpu_count=8):
        assert (environment.gpus(), environment.cores()) == (8, 96)
    with environment.on_machines(cpus=3, gpu_count=0):
        assert (environment.gpus(), environment.cores()) == (0, 3)
    assert (environment.gpus(), environment.cores(), os.environ.get("CUDA_VISIBLE_DEVICES")) == before
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    with environment.on_machines(cpus=96, gpu_count=8):
        pass
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2"
