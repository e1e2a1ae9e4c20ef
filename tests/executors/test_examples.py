"""The files that one copies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import arithmetic
import pytest

from isolaw import SweepSpec, engine

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "cluster"
SWEEPS = sorted(FOLDER.glob("*.toml"))
SCRIPTS = sorted([*FOLDER.glob("*.sh"), ROOT / "scripts" / "first-gpu-session.sh"])


def test_they_are_there() -> None:
    assert len(SWEEPS) >= 4
    assert len(SCRIPTS) >= 2


@pytest.mark.parametrize("file", SWEEPS, ids=lambda path: path.stem)
def test_sweeps_lack_at_most_the_model(file: Path, tmp_path: Path) -> None:
    """Also on a machine that has none of the GPUs that they ask for."""
    arithmetic.write(tmp_path / "easy", ["add-100"], n_train=1000, n_validation=300)
    spec = SweepSpec.read(file)
    if spec.sweep.backend == "real":
        spec = SweepSpec.read(file, [f"problems.set={tmp_path / 'easy'}"])
    resolved = engine.resolve_sweep(spec, tmp_path / "out")
    assert resolved.todo
    without = [note for note in resolved.notes if "has no weights here" in note]
    assert len(without) == (spec.sweep.backend == "real")


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_are_bash(file: Path) -> None:
    subprocess.run(["bash", "-n", str(file)], check=True)


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose isolaw writes down how it is called, and whose srun executes its command here."""
    programs = tmp_path / "isolaw" / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text(f'PATH="{programs}:$PATH"\n')
    calls = tmp_path / "calls"
    noting = f"import json, sys\nprint(json.dumps(sys.argv[1:]), file=open({str(calls)!r}, 'a'))\n"
    for name, text in {
        "isolaw": f"#!{sys.executable}\n{noting}",
        "srun": '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nSLURM_NODEID=0 exec "$@"\n',
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    return calls


@pytest.mark.parametrize("kind", ["slurm", "ray"])
@pytest.mark.parametrize(("size", "nodes", "gpus"), [("1", 1, 1), ("8", 1, 8), ("2x8", 2, 8)])
def test_gpu_scripts_check_and_then_sweep(kind: str, size: str, nodes: int, gpus: int, called: Path) -> None:
    """What they call exists, with these options, and asks for these machines."""
    from isolaw.cli import cli

    sweep = str(FOLDER / f"real-{kind}.toml")
    script = FOLDER / f"gpu-{kind}.sh"
    subprocess.run(["bash", str(script), size, sweep, "runs/x"], check=True, env=os.environ)
    doctor, made = (json.loads(line) for line in called.read_text().splitlines())
    for name, *arguments in (doctor, made):
        command = cli.commands[name]
        context = command.make_context(name, arguments)
        if name == "doctor":
            assert context.params["checkup"]
            assert context.params["device"] in (None, "cuda")
            continue
        spec = SweepSpec.read(context.params["file"], context.params["settings"])
        assert (spec.executor.nodes, spec.executor.gpus) == (nodes, gpus)
        assert spec.real["processes"] == nodes * gpus
        assert context.params["executor"] == kind
    assert (doctor[0], made[0]) == ("doctor", "sweep")


def test_a_gpu_script_without_a_size_says_what_it_takes(called: Path) -> None:
    done = subprocess.run(["bash", str(FOLDER / "gpu-slurm.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "1|8|2x8" in done.stderr
