"""Two recipes compared: their parameters, the intervals of the differences, the check of the first half."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import isolaw
from isolaw.errors import DataError, InputError, Refused
from isolaw.fits.flags import Code, flags_with
from isolaw.fits.studies.recipes import compare
from isolaw.report.text.comparisons import _verdict as verdict
from isolaw.runs import Runs

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.numbers]

Make = Callable[..., Runs]
OLD = {"A": 0.62, "C_mid": 1e5, "B": 1.2}
NEW = {"A": 0.66, "C_mid": 2e5, "B": 1.5}
GRID = [(32, 16)]


def hill(A: float, C_mid: float, B: float, R0: float = 0.35) -> Callable[..., Any]:
    def reward(_b: int, _n: int, compute: Any) -> Any:
        return R0 + (A - R0) / (1 + (C_mid / np.maximum(compute, 1e-9)) ** B)

    return reward


def shifted(runs: Runs, by_seed: dict[int, float]) -> Runs:
    """The same runs, those of a seed all moved alike."""
    table = runs.to_pandas()
    return Runs(table.assign(value=table["value"] + table["seed"].map(by_seed)), runs.attributes)


def pair(synthetic: Make, grid: Any = GRID, **options: Any) -> tuple[Runs, Runs]:
    """The old and the new recipe, their noise drawn apart."""
    rng = options.pop("rng", 0)
    return tuple(  # type: ignore[return-value]
        synthetic(grid, hill(**truth), rng=2 * rng + i, **options) for i, truth in enumerate((OLD, NEW))
    )


def test_parameters_and_their_differences_are_found(synthetic: Make) -> None:
    found = compare(*pair(synthetic, noise=0.0), compute=3e5, draws=0)
    (contrast,) = found.contrasts
    assert contrast.configurations == GRID
    for name in ("A", "B", "C_mid"):
        row = contrast.rows[name]
        assert row.first.value == pytest.approx(OLD[name], rel=1e-4)
        assert row.second.value == pytest.approx(NEW[name], rel=1e-4)
        assert row.difference.interval is None
    assert contrast.rows["A"].difference.value == pytest.approx(0.04, abs=1e-4)
    assert contrast.rows["B"].difference.value == pytest.approx(0.3, abs=1e-3)
    assert contrast.rows["C_mid"].difference.value == pytest.approx(2.0, rel=1e-3)  # a ratio
    at = [hill(**truth)(32, 16, 3e5) for truth in (OLD, NEW)]
    assert contrast.rows["reward"].second.value == pytest.approx(at[1], abs=1e-5)
    assert contrast.rows["reward"].difference.value == pytest.approx(at[1] - at[0], abs=1e-5)
    # Hill curves: the first half knows the second.
    assert contrast.rows["error"].first.value == pytest.approx(0.0, abs=1e-5)
    assert found.mean.rows == contrast.rows


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_interval_of_a_paired_difference_is_students(synthetic: Make, seeds: int) -> None:
    """The reward at the end is linear in the runs, so its interval is the paired t-test's."""
    first, second = pair(synthetic, seeds=seeds, noise=0.01)
    moves = {s: 0.05 * s for s in range(seeds)}
    found = compare(shifted(first, moves), shifted(second, moves), draws=4000)
    assert found.paired
    low, high = found.contrasts[0].rows["end"].difference.interval or (0, 0)
    last = [r.points.query("step == step.max()").sort_values("seed")["value"] for r in (first, second)]
    each = last[1].to_numpy() - last[0].to_numpy()
    expected = stats.t.interval(0.95, seeds - 1, each.mean(), stats.sem(each))
    width = expected[1] - expected[0]
    assert low == pytest.approx(expected[0], abs=0.08 * width)
    assert high == pytest.approx(expected[1], abs=0.08 * width)


