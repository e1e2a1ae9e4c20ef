"""What a fork runs is what a Python of its own would have run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="forks on Linux only")


@pytest.fixture
def python(preload: Callable[[str], Path]) -> str:
    return str(preload("import decimal") / "python")


LOOK = (
    "import os, sys; print(sys.argv, os.getcwd(), os.environ['X'], sys.stdin.read(), sys.path[0], __name__, "
    "'decimal' in sys.modules, os.getsid(0) == os.getpid()); sys.exit(7)"
)


@pytest.mark.parametrize("kind", ["-c", "-m", "file"])
def test_a_command_sees_what_is_its_own(python: str, tmp_path: Path, kind: str) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    words = {"-c": ["-c", LOOK], "-m": ["-m", "look"], "file": ["look.py"]}[kind]
    told = []
    for program in (python, sys.executable):
        done = subprocess.run(
            [program, *words, "one two", "-x"], cwd=tmp_path, env={**os.environ, "X": "é\n"}, input="in",
            capture_output=True, text=True, check=False, start_new_session=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (7, "")
        told.append(done.stdout)
    assert told[0] == told[1].replace("False True", "True True")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("", 0),
        ("raise ValueError('a fault')", 1),
        ("import sys; sys.exit('a fault')", 1),
        ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV),
        ("import os; os._exit(5)", 5),
        ("import atexit; atexit.register(print, 'the end')", 0),
        ("import threading; threading.Timer(0.1, print, ['the end']).start()", 0),
    ],
)  # fmt: skip
def test_it_ends_as_the_command_does(python: str, code: str, status: int) -> None:
    for program in (python, sys.executable):
        done = subprocess.run([program, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == status
        assert ("a fault" in done.stderr) == ("fault" in code)
        assert ("the end\n" in done.stdout) == ("end" in code)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR2])
def test_a_signal_reaches_the_command(python: str, number: signal.Signals) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with subprocess.Popen([python, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        command = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(60) == -number
    # Killed, too, it is gone before the next command begins.
    subprocess.run([python, "-c", ""], check=True)
    assert not psutil.pid_exists(command)


def test_what_a_command_starts_is_forked_too(python: str) -> None:
    code = (
        "import subprocess, sys; subprocess.run([sys.executable, '-P', '-u', '-c', sys.argv[1]], check=True)"
    )
    look = "import sys; print(sys.executable, 'decimal' in sys.modules)"
    done = subprocess.run([python, "-c", code, look], capture_output=True, text=True, check=True)
    assert done.stdout == f"{python} True\n"
