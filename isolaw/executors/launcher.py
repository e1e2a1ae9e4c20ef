"""Runs of several processes: torchrun starts them on each machine, and the first one talks to the engine.

`launch` is the engine's side, on the run's first machine: it opens a port, starts torchrun, makes the other
machines start theirs (`join`), and yields what the first process reports.

On several machines torchrun's rendezvous is static: the first machine's address, a free port of it, and the
machines' numbers from 0. Ranks follow the order of machines. A process that connects has to send the run's
secret, which is in its environment. The port is open to other machines only if the run has several.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from isolaw.backends import line
from isolaw.backends.base import Checkpoint, Counts, Processes, Response, Row, RunContext
from isolaw.errors import RunError

_STARTING_S = 600.0
_STOPPING_S = 30.0
_POLLING_S = 1.0  # between checks of whether the run has to stop


def launch(wanted: Processes, context: RunContext) -> Iterator[Checkpoint]:
    """Make a run in processes of its own, or what is left of it after the context's state.

    Raises `RunError` where a process failed or ended.
    """
    nodes = context.nodes
    count, address = (nodes.count, nodes.address) if nodes else (1, "127.0.0.1")
    state = str(context.state) if context.state else None
    job = {"spec": wanted.spec.model_dump(mode="json"), "state": state}
    here = wanted.count // count
    with socket.create_server(("" if nodes else address, 0)) as listening:
        rendezvous = [] if wanted.torchrun else ["--standalone"]
        if nodes:
            with socket.create_server(("", 0)) as free:
                port = free.getsockname()[1]
            rendezvous = [f"--nnodes={count}", f"--master-addr={address}", f"--master-port={port}"]
        meeting: dict[str, Any] = {
            "address": [address, listening.getsockname()[1]],
            "secret": secrets.token_hex(16),
            "torchrun": [*rendezvous, f"--nproc-per-node={here}", *wanted.torchrun],
            "module": wanted.module,
            "threads": max(1, len(os.sched_getaffinity(0)) // here) if wanted.threaded else 1,
        }
        process = _torchrun(meeting, 0 if nodes else None)
        connections = _Connections(meeting["secret"], job, process, context)
        threading.Thread(target=connections.accept, args=(listening,), daemon=True).start()
        try:
            if nodes:
                nodes.call(meeting)
            yield from connections.checkpoints()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOPPING_S)
        finally:
            connections.close()
            _stop(process)


def join(meeting: dict[str, Any], node: int) -> None:
    """Start a run's processes on its machine number ``node`` and wait for their end."""
    process = _torchrun(meeting, node)
    try:
        process.wait()
    finally:
        _stop(process)


def _torchrun(meeting: dict[str, Any], node: int | None) -> subprocess.Popen[bytes]:
    rank = [] if node is None else [f"--node-rank={node}"]
    address, port = meeting["address"]
    command = [sys.executable, "-m", "torch.distributed.run", *meeting["torchrun"], *rank]
    return subprocess.Popen(
        [*command, "-m", meeting["module"], address, str(port)],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={"OMP_NUM_THREADS": str(meeting["threads"]), **os.environ, line.SECRET: meeting["secret"]},
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process group that was started here."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOPPING_S)


class _Connections:
    """The engine's connections to all processes of a run."""

    def __init__(
        self, secret: str, job: dict[str, Any], process: subprocess.Popen[bytes], context: RunContext
    ) -> None:
        self.secret, self.job, self.process, self.context = secret, job, process, context
        # What processes report; None when one has ended without its last message.
        self.reports: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.first: Any = None  # where to write to the first process
        self.connections: list[socket.socket] = []
        self.until = time.monotonic() + _STARTING_S
        self.stopping = False

    def accept(self, listening: socket.socket) -> None:
        """Serve the processes that connect, until ``listening`` is closed at the run's end."""
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection: socket.socket) -> None:
        lines, writes = line.ends(connection)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError), connection, lines, writes:
            connection.settimeout(_STOPPING_S)
            hello = json.loads(lines.readline(1000))
            if not hmac.compare_digest(str(hello["secret"]), self.secret):
                return
            connection.settimeout(None)
            line.keep_alive(connection)
            self.connections.append(connection)
            line.write(writes, self.job)
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
        """Close the connections, and thereby end the processes on all machines."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Yield the checkpoints that the first process reports."""

        def save(folder: Path) -> None:
            self._send({"save": str(folder.resolve())})
            self._receive()

        while "done" not in (report := self._receive()):
            rows = [Row(**row) for row in report.pop("rows")]
            counts = [Counts(**count) for count in report.pop("counts")]
            responses = [Response(**response) for response in report.pop("responses")]
            yield Checkpoint(rows=rows, counts=counts, responses=responses, save=save, **report)
            self._send({})

    def _send(self, value: dict[str, Any]) -> None:
        """Send the first process a message; `_receive` notices if it has ended."""
        with contextlib.suppress(OSError, ValueError):
            line.write(self.first, value)

    def _receive(self) -> dict[str, Any]:
        """Return the first process's next report; raise if any process has failed or ended."""
        while True:
            try:
                report = self.reports.get(timeout=_POLLING_S)
            except queue.Empty:
                if self.process.poll() is not None and self.reports.empty():
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
        """Return why a process has ended: the failure that one reports, or torchrun's exit status."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOPPING_S)
        with contextlib.suppress(queue.Empty):
            while True:
                report = self.reports.get(timeout=0.1)
                if report and "failed" in report:
                    return RunError(report["failed"])
        what = "torchrun ended before the run began" if self.first is None else "a process of the run ended"
        return RunError(f"{what} (torchrun's exit status {self.process.returncode})")
