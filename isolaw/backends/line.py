"""Messages between the engine and the processes of a run of several: a line of JSON each, over TCP.

A process connects, names its rank and the run's secret, and receives its job; the first one reports
checkpoints. `isolaw.executors.launcher` is the engine's end, `Line` that of a process.
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
_CONNECTING_S = 30.0


class Line:
    """The connection of one of a run's processes to the engine; the process exits when the engine is gone."""

    def __init__(self, address: str, port: int) -> None:
        connection = socket.create_connection((address, port), timeout=_CONNECTING_S)
        connection.settimeout(None)
        keep_alive(connection)
        self.lines, self.writes = ends(connection)
        self.asked_to_stop = threading.Event()
        self.ended = threading.Event()
        self.messages: queue.Queue[dict[str, Any]] = queue.Queue()
        self.send({"secret": os.environ.pop(SECRET), "rank": int(os.environ["RANK"])})
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # reset, where the engine had not read all
            for line in self.lines:
                message = json.loads(line)
                if "stop" in message:
                    self.asked_to_stop.set()
                else:
                    self.messages.put(message)
        if not self.ended.is_set():
            os._exit(1)

    def send(self, value: dict[str, Any]) -> None:
        """Send a message to the engine."""
        write(self.writes, value)

    def end(self, value: dict[str, Any]) -> None:
        """Send the last message: what follows it is no failure."""
        self.ended.set()
        with contextlib.suppress(OSError):
            self.send(value)

    def receive(self) -> dict[str, Any]:
        """Wait for the engine's next message."""
        return self.messages.get()


def keep_alive(connection: socket.socket) -> None:
    """See the end of a machine that has no time to say so within about a minute."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3)):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def ends(connection: socket.socket) -> tuple[TextIO, TextIO]:
    """A file to read from and another to write to: one for both would lose what is read ahead."""
    return connection.makefile("r", encoding="utf-8"), connection.makefile("w", encoding="utf-8")


def write(lines: TextIO, value: dict[str, Any]) -> None:
    lines.write(json.dumps(value) + "\n")
    lines.flush()
