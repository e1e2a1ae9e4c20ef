"""Implement PipelineRL-k: samplers in separate processes draw batches while the trainer makes updates.

With k = ``recipe.staleness``, at most k + 1 batches are requested and not yet trained on (ScaleRL, arXiv
2510.13786, section 3.1; PipelineRL, arXiv 2509.19128). A batch is requested after the current weights were
sent to all samplers, and each sampler adopts later weights between two tokens. The age of a token is the
number of updates between the weights that drew it and the weights that are updated on it. Every update uses
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
class _Asked:
    """A requested batch: its training problems, and the random stream of its seeds."""

    visited: list[int]
    stream: tuple[int, ...]
    ticket: Ticket | None = None  # None: not yet sent to the samplers


class Pipeline:
    """The requested batches of n rollouts per problem, oldest first."""

    def __init__(self, worker: RolloutWorker, n: int, staleness: int) -> None:
        assert isinstance(worker.sampler, SamplerGroup)
        self.worker, self.sampler, self.n, self.staleness = worker, worker.sampler, n, staleness
        self.asked: deque[_Asked] = deque()
        self.at(0)

    @property
    def full(self) -> bool:
        """True if k + 1 batches are requested; another batch could then become older than k."""
        return len(self.asked) > self.staleness

    def at(self, step: int) -> None:
        """Set the version of the weights to ``step``; the sampler must adopt them before the next draw."""
        self.sampler.version, self.sampler.needs_weights = step, True

    def ask(self, visited: list[int], stream: tuple[int, ...]) -> None:
        """Request a batch; the sampler must already have received the current weights."""
        self.asked.append(_Asked(visited, stream))

    def take(self) -> Batch:
        """Wait for the oldest batch, and return it with its rewards."""
        with self.worker.clock("generate"):
            for one in self.asked:
                if one.ticket is None:
                    arguments = self.worker.asked("train", one.visited, self.n, one.stream)
                    one.ticket = self.sampler.draw(**arguments)
            oldest = self.asked.popleft()
            assert oldest.ticket is not None
            rollouts = self.sampler.take(oldest.ticket)
        return self.worker.rewarded("train", oldest.visited, self.n, rollouts)

    def ages(self, batch: Batch, step: int) -> dict[str, float]:
        """Return the mean and the maximum age of a batch's tokens in updates, at update ``step`` ≥ 1."""
        lags = [step - 1 - version for row in batch.rollouts.versions for version in row]
        ages = self.worker.ranks.all_of([sum(lags), len(lags), min(lags, default=0), max(lags, default=0)])
        total, count, least, most = zip(*ages, strict=True)
        assert 0 <= min(least) <= max(most) <= self.staleness, "a token is older than recipe.staleness"
        return {"age": sum(total) / sum(count), "age_max": float(max(most))} if self.staleness else {}

    def state(self) -> list[dict[str, Any]]:
        """Return the requested batches as JSON-compatible data."""
        return [{"visited": one.visited, "stream": one.stream} for one in self.asked]

    def restore(self, state: Sequence[dict[str, Any]], step: int) -> None:
        """Restore the result of `state` after ``step`` steps; its batches will be requested again."""
        self.asked = deque(_Asked(list(one["visited"]), tuple(one["stream"])) for one in state)
        self.at(step)

    def close(self) -> None:
        """Drop all requests; the sampler stays open for the next run."""
        self.sampler.drop()


def recorded(batch: Batch, device: torch.device) -> list[torch.Tensor]:
    """Return the sampler's log-probabilities of each row's tokens."""
    return [torch.tensor(row, dtype=torch.float64, device=device) for row in batch.rollouts.logprobs]
