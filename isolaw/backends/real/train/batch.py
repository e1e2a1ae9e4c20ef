"""A batch of rollouts, and the part of it that each process of a run holds.

Rollouts are dealt to the samplers in turn: the first of every problem, then the second of each. So shares are
equal for any B_p and n, also among the rollouts that are trained on, and a problem's rollouts stay together
if the number of samplers divides B_p. Each process samples and rewards its own share. Rewards and lengths of
the whole batch are gathered, so advantages and weights do not depend on the number of ranks. Processes that
share one sampler's model (tensor parallel) draw the same rollouts, and each trains on a part of them.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from isolaw.backends.real.algorithms.advantages import informative
from isolaw.backends.real.algorithms.objective import merge
from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.train import process_group

# Fields of the whole batch: tensors with their types, and plain data.
_WHOLE = {"rewards": torch.float64, "lengths": torch.int64, "truncated": torch.bool}
_PLAIN = ("visited", "generated", "generated_tokens", "reward_failures")


@dataclass
class Batch:
    """Rollouts of some problems; fields in `_WHOLE` and `_PLAIN` cover all processes."""

    visited: list[int]  # the problems, indices of the training set, (B_p,)
    rewards: torch.Tensor  # (B_p, n)
    lengths: torch.Tensor  # tokens drawn of each response, (B_p, n)
    truncated: torch.Tensor  # (B_p, n)
    # Which of the B_p · n rollouts this process holds, ascending; j · n + i is sample i of problem j.
    rows: list[int]
    rollouts: Rollouts  # those of `rows`
    generated: int  # rollouts, also those that a filter discards
    generated_tokens: int
    reward_failures: int = 0  # responses whose reward failed, which count as wrong
    # This process trains on every `parts`-th of its rows, from the one at `part`.
    part: int = 0
    parts: int = 1
    # Each of several rewards, without its weight, (B_p, n, rewards); `rewards` are their weighted sum.
    components: torch.Tensor | None = None
    # Of `rollouts`, under the policy that sampled them; None for the current policy.
    old_logprobs: list[torch.Tensor] | None = None

    @property
    def n(self) -> int:
        """Rollouts per problem."""
        return self.rewards.shape[1]

    @property
    def verdicts(self) -> torch.Tensor:
        """The reward that decides what is correct, the first of several, (B_p, n)."""
        return self.rewards if self.components is None else self.components[..., 0]

    @property
    def truncated_fraction(self) -> float:
        """Share of responses that were cut."""
        return float(self.truncated.double().mean())

    @property
    def response_length(self) -> float:
        """Mean tokens of a response."""
        return float(self.lengths.mean(dtype=torch.float64))

    def own(self, values: torch.Tensor) -> torch.Tensor:
        """Return this process's rows of a (B_p, n) tensor, flat."""
        return values.reshape(-1)[self.rows]

    def own_rows(self, enters: torch.Tensor) -> list[int]:
        """Return the rows that this process trains on, of those that enter the gradient (B_p, n)."""
        return torch.nonzero(self.own(enters))[:, 0].tolist()[self.part :: self.parts]

    def keep_informative(self, wanted: int) -> int:
        """Keep the first ``wanted`` problems whose rewards differ; return how many are missing."""
        kept = torch.nonzero(informative(self.rewards))[:, 0].tolist()[:wanted]
        place = {old: new for new, old in enumerate(kept)}
        held = [k for k, row in enumerate(self.rows) if row // self.n in place]
        self.rollouts = self.rollouts.rows(held)
        self.rows = [place[row // self.n] * self.n + row % self.n for row in map(self.rows.__getitem__, held)]
        self.visited = [self.visited[j] for j in kept]
        for name in _WHOLE:
            setattr(self, name, getattr(self, name)[kept])
        if self.components is not None:
            self.components = self.components[kept]
        return wanted - len(kept)

    def extend(self, other: Batch) -> None:
        """Add another batch's problems."""
        self.rows = self.rows + [len(self.visited) * self.n + row for row in other.rows]
        for name in _WHOLE:
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))
        if self.components is not None and other.components is not None:
            self.components = torch.cat([self.components, other.components])
        self.rollouts = self.rollouts + other.rollouts
        for name in _PLAIN:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def gathered_state(self, ranks: RankGroup) -> dict[str, Any]:
        """Return the whole batch as data for JSON; all processes take part."""
        old = None if self.old_logprobs is None else [values.tolist() for values in self.old_logprobs]
        held = ranks.all_of((self.rows, vars(self.rollouts), old))[:: ranks.tensor_parallel]
        order = np.argsort([row for rows, *_ in held for row in rows]).tolist()
        whole = functools.reduce(operator.add, (Rollouts(**own) for _, own, _ in held)).rows(order)
        olds = [values for *_, old in held for values in old or []]
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            **{name: getattr(self, name).tolist() for name in _WHOLE},
            **({} if self.components is None else {"components": self.components.tolist()}),
            "rollouts": vars(whole),
            "old_logprobs": [olds[i] for i in order] if old is not None else None,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], ranks: RankGroup) -> Batch:
        """Return this process's view of a batch from `gathered_state`, for any number of processes."""
        old = state["old_logprobs"]
        rows = ranks.share(len(state["rewards"]), len(state["rewards"][0]))
        if old is not None:
            old = [torch.tensor(old[row], dtype=torch.float64, device=ranks.device) for row in rows]
        return cls(
            **{name: state[name] for name in _PLAIN},
            **{name: torch.tensor(state[name], dtype=dtype) for name, dtype in _WHOLE.items()},
            components=torch.tensor(state["components"], dtype=torch.float64)
            if "components" in state
            else None,
            rows=rows,
            rollouts=Rollouts(**state["rollouts"]).rows(rows),
            part=ranks.rank % ranks.tensor_parallel,
            parts=ranks.tensor_parallel,
            old_logprobs=old,
        )


