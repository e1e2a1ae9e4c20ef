"""docs/evidence.md: of these inputs and this estimator; early statements saw nothing of what judges them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from scipy import stats

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks import evidence, evidence_tables, long_sweep, priors
from isolaw.design.published import RECORDED
from isolaw.fits import ESTIMATOR, SURFACE
from isolaw.fits.surface import model

STATED = [sweep for sweep in evidence.SWEEPS if sweep.statement]


def test_the_page_is_of_this_estimator_and_of_these_inputs() -> None:
    """Otherwise: python -m benchmarks.evidence."""
    kept = json.loads(evidence.SUMMARY.read_text())
    assert (kept["estimator"], kept["surface"]) == (ESTIMATOR, SURFACE)
    assert [item["name"] for item in kept["sweeps"]] == [sweep.name for sweep in evidence.SWEEPS]
    for sweep, item in zip(evidence.SWEEPS, kept["sweeps"], strict=True):
        if sweep.path.exists():  # not all data may be shipped
            assert item["files"][sweep.file] == evidence.sha256(sweep.path)
    page = evidence.DOCS.read_text()
    assert page.split(evidence.BEGIN)[1].split(evidence.END)[0].strip() == evidence.tables(kept).strip()


def test_advise_prints_what_the_page_says() -> None:
    assert evidence_tables.sentences(json.loads(evidence.SUMMARY.read_text())) == RECORDED
    assert " ".join(RECORDED) in evidence.DOCS.read_text()


def test_the_learnt_priors_are_of_this_estimator() -> None:
    """Otherwise: python -m benchmarks.priors."""
    kept = json.loads(priors.KEPT.read_text())
    assert kept["estimator"] == ESTIMATOR
    assert {*kept["all"]} >= {*model.PRIORS} - {"seed"}
    assert {*kept["without"]} <= {sweep.group for sweep in evidence.SWEEPS}
    with priors.using(kept["all"]):
        assert list(model.PRIORS["tau"]) == kept["all"]["tau"]
    assert list(model.PRIORS["tau"]) != kept["all"]["tau"]


def test_the_readme_counts_the_intervals_of_the_page() -> None:
    held = re.search(r"contains a best n in (\d+) of (\d+) cases", evidence.DOCS.read_text())
    assert held is not None
    text = f"{held[1]} of isolaw's {held[2]} intervals of n\\* contain a best n"
    assert text in (evidence.DOCS.parents[1] / "README.md").read_text()


@pytest.mark.parametrize("sweep", STATED, ids=lambda own: own.statement)
def test_what_was_stated_before_the_runs_rests_on_their_beginning_alone(sweep: evidence.RealSweep) -> None:
    stated = json.loads((evidence.DATA / sweep.statement).read_text())
    began = evidence.cut(sweep.runs(), stated["largest_compute"])
    assert evidence.digest(began) == stated["input"]
    assert all(budget["compute"] > stated["largest_compute"] for budget in stated["budgets"])
    kept = next(
        item for item in json.loads(evidence.SUMMARY.read_text())["sweeps"] if item["name"] == sweep.name
    )
    assert [cut["said"] for cut in kept["cuts"] if "before" in cut] == stated["budgets"]


@pytest.mark.slow
def test_the_page_of_the_long_sweep_has_its_tables() -> None:
    """Otherwise: python -m benchmarks.long_sweep."""
    page = long_sweep.DOCS.read_text()
    shown = page.split(long_sweep.BEGIN)[1].split(long_sweep.END)[0].strip()
    assert shown == long_sweep.both()


def test_a_difference_is_that_of_paired_seeds() -> None:
    own, other = {0: 0.6, 1: 0.7, 2: 0.5}, {0: 0.5, 1: 0.5, 2: 0.5, 3: 0.9}
    found = stats.ttest_rel([0.6, 0.7, 0.5], [0.5, 0.5, 0.5]).confidence_interval()
    mean, half = long_sweep.difference(own, other) or (0.0, 0.0)
    assert (mean - half, mean + half) == pytest.approx((found.low, found.high))
    assert long_sweep.difference({0: 0.6}, other) is None


def test_a_verdict_by_hand() -> None:
    said = {
        "chosen": {"isolaw": 16, "paper": 64, "highest": 4, "isoflop": 8.0, "process": None},
        "n_star": {"value": 16.0, "interval": [None, 20.0], "status": "ok"},
        "rewards": {
            "4": {"value": 0.5, "interval": [0.45, 0.55], "status": "ok"},
            "16": {"value": 0.6, "interval": [0.58, 0.59], "status": "ok"},
        },
    }
    measured = {
        "4": {"reward": 0.5, "error": 0.01, "seeds": 3},
        "16": {"reward": 0.6, "error": 0.01, "seeds": 3},
        "32": {"reward": 0.58, "error": 0.01, "seeds": 3},
    }
    found = evidence.judged(said, measured)
    assert (found["best"], found["tied"], found["n_star_held"]) == (16, [16, 32], True)
    expected = {"isolaw": 0.0, "paper": 0.02, "highest": 0.1, "isoflop": 0.05}
    assert {rule: lost for rule, lost in found["lost"].items() if lost is not None} == pytest.approx(expected)
    assert (found["rewards_inside"], found["rewards_stated"]) == (1, 2)