def test_pairing_takes_out_what_the_seeds_share(synthetic: Make) -> None:
    moves = {s: 0.05 * s for s in range(5)}
    first, second = (shifted(runs, moves) for runs in pair(synthetic, seeds=5, noise=0.005))
    table = second.to_pandas()
    elsewhere = Runs(table.assign(seed=table["seed"] + 10))
    widths = []
    for other in (second, elsewhere):
        found = compare(first, other, draws=200)
        low, high = found.mean.rows["end"].difference.interval or (0, 0)
        assert low is not None
        assert high is not None
        widths.append(high - low)
        assert found.paired == (other is second)
        assert not flags_with(found.flags, Code.UNPAIRED)
    assert widths[0] < 0.2 * widths[1]


@pytest.mark.slow
@pytest.mark.nightly
def test_coverage_of_the_difference(synthetic: Make) -> None:
    """Runs differ in their ceilings and by their noise; 95 % intervals of the differences hold the truth."""
    held = {"A": 0, "B": 0, "C_mid": 0, "end": 0}
    truth = {"A": 0.04, "B": 0.3, "C_mid": 2.0}
    tries = 30
    for rng in range(tries):
        first, second = pair(
            synthetic, rng=rng, seeds=4, noise=0.01, between=0.01, checkpoints=20, start=4000
        )
        end = float(first.points["compute"].max())
        truth["end"] = hill(**NEW)(32, 16, end) - hill(**OLD)(32, 16, end)
        rows = compare(first, second, draws=100, seed=rng).mean.rows
        for name in held:
            low, high = rows[name].difference.interval or (None, None)
            assert low is not None
            assert high is not None
            held[name] += low <= truth[name] <= high
            assert high - low < (0.5 if name in ("A", "end") else 10)
    # A right 95 % interval holds the truth less than 25 times of 30 once in three hundred.
    assert all(count >= 25 for count in held.values()), held


def test_swapping_the_recipes_turns_everything_round(synthetic: Make) -> None:
    first, second = pair(synthetic, noise=0.01)
    one = compare(first, second, draws=60).mean.rows
    other = compare(second, first, draws=60).mean.rows
    for name, row in one.items():
        back = other[name]
        assert (row.first, row.second) == (back.second, back.first)
        low, high = row.difference.interval or (0, 0)
        if name == "C_mid":
            expected = (1 / high, 1 / low)  # type: ignore[operator]
        else:
            expected = (-high, -low)  # type: ignore[operator]
        assert back.difference.interval == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_mean_is_over_configurations_that_are_determined(synthetic: Make) -> None:
    grid = [(32, 8), (32, 16), (32, 64)]

    def reward(truth: dict[str, float]) -> Callable[..., Any]:
        def at(b: int, n: int, compute: Any) -> Any:
            return hill(**truth)(b, n, compute) if n < 64 else 0.3 + 2e-8 * compute  # n = 64 just rises

        return at

    found = compare(*(synthetic(grid, reward(t), noise=1e-4) for t in (OLD, NEW)), draws=30)
    assert [c.configurations[0] for c in found.contrasts] == grid
    assert found.contrasts[2].rows["A"].difference.status == "not_identified"
    assert found.mean.rows["A"].difference.status == "ok"
    assert found.mean.rows["A"].difference.value == pytest.approx(0.04, abs=2e-3)
    assert found.mean.rows["C_mid"].difference.value == pytest.approx(2.0, rel=0.02)
    each = [c.rows["end"].difference.value for c in found.contrasts]
    assert found.mean.rows["end"].difference.value == pytest.approx(np.mean(each))
    (flag,) = flags_with(found.flags, Code.STILL_RISING)
    assert flag.text == "the ceiling is not determined at (B_p = 32, n = 64)"


