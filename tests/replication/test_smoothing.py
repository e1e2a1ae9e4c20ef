"""n* where the truth is known: bias, edges, tolerance, and the coverage of its interval."""

from __future__ import annotations

import numpy as np
import pytest

from isolaw.replication.smoothing import optimum, smooth
from isolaw.replication.verdicts import DOUBLINGS, Effect, leave_one_out

U = np.arange(2.0, 12.0)  # n = 4 to 2048
# Falls on the left (a per doubling, too noisy) and on the right (b, too few steps), highest at u0.
HUMPS = [(0.5, 0.5, 6.5), (0.5, 1.0, 6.5), (1.0, 0.5, 5.2), (0.4, 0.4, 8.7), (0.3, 0.8, 4.1)]


def hump(u: np.ndarray, a: float, b: float, u0: float, scale: float = 0.02) -> np.ndarray:
    return -scale * (2 ** (-a * (u - u0)) / a + 2 ** (b * (u - u0)) / b)


@pytest.mark.parametrize("shape", HUMPS)
def test_bias_is_a_tenth_of_a_doubling(shape: tuple[float, float, float]) -> None:
    assert abs(float(optimum(U, hump(U, *shape)).log2_n) - shape[2]) < 0.12


def test_a_parabola_is_found_exactly() -> None:
    reward = 0.5 - 0.003 * (U[:, None] - np.linspace(3, 10, 40)).T ** 2
    found = optimum(U, reward)
    np.testing.assert_allclose(found.log2_n, np.linspace(3, 10, 40), atol=1e-6)
    np.testing.assert_allclose(found.reward, 0.5, atol=1e-6)
    # 0.003 d² = 0.005 is d = 1.29 doublings below it.
    low = np.maximum(found.log2_n - np.sqrt(5 / 3), 2)
    np.testing.assert_allclose(found.tolerance, low, atol=2e-3)
    assert not found.bound.any()


def test_at_an_edge_it_is_a_bound() -> None:
    found = optimum(U, np.stack([0.01 * U, -0.01 * U]))
    assert found.log2_n.tolist() == [11.0, 2.0]
    assert found.bound.tolist() == [1.0, -1.0]
    assert found.tolerance == pytest.approx([10.5, 2.0])


def test_what_was_not_measured_does_not_compete() -> None:
    reward = np.tile(0.01 * U, (3, 1))
    reward[1, -2:] = np.nan  # in one of the curves is in none of them
    assert optimum(U, reward).log2_n.tolist() == [9.0, 9.0, 9.0]
    reward[0, :-4] = np.nan
    assert np.isnan(optimum(U, reward).log2_n).all()


def test_fewer_and_coarser_n() -> None:
    coarse = U[1::2]
    assert abs(float(optimum(coarse, hump(coarse, 0.5, 0.5, 6.5)).log2_n) - 6.5) < 0.1
    three = np.array([3.0, 5.0, 7.0])
    assert float(optimum(three, -((three - 5.4) ** 2)).log2_n) == pytest.approx(5.4)


def test_smoothing_is_linear_and_keeps_quadratics() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, U.size))
    fine, curve = smooth(U, 2 * a + b)
    np.testing.assert_allclose(curve, 2 * smooth(U, a)[1] + smooth(U, b)[1])
    np.testing.assert_allclose(smooth(U, 1 + U - U**2)[1], 1 + fine - fine**2, atol=1e-9)


@pytest.mark.parametrize("shape", [HUMPS[0], HUMPS[2], HUMPS[3]])
def test_coverage_with_eight_seeds(shape: tuple[float, float, float]) -> None:
    """Of nominal 95 %, bias included."""
    rng = np.random.default_rng(3)
    truth = hump(U, *shape)
    covered = 0
    for _ in range(300):
        values = truth + 0.004 * rng.standard_normal((8, U.size)) + 0.02 * rng.standard_normal((8, 1))
        effect = Effect.of("n*", DOUBLINGS, optimum(U, leave_one_out(values)).log2_n)
        covered += effect.low <= shape[2] <= effect.high
    assert covered / 300 >= 0.9
