"""What each process holds of a batch: for any number of processes together the same."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from isolaw.backends.real.batch import Batch, Processes  # noqa: E402
from isolaw.backends.real.sampling import Rollouts  # noqa: E402

CPU = torch.device("cpu")
ALONE = Processes(rank=0, world=1, tensor_parallel=1, device=CPU)


def rollouts(problems: list[int], n: int) -> Rollouts:
    """Rows that tell where they come from: the prompt is the problem, the tokens problem and sample."""
    rows = [(p, i) for p in problems for i in range(n)]
    return Rollouts(
        [[p] for p, _ in rows],
        [[p, i, *[7] * (p % 3)] for p, i in rows],
        [[-0.1 * p, -0.1 * i, *[-0.5] * (p % 3)] for p, i in rows],
        [(p + i) % 4 != 0 for p, i in rows],
    )


def batch(visited: list[int], rewards: list[list[float]]) -> Batch:
    n = len(rewards[0])
    return ALONE.batch(visited, ALONE.share(len(visited)), rollouts(visited, n), np.array(rewards))


def whole(one: Batch) -> tuple[object, ...]:
    return one.visited, one.rewards.tolist(), one.lengths.tolist(), one.truncated.tolist()


def test_what_the_batch_knows_of_its_rows() -> None:
    made = batch([5, 3, 8], [[0.0, 1.0], [1.0, 1.0], [0.5, 0.0]])
    assert made.lengths.tolist() == [[4, 4], [2, 2], [4, 4]]
    assert made.truncated.tolist() == [[False, False], [False, True], [True, False]]
    assert made.truncated_fraction == pytest.approx(1 / 3)
    assert (made.n, made.generated, made.generated_tokens) == (2, 6, 20)
    assert made.own(made.rewards).tolist() == [0.0, 1.0, 1.0, 1.0, 0.5, 0.0]
    enters = torch.tensor([[True, False], [False, False], [True, True]])
    assert made.own_rows(enters) == [0, 4, 5]


def test_dynamic_sampling_keeps_the_first_informative_problems() -> None:
    made = batch([5, 3, 8, 1], [[0.0, 1.0], [1.0, 1.0], [0.5, 0.0], [0.0, 1.0]])
    assert made.keep_informative(2) == 0
    assert made.visited == [5, 8]
    assert made.rewards.tolist() == [[0.0, 1.0], [0.5, 0.0]]
    assert [row[0] for row in made.rollouts.prompts] == [5, 5, 8, 8]
    assert (made.problems, made.generated, made.generated_tokens) == ([0, 1], 8, 26)  # all were generated
    assert made.keep_informative(3) == 1


def test_batches_are_joined() -> None:
    made = batch([5, 3], [[0.0, 1.0], [1.0, 1.0]])
    made.extend(batch([8, 3], [[0.5, 0.0], [0.0, 0.0]]))
    assert whole(made) == whole(batch([5, 3, 8, 3], [[0.0, 1.0], [1.0, 1.0], [0.5, 0.0], [0.0, 0.0]]))
    assert vars(made.rollouts) == vars(rollouts([5, 3, 8, 3], 2))
    assert made.problems == [0, 1, 2, 3]
    assert (made.generated, made.generated_tokens) == (8, 24)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize(("world", "tensor_parallel"), [(1, 1), (2, 1), (3, 1), (2, 2), (4, 2), (5, 1)])
def test_a_batch_in_flight_continues_on_another_number_of_processes(
    world: int, tensor_parallel: int, stale: bool
) -> None:
    made = batch([5, 3, 8, 1], [[0.0, 1.0], [1.0, 1.0], [0.5, 0.0], [0.0, 1.0]])
    if stale:
        made.old_logprobs = [torch.tensor(row, dtype=torch.float64) - 1 for row in made.rollouts.logprobs]
    state = json.loads(json.dumps(made.gathered_state(ALONE)))
    ranks = [Processes(rank, world, tensor_parallel, CPU) for rank in range(world)]
    parts = [Batch.from_state(state, rank) for rank in ranks]
    assert all(whole(part) == whole(made) for part in parts)
    assert all((part.old_logprobs is not None) == stale for part in parts)
    everything = torch.ones(4, 2, dtype=torch.bool)
    trained = []
    for part in parts:
        for i in part.own_rows(everything):
            old = part.old_logprobs[i].tolist() if part.old_logprobs else None
            trained.append((part.rollouts.tokens[i], part.rollouts.logprobs[i], old))
    expected = [
        (tokens, logprobs, [value - 1 for value in logprobs] if stale else None)
        for tokens, logprobs in zip(made.rollouts.tokens, made.rollouts.logprobs, strict=True)
    ]
    assert sorted(trained) == sorted(expected)  # every row once, whoever trains on it
    # And what these processes would write is what the one wrote.
    told = [[p.problems, vars(p.rollouts), [v.tolist() for v in p.old_logprobs or []] or None] for p in parts]
    gathering = SimpleNamespace(all_of=lambda _: told, tensor_parallel=tensor_parallel)
    again = Batch.from_state(parts[0].gathered_state(gathering), ALONE)
    assert whole(again) == whole(made)
    assert vars(again.rollouts) == vars(made.rollouts)


def test_problems_are_dealt_out_in_turn() -> None:
    def shares(world: int, tensor_parallel: int) -> list[list[int]]:
        return [Processes(r, world, tensor_parallel, CPU).share(5) for r in range(world)]

    assert shares(2, 1) == [[0, 2, 4], [1, 3]]
    assert shares(4, 2) == [[0, 2, 4], [0, 2, 4], [1, 3], [1, 3]]  # two share a sampler's model
    assert shares(7, 1)[5:] == [[], []]
