"""Open samplers; combine the sampler processes of one rank into one that draws while the rank trains.

A rank distributes its rollouts to its samplers in turn. The rank writes its weights into memory that it
shares with its samplers (`SharedWeights`). Each sampler adopts the new weights between two tokens. A rank
without samplers only takes part in gathering the weights.

isolaw does not use vLLM's own weight transfer. Over NCCL (vLLM 0.32), a trainer would wait forever for a
sampler that has died. Over CUDA IPC, trainer and sampler would have to share a GPU.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from isolaw.backends.real import environment
from isolaw.backends.real.rollout import samplers
from isolaw.backends.real.rollout.remote_sampler import RemoteSampler
from isolaw.backends.real.rollout.samplers import (
    Limits,
    Prompts,
    Rollouts,
    Sampler,
    SamplerSettings,
    Seeds,
    SharedWeights,
    TransformersSampler,
    Weights,
    close_samplers,
    sampler_of,
    token_limits,
)
from isolaw.errors import RunError
from isolaw.machine import visible_gpus


@dataclass(frozen=True)
class Ticket:
    """A request to draw rollouts: its number, and its number of rollouts."""

    number: int
    rollouts: int


class SamplerGroup(Sampler):
    """A `Sampler` that draws in ``settings.processes`` separate processes.

    ``version`` identifies the weights that `load` transfers next. Each sampler gets one of the last GPUs that
    are visible to this process; a process that trains does so on the first one.
    """

    def __init__(self, settings: SamplerSettings) -> None:
        self.needs_weights, self.version, self._tickets = True, 0, 0
        self._descriptor = os.memfd_create("isolaw-weights")
        self._shared_weights, self.members = SharedWeights(self._descriptor), list[RemoteSampler]()
        count = settings.processes or 0
        gpus = visible_gpus()[-count:] if environment.gpus() and count else [None] * count
        with self._closing_on_error():
            if len(gpus) < count:
                raise RunError(f"{count} samplers of a process of the run have {len(gpus)} GPUs of their own")
            self.members += [RemoteSampler(settings, self._descriptor, gpu) for gpu in gpus[:count]]
            self._wait()

    @contextmanager
    def _closing_on_error(self) -> Iterator[None]:
        """End all samplers if one has ended inside the block, so that `open_sampler` starts new ones."""
        try:
            yield
        except RunError:
            samplers.forget(self)
            self.close()
            raise

    def _wait(self) -> None:
        for member in self.members:
            member.wait()

    def watch(self, stopping: Callable[[], bool]) -> None:
        """Make waits for a suspended sampler call ``stopping``, which returns whether the run has to end."""
        for member in self.members:
            member.stopping = stopping

    def draw(
        self, prompts: Prompts, seeds: Seeds, *, temperature: float, top_p: float, max_tokens: Limits
    ) -> Ticket:
        """Start drawing rollouts from the last and all later weights; arguments are as in `generate`."""
        requests = [
            (list(prompt), [seed]) for prompt, group in zip(prompts, seeds, strict=True) for seed in group
        ]
        row_limits, count = token_limits(max_tokens, len(requests)), len(self.members)
        self._tickets += 1
        for offset, member in enumerate(self.members):
            share = requests[offset::count]
            arguments = {"temperature": temperature, "top_p": top_p, "max_tokens": row_limits[offset::count]}
            arguments |= {"prompts": [prompt for prompt, _ in share], "seeds": [seed for _, seed in share]}
            if share:
                member.draw(self._tickets, arguments)
        return Ticket(self._tickets, len(requests))

    def take(self, ticket: Ticket) -> Rollouts:
        """Wait for the rollouts of a ticket, and return them."""
        rollouts, rows = Rollouts([], [], [], []), list[int]()
        with self._closing_on_error():
            for offset, member in enumerate(self.members[: ticket.rollouts]):
                rollouts += member.take(ticket.number)
                rows += range(offset, ticket.rollouts, len(self.members))
        return rollouts.rows(np.argsort(rows).tolist())

    def generate(
        self, prompts: Prompts, seeds: Seeds, *, temperature: float, top_p: float, max_tokens: Limits
    ) -> Rollouts:
        """Draw rollouts, wait for them, and return them."""
        ticket = self.draw(prompts, seeds, temperature=temperature, top_p=top_p, max_tokens=max_tokens)
        return self.take(ticket)

    def load(self, weights: Weights) -> None:
        """Transfer the weights of ``version`` after all samplers have adopted the previous weights."""
        with self._closing_on_error():
            self._wait()
        self.needs_weights = False
        if not self.members:
            deque(weights, maxlen=0)
            return
        positions = self._shared_weights.write(weights)
        for member in self.members:
            member.load(positions, self.version)

    def drop(self) -> None:
        """Discard all tickets and their rollouts."""
        for member in self.members:
            member.drop()

    def close(self) -> None:
        """End the sampler processes."""
        for member in self.members:
            member.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self.members, self._descriptor = [], -1


def open_sampler(settings: SamplerSettings) -> Sampler:
    """Return a sampler, reusing the previous one if it has the same settings."""
    if settings not in sampler_of:
        close_samplers()  # before opening a new one, because vLLM keeps state in global variables
        if settings.processes is not None:
            sampler_of[settings] = SamplerGroup(settings)
        elif settings.kind == "transformers":
            sampler_of[settings] = TransformersSampler(
                settings.model, dtype=settings.dtype, float32_head=settings.float32_head, stop=settings.stop
            )
        else:
            from isolaw.backends.real.rollout.vllm_sampler import VLLMSampler

            sampler_of[settings] = VLLMSampler(settings)
    return sampler_of[settings]
