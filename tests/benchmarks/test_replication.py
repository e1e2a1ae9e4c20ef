"""The judge of the paper's findings: each verdict on tables whose truth is known, and a small battery."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from isolaw.backends.bandit import _Bandit
from isolaw.errors import InputError, SpecError, StoreError
from isolaw.fits.studies.retune import retune
from isolaw.runs import Runs
from isolaw.simulators.presets import read_preset

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.replication import __main__ as command
from benchmarks.replication import execution, rules
from benchmarks.replication.battery import battery, schedule
from benchmarks.replication.jitter import around, check, jittered
from benchmarks.replication.judging import judge
from benchmarks.replication.measurements import rewards
from benchmarks.replication.smoothing import optimum
from benchmarks.replication.verdicts import DOUBLINGS, REWARD, Effect, Finding, Floats, leave_one_out

LEVELS = [2**k for k in range(2, 12)]
U = np.log2(LEVELS)
SEEDS = 8
TINY = [
    "sweep.compute=66_000",
    "grid.problems_per_batch=4",
    "grid.rollouts_per_problem=[4, 16, 64, 256, 1024]",
    "problems.n_train=64",
    "problems.n_validation=40",
    "bandit.parameters.r=8",
]


def test_the_page_has_the_table_of_this_version() -> None:
    """Otherwise: python -m benchmarks.replication judge, then table."""
    summary = json.loads(command.SUMMARY.read_text())
    assert summary["backend_version"] == _Bandit.version
    constants = read_preset(summary["preset"]).constants
    assert summary["constants"] == {k: v for k, v in constants.items() if k in summary["constants"]}
    assert "\n".join(command.lines(summary)) in command.DOCS.read_text()


# Rules


def humps(peaks: Any, noise: float = 0.0, rng: int = 0) -> Floats:
    """Rewards (S, …, N) that are highest at log2 n = ``peaks`` (…), with a seed's own level."""
    generator = np.random.default_rng(rng)
    reward = 0.5 - 0.004 * (U - np.asarray(peaks, dtype=float)[..., None]) ** 2
    seeds = generator.standard_normal((SEEDS, *(1,) * reward.ndim))
    return reward + 0.05 * seeds + noise * generator.standard_normal((SEEDS, *reward.shape))


def along(peaks: Any, noise: float = 0.0) -> Floats:
    """The same along budgets, (S, N, X)."""
    return np.moveaxis(humps(peaks, noise), 1, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda d, e: rules.rises("easy", LEVELS, along(5 + d * np.linspace(0, 1, 6), e)),
        lambda d, e: rules.harder(LEVELS, humps(6.0, e), humps(6.0 - d, e, rng=1)),
        lambda d, e: rules.sharpening("easy", LEVELS, humps(6 + d / 2, e), humps(6 - d / 2, e)),
        lambda d, e: rules.sharpening("hard", LEVELS, humps(6 - d / 2, e), humps(6 + d / 2, e)),
        lambda d, e: rules.shifts(LEVELS, 4096, along(5 + d * np.linspace(0, 1, 6), e)),
        lambda d, e: rules.alone("constant", LEVELS, along(np.full(5, 6.5 - d), e)),
        lambda d, e: rules.capped(LEVELS, [32, 500, 2000], humps([6 - d / 2, 6, 6 + d / 2], e)),
    ],
    ids=["F1", "F2", "F3 easy", "F3 hard", "F4b", "F5a", "F6"],
)
def test_verdicts_on_n_star(make: Callable[[float, float], Finding]) -> None:
    """A large and sure effect, a small and sure one, an unsure one, and one in the other direction."""
    cases = (3.0, 1e-4), (0.5, 1e-4), (0.5, 0.05), (-3.0, 1e-4)
    assert [make(*case).verdict for case in cases] == ["yes", "partly", "no", "no"]


@pytest.mark.parametrize(("end", "verdict"), [(9.0, "yes"), (9.3, "yes"), (9.9, "partly"), (11.5, "partly")])
def test_f1_saturates_when_the_top_two_are_not_best(end: float, verdict: str) -> None:
    finding = rules.rises("easy", LEVELS, along([5, 7, end], 1e-5))
    assert (finding.verdict, finding.effect.verdict) == (verdict, "yes")


