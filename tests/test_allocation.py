"""C = B_p · n · M."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.allocation import Allocation, grid, grid_issues
from isolaw.errors import InputError

SIZES = st.integers(1, 4096)
BUDGETS = st.integers(0, 10**15) | st.floats(0, 1e15)


@given(compute=BUDGETS, b=SIZES, n=SIZES)
def test_never_over_budget_and_no_step_left(compute: float, b: int, n: int) -> None:
    allocation = Allocation.within(compute, b, n)
    assert allocation.compute <= compute < allocation.compute + b * n


@given(b=SIZES, n=SIZES, steps=st.integers(0, 10**6))
def test_whole_batches_leave_nothing(b: int, n: int, steps: int) -> None:
    allocation = Allocation(b, n, steps)
    assert allocation.batch_rollouts == b * n
    assert Allocation.within(allocation.compute, b, n) == allocation
    assert Allocation.within(float(allocation.compute), b, n) == allocation


@pytest.mark.parametrize("split", [(0, 8, 1), (8, 0, 1), (8, 8, -1)])
def test_impossible_split(split: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match=r": found (0|-1); expected a whole number, at least"):
        Allocation(*split)


@given(b=st.lists(SIZES, min_size=1, max_size=6), n=st.lists(SIZES, min_size=1, max_size=6), cap=SIZES)
def test_grid_splits_all_pairs_at_the_cap(b: list[int], n: list[int], cap: int) -> None:
    kept, dropped = grid(b, n, cap)
    assert all(x * y <= cap for x, y in kept)
    assert all(x * y > cap for x, y in dropped)
    assert sorted(kept + dropped) == sorted((x, y) for x in set(b) for y in set(n))


@given(b=st.lists(SIZES, min_size=1, max_size=6), n=st.lists(SIZES, min_size=1, max_size=6), cap=SIZES)
def test_a_value_without_partner_is_a_problem(b: list[int], n: list[int], cap: int) -> None:
    kept, dropped = grid(b, n, cap)
    lost = {("b", x) for x, _ in dropped} | {("n", y) for _, y in dropped}
    lost -= {("b", x) for x, _ in kept} | {("n", y) for _, y in kept}
    problems = grid_issues(b, n, cap)
    assert bool(problems) == bool(lost)
    if len(set(b)) > 1 or len(set(n)) > 1:
        axis = {"grid.problems_per_batch": "b", "grid.rollouts_per_problem": "n"}
        assert {(axis[p.where], p.found) for p in problems} == lost


def test_the_message_names_value_and_cap() -> None:
    (problem,) = grid_issues([32], [8, 4096], 65_536)
    text = str(problem)
    for part in ("grid.rollouts_per_problem", "32 = 131072", "found 4096", "at most 2048", "65536"):
        assert part in text
