"""Signals at random times, from 0 s on: ``python fuzz/signals.py [--signals 50]``.

A sweep is killed (SIGKILL) or interrupted (SIGINT), and the same command is given again until the sweep ends;
then the next one begins. What must hold: each table equals that of an uninterrupted sweep, and nobody sees a
traceback, and nothing that was started outlives it. With one worker process and with two; every third signal
is for a worker alone. Then a worker, and a calibration or one of its processes, are stopped (SIGSTOP) or
killed: within a minute something is said, and Ctrl-C ends them at once.

A SIGINT in the first hundredths of a second meets a Python that has not begun to execute anything; where it
prints something then, that is counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

import pandas as pd
import psutil

from isolaw import guard

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
SAID_WITHIN_S = 60
ENDED_WITHIN_S = 5
MARK = "ISOLAW_FUZZ_MARK"  # in the environment of all that is started


def command(out: Path, jobs: int) -> list[str]:
    isolaw = str(Path(sys.executable).with_name("isolaw"))
    return [isolaw, "sweep", str(out.parent / "sweep.toml"), "--out", str(out), "--jobs", str(jobs)]


def table(out: Path) -> pd.DataFrame:
    return pd.read_parquet(out / "points.parquet").drop(columns="wall_s")


def below(pid: int) -> list[psutil.Process]:
    """What a process has started, without the guards."""
    found = []
    for own in guard.descendants(pid):
        with contextlib.suppress(psutil.Error):
            if guard.__file__ not in psutil.Process(own).cmdline():
                found.append(psutil.Process(own))
    return found


def left(mark: str) -> list[str]:
    """What still exists of a command that has ended, after a moment."""
    until = time.monotonic() + 3
    while True:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == mark:
                    found.append(" ".join(process.cmdline())[:100])
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.05)


def hold(words: list[str], whom: str, kind: signal.Signals, rng: random.Random) -> str:
    """Stop or kill a command or what it has started; return what was said, in how long, and how it ended."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, MARK: mark}
    )
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    until = time.monotonic() + PATIENCE_S
    while not (started := below(process.pid)):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(rng.uniform(0, 2))
    victim = psutil.Process(process.pid) if whom == "itself" else rng.choice(started)
    process.stderr.read()
    with contextlib.suppress(psutil.Error):
        victim.send_signal(kind)
    began, said = time.monotonic(), b""
    if kind == signal.SIGKILL and whom == "itself":
        process.wait(PATIENCE_S)
    elif whom != "itself":  # a killed worker, or a stopped one, is told
        while not said and process.poll() is None:
            assert time.monotonic() - began < SAID_WITHIN_S, f"nothing said of {kind.name} within a minute"
            said = process.stderr.read() or b""
            time.sleep(0.05)
    waited = time.monotonic() - began
    if whom == "itself" and kind == signal.SIGSTOP:
        process.send_signal(signal.SIGCONT)
    asked = time.monotonic()
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
        assert time.monotonic() - asked < 2 * ENDED_WITHIN_S, "Ctrl-C does not end it"
    assert not left(mark), left(mark)
    return f"said after {waited:.0f} s" if said else "ended"


def attack(folder: Path, jobs: int, kind: signal.Signals, signals: int, longest: float) -> Counter[str]:
    rng = random.Random(f"{jobs} {kind}")
    counts: Counter[str] = Counter()
    truth = folder / "truth"
    subprocess.run(command(truth, jobs), check=True, capture_output=True)
    number, sent = 0, 0
    while sent < signals:
        out = folder / f"{kind.name}-{jobs}-{number}"
        mark = uuid.uuid4().hex
        process = subprocess.Popen(
            command(out, jobs), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, MARK: mark},
        )  # fmt: skip
        time.sleep(rng.uniform(0, longest))
        victims = [psutil.Process(process.pid)]
        if sent % 3 == 2:
            victims = below(process.pid) or victims
        for victim in victims[:1]:
            victim.send_signal(kind)
        sent += 1
        assert process.stderr is not None
        said = process.stderr.read()
        code = process.wait(PATIENCE_S)
        assert not left(mark), left(mark)
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
    parser.add_argument("--held", type=int, default=20, help="signals to a worker or a calibration")
    options = parser.parse_args()
    for jobs in (1, 2):
        for kind in (signal.SIGKILL, signal.SIGINT):
            with tempfile.TemporaryDirectory(prefix="isolaw-signals-") as name:
                (Path(name) / "sweep.toml").write_text(SWEEP)
                counts = attack(Path(name), jobs, kind, options.signals, options.longest)
            shown = ", ".join(f"{what}: {count}" for what, count in sorted(counts.items()))
            print(f"{kind.name}, {jobs} worker{'s' * (jobs > 1)}: {shown}", flush=True)
    rng, counts = random.Random(34), Counter()
    with tempfile.TemporaryDirectory(prefix="isolaw-signals-") as name:
        folder = Path(name)
        (folder / "sweep.toml").write_text(SWEEP)
        subprocess.run(command(folder / "truth", 2), check=True, capture_output=True)
        for number in range(options.held):
            whom, kind = rng.choice(("itself", "another")), rng.choice((signal.SIGSTOP, signal.SIGKILL))
            if number % 2:
                isolaw = command(folder, 1)[0]
                words = [isolaw, "calibrate", str(folder / "truth"), "--out", str(folder / "p.toml")]
            else:
                words = [*command(folder / f"held-{number}", 2), "--set", "sweep.compute=1000000000"]
            how = hold(words, whom, kind, rng)
            counts[f"{words[1]}, {kind.name} of {whom}: {how}"] += 1
    for what, count in sorted(counts.items()):
        print(f"{what}: {count}", flush=True)


if __name__ == "__main__":
    main()