def test_without_runs_nothing_is_measured() -> None:
    finding = rules.rises("easy", LEVELS, np.full((SEEDS, 10, 5), np.nan))
    assert finding.verdict == "not measured"
    assert finding.to_dict()["effect"]["value"] is None


@pytest.mark.parametrize(
    ("of_batch", "noise", "verdict"),
    [(0.005, 1e-5, "yes"), (0.03, 1e-5, "partly"), (0.005, 0.1, "no"), (0.06, 1e-5, "no")],
)
def test_f4a_compares_with_an_n_off_by_8(of_batch: float, noise: float, verdict: str) -> None:
    """Which costs 0.004 · 9 = 0.036."""
    generator = np.random.default_rng(0)
    reward = -0.004 * (U - 6.5) ** 2 - of_batch * np.array([1.0, 0.0, 0.3, 0.6])[:, None]
    values = reward + noise * generator.standard_normal((SEEDS, *reward.shape))
    assert rules.batches(LEVELS, [16, 32, 64, 128], values, 32).verdict == verdict


@pytest.mark.parametrize(
    ("peaks", "verdict"),
    [
        ([4, 5, 7, 8, 6, 5], "yes"),  # up and down
        ([9, 7, 5, 5, 7, 9], "yes"),  # down and up
        ([4, 5, 6, 7, 6.5, 6.4], "partly"),  # turns, but by less than a doubling
        ([4, 5, 6, 7, 8, 9], "no"),
    ],
)
def test_f4c_turns(peaks: list[float], verdict: str) -> None:
    assert rules.turns(LEVELS, 4096, along(peaks, 2e-4)).verdict == verdict


@pytest.mark.nightly
@pytest.mark.slow
def test_f4c_is_not_taken_in_by_noise() -> None:
    """The largest turn of a flat, noisy path is always there; judged on the seed left out it is not."""
    generator = np.random.default_rng(5)
    tables = [along(np.full(8, 6.0)) + 0.01 * generator.standard_normal((SEEDS, 10, 8)) for _ in range(40)]
    assert sum(rules.turns(LEVELS, 4096, values).verdict != "no" for values in tables) <= 4


@pytest.mark.parametrize(
    ("fewer", "flatter", "noise", "verdict"),
    [
        (0.05, 0.05, 1e-4, "yes"),
        (0.005, 0.05, 1e-4, "partly"),
        (0.05, -0.05, 1e-4, "partly"),  # fewer, but more skewed
        (0.05, 0.05, 0.2, "no"),
    ],
)
def test_f5b_landscape(fewer: float, flatter: float, noise: float, verdict: str) -> None:
    generator = np.random.default_rng(0)

    def falling(by: float) -> Floats:
        return 0.3 - by * (U - U[2]) / 5 + noise * generator.standard_normal((SEEDS, 10))

    assert rules.landscape("hard", LEVELS, falling(fewer), falling(flatter), falling(0.0)).verdict == verdict


@pytest.mark.parametrize(
    ("full", "part", "expected"),
    [(0.02, -0.02, ["yes", "yes"]), (0.02, -0.004, ["yes", "partly"]), (-0.02, 0.02, ["no", "no"])],
)
def test_f7_decoupled(full: float, part: float, expected: list[str]) -> None:
    generator = np.random.default_rng(0)
    seed = 0.1 * generator.standard_normal(SEEDS)
    ends = [seed + v + 5e-4 * generator.standard_normal(SEEDS) for v in (0.6, 0.6 + full, 0.6 + part, 0.5)]
    assert [finding.verdict for finding in rules.decoupled("easy", (256, 64), *ends)] == expected


