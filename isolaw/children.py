"""Child processes: each is the root of a process tree that ends as a whole, within a time limit.

`start` starts a command under a guard (`isolaw.guard`), in its own session, so that only its parent receives
Ctrl-C. The tree ends with the command, and with the process that started it, however that ended. `end` ends
it at once; `run` does both within a limit. `each` computes in forks of this process, which end with it, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from isolaw import guard
from isolaw.errors import RunError

STOPPED_S = 30.0  # time that a process may be suspended before its waiter gives up
_POLLING_S = 1.0
T = TypeVar("T")


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a command; ``options`` are `subprocess.Popen`'s.

    The returned process is the guard. It ends with the command's exit status or signal, forwards SIGTERM,
    SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 to the command's process group, and is ended with `end`. A command
    that cannot be executed has exit status 127 and says why on standard error.
    """
    line = list(command)
    if sys.platform == "linux":
        # The guard starts faster without a virtual environment, which it does not need.
        python = getattr(sys, "_base_executable", "") or sys.executable
        line = [python, "-I", "-S", guard.__file__, str(os.getpid()), "--", *line]
    return subprocess.Popen(line, start_new_session=True, **options)


def end(process: subprocess.Popen[Any], grace: float = 0.0) -> None:
    """End a process from `start` with everything below it, and close its streams.

    With a ``grace`` in seconds, the command first gets SIGTERM and that much time. A process that even
    SIGKILL does not end (one in a driver) is abandoned after a few seconds.
    """
    if grace and process.poll() is None:
        process.send_signal(signal.SIGTERM)
        _wait(process, grace)
    if sys.platform == "linux":
        process.send_signal(signal.SIGQUIT)  # no effect if it has ended
        _wait(process, guard.LIMIT_S)
        guard.kill_below(process.pid) if process.poll() is None else None
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    _wait(process, guard.LIMIT_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def run(command: Sequence[str], limit_s: float, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Execute a command to its end, with its tree. ``options`` are `subprocess.Popen`'s.

    Raises `subprocess.TimeoutExpired` after ``limit_s`` seconds, even if the command does not end then.

    >>> run(["echo", "done"], 60.0, stdout=subprocess.PIPE, text=True).stdout
    'done\\n'
    """
    process = start(command, **options)
    try:
        output, errors = process.communicate(timeout=limit_s)
    finally:
        end(process)
    return subprocess.CompletedProcess(list(command), process.returncode, output, errors)


def _wait(process: subprocess.Popen[Any], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def stopped(pid: int) -> list[int]:
    """Return the processes below one that are suspended, as by SIGSTOP; empty without ``/proc``."""
    return [own for own in guard.descendants(pid) if guard.is_stopped(own)]


def each(
    function: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
    jobs: int | None = None,
    report: Callable[[int], None] = lambda _: None,
) -> list[T]:
    """Return ``function`` of each argument tuple, in order; ``report`` receives the number done so far.

    ``jobs`` is the number of processes, by default one per core. Raises `RunError` if one of them is killed,
    or suspended for long.
    """
    # These imports take a tenth of a second, which no other caller of this module needs.
    from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    jobs = jobs or len(os.sched_getaffinity(0))
    if jobs == 1:
        out: list[T] = []
        for one in arguments:
            out.append(function(*one))
            report(len(out))
        return out
    # Forked, so that a user's script needs no guard; Ctrl-C goes to this process.
    pool = ProcessPoolExecutor(jobs, get_context("fork"), _begin, (os.getpid(),))
    try:
        futures = [pool.submit(function, *one) for one in arguments]
        left, since = set(futures), time.monotonic()
        while left:
            _, left = wait(left, _POLLING_S, FIRST_COMPLETED)
            report(len(futures) - len(left))
            held = [own for own in pool._processes if guard.is_stopped(own)]  # the pool's processes only
            if not held:
                since = time.monotonic()
            elif time.monotonic() - since > STOPPED_S:
                raise RunError(f"worker process {held[0]} has been stopped (SIGSTOP) for {STOPPED_S:.0f} s")
        return [future.result() for future in futures]
    except BrokenProcessPool:
        raise RunError("a worker process was killed; repeat the command to continue") from None
    finally:
        for process in list((pool._processes or {}).values()):
            process.kill()  # a suspended one would be waited for
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


def end_with_parent(parent: int | None = None) -> None:
    """End this process when the process that started it ends; ``parent`` is its id, if known.

    Linux ends this process itself, even if it is suspended or holds the GIL. There the end of the starting
    *thread* counts, so start from a lasting one. On other systems a thread checks every second.
    """
    parent = parent or os.getppid()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            guard.set_death_signal()
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # the parent has already ended
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLLING_S)
    os._exit(1)
