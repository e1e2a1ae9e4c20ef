"""Child processes: each is the root of a tree that ends as a whole, within a limit of time.

`start` starts a command under a guard (`isolaw.guard`), in a session of its own, so that Ctrl-C is its
parent's alone. Its tree ends with the command, and with the process that started it, however that ended.
`end` ends it now. `end_with_parent` is for processes that are forked.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from isolaw import guard

_POLLING_S = 1.0


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a command; ``options`` are `subprocess.Popen`'s.

    The process that is returned is the guard: it ends with the command's exit status or signal, passes on
    SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 to the command's process group, and is ended with `end`.
    A command that cannot be executed has exit status 127, and says why on standard error.
    """
    line = list(command)
    if sys.platform == "linux":
        # Without a virtual environment, which it does not need, it starts sooner.
        python = getattr(sys, "_base_executable", "") or sys.executable
        line = [python, "-I", "-S", guard.__file__, str(os.getpid()), "--", *line]
    return subprocess.Popen(line, start_new_session=True, **options)


def end(process: subprocess.Popen[Any], grace: float = 0.0) -> None:
    """End what `start` started, with everything below it, and close its streams.

    With a ``grace`` in seconds, the command gets SIGTERM and so much time first. A process that even SIGKILL
    does not end (one in a driver) is waited for a few seconds, and left.
    """
    if grace and process.poll() is None:
        process.send_signal(signal.SIGTERM)
        _wait(process, grace)
    if sys.platform == "linux":
        process.send_signal(signal.SIGQUIT)  # nothing, where it has ended
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


def _wait(process: subprocess.Popen[Any], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def end_with_parent(parent: int | None = None) -> None:
    """End this process when the one that started it ends; ``parent`` is its id, where it is known.

    Linux ends the process itself, even one that is stopped or holds the interpreter's lock; the end of the
    *thread* that started it counts there, so start from one that lasts. Elsewhere a thread looks each second.
    """
    parent = parent or os.getppid()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            guard.set_death_signal()
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLLING_S)
    os._exit(1)