@pytest.mark.nightly
@pytest.mark.slow
def test_retuned_is_what_fit_retune_does() -> None:
    values = np.random.default_rng(3).standard_normal((3, 2, 4, 3))
    values[1, 0, 2:, 2] = np.nan  # diverged
    rows, facts = [], {}
    for (s, i, x, e), value in np.ndenumerate(values):
        n, run_id = (8, 16)[i], f"{i}{s}{e}"
        facts[run_id] = {"lr": (0.1, 0.2, 0.4)[e]}
        if np.isfinite(value):
            rows.append(
                {
                    "run_id": run_id, "problem_set": "p", "algorithm": "grpo", "problems_per_batch": 10,
                    "rollouts_per_problem": n, "seed": s, "step": x + 1, "compute": (x + 1) * 10 * n,
                    "eval_set": "validation", "metric": "avg@4", "value": value,
                }
            )  # fmt: skip
    points = retune(Runs(pd.DataFrame(rows), facts), "avg@4", "validation").runs.points
    theirs = points.pivot(index=["seed", "rollouts_per_problem"], columns="step", values="value")
    np.testing.assert_array_equal(theirs.to_numpy().reshape(3, 2, 4), rules.retuned(values)[0])


# n*, intervals

# Falls on the left (a per doubling, too noisy) and on the right (b, too few steps), highest at u0.
HUMPS = [(0.5, 0.5, 6.5), (0.5, 1.0, 6.5), (1.0, 0.5, 5.2), (0.4, 0.4, 8.7), (0.3, 0.8, 4.1)]


def hump(a: float, b: float, u0: float) -> np.ndarray:
    return -0.02 * (2 ** (-a * (U - u0)) / a + 2 ** (b * (U - u0)) / b)


@pytest.mark.parametrize("shape", HUMPS)
def test_bias_is_a_tenth_of_a_doubling(shape: tuple[float, float, float]) -> None:
    assert abs(float(optimum(U, hump(*shape)).log2_n) - shape[2]) < 0.12


def test_a_parabola_an_edge_and_what_was_not_measured() -> None:
    best = optimum(U, 0.5 - 0.003 * (U[:, None] - np.linspace(3, 10, 40)).T ** 2)
    np.testing.assert_allclose(best.log2_n, np.linspace(3, 10, 40), atol=1e-6)
    low = np.maximum(best.log2_n - np.sqrt(5 / 3), 2)  # 0.003 d² = 0.005 is d = 1.29 doublings below it
    np.testing.assert_allclose(best.tolerance, low, atol=2e-3)
    edges = optimum(U, np.stack([0.01 * U, -0.01 * U]))
    assert (edges.log2_n.tolist(), edges.bound.tolist()) == ([11.0, 2.0], [1.0, -1.0])
    reward = np.tile(0.01 * U, (3, 1))
    reward[1, -2:] = np.nan  # in one of the curves is in none of them
    assert optimum(U, reward).log2_n.tolist() == [9.0, 9.0, 9.0]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("shape", [HUMPS[0], HUMPS[2], HUMPS[3]])
def test_coverage_with_eight_seeds(shape: tuple[float, float, float]) -> None:
    """Of nominal 95 %, bias included."""
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(300):
        values = hump(*shape) + 0.004 * rng.standard_normal((8, U.size)) + 0.02 * rng.standard_normal((8, 1))
        effect = Effect.of("n*", DOUBLINGS, optimum(U, leave_one_out(values)).log2_n)
        covered += effect.low <= shape[2] <= effect.high
    assert covered / 300 >= 0.9


def test_of_a_mean_it_is_students_interval() -> None:
    values = np.random.default_rng(1).standard_normal(8) + 0.7
    effect = Effect.of("mean", REWARD, leave_one_out(values))
    low, high = stats.t.interval(0.95, 7, loc=values.mean(), scale=stats.sem(values))
    assert (effect.value, effect.low, effect.high) == pytest.approx((values.mean(), low, high))


# The battery


def test_sweeps_share_budgets_and_seeds() -> None:
    chosen = battery(settings=["bandit.parameters.sigma2=77.0"])
    for name, specs in chosen.experiments().items():
        for spec in specs:
            assert spec.sweep.seeds == tuple(range(100, 108))
            if not name.startswith("tabular"):
                assert (spec.evaluation.start, spec.evaluation.end) == (55243, 10_000_000)
                assert spec.bandit["parameters"] == {"sigma2": 77.0}
    assert schedule(chosen.compute).size == 61
    np.testing.assert_allclose(chosen.budgets, 1e7 * 2.0 ** (-np.arange(14, -1, -1) / 2), rtol=1e-4)
    assert chosen.fixed_batch == (4096, [4, 8, 16, 32, 64, 128, 256, 512])
    assert (chosen.training_sizes, chosen.moderate_batches) == ([32, 125, 500, 2000], [16, 32, 64, 128])


