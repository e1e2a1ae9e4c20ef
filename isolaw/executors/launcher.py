"""Runs of several processes: torchrun starts them on each machine, and the first one talks to the engine.

`launch` is the engine's side, on the run's first machine: it opens a port, starts torchrun here, has the
other machines start theirs (`join`), and yields what the first process reports. What the processes execute is
the backend's (`isolaw.backends.base.Processes`).

Over several machines torchrun's rendezvous is static: the first one's address, a free port of it, and the
machines' numbers from 0. Ranks follow the order of machines, so that processes which share a sampler
(`tensor_parallel` of them in a row) are on one machine where that divides its number of processes.

Whoever connects has to know the run's secret, which its processes have in their environment. The port is
open to other machines only where the run has them.
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
from isolaw.backends.base import Checkpoint, Counts, Processes, Row, RunContext
from isolaw.errors import RunError

_STARTING_S = 600.0
_STOPPING_S = 30.0
# How often the engine looks whether the run is asked to end.
_LOOK_S = 1.0


def launch(wanted: Processes, context: RunContext) -> Iterator[Checkpoint]:
    """Make a run in processes of its own, or what is left of it after the context's state."""
    nodes = context.nodes
    count, address = (nodes.count, nodes.address) if nodes else (1, "127.0.0.1")
    state = str(context.state) if context.state else None
    job = {"spec": wanted.spec.model_dump(mode="json"), "state": state}
    here = wanted.count // count
    with socket.create_server(("" if nodes else address, 0)) as listening:
        rendezvous = [] if wanted.torchrun else ["--standalone"]
        if nodes:
            rendezvous = [f"--nnodes={count}", f"--master-addr={address}", f"--master-port={_free_port()}"]
        meeting: dict[str, Any] = {
            "address": [address, listening.getsockname()[1]],
            "secret": secrets.token_hex(16),
            "torchrun": [*rendezvous, f"--nproc-per-node={here}", *wanted.torchrun],
            "module": wanted.module,
            "threads": max(1, len(os.sched_getaffinity(0)) // here) if wanted.threaded else 1,
        }
        process = _torchrun(meeting, 0 if nodes else None)
        processes = _Connections(listening, meeting["secret"], job, process, context)
        try:
            if nodes:
                nodes.call(meeting)
            yield from _checkpoints(processes)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOPPING_S)
        finally:
            processes.close()
            _stop(process)


def join(meeting: dict[str, Any], node: int) -> None:
    """Start a run's processes on its machine number ``node``, and wait for their end."""
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
    """End the processes that were started here, and no other."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOPPING_S)


def _free_port() -> int:
    with socket.create_server(("", 0)) as free:
        port: int = free.getsockname()[1]
        return port


class _Connections:
    """The engine's end of the lines to all processes of a run."""

    def __init__(
        self,
        listening: socket.socket,
        secret: str,
        job: dict[str, Any],
        process: subprocess.Popen[bytes],
        context: RunContext,
    ) -> None:
        self.secret, self.job, self.process, self.context = secret, job, process, context
        self.told: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        self.first: Any = None
        self.connections: list[socket.socket] = []
        self.until = time.monotonic() + _STARTING_S
        self.asked_to_stop = False
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed, at the run's end
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
                    told = json.loads(text)
                    done = done or "done" in told
                    if rank == 0 or "done" not in told:
                        self.told.put((rank, told))
            if not done:
                self.told.put((rank, None))

    def close(self) -> None:
        """End the lines, and thereby the processes, wherever they are."""
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def ask(self, value: dict[str, Any]) -> None:
        """Tell the first process something."""
        with contextlib.suppress(OSError, ValueError):  # its end is heard
            line.write(self.first, value)

    def hear(self) -> dict[str, Any]:
        """Return what the first process says next; raise what any process has failed with."""
        while True:
            try:
                _, told = self.told.get(timeout=_LOOK_S)
            except queue.Empty:
                self._look()
                continue
            if told is None:
                raise self._ended()
            if "failed" in told:
                raise RunError(told["failed"])
            return told

    def _look(self) -> None:
        if self.process.poll() is not None and self.told.empty():
            raise self._ended()
        if self.first is None and time.monotonic() > self.until:
            raise RunError(f"the processes did not start within {_STARTING_S:.0f} s")
        if self.first is not None and not self.asked_to_stop and self.context.stopping():
            self.asked_to_stop = True
            self.ask({"stop": True})

    def _ended(self) -> Exception:
        """Why a process has gone: what one of them told, or how torchrun ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOPPING_S)
        with contextlib.suppress(queue.Empty):
            while True:
                _, told = self.told.get(timeout=0.1)
                if told and "failed" in told:
                    return RunError(told["failed"])
        status = f"torchrun's exit status {self.process.returncode}"
        return RunError(
            f"torchrun ended before the run began ({status})"
            if self.first is None
            else f"a process of the run ended ({status})"
        )


def _checkpoints(processes: _Connections) -> Iterator[Checkpoint]:
    def save(folder: Path) -> None:
        processes.ask({"save": str(folder.resolve())})
        processes.hear()

    while True:
        told = processes.hear()
        if "done" in told:
            return
        rows = [Row(**row) for row in told.pop("rows")]
        counts = [Counts(**count) for count in told.pop("counts")]
        yield Checkpoint(rows=rows, counts=counts, save=save, **told)
        processes.ask({})
