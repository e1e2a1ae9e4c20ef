"""Start and end child processes, each as the root of a process tree that ends as a whole.

`start` starts a command under a guard (`isolaw.guard`) in its own session, so only its parent receives
Ctrl-C. The process tree ends when the command ends, or when the process that started it ends for any reason.
`end` ends the tree immediately, and `run` executes a command within a time limit. `EngineConnection`
and `ends` are the connection from a process of a run to the engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, TextIO

from isolaw import guard

SECRET = "ISOLAW_SECRET"
GROUP = "ISOLAW_GROUP"  # environment variable through which the processes find each other (`process_group`)
_CONNECT_LIMIT_S = 30.0


class EngineConnection:
    """The connection from a process of a run to the engine. If the engine is gone, the process exits."""

    def __init__(self, address: str, port: int) -> None:
        connection = socket.create_connection((address, port), timeout=_CONNECT_LIMIT_S)
        connection.settimeout(None)
        keep_alive(connection)
        self.lines, self.writes = ends(connection)
        self.stopping, self.ended = threading.Event(), threading.Event()
        self.messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self.send({"secret": os.environ.pop(SECRET), "rank": int(os.environ["RANK"])})
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # the engine closed the connection without reading all messages
            for line in self.lines:
                message = json.loads(line)
                if "stop" in message:
                    self.stopping.set()
                else:
                    self.messages.put(message)
        if not self.ended.is_set():
            os._exit(1)

    def send(self, value: dict[str, Any]) -> None:
        """Send a message to the engine."""
        write(self.writes, value)

    def end(self, value: dict[str, Any]) -> None:
        """Send the last message. The engine can then close the connection without ending this process."""
        self.ended.set()
        with contextlib.suppress(OSError):
            self.send(value)

    def receive(self) -> dict[str, Any]:
        """Wait for the engine's next message, and return it."""
        return self.messages.get()


def keep_alive(connection: socket.socket) -> None:
    """Configure a connection to fail within about a minute if the machine at the other end is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def ends(connection: socket.socket) -> tuple[TextIO, TextIO]:
    """Return a file to read from and a file to write to; a single file would lose text that it read ahead."""
    return connection.makefile("r", encoding="utf-8"), connection.makefile("w", encoding="utf-8")


def write(lines: TextIO, value: dict[str, Any]) -> None:
    """Write a message as one line of JSON."""
    lines.write(json.dumps(value) + "\n")
    lines.flush()


STOPPED_S = 30.0  # longest suspension of a worker process before isolaw gives it up


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a command, and return its guard process; ``options`` are passed to `subprocess.Popen`.

    The guard ends with the command's exit status or signal. It forwards SIGTERM, SIGINT, SIGHUP, SIGUSR1 and
    SIGUSR2 to the command's process group. Use `end` to end it. If the command cannot be executed, the exit
    status is 127, and the reason is on standard error.
    """
    arguments = list(command)
    if sys.platform == "linux":
        # The guard starts faster without a virtual environment, which it does not need.
        base_python = getattr(sys, "_base_executable", "") or sys.executable
        arguments = [base_python, "-I", "-S", guard.__file__, str(os.getpid()), "--", *arguments]
    return subprocess.Popen(arguments, start_new_session=True, **options)


def end(process: subprocess.Popen[Any], grace_s: float = 0.0) -> None:
    """End a process from `start` with all its descendants, and close its streams.

    With a ``grace_s`` in seconds, the command first gets SIGTERM and this time to end. A process that even
    SIGKILL does not end (because it waits in a driver) is abandoned after a few seconds.
    """
    if grace_s and process.poll() is None:
        process.send_signal(signal.SIGTERM)
        _wait(process, grace_s)
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
    """Execute a command, and return its result once it and its process tree have ended.

    ``options`` are passed to `subprocess.Popen`. Raises `subprocess.TimeoutExpired` after ``limit_s``
    seconds, even if the command cannot be ended.

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
    """Return the suspended descendants of a process (as by SIGSTOP). The list is empty without ``/proc``."""
    return [descendant for descendant in guard.descendants(pid) if guard.is_stopped(descendant)]
