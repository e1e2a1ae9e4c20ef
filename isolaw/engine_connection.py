"""Exchange messages between the engine and the processes of a run, as lines of JSON over TCP.

A process connects, sends the run's secret and its rank, and receives its job. The first process reports
checkpoints. `EngineConnection` is the process's end of the connection, and `isolaw.executors.launcher` is the
engine's end.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
from typing import Any, TextIO

SECRET = "ISOLAW_SECRET"
GROUP = "ISOLAW_GROUP"  # environment variable through which the processes find each other (`process_group`)
_CONNECTING_S = 30.0


class EngineConnection:
    """The connection from a process of a run to the engine. If the engine is gone, the process exits."""

    def __init__(self, address: str, port: int) -> None:
        connection = socket.create_connection((address, port), timeout=_CONNECTING_S)
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
