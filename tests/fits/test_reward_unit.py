"""The unit of a metric changes no recommendation: losses, rewards and the tolerance scale with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import isolaw
from isolaw.fits.flags import Code, flags_with
from isolaw.fits.law import Law
from isolaw.fits.metric import bounds, unit_of
from isolaw.fits.prediction import Prediction
from isolaw.fits.selection import Configuration
from isolaw.report.text.prediction import backtest_failed
from isolaw.runs import Runs

BUDGETS = 2e5, 1e6  # within the runs, and beyond them, where the pool predicts


@cache
def sweep() -> Runs:
    return isolaw.sweep({
        "sweep": {"compute": 400_000, "seeds": 3},
        "grid": {"rollouts_per_problem": [8, 32, 128, 512]}, "executor": {"kind": "inline"},
    })  # fmt: skip


def measured(scale: float, shift: float, metric: str = "score") -> Runs:
    """Return the runs of the sweep with their avg@4 on another scale, under another name."""
    points = sweep().points
    points = points[(points["metric"] == "avg@4") & (points["eval_set"] == "validation")]
    points = points.assign(metric=metric, value=points["value"] * scale + shift)
    return Runs(points, sweep().attributes)


@cache
def law(scale: float, shift: float, metric: str = "score", method: Any = "surface") -> Law:
    return isolaw.fit(measured(scale, shift, metric), metric, method=method, draws=20)


@cache
def predicted(scale: float, shift: float, metric: str = "score") -> list[Prediction]:
    return [law(scale, shift, metric).predict(budget) for budget in BUDGETS]


SCALED = [(100.0, 0.0, 100.0), (0.01, 0.0, 0.01), (1.0, 50.0, 1.0), (1000.0, -3000.0, 1000.0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "shift", "unit"),
    [*(pytest.param(*s, marks=pytest.mark.nightly) for s in SCALED[:3]), SCALED[3]],
)
def test_a_prediction_scales_with_the_metric(scale: float, shift: float, unit: float) -> None:
    assert law(scale, shift).document.tolerance == 0.005 * unit
    for prediction, base in zip(predicted(scale, shift), predicted(1.0, 0.0), strict=True):
        assert prediction.tolerance == 0.005 * unit
        assert prediction.n_star.status == base.n_star.status
        assert prediction.n_star.value == pytest.approx(base.n_star.value, rel=1e-6)
        ends = [
            np.array(p.n_star.interval, dtype=float) for p in (prediction, base)
        ]  # NaN where an end is open
        np.testing.assert_allclose(*ends, rtol=1e-6)
        places = [[o.allocation for o in p.options] for p in (prediction, base)]
        assert places[0] == places[1]
        for a, b in zip(prediction.options, base.options, strict=True):
            assert a.expected_loss == pytest.approx(scale * b.expected_loss, rel=1e-3)
            assert a.probability == pytest.approx(b.probability, abs=0.002)
            assert a.reward.value == pytest.approx(scale * b.reward.value + shift, abs=1e-5 * scale)
        assert prediction.rules == pytest.approx(base.rules, rel=1e-6)
        codes = [{f.code for f in p.flags} for p in (prediction, base)]
        assert codes[0] == codes[1]


@pytest.mark.parametrize(("scale", "shift", "unit"), SCALED)
def test_a_law_scales_with_the_metric(scale: float, shift: float, unit: float) -> None:
    own, base = law(scale, shift).document, law(1.0, 0.0).document
    assert [p.n_star_tolerance for p in own.frontier] == [p.n_star_tolerance for p in base.frontier]
    assert own.comparison.verdict == base.comparison.verdict
    assert own.comparison.preferred == base.comparison.preferred
    expected = {f.code for f in base.flags} | ({Code.REWARD_SCALE} if unit != 1 else set())
    assert {f.code for f in own.flags} == expected


@pytest.mark.parametrize(("scale", "shift"), [(100.0, 0.0), (0.01, 0.0)])
def test_record_points_scale_with_the_metric(scale: float, shift: float) -> None:
    own, base = (law(*at, method="paper").document for at in ((scale, shift), (1.0, 0.0)))
    assert own.records == pytest.approx(scale * base.records)
    assert [p.n_star_strict for p in own.frontier] == [p.n_star_strict for p in base.frontier]
    assert [p.n_star_tolerance for p in own.frontier] == [p.n_star_tolerance for p in base.frontier]
    assert own.comparison.verdict == base.comparison.verdict


def test_a_width_that_was_given_is_in_the_metrics_own_unit() -> None:
    given = isolaw.fit(measured(100.0, 0.0), "score", method="paper", records=0.25, draws=0)
    assert given.document.records == 0.25


def test_shares_in_percent_stay_within_0_and_100() -> None:
    """avg@4 in percent has the recommendation of avg@4, and its bounds."""
    own, base = predicted(100.0, 0.0, "avg@4"), predicted(1.0, 0.0, "avg@4")
    assert law(100.0, 0.0, "avg@4").surface.bounds == (0.0, 100.0)
    for a, b in zip(own, base, strict=True):
        assert [o.allocation for o in a.options] == [o.allocation for o in b.options]
        assert a.loss == pytest.approx(100 * b.loss, rel=1e-3)


def test_a_saved_law_keeps_its_tolerance(tmp_path: Path) -> None:
    loaded = Law.load(law(100.0, 0.0).save(tmp_path / "law.json"))
    assert loaded.document.tolerance == 0.5
    assert loaded.surface.unit == loaded.document.unit == 100.0
    again, before = loaded.predict(BUDGETS[1]), predicted(100.0, 0.0)[1]
    assert again.options == before.options
    assert again.rules == before.rules


def test_the_text_names_the_tolerance_in_the_metrics_own_unit() -> None:
    found = predicted(100.0, 0.0)[0]
    text = str(found)
    assert f"Expected loss {found.loss:.2f} in score" in text
    assert "of draws lose at most 0.5" in text
    assert "0.005" not in text
    assert found.to_dict()["tolerance"] == 0.5
    (flag,) = flags_with(law(100.0, 0.0).document.flags, Code.REWARD_SCALE)
    assert "within 0.5 of each other" in flag.text


@pytest.mark.parametrize(("ahead", "failed"), [(0.4, False), (0.6, True)])
def test_a_backtest_fails_by_the_tolerance_of_its_metric(ahead: float, failed: bool) -> None:
    rule = {"mean_loss": 1.0, "against_isolaw": {"difference": -ahead, "standard_error": None}}
    result = {"rules": {"isolaw": rule, "n = 16": rule}, "tolerance": 0.5}
    assert backtest_failed(result) is failed


def curve(*reward: float) -> list[Configuration]:
    size = len(reward)
    run = np.zeros(size, dtype=np.int64)
    return [Configuration(32, 8, np.arange(float(size)), np.array(reward), run, (0,), 256.0)]


@pytest.mark.parametrize(
    ("metric", "reward", "unit"),
    [
        ("avg@4", (0.0, 0.001), 1.0),  # a share of problems, however few
        ("val/accuracy", (0.3, 0.31), 1.0),
        ("val/accuracy", (30.0, 31.0), 100.0),
        ("avg@4", (-1e-6, 1e-4), 1.0),  # an estimate with noise
        ("avg@4", (0.9, 1.001), 1.0),
        ("avg@4", (-300.0, 250.0), 1000.0),  # neither a share nor in percent
        ("score", (0.1, 0.16), 1.0),  # more than ten tolerances
        ("score", (0.1, 0.14), 0.1),
        ("score", (0.0, 0.04), 0.1),
        ("score", (-1.0, 1.0), 1.0),
        ("score", (-1.01, 1.0), 10.0),
        ("return", (-400.0, 250.0), 1000.0),
        ("score", (7.0, 7.0), 1.0),
        ("score", (1e9, 1e9 + 3e-6), 1e-5),
    ],
)
def test_units(metric: str, reward: tuple[float, ...], unit: float) -> None:
    assert unit_of(metric, curve(*reward)) == unit


@pytest.mark.parametrize("power", [-9, -3, -2, -1, 1, 2, 3, 9])
@pytest.mark.parametrize("reward", [(-1.0, 1.0), (-0.3, 0.9), (0.1, 0.3000001), (3.0, 2.0)])
def test_units_of_powers_of_ten_are_exact(power: int, reward: tuple[float, ...]) -> None:
    own = unit_of("score", curve(*(r * 10.0**power - 7 * 10.0**power for r in reward)))
    assert own == 10.0**power


def test_bounds_follow_the_unit() -> None:
    assert bounds("best@8", curve(0.0, 0.02)) == (0.0, 1.0)
    assert bounds("best@8", curve(2.0, 80.0)) == (0.0, 100.0)
    assert bounds("best@8", curve(-0.1, 0.5)) == bounds("score", curve(0.1, 0.5)) == (-np.inf, np.inf)


def test_an_accuracy_of_any_name_stays_a_share(synthetic: Callable[..., Runs]) -> None:
    def steep(_b: int, n: int, compute: Any) -> Any:
        return 0.98 - 0.7 * np.exp(-compute / 2e5) / np.log2(n)

    runs = synthetic([(32, n) for n in (8, 16, 32, 64)], steep, noise=0.02)
    table = runs.to_pandas().assign(metric="val_acc")
    law = isolaw.fit(Runs(table.assign(value=table["value"].clip(0, 1))), "val_acc", draws=50)
    prediction = law.predict(9e6)
    for option in prediction.options:
        assert option.reward.interval is not None
        assert 0 <= option.reward.interval[0] <= option.reward.interval[1] <= 1