def test_a_ceiling_that_is_not_determined_is_not_compared(synthetic: Make) -> None:
    first = synthetic(GRID, lambda _b, _n, c: 0.3 + 2e-8 * c)
    found = compare(first, synthetic(GRID, hill(**NEW), rng=1), compute=5e6, draws=30)
    assert found.mean.rows["A"].difference.status == "not_identified"
    assert found.mean.rows["A"].second.status == "ok"
    low, high = found.mean.rows["reward"].first.interval or (0, 0)  # at five times the runs
    assert low is not None
    assert high is not None
    assert low < 0.4 < high
    assert high - low > 0.05
    assert verdict(found)["ceiling"].startswith(
        "the curves do not determine which recipe has the higher ceiling"
    )
    assert verdict(found)["speed"].startswith("the curves do not determine which recipe is faster")


def test_what_the_second_half_does_otherwise_is_seen(synthetic: Make) -> None:
    """The first recipe stops learning half-way: what its first half promises does not come."""

    def stops(_b: int, _n: int, compute: Any) -> Any:
        return np.where(compute <= 5e5, 0.35 + 0.3 * compute / 5e5, 0.55)

    first = synthetic(GRID, stops, noise=0.004, checkpoints=50)
    second = synthetic(GRID, lambda *_: 0.6 - 0.25 * np.exp(-_[2] / 1e5), noise=0.004, rng=1, checkpoints=50)
    found = compare(first, second, names=("old", "new"))
    error = found.mean.rows["error"].first
    assert error.value is not None
    assert error.interval is not None
    assert error.value > 0.05
    assert error.interval[0] is not None
    assert error.interval[0] > 0
    assert verdict(found)["first half"].startswith("new ends 0.0")
    assert "predicts the opposite" in verdict(found)["first half"]


def test_runs_that_never_meet(synthetic: Make) -> None:
    """One ends before the other was first evaluated: the curves can be compared, the ends cannot."""
    first = synthetic(GRID, hill(**OLD), compute=2e5)
    second = synthetic(GRID, hill(**NEW), start=3e5, zero=False)
    found = compare(first, second, draws=20)
    rows = found.mean.rows
    assert rows["end"].difference.status == rows["predicted"].difference.status == "refused"
    assert rows["end"].first.value is not None
    assert "no compute was measured for both" in verdict(found)["first half"]
    json.dumps(found.to_dict(), allow_nan=False)


def test_runs_of_unequal_length_are_compared_at_the_shorter_end(synthetic: Make) -> None:
    first = synthetic(GRID, hill(**OLD), compute=3e5, noise=0)
    second = synthetic(GRID, hill(**NEW), compute=1e6, noise=0, checkpoints=60)
    rows = compare(first, second, draws=0).mean.rows
    end = second.points["compute"]
    last = float(end[end <= first.points["compute"].max()].max())
    assert rows["end"].second.value == pytest.approx(hill(**NEW)(32, 16, last))
    assert rows["A"].second.value == pytest.approx(NEW["A"], abs=1e-4)  # all of it is fitted


def test_one_seed_each_leaves_out_the_variation_between_runs(synthetic: Make) -> None:
    found = compare(*pair(synthetic, seeds=1, noise=0.01), names=("old", "new"), draws=50)
    assert (found.units, found.paired) == (("block", "block"), False)
    assert found.mean.rows["A"].difference.interval is not None
    for name in ("old", "new"):
        assert f"{name}: one seed, so its intervals leave out the variation between runs" in found.notes


def test_in_what_they_differ(synthetic: Make) -> None:
    first = synthetic(GRID, attributes={"lr": 0.1, "model": "a"})
    second = synthetic(GRID, attributes={"lr": 0.2, "model": "a", "kl": 0.5}, rng=1)
    second = Runs(second.to_pandas().assign(problem_set="q"), second.attributes)
    found = compare(first, second, draws=0)
    assert found.facts == {"problem_set": ("p", "q"), "lr": (0.1, 0.2), "kl": (None, 0.5)}
    assert flags_with(found.flags, Code.OTHER_PROBLEMS)


def test_what_only_one_has_is_named(synthetic: Make) -> None:
    found = compare(synthetic([(32, 8), (32, 16)]), synthetic([(32, 8), (64, 8)], rng=1), draws=0)
    assert [c.configurations for c in found.contrasts] == [[(32, 8)]]
    assert len(flags_with(found.flags, Code.NOT_COMPARED)) == 2
    assert "not compared: only first has (B_p = 32, n = 16)" in found.notes
    assert "not compared: only second has (B_p = 64, n = 8)" in found.notes


