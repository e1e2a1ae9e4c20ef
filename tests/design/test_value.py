"""What more spend would buy, before it is spent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from isolaw.design.cell_rewards import compare
from isolaw.design.decisions import Request
from isolaw.design.play import measured
from isolaw.design.truths import Sample, presets
from isolaw.design.value import Purchase, further

TARGET = 1_000_000
CELLS = tuple((32, n) for n in (32, 128, 512))
CHECKPOINTS = {
    (b, n): np.unique(np.geomspace(1, TARGET // (b * n), 12).astype(int) * b * n).astype(float)
    for b, n in CELLS
}
OPEN = presets(CELLS, TARGET, ("easy",))[4]  # which is best is open


@pytest.fixture(scope="module")
def bought() -> tuple[list, Purchase]:
    own = measured(Sample(OPEN, CHECKPOINTS, 1200, (0, 2)), {(*cell, 0): TARGET for cell in CELLS})
    found = compare(own, CELLS, TARGET)
    bought = further(own, found, (0, 1), 4 * TARGET, 1200)
    assert bought is not None
    return own, bought


def test_seeds_go_to_the_best_and_its_rivals_new_ones_first_and_beyond_those_of_the_sweep(bought) -> None:
    runs = bought[1].runs
    assert len(runs) == 4
    assert len(set(runs)) == 4
    assert {run.seed for run in runs} == {1, 2}
    assert all(isinstance(run, Request) and run.compute == TARGET for run in runs)
    assert bought[1].rollouts == sum(
        TARGET // (32 * r.rollouts_per_problem) * 32 * r.rollouts_per_problem for r in runs
    )


def test_the_loss_after_is_one_that_the_estimator_would_state(bought) -> None:
    """Simulated further seeds, on average over the noise of runs: half to twice what is promised."""
    own, promised = bought
    sample = Sample(OPEN, CHECKPOINTS, 1200, (0, 2))
    losses = []
    for repetition in range(4):
        other = Sample(OPEN, CHECKPOINTS, 1200, (7, repetition))
        asked = [run.run for run in promised.runs]
        runs = []
        for c in own:
            keys = [(*c.key, 0), *(key for key in asked if key[:2] == c.key)]
            made = [(sample if key[2] == 0 else other).run(key) for key in keys]
            runs.append(
                replace(
                    c,
                    compute=np.concatenate([compute for compute, _ in made]),
                    reward=np.concatenate([reward for _, reward in made]),
                    run=np.repeat(np.arange(len(made)), [compute.size for compute, _ in made]),
                    seeds=tuple(key[2] for key in keys),
                )
            )
        found = compare(runs, CELLS, TARGET)
        losses.append(found.loss[found.best])
    assert promised.after / 2 < np.mean(losses) + 1e-4
    assert np.mean(losses) < 2 * promised.after + 1e-3


def test_nothing_is_promised_where_nothing_competes_or_rewards_are_no_shares(bought) -> None:
    own, _ = bought
    found = compare(own, CELLS, TARGET)
    sure = replace(found, drawn=np.tile([0.1, 0.2, 0.3], (10, 1)), loss=np.array([0.2, 0.1, 0.0]))
    assert further(own, sure, (0, 1), TARGET, 1200) is None
    assert further([replace(c, reward=c.reward - 2) for c in own], found, (0, 1), TARGET, 1200) is None
