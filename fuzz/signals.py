"""Signals at random times, from 0 s on: ``python fuzz/signals.py [--signals 50]``.

A sweep is killed (SIGKILL) or interrupted (SIGINT), and the same command is given again until the sweep ends;
then the next one begins. What must hold: each table equals that of an uninterrupted sweep, and nobody sees a
traceback, and nothing that was started outlives it. With one worker process and with two; every third signal
is for a worker alone. Then one process of a kind at a time is stopped (SIGSTOP) or killed, of all kinds that
wait or are waited for: within a minute something is said of it, and Ctrl-C ends the command at once.

A SIGINT in the first hundredths of a second meets a Python that has not begun to execute anything; where it
prints something then, that is counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
ISOLAW = str(Path(sys.executable).with_name("isolaw"))
MARK = "ISOLAW_FUZZ_MARK"  # in the environment of all that is started


def command(out: Path, jobs: int) -> list[str]:
    return [ISOLAW, "sweep", str(out.parent / "sweep.toml"), "--out", str(out), "--jobs", str(jobs)]


def table(out: Path) -> pd.DataFrame:
    return pd.read_parquet(out / "points.parquet").drop(columns="wall_s")


def is_early(said: str) -> bool:
    """Whether a signal met a Python that had not begun to execute anything."""
    return "Fatal Python error" in said or "import site" in said


def below(pid: int) -> list[psutil.Process]:
    """What a process has started, without the guards."""
    found = []
    for descendant in guard.descendants(pid):
        with contextlib.suppress(psutil.Error):
            if guard.__file__ not in psutil.Process(descendant).cmdline():
                found.append(psutil.Process(descendant))
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


@dataclass(frozen=True)
class Role:
    """A command, which of its processes is hit and in what time, and what is said where it is killed."""

    words: Callable[[Path, Path], list[str]]  # of the folder, and a path of its own
    victim: str = ""  # part of a command line; "": the command itself
    within_s: float = 4.0
    killed: str = ""


def _bandit(folder: Path, own: Path) -> list[str]:
    return [*command(own, 2), "--set", "sweep.compute=1000000000", "--set", "executor.retries=0"]


def _real(folder: Path, own: Path) -> list[str]:
    sets = {
        "real.model": folder / "base/model",
        "problems.set": folder / "base/easy",
        "real.generation": "async",
        "real.sampler": "transformers",
        "recipe.staleness": 2,
        "sweep.compute": 10**7,
        "sweep.seeds": 1,
        "grid.rollouts_per_problem": [4],
        "executor.jobs": 1,
        "executor.retries": 0,
    }
    file = Path(__file__).parents[1] / "examples/real-tiny.toml"
    return [ISOLAW, "sweep", str(file), "--out", str(own), *(f"--set={k}={v}" for k, v in sets.items())]


ROLES = {
    "engine": Role(_bandit),
    "worker": Role(_bandit, "executors.worker", 4, "the worker process died"),
}
REAL_ROLES = {
    "engine of a training": Role(_real, "", 25),
    "trainer": Role(_real, "executors.worker", 25, "the worker process died"),
    "sampler": Role(_real, "sampler_process", 12, "the sampler's process ended: SIGKILL"),
}


def hold(role: Role, kind: signal.Signals, words: list[str], rng: random.Random) -> str:
    """Stop or kill one process of a command; return when that was said, and how long Ctrl-C took."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, MARK: mark}
    )
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    told = ""

    def hears(condition: Callable[[], Any], seconds: float) -> float | None:
        nonlocal told
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            told += (process.stderr.read() or b"").decode(errors="replace")  # type: ignore[union-attr]
            if condition():
                return time.monotonic() - began
            time.sleep(0.02)
        return None

    def victims() -> list[int]:
        found = below(process.pid) if role.victim else [psutil.Process(process.pid)]
        with contextlib.suppress(psutil.Error):
            return [one.pid for one in found if role.victim in " ".join(one.cmdline())]
        return []

    try:
        assert hears(victims, PATIENCE_S) is not None, f"no {role.victim}: {told}"
        hears(lambda: process.poll() is not None, rng.uniform(0, role.within_s))
        if process.poll() is not None or not (pids := victims()):
            return "it had ended before"
        pid, said = rng.choice(pids), None
        os.kill(pid, kind)
        if kind == signal.SIGKILL and not role.victim:
            process.wait(PATIENCE_S)
        elif role.victim:
            word = role.killed if kind == signal.SIGKILL else str(pid)
            said = hears(lambda: word in told, SAID_WITHIN_S)
            assert said is not None, f"nothing said of {kind.name} within a minute: {told}"
        asked = time.monotonic()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            if not role.victim:
                os.kill(pid, signal.SIGCONT)  # until then it receives nothing
            if hears(lambda: process.poll() is not None, ENDED_WITHIN_S) is None:
                process.send_signal(signal.SIGINT)  # as isolaw says, to end at once and keep less
                assert hears(lambda: process.poll() is not None, ENDED_WITHIN_S) is not None, (
                    f"no end: {told}"
                )
        ended = time.monotonic() - asked
        assert not (remaining := left(mark)), remaining
        early = is_early(told)
        assert early or "Traceback" not in told, told
    finally:
        process.kill()
        process.wait()
    return (
        f"said after {said:.0f} s, ended in {ended:.1f} s" if said is not None else f"ended in {ended:.1f} s"
    )


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
        early = is_early(said)
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
    parser.add_argument("--held", type=int, default=20, help="signals to one kind of process after the other")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background it is ignored
    for jobs in (1, 2):
        for kind in (signal.SIGKILL, signal.SIGINT):
            with tempfile.TemporaryDirectory(prefix="isolaw-signals-") as name:
                (Path(name) / "sweep.toml").write_text(SWEEP)
                counts = attack(Path(name), jobs, kind, options.signals, options.longest)
            shown = ", ".join(f"{what}: {count}" for what, count in sorted(counts.items()))
            print(f"{kind.name}, {jobs} worker{'s' * (jobs > 1)}: {shown}", flush=True)
    hold_all(options.held)


def hold_all(signals: int) -> None:
    """Hit each role in turn; those of a training only where the real backend is installed."""
    roles = dict(ROLES)
    with tempfile.TemporaryDirectory(prefix="isolaw-signals-") as name:
        folder = Path(name)
        (folder / "sweep.toml").write_text(SWEEP)
        subprocess.run(command(folder / "truth", 2), check=True, capture_output=True)
        if signals and all(importlib.util.find_spec(one) for one in ("torch", "transformers", "deepspeed")):
            tiny = Path(__file__).parents[1] / "examples/tiny_model.py"
            subprocess.run([sys.executable, str(tiny), str(folder / "base")], check=True, capture_output=True)
            roles |= REAL_ROLES
        for number in range(signals):
            kind = (signal.SIGSTOP, signal.SIGKILL)[number % 2]
            title = list(roles)[number // 2 % len(roles)]
            words = roles[title].words(folder, folder / f"held-{number}")
            how = hold(roles[title], kind, words, random.Random(f"34 {number}"))
            print(f"{number + 1}: {kind.name} of the {title}: {how}", flush=True)


if __name__ == "__main__":
    main()
