"""Start the processes of a run on each of its machines, and connect them to the engine.

`launch` executes in the engine's process on the run's first machine. It opens a port, starts the processes of
this machine, and makes the other machines start their processes (`join`). It yields the checkpoints that the
first process reports. Ranks are numbered in the order of machines.

Security: the engine's port accepts only peers that send the run's secret, which is in the environment of its
processes. On one machine, processes listen only on loopback and find each other through a file in a private
folder. On several machines, they use a torch store at the address of the first machine, which requires no
secret (docs/cluster.md). Processes exchange JSON and no pickles (`process_group`).
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isolaw import children
from isolaw.backend import AnswerCounts, Checkpoint, Measurement, Processes, Response, RunContext, RunNote
from isolaw.errors import RunError

_STARTING_S = 600.0
_STOPPING_S = 30.0
_POLLING_S = 1.0  # seconds between checks whether the run has to stop
_LOOPBACK = "127.0.0.1"


def launch(wanted: Processes, context: RunContext) -> Iterator[Checkpoint]:
    """Execute a run in several processes from the context's state, and yield its checkpoints.

    Raise `RunError` if a process fails or ends early.
    """
    nodes = context.nodes
    count, address = (nodes.count, nodes.address) if nodes else (1, _LOOPBACK)
    state = str(context.state) if context.state else None
    job = {"spec": wanted.spec.model_dump(mode="json"), "state": state}
    here = wanted.count // count
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server((address, 0)))
        if nodes:
            store = stack.enter_context(socket.create_server((address, 0)))
            group: dict[str, Any] = {"address": address, "port": store.getsockname()[1]}
        else:
            store = None
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="isolaw-"))
            group = {"file": str(Path(folder) / "ranks")}
        meeting: dict[str, Any] = {
            "address": [address, listening.getsockname()[1]],
            "secret": secrets.token_hex(16),
            "group": group,
            "here": here,
            "world": wanted.count,
            "module": wanted.module,
            "threads": max(1, len(os.sched_getaffinity(0)) // here) if wanted.threaded else 1,
        }
        ranks = _Ranks(meeting, 0, store)
        connections = _Connections(meeting["secret"], job, ranks, context)
        threading.Thread(target=connections.accept, args=(listening,), daemon=True).start()
        try:
            if nodes:
                nodes.call(meeting)
            yield from connections.checkpoints()
            ranks.wait(_STOPPING_S)
        finally:
            connections.close()
            ranks.end()


def join(meeting: dict[str, Any], node: int) -> None:
    """Start the processes of a run on its machine with number ``node``, and wait until they end."""
    ranks = _Ranks(meeting, node)
    try:
        ranks.wait()
    finally:
        ranks.end()


class _Ranks:
    """The processes of a run on one of its machines.

    ``store`` is the socket on which the first process serves the torch store.
    """

    def __init__(self, meeting: dict[str, Any], node: int, store: socket.socket | None = None) -> None:
        here, (address, port) = meeting["here"], meeting["address"]
        command = [sys.executable, "-P", "-m", meeting["module"], address, str(port)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._failure = ""
        for place in range(here):
            group, rank = dict(meeting["group"]), node * here + place
            shared = store if rank == 0 else None
            if shared is not None:
                group["socket"] = shared.fileno()
            variables = {
                "RANK": rank,
                "LOCAL_RANK": place,
                "WORLD_SIZE": meeting["world"],
                "LOCAL_WORLD_SIZE": here,
            }
            threads = {"OMP_NUM_THREADS": str(meeting["threads"])}
            self.processes[rank] = children.start(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[] if shared is None else [shared.fileno()],
                env={
                    **threads,
                    **os.environ,
                    **{name: str(value) for name, value in variables.items()},
                    children.GROUP: json.dumps(group),
                    children.SECRET: meeting["secret"],
                },
            )

    def wait(self, seconds: float = math.inf) -> None:
        """Wait until all processes have ended, one has failed, or the time limit is reached."""
        until = time.monotonic() + seconds
        while self.running and not self.failure and time.monotonic() < until:
            time.sleep(0.05)

    @property
    def running(self) -> bool:
        """True if any process is running."""
        return any(process.poll() is None for process in self.processes.values())

    @property
    def failure(self) -> str:
        """Description of how the first failed process ended; empty if no process has failed.

        After a failure, the other processes also fail, with less informative errors. A process that was
        killed by a signal therefore has priority over processes that ended with an exit code.
        """
        if not self._failure:
            codes = {rank: code for rank, process in self.processes.items() if (code := process.poll())}
            for rank, code in sorted(codes.items(), key=lambda one: one[1] > 0):
                how = f"exit status {code}" if code > 0 else signal.Signals(-code).name
                self._failure = f"process {rank} of the run ended ({how})"
                break
        return self._failure

    def end(self) -> None:
        """End the processes by SIGTERM, and kill them with all their child processes after a time limit."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        until = time.monotonic() + _STOPPING_S
        while self.running and time.monotonic() < until:
            time.sleep(0.02)
        for process in self.processes.values():
            children.end(process)


