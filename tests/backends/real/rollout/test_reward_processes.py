"""Rewards that fork, hang, flood, crash and forge: each ends within its limit and two seconds."""

from __future__ import annotations

# ruff: noqa: E501 - programs on a line
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from isolaw.backends.real.rollout import reward_processes, rewards
from isolaw.backends.real.rollout.problems import Problem
from isolaw.errors import RunError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

LIMIT = 1.0
HEAD = """
import asyncio, ctypes, json, multiprocessing, os, signal, subprocess, sys, threading, time
from pathlib import Path
def forever():
    while True: time.sleep(60)
def one(queue, value): queue.put(value)
def square(x): return x * x
def everywhere(text):
    for number in os.listdir('/proc/self/fd'):
        try: os.write(int(number), text)
        except OSError: pass
FORGED = b'ready\\n9.5\\n' + b'0' * 32 + b' 9.5\\n'
def reward(prompt, response, answer):
    if response == 'good': return 1.0
"""
# What a reward does → its failure's kind, or the value that it has, or what ends the run.
KINDS: dict[str, tuple[str, str | float | re.Pattern[str]]] = {
    "sleeps": ("time.sleep(60)", "late"),
    "spins": ("while True: pass", "late"),
    "holds the interpreter's lock": ("ctypes.PyDLL(None).sleep(60)", "late"),
    "ignores the alarm": ("signal.signal(signal.SIGALRM, signal.SIG_IGN); time.sleep(60)", "late"),
    "turns the alarm off": ("signal.setitimer(signal.ITIMER_REAL, 0); time.sleep(60)", "late"),
    "blocks the alarm": ("signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM}); time.sleep(60)", "late"),
    "stops itself": ("os.kill(os.getpid(), signal.SIGSTOP)", "late"),
    "waits for a fork": ("pid = os.fork()\n    if not pid: forever()\n    os.waitpid(pid, 0)", "late"),
    "waits for a process": (
        "p = multiprocessing.Process(target=forever); p.start(); p.join()", "late"),
    "waits for a process in another session": (
        "subprocess.run([sys.executable, '-c', 'import os, time; os.setsid(); time.sleep(600)'])", "late"),
    "leaves an orphan and hangs": (
        "if not os.fork():\n        if not os.fork(): os.setsid(); forever()\n        os._exit(0)\n    forever()", "late"),
    "leaves a thread": ("threading.Thread(target=forever, daemon=True).start(); return 0.5", 0.5),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "segfaults": ("ctypes.string_at(0)", "SIGSEGV"),
    "aborts": ("os.abort()", "SIGABRT"),
    "leaves": ("os._exit(3)", "exit status 3"),
    "leaves as if all were well": ("os._exit(0)", "exit status 0"),
    "kills its group": ("os.killpg(0, signal.SIGKILL)", "SIGKILL"),
    "kills its guard": ("os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)", "SIGKILL"),
    "closes every file": ("os.closerange(0, 100); time.sleep(60)", re.compile("closed its pipe|late")),
    "prints 10 MB": ("\n    for _ in range(100): os.write(1, b'x' * 99_999)\n    return 0.5", 0.5),
    "prints a forged reply": ("print(FORGED.decode(), flush=True); os.write(1, FORGED); return 0.25", 0.25),
    "has a fork write to every file": (
        "pid = os.fork()\n    if not pid: everywhere(FORGED); os._exit(0)\n    os.waitpid(pid, 0); return 0.25", 0.25),
    "has a program write to every file": (
        "subprocess.run([sys.executable, '-c', \"import os\\nfor n in range(3, 64):\\n try: os.write(n, b'ready\\\\n9.5\\\\n')\\n"
        " except OSError: pass\"]); return 0.25", 0.25),
    "writes to every file itself": ("everywhere(FORGED); return 0.25", "malformed reply"),
    "writes a long line to every file": ("everywhere(b'x' * 2_000_000); return 0.25", "reply of more than 1 MB"),
    "reads its input": ("sys.stdin.read(); return 0.5", 0.5),
    "raises 50 MB": ("raise ValueError('x' * 50_000_000)", re.compile("it raised ValueError: x{9}")),
    "returns 50 MB": ("return 'x' * 50_000_000", re.compile("it returned 'x{9}")),
    "recurses": ("return reward(prompt, response, answer)", re.compile("RecursionError")),
    "uses a process for its test": (
        "q = multiprocessing.Queue(); p = multiprocessing.Process(target=one, args=(q, 0.75)); p.start()"
        "; value = q.get(); p.join(); return value", 0.75),
    "uses a pool for its tests": (
        "\n    with multiprocessing.Pool(2) as pool: return sum(pool.map(square, [0.5, 0.5]))", 0.5),
}  # fmt: skip

