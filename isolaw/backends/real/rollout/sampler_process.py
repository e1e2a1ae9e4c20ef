"""Run a sampler process: ``python -m isolaw.backends.real.rollout.sampler_process``.

`remote_sampler` starts this process and describes the messages. The process draws while there are unfinished
requests (`streaming`), and reads messages between two steps. It exits immediately when the trainer's end of
the socket closes, even if the trainer was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import traceback
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, NoReturn

from isolaw.backends.real import environment
from isolaw.errors import RunError


def main() -> NoReturn:
    """Serve requests until the trainer's end of the socket closes."""
    channel, memory = Connection(os.dup(0)), os.dup(1)
    os.dup2(2, 1)  # the output of libraries must not reach the file of the weights
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # child processes of libraries must not inherit the socket
    inbox: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def listen() -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                inbox.put(json.loads(channel.recv_bytes()))
        os._exit(1)  # the trainer has ended

    threading.Thread(target=listen, daemon=True).start()
    try:
        serve(channel, memory, inbox)
    except BaseException as error:
        traceback.print_exc()
        why = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            channel.send_bytes(json.dumps({"failed": why}).encode())
    environment.leave(1)


def serve(channel: Connection, memory: int, inbox: SimpleQueue[dict[str, Any]]) -> NoReturn:
    """Open the sampler and serve the requests in ``inbox``; ``memory`` is the file of the weights."""
    settings = inbox.get()["open"]
    with environment.importing():
        from safetensors.torch import save

        from isolaw.backends.real.rollout.samplers import SamplerSettings, import_sampler
        from isolaw.backends.real.rollout.shared_weights import SharedWeights
        from isolaw.backends.real.rollout.streaming import open_stream
        from isolaw.backends.real.train import row_tensors

        import_sampler(settings["kind"])
    stream, weights = open_stream(SamplerSettings(**settings)), SharedWeights(memory)
    channel.send_bytes(json.dumps({"loaded": None}).encode())
    while True:
        while not (stream.busy() and inbox.empty()):
            message = inbox.get()
            if "weights" in message:
                stream.load(weights.read(message["places"]), message["weights"])
                channel.send_bytes(json.dumps({"loaded": message["weights"]}).encode())
            elif "draw" in message:
                stream.add(message["draw"], message["asked"])
            elif "drop" in message:
                stream.drop()
        for ticket, rollouts in stream.step():
            channel.send_bytes(json.dumps({"drawn": ticket}).encode())
            channel.send_bytes(save(row_tensors.of(range(len(rollouts)), rollouts, None)))


if __name__ == "__main__":
    main()
