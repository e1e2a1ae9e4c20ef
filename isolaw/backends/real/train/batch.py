"""Represent a batch of rollouts, and divide it among the processes of a run.

Rollouts are distributed to the samplers in turn: the first rollout of every problem, then the second of every
problem, and so on. Each round starts with the next sampler. For any B_p and n, all samplers therefore get
equal shares of all rollouts and of the rollouts that enter the gradient. A problem's rollouts, which have
similar lengths, are spread over samplers.

Each process samples and rewards its own rollouts. The rewards and lengths of the whole batch are gathered, so
that advantages and weights are the same for any number of ranks. Before training, rows move from processes
with more tokens than the mean to processes with fewer (`Batch.balance`). Samplers in separate processes
belong to ranks, which hold their rollouts. A rank can have several such samplers, or none.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from isolaw.backends.real.algorithms.advantages import informative
from isolaw.backends.real.algorithms.objective import merge
from isolaw.backends.real.options import samplers_of
from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.train import process_group, row_tensors

# Fields that cover the whole batch: tensors with their types, and plain data.
_DTYPES = {"rewards": torch.float64, "lengths": torch.int64, "truncated": torch.bool}
_IMBALANCE = 0.01  # a process's tokens can exceed the mean over processes by this fraction
_SUMMED_FIELDS = ("visited", "generated", "generated_tokens", "reward_failures")
_PLAIN_FIELDS = (*_SUMMED_FIELDS, "measured")


@dataclass
class Batch:
    """The rollouts of some problems.

    Fields in `_DTYPES` and `_PLAIN_FIELDS` cover all processes, other fields only this one.
    """

    visited: list[int]  # indices of the B_p problems in their part of the set
    rewards: torch.Tensor  # shape (B_p, n)
    lengths: torch.Tensor  # number of drawn tokens of each response, shape (B_p, n)
    truncated: torch.Tensor  # whether each response was cut off, shape (B_p, n)
    # The rollouts that this process holds, in ascending order: row j · n + i is sample i of problem j.
    rows: list[int]
    rollouts: Rollouts  # the rollouts of `rows`
    generated: int  # number of rollouts, including those that a filter discards
    generated_tokens: int
    reward_failures: int = 0  # number of responses whose reward failed; they count as wrong
    measured: dict[str, float] = field(default_factory=dict)  # metrics of all groups that were drawn for it
    # Log-probabilities of `rollouts` under the policy that sampled them; None if it is the current policy.
    old_logprobs: list[torch.Tensor] | None = None

    @property
    def n(self) -> int:
        """Number of rollouts per problem."""
        return self.rewards.shape[1]

    @property
    def truncated_fraction(self) -> float:
        """Share of responses that were cut off."""
        return float(self.truncated.double().mean())

    @property
    def response_length(self) -> float:
        """Mean number of drawn tokens per response."""
        return float(self.lengths.mean(dtype=torch.float64))

    def local(self, values: torch.Tensor) -> torch.Tensor:
        """Return this process's rows of a tensor of shape (B_p, n), as a flat tensor."""
        return values.reshape(-1)[self.rows]

    def training_rows(self, in_gradient: torch.Tensor) -> list[int]:
        """Return the indices in `rows` that this process trains on, given the (B_p, n) gradient mask."""
        return torch.nonzero(self.local(in_gradient))[:, 0].tolist()

    def balance(self, ranks: RankGroup, in_gradient: torch.Tensor, tokens: torch.Tensor) -> None:
        """Move rows so that all processes train on similar numbers of tokens; all processes must call this.

        ``in_gradient`` marks the rows that enter the gradient, and ``tokens`` gives their costs. Both have
        shape (B_p, n). Afterwards, each row is held by exactly one process.
        """
        if ranks.world == 1:
            return
        rows_of_rank = ranks.all_of(self.rows)
        moves = _moves(rows_of_rank, (tokens * in_gradient).reshape(-1).tolist())
        local_rows, index_of = set(rows_of_rank[ranks.rank]), {row: k for k, row in enumerate(self.rows)}
        sent_rows = [row for row, (giver, _) in moves.items() if giver == ranks.rank]
        old, sent_indices = self.old_logprobs, [index_of[row] for row in sent_rows]
        sent_logprobs = None if old is None else [old[k].tolist() for k in sent_indices]
        message = (sent_rows, vars(self.rollouts.rows(sent_indices)), sent_logprobs)
        rows = sorted(local_rows.difference(sent_rows))
        kept_indices = [index_of[row] for row in rows]
        rollouts = self.rollouts.rows(kept_indices)
        logprobs = None if old is None else [old[k] for k in kept_indices]
        for their_rows, values, their_logprobs in ranks.all_of(message):
            received = [k for k, row in enumerate(their_rows) if moves[row][1] == ranks.rank]
            rows += [their_rows[k] for k in received]
            rollouts += Rollouts(**values).rows(received)
            if logprobs is not None:
                tensors = (torch.tensor(their_logprobs[k], dtype=torch.float64) for k in received)
                logprobs += [tensor.to(ranks.device) for tensor in tensors]
        order = np.argsort(rows).tolist()
        self.rows, self.rollouts = [rows[k] for k in order], rollouts.rows(order)
        self.old_logprobs = None if logprobs is None else [logprobs[k] for k in order]

    def keep_informative(self, count: int) -> int:
        """Keep the first ``count`` problems whose rewards differ; return how many are missing."""
        kept_problems = torch.nonzero(informative(self.rewards))[:, 0].tolist()[:count]
        new_index = {old: new for new, old in enumerate(kept_problems)}
        kept_indices = [k for k, row in enumerate(self.rows) if row // self.n in new_index]
        self.rollouts = self.rollouts.rows(kept_indices)
        problems_of_rows = [divmod(self.rows[k], self.n) for k in kept_indices]
        self.rows = [new_index[problem] * self.n + sample for problem, sample in problems_of_rows]
        self.visited = [self.visited[j] for j in kept_problems]
        for name in _DTYPES:
            setattr(self, name, getattr(self, name)[kept_problems])
        return count - len(kept_problems)

    def extend(self, other: Batch) -> None:
        """Append the problems and rollouts of another batch."""
        self.rows = self.rows + [len(self.visited) * self.n + row for row in other.rows]
        for name in _DTYPES:
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        self.rollouts = self.rollouts + other.rollouts
        for name in _SUMMED_FIELDS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def save(self, path: Path, ranks: RankGroup) -> None:
        """Write the whole batch to a safetensors file; all processes must call this, and the first writes.

        The tensors of the file are the rows (`row_tensors`), and its metadata has all other fields as JSON.
        """
        rank_tensors = ranks.tensors_of(row_tensors.pack(self.rows, self.rollouts, self.old_logprobs))
        if ranks.rank == 0:
            save_file(row_tensors.join(rank_tensors), path, {"batch": json.dumps(self._state())})

    def _state(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in _PLAIN_FIELDS},
            **{name: getattr(self, name).tolist() for name in _DTYPES},
        }

    @classmethod
    def load(cls, path: Path, ranks: RankGroup) -> Batch:
        """Return this process's part of a batch that `save` wrote, for any number of processes."""
        with safe_open(path, framework="pt") as file:
            state = json.loads(file.metadata()["batch"])
        return cls.from_state(state, load_file(path), ranks)

    @classmethod
    def from_state(
        cls, state: dict[str, Any], tensors: Mapping[str, torch.Tensor], ranks: RankGroup
    ) -> Batch:
        """Return this process's part of a batch."""
        rows = ranks.share(len(state["rewards"]), len(state["rewards"][0]))
        rollouts, old = row_tensors.unpack(tensors, rows)
        return cls(
            **{name: state[name] for name in _PLAIN_FIELDS},
            **{name: torch.tensor(state[name], dtype=dtype) for name, dtype in _DTYPES.items()},
            rows=rows,
            rollouts=rollouts,
            old_logprobs=old if old is None else [values.to(ranks.device) for values in old],
        )


