"""Signals at random times, from 0 s on: ``python fuzz/signals.py [--signals 50]``.

A sweep is killed (SIGKILL) or interrupted (SIGINT), and the same command is given again until the sweep ends;
then the next one begins. What must hold: each table equals that of an uninterrupted sweep, and nobody sees a
traceback. With one worker process and with two; every third signal is for a worker alone.

A SIGINT in the first hundredths of a second meets a Python that has not begun to execute anything; where it
prints something then, that is counted apart.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import psutil

SWEEP = """\
[sweep]
compute = 4_000_000
seeds = 2
[grid]
problems_per_batch = [16]
rollouts_per_problem = [2, 4, 8]
[problems]
n_train = 500
n_validation = 200
[evaluation]
points = 40
"""
PATIENCE_S = 120


def command(out: Path, jobs: int) -> list[str]:
    isolaw = str(Path(sys.executable).with_name("isolaw"))
    return [isolaw, "sweep", str(out.parent / "sweep.toml"), "--out", str(out), "--jobs", str(jobs)]


def table(out: Path) -> pd.DataFrame:
    return pd.read_parquet(out / "points.parquet").drop(columns="wall_s")


def attack(folder: Path, jobs: int, kind: signal.Signals, signals: int, longest: float) -> Counter[str]:
    rng = random.Random(f"{jobs} {kind}")
    counts: Counter[str] = Counter()
    truth = folder / "truth"
    subprocess.run(command(truth, jobs), check=True, capture_output=True)
    number, sent = 0, 0
    while sent < signals:
        out = folder / f"{kind.name}-{jobs}-{number}"
        process = subprocess.Popen(
            command(out, jobs), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        time.sleep(rng.uniform(0, longest))
        victims = [psutil.Process(process.pid)]
        if sent % 3 == 2:
            victims = victims[0].children() or victims
        for victim in victims[:1]:
            victim.send_signal(kind)
        sent += 1
        assert process.stderr is not None
        said = process.stderr.read()
        code = process.wait(PATIENCE_S)
        early = "Fatal Python error" in said or "import site" in said
        assert early or "Traceback" not in said, said
        counts["before Python was ready" if early else f"exit code {code}"] += 1
        if code == 0:
            pd.testing.assert_frame_equal(table(out), table(truth))
            number, counts["tables compared"] = number + 1, counts["tables compared"] + 1
    out = folder / f"{kind.name}-{jobs}-{number}"
    subprocess.run(command(out, jobs), check=True, capture_output=True)
    pd.testing.assert_frame_equal(table(out), table(truth))
    counts["tables compared"] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--signals", type=int, default=50)
    parser.add_argument("--longest", type=float, default=3.0, help="seconds before a signal, at most")
    options = parser.parse_args()
    for jobs in (1, 2):
        for kind in (signal.SIGKILL, signal.SIGINT):
            with tempfile.TemporaryDirectory(prefix="isolaw-signals-") as name:
                (Path(name) / "sweep.toml").write_text(SWEEP)
                counts = attack(Path(name), jobs, kind, options.signals, options.longest)
            shown = ", ".join(f"{what}: {count}" for what, count in sorted(counts.items()))
            print(f"{kind.name}, {jobs} worker{'s' * (jobs > 1)}: {shown}", flush=True)


if __name__ == "__main__":
    main()
