"""A sampler in a process of its own: this is the trainer's end, `sampler_process` the other one.

The process gets two files: a socket to this one as its standard input, and the memory of the weights
(`shared_weights`) as its standard output. It is no rank of the run. Messages are JSON:

    to the sampler      open     `SamplerSettings`
                        weights  a version, and where each tensor is; after they are written
                        draw     a ticket, and what `Sampler.generate` is asked for
                        drop     forget every ticket
    from the sampler    loaded   a version, taken over between two tokens; null when it has started
                        drawn    a ticket; its rollouts follow (`send_rollouts`)
                        failed   why the sampler ends

Each end notices at once if the other one is gone, because the socket closes: the sampler then exits, and on
this side every current or later wait raises `RunError`. A wait also raises it if the sampler is suspended
(SIGSTOP) for `children.STOPPED_S`, or silent for longer than the processes of a run may wait for each other,
after a warning. No thread waits for the sampler to read.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, NoReturn

import numpy as np

from isolaw import children
from isolaw.backends.real import environment
from isolaw.backends.real.rollout.samplers import Rollouts, SamplerSettings
from isolaw.errors import RunError

_MODULE = "isolaw.backends.real.rollout.sampler_process"
_ENDING_S = 10.0
_LOOKING_S = 1.0  # seconds between checks of a silent sampler
_WARNING_S = 900.0  # a model is loaded by then, and long responses are drawn


class RemoteSampler:
    """A sampler's process, which draws several batches at a time; `wait` waits until it has started.

    ``memory`` is the file of the weights, and ``gpu`` the name of its GPU, if it has one. Waiting raises
    `RunError` once the process has ended; its user then closes it.
    """

    def __init__(self, settings: SamplerSettings, memory: int, gpu: str | None = None) -> None:
        self._taken = False  # whether the sampler has adopted the last weights
        self._drawn: dict[int, Rollouts | None] = {}  # by ticket; None: not yet
        self._socket, theirs = socket.socketpair()
        with theirs:
            # Ctrl-C is the trainer's, which first keeps its state.
            self.process = children.start(
                [sys.executable, "-P", "-m", _MODULE],
                stdin=theirs.fileno(),
                stdout=memory,
                env=environment.unranked() | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}),
            )
        self.stopping: Callable[[], bool] = lambda: False  # whether the run is asked to end
        self._patience_s = 3600 * settings.timeout_hours
        self._channel = Connection(os.dup(self._socket.fileno()))
        self._inbox: SimpleQueue[tuple[dict[str, Any], Rollouts | None] | None] = SimpleQueue()
        self._outbox: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._threads = [threading.Thread(target=own, daemon=True) for own in (self._listen, self._write)]
        for thread in self._threads:
            thread.start()
        self._send({"open": asdict(settings)})

    def draw(self, ticket: int, asked: dict[str, Any]) -> None:
        """Begin to draw from the last weights and later ones, by the arguments of `Sampler.generate`."""
        self._drawn[ticket] = None
        self._send({"draw": ticket, "asked": asked})

    def take(self, ticket: int) -> Rollouts:
        """Wait for the rollouts of a ticket."""
        while (rollouts := self._drawn[ticket]) is None:
            self._receive()
        del self._drawn[ticket]
        return rollouts

    def wait(self) -> None:
        """Wait until it has started, and then until it has adopted the last weights."""
        while not self._taken:
            self._receive()

    def load(self, places: list[dict[str, Any]], version: int) -> None:
        """Let it adopt weights in its memory before it draws its next token."""
        self._taken = False
        self._send({"weights": version, "places": places})

    def drop(self) -> None:
        """Forget every ticket."""
        self._drawn.clear()
        self._send({"drop": True})

    def close(self) -> None:
        """End the process."""
        children.end(self.process)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # for the threads, also where nothing ends the process
        self._outbox.put(None)
        for thread in self._threads:
            thread.join(_ENDING_S)
        self._channel.close()
        self._socket.close()

    def _listen(self) -> None:
        """Read the sampler's messages, so that it never waits for the trainer."""
        try:
            with contextlib.suppress(OSError, EOFError):
                while True:
                    message = json.loads(self._channel.recv_bytes())
                    rollouts = _receive_rollouts(self._channel) if "drawn" in message else None
                    self._inbox.put((message, rollouts))
        finally:  # whatever ended it, nobody waits for a message that cannot come
            self._inbox.put(None)

    def _write(self) -> None:
        """Write the messages to the sampler, so that the trainer never waits for one that does not read."""
        with contextlib.suppress(OSError):  # it is gone, which `_receive` reports
            while (message := self._outbox.get()) is not None:
                self._channel.send_bytes(json.dumps(message).encode())

    def _send(self, message: dict[str, Any]) -> None:
        self._outbox.put(message)

    def _next(self) -> tuple[dict[str, Any], Rollouts | None] | None:
        """Wait for a message; raise once none can come."""
        began = held_since = time.monotonic()
        warn_at = began + min(_WARNING_S, self._patience_s / 2)
        while True:
            with contextlib.suppress(Empty):
                return self._inbox.get(timeout=_LOOKING_S)
            now = time.monotonic()
            held = children.stopped(self.process.pid)
            held_since = held_since if held else now
            if held and self.stopping():
                self._give_up("is suspended (SIGSTOP), and the run was asked to end")
            if now - held_since > children.STOPPED_S:
                self._give_up(f"{held[0]} has been suspended for {children.STOPPED_S:.0f} s (SIGSTOP)")
            if now > warn_at:
                warn_at = math.inf
                logging.getLogger(__name__).warning(
                    f"the sampler's process {self.process.pid} has been silent for {(now - began) / 60:.0f} "
                    f"minutes; the run fails after {self._patience_s / 3600:g} hours (real.timeout_hours)"
                )
            if now - began > self._patience_s:
                self._give_up(f"has been silent for {self._patience_s / 3600:g} hours (real.timeout_hours)")

    def _give_up(self, why: str) -> NoReturn:
        raise RunError(f"the sampler's process {why}")

    def _receive(self) -> None:
        """Wait for the sampler's next message; raise if it has ended."""
        received = self._next()
        if received is None or "failed" in received[0]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_ENDING_S)
            status = self.process.returncode
            how = f"exit status {status}" if status is None or status >= 0 else signal.Signals(-status).name
            raise RunError(f"the sampler's process ended: {received[0]['failed'] if received else how}")
        message, rollouts = received
        if "loaded" in message:
            self._taken = True
        elif message["drawn"] in self._drawn:  # not of a dropped ticket
            self._drawn[message["drawn"]] = rollouts


def send_rollouts(channel: Connection, ticket: int, rollouts: Rollouts) -> None:
    """Send the rollouts of a ticket: the lengths of their rows, then each field's numbers in a row."""
    plain = {"prompts": rollouts.prompts, "finished": rollouts.finished}
    channel.send_bytes(json.dumps({"drawn": ticket}).encode())
    channel.send_bytes(json.dumps({**plain, "lengths": list(map(len, rollouts.tokens))}).encode())
    for rows, dtype in (
        (rollouts.tokens, np.int64),
        (rollouts.logprobs, float),
        (rollouts.versions, np.int64),
    ):
        channel.send_bytes(np.array([value for row in rows for value in row], dtype=dtype).tobytes())


def _receive_rollouts(channel: Connection) -> Rollouts:
    plain = json.loads(channel.recv_bytes())
    ends = np.cumsum(plain["lengths"])[:-1]
    tokens, logprobs, versions = (
        [row.tolist() for row in np.split(np.frombuffer(channel.recv_bytes(), dtype=dtype), ends)]
        for dtype in (np.int64, float, np.int64)
    )
    return Rollouts(plain["prompts"], tokens, logprobs, plain["finished"], versions=versions)
