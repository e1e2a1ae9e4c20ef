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

_START_LIMIT_S = 600.0
_STOP_LIMIT_S = 30.0
_STOP_CHECK_S = 1.0  # seconds between checks whether the run has to stop
_LOOPBACK = "127.0.0.1"


def launch(processes: Processes, context: RunContext) -> Iterator[Checkpoint]:
    """Execute a run in several processes from the context's state, and yield its checkpoints.

    Raise `RunError` if a process fails or ends early.
    """
    nodes = context.nodes
    node_count, address = (nodes.count, nodes.address) if nodes else (1, _LOOPBACK)
    state = str(context.state) if context.state else None
    job = {"spec": processes.spec.model_dump(mode="json"), "state": state}
    local_count = processes.count // node_count
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server((address, 0)))
        if nodes:
            store_socket = stack.enter_context(socket.create_server((address, 0)))
            group: dict[str, Any] = {"address": address, "port": store_socket.getsockname()[1]}
        else:
            store_socket = None
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="isolaw-"))
            group = {"file": str(Path(folder) / "ranks")}
        meeting: dict[str, Any] = {
            "address": [address, server.getsockname()[1]],
            "secret": secrets.token_hex(16),
            "group": group,
            "here": local_count,
            "world": processes.count,
            "module": processes.module,
            "threads": max(1, len(os.sched_getaffinity(0)) // local_count) if processes.threaded else 1,
        }
        ranks = _Ranks(meeting, 0, store_socket)
        connections = _Connections(meeting["secret"], job, ranks, context)
        threading.Thread(target=connections.accept, args=(server,), daemon=True).start()
        try:
            if nodes:
                nodes.call(meeting)
            yield from connections.checkpoints()
            ranks.wait(_STOP_LIMIT_S)
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

    ``store_socket`` is the one on which the first process serves the torch store.
    """

    def __init__(self, meeting: dict[str, Any], node: int, store_socket: socket.socket | None = None) -> None:
        local_count, (address, port) = meeting["here"], meeting["address"]
        command = [sys.executable, "-P", "-m", meeting["module"], address, str(port)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._failure = ""
        for local_rank in range(local_count):
            group, rank = dict(meeting["group"]), node * local_count + local_rank
            rank_store = store_socket if rank == 0 else None
            if rank_store is not None:
                group["socket"] = rank_store.fileno()
            rank_variables = {
                "RANK": rank,
                "LOCAL_RANK": local_rank,
                "WORLD_SIZE": meeting["world"],
                "LOCAL_WORLD_SIZE": local_count,
            }
            threads = {"OMP_NUM_THREADS": str(meeting["threads"])}
            self.processes[rank] = children.start(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[] if rank_store is None else [rank_store.fileno()],
                env={
                    **threads,
                    **os.environ,
                    **{name: str(value) for name, value in rank_variables.items()},
                    children.GROUP: json.dumps(group),
                    children.SECRET: meeting["secret"],
                },
            )

    def wait(self, seconds: float = math.inf) -> None:
        """Wait until all processes have ended, one has failed, or the time limit is reached."""
        deadline = time.monotonic() + seconds
        while self.running and not self.failure and time.monotonic() < deadline:
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
            for rank, code in sorted(codes.items(), key=lambda item: item[1] > 0):
                ending = f"exit status {code}" if code > 0 else signal.Signals(-code).name
                self._failure = f"process {rank} of the run ended ({ending})"
                break
        return self._failure

    def end(self) -> None:
        """End the processes by SIGTERM, and kill them with all their child processes after a time limit."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _STOP_LIMIT_S
        while self.running and time.monotonic() < deadline:
            time.sleep(0.02)
        for process in self.processes.values():
            children.end(process)


class _Connections:
    """The engine's connections to all processes of a run."""

    def __init__(self, secret: str, job: dict[str, Any], ranks: _Ranks, context: RunContext) -> None:
        self.secret, self.job, self.ranks, self.context = secret, job, ranks, context
        # Reports of processes; None if a process has ended without its last message.
        self.reports: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.first_stream: Any = None  # stream to the first process
        self.connections: list[socket.socket] = []
        self.start_deadline = time.monotonic() + _START_LIMIT_S
        self.stopping = False

    def accept(self, server: socket.socket) -> None:
        """Accept connections of processes until ``server`` is closed at the end of the run."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection: socket.socket) -> None:
        lines, stream = children.ends(connection)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), connection, lines, stream:
            connection.settimeout(_STOP_LIMIT_S)
            greeting = json.loads(lines.readline(1000))
            if not hmac.compare_digest(str(greeting["secret"]), self.secret):
                return
            connection.settimeout(None)
            children.keep_alive(connection)
            self.connections.append(connection)
            children.write(stream, self.job)
            rank, is_done = int(greeting["rank"]), False
            if rank == 0:
                self.first_stream = stream
            with contextlib.suppress(OSError, ValueError):
                for line in lines:
                    report = json.loads(line)
                    is_done = is_done or "done" in report
                    if rank == 0 or "done" not in report:
                        self.reports.put(report)
            if not is_done:
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
            for key, record_class in (
                ("rows", Measurement),
                ("counts", AnswerCounts),
                ("responses", Response),
                ("notes", RunNote),
            ):
                report[key] = [record_class(**values) for values in report[key]]
            yield Checkpoint(**{**report, "save": save})
            self._send({})

    def _send(self, message: dict[str, Any]) -> None:
        """Send a message to the first process; if this process has ended, `_receive` raises the error."""
        with contextlib.suppress(OSError, ValueError):
            children.write(self.first_stream, message)

    def _receive(self) -> dict[str, Any]:
        """Return the next report of the first process; raise `RunError` if any process failed or ended."""
        while True:
            try:
                report = self.reports.get(timeout=_STOP_CHECK_S)
            except queue.Empty:
                if (self.ranks.failure or not self.ranks.running) and self.reports.empty():
                    raise self._end_error() from None
                if self.first_stream is None and time.monotonic() > self.start_deadline:
                    raise RunError(f"the processes did not start within {_START_LIMIT_S:.0f} s") from None
                if self.first_stream is not None and not self.stopping and self.context.stopping():
                    self.stopping = True
                    self._send({"stop": True})
                continue
            if report is None:
                raise self._end_error()
            if "failed" in report:
                raise RunError(report["failed"])
            return report

    def _end_error(self) -> RunError:
        """Return the error that ended the run.

        Its message is the failure that a process reported or, without a report, how a process ended.
        """
        self.ranks.wait(_STOP_LIMIT_S)
        with contextlib.suppress(queue.Empty):
            while True:
                report = self.reports.get(timeout=0.1)
                if report and "failed" in report:
                    return RunError(report["failed"])
        cause = self.ranks.failure or "a process of the run ended"
        return RunError(f"{cause} before the run began" if self.first_stream is None else cause)
