"""Small inputs that went wrong, whose true n* or rewards are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import isolaw
from isolaw.errors import InputError

CASES = Path(__file__).parents[3] / "shared" / "data" / "cases"
pytestmark = [
    pytest.mark.numbers,
    pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not there"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "true"), [("horizon_sqrt.csv", 429), ("trunc.csv", 119)])
def test_the_interval_holds_the_true_n_star(name: str, true: int) -> None:
    n_star = isolaw.fit(CASES / name, draws=200).predict(3e6).n_star
    low, high = n_star.interval or (None, None)
    assert (low or 0) <= true <= (high or np.inf)


def test_no_share_of_problems_exceeds_1() -> None:
    """Sigmoids that reach .99: the measured rewards come back at the end of the runs."""
    law = isolaw.fit(CASES / "saturated-pass-rate" / "curves.csv", "pass_rate", draws=100)
    assert law.surface is not None
    ends = law.surface.rewards(np.log2([2.0, 4.0]), np.full(2, 3.0), np.full(2, 51_200.0))
    assert ends.max() <= 1
    assert ends[0] == pytest.approx([0.995, 0.997], abs=0.007)
    assert law.predict(51_200).options[0].reward.value == pytest.approx(0.995, abs=0.01)


def test_one_seed_of_many_evaluations_is_a_fit() -> None:
    assert isolaw.fit(CASES / "overflow.csv", draws=50).predict(3e7).options


def test_a_metric_that_falls_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="falls as training improves"):
        isolaw.fit(CASES / "error_rate.csv", "error_rate")
