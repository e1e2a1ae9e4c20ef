"""Guard a child process: ``python -I -S guard.py PARENT -- COMMAND…``, started by `isolaw.children`.

The guard executes the command in its own session, and remains the ancestor of every process that the command
starts. A descendant whose parent has ended becomes the guard's child, regardless of its session (Linux's
subreaper). The guard waits until the command ends, the process ``PARENT`` is gone for any reason, or SIGQUIT
arrives. Then it kills all remaining descendants, and ends with the command's exit status or signal. It
forwards other signals.

The guard has its own file and imports no other module of isolaw, so it starts in 20 ms and uses 8 MB.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time

LIMIT_S = 2.0  # time that the kernel has to end killed processes
_POLL_INTERVAL_S = 0.5
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_FORWARDED_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
_GUARD_ENDED = 1


def descendants(pid: int) -> list[int]:
    """Return the ids of all live descendants of a process. The list is empty without ``/proc``."""
    parent_of: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdecimal():
                with (
                    contextlib.suppress(OSError, ValueError, IndexError),
                    open(f"/proc/{name}/stat", "rb") as file,
                ):
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
                    if state not in b"ZX":
                        parent_of[int(name)] = int(parent)
    descendants: set[int] = set()
    generation = {pid}
    while generation:
        generation = {child for child, parent in parent_of.items() if parent in generation} - descendants
        descendants |= generation
    return sorted(descendants)


def is_stopped(pid: int) -> bool:
    """Return whether a process is suspended, as by SIGSTOP or a debugger."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in b"Tt"
    return False


def kill_below(pid: int, child: int = 0) -> int | None:
    """Kill all descendants of a process, including new ones, within at most `LIMIT_S` seconds.

    Returns the wait status of ``child`` if it ended during this time.
    """
    deadline, status = time.monotonic() + LIMIT_S, None
    while (pids := descendants(pid)) and time.monotonic() < deadline:
        for descendant in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(descendant, signal.SIGKILL)
        new_status = _reap_children(child)
        status = new_status if status is None else status
        time.sleep(0.001)
    return status


def set_death_signal() -> None:
    """Ask the kernel to kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(parent: int, command: list[str]) -> None:
    """Execute the command, guard it, and end with its exit status or signal."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    awaited_signals = {signal.SIGCHLD, signal.SIGQUIT, *_FORWARDED_SIGNALS}
    signal_mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited_signals)
    guard_pid = os.getpid()
    child = os.fork()
    if not child:
        _execute(command, signal_mask, guard_pid)
    _close_files()
    status = None
    while status is None and os.getppid() == parent:
        received = signal.sigtimedwait(awaited_signals, _POLL_INTERVAL_S)
        if received and received.si_signo == signal.SIGQUIT:
            break
        if received and received.si_signo in _FORWARDED_SIGNALS:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, received.si_signo)
        status = _reap_children(child)
    ended = kill_below(guard_pid, child)
    if status is None:
        status = _reap_children(child) if ended is None else ended
    _exit_with(signal.SIGKILL if status is None else status)


def _execute(command: list[str], signal_mask: set[int], guard_pid: int) -> None:
    """Replace this process with the command, which runs as if ``PARENT`` had started it."""
    try:
        os.setsid()
        set_death_signal()
        if os.getppid() != guard_pid:
            os._exit(_GUARD_ENDED)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these signals
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _close_files() -> None:
    """Close the guard's copies of the command's pipes, so that readers detect the end of the command."""
    descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    null_device = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        if descriptor != null_device:
            with contextlib.suppress(OSError):
                os.dup2(null_device, descriptor) if descriptor < 3 else os.close(descriptor)


def _reap_children(child: int) -> int | None:
    """Reap all children that have ended, and return the wait status of ``child`` if it is among them."""
    child_status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            if pid == child:
                child_status = status
    return child_status


def _exit_with(status: int) -> None:
    if not os.WIFSIGNALED(status):
        os._exit(os.waitstatus_to_exitcode(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has already written its core file
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(128 + number)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[3:])
