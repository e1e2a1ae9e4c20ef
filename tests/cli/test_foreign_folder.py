"""Looking at a folder of somebody else executes nothing of it: only a run imports what a file names."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import isolaw
from isolaw.cli import cli
from isolaw.config import SweepSpec
from isolaw.store import SweepStore

ROOT = Path(isolaw.__file__).parents[1]
# Modules that files of the folder name, and modules whose names Python or libraries import.
NAMED = ("evilmod", "evilpackage/__init__", "evilpackage/inner", "wandb", "trackio", "rewards")
STANDARD = ("json", "pathlib", "signal", "contextlib")
LIBRARIES = (
    "numpy",
    "pandas",
    "numba",
    "matplotlib",
    "yaml",
    "click",
    "torch",
    "transformers",
    "math_verify",
)
SITE = ("sitecustomize", "usercustomize", "conftest", "readline")
MODULE = "import os\nopen(os.environ['EXECUTED'], 'a').write(__name__ + '\\n')\ndef f(*_): return 1.0\n"
REAL = """
[sweep]
backend = "real"
compute = 1_000_000
[real]
model = "model"
reward = ["evilmod:f", "evilpackage.inner:f"]
rollout = "evilmod:f"
[problems]
set = "problems"
[tracking]
to = ["wandb", "tensorboard"]
"""
BANDIT = """
[sweep]
compute = 20_000
seeds = 2
[grid]
problems_per_batch = [16]
rollouts_per_problem = [4, 8, 16]
[problems]
n_train = 64
n_validation = 50
[evaluation]
points = 5
[executor]
kind = "inline"
"""
# Command lines of each command; {run} is a run of the sweep in runs/.
LOOKS = {
    "answer": ["answer runs --compute 3e4 --draws 0", "answer log"],
    "read": ["read runs", "read log", "read . --verbose", "read evilmod.py"],
    "fit": ["fit runs --draws 0 --out law.json", "fit log", "fit evilmod.py"],
    "predict": ["predict law.json --compute 3e4"],
    "report": ["report runs --draws 0 --out report.html", "report log --out page.html"],
    "sweep": [
        "sweep real.toml --out new --dry-run", "sweep --out named --dry-run",
        "sweep --out named --dry-run --json",
        "sweep replay.toml --out new --dry-run",
        "sweep real.toml --out new --dry-run --set real.reward=rewards:f --set real.modules=.",
        "sweep real.toml --out new --dry-run --set executor.kind=ray",
        "sweep command.toml --out new --dry-run",
    ],
    "status": ["status runs", "status named"],
    "advise": ["advise --compute 1e6 --cost runs", "advise --compute 1e6 --write first"],
    "compare": ["compare runs n=4 n=16 --compute 1e4", "compare log n=4 n=8 --compute 1e4"],
    "problems": [
        "problems --model model --problems problems/train.jsonl --reward evilmod:f --out split --dry-run",
    ],
    "model-size": ["model-size log/rows.csv"],
    "export": ["export runs/{run} --out exported"],
    "doctor": ["doctor", "doctor runs"],
    "demo": ["demo law.json"],
    "run-one": ["run-one runs/{run}"],  # it is done
}  # fmt: skip
DOORS = """
import json, isolaw
from isolaw import IsolawError, Law
doors = {
    "read": ["runs", "log"], "fit": ["log"], "answer": [("runs", 30_000), ("log", 30_000)],
    "status": ["named"],
    "read_cost": ["runs", "log"], "retune": [("log", "reward", "validation")],
    "backtest": [("log", 10)], "to_target": ["log"],
    "compare_shapes": [("log", (8, 4), (8, 8))], "export": [("runs/runs", "exported")],
    "advise": [1e6], "diagnose": [()],
}
for name, calls in doors.items():
    for call in calls:
        try:
            getattr(isolaw, name)(*(call if isinstance(call, tuple) else (call,)))
        except IsolawError:
            pass
