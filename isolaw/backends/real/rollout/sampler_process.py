"""Run a sampler process: ``python -m isolaw.backends.real.rollout.sampler_process``.

`remote_sampler` starts this process and describes the messages. The process draws while there are unfinished
requests, and reads messages between two steps. It exits immediately when the trainer's end of the socket
closes, even if the trainer was killed.

The process draws several batches at a time, and adopts new weights while drawing. vLLM adopts weights between
two tokens, so the new weights draw the next token of every active response. The key-value cache of earlier
tokens remains as computed by the old weights (PipelineRL, arXiv 2509.19128, section 3; ScaleRL, arXiv
2510.13786, section 3.1). The recorded log-probability is from the distribution that the token was drawn from,
given this cache. The plain sampler adopts weights between two batches.

Batches are admitted in the order of their requests, so that a batch of short responses cannot overtake.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from isolaw.backends.real import environment
from isolaw.errors import RunError

if TYPE_CHECKING:
    from isolaw.backends.real.rollout.samplers import Rollouts, Sampler, SamplerSettings, Weights
    from isolaw.backends.real.rollout.vllm_sampler import VLLMSampler


def _main() -> NoReturn:
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
        _serve(channel, memory, inbox)
    except BaseException as error:
        traceback.print_exc()
        reason = str(error) if isinstance(error, RunError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            channel.send_bytes(json.dumps({"failed": reason}).encode())
    environment.leave(1)


def _serve(channel: Connection, memory: int, inbox: SimpleQueue[dict[str, Any]]) -> NoReturn:
    """Open the sampler and serve the requests in ``inbox``; ``memory`` is the file of the weights."""
    settings = inbox.get()["open"]
    with environment.importing():
        from safetensors.torch import save

        from isolaw.backends.real.rollout.samplers import SamplerSettings, SharedWeights, import_sampler
        from isolaw.backends.real.train import row_tensors

        import_sampler(settings["kind"])
    stream, weights = _open_stream(SamplerSettings(**settings)), SharedWeights(memory)
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
            channel.send_bytes(save(row_tensors.pack(range(len(rollouts)), rollouts, None)))


def _open_stream(settings: SamplerSettings) -> _VLLMStream | _PlainStream:
    """Open a sampler in this process that draws several batches at a time.

    ``add`` starts the batch of a ticket, given the arguments of `Sampler.generate`. ``step`` does the next
    piece of work and yields the batches that it finishes, while ``busy`` returns True.
    """
    from isolaw.backends.real.rollout.sampler_group import open_sampler
    from isolaw.backends.real.rollout.vllm_sampler import VLLMSampler

    sampler = open_sampler(replace(settings, processes=None, streams=True))
    return _VLLMStream(sampler) if isinstance(sampler, VLLMSampler) else _PlainStream(sampler)


class _VLLMStream:
    """A stream of batches over vLLM's engine, where each step draws one token of every active response.

    Because ``async_scheduling`` is off, no token is in progress between two steps. vLLM labels each token
    with the version of the weights that drew it. This was tested with vLLM 0.32 without a GPU.
    """

    def __init__(self, sampler: VLLMSampler) -> None:
        self.sampler = sampler
        self.engine = self.sampler.llm.llm_engine
        if not hasattr(self.engine, "set_weight_version"):
            raise RunError('real.generation = "async": this vLLM does not label tokens; expected 0.32')
        self.prompts: dict[int, list[list[int]]] = {}  # by ticket, with one row for each rollout
        self.outputs: dict[int, list[Any]] = {}  # by ticket, with None for unfinished rollouts

    def add(self, ticket: int, arguments: dict[str, Any]) -> None:
        """Add a vLLM request for each rollout, as `VLLMSampler.generate` does."""
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        self.prompts[ticket], parameters = self.sampler.requests(**arguments)
        self.outputs[ticket] = [None] * len(parameters)
        for index, parameter in enumerate(parameters):
            parameter.output_kind = RequestOutputKind.FINAL_ONLY
            self.engine.add_request(f"{ticket}/{index}", tokens_input(self.prompts[ticket][index]), parameter)

    def busy(self) -> bool:
        """Return whether vLLM has unfinished requests."""
        return bool(self.outputs)

    def step(self) -> Iterator[tuple[int, Rollouts]]:
        """Run one engine step; yield the ticket and the rollouts of each batch that it completes."""
        for output in self.engine.step():
            ticket, index = map(int, output.request_id.split("/"))
            self.outputs[ticket][index] = output
            if None not in self.outputs[ticket]:
                outputs = self.outputs.pop(ticket)
                rollouts = self.sampler.rollouts(self.prompts.pop(ticket), outputs)
                for output in outputs:
                    spans = output.outputs[0].weight_versions
                    rollouts.versions.append([int(s.version) for s in spans for _ in range(s.start, s.end)])
                yield ticket, rollouts

    def load(self, weights: Weights, version: int) -> None:
        """Load the weights of a version between two engine steps."""
        self.sampler.load(weights)
        self.engine.set_weight_version(str(version))

    def drop(self) -> None:
        """Abort all requests."""
        names = [f"{ticket}/{i}" for ticket, outputs in self.outputs.items() for i in range(len(outputs))]
        self.engine.abort_request(names)
        self.prompts.clear()
        self.outputs.clear()


class _PlainStream:
    """A stream of batches over the plain sampler, which draws one batch after another."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.version = 0
        self.waiting: dict[int, dict[str, Any]] = {}

    def add(self, ticket: int, arguments: dict[str, Any]) -> None:
        """Append a batch to the queue."""
        self.waiting[ticket] = arguments

    def busy(self) -> bool:
        """Return whether a batch is waiting."""
        return bool(self.waiting)

    def step(self) -> Iterator[tuple[int, Rollouts]]:
        """Draw the next batch, and yield its ticket and rollouts."""
        ticket = next(iter(self.waiting))
        rollouts = self.sampler.generate(**self.waiting.pop(ticket))
        rollouts.versions.extend([self.version] * len(row) for row in rollouts.tokens)
        yield ticket, rollouts

    def load(self, weights: Weights, version: int) -> None:
        """Copy the weights to the sampler, and set their version."""
        self.sampler.load(weights)
        self.version = version

    def drop(self) -> None:
        """Discard all batches."""
        self.waiting.clear()


if __name__ == "__main__":
    _main()
