"""What the tests of the command backend share: a trainer of 40 lines, and sweeps of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Its results depend on (B_p, n, seed, step) alone, so that a resumed run can be compared with a whole one.
# argv[1:] are `key=value`: what it does wrong.
TRAINER = """
import json, os, random, sys, time
wrong = dict(word.split("=", 1) for word in sys.argv[1:])
own = {name: int(os.environ[f"ISOLAW_{name}"]) for name in ("B_P", "N", "STEPS", "SEED")}
out, resume = os.environ["ISOLAW_OUT"], os.environ["ISOLAW_RESUME"]
step = int(open(resume).read()) if resume else 0
every = int(wrong.get("every", 4))
with open(os.path.join(out, "metrics.jsonl"), "a") as log:
    while step < min(own["STEPS"], int(wrong.get("until", own["STEPS"]))) + int(wrong.get("more", 0)):
        step += 1
        time.sleep(float(wrong.get("pause", 0.01)))
        rng = random.Random(str((own["B_P"], own["N"], own["SEED"], step)))
        record = {"step": step, "n": int(wrong.get("n", own["N"])), "reward": rng.random()}
        record |= eval(wrong.get("logs", "{}"))
        if step >= int(wrong.get("nan", own["STEPS"] + 1)) or step == int(wrong.get("hole", 0)):
            record["reward"] = float("nan")
        log.write(json.dumps(record) + "\\n")
        log.flush()
        if step % every == 0:
            time.sleep(float(wrong.get("evaluates", 0)))
            log.write(json.dumps({"step": step, "eval/avg@4": rng.random()}) + "\\n")
            log.flush()
            if wrong.get("checkpoints") != "none":
                path = os.path.join(out, f"step-{step}")
                with open(path + ".part", "w") as file:
                    file.write(str(step))
                os.rename(path + ".part", path)
exec(wrong.get("then", ""))
sys.exit(int(wrong.get("status", 0)))
"""

Data = dict[str, dict[str, Any]]


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    """The trainer's file, in a folder whose name has a blank, quotes and brackets."""
    folder = tmp_path / "a 'b' [c]"
    folder.mkdir()
    (folder / "train.py").write_text(TRAINER)
    return folder / "train.py"


@pytest.fixture
def sweep_of(trainer: Path) -> Callable[..., Data]:
    """A sweep of the trainer, as data; arguments are the trainer's words, and keys of ``command``."""

    def make(*words: str, compute: int = 320, n: tuple[int, ...] = (2, 4), **command: Any) -> Data:
        return {
            "sweep": {"backend": "command", "compute": compute, "seeds": [0]},
            "grid": {"problems_per_batch": [4], "rollouts_per_problem": list(n)},
            "command": {
                "run": [sys.executable, str(trainer), *words],
                "log": "{out}/metrics.jsonl",
                "checkpoints": "step-{step}",
                **command,
            },
            "executor": {"kind": "inline"},
        }

    return make
