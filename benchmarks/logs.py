"""Reading a veRL file log against `pandas.read_json`: python benchmarks/logs.py [MEGABYTES]

A file of that size (1000 unless given) is written to a temporary folder, with the keys and the precision that
veRL logs. Each reader reads it in a process of its own: seconds of the processor, MB/s, and the peak of
resident memory above that of the imports. ``container`` is the log in isolaw's memory with every key;
``isolaw.read`` is the table of runs made from it.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

STATISTICS = ("mean", "max", "min")
KEYS = [
    *(
        f"global_seqlen/{name}"
        for name in ("min", "max", "minmax_diff", "balanced_min", "balanced_max", "mean")
    ),
    *(f"actor/{name}" for name in ("entropy", "kl_loss", "kl_coef", "pg_loss", "pg_clipfrac", "ppo_kl")),
    *(f"actor/{name}" for name in ("pg_clipfrac_lower", "grad_norm", "lr")),
    *(f"critic/{name}/{s}" for name in ("score", "rewards", "advantages", "returns") for s in STATISTICS),
    *(f"{name}/{s}" for name in ("response_length", "prompt_length") for s in (*STATISTICS, "clip_ratio")),
    *(f"timing_s/{name}" for name in ("gen", "reward", "old_log_prob", "ref", "adv", "update_actor", "step")),
    *(f"timing_per_token_ms/{name}" for name in ("gen", "ref", "adv", "update_actor")),
    *(f"perf/{name}" for name in ("total_num_tokens", "time_per_step", "throughput", "mfu/actor")),
    *(f"perf/max_memory_{name}_gb" for name in ("allocated", "reserved")),
]
VALIDATION = [
    f"val-aux/{data}/acc/{statistic}@{k}/{moment}"
    for data in ("openai/gsm8k", "HuggingFaceH4/aime_2024")
    for statistic in ("best", "worst", "maj")
    for k in (2, 4, 8)
    for moment in ("mean", "std")
]


def write(path: Path, megabytes: int) -> int:
    """Write a log of that size; return its steps."""
    draw = random.Random(0).random
    step = written = 0
    with path.open("w") as file:
        while written < megabytes * 1_000_000:
            step += 1
            data: dict[str, float] = {key: draw() * 10 for key in KEYS}
            data |= {"training/global_step": step, "training/epoch": step // 100}
            if step % 10 == 0:
                data |= {key: draw() for key in VALIDATION}
            written += file.write(json.dumps({"step": step, "data": data}, separators=(",", ":")) + "\n")
    return step


def container_reads(path: Path) -> int:
    """Return how many steps there are."""
    from isolaw.readers.containers.jsonlines import CONTAINER

    (log,) = CONTAINER.read(path)
    return len(log.step)


def isolaw_reads(path: Path) -> int:
    """Return the last step."""
    from isolaw.readers.read import read

    return int(read(path, set={"n": 8, "B_p": 512}).points["step"].max())


def pandas_reads(path: Path) -> int:
    """Return how many steps there are."""
    return len(pd.read_json(path, lines=True))


READERS: dict[str, Callable[[Path], int]] = {
    "pandas": pandas_reads,
    "container": container_reads,
    "isolaw.read": isolaw_reads,
}


def child(name: str, path: Path) -> None:
    """Read in this process and print steps, seconds and megabytes as JSON."""
    import isolaw.readers.containers.jsonlines
    import isolaw.readers.read  # noqa: F401

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    steps = READERS[name](path)
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"steps": steps, "seconds": seconds, "megabytes": peak / 1024}))


def main() -> None:
    """Print the table."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.jsonl")
        steps = write(path, megabytes)
        print(f"{path.stat().st_size / 1e6:,.0f} MB, {steps:,} steps")
        print(f"{'':12} {'seconds':>8} {'MB/s':>6} {'peak MB':>8} {'speed of pandas':>16}")
        for name in READERS:
            command = [sys.executable, __file__, "--read", name, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[name] = own = json.loads(done.stdout)
            assert own["steps"] == steps
            speed, ratio = megabytes / own["seconds"], found["pandas"]["seconds"] / own["seconds"]
            print(f"{name:12} {own['seconds']:8.1f} {speed:6.0f} {own['megabytes']:8,.0f} {ratio:15.2f}×")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        child(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
