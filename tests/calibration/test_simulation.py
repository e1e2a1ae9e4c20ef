"""A protocol simulates what the bandit backend does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import isolaw
from isolaw.calibration.recorded import lr_factor
from isolaw.calibration.simulation import Protocol, SimulatedCell
from isolaw.config import SweepSpec
from isolaw.simulators.interference import PRESETS
from isolaw.simulators.problems import difficulty

OWN = replace(PRESETS["P"], lr_easy=0.1)
SEEDS = 24


def protocol(*cells: tuple[int, int], steps: tuple[int, ...] = (0, 20, 60), **more: object) -> Protocol:
    own = [SimulatedCell(b, n, lr_factor(b, n), steps, (0,) * len(steps)) for b, n in cells]
    return Protocol(tuple(own), 50, 40, False, **more)  # type: ignore[arg-type]


def test_it_equals_the_backend(tiny: Callable[..., SweepSpec], tmp_path: Path) -> None:
    """Runs of one seed have the same problems in both, so their differences are those of rollouts."""
    spec = tiny(
        sweep={"compute": 64 * 60, "seeds": SEEDS}, grid={"rollouts_per_problem": [8]},
        bandit={"parameters": {"lr_easy": 0.1}}, problems={"set": "easy"},
        evaluation={"points": 4, "samples": 400, "metrics": ["avg@4"]},
    )  # fmt: skip
    points = isolaw.sweep(spec, tmp_path / "runs").to_pandas()
    points = points[(points["metric"] == "avg@4") & (points["eval_set"] == "validation")]
    last = points[points["step"] == 60].sort_values("seed")["value"].to_numpy()
    ours = [protocol((8, 8)).simulate(OWN, difficulty("easy"), seed)[-1] for seed in range(SEEDS)]
    difference = np.array(ours) - last
    assert np.ptp(ours) > 0.05  # problems differ between seeds …
    assert difference.std() < 0.8 * np.std(ours)  # … and are those of the backend
    assert abs(difference.mean()) < 4 * difference.std() / np.sqrt(SEEDS)
    assert abs(difference.mean()) < 0.02


def test_a_simulation_depends_on_its_seed_alone() -> None:
    both = protocol((8, 8), (8, 16))
    first, again = (both.simulate(OWN, difficulty("easy"), 3) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    alone = protocol((8, 16)).simulate(OWN, difficulty("easy"), 3)
    np.testing.assert_array_equal(alone, first[3:])  # nor does a cell depend on the others
    assert (first != both.simulate(OWN, difficulty("easy"), 4)).any()


def test_runs_of_a_cell_are_averaged_and_answers_are_drawn() -> None:
    one = protocol((8, 8))
    many = replace(one, cells=(replace(one.cells[0], runs=2, answers=(4, 4, 4)),), shared=True)
    exact, drawn = (own.simulate(OWN, difficulty("easy"), 0) for own in (one, many))
    assert drawn[0] == pytest.approx(exact[0], abs=0.12)  # 40 problems with 8 answers
    assert (drawn * 40 * 8) == pytest.approx(np.round(drawn * 40 * 8))
    (mean, variance), *_ = one.moments(OWN, difficulty("easy"), 0)
    assert mean == pytest.approx(exact)
    assert ((variance >= 0) & (variance <= mean * (1 - mean))).all()


def test_a_population_that_diverges_has_reward_zero_from_there_on() -> None:
    found = protocol((8, 8)).simulate(replace(OWN, lr_easy=1e200), difficulty("easy"), 0)
    assert found[0] > 0.2
    assert found[1:].tolist() == [0.0, 0.0]