class _Connections:
    """The engine's connections to all processes of a run."""

    def __init__(self, secret: str, job: dict[str, Any], ranks: _Ranks, context: RunContext) -> None:
        self.secret, self.job, self.ranks, self.context = secret, job, ranks, context
        # Reports of processes; None if a process has ended without its last message.
        self.reports: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.first: Any = None  # stream to the first process
        self.connections: list[socket.socket] = []
        self.until = time.monotonic() + _STARTING_S
        self.stopping = False

    def accept(self, listening: socket.socket) -> None:
        """Accept connections of processes until ``listening`` is closed at the end of the run."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection: socket.socket) -> None:
        lines, writes = children.ends(connection)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), connection, lines, writes:
            connection.settimeout(_STOPPING_S)
            hello = json.loads(lines.readline(1000))
            if not hmac.compare_digest(str(hello["secret"]), self.secret):
                return
            connection.settimeout(None)
            children.keep_alive(connection)
            self.connections.append(connection)
            children.write(writes, self.job)
            rank, done = int(hello["rank"]), False
            if rank == 0:
                self.first = writes
            with contextlib.suppress(OSError, ValueError):
                for text in lines:
                    report = json.loads(text)
                    done = done or "done" in report
                    if rank == 0 or "done" not in report:
                        self.reports.put(report)
            if not done:
                self.reports.put(None)

    def close(self) -> None:
        """Close the connections, which ends the processes on all machines."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Yield the checkpoints that the first process reports."""

        def save(folder: Path) -> None:
            self._send({"save": str(folder.resolve())})
            self._receive()

        while "done" not in (report := self._receive()):
            for name, kind in (
                ("rows", Measurement),
                ("counts", AnswerCounts),
                ("responses", Response),
                ("notes", RunNote),
            ):
                report[name] = [kind(**one) for one in report[name]]
            yield Checkpoint(**{**report, "save": save})
            self._send({})

    def _send(self, value: dict[str, Any]) -> None:
        """Send a message to the first process; if this process has ended, `_receive` raises the error."""
        with contextlib.suppress(OSError, ValueError):
            children.write(self.first, value)

    def _receive(self) -> dict[str, Any]:
        """Return the next report of the first process; raise `RunError` if any process failed or ended."""
        while True:
            try:
                report = self.reports.get(timeout=_POLLING_S)
            except queue.Empty:
                if (self.ranks.failure or not self.ranks.running) and self.reports.empty():
                    raise self._ended() from None
                if self.first is None and time.monotonic() > self.until:
                    raise RunError(f"the processes did not start within {_STARTING_S:.0f} s") from None
                if self.first is not None and not self.stopping and self.context.stopping():
                    self.stopping = True
                    self._send({"stop": True})
                continue
            if report is None:
                raise self._ended()
            if "failed" in report:
                raise RunError(report["failed"])
            return report

    def _ended(self) -> RunError:
        """Return the error that ended the run.

        Its message is the failure that a process reported or, without a report, how a process ended.
        """
        self.ranks.wait(_STOPPING_S)
        with contextlib.suppress(queue.Empty):
            while True:
                report = self.reports.get(timeout=0.1)
                if report and "failed" in report:
                    return RunError(report["failed"])
        ended = self.ranks.failure or "a process of the run ended"
        return RunError(f"{ended} before the run began" if self.first is None else ended)
