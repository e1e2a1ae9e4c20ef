"""The files that one copies."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from isolaw import SweepSpec, engine
from isolaw.backends.real import arithmetic
from isolaw.errors import SpecError

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"
SWEEPS, SCRIPTS = sorted(FOLDER.glob("*.toml")), sorted(FOLDER.glob("*.sh"))


def test_they_are_there() -> None:
    assert len(SWEEPS) >= 4
    assert len(SCRIPTS) >= 2


@pytest.mark.parametrize("file", SWEEPS, ids=lambda path: path.stem)
def test_sweeps_lack_at_most_the_model(file: Path, tmp_path: Path) -> None:
    """Also on a machine that has none of the GPUs that they ask for."""
    arithmetic.write(tmp_path / "easy", ["add-100"], n_train=1000, n_validation=300)
    spec = SweepSpec.read(file)
    if spec.sweep.backend != "real":
        assert engine.plan(spec, tmp_path / "out").todo
        return
    with pytest.raises(SpecError) as raised:
        engine.plan(SweepSpec.read(file, [f"problems.set={tmp_path / 'easy'}"]), tmp_path / "out")
    assert {problem.where for problem in raised.value.problems} == {"real.model"}


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_are_bash(file: Path) -> None:
    subprocess.run(["bash", "-n", str(file)], check=True)
