"""The regression and its posterior, against one that has a closed form."""

from __future__ import annotations

import numpy as np
import pytest

from isolaw.calibration.emulator import Emulator
from isolaw.fits.blas import one_blas_thread


@one_blas_thread()
def test_posterior_of_a_linear_simulator_with_gaussian_noise() -> None:
    """z = A x + b + e with x ~ N(0, I): mean (I + A'A / s²)⁻¹ A'(z₀ − b) / s², covariance the inverse."""
    rng = np.random.default_rng(0)
    slopes, level, sd = np.array([[0.8, 0.1], [0.0, 0.5], [0.3, -0.6], [0.2, 0.2]]), 0.4, 0.3
    x = rng.standard_normal((4000, 2))
    rewards = x @ slopes.T + level + sd * rng.standard_normal((4000, 4))
    measured = slopes @ [0.7, -0.5] + level
    emulator = Emulator.fit(x, rewards, measured)
    precision = np.eye(2) + slopes.T @ slopes / sd**2
    mean = np.linalg.solve(precision, slopes.T @ (measured - level) / sd**2)

    axis = np.linspace(-3, 3, 91)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log = emulator.log_posterior(grid)
    weight = np.exp(log - log.max())
    found = np.average(grid, axis=0, weights=weight)
    away = grid - found
    covariance = (away * weight[:, None]).T @ away / weight.sum()
    assert found == pytest.approx(mean, abs=0.03)
    assert covariance == pytest.approx(np.linalg.inv(precision), rel=0.08, abs=0.003)
    assert emulator.discrepancy == 0.0
    beyond = np.linalg.svd(slopes)[0][:, 2]  # where no x leads
    apart = Emulator.fit(x, rewards, measured + 8 * sd * beyond)
    # Of four components one is 8 s off, and the nearest simulations nearly meet all: 64 s² / (2 s² + δ²) = 4
    assert apart.discrepancy == pytest.approx(np.sqrt(14) * sd, rel=0.15)
    assert np.ptp(apart.log_posterior(grid)) < np.ptp(log)  # which widens it
    assert np.isneginf(emulator.log_posterior(np.array([[3.01, 0.0]]))).all()


@one_blas_thread()
def test_it_follows_a_curve_and_knows_less_where_nothing_was_simulated() -> None:
    rng = np.random.default_rng(1)
    x = rng.uniform(-1, 1, (400, 1))
    rewards = np.hstack([x**2, 1 - 0.5 * x**2]) + 0.01 * rng.standard_normal((400, 2))
    measured = np.array([0.25, 0.875])  # x = ±½
    emulator = Emulator.fit(x, rewards, measured)
    grid = np.linspace(-1, 1, 201)[:, None]
    log = emulator.log_posterior(grid)
    best = [grid[side, 0][log[side].argmax()] for side in (slice(0, 100), slice(101, None))]
    assert best == pytest.approx([-0.5, 0.5], abs=0.03)
    variance = emulator.predict(np.array([[0.0], [5.0]]))[1]
    assert variance[1].sum() > 10 * variance[0].sum()
