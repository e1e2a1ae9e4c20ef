"""PipelineRL-k: samplers in their own processes draw batches while the trainer makes updates.

With k = ``recipe.staleness``, at most k + 1 batches are requested and not yet trained on (ScaleRL, arXiv
2510.13786, section 3.1; PipelineRL, arXiv 2509.19128). A batch is requested after all samplers received the
current weights, and each sampler adopts later weights between two tokens. The age of a token is the number of
updates between the weights that drew it and the weights that are updated on it. Every update uses the oldest
batch, so that

    age ≤ updates since its batch was requested ≤ k,

and the trainer waits while the oldest batch is incomplete. With k = 0 they alternate, with the same numbers
as samplers in the trainer's processes.

Every rank of a run requests its samplers' rollouts of a batch, and rewards them. From there on a batch is the
same as one of samplers in the ranks (`batch`).

The problems of a batch and the seed of each rollout do not depend on timing; with k > 0 the ages do. A state
records the requested batches without their tokens: a run that continues requests them again under the state's
weights, so the bound still holds.
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
    """A batch of training problems, by the stream of its seeds."""

    visited: list[int]
    stream: tuple[int, ...]
    ticket: Ticket | None = None  # None: the run has continued since


class Pipeline:
    """The requested batches of n rollouts per problem, oldest first."""

    def __init__(self, worker: RolloutWorker, n: int, staleness: int) -> None:
        assert isinstance(worker.sampler, SamplerGroup)
        self.worker, self.sampler, self.n, self.staleness = worker, worker.sampler, n, staleness
        self.asked: deque[_Asked] = deque()
        self.at(0)

    @property
    def full(self) -> bool:
        """Return whether a further batch could become older than k."""
        return len(self.asked) > self.staleness

    def at(self, step: int) -> None:
        """Set the version of the weights after ``step`` steps, which the sampler has to adopt."""
        self.sampler.version, self.sampler.needs_weights = step, True

    def ask(self, visited: list[int], stream: tuple[int, ...]) -> None:
        """Request a batch, after the sampler received the current weights."""
        self.asked.append(_Asked(visited, stream))

    def take(self) -> Batch:
        """Wait for the oldest batch, and reward it."""
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
        """Return the mean and the largest age, in updates, of a batch's tokens at update ``step``, from 1."""
        own = [step - 1 - version for row in batch.rollouts.versions for version in row]
        ages = self.worker.ranks.all_of([sum(own), len(own), min(own, default=0), max(own, default=0)])
        total, count, least, most = zip(*ages, strict=True)
        assert 0 <= min(least) <= max(most) <= self.staleness, "a token is older than recipe.staleness"
        return {"age": sum(total) / sum(count), "age_max": float(max(most))} if self.staleness else {}

    def state(self) -> list[dict[str, Any]]:
        """Return the requested batches, as data for JSON."""
        return [{"visited": one.visited, "stream": one.stream} for one in self.asked]

    def restore(self, state: Sequence[dict[str, Any]], step: int) -> None:
        """Continue from `state` after so many steps; this requests its batches again."""
        self.asked = deque(_Asked(list(one["visited"]), tuple(one["stream"])) for one in state)
        self.at(step)

    def close(self) -> None:
        """Drop all requests from the sampler, which serves the next run."""
        self.sampler.drop()


def recorded(batch: Batch, device: torch.device) -> list[torch.Tensor]:
    """Return the log-probabilities of each row's tokens that the sampler has recorded."""
    return [torch.tensor(row, dtype=torch.float64, device=device) for row in batch.rollouts.logprobs]
