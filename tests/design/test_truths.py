"""Truths: the presets that ship with isolaw, and those fitted to runs."""

from __future__ import annotations

import numpy as np
import pytest

from isolaw.backends.bandit import Bandit
from isolaw.design import truths, weights
from isolaw.design.play import measured
from isolaw.design.truths import Sample, fitted_to_runs, presets

TARGET = 1_000_000
CELLS = tuple((32, n) for n in (8, 32, 128, 512))
CHECKPOINTS = {
    (b, n): np.unique(np.geomspace(1, TARGET // (b * n), 20).astype(int) * b * n).astype(float)
    for b, n in CELLS
}


def test_the_presets_are_of_this_simulator() -> None:
    """If this fails: python -m benchmarks.design simulate, then python -m benchmarks.calibration.truths."""
    assert truths.simulator_version() == Bandit.version
    assert truths.FILE.stat().st_size < 300_000


def test_presets_are_rewards_over_any_grid_scaled_to_the_target() -> None:
    cells = ((4, 4), (32, 48), (64, 4096))
    found = presets(cells, 12_000)
    assert len(found) == 22
    assert {truth.name.split()[0] for truth in presets(cells, 12_000, ("hard",))} == {
        "hard",
        "published-hard",
    }
    for truth in found:
        assert truth.mean.shape == truth.own.shape == (3, truth.compute.size)
        assert truth.compute[[0, -1]].tolist() == [0, 12_000]
        assert np.all((truth.mean >= 0) & (truth.mean <= 1))
        assert np.all(truth.mean[:, -1] > truth.mean[:, 0])
    assert truths.outside(cells) == [(4, 4), (64, 4096)]
    inside = [t.rewards()[8, 8] for t in presets([(8, 8)], 12_000)]
    assert [t.rewards()[4, 4] for t in found] == inside  # as its nearest


def test_runs_of_one_seed_share_most_and_repeat_exactly() -> None:
    (truth, *_) = presets(CELLS, TARGET, ("easy",))
    ends = np.array(
        [
            [Sample(truth, CHECKPOINTS, 1200, (0, r)).run((*cell, 0))[1][-1] for cell in CELLS]
            for r in range(60)
        ]
    )
    assert ends.mean(axis=0) == pytest.approx(list(truth.rewards().values()), abs=0.01)
    assert np.corrcoef(ends.T).min() > 0.4
    again = Sample(truth, CHECKPOINTS, 1200, (0, 0))
    again.run((32, 128, 1))  # whatever was asked before
    assert again.run((32, 8, 0))[1][-1] == ends[0, 0]
    exact = Sample(truth, CHECKPOINTS, 0, (0, 0)).run((32, 8, 0))[1]
    assert np.any(exact * 1200 % 1 > 1e-6)


def test_runs_tell_which_truths_are_like_them_whatever_their_level() -> None:
    every = presets(CELLS, TARGET)
    asked = {(*cell, seed): TARGET for cell in CELLS for seed in range(2)}
    for i in (1, 4, 9, 13):
        own = every[i]
        runs = measured(Sample(own, CHECKPOINTS, 1200, (3, i)), asked)
        for c in runs:
            c.reward[:] += 0.1
        found = weights.agreement(runs, every, 1200)
        assert found.sum() == pytest.approx(1)
        assert found[i] > 2 / len(every)
        assert 1 <= weights.effective(found) < len(every) / 2
    assert weights.agreement(runs[:1], every, 1200).tolist() == pytest.approx([1 / 22] * 22)


def test_runs_are_truths_only_where_they_reach_the_target_around_the_grid() -> None:
    (truth, *_) = presets(CELLS, TARGET)
    sample = Sample(truth, CHECKPOINTS, 1200, (0, 0))
    runs = measured(sample, {(*cell, 0): TARGET for cell in CELLS})
    found = fitted_to_runs(runs, CELLS, TARGET, 2, 0)
    assert [own.name for own in found] == ["your runs 0", "your runs 1"]
    assert found[0].mean[:, -1] == pytest.approx(truth.mean[:, -1], abs=0.1)
    assert fitted_to_runs(runs, CELLS, 2 * TARGET, 2, 0) == []
    assert fitted_to_runs(runs, (*CELLS, (32, 1024)), TARGET, 2, 0) == []
    assert fitted_to_runs(runs, (*CELLS, (64, 8)), TARGET, 2, 0) == []
