"""What each process holds of a batch: for any number of processes together the same."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from isolaw.backends.real.rollout.samplers import Rollouts
from isolaw.backends.real.train import row_tensors
from isolaw.backends.real.train.batch import Batch, RankGroup, _moves

CPU = torch.device("cpu")
ALONE = RankGroup(rank=0, world=1, device=CPU)


def rollouts(rows: list[tuple[int, int]]) -> Rollouts:
    """Rows that tell where they come from: the prompt is the problem, the tokens problem and sample."""
    return Rollouts(
        [[p] for p, _ in rows],
        [[p, i, *[7] * (p % 3)] for p, i in rows],
        [[-0.1 * p, -0.1 * i, *[-0.5] * (p % 3)] for p, i in rows],
        [(p + i) % 4 != 0 for p, i in rows],
    )


def batch(visited: list[int], rewards: list[list[float]]) -> Batch:
    n = len(rewards[0])
    return ALONE.batch(visited, n, rollouts([(p, i) for p in visited for i in range(n)]), np.ravel(rewards))


def whole(one: Batch) -> tuple[object, ...]:
    return one.visited, one.rewards.tolist(), one.lengths.tolist(), one.truncated.tolist()


def test_what_the_batch_knows_of_its_rows() -> None:
    made = batch([5, 3, 8], [[0.0, 1.0], [1.0, 1.0], [0.5, 0.0]])
    assert made.lengths.tolist() == [[4, 4], [2, 2], [4, 4]]
    assert made.truncated.tolist() == [[False, False], [False, True], [True, False]]
    assert made.truncated_fraction == pytest.approx(1 / 3)
    assert (made.n, made.generated, made.generated_tokens) == (2, 6, 20)
    assert made.local(made.rewards).tolist() == [0.0, 1.0, 1.0, 1.0, 0.5, 0.0]
    enters = torch.tensor([[True, False], [False, False], [True, True]])
    assert made.training_rows(enters) == [0, 4, 5]


def test_dynamic_sampling_keeps_the_first_informative_problems() -> None:
    made = batch([5, 3, 8, 1], [[0.0, 1.0], [1.0, 1.0], [0.5, 0.0], [0.0, 1.0]])
    assert made.keep_informative(2) == 0
    assert made.visited == [5, 8]
    assert made.rewards.tolist() == [[0.0, 1.0], [0.5, 0.0]]
    assert [row[0] for row in made.rollouts.prompts] == [5, 5, 8, 8]
    assert (made.rows, made.generated, made.generated_tokens) == ([0, 1, 2, 3], 8, 26)  # all were generated
    assert made.keep_informative(3) == 1


def test_batches_are_joined() -> None:
    made = batch([5, 3], [[0.0, 1.0], [1.0, 1.0]])
    made.extend(batch([8, 3], [[0.5, 0.0], [0.0, 0.0]]))
    assert whole(made) == whole(batch([5, 3, 8, 3], [[0.0, 1.0], [1.0, 1.0], [0.5, 0.0], [0.0, 0.0]]))
    assert made.rollouts == rollouts([(p, i) for p in (5, 3, 8, 3) for i in range(2)])
    assert made.rows == list(range(8))
    assert (made.generated, made.generated_tokens) == (8, 24)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_a_batch_in_flight_continues_on_another_number_of_processes(
    world: int, stale: bool, tmp_path: Path
) -> None:
    made = batch([5, 3, 8, 1], [[0.0, 1.0], [1.0, 1.0], [0.5, 0.0], [0.0, 1.0]])
    if stale:
        made.old_logprobs = [torch.tensor(row, dtype=torch.float64) - 1 for row in made.rollouts.logprobs]
    made.save(tmp_path / "one", ALONE)
    ranks = [RankGroup(rank, world, CPU) for rank in range(world)]
    parts = [Batch.load(tmp_path / "one", rank) for rank in ranks]
    assert all(whole(part) == whole(made) for part in parts)
    assert all((part.old_logprobs is not None) == stale for part in parts)
    everything = torch.ones(4, 2, dtype=torch.bool)
    trained = []
    for part in parts:
        for i in part.training_rows(everything):
            old = part.old_logprobs[i].tolist() if part.old_logprobs else None
            trained.append((part.rollouts.tokens[i], part.rollouts.logprobs[i], old))
    expected = [
        (tokens, logprobs, [value - 1 for value in logprobs] if stale else None)
        for tokens, logprobs in zip(made.rollouts.tokens, made.rollouts.logprobs, strict=True)
    ]
    assert sorted(trained) == sorted(expected)  # every row once, whoever trains on it
    # And what these processes would write is what the one wrote.
    told = [row_tensors.pack(p.rows, p.rollouts, p.old_logprobs) for p in parts]
    gathering: Any = SimpleNamespace(tensors_of=lambda _: told, rank=0)
    parts[0].save(tmp_path / "all", gathering)
    assert (tmp_path / "all").read_bytes() == (tmp_path / "one").read_bytes()


def test_processes_hold_what_one_holds_after_filter_and_more_problems() -> None:
    """Dynamic sampling on three processes, whose rows are those of one after each operation."""
    first = [5, 3, 8, 1], [[0.0, 1.0], [1.0, 1.0], [0.5, 0.0], [0.0, 1.0]]
    second = [2, 7, 4, 6], [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]

    def made(processes: RankGroup) -> Batch:
        parts = []
        for visited, rewards in (first, second):
            rows = processes.share(4, 2)
            own = rollouts([(visited[r // 2], r % 2) for r in rows])
            parts.append(dataclasses.replace(batch(visited, rewards), rows=rows, rollouts=own))
        parts[0].keep_informative(4)
        parts[0].extend(parts[1])
        assert parts[0].keep_informative(4) == 0
        return parts[0]

    alone = made(ALONE)
    assert alone.visited == [5, 8, 1, 7]
    held = [made(RankGroup(rank, 3, CPU)) for rank in range(3)]
    assert sorted(row for part in held for row in part.rows) == list(range(8))
    for part in held:
        assert whole(part) == whole(alone)
        assert part.rollouts == alone.rollouts.rows(part.rows)
        assert part.local(part.rewards).tolist() == [alone.rewards.reshape(-1)[row] for row in part.rows]


@pytest.mark.parametrize(
    ("problems", "n", "samplers"), [(8, 64, 16), (7, 4, 2), (5, 3, 4), (2, 2, 7), (1, 1, 3)]
)
@pytest.mark.parametrize("first", [None, 1, 2])
def test_rollouts_are_dealt_out_evenly(problems: int, n: int, samplers: int, first: int | None) -> None:
    """±1 of all rows, and of the first few of each group, where the gradient is of these alone."""
    shares = [RankGroup(rank, samplers, CPU).share(problems, n) for rank in range(samplers)]
    assert sorted(row for share in shares for row in share) == list(range(problems * n))
    counts = [sum(first is None or row % n < first for row in share) for share in shares]
    assert max(counts) - min(counts) <= 1


@pytest.mark.parametrize(("problems", "n", "samplers"), [(8, 3, 4), (32, 64, 8), (16, 8, 16), (15, 32, 16)])
def test_a_problems_rollouts_are_spread(problems: int, n: int, samplers: int) -> None:
    dealt = np.zeros((samplers, problems), dtype=int)
    for rank in range(samplers):
        for row in RankGroup(rank, samplers, CPU).share(problems, n):
            dealt[rank, row // n] += 1
    assert dealt.max() <= -(-n // samplers) * (1 + (problems % samplers > 0))


def held_by(world: int, made: Batch) -> list[Batch]:
    state = made._state(), row_tensors.pack(made.rows, made.rollouts, made.old_logprobs)
    return [Batch.from_state(*state, RankGroup(rank, world, CPU)) for rank in range(world)]


class Together:
    """The processes of a run in one: what each says is told to all, once it is known."""

    def __init__(self, world: int) -> None:
        self.told: list[list[Any]] = []
        self.world = world

    def run(self, step: Callable[[int, Any], None]) -> None:
        """Repeat ``step`` of every rank, each time with one more answer of all."""
        while True:
            said: list[Any] = []
            for rank in range(self.world):
                answers = iter(self.told)

                def all_of(value: Any, answers: Any = answers, said: list[Any] = said) -> list[Any]:
                    try:
                        return json.loads(json.dumps(next(answers)))
                    except StopIteration:
                        said.append(value)
                        raise InterruptedError from None

                with contextlib.suppress(InterruptedError):
                    step(rank, all_of)
            if not said:
                return
            self.told.append(said)


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("stale", [False, True])
def test_rows_are_balanced_by_tokens_and_each_is_trained_on_once(world: int, stale: bool) -> None:
    random = np.random.default_rng(0)
    lengths = random.lognormal(random.normal(3, 0.7, (12, 1)), 0.4, (12, 16)).astype(int) + 1
    rows = [(p, i) for p in range(12) for i in range(16)]
    own = Rollouts(
        [[p] for p, _ in rows],
        [[p, i] * int(lengths[p, i]) for p, i in rows],
        [[-0.1] * 2 * int(lengths[p, i]) for p, i in rows],
        [True] * len(rows),
    )
    made = ALONE.batch(list(range(12)), 16, own, random.integers(0, 2, 192).astype(float))
    if stale:
        made.old_logprobs = [torch.tensor(row, dtype=torch.float64) - k for k, row in enumerate(own.logprobs)]
    enters = torch.zeros(12, 16, dtype=torch.bool)
    enters[[0, 3, 4, 7, 9], :12] = True  # a filter leaves few problems
    done: dict[int, Batch] = {}

    def step(rank: int, all_of: Any) -> None:
        part = held_by(world, made)[rank]
        ranks = SimpleNamespace(rank=rank, world=world, device=CPU, all_of=all_of)
        part.balance(ranks, enters, made.lengths)  # type: ignore[arg-type]
        done[rank] = part

    Together(world).run(step)
    assert sorted(row for part in done.values() for row in part.rows) == list(range(192))
    trained = [[part.rows[k] for k in part.training_rows(enters)] for part in done.values()]
    assert sorted(row for one in trained for row in one) == torch.nonzero(enters.reshape(-1))[:, 0].tolist()
    flat = made.lengths.reshape(-1).tolist()
    loads = [sum(flat[row] for row in one) for one in trained]
    assert max(loads) <= 1.05 * np.mean(loads)
    for part in done.values():
        assert part.rollouts == made.rollouts.rows(part.rows)
        if stale:
            assert part.old_logprobs is not None
            for row, values in zip(part.rows, part.old_logprobs, strict=True):
                assert torch.equal(values, made.old_logprobs[row])
        assert whole(part) == whole(made)


@pytest.mark.parametrize("samplers", [8, 16])
@pytest.mark.parametrize("problems", [8, 32, 128, 1024])
def test_no_process_trains_on_many_more_tokens_than_the_mean(problems: int, samplers: int) -> None:
    """Lengths that differ more between problems than within: dealt by problem, 1.4 at 32 problems."""
    random = np.random.default_rng(0)
    typical = random.normal(np.log(1000), 0.55, (problems, 1))
    lengths = np.exp(typical + random.normal(0, 0.4, (problems, 8))).clip(1, 4096).astype(int).reshape(-1)
    held = [RankGroup(rank, samplers, CPU).share(problems, 8) for rank in range(samplers)]
    moves = _moves(held, lengths.tolist())
    loads = np.array([lengths[item].sum() for item in held])
    for row, (giver, taker) in moves.items():
        loads[giver] -= lengths[row]
        loads[taker] += lengths[row]
    assert loads.max() <= 1.1 * loads.mean()
    assert lengths[list(moves)].sum() <= 0.2 * lengths.sum()
