"""Two configurations compared: differences, targets and hours of a known truth, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks import shapes
from isolaw.errors import InputError, Refused
from isolaw.fits.studies.shapes import compare_shapes
from isolaw.report.text.comparisons import shapes as document
from isolaw.runs import Runs
from isolaw.step_cost import Cost, CostOrigin, StepPart

pytestmark = pytest.mark.numbers

LEVELS = (4, 8, 16, 32, 64)


def rising(_b: int, n: int, compute: Any) -> Any:
    """Larger n learn later, to the same ceiling: n = 8 needs half of the rollouts of n = 16."""
    return 0.7 - 0.4 * np.exp(-np.asarray(compute) / (1e4 * n))


@pytest.fixture(scope="module")
def runs(synthetic: Callable[..., Runs]) -> Runs:
    own: Runs = synthetic(
        [(32, n) for n in LEVELS if n != 16], rising, noise=0.004, between=0.002, compute=3e5
    )
    return own


@pytest.mark.slow
def test_the_difference_of_a_configuration_without_runs(runs: Runs) -> None:
    found = compare_shapes(runs, (32, 8), (32, 16), compute=2e5, draws=200)
    true = float(rising(32, 8, 2e5) - rising(32, 16, 2e5))
    assert (found.runs, found.others, found.quantity) == ((3, 0), 9, "reward")
    assert found.difference.interval is not None
    low, high = found.difference.interval
    assert low is not None
    assert high is not None
    assert low <= true <= high
    assert found.difference.value == pytest.approx(true, abs=0.02)
    assert (found.probability or 0) > 0.99
    again = compare_shapes(runs, (32, 16), (32, 8), compute=2e5, draws=200)  # the other way round
    assert again.difference.value == pytest.approx(-(found.difference.value or 0), abs=1e-3)
    first = document(found).lines()[0]
    assert first == "A is better at C = 2e5 (probability above 99 %)."


def test_a_target_takes_what_the_truth_takes(runs: Runs) -> None:
    found = compare_shapes(runs, (32, 8), (32, 32), target=0.55, draws=200)
    for value, n in ((found.a, 8), (found.b, 32)):
        assert value.value == pytest.approx(1e4 * n * np.log(0.4 / 0.15), rel=0.15)
    assert found.difference.value == pytest.approx(0.25, rel=0.2)
    assert (found.quantity, found.probability) == ("rollouts", 1.0)
    with pytest.raises(Refused, match=r"no draw of either configuration reaches 1\.5"):
        compare_shapes(runs, (32, 8), (32, 32), target=1.5, draws=50)


@pytest.mark.slow
def test_hours_give_each_its_own_compute(runs: Runs) -> None:
    cost = Cost({"step": StepPart(10.0, 0.01)}, 1.0, "rollouts", CostOrigin.RATE, gpus=8)
    found = compare_shapes(runs, (32, 4), (32, 64), compute="1h", cost=cost, draws=100)
    assert found.compute == pytest.approx((3600 / (10 + 1.28) * 128, 3600 / (10 + 20.48) * 2048))
    timed = compare_shapes(runs, (32, 4), (32, 64), target=0.5, cost=cost, draws=100)
    assert timed.quantity == "hours"
    assert timed.a.value == pytest.approx(4e4 * np.log(2) / 128 * 11.28 / 3600, rel=0.2)
    with pytest.raises(InputError, match="requires the cost of a step"):
        compare_shapes(runs, (32, 4), (32, 64), compute="1h", draws=10)


def test_what_is_too_far_or_asked_wrongly(runs: Runs) -> None:
    with pytest.raises(
        Refused, match=r"B_p = 64: all runs have B_p = 32; n = 1024: more than 4 times outside"
    ):
        compare_shapes(runs, (64, 8), (32, 1024), compute=1e5)
    with pytest.raises(Refused, match=r"C = 1e8 is .* times the compute of the runs"):
        compare_shapes(runs, (32, 8), (32, 4), compute=1e8, draws=50)
    with pytest.raises(InputError, match="found both; expected either compute or target"):
        compare_shapes(runs, (32, 8), (32, 4), compute=1e5, target=0.5)
    with pytest.raises(InputError, match="draws: found 0; expected 1 or more"):
        compare_shapes(runs, (32, 8), (32, 4), compute=1e5, draws=0)
    with pytest.raises(InputError, match="expected a finite number"):
        compare_shapes(runs, (32, 8), (32, 4), target=float("nan"))
    with pytest.raises(InputError, match="the same configuration twice"):
        compare_shapes(runs, (32, 8), (32, 8), compute=1e5)


def test_the_table_in_the_docs_is_of_this_version() -> None:
    kept = json.loads(shapes.SUMMARY.read_text())
    again = next(shapes.recorded())
    assert again == pytest.approx(kept["first"], abs=2e-3)
    assert "\n".join(shapes.table(kept["rows"])) in shapes.DOCS.read_text()
