"""The surface's prior and likelihood: against dense references, and gradients against differences."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from isolaw.fits.selection import Configuration, Floats
from isolaw.fits.surface.covariance import Pairs, Points, integrated, matern
from isolaw.fits.surface.observations import observe
from isolaw.fits.surface.process import PRIORS, Process

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

Measured = Callable[..., list[Configuration]]
N = (8, 16, 32, 64)
ORIGIN = Points(*np.zeros((6, 1)), np.zeros(1, dtype=bool))
PLANES: dict[str, Any] = {
    "B_p": [(32, n) for n in N],
    "B": [(1024 // n, n) for n in N],
    "nothing": [(b, n) for b in (16, 64) for n in N],
}


def ended(b: int, n: int) -> float:
    """Runs end at other computes."""
    return 1e6 if n < 64 else 2e5 * b / 16


def integral(a: float, b: float, length: float) -> float:
    return float(integrated(Pairs(ORIGIN, ORIGIN), np.array([a]), np.array([b]), length)[0][0, 0])


@pytest.fixture(scope="module")
def process(measured: Measured) -> Callable[..., Process]:
    @cache
    def make(hold: str = "B_p", seeds: int = 3, checkpoints: int = 20) -> Process:
        options = {"noise": 0.01, "between": 0.02, "compute": ended, "checkpoints": checkpoints}
        return Process(observe(measured(PLANES[hold], hold=hold, seeds=seeds, **options)))

    return make


def scattered(process: Process, rng: int, size: int = 12) -> Points:
    generator = np.random.default_rng(rng)
    u, v = generator.uniform(2, 10, size), generator.uniform(3, 7, size)
    t = generator.uniform(process.start, process.end + 2, size)
    ahead = np.maximum(t - process.end, 0.0)
    return Points(u, v, t, t, generator.uniform(0.1, 1.5, size), ahead, u <= process.gap[0])


def gram(process: Process, p: Any, at: Points) -> Floats:
    return process.covariance(p, Pairs(at, at))


def somewhere(process: Process, rng: int, spread: float = 0.7) -> Floats:
    """Hyperparameters that are not at their priors' centre."""
    z = np.random.default_rng(rng).standard_normal(len(process.names))
    return np.asarray(process.prior[:, 0] + spread * process.prior[:, 1] * z)


@given(st.sampled_from(list(PLANES)), st.integers(0, 10_000))
def test_any_hyperparameters_have_a_covariance(process: Any, hold: str, rng: int) -> None:
    own = process(hold)
    p = own.named(somewhere(own, rng, 1.5))
    at = scattered(own, rng)
    values = np.linalg.eigvalsh(gram(own, p, at))
    assert values[0] > -1e-9 * values[-1]
    np.linalg.cholesky(own.observed(p))


@given(st.sampled_from(list(PLANES)), st.integers(0, 10_000))
def test_the_covariance_by_hand(process: Any, hold: str, rng: int) -> None:
    """m(t − d) + δ₀ + g(t) [δ + z + λ s], one pair after another."""
    own = process(hold)
    p = own.named(somewhere(own, rng))
    at = scattered(own, rng, 4)
    found = gram(own, p, at)
    np.testing.assert_allclose(Pairs(at).matrix(own.covariance(p, Pairs(at))), found, rtol=1e-12)
    joint = hold == "nothing"
    places = own.observations.places
    middle = (places.min(axis=0) + places.max(axis=0)) / 2

    def k(h: float) -> float:
        return float(matern(np.array(h))[0])

    def gone(i: int) -> float:
        delay = p["delay"] * (at.u[i] - middle[0])
        if joint:
            delay += p["delay_b"] * (at.v[i] - middle[1])
        return max(at.t[i] - own.start + 3 - delay, 0.0)

    for i in range(4):
        for j in range(4):
            shifted = at.shift[i] - at.shift[j]
            d_u, d_v = at.u[i] - at.u[j], at.v[i] - at.v[j] if joint else 0.0
            along = k((d_u - p["rho"] * shifted) / p["l_u"])
            along *= k((d_v - p["rho_b"] * shifted) / p["l_v"]) if joint else 1.0
            turned = integral(at.t[i] - own.start, at.t[j] - own.start, p["l"])
            turned += 0.25 * at.ahead[i] * at.ahead[j]
            differs = along * (p["a"] ** 2 + p["s"] ** 2 * turned)
            lasts = np.exp(-abs(at.t[i] - at.t[j]) / 10)
            differs += p["rough"] ** 2 * np.exp(-(abs(d_u) + abs(d_v)) / 2) * lasts
            if at.below[i] and at.below[j]:
                differs += p["step"] ** 2 * lasts
            trend = 25 + p["s_m"] ** 2 * integral(gone(i), gone(j), p["l_m"]) + p["base"] ** 2 * along
            assert found[i, j] == pytest.approx(trend + at.learnt[i] * at.learnt[j] * differs)


@pytest.mark.parametrize("hold", PLANES)
def test_observations_vary_as_their_runs_do(process: Any, hold: str) -> None:
    """Every run in every bin with its own effects, combined by P: dense, without anything that is saved."""
    own = process(hold)
    o = own.observations
    p = own.named(somewhere(own, 3))
    runs = o.run_place.size
    weight = 2.0 ** (-2 * p["gamma"] * (o.places[o.run_place, 0] - o.places[o.run_place, 0].mean()))
    expected = gram(own, p, own.points)
    seeds = o.seed_variance / own.scale**2
    for i in range(o.t.size):
        for j in range(o.t.size):
            apart = abs(o.t[i] - o.t[j])
            lasting = p["o0"] ** 2 + p["o1"] ** 2 * np.exp(-apart / 2)
            full = np.diag(weight * lasting)
            slowly = (1 + matern(np.array(apart / 4))[0]) / 2
            full += p["seed"] ** 2 * seeds * slowly * (o.run_seed[:, None] == o.run_seed)
            if o.bin[i] == o.bin[j]:
                looks = np.where(o.counts[:, o.bin[i]] > 0, o.counts[:, o.bin[i]], 1)
                full += np.diag(weight * p["noise"] ** 2 / looks)
            assert full.shape == (runs, runs)
            expected[i, j] += o.combined[i] @ full @ o.combined[j]
    np.testing.assert_allclose(own.observed(p), expected, atol=1e-7)