@dataclass(frozen=True)
class RankGroup:
    """The processes of a run: the rank of this process, and methods that exchange data between processes."""

    rank: int
    world: int
    device: torch.device
    streaming: int = 0  # number of samplers in separate processes

    @property
    def own_samplers(self) -> range:
        """Indices of the run's samplers that draw this process's rollouts."""
        if self.streaming:
            return samplers_of(self.rank, self.world, self.streaming)
        return range(self.rank, self.rank + 1)

    def share(self, problems: int, n: int) -> list[int]:
        """Return the rows that this process samples, in ascending order, if each problem gets n rollouts."""
        samplers, rows = self.streaming or self.world, list[int]()
        for sampler in self.own_samplers:
            sample, position = divmod(np.arange(sampler, problems * n, samplers), problems)
            # Samples i start at index i · B_p. They are rotated so that sample i of problem j goes to sampler
            # i + j, modulo the number of samplers, except where the rotation wraps around.
            problem = (position - sample * (1 - problems) % samplers) % problems
            rows += (problem * n + sample).tolist()
        return sorted(rows)

    def all_of(self, value: Any) -> list[Any]:
        """Return every process's value, by rank.

        Values must be JSON-compatible, and tuples can become lists.
        """
        return [value] if self.world == 1 else process_group.exchange(value)

    def tensors_of(self, tensors: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        """Return every process's named tensors, by rank, in host memory."""
        return [tensors] if self.world == 1 else process_group.exchange_tensors(tensors)

    def batch(self, visited: list[int], n: int, rollouts: Rollouts, rewards: np.ndarray) -> Batch:
        """Return the whole batch, given this process's `share` of rollouts and their rewards."""
        rows = self.share(len(visited), n)
        truncated = [not finished for finished in rollouts.finished]
        tensors = {name: torch.zeros(len(visited) * n, dtype=dtype) for name, dtype in _DTYPES.items()}
        for their_rows, *columns in self.all_of((rows, rewards.tolist(), rollouts.lengths, truncated)):
            for tensor, column in zip(tensors.values(), columns, strict=True):
                tensor[their_rows] = torch.tensor(column, dtype=tensor.dtype)
        return Batch(
            visited,
            **{name: tensor.reshape(-1, n) for name, tensor in tensors.items()},
            rows=rows,
            rollouts=rollouts,
            generated=len(visited) * n,
            generated_tokens=int(tensors["lengths"].sum()),
        )

    def gather(self, batch: Batch, local_values: list[float]) -> torch.Tensor:
        """Return values of shape (B_p, n) for the whole batch, given one for each row of this process."""
        out = torch.zeros_like(batch.rewards)
        for their_rows, values in self.all_of((batch.rows, local_values)):
            out.view(-1)[their_rows] = torch.tensor(values, dtype=torch.float64)
        return out

    def merge_sums(self, sums: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the metric sums over all processes."""
        rank_sums = [item for item in self.all_of({k: v.tolist() for k, v in sums.items()}) if item]
        tensors = ({k: torch.tensor(v, dtype=torch.float64) for k, v in item.items()} for item in rank_sums)
        return functools.reduce(merge, tensors)


def _moves(rows_of_rank: list[list[int]], costs: list[int]) -> dict[int, tuple[int, int]]:
    """Return the rows to move, each with its old and new process, so that all processes have similar costs.

    ``rows_of_rank`` contains the rows of each process, and ``costs`` the cost of each row. In each move, the
    process with the highest load gives a row to the process with the lowest load. This is the row with the
    cost closest to half of the difference between the two loads. Costs ignore that attention grows with the
    square of the length.

    >>> _moves([[0, 1, 2], [3]], [5, 3, 2, 4])
    {1: (0, 1)}
    """
    movable = [[row for row in rows if costs[row]] for rows in rows_of_rank]
    loads = [sum(costs[row] for row in rows) for rows in movable]
    moves: dict[int, tuple[int, int]] = {}
    limit = sum(loads) / len(loads) * (1 + _IMBALANCE)
    while max(loads) > limit:
        giver, taker = loads.index(max(loads)), loads.index(min(loads))
        gap = loads[giver] - loads[taker]
        row = min(movable[giver], key=lambda candidate: abs(2 * costs[candidate] - gap))
        if costs[row] >= gap:  # the move would only swap the two loads
            break
        movable[giver].remove(row)
        movable[taker].append(row)
        loads[giver] -= costs[row]
        loads[taker] += costs[row]
        moves[row] = (moves.get(row, (giver, taker))[0], taker)
    return {row: move for row, move in moves.items() if move[0] != move[1]}
