"""Collapsed runs: cut where they fall, and only where others of their configuration go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import isolaw
from isolaw.fits import collapses
from isolaw.fits.flags import Code, flags_with
from isolaw.fits.selection import Configuration, select
from isolaw.runs import Runs

pytestmark = pytest.mark.numbers

Make = Callable[..., Runs]
GRID = [(32, n) for n in (8, 16, 32, 64)]


def collapsing(runs: Runs, *, at: float = 3e5, keep: float = 0.1, **where: Any) -> Runs:
    """The runs, those that ``where`` names falling by C = ``at`` to a share of what they had learnt."""
    table = runs.to_pandas()
    own = np.ones(len(table), dtype=bool)
    for column, values in where.items():
        own &= table[column].isin(values).to_numpy()
    fallen = own & (table["compute"] > at).to_numpy()
    table.loc[fallen, "value"] = 0.3 + keep * (table.loc[fallen, "value"] - 0.3)
    return Runs(table, runs.attributes)


def configurations(runs: Runs) -> list[Configuration]:
    return list(select(runs, "avg@4", "validation", "B_p").configurations)


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 8)
@given(n=st.sampled_from([n for _, n in GRID]), seed=st.integers(0, 2), at=st.floats(1e5, 8e5))
def test_the_run_that_collapsed_counts_until_then(synthetic: Make, n: int, seed: int, at: float) -> None:
    steady = configurations(synthetic(GRID, noise=0.003))
    made = synthetic(GRID, noise=0.003)
    kept, found = collapses.cut_collapsed(
        configurations(collapsing(made, at=at, rollouts_per_problem=[n], seed=[seed]))
    )
    ((configuration, run, compute),) = found
    assert (configuration.rollouts_per_problem, configuration.seeds[run]) == (n, seed)
    assert compute == configuration.compute[(configuration.run == run) & (configuration.compute <= at)][-1]
    for before, after in zip(steady, kept, strict=True):
        own = (before.run != seed) | (before.compute <= at) | (before.rollouts_per_problem != n)
        assert after.reward.tolist() == before.reward[own].tolist()
        assert after.seeds == before.seeds


@pytest.mark.parametrize(
    "make",
    [
        lambda runs: runs,
        # all runs of a configuration: that is what it does
        lambda runs: collapsing(runs, rollouts_per_problem=[8]),
        # half of all runs: collapses are what these runs do
        lambda runs: collapsing(runs, seed=[0, 1]),
    ],
)
def test_what_all_runs_do_stays(synthetic: Make, make: Callable[[Runs], Runs]) -> None:
    given = configurations(make(synthetic(GRID, noise=0.003, seeds=4)))
    kept, found = collapses.cut_collapsed(given)
    assert not found
    assert [c.reward.tolist() for c in kept] == [c.reward.tolist() for c in given]


def test_runs_that_take_off_at_different_times_stay(synthetic: Make) -> None:
    rng = np.random.default_rng(0)

    def late(_b: int, _n: int, compute: Any) -> Any:
        return 0.3 + 0.3 / (1 + np.exp(-(compute - rng.uniform(2e5, 9e5)) / 4e4))

    assert not collapses.cut_collapsed(configurations(synthetic(GRID, late, seeds=4)))[1]


def test_a_run_that_never_was_with_the_others_leaves_its_configuration(synthetic: Make) -> None:
    runs = synthetic(GRID, noise=0.003)
    table = runs.to_pandas()
    table.loc[table["run_id"] == "32x16s1", "value"] = 0.0
    given = configurations(Runs(table, runs.attributes))
    kept, found = collapses.cut_collapsed(given)
    assert [result.compute for result in found] == [0.0]
    assert [c.seeds for c in kept] == [(0, 1, 2), (0, 2), (0, 1, 2), (0, 1, 2)]
    assert kept[1].reward.tolist() == given[1].reward[given[1].run != 1].tolist()


@pytest.mark.slow
def test_a_law_is_that_of_runs_that_do_not_collapse(synthetic: Make) -> None:
    """Without its collapsed run the best n is what it was, and the law says which run it was."""
    runs = synthetic(GRID, noise=0.003, between=0.002)
    steady = isolaw.fit(runs, draws=40)
    broken = isolaw.fit(collapsing(runs, rollouts_per_problem=[64], seed=[2]), draws=40)
    assert not flags_with(steady.document.flags, Code.COLLAPSED)
    (flag,) = flags_with(broken.document.flags, Code.COLLAPSED)
    assert flag.text.startswith("1 of 12 runs collapsed (B_p = 32, n = 64, seed 2, after C = ")
    before, after = (law.predict(1e6).options[0] for law in (steady, broken))
    assert after.allocation == before.allocation
    assert after.reward.value == pytest.approx(before.reward.value, abs=0.005)