@dataclass(frozen=True)
class RankGroup:
    """The processes of a run: the rank of this one, and what they exchange."""

    rank: int
    world: int
    tensor_parallel: int
    device: torch.device

    def share(self, problems: int, n: int) -> list[int]:
        """Return which rows of n rollouts of each of ``problems`` this process samples, ascending."""
        samplers = self.world // self.tensor_parallel
        dealt = range(self.rank // self.tensor_parallel, problems * n, samplers)
        return sorted(place % problems * n + place // problems for place in dealt)

    def all_of(self, value: Any) -> list[Any]:
        """Return every process's value, by rank; values are data for JSON, and tuples may become lists."""
        return [value] if self.world == 1 else process_group.exchange(value)

    def batch(
        self,
        visited: list[int],
        n: int,
        rollouts: Rollouts,
        rewards: np.ndarray,
        components: np.ndarray | None = None,
    ) -> Batch:
        """Return the batch from this process's `share` of rollouts and their rewards, or each of several."""
        rows = self.share(len(visited), n)
        truncated = [not finished for finished in rollouts.finished]
        whole = {name: torch.zeros(len(visited) * n, dtype=dtype) for name, dtype in _WHOLE.items()}
        for held, *parts in self.all_of((rows, rewards.tolist(), rollouts.lengths, truncated)):
            for tensor, part in zip(whole.values(), parts, strict=True):
                tensor[held] = torch.tensor(part, dtype=tensor.dtype)
        each = None
        if components is not None:
            each = torch.zeros((len(visited) * n, components.shape[1]), dtype=torch.float64)
            for held, own in self.all_of((rows, components.tolist())):
                each[held] = torch.tensor(own, dtype=each.dtype).reshape(len(held), each.shape[1])
            each = each.reshape(len(visited), n, -1)
        return Batch(
            visited,
            components=each,
            **{name: tensor.reshape(-1, n) for name, tensor in whole.items()},
            rows=rows,
            rollouts=rollouts,
            generated=len(visited) * n,
            generated_tokens=int(whole["lengths"].sum()),
            part=self.rank % self.tensor_parallel,
            parts=self.tensor_parallel,
        )

    def gathered(self, batch: Batch, own: list[float]) -> torch.Tensor:
        """Return a number for each of this process's rows as (B_p, n) of the whole batch."""
        out = torch.zeros_like(batch.rewards)
        for held, values in self.all_of((batch.rows, own)):
            out.view(-1)[held] = torch.tensor(values, dtype=torch.float64)
        return out

    def merged(self, sums: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the metrics' sums of all processes together."""
        parts = [part for part in self.all_of({k: v.tolist() for k, v in sums.items()}) if part]
        tensors = ({k: torch.tensor(v, dtype=torch.float64) for k, v in part.items()} for part in parts)
        return functools.reduce(merge, tensors)
