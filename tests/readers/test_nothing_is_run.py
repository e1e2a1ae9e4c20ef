"""Logs and what lies beside them may hold code in many forms: none of it is run, imported or unpickled."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

# Reads all of a directory, and each file of it, under a hook that ends it at what no reader may do.
PROGRAM = """
import os, sys
from pathlib import Path
import isolaw.readers.read
from isolaw.errors import IsolawError
from isolaw.readers import containers, frameworks
from isolaw.readers.how_to_read import HowToRead

for name in containers.CONTAINERS:
    containers.get(name)
list(frameworks.known())

FORBIDDEN = ("pickle.", "marshal.load", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.",
             "ctypes.", "socket.", "shelve.", "os.startfile", "pty.spawn", "webbrowser.", "urllib.")
here = os.getcwd()

def watch(event, arguments):
    if event.startswith(FORBIDDEN):
        os.write(2, f"{event} {arguments!r}"[:500].encode())
        os._exit(77)
    code = arguments[0] if event == "exec" else None
    if getattr(code, "co_filename", "").startswith((here, "<string>", "<unknown>")):
        os.write(2, repr(arguments).encode())
        os._exit(78)

def attempt(*sources, **more):
    # The first round is there for the imports, for which one of them is enough.
    for settings in ({"n": 8, "B_p": 16, "framework": "veRL"}, None)[: 1 + round]:
        try:
            isolaw.readers.survey.survey(sources, HowToRead.of(set=settings or (), **more)).runs
        except IsolawError:
            pass

before = None
for round in range(2):
    # All modules have the same content: one of each folder will do.
    paths = sorted(p for p in Path(".").rglob("*") if p.suffix != ".py" or p.stem == "evil")
    attempt(".")
    for path in paths:
        attempt(path)
        for name in containers.CONTAINERS:
            attempt(path, format=name)
    if before is None:  # the first one imported what the readers need
        sys.addaudithook(watch)
        before = set(sys.modules)
print(sorted(set(sys.modules) - before))
print(sorted(name for name, own in sys.modules.items()
             if str(getattr(own, "__file__", "")).startswith(here)))