# Others of the kinds end in the same way.
VARIANTS = {
    "sleeps",
    "waits for a process",
    "has a program write to every file",
    "uses a pool for its tests",
    "is killed",
    "leaves",
    "raises 50 MB",
    "recurses",
    "turns the alarm off",
    "blocks the alarm",
    "waits for a fork",
    "waits for a process in another session",
    "aborts",
    "leaves as if all were well",
}


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that a reward started may be left, whatever its parent or session."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setenv("ISOLAW_TEST_MARK", mark)
    yield
    time.sleep(0.05)
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"ISOLAW_TEST_MARK={mark}".encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_bytes())
    assert found == []


@pytest.fixture
def function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: None) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"hostile_{time.monotonic_ns()}"
    yield name
    sys.modules.pop(name, None)


def asked(count: int = 1) -> list[Problem]:
    return [Problem("p", "q", "a")] * count


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "what", [pytest.param(kind, marks=pytest.mark.nightly) if kind in VARIANTS else kind for kind in KINDS]
)
def test_each_is_ended_in_time_and_counted(what: str, function: str) -> None:
    code, expected = KINDS[what]
    Path(f"{function}.py").write_text(f"{HEAD}    {code}\n")
    reward = rewards.get(f"{function}:reward", workers=1, limit=LIMIT)
    try:
        assert reward(asked(), ["good"]) == [1.0]
        begun = time.monotonic()
        if isinstance(expected, re.Pattern) and "late" not in expected.pattern:
            with pytest.raises(RunError) as error:
                reward(asked(), ["bad"])
            assert expected.search(str(error.value))
            assert len(str(error.value)) < 3_000
        else:
            value = reward(asked(), ["bad"])
            assert value == [expected if isinstance(expected, float) else 0.0]
        assert time.monotonic() - begun < LIMIT + 2
        if isinstance(expected, str | re.Pattern) and not reward.failures_by_kind:
            assert isinstance(expected, re.Pattern)
        elif isinstance(expected, str):
            assert dict(reward.failures_by_kind) == {expected: 1}
        assert reward(asked(), ["good"]) == [1.0]
    finally:
        reward.close()


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_failures_in_a_row_end_the_run(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_processes, "FAILURES_IN_A_ROW", 6)  # each starts a worker anew
    Path(f"{function}.py").write_text(f"{HEAD}    os.kill(os.getpid(), signal.SIGSEGV)\n")
    many = reward_processes.FAILURES_IN_A_ROW
    reward = rewards.get(f"{function}:reward", workers=2, limit=LIMIT)
    try:
        mixed = ["bad"] * (many - 2) + ["good"]
        assert reward(asked(len(mixed)), mixed) == [0.0] * (many - 2) + [1.0]
        with pytest.raises(
            RunError, match=rf"{many} consecutive requests; the last request: SIGSEGV, response 'bad xx.*x' …"
        ):
            reward(asked(2 * many), ["bad " + "x" * 10_000] * 2 * many)
    finally:
        reward.close()
    assert set(reward.failures_by_kind) == {"SIGSEGV"}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_worker_that_does_not_read_is_late(function: str) -> None:
    Path(f"{function}.py").write_text(f"{HEAD}    os.kill(os.getpid(), signal.SIGSTOP)\n")
    reward = rewards.get(f"{function}:reward", workers=1, limit=LIMIT)
    try:
        begun = time.monotonic()
        assert reward(asked(2), ["bad", "x" * 10_000_000])[0] == 0.0  # more than a pipe holds
        assert time.monotonic() - begun < 2 * (LIMIT + 2) + 60
    finally:
        reward.close()


def test_long_responses_arrive(function: str) -> None:
    Path(f"{function}.py").write_text("def reward(prompt, response, answer): return len(response)\n")
    reward = rewards.get(f"{function}:reward", workers=1)
    try:
        assert reward(asked(3), ["x" * n for n in (3_000_000, 0, 7)]) == [3e6, 0.0, 7.0]
    finally:
        reward.close()
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
