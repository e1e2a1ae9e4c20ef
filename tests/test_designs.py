"""The benchmark of designs: its truths, its sweeps, and how answers are judged."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import isolaw

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.designs import judge, tables
from benchmarks.designs.__main__ import VERSION
from benchmarks.designs.cells import BATCH, Cell, cells, sample
from benchmarks.designs.noise import KINDS, rewards, slow
from benchmarks.designs.truths import COMPUTE, JUDGING, TUNING, loss, optimum, truth

NAMES = (*TUNING, *JUDGING)
LEVELS = np.arange(3.0, 12.0)


def named(name: str) -> Cell:
    (cell,) = cells(name)
    return cell


@pytest.mark.parametrize("name", NAMES)
def test_truths_are_rewards_that_start_alike(name: str) -> None:
    true = truth(name)
    compute = np.concatenate([[0.0], np.geomspace(256, 3e7, 60)])
    reward = true(LEVELS[:, None], 5.0, compute)
    assert np.all((reward >= 0) & (reward <= 1))
    np.testing.assert_allclose(reward[:, 0], reward[0, 0], rtol=1e-12)
    assert np.all(reward[:, -1] > reward[:, 0])


@pytest.mark.parametrize("name", NAMES)
def test_optimum_by_brute_force(name: str) -> None:
    true, compute = truth(name), 0.3 * COMPUTE
    u = np.linspace(4, 10, 40_001)
    found = optimum(true, compute, (4, 10))
    assert found.reward == pytest.approx(true(u, 5.0, compute).max(), abs=1e-6)
    assert found.tied[0] <= found.n <= found.tied[1]
    assert loss(true, found, compute, found.n) == pytest.approx(0, abs=1e-12)
    if true.joint:
        b = np.linspace(4, 8, 301)
        joint = optimum(true, compute, (4, 10), (4, 8))
        assert joint.reward == pytest.approx(true(u[::100, None], b, compute).max(), abs=2e-5)
        assert joint.steps * joint.n * joint.problems_per_batch == pytest.approx(compute)
        held = optimum(true, compute, (4, 10), batch_rollouts=BATCH)
        assert held.n * held.problems_per_batch == pytest.approx(BATCH)
        assert held.reward == pytest.approx(true(u, np.log2(BATCH) - u, compute).max(), abs=1e-6)


def test_truths_are_what_they_are_called() -> None:
    log2_n = {
        name: [np.log2(optimum(truth(name), f * COMPUTE, (3, 11)).n) for f in (0.3, 1, 3)] for name in NAMES
    }
    assert np.ptp(log2_n["constant"]) < 0.01
    assert log2_n["kinked"][0] < log2_n["kinked"][1] == pytest.approx(log2_n["kinked"][2])
    assert np.all(np.diff(log2_n["unsaturated"]) > 1)
    assert log2_n["not_monotone"][0] - log2_n["not_monotone"][1] > 2
    tied = optimum(truth("flat"), COMPUTE, (3, 11)).tied
    assert tied == (8.0, 2048.0)
    u = np.linspace(3, 11, 801)
    reward = truth("two_peaks")(u, 5.0, COMPUTE)
    peaks = u[1:-1][(reward[1:-1] > reward[:-2]) & (reward[1:-1] > reward[2:])]
    assert np.diff(peaks) == pytest.approx([4.0], abs=0.3)
    assert -np.diff(truth("cliff")([5.0, 4.0], 5.0, COMPUTE))[0] > 0.2


def test_both_halves_have_every_kind_of_design() -> None:
    halves = [cells(half=half) for half in ("tuning", "judging")]
    for attribute in ("noise", "horizon", "hold", "sparse"):
        first, second = ({getattr(cell, attribute) for cell in half} for half in halves)
        assert first == second
    assert {cell.truth for cell in halves[0]} == set(TUNING)
    everything = cells(every=True)
    assert len({cell.name for cell in everything}) == len(everything)


@pytest.mark.parametrize("name", ["kinked-9n-3s-missing", "constant-joint-3s-white", "flat-9n-3s-drift-sqrt"])
def test_sweeps_do_not_depend_on_the_order_and_are_valid(name: str) -> None:
    cell = named(name)
    first = [sample(cell, index).points for index in (0, 1)]
    again = [sample(cell, index).points for index in (1, 0)]
    pd.testing.assert_frame_equal(first[0], again[1])
    pd.testing.assert_frame_equal(first[1], again[0])
    assert not first[0]["value"].equals(first[1]["value"])
    pd.testing.assert_frame_equal(first[0], isolaw.Runs(first[0].sample(frac=1, random_state=0)).points)


def test_missing_runs_leave_every_configuration() -> None:
    cell = named("kinked-9n-3s-missing")
    runs = [sample(cell, index).points for index in range(20)]
    made = np.mean([points["run_id"].nunique() for points in runs]) / 27
    assert 0.75 < made < 0.95
    for points in runs:
        sizes = points.groupby(["rollouts_per_problem", "run_id"]).size()
        assert (sizes.groupby("rollouts_per_problem").max() >= 5).all()
        assert sizes.index.levels[0].tolist() == list(cell.levels)


def test_horizons() -> None:
    def ends(horizon: str) -> pd.Series:
        cell = Cell("x", "flat", (8, 128, 2048), horizon=horizon, seeds=1)
        return sample(cell, 0).points.groupby("rollouts_per_problem")["compute"].max()

    batch = 32 * np.array([8, 128, 2048])
    assert np.all((ends("equal") <= COMPUTE) & (ends("equal") > COMPUTE - batch))
    assert np.all((ends("rounded") >= COMPUTE) & (ends("rounded") < COMPUTE + batch))
    assert (ends("steps") / batch).nunique() == 1
    np.testing.assert_allclose(ends("sqrt") / COMPUTE, np.sqrt([1 / 256, 1 / 16, 1]), rtol=0.05)


def test_noise_has_the_sizes_that_it_says() -> None:
    rng = np.random.default_rng(0)
    compute = np.geomspace(1e4, 3e6, 20)
    seeds = slow(rng, compute, 20_000, constant=0.7)
    np.testing.assert_allclose(seeds.std(axis=0), 1.0, rtol=0.03)
    measured = rewards(KINDS["white"], rng, np.full(20, 0.5), compute, 64, seeds)
    expected = np.sqrt(0.017**2 + 0.005**2 + 0.25 / 1200)
    np.testing.assert_allclose(measured[:, -5:].std(axis=0), expected, rtol=0.03)


@pytest.mark.parametrize(
    ("interval", "true", "held"),
    [
        ([32, 128], (64, 64), True),
        ([32, 128], (129, 129), False),
        ([None, 128], (2, 2), True),
        ([None, 128], (256, 256), False),
        ([128, None], (4096, 4096), True),
        ([2048, None], (2048, 2048), True),
        ([128, None], (64, 64), False),
        ([128, 256], (8, 2048), True),
    ],
)
def test_open_ends_hold_what_lies_beyond(interval: list, true: tuple[float, float], held: bool) -> None:
    assert judge.holds({"interval": interval}, *true) is held


@pytest.mark.parametrize(
    ("interval", "status", "answered"),
    [
        (None, "ok", False),
        ([None, None], "ok", False),
        ([8, 64], "not_identified", False),
        ([8, 64], "ok", True),
        ([64, None], "lower_bound", True),
    ],
)
def test_what_claims_nothing_is_no_interval(interval: list | None, status: str, answered: bool) -> None:
    assert judge.answered({"value": 1.0, "interval": interval, "status": status}) is answered


def said(interval: list | None, allocation: list[int] | None = None, expected: float | None = None) -> dict:
    quantity = {"value": 64.0, "interval": interval, "status": "ok"}
    at = {"n_star": quantity, "b_star": None, "m_star": None}
    if allocation:
        at |= {"allocation": allocation, "expected": expected, "reward": quantity}
    return {"index": 0, "seconds": 1.0, "highest": [8, 32], "budgets": dict.fromkeys(judge.BUDGETS, at)}


def test_an_open_end_is_as_wide_as_the_grid() -> None:
    cell = named("constant-9n-3s-white")
    found = judge.judge(cell, said([64.0, None], [128, 32], 0.001), "1")
    assert found["n"] == {"held": True, "width": 6.0, "open": True}
    assert found["realised"] == pytest.approx(judge.lost(cell, "1", (128, 32)))
    silent = judge.judge(cell, said(None), "1")
    assert (silent["n"], silent["expected"], silent["realised"], silent["reward"]) == (None,) * 4
    assert judge.judge(cell, {"index": 0, "refused": "DataError: no"}, "3")["n"] is None


def test_a_fit_is_answered() -> None:
    answer = judge.answer(named("constant-4nx4-2s-white"), 0)
    assert set(answer["budgets"]) == set(judge.BUDGETS)
    assert judge.answered(answer["budgets"]["1"]["n_star"]) in (True, False)


@pytest.mark.skipif(not tables.SUMMARY.exists(), reason="nothing was measured yet")
@pytest.mark.numbers
def test_what_is_published_is_of_this_estimator() -> None:
    """Its version, what it says of one sweep, and the tables of the docs."""
    summary = json.loads(tables.SUMMARY.read_text())
    assert summary["version"] == VERSION, "measure again: python -m benchmarks.designs fit"
    for budget, said in tables.fingerprint().items():
        assert said == pytest.approx(summary["fingerprint"][budget], rel=0.1, abs=0.001), (
            "the estimator says something else: raise isolaw.fits.ESTIMATOR and measure again"
        )
    page = tables.DOCS.read_text()
    assert page.split(tables.BEGIN)[1].split(tables.END)[0].strip() == tables.markdown(summary).strip()


def test_tables_between_their_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = named("constant-9n-3s-white")
    answers = {i: said([64.0, 128.0], [64, 32], 0.0001) for i in range(5)}
    answers |= {5: said([128.0, None]), 6: {"index": 6, "seconds": 1, "refused": "x", "highest": [8, 32]}}
    page, out = tmp_path / "page.md", tmp_path / "designs.json"
    page.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    monkeypatch.setattr(tables, "SUMMARY", out)
    tables.write([(cell, answers, {})], Namespace(version="1", out=out, docs=page, against=None, keep=False))
    text = page.read_text()
    assert text.startswith(f"before\n{tables.BEGIN}\n| budget")
    assert text.endswith(f"{tables.END}\nafter\n")
    assert "old" not in text
    assert json.loads(out.read_text())["cells"][cell.name]["sweeps"] == 7
    entry = tables.summarise(cell, answers, {})["budgets"]["1"]
    assert (entry["n_star"]["answered"], entry["n_star"]["held"]) == (6, 5)
    assert entry["n_star"]["refused"] == pytest.approx(1 / 7, abs=1e-4)
    assert entry["checks"] == {
        "held": True,
        "refused": False,
        "loss": False,
        "baselines": True,
        "rivals": None,
    }