"""


class Reduced:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, (f"open({str(self.canary)!r}, 'w')",)


def write(folder: Path, canary: Path) -> None:
    touch = f"__import__('os').system('touch {canary}')"
    code = f"open({str(canary)!r}, 'w').close()\n"
    tags = (
        f"!!python/object/apply:os.system ['touch {canary}']",
        f'!!python/object/new:subprocess.Popen [["touch", "{canary}"]]',
        "!!python/module:evil ''",
        "!!python/name:evil.main ''",
        f"!!python/object/apply:eval [{touch!r}]",
    )
    pickled = pickle.dumps(Reduced(canary))
    config = {
        "data": {"train_batch_size": 16, "custom_cls": {"path": "evil.py", "name": "main"}},
        "actor_rollout_ref": {
            "rollout": {"n": 8},
            "model": {"path": "${oc.env:HOME}", "external_lib": "evil"},
        },
        "custom_reward_function": {"path": "evil.py", "name": "main"},
        "hydra": {"_target_": "evil.main", "searchpath": ["pkg://evil"], "launcher": "${eval:'1'}"},
        "py/object": "evil.Main",
        "py/reduce": [{"py/function": "os.system"}, {"py/tuple": [f"touch {canary}"]}],
        "__class__": "evil.Main",
        "lr": touch,
    }
    step = {"critic/score/mean": 0.5, "val-core/a/acc/mean@8": 0.25, "actor/lr": touch, touch: 1}
    state = {
        "global_step": 1,
        "log_history": [{"step": 1, "reward": 0.5, "reward_std": touch, "py/object": "evil"}],
    }
    printed = f"{{'loss': {touch}, 'reward': 0.5, 'kl': eval({touch!r}), 'x': [{touch}], 'epoch': 0.1}}\n"
    literal = (
        "{'data': {'train_batch_size': "
        + touch
        + ", 'a': 1, 'b': 2, 'c': 3, 'd': 4, 'e': 5},\n 'f': f'{"
        + touch
        + "}'}\n"
    )
    files = {
        "verl/metrics.jsonl": json.dumps({"step": 1, "data": step}) + "\n",
        "verl/config.yaml": "\n".join(f"k{i}: {tag}" for i, tag in enumerate(tags)) + "\ndata: {seed: 1}\n",
        "hydra/metrics.jsonl": json.dumps({"step": 1, "data": step}) + "\n",
        "hydra/.hydra/config.yaml": json.dumps(config),
        "hydra/.hydra/overrides.yaml": "- data.seed=${eval:1}\n- +x=" + tags[0] + "\n",
        "console/train.log": (
            f"+ python3 -m verl.trainer.main_ppo data.seed=$(touch {canary}) x=`touch {canary}` y={touch}\n"
            + literal
            + f"step:1 - critic/score/mean:{touch} - actor/lr:np.float64({touch}) - a/b:0.5\n"
            + f"step:2 - critic/score/mean:np.float64(0.5) - actor/kl:tensor({touch}) - a/b:0.5\n"
        ),
        "trl/train.log": f"GRPOConfig(\nper_device_train_batch_size={touch},\nx={tags[0]},\n)\n"
        + printed * 3,
        "trl/checkpoint-1/trainer_state.json": json.dumps(state),
        "mlflow/mlruns/0/abc/meta.yaml": f"run_name: {tags[0]}\nartifact_uri: file:///{canary}\n",
        "mlflow/mlruns/0/abc/metrics/reward": f"1 {touch} 1\n1 0.5 1\n",
        "mlflow/mlruns/0/abc/params/data.train_batch_size": tags[0],
        "wandb/offline-run-1-a/files/output.log": printed * 3,
        "wandb/offline-run-1-a/files/config.yaml": f"lr:\n  value: {tags[0]}\n",
        "wandb/offline-run-1-a/files/wandb-metadata.json": json.dumps({"args": [f"a.b={touch}", tags[0]]}),
        "tables/mine.csv": f"step,problems_per_batch,rollouts_per_problem,acc\n1,2,3,{touch}\n1,2,3,=cmd|\n",
        "tables/wandb.csv": f"run_name,metric,step,value\n{touch},reward,1,{touch}\n",
        "code/entry_points.txt": "[isolaw.containers]\nevil = evil:main\n[console_scripts]\nx = evil:main\n",
        "code/pyproject.toml": '[project.entry-points."isolaw.frameworks"]\nevil = "evil:main"\n',
        "code/config.toml": f'reward = {{ _target_ = "evil.main", code = "{touch}" }}\n',
        "code/run.json": json.dumps(config),
    }  # fmt: skip
    for name in (
        "evil",
        "yaml",
        "wandb",
        "tensorboard",
        "pandas",
        "sitecustomize",
        "conftest",
        "isolaw_plugin",
    ):
        files |= {f"{name}.py": code, f"verl/{name}.py": code, f"code/{name}/__init__.py": code}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    for name in (
        "trl/training_args.bin", "trl/checkpoint-1/training_args.bin", "trl/checkpoint-1/rng_state.pth",
        "trl/checkpoint-1/optimizer.pt", "verl/data.pt", "verl/metrics.pkl", "code/__pycache__/evil.pyc",
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(pickled)


@pytest.mark.slow
def test_nothing_is_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    folder = tmp_path / "logs"
    write(folder, canary)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    command = [
        sys.executable,
        "-P",
        "-c",
        PROGRAM,
    ]  # as an installed program: this directory is no import path
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["[]", "[]", ""]
    assert not canary.exists()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_trap_would_spring(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    write(tmp_path / "logs", canary)
    pickle.loads((tmp_path / "logs" / "trl" / "training_args.bin").read_bytes()).close()
    assert canary.exists()