def test_mistakes_are_named_at_once() -> None:
    with pytest.raises(SpecError) as raised:
        battery("Z", (100,), ["problems.set=easy", "grid.rollouts_per_problem=[8, 16]"])
    for part in ("bandit.preset", "problems.set", "seeds: found 1", "at least 5 different n"):
        assert part in str(raised.value)
    with pytest.raises(SpecError, match=r"sweep\.compute: found 50000; expected at least .*three n"):
        battery(settings=["sweep.compute=5e4"])


@pytest.mark.nightly
@pytest.mark.slow
def test_a_budget_finds_the_last_step_that_it_pays_for(tiny: Any) -> None:
    from isolaw import engine

    budgets = np.geomspace(200, 20_000, 7)
    runs = engine.sweep(tiny(evaluation={"points": 7, "start": 200, "end": 20_000, "samples": 0}))
    values = rewards(runs, "avg@4", "validation", [1, 0], [4, 16], budgets, {"problems_per_batch": 8})
    points = runs.points[runs.points["metric"] == "avg@4"]
    for s, seed in enumerate([1, 0]):
        for i, n in enumerate([4, 16]):
            of_run = points[(points["seed"] == seed) & (points["rollouts_per_problem"] == n)]
            for x, budget in enumerate(budgets):
                step = int(budget * (1 + 1e-9) / (8 * n))
                expected = of_run.loc[of_run["step"] == step, "value"].item() if step else np.nan
                np.testing.assert_equal(values[s, i, x], expected)


def test_similar_presets() -> None:
    constants = {"sigma2": 100.0, "kappa": 3.0}
    drawn = np.array([list(jittered("interference", constants, i).values()) for i in range(400)])
    factors = np.log2(drawn / [3.0, 100.0])  # by name
    assert np.abs(factors).max() <= 1
    np.testing.assert_allclose(factors.std(axis=0), 1 / np.sqrt(3), atol=0.05)
    fitted = battery("published-easy", settings=["bandit.parameters.kl_hard=0"])
    easy, hard = (around(fitted, 3).resolved(name) for name in ("easy", "hard"))
    assert easy.options["parameters"]["sigma2"] == 5375.43  # of the fourth member
    assert (easy.recipe.kl, hard.recipe.kl) == (0.0672799, 0)
    check(fitted, 100)
    with pytest.raises(InputError, match="found 101; expected at most 100, the members of published-easy"):
        check(fitted, 101)


@pytest.mark.nightly
@pytest.mark.slow
def test_interrupted_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    chosen = replace(battery(None, (100, 101), TINY), control=False, sizes=2, tabular=("constant",))
    uninterrupted = judge(chosen)

    def interrupt(_: float) -> None:
        if any((tmp_path / "a").glob("*/runs/*/DONE")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge(chosen, tmp_path / "a", jobs=2, progress=interrupt)
    left = sum(map(execution.work, execution.plan(chosen, tmp_path / "a").values()))
    assert 0 < left < sum(map(execution.work, execution.plan(chosen, tmp_path / "new").values()))
    assert judge(chosen, tmp_path / "a", jobs=4) == uninterrupted
    with pytest.raises(StoreError, match=r"another battery \(constants: found .*; expected .*sigma2"):
        judge(battery(None, (100, 101), [*TINY, "bandit.parameters.sigma2=77.0"]), tmp_path / "a")


@pytest.mark.nightly
@pytest.mark.slow
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["judge", "--seeds", "2", "--jitter", "1", "--out", str(tmp_path)]
    command.main([*words, *(word for key in TINY for word in ("--set", key))])
    printed = capsys.readouterr().out
    document = json.loads((tmp_path / "findings.json").read_text())
    assert document["jitter"]["presets"] == 1
    assert len(document["findings"]) == 19
    for finding in document["findings"]:
        assert f"{finding['finding']} {finding['set']}: {finding['statement']}" in printed
    assert sorted(path.stem for path in (tmp_path / "figures").iterdir()) == sorted(document["pictures"])