law = isolaw.fit("runs", draws=0)
isolaw.answer("runs", 1e5, draws=0).write_page("page.html")
Law.load(law.save("law2.json"))
isolaw.SweepSpec.read("real.toml")
"""
ALL = """
import shlex, sys
from isolaw.cli import run
for line in sys.stdin:
    print("ran", line.strip(), run(shlex.split(line)), flush=True)
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep, and a sweep whose ``sweep.json`` names modules next to it."""
    folder = tmp_path_factory.mktemp("swept")
    (folder / "sweep.toml").write_text(BANDIT)
    isolaw.sweep(folder / "sweep.toml", folder / "runs")
    spec = SweepSpec.parse(isolaw.documents.reading.parse_toml(REAL, "real.toml"))
    store = SweepStore(folder / "named")
    with store.lock():
        store.write_spec(spec.model_copy(update={"real": {**spec.real, "modules": str(folder)}}), REAL)
    return folder


@pytest.fixture
def folder(tmp_path: Path, swept: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files name modules, and the modules; it is the working directory."""
    folder = tmp_path / "theirs"
    shutil.copytree(swept, folder)
    (folder / "evilpackage").mkdir()
    for name in (*NAMED, *STANDARD, *LIBRARIES, *SITE):
        (folder / f"{name}.py").write_text(MODULE)
    named = folder / "named" / "sweep.json"
    named.write_text(named.read_text().replace(str(swept), str(folder)))
    (folder / "real.toml").write_text(REAL)
    (folder / "replay.toml").write_text('[sweep]\nbackend = "replay"\n[replay]\nsource = "log"\n')
    command = '[sweep]\nbackend = "command"\ncompute = 1_000_000\n[command]\nrun = "python evilmod.py"\n'
    (folder / "command.toml").write_text(command)
    (folder / "matplotlibrc").write_text("backend: module://evilmod\n")
    for place in ("model", "problems", "log"):
        (folder / place).mkdir()
    config = {"auto_map": {"AutoConfig": "evilmod.f", "AutoTokenizer": ["evilmod.f", None]}}
    for name in ("model/config.json", "model/tokenizer_config.json"):
        (folder / name).write_text(json.dumps({**config, "architectures": ["EvilForCausalLM"]}))
    for part in ("train", "validation"):
        row = {"prompt": f"1+1={part}", "answer": "2"}
        (folder / "problems" / f"{part}.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "log" / "config.yaml").write_text("a: !!python/name:evilmod.f\nreward: evilmod:f\n")
    (folder / "log" / "rows.csv").write_text("step,n,reward\n1,4,0.1\n2,4,0.2\n")
    (folder / "log" / "isolaw.toml").write_text('[columns]\nstep = "evilmod:f"\n')
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EXECUTED", str(tmp_path / "executed"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return folder


def executed(tmp_path: Path) -> list[str]:
    file = tmp_path / "executed"
    return file.read_text().split() if file.exists() else []


def python(program: str | Path, *words: str, **options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *words], text=True, capture_output=True, check=False, **options)


@pytest.mark.slow
def test_every_command_looks_without_executing(folder: Path, commands: Path, tmp_path: Path) -> None:
    assert LOOKS.keys() == cli.commands.keys()  # a new command needs a line
    (run, *_) = sorted(os.listdir("runs/runs"))
    lines = [line.format(run=run) for lines in LOOKS.values() for line in lines]
    done = python(commands / "python", "-P", "-c", ALL, input="\n".join(lines))
    assert executed(tmp_path) == []
    assert done.stdout.count("\nran ") + done.stdout.startswith("ran ") == len(lines), done.stderr[-2000:]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_doors_of_python_look_without_executing(folder: Path, commands: Path, tmp_path: Path) -> None:
    done = python(commands / "python", "-P", "-c", DOORS)
    assert done.returncode == 0, done.stderr
    assert executed(tmp_path) == []


BEGINNINGS = {
    "-m": ["-m", "isolaw"], "-P": ["-P", "-m", "isolaw"], "script": [str(ROOT / "scripts" / "isolaw")],
}  # fmt: skip


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(b, marks=[pytest.mark.nightly] * (name == "-P"), id=name)
        for name, b in BEGINNINGS.items()
    ],
)
def test_files_of_the_working_directory_shadow_no_module(
    begin: list[str], folder: Path, tmp_path: Path
) -> None:
    if begin[0] == "-m":  # Python imports these for the package itself, before isolaw can remove the folder
        for name in STANDARD:
            Path(f"{name}.py").unlink()
    done = python(sys.executable, *begin, "sweep", "real.toml", "--out", "new", "--dry-run")
    assert "real.model" in done.stderr, done.stderr  # it has looked
    assert executed(tmp_path) == []
