"""The parametric surface: its equation, and constants that are found again."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isolaw
from isolaw.fits.curves.learning_curves import SATURATING, SaturatingFamily
from isolaw.fits.surface.saturating import Likelihood, Saturating, curve

pytestmark = pytest.mark.numbers

U = np.arange(3.0, 12.0)
TRUE = np.array([-1.5, 1.0, -0.5, -0.7, -6.0, 11.0, 0.25, -0.2, 0.02])


def by_hand(family: str, theta: list[float], u: float, v: float, t: float) -> float:
    """The equation of the module, a number at a time."""
    start, rise, a, alpha, q, tau, tau_u, b, b_u, *batch = theta
    tau_v, sigma, d = batch or (0.0, 0.0, -math.inf)
    at = u + sigma * v
    ceiling = start + math.exp(rise) - math.exp(a) * 2 ** (-math.exp(alpha) * at) - math.exp(q) * at**2
    ceiling -= math.exp(d) * v**2
    x = (math.exp(t) / math.exp(tau + tau_u * u + tau_v * v)) ** math.exp(b + b_u * u)
    return start + (ceiling - start) * (1 - math.exp(-x) if family == "exp" else x / (1 + x))


small = st.floats(-1.5, 1.5)


@given(st.sampled_from(SATURATING), st.lists(small, min_size=12, max_size=12), small, small, st.floats(9, 13))
def test_the_equation(family: SaturatingFamily, theta: list[float], u: float, v: float, t: float) -> None:
    theta[5] += 11
    for size in (9, 12):
        own = theta[:size]
        at = np.array([u]), np.array([v]), np.array([t])
        found = curve(family, np.array([own]), *at, plane=size == 12)[0, 0]
        assert found == pytest.approx(by_hand(family, own, u, v, t), rel=1e-9, abs=1e-9)


@given(st.floats(-0.5, 1.5), st.floats(0, 4))
def test_past_the_critical_batch_the_scale_doubles_with_the_batch(x: float, w: float) -> None:
    """x is the measured growth of log τ with log B, and w the doublings past the largest B."""
    theta = np.where(np.arange(9) == 6, x * math.log(2), TRUE)[None]
    surface = Saturating("exp", theta, (5.0, 5.0), False, 0.0, 1.0, 12.0)
    found = surface.lost(np.array([7.0 + w]), np.array([5.0]))[0, 0]
    ratio = x / (1 - x) if 0 < x < 1 else 0.0  # largest B / B_crit
    critical = math.log2(1 / ratio) if 0 < ratio < 1 else 0.0 if ratio else math.inf
    growth = min(w, critical) * x + max(w - critical, 0.0)  # of log2 τ, if 0 < x < 1
    assert found == pytest.approx(max(growth - w * x, 0.0) if 0 < x < 1 else 0.0, abs=1e-9)
    assert surface.lost(np.array([7.0 - w]), np.array([5.0]))[0, 0] == 0


@pytest.mark.parametrize("family", SATURATING)
def test_constants_are_found_again(family: SaturatingFamily) -> None:
    """Runs that are such a surface, to C = 1e6: draws meet the rewards at three times that."""

    def reward(_b: int, n: int, compute: np.ndarray) -> np.ndarray:
        u = np.full(compute.size, math.log2(n) - 7)
        t = np.log(np.maximum(compute, 1.0))
        return 0.5 + 0.1 * curve(family, TRUE[None], u, 0 * u, t, plane=False)[0]

    rng = np.random.default_rng(0)
    rows = []
    for n in 2 ** U.astype(int):
        steps = np.unique(np.geomspace(1, 1e6 // (32 * n), 40).astype(int))
        compute = steps * 32.0 * n
        for seed in range(2):
            value = reward(32, n, compute) + 0.004 * rng.standard_normal(compute.size)
            rows += [
                {"run_id": f"{n}-{seed}", "n": n, "B_p": 32, "seed": seed, "step": s, "avg@4": v}
                for s, v in zip(steps, value, strict=True)
            ]
    import pandas as pd

    law = isolaw.fit(isolaw.read(pd.DataFrame(rows), metric="avg@4"), draws=10)
    assert law.surface is not None
    process = law.surface.process
    noise = process.noise(process.named(law.surface.mode))
    likelihood = Likelihood(process.observations, noise, family, process.centre, process.scale)
    draws = likelihood.draws(100, seed=1)
    at = np.full(U.size, 3e6)
    found = draws.rewards(U, np.full(U.size, 5.0), at)
    true = np.array([reward(32, int(2**u), np.array([3e6]))[0] for u in U])
    assert np.abs(found.mean(axis=0) - true).max() < 0.02
    assert np.all(np.abs(found.mean(axis=0) - true) < 4 * found.std(axis=0) + 0.002)
    again = likelihood.draws(100, seed=1).rewards(U, np.full(U.size, 5.0), at)
    np.testing.assert_array_equal(found, again)