# The posterior of hyperparameters


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("hold", PLANES)
def test_the_likelihood(process: Any, hold: str, seeds: int) -> None:
    """Observations and residuals are normal, hyperparameters have normal priors: against SciPy."""
    own = process(hold, seeds, 10)
    o = own.observations
    values = []
    for rng in (1, 2):
        theta = somewhere(own, rng)
        p = own.named(theta)
        out = -multivariate_normal(np.zeros(o.t.size), own.observed(p)).logpdf(own.y)
        out += 0.5 * np.sum(((theta - own.prior[:, 0]) / own.prior[:, 1]) ** 2)
        for run in range(o.run_place.size if o.freedom else 0):
            known = ~np.isnan(o.residuals[run])
            t = np.array([o.t[o.bin == k].mean() for k in np.flatnonzero(known)])
            u = o.places[o.run_place, 0]
            drift = np.exp(-np.abs(t[:, None] - t) / 2)
            covariance = p["o0"] ** 2 + p["o1"] ** 2 * drift
            covariance = covariance + np.diag(p["noise"] ** 2 / o.counts[run, known] + 1e-8)
            covariance = covariance * 2.0 ** (-2 * p["gamma"] * (u[run] - u.mean()))
            # Fewer degrees of freedom: as many residuals of variance 1, of which each counts as that much.
            left = o.residuals[run, known] / own.scale
            square = left @ np.linalg.solve(covariance, left)
            out += 0.5 * (o.freedom * np.linalg.slogdet(covariance)[1] + square)
        values.append((out, own.loss(theta)))
    (a, one), (b, other) = values
    assert one - other == pytest.approx(a - b, abs=1e-6)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("hold", PLANES)
@pytest.mark.parametrize("rng", range(3))
def test_the_gradient(process: Any, hold: str, seeds: int, rng: int) -> None:
    own = process(hold, seeds)
    theta = somewhere(own, rng)
    value, slope = own.loss_and_slope(theta)
    assert value == pytest.approx(own.loss(theta), rel=1e-9)
    for i, name in enumerate(own.names):
        e = 1e-3 * np.eye(theta.size)[i]
        near, far = (own.loss(theta + k * e) - own.loss(theta - k * e) for k in (1, 2))
        expected = (8 * near - far) / 12e-3  # to fourth order: the loss itself has rounding
        assert slope[i] == pytest.approx(expected, rel=1e-4, abs=2e-3), name


def test_what_there_is_to_be_known(process: Any) -> None:
    """B_p has a length of its own where it varies on its own; γ and seeds need runs that vary."""
    everything = set(PRIORS)
    assert set(process("nothing").names) == everything
    for hold in ("B_p", "B"):
        assert set(process(hold).names) == everything - {"l_v", "rho_b", "delay_b"}
        assert set(process(hold, 1).names) == everything - {"l_v", "rho_b", "delay_b", "gamma", "seed"}
    named = process().named(process().prior[:, 0])
    assert named["l_u"] == pytest.approx(3)
    assert (named["rho"], named["gamma"], named["rho_b"], named["l_v"]) == (0, 0, 0, 1)


def test_the_gap_is_where_neighbours_differ_most(measured: Measured) -> None:
    """A cliff between 32 and 64."""

    def cliff(_b: int, n: int, compute: Any) -> Any:
        return (0.5 if n <= 32 else 0.7) * (1 - np.exp(-compute / 1e5))

    own = Process(observe(measured(PLANES["B_p"], cliff)))
    assert own.gap == (5.0, 6.0)
    assert own.height * own.scale == pytest.approx(0.15, abs=0.05)  # late, in the mean


@settings(max_examples=20)
@given(st.floats(-1, 1), st.floats(0.5, 2))
def test_what_is_seen_is_seen_again_shifted(process: Any, rho: float, ahead: float) -> None:
    """An e-fold later, ρ doublings further on, the covariance is as between points of one time."""
    own = process()
    p = dict(own.named(own.prior[:, 0])) | {"rho": rho, "s": 0.0, "s_m": 0.0, "step": 0.0}
    t = own.start + np.array([1.0, 1.0 + ahead, 1.0 + ahead])
    u = np.array([5.0, 5.0 + rho * ahead, 5.0])
    at = Points(u, np.full(3, 5.0), t, t, np.ones(3), np.zeros(3), np.zeros(3, dtype=bool))
    p |= {"rough": 0.0}  # which does not last for good
    found = gram(own, p, at)
    assert found[0, 1] == pytest.approx(found[0, 0])
    assert found[0, 2] <= found[0, 1] + 1e-12


def test_past_the_end_the_rise_goes_on_by_a_share(process: Any) -> None:
    own = process()
    t = np.array([own.end - 1, own.end, own.end + 1.1, own.end + 2.3])
    all_, half, none = (own.learnt(t, share) for share in (1.0, 0.5, 0.0))
    np.testing.assert_allclose(half, (all_ + none) / 2)
    assert none[2] == none[3] == none[1] == half[1]
    assert np.all(np.diff(all_) > 0)
