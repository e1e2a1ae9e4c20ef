"""A curve beyond its checkpoints: exact where one family is, wide where a promise was not kept."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import rest_of_run
from isolaw.fits.curves.pooled import pooled

C = np.linspace(0, 1e6, 41)


def curve(reward: np.ndarray, draws: int = 100, noise: float = 0.004, **options: object):  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    samples = np.vstack([reward, reward + noise * rng.standard_normal((draws, reward.size))])
    return pooled(C, samples, np.ones((1, reward.size)), **options)  # type: ignore[arg-type]


@settings(max_examples=20, deadline=None)
@given(A=st.floats(0.4, 0.9), middle=st.floats(5e4, 5e5), power=st.floats(0.8, 2.0))
def test_a_hill_curve_goes_on_as_itself(A: float, middle: float, power: float) -> None:
    def truth(compute: np.ndarray) -> np.ndarray:
        return 0.2 + (A - 0.2) / (1 + (middle / np.maximum(compute, 1e-9)) ** power)

    found = curve(truth(C), draws=0)
    for compute in (3e5, 1e6, 4e6):
        assert found(compute)[0] == pytest.approx(truth(np.array([compute]))[0], abs=2e-4)
    ceiling, known = found.ceiling()
    assert not known or ceiling[0] == pytest.approx(A, abs=2e-3)


def test_a_line_in_log_c_goes_on_and_has_no_ceiling() -> None:
    found = curve(np.append(0.3, 0.3 + 0.05 * np.log(C[1:] / C[1])))
    assert found.weights["line"] > 0.5
    assert found(3e6)[0] == pytest.approx(0.3 + 0.05 * np.log(3e6 / C[1]), abs=0.01)
    assert not found.ceiling()[1]


def test_a_broken_promise_widens_the_interval() -> None:
    """Both have the same last half; the first half of one promised more."""
    steady = 0.5 - 0.2 * np.exp(-C / 3e5)
    stops = np.where(C < 4e5, 0.3 + 0.15 * C / 4e5 * (steady[16] - 0.3) / 0.15, steady[16])
    assert curve(stops).rho > 2 * curve(steady).rho


def test_rewards_stay_within_bounds() -> None:
    found = curve(0.9 + 0.09 * C / C[-1], bounds=(0.0, 1.0))
    assert found(1e8).max() <= 1
    assert found.ceiling()[0].max() <= 1


def test_the_table_in_the_docs_is_of_this_version() -> None:
    kept = json.loads(rest_of_run.SUMMARY.read_text())
    again = rest_of_run.judged(next(rest_of_run.real()))
    for before, now in zip(kept["first"], again, strict=True):
        assert now == pytest.approx(before, abs=1e-3)
    assert "\n".join(rest_of_run.table(kept["rows"])) in rest_of_run.DOCS.read_text()
