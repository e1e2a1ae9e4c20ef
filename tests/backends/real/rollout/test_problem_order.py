"""The order of problems: epochs without repetition, the same for all configurations, exactly continued."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.backends.real.rollout.problems import ProblemOrder

CONTENT = "0a1b2c3d" * 8


@given(st.integers(1, 40), st.data())
def test_an_epoch_visits_no_problem_twice(n_train: int, data: st.DataObject) -> None:
    batch = data.draw(st.integers(1, n_train))
    order = ProblemOrder(n_train, batch, seed=data.draw(st.integers(0, 5)), content=CONTENT)
    for _ in range(3):
        epoch = [p for _ in range(n_train // batch) for p in order.take()]
        assert len(set(epoch)) == len(epoch) == n_train // batch * batch
        assert set(epoch) <= set(range(n_train))


def test_epochs_differ_and_all_problems_have_their_turn() -> None:
    order = ProblemOrder(10, 3, seed=0, content=CONTENT)
    epochs = [[p for _ in range(3) for p in order.take()] for _ in range(20)]
    assert len({tuple(epoch) for epoch in epochs}) == 20
    visits = Counter(p for epoch in epochs for p in epoch)
    assert set(visits) == set(range(10))
    assert min(visits.values()) >= 12  # of 20: which one an epoch leaves out changes


def test_configurations_share_the_order_and_seeds_and_sets_do_not() -> None:
    def first_epoch(batch: int, seed: int = 0, content: str = CONTENT) -> list[int]:
        order = ProblemOrder(24, batch, seed, content)
        return [p for _ in range(24 // batch) for p in order.take()]

    assert first_epoch(4) == first_epoch(8) == first_epoch(24)
    assert first_epoch(4) != first_epoch(4, seed=1)
    assert first_epoch(4) != first_epoch(4, content="f" * 64)


def test_with_replacement_every_problem_is_drawn_anew() -> None:
    order = ProblemOrder(5, 20, seed=0, content=CONTENT, replacement=True)  # a batch larger than the set
    drawn = Counter(p for _ in range(200) for p in order.take())
    assert sum(drawn.values()) == 4000
    assert all(700 < drawn[p] < 900 for p in range(5))  # 800, standard deviation 25


def test_what_is_retired_leaves_the_epochs_to_come() -> None:
    order = ProblemOrder(6, 2, seed=0, content=CONTENT)
    first = order.take()
    order.retire(first)
    begun = order.take() + order.take()
    assert sorted(first + begun) == list(range(6))  # the epoch that had begun is finished
    assert sorted(order.take() + order.take()) == sorted(begun)
    order.retire(begun[:2])
    assert sorted(order.take()) == sorted(begun[2:])
    order.retire(begun[2:3])  # one is left, less than a batch: all come back
    assert sorted(p for _ in range(3) for p in order.take()) == list(range(6))


@pytest.mark.parametrize("replacement", [False, True])
@given(before=st.integers(0, 9), after=st.integers(1, 9), retired=st.sets(st.integers(0, 6)))
def test_it_continues_from_its_state(replacement: bool, before: int, after: int, retired: set[int]) -> None:
    order = ProblemOrder(7, 3, seed=3, content=CONTENT, replacement=replacement)
    for _ in range(before):
        order.take()
    order.retire(retired)
    continued = ProblemOrder(7, 3, seed=3, content=CONTENT, replacement=replacement)
    continued.restore(json.loads(json.dumps(order.state())))
    assert [order.take() for _ in range(after)] == [continued.take() for _ in range(after)]
