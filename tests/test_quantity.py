"""Estimates with intervals and statuses."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolaw.evidence import REFUSED, Quantity, Status, from_draws
from isolaw.fits.document.codec import decoded

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

GRID = np.array([8, 16, 32, 64, 128, 256])
STATUSES: tuple[Status, ...] = ("ok", "lower_bound", "upper_bound", "not_identified", "refused")


def test_percentiles() -> None:
    draws = np.random.default_rng(0).standard_normal(999)
    q = from_draws(0.1, draws)
    assert q.value == 0.1
    assert q.interval == pytest.approx(tuple(np.percentile(draws, [2.5, 97.5])))
    assert q.status == "ok"


@pytest.mark.parametrize(
    ("status", "interval"),
    [
        ("ok", (32.0, 128.0)),
        ("lower_bound", (32.0, None)),
        ("upper_bound", (None, 128.0)),
        ("not_identified", None),
        ("refused", None),
    ],
)
def test_a_bound_is_open_on_its_side(
    status: Status, interval: tuple[float | None, float | None] | None
) -> None:
    draws = [32.0] * 10 + [64.0] * 80 + [128.0] * 10
    assert from_draws(64.0, draws, status, GRID) == Quantity(64.0, interval, status)


def test_without_draws_there_is_no_interval() -> None:
    assert from_draws(3.0, []) == Quantity(3.0, None, "ok")


def test_measured_n_are_not_averaged() -> None:
    for share in range(1, 100):
        mixed = [16.0] * share + [128.0] * (100 - share)
        assert set(from_draws(16.0, mixed, levels=GRID).interval or ()) <= {16.0, 128.0}
    assert from_draws(16.0, [16.0] * 30 + [128.0] * 70, levels=GRID).interval == (16.0, 128.0)


def test_at_the_grids_edges_n_is_a_bound() -> None:
    assert from_draws(32.0, [8.0] * 10 + [32.0] * 80 + [64.0] * 10, levels=GRID).interval == (None, 64.0)
    assert from_draws(32.0, [16.0] * 10 + [32.0] * 80 + [256.0] * 10, levels=GRID).interval == (16.0, None)
    q = from_draws(256.0, [256.0] * 50, "lower_bound", GRID)
    assert (q.value, q.status) == (256.0, "lower_bound")
    assert q.interval == (256.0, None)
    q = from_draws(8.0, [8.0] * 50, "upper_bound", GRID)
    assert (q.value, q.status) == (8.0, "upper_bound")
    assert q.interval == (None, 8.0)


def test_draws_that_do_not_vary_say_nothing_of_spread() -> None:
    assert from_draws(0.7, [0.7] * 50) == Quantity(0.7, None, "ok")
    assert from_draws(64.0, [64.0] * 50, levels=GRID) == Quantity(64.0, None, "ok")


def test_draws_that_lack_it() -> None:
    nearly = np.r_[np.full(4, np.nan), np.linspace(0, 1, 96)]
    assert from_draws(0.5, nearly).interval is not None
    seldom = np.r_[np.full(6, np.nan), np.linspace(0, 1, 94)]
    assert from_draws(0.5, seldom) == Quantity(0.5, None, "not_identified")
    assert from_draws(0.5, seldom, "lower_bound") == Quantity(0.5, None, "lower_bound")


def test_draws_beyond_what_was_measured_open_the_end() -> None:
    above = np.r_[np.linspace(1, 2, 90), np.full(10, np.inf)]
    q = from_draws(1.5, above)
    assert q.interval is not None
    assert q.interval[0] == pytest.approx(1.05, abs=0.02)  # all 5 % on the closed side
    assert q.interval[1] is None
    few = np.r_[np.linspace(1, 2, 99), np.inf]
    assert from_draws(1.5, few).interval == pytest.approx((1.0, 2.0), abs=0.05)
    for end in (np.inf, -np.inf):
        assert from_draws(1.5, np.full(20, end)) == Quantity(1.5, None, "not_identified")
    both = np.r_[np.full(50, -np.inf), np.full(50, np.inf)]
    assert from_draws(1.5, both) == Quantity(1.5, None, "not_identified")


def test_a_bound_whose_draws_all_lie_beyond_it_is_still_a_bound() -> None:
    """At the grid's edge in every draw: n* is at least that, which is not the same as not known."""
    assert from_draws(512.0, np.full(50, np.inf), "lower_bound") == Quantity(
        512.0, (512.0, None), "lower_bound"
    )
    assert from_draws(8.0, np.full(50, -np.inf), "upper_bound") == Quantity(8.0, (None, 8.0), "upper_bound")
    mixed = np.r_[np.full(90, np.inf), np.full(10, 200.0)]
    assert from_draws(512.0, mixed, "lower_bound").interval == (200.0, None)
    assert from_draws(512.0, np.r_[mixed, np.full(900, np.inf)], "lower_bound").interval == (512.0, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_estimate_no_statement(value: float) -> None:
    assert from_draws(value, [1.0, 2.0]) == REFUSED


numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(numbers, st.lists(numbers, max_size=30), st.sampled_from(STATUSES))
def test_always_json_and_in_order(value: float, draws: list[float], status: Status) -> None:
    q = from_draws(value, draws, status)
    data = json.loads(json.dumps(q.to_dict(), allow_nan=False))
    assert decoded(Quantity, data) == q
    assert q.status in STATUSES
    if q.interval is not None and None not in q.interval:
        low, high = q.interval
        finite = [d for d in draws if math.isfinite(d)]
        assert min(finite) <= low < high <= max(finite)  # type: ignore[operator]
    if q.value is None:
        assert q == REFUSED
