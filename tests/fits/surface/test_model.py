"""The model: its gradient, its curves in closed form, and its link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from isolaw.fits.selection import Configuration
from isolaw.fits.surface.model import InitialReward, Link, StructuralModel, build_model

Measured = Callable[..., list[Configuration]]
GRIDS: dict[str, Any] = {
    "B_p": [(32, n) for n in (8, 32, 128)],
    "B": [(4096 // n, n) for n in (8, 32, 128)],
    "n": [(b, 16) for b in (8, 32, 128)],
    "nothing": [(b, n) for b in (16, 64) for n in (8, 32, 128)],
}


@pytest.fixture(params=GRIDS)
def model(measured: Measured, request: pytest.FixtureRequest) -> StructuralModel:
    runs = measured(GRIDS[request.param], hold=request.param, noise=0.01, checkpoints=12)
    return build_model(runs, (0.0, 1.0), 1.0)


@pytest.mark.parametrize("rng", range(3))
def test_the_gradient_is_that_of_differences(model: StructuralModel, rng: int) -> None:
    z = np.random.default_rng(rng).standard_normal(len(model.names)) / 2
    theta = model.prior[:, 0] + z * model.prior[:, 1]
    value, slope = model.loss_and_slope(theta)
    assert value == pytest.approx(model.loss(theta))
    for i in range(theta.size):
        step = 1e-5 * np.eye(theta.size)[i]
        expected = (model.loss(theta + step) - model.loss(theta - step)) / 2e-5
        assert slope[i] == pytest.approx(expected, rel=1e-3, abs=1e-2), model.names[i]


def test_names_are_those_that_the_runs_involve(model: StructuralModel) -> None:
    several = np.ptp(model.observations.log2_b) > 0
    assert ("across" in model.names) == several
    assert {"tau", "kappa", "critical", "b", "b_u", "w"} <= set(model.names)


def learnt(model: StructuralModel, compute: Any, **of_theta: float) -> Any:
    """F in the middle of the grid."""
    size = np.size(compute)
    middle = (np.full(size, model.middle[0]), np.full(size, model.middle[1]), np.log(compute))
    p = model.by_name(model.prior[:, 0]) | of_theta
    return model._learnt(p, model._points(*middle))


def test_its_curves_are_an_exponential_and_hills(model: StructuralModel) -> None:
    """At the limits of w: 1 − e^−x, and x / (1 + x), with x = (C / τ)^b."""
    compute = np.geomspace(1e4, 1e7, 20)
    tau = np.exp(model.last_t) * 2 / 3
    x = (compute / tau) ** 0.8
    of = {"tau": 0.0, "b": np.log(0.8), "b_u": 0.0}
    assert_allclose(learnt(model, compute, **of, w=-12.0), -np.expm1(-x), atol=1e-4)
    assert_allclose(learnt(model, compute, **of, w=0.0), x / (1 + x), atol=1e-9)


def test_past_the_critical_batch_a_doubling_of_n_costs_a_doubling_of_compute(measured: Measured) -> None:
    """The same share is learnt at 2 C (arXiv 1812.06162); far below it, at 2^κ C."""
    model = build_model(measured(GRIDS["B_p"], checkpoints=8), (0.0, 1.0), 1.0)
    p = model.by_name(model.prior[:, 0]) | {"critical": 0.0, "kappa": 0.25, "b_u": 0.0}
    for at, factor in ((20.0, 2.0), (-20.0, 2**0.25)):
        u = np.array([model.middle[0] + at, model.middle[0] + at + 1])
        t = np.array([model.last_t, model.last_t + np.log(factor)]) + np.log(2) * (at if at > 0 else at / 4)
        one, other = model._learnt(p, model._points(u, np.full(2, 5.0), t))
        assert one == pytest.approx(other, abs=1e-6)


def test_step_0_anchors_the_start(measured: Measured) -> None:
    runs = measured(GRIDS["B_p"], noise=0.01)
    with_zero = build_model(runs, (0.0, 1.0), 1.0)
    start = InitialReward.from_configurations(runs)
    assert start.reward == pytest.approx(0.3, abs=0.03)
    without = StructuralModel(with_zero.observations, InitialReward(None, None), with_zero.link)
    assert with_zero.linear_prior_deviation[0] < without.linear_prior_deviation[0]


# The link

bounds = st.sampled_from([(0.0, 1.0), (0.0, np.inf), (-np.inf, 1.0), (-np.inf, np.inf)])


@given(bounds, st.floats(-3, 4))
def test_rewards_stay_within_their_bounds(limits: tuple[float, float], z: float) -> None:
    link = Link(*limits, 0.01)
    (r,) = link.rewards(np.array([z]))
    assert limits[0] <= r <= limits[1]
    if limits[0] + 0.1 < z < limits[1] - 0.1:
        assert r == pytest.approx(z, abs=1e-5)


@given(bounds, st.floats(0.001, 0.999))
def test_the_link_has_an_inverse_and_its_slope(limits: tuple[float, float], r: float) -> None:
    link = Link(*limits, 0.01)
    z, slope = link.inverse(np.array([r, r + 1e-7]))
    assert_allclose(link.rewards(z)[0], r, atol=1e-6)
    assert_allclose((z[1] - z[0]) / 1e-7, slope[0], rtol=1e-2)


def test_a_share_of_1_counts_as_just_below() -> None:
    z, slope = Link(0.0, 1.0, 0.01).inverse(np.array([0.0, 1.0]))
    assert np.all(np.isfinite([z, slope]))
