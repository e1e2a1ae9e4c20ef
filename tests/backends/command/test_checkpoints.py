"""A run of 60 checkpoints keeps two, whichever framework writes them.

The stand-in honours the framework's own option, by its own name; without it, it keeps all, as they do.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from isolaw import engine
from isolaw.backends.command.adapters import ADAPTERS

# The option that limits checkpoints, and a metric of its log.
OPTIONS = {
    "veRL": ("trainer.max_actor_ckpt_to_keep", "critic/score/mean"),
    "TRL": ("save_total_limit", "reward"),
    "OpenRLHF": ("ckpt.max_num", "train/reward"),
    "SkyRL": ("trainer.max_ckpts_to_keep", "reward/avg_raw_reward"),
    "ms-swift": ("save_total_limit", "reward"),
    "prime-rl": ("ckpt.keep-last", "reward/mean"),
}
TRAINER = """
import json, os, shutil, sys
option, metric, pattern, *words = sys.argv[1:]
words = [part.lstrip("-") for word in words for part in word.split("=", 1)]
keep = int(words[words.index(option) + 1]) if option in words else 10**9
out, every = os.environ["ISOLAW_OUT"], int(os.environ["ISOLAW_EVERY"])
before, _, after = pattern.replace("OUT", out).partition("STEP")
kept = []
for step in range(1, int(os.environ["ISOLAW_STEPS"]) + 1):
    with open(out + "/log.jsonl", "a") as log:
        log.write(json.dumps({"step": step, "data": {"train/global_step": step, metric: 0.5}}) + "\\n")
    if step % every == 0:
        path = before + str(step) + after
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").write(str(step))
        kept.append(before + str(step) + after.partition("/")[0])
        while len(kept) > keep:
            gone = kept.pop(0)
            shutil.rmtree(gone) if os.path.isdir(gone) else os.remove(gone)
"""


@pytest.mark.parametrize("framework", ADAPTERS)
def test_a_run_of_60_checkpoints_keeps_two(framework: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    option, metric = OPTIONS[framework]
    pattern = ADAPTERS[framework].checkpoints
    words = [option, metric, pattern.replace("{out}", "OUT").replace("{step}", "STEP")]
    data = {
        "sweep": {"backend": "command", "compute": 60 * 8, "seeds": [0]},
        "grid": {"problems_per_batch": [4], "rollouts_per_problem": [2]},
        "evaluation": {"points": 60},
        "command": {
            "run": [sys.executable, str(tmp_path / "train.py"), *words],
            "framework": framework,
            "log": "{out}/log.jsonl",
        },
        "executor": {"kind": "inline"},
    }
    table = engine.sweep(data, tmp_path / "out").points
    assert table["step"].max() == 60
    (out,) = (tmp_path / "out").glob("runs/*/out/0")
    kept = out.glob(pattern.removeprefix("{out}/").replace("{step}", "*"))
    assert sorted(int(path.read_text()) for path in kept) == [59, 60]
