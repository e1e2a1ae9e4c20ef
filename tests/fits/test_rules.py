"""Simple rules: IsoFLOP finds a law of vertices, and both stay where runs were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from isolaw.fits.rules import simple_rules
from isolaw.fits.selection import Configuration

LEVELS = (8, 16, 32, 64, 128, 256)


def curve(n: int, alpha: float, beta: float, end: float = 1e5) -> Configuration:
    """Rewards that at every C are highest at log2 n = alpha + beta log2 C."""
    compute = np.geomspace(1e3, end, 200)
    reward = 0.5 - 0.01 * (np.log2(n) - alpha - beta * np.log2(compute)) ** 2
    return Configuration(16, n, compute, reward, np.zeros(200, np.int64), (0,), 16.0 * n)


@pytest.mark.parametrize(("alpha", "beta"), [(5.0, 0.0), (-3.0, 0.5)])
def test_isoflop_goes_on_as_the_vertices_do(alpha: float, beta: float) -> None:
    chosen = simple_rules([curve(n, alpha, beta) for n in LEVELS]).choices(1e6)["isoflop"]
    assert np.log2(chosen) == pytest.approx(alpha + beta * np.log2(1e6), abs=0.05)


def test_isoflop_ends_at_four_times_the_measured_n() -> None:
    rules = simple_rules([curve(n, -3.0, 0.5) for n in LEVELS])
    assert (rules.choices(1.0)["isoflop"], rules.choices(1e30)["isoflop"]) == (2.0, 1024.0)


def test_the_best_measured_is_that_of_the_last_tenth() -> None:
    rules = simple_rules([curve(n, 5.0, 0.0) for n in LEVELS])
    assert (rules.best_measured, rules.best) == (32, (16, 32))


def test_the_best_measured_is_meant_at_one_compute() -> None:
    """With equal steps, the largest n ends with the highest reward, at a compute that no other n reached."""
    runs = [curve(n, 4.0, 0.0, end=1e4 * n) for n in LEVELS]
    rising = [replace(c, reward=c.reward + 0.2 * np.log(c.compute)) for c in runs]
    last = {c.rollouts_per_problem: c.mean[-1] for c in rising}
    assert max(last, key=last.__getitem__) == 256
    assert simple_rules(rising).best_measured == 64  # the best of the three that ran as far as n = 64


def test_fewer_than_three_n_have_no_isoflop() -> None:
    rules = simple_rules([curve(n, 5.0, 0.0) for n in LEVELS[:2]])
    assert rules.choices(1e6) == {"best_measured": 16}


def test_runs_that_share_no_compute_have_no_isoflop() -> None:
    runs = [replace(curve(n, 4.0, 0.0), compute=np.geomspace(n, 3 * n, 200)) for n in (8, 32, 128, 512)]
    assert simple_rules(runs).isoflop is None


def test_runs_that_share_one_budget_have_a_level_isoflop() -> None:
    ends = {8: 1e4, 16: 1e4, 32: 1.0001e3}
    rules = simple_rules([curve(n, 4.0, 0.0, end) for n, end in ends.items()])
    assert rules.choices(1e6)["isoflop"] == pytest.approx(16, rel=0.1)