def test_refusals(synthetic: Make) -> None:
    runs = synthetic(GRID)
    with pytest.raises(Refused, match=r"only first has \(B_p = 32, n = 16\).*Run one configuration"):
        compare(runs, synthetic([(32, 8)]))
    with pytest.raises(Refused, match="a curve needs 5"):
        compare(runs, synthetic(GRID, checkpoints=3, zero=False))
    other = Runs(runs.to_pandas().assign(metric="best@4"))
    with pytest.raises(DataError, match=r"no metric 'avg@4'.*there are: best@4"):
        compare(runs, other)
    with pytest.raises(DataError, match="evaluation set 'aime'"):
        compare(runs, runs, eval_set="aime")
    table = synthetic([(32, 8)]).to_pandas()
    facts = {run_id: {"lr": seed} for run_id, seed in zip(table["run_id"], table["seed"], strict=True)}
    with pytest.raises(DataError, match=r"differ in lr; each recipe needs a source of its own"):
        compare(runs, Runs(table, facts))
    for compute in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="expected a number"):
            compare(runs, runs, compute=compute)
    with pytest.raises(InputError, match="draws: found -1"):
        compare(runs, runs, draws=-1)


def test_the_same_runs_twice_do_not_differ(synthetic: Make) -> None:
    runs = synthetic(GRID, noise=0.01)
    found = compare(runs, runs, draws=30)
    for name in ("A", "B", "end", "predicted"):
        assert found.mean.rows[name].difference.value == 0
        assert found.mean.rows[name].difference.interval is None
    assert verdict(found)["ceiling"] == "neither recipe has the higher ceiling, since both are equal"
    assert verdict(found)["speed"] == "neither recipe is faster, since both are equal"


def test_flat_curves_are_not_determined(synthetic: Make) -> None:
    flat = [synthetic(GRID, lambda _b, _n, c: 0 * c + 0.5, noise=0.0, rng=i) for i in range(2)]
    found = compare(*flat, compute=1e5, draws=20)
    assert found.mean.rows["A"].difference.status == "not_identified"
    json.dumps(found.to_dict(), allow_nan=False)


@pytest.mark.nightly
@pytest.mark.slow
def test_two_learning_rates_of_the_simulator() -> None:
    """What 40 seeds find is the truth; comparisons of 4 seeds each hold it, and name the faster one."""

    def recipe(lr: float, seeds: list[int]) -> Runs:
        return isolaw.sweep(
            {
                "sweep": {"compute": 200_000, "seeds": seeds},
                "grid": {"rollouts_per_problem": [16]},
                "recipe": {"lr": lr},
                "problems": {"n_train": 500, "n_validation": 300},
                "evaluation": {"points": 40, "metrics": ["avg@4"]},
                "executor": {"kind": "inline"},
            }
        )

    runs = [recipe(lr, list(range(40))) for lr in (0.01, 0.04)]
    whole = compare(*runs, names=("slow", "fast"), draws=100)
    assert verdict(whole)["speed"].startswith("fast is faster")
    held = dict.fromkeys(("A", "C_mid", "end"), 0)
    faster = 0
    for i in range(10):
        part = [
            r.select(r.points.loc[r.points["seed"].isin(range(4 * i, 4 * i + 4)), "run_id"]) for r in runs
        ]
        found = compare(*part, names=("slow", "fast"), draws=100)
        faster += verdict(found)["speed"].startswith("fast is faster")
        for name in held:
            truth = whole.mean.rows[name].difference.value
            low, high = found.mean.rows[name].difference.interval or (0, 0)
            assert truth is not None
            assert low is not None
            assert high is not None
            held[name] += low <= truth <= high
    assert all(count >= 8 for count in held.values()), held
    assert faster >= 8
