"""Reading a veRL file log against `pandas.read_json`: python benchmarks/logs.py [MEGABYTES]

A file of that size (1000 unless given) is written to a temporary folder, with the keys and the precision
that veRL logs. Each reader reads it in a process of its own: seconds, MB/s, and the peak of resident memory
above that of the imports.
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


def isolaw_reads(path: Path) -> int:
    """Return how many steps there are."""
    from isolaw.logs.containers.jsonlines import CONTAINER

    (log,) = CONTAINER.read(path)
    return len(log.step)


def pandas_reads(path: Path) -> int:
    """Return how many steps there are."""
    return len(sys.modules["pandas"].read_json(path, lines=True))


def child(name: str, path: Path) -> None:
    """Read in this process and print steps, seconds and megabytes as JSON."""
    import pandas  # noqa: F401

    import isolaw.logs.containers.jsonlines  # noqa: F401

    readers: dict[str, Callable[[Path], int]] = {"isolaw": isolaw_reads, "pandas": pandas_reads}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    steps = readers[name](path)
    seconds = time.perf_counter() - started
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
        print(f"{'':8} {'seconds':>8} {'MB/s':>7} {'peak MB':>8}")
        for name in ("pandas", "isolaw"):
            command = [sys.executable, __file__, "--read", name, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[name] = own = json.loads(done.stdout)
            assert own["steps"] == steps
            speed = path.stat().st_size / 1e6 / own["seconds"]
            print(f"{name:8} {own['seconds']:8.1f} {speed:7.0f} {own['megabytes']:8,.0f}")
    ratio = found["pandas"]["seconds"] / found["isolaw"]["seconds"]
    print(f"isolaw reads at {ratio:.2f} times the speed of pandas.read_json(lines=True)")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        child(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
