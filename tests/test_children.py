"""Trees of processes: they end as a whole, with the command, with `end`, and with their parent."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isolaw import children, guard

# A command that starts: a child, one in another session, and one whose own parent has ended.
TREE = """
import os, subprocess, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
def below(name):
    (folder / name).write_text(str(os.getpid()))
    time.sleep(600)
if not os.fork():
    below("child")
if not os.fork():
    os.setsid()
    below("session")
if not os.fork():
    if not os.fork():
        os.setsid()
        below("orphan")
    os._exit(0)
while len(list(folder.iterdir())) < 3:
    time.sleep(0.01)
(folder / "command").write_text(str(os.getpid()))
exec(sys.argv[2])
"""
NAMES = ("child", "session", "orphan", "command")


def tree(folder: Path, then: str) -> list[str]:
    return [sys.executable, "-c", TREE, str(folder), then]


def pids(folder: Path) -> list[int]:
    """Wait for the tree, and return its process ids."""
    until = time.monotonic() + 120
    while True:
        with contextlib.suppress(OSError, ValueError):
            return [int((folder / name).read_text()) for name in NAMES]
        assert time.monotonic() < until
        time.sleep(0.01)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def gone(found: list[int], seconds: float = 60) -> bool:
    until = time.monotonic() + seconds
    while any(map(alive, found)) and time.monotonic() < until:
        time.sleep(0.01)
    return not any(map(alive, found))


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a subreaper")


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["nothing", "command", "guard"])
def test_end_ends_the_whole_tree(tmp_path: Path, stopped: str) -> None:
    process = children.start(tree(tmp_path, "time.sleep(600)"))
    found = pids(tmp_path)
    until = time.monotonic() + 60  # for what forked them to end
    while (below := set(guard.descendants(process.pid))) != set(found) and time.monotonic() < until:
        time.sleep(0.01)
    assert below == set(found)
    if stopped != "nothing":
        os.kill(found[-1] if stopped == "command" else process.pid, signal.SIGSTOP)
    begun = time.monotonic()
    children.end(process)
    assert time.monotonic() - begun < 2 * guard.LIMIT_S
    assert process.returncode == -signal.SIGKILL
    assert gone(found, 0.5)


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    process = children.start(tree(tmp_path, "sys.exit(3)"))
    assert process.wait(120) == 3
    assert gone(pids(tmp_path), 0.5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_tree_ends_with_the_process_that_started_it(tmp_path: Path, number: signal.Signals) -> None:
    code = "import sys, time; from isolaw import children; children.start(sys.argv[1:]); time.sleep(600)"
    parent = subprocess.Popen([sys.executable, "-c", code, *tree(tmp_path, "time.sleep(600)")])
    found = pids(tmp_path)
    parent.send_signal(number)
    parent.wait(60)
    assert gone(found)


def test_a_tree_ends_with_its_guard(tmp_path: Path) -> None:
    process = children.start(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=subprocess.PIPE
    )
    assert process.stdout.readline()
    found = guard.descendants(process.pid)
    process.kill()
    process.wait(60)
    process.stdout.close()
    assert len(found) == 1
    assert gone(found)


def test_a_command_that_stops_by_itself_is_given_the_time(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7));"
        "print(flush=True); time.sleep(600)"
    )
    process = children.start([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    children.end(process, grace_s=20)
    assert process.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM, signal.SIGABRT])
def test_a_command_ends_by_its_signal(number: signal.Signals) -> None:
    process = children.start([sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)})"])
    assert process.wait(120) == -number


def test_streams_environment_and_mask_are_the_parents_own(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; sys.stdout.write(sys.stdin.read()"
        " + os.environ['WORD'] + str(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
        " + str(signal.getsignal(signal.SIGUSR1)) + os.getcwd())"
    )
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {"WORD": "word"}, "cwd": tmp_path}
    process = children.start([sys.executable, "-c", code], **options)
    plain = subprocess.Popen([sys.executable, "-c", code], **options)
    assert process.communicate(b"text", timeout=120) == plain.communicate(b"text", timeout=120)


def test_the_end_of_a_pipe_is_seen_when_the_command_ends() -> None:
    process = children.start(["true"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.read() == b""
    assert process.wait(120) == 0
    with pytest.raises(BrokenPipeError):
        os.write(process.stdin.fileno(), b"x")
    children.end(process)


def test_a_command_that_does_not_exist_says_so() -> None:
    process = children.start(["/no/such"], stderr=subprocess.PIPE)
    assert process.stderr.read() == b"/no/such: No such file or directory\n"
    children.end(process)
    assert process.returncode == 127
