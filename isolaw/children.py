"""Child processes: each is the root of a tree that ends as a whole, within a limit of time.

A child is started in a session of its own (``start_new_session=True``), so that Ctrl-C is its parent's alone.
`end` ends it with everything that it has started, also what left its session. `end_with_parent`, called in
the child, ends it when its parent is gone, however that ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

GRACE_S = 2.0  # for the kernel to end a killed process
_PR_SET_PDEATHSIG = 1
_POLLING_S = 1.0


def end(process: subprocess.Popen[Any], grace: float = 0.0) -> None:
    """End a process that leads a session, and its tree.

    With a ``grace`` in seconds, its session gets SIGTERM first. What is then left is killed; a process that
    even SIGKILL does not end (one in a driver) is waited for at most `GRACE_S`.
    """
    tree = set(descendants(process.pid))
    if grace and process.poll() is None:
        _signal_session(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    tree |= set(descendants(process.pid))
    _signal_session(process.pid, signal.SIGKILL)
    for pid in tree:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def descendants(pid: int) -> list[int]:
    """Return the processes below one, from ``/proc``; none where the system has no such folder.

    A child whose own parent has ended belongs to init, and is found by its session alone.
    """
    parents: dict[int, int] = {}
    sessions: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
                    parents[int(folder.name)], sessions[int(folder.name)] = int(fields[1]), int(fields[3])
    found = {own for own, session in sessions.items() if session == pid and own != pid}
    roots = {pid, *found}
    while True:
        more = {own for own, parent in parents.items() if parent in roots} - roots
        if not more:
            return sorted(roots - {pid})
        roots |= more


def _signal_session(pid: int, number: int) -> None:
    """Signal the group that a session's leader began with."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end_with_parent(parent: int | None = None) -> None:
    """End this process when the one that started it ends; ``parent`` is its id, where it is known.

    Linux ends the process itself, even one that is stopped or holds the interpreter's lock; the end of the
    *thread* that started it counts there, so start from one that lasts. Elsewhere a thread looks each second.
    """
    parent = parent or os.getppid()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLLING_S)
    os._exit(1)
