"""What an ensemble leaves of runs, and how it goes on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from isolaw.calibration.discrepancy import Discrepancy
from isolaw.calibration.simulation import SimulatedCell

STEPS = tuple(range(11))
CELLS = [SimulatedCell(4, n, 1.0, STEPS, (0,) * len(STEPS)) for n in (2, 16)]


def drawn(found: Discrepancy, n: int, compute: list[float], members: int = 2000) -> tuple[np.ndarray, ...]:
    """Mean and standard deviation of d in the cell (4, n)."""
    rows = found.draws([(4, n)], np.array([compute]), members, np.random.default_rng(0))[:, 0]
    return rows.mean(axis=0), rows.std(axis=0)


def test_one_measurement_in_closed_form() -> None:
    """d' given e = d + noise of variance v: mean δ² r e / (δ² + v), variance δ² − δ⁴ r² / (δ² + v)."""
    delta, v, e, c = 0.05, 0.03**2, 0.08, 800.0
    one = Discrepancy(delta, np.array([e]), np.log([[c, 2, 4]]), (v / 2, v / 3, v / 6), (3.0, 1.5))
    for n, at in ((2, c), (2, 4 * c), (16, c), (16, 10 * c)):
        r = np.exp(-np.log(at / c) / 3 - np.log(n / 2) / 1.5)
        mean, sd = drawn(one, n, [at])
        assert mean[0] == pytest.approx(delta**2 * r * e / (delta**2 + v), rel=1e-4)
        assert sd[0] == pytest.approx(np.sqrt(delta**2 - delta**4 * r**2 / (delta**2 + v)), rel=0.05)


def test_it_begins_where_the_runs_ended_and_returns_to_the_mechanism() -> None:
    left = np.concatenate([np.full(len(STEPS), 0.04), np.full(len(STEPS), -0.06)])
    found = replace(Discrepancy.of(0.05, CELLS, left, 1e-6 * np.eye(len(left))), lengths=(2.0, 1.0))
    assert len(found.left) == 20  # nothing before the first step
    for n, own in ((2, 0.04), (16, -0.06)):
        mean, sd = drawn(found, n, [10 * 4 * n, 1e2 * 10 * 4 * n, 1e12])
        assert mean[0] == pytest.approx(own, abs=0.001)
        assert abs(mean[1]) < abs(mean[0])
        assert sd[0] < 0.01 < sd[1]
        assert (mean[2], sd[2]) == (pytest.approx(0, abs=0.005), pytest.approx(0.05, rel=0.1))


def test_levels_of_problems_and_of_runs_are_not_carried_on() -> None:
    """What noise of the runs explains is noise: a shift of all cells, or of one, that is as large."""
    same = np.kron(np.eye(2), np.ones((len(STEPS), len(STEPS))))
    for noise, shift in ((np.ones_like(same), (0.05, 0.05)), (same, (0.05, -0.05))):
        covariance = 0.05**2 * noise + 1e-6 * np.eye(len(same))
        found = Discrepancy.of(0.005, CELLS, np.repeat(shift, len(STEPS)), covariance)
        assert drawn(found, 2, [80.0])[0][0] == pytest.approx(0, abs=0.002)


def test_lengths_are_those_of_the_runs() -> None:
    rng = np.random.default_rng(3)
    steps = tuple(int(s) for s in np.unique(np.geomspace(1, 2000, 14)))
    cells = [SimulatedCell(8, n, 1.0, steps, (0,) * len(steps)) for n in (2, 4, 8, 16, 32, 64)]
    empty = Discrepancy(0.05, np.zeros(0), np.zeros((0, 3)), lengths=(6.0, 0.3))
    keys = [(c.problems_per_batch, c.rollouts_per_problem) for c in cells]
    left = empty.draws(keys, np.array([c.compute for c in cells]), 2, rng)[0]
    found = Discrepancy.of(0.05, cells, left.ravel(), 1e-8 * np.eye(left.size))
    along, across = found.lengths
    assert along > 2.5
    assert across < 0.8


def test_without_a_discrepancy_nothing_is_added_and_without_runs_its_size_is() -> None:
    left = np.full(2 * len(STEPS), 0.04)
    mean, sd = drawn(Discrepancy.of(0.0, CELLS, left, np.eye(len(left))), 2, [80.0, 800.0])
    assert not mean.any()
    assert not sd.any()
    mean, sd = drawn(Discrepancy.read(0.05, {}), 2, [80.0])
    assert (mean[0], sd[0]) == (pytest.approx(0, abs=1e-12), pytest.approx(0.05, rel=0.1))


def test_a_file_has_all_of_it() -> None:
    left = np.random.default_rng(0).normal(0, 0.03, 2 * len(STEPS))
    found = Discrepancy.of(0.05, CELLS, left, 1e-4 * np.eye(len(left)))
    again = Discrepancy.read(0.05, found.to_dict())
    np.testing.assert_allclose(drawn(again, 2, [200.0]), drawn(found, 2, [200.0]), rtol=1e-2)
    assert replace(again, left=found.left).to_dict() == found.to_dict()
