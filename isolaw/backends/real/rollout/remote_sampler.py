"""Control a sampler in a separate process: this module is the trainer's end, `sampler_process` the other end.

The sampler process gets two files: a socket to the trainer as its standard input, and the shared memory of
the weights (`SharedWeights`) as its standard output. It is not a rank of the run. Messages are JSON:

    to the sampler      open     the `SamplerSettings`
                        weights  a version, and the place of each tensor; sent after they are written
                        draw     a ticket, and the arguments of `Sampler.generate`
                        drop     discard all tickets
    from the sampler    loaded   the version adopted between two tokens; null after the start
                        drawn    a ticket; its rollouts follow as safetensors (`row_tensors`)
                        failed   the reason why the sampler ends

If one end dies, the socket closes and the other end notices immediately. The sampler then exits. In the
trainer, every current or later wait raises `RunError`. A wait also raises `RunError` if the sampler is
suspended (SIGSTOP) for `children.STOPPED_S`. The same happens, after a warning, if the sampler is silent for
longer than processes of a run wait for each other. No call of the trainer blocks until the sampler reads.
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

from safetensors.torch import load

from isolaw import children
from isolaw.backends.real import environment
from isolaw.backends.real.rollout.samplers import Rollouts, SamplerSettings
from isolaw.backends.real.train import row_tensors
from isolaw.errors import RunError

_MODULE = "isolaw.backends.real.rollout.sampler_process"
_ENDING_S = 10.0
_CHECK_S = 1.0  # seconds between checks of a silent sampler
_WARNING_S = 900.0  # enough seconds to load a model or to draw long responses


class RemoteSampler:
    """A sampler process, which can draw several batches at a time; `wait` returns once it has started.

    ``memory`` is the file descriptor of the weights, and ``gpu`` is the name of the sampler's GPU, if it has
    one. Waiting raises `RunError` if the process has ended. The caller must then call `close`.
    """

    def __init__(self, settings: SamplerSettings, memory: int, gpu: str | None = None) -> None:
        self._has_weights = False  # whether the sampler has adopted the last weights
        self._rollouts_of: dict[int, Rollouts | None] = {}  # rollouts by ticket; None: not received yet
        self._socket, sampler_end = socket.socketpair()
        with sampler_end:
            # Ctrl-C reaches only the trainer, which first saves its state.
            self.process = children.start(
                [sys.executable, "-P", "-m", _MODULE],
                stdin=sampler_end.fileno(),
                stdout=memory,
                env=environment.unranked() | ({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}),
            )
        self.stopping: Callable[[], bool] = lambda: False  # returns whether the run was asked to end
        self._patience_s = 3600 * settings.timeout_hours
        self._channel = Connection(os.dup(self._socket.fileno()))
        self._inbox: SimpleQueue[tuple[dict[str, Any], Rollouts | None] | None] = SimpleQueue()
        self._outbox: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._listen, self._write)
        ]
        for thread in self._threads:
            thread.start()
        self._send({"open": asdict(settings)})

    def draw(self, ticket: int, arguments: dict[str, Any]) -> None:
        """Start drawing a batch from the current and all later weights.

        ``arguments`` contains the arguments of `Sampler.generate`.
        """
        self._rollouts_of[ticket] = None
        self._send({"draw": ticket, "asked": arguments})

    def take(self, ticket: int) -> Rollouts:
        """Wait for the rollouts of a ticket, and return them."""
        while (rollouts := self._rollouts_of[ticket]) is None:
            self._receive()
        del self._rollouts_of[ticket]
        return rollouts

    def wait(self) -> None:
        """Wait until the sampler has started and has adopted the last weights."""
        while not self._has_weights:
            self._receive()

    def load(self, positions: list[dict[str, Any]], version: int) -> None:
        """Make the sampler adopt the weights in the shared memory before it draws its next token."""
        self._has_weights = False
        self._send({"weights": version, "places": positions})

    def drop(self) -> None:
        """Discard all tickets and their rollouts."""
        self._rollouts_of.clear()
        self._send({"drop": True})

    def close(self) -> None:
        """End the sampler process."""
        children.end(self.process)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the threads even if the process survives
        self._outbox.put(None)
        for thread in self._threads:
            thread.join(_ENDING_S)
        self._channel.close()
        self._socket.close()

    def _listen(self) -> None:
        """Read the sampler's messages in a thread, so that the sampler never waits for the trainer."""
        try:
            with contextlib.suppress(OSError, EOFError):
                while True:
                    message = json.loads(self._channel.recv_bytes())
                    rollouts = _receive_rollouts(self._channel) if "drawn" in message else None
                    self._inbox.put((message, rollouts))
        finally:  # after any error, unblock callers that wait for a message
            self._inbox.put(None)

    def _write(self) -> None:
        """Write messages to the sampler in a thread, so that the trainer never waits for it to read them."""
        with contextlib.suppress(OSError):  # the sampler has ended, which `_receive` reports
            while (message := self._outbox.get()) is not None:
                self._channel.send_bytes(json.dumps(message).encode())

    def _send(self, message: dict[str, Any]) -> None:
        self._outbox.put(message)

    def _next_message(self) -> tuple[dict[str, Any], Rollouts | None] | None:
        """Wait for a message and return it, or None if the socket is closed.

        Raise `RunError` if the sampler is suspended or silent for too long.
        """
        began = stopped_since = time.monotonic()
        warn_at = began + min(_WARNING_S, self._patience_s / 2)
        while True:
            with contextlib.suppress(Empty):
                return self._inbox.get(timeout=_CHECK_S)
            now = time.monotonic()
            stopped = children.stopped(self.process.pid)
            stopped_since = stopped_since if stopped else now
            if stopped and self.stopping():
                self._give_up("is suspended (SIGSTOP), and the run was asked to end")
            if now - stopped_since > children.STOPPED_S:
                self._give_up(f"{stopped[0]} has been suspended for {children.STOPPED_S:.0f} s (SIGSTOP)")
            if now > warn_at:
                warn_at = math.inf
                logging.getLogger(__name__).warning(
                    f"the sampler's process {self.process.pid} has been silent for {(now - began) / 60:.0f} "
                    f"minutes; the run fails after {self._patience_s / 3600:g} hours (real.timeout_hours)"
                )
            if now - began > self._patience_s:
                self._give_up(f"has been silent for {self._patience_s / 3600:g} hours (real.timeout_hours)")

    def _give_up(self, reason: str) -> NoReturn:
        raise RunError(f"the sampler's process {reason}")

    def _receive(self) -> None:
        """Wait for the sampler's next message and process it; raise `RunError` if the sampler has ended."""
        received = self._next_message()
        if received is None or "failed" in received[0]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_ENDING_S)
            status = self.process.returncode
            end = f"exit status {status}" if status is None or status >= 0 else signal.Signals(-status).name
            raise RunError(f"the sampler's process ended: {received[0]['failed'] if received else end}")
        message, rollouts = received
        if "loaded" in message:
            self._has_weights = True
        elif message["drawn"] in self._rollouts_of:  # ignore dropped tickets
            self._rollouts_of[message["drawn"]] = rollouts


def _receive_rollouts(channel: Connection) -> Rollouts:
    tensors = load(channel.recv_bytes())
    return row_tensors.unpack(tensors, range(len(tensors["rows"])))[0]
