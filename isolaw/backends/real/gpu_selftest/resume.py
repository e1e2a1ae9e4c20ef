"""Kill a short sweep halfway, resume it, and compare its curve with the curve of an uninterrupted sweep.

On a CPU, both curves must be exactly equal. On GPUs, sums depend on the order of threads. There, the curves
must have the same rows, and rewards must agree within the error of an evaluation.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from isolaw import children
from isolaw.backends.real import environment
from isolaw.backends.real.gpu_selftest.record import Record
from isolaw.backends.real.gpu_selftest.workload import Workload

_STEPS = 16
_KEYS = ["run_id", "step", "eval_set", "metric"]
# Three standard errors of the difference between two evaluations with 32 problems × 4 samples.
_ACCEPTED = 0.2
_LIMIT_S = 140.0


def run(work: Workload, record: Record) -> None:
    """Run the sweep twice, with and without an interruption, and compare the results."""
    file = work.folder / "sweep.toml"
    processes = environment.gpus() if work.on_gpu else 1
    b, n = processes * work.batch[0], work.batch[1]
    sections = work.sections(
        sweep={"compute": _STEPS * b * n},
        grid={"problems_per_batch": [b], "rollouts_per_problem": [n]},
        recipe={"max_response_tokens": 8, "lr": 1e-3},
        problems={"n_validation": 32},
        evaluation={"points": 6, "samples": 4, "metrics": ["avg@4"]},
        real={"model": str(work.small), "processes": processes},
    )
    lines = []
    for name, section in sections.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    killed, whole = work.folder / "killed", work.folder / "whole"
    command = [sys.executable, "-P", "-m", "isolaw", "sweep", str(file), "--out"]
    at = _kill([*command, str(killed)], killed)
    record.measure(processes=processes, killed_after_lines=at)
    record.check("checkpoints when the sweep was killed", at, f"1 to {_STEPS}", 0 < at <= _STEPS)
    for out in (killed, whole):
        children.run([*command, str(out)], _LIMIT_S).check_returncode()
    _compare(work, record, _table(killed), _table(whole))


def _lines(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in out.glob("runs/*/points.jsonl"))


def _kill(command: list[str], out: Path) -> int:
    """Start the sweep, kill all its processes halfway, and return the number of checkpoints it has written.

    Return 0 if the sweep was not killed.
    """
    process = children.start(command)
    until = time.monotonic() + _LIMIT_S
    try:
        while _lines(out) < _STEPS // 2 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
    finally:
        children.end(process)
    return _lines(out) if process.returncode == -signal.SIGKILL else 0


def _table(out: Path) -> Any:
    import pandas as pd

    table = pd.read_parquet(out / "points.parquet")
    return table.drop(columns="wall_s").sort_values(_KEYS, ignore_index=True)


def _compare(work: Workload, record: Record, resumed: Any, whole: Any) -> None:
    same_rows = bool(resumed[_KEYS].equals(whole[_KEYS]))
    record.check("resumed sweep has the rows of the uninterrupted one", same_rows, "True", same_rows)
    identical = bool(resumed.equals(whole))
    record.measure(rows=len(whole), identical=identical)
    if not same_rows:
        return
    rewards = whole.metric == "avg@4"
    difference = float((resumed.value - whole.value)[rewards].abs().max())
    if work.on_gpu:
        record.at_most("largest difference of avg@4 to the uninterrupted sweep", difference, _ACCEPTED)
    else:
        record.check("resumed sweep equals the uninterrupted one", identical, "True", identical)
    record.measure(avg_4=whole.value[rewards].tolist())
