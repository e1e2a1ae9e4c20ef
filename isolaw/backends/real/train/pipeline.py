"""Implement PipelineRL-k: samplers in separate processes draw batches while the trainer makes updates.

With k = ``recipe.staleness``, at most k + 1 batches are requested and not yet trained on (ScaleRL, arXiv
2510.13786, section 3.1; PipelineRL, arXiv 2509.19128). Before a batch is requested, the current weights have
been sent to all samplers, and each sampler adopts later weights between two tokens. The age of a token is the
number of updates made between drawing it and training on it. Every update uses
the oldest batch, so

    age ≤ updates since its batch was requested ≤ k.

The trainer waits while the oldest batch is incomplete. With k = 0, trainer and samplers alternate, and the
results are the same as with samplers in the trainer's processes.

Every rank requests its own samplers' rollouts of a batch, and rewards them. Afterwards the batch is treated
as if the ranks themselves had sampled it (`batch`).

The problems of a batch and the seed of each rollout do not depend on timing. With k > 0, the ages of tokens
depend on timing. A state contains the requested batches without their tokens. A resumed run requests these
batches again under the state's weights, so the bound still holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from isolaw.backends.real.rollout.sampler_group import SamplerGroup, Ticket
from isolaw.backends.real.rollout.worker import RolloutWorker
from isolaw.backends.real.train.batch import Batch


@dataclass
class _Request:
    """A requested batch: the indices of its training problems, and the random stream of its seeds."""

    indices: list[int]
    stream: tuple[int, ...]
    ticket: Ticket | None = None  # None: not yet sent to the samplers


class Pipeline:
    """Requests batches of n rollouts per problem from the samplers, and returns them oldest first."""

    def __init__(self, worker: RolloutWorker, n: int, staleness: int) -> None:
        assert isinstance(worker.sampler, SamplerGroup)
        self.worker, self.sampler, self.n, self.staleness = worker, worker.sampler, n, staleness
        self.requests: deque[_Request] = deque()
        self.set_version(0)

    @property
    def full(self) -> bool:
        """True if k + 1 batches are requested; another batch could then become older than k."""
        return len(self.requests) > self.staleness

    def set_version(self, step: int) -> None:
        """Set the version of the weights to ``step``; the sampler must adopt them before the next draw."""
        self.sampler.version, self.sampler.needs_weights = step, True

    def request(self, indices: list[int], stream: tuple[int, ...]) -> None:
        """Request a batch; the sampler must already have received the current weights."""
        self.requests.append(_Request(indices, stream))

    def take(self) -> Batch:
        """Wait for the oldest batch, and return it with its rewards."""
        with self.worker.clock("generate"):
            for request in self.requests:
                if request.ticket is None:
                    arguments = self.worker.sampler_arguments(
                        "train", request.indices, self.n, request.stream
                    )
                    request.ticket = self.sampler.draw(**arguments)
            oldest = self.requests.popleft()
            assert oldest.ticket is not None
            rollouts = self.sampler.take(oldest.ticket)
        return self.worker.reward_rollouts("train", oldest.indices, self.n, rollouts)

    def ages(self, batch: Batch, step: int) -> dict[str, float]:
        """Return the mean and the maximum age of a batch's tokens in updates, at update ``step`` ≥ 1."""
        ages = [step - 1 - version for row in batch.rollouts.versions for version in row]
        statistics = [sum(ages), len(ages), min(ages, default=0), max(ages, default=0)]
        sums, counts, minima, maxima = zip(*self.worker.ranks.all_of(statistics), strict=True)
        assert 0 <= min(minima) <= max(maxima) <= self.staleness, "a token is older than recipe.staleness"
        return {"age": sum(sums) / sum(counts), "age_max": float(max(maxima))} if self.staleness else {}

    def state(self) -> list[dict[str, Any]]:
        """Return the requested batches as JSON-compatible data."""
        return [{"visited": request.indices, "stream": request.stream} for request in self.requests]

    def restore(self, state: Sequence[dict[str, Any]], step: int) -> None:
        """Restore the result of `state` after ``step`` steps; its batches will be requested again."""
        self.requests = deque(_Request(list(entry["visited"]), tuple(entry["stream"])) for entry in state)
        self.set_version(step)


def sampler_logprobs(batch: Batch, device: torch.device) -> list[torch.Tensor]:
    """Return the sampler's log-probabilities of each row's tokens."""
    return [torch.tensor(row, dtype=torch.float64, device=device) for row in batch.rollouts.logprobs]
