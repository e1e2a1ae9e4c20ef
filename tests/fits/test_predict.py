"""Predictions: never over budget, measured n only, and what the alternatives would lose."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import isolaw
from isolaw.errors import InputError
from isolaw.fits.frontier import TOLERANCE
from isolaw.fits.law import Law
from isolaw.runs import Runs

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

Make = Callable[..., Runs]
LEVELS = [8, 32, 128, 512]
NOISE = {"noise": 0.004, "between": 0.004}


def rewards(b: int, n: int, compute: Any) -> Any:
    """Larger n are better, later; B_p = 16 costs 0.02, B_p = 32 costs 0.002."""
    ceiling = 0.5 + 0.03 * math.log2(n / 8) - {16: 0.02, 32: 0.002}.get(b, 0.0)
    return ceiling - (ceiling - 0.3) * np.exp(-compute / (3e4 * (n / 8) ** 0.7))


@pytest.fixture(scope="module")
def laws(synthetic: Make) -> dict[str, Law]:
    """One law of each setting, and one that was refused."""
    with_size = {"attributes": {"n_train_problems": 2000}}
    grids: dict[str, Any] = {
        "fixed-bp": ([(32, n) for n in LEVELS], {**NOISE, **with_size}),
        "fixed-b": ([(1024 // n, n) for n in LEVELS], NOISE),
        "joint": ([(b, n) for b in (16, 32, 64) for n in LEVELS], NOISE),
    }
    out = {
        setting: isolaw.fit(synthetic(pairs, rewards, **options), setting=setting, bootstrap=30)
        for setting, (pairs, options) in grids.items()
    }
    flat = synthetic(
        [(32, n) for n in LEVELS], lambda b, n, c: rewards(32, 8, c) - 0.01 * math.log2(n), **NOISE
    )
    out["refused"] = isolaw.fit(flat, bootstrap=30)
    assert out["refused"].logistic is None
    return out


SETTINGS = ["fixed-bp", "fixed-b", "joint", "refused"]
budgets = st.floats(3.1, 9.5).map(lambda e: 10**e)


@given(st.sampled_from(SETTINGS), budgets, st.none() | st.integers(1024, 40_000))
def test_the_budget_is_kept(laws: dict[str, Law], setting: str, budget: float, cap: int | None) -> None:
    law = laws[setting]
    p = law.predict(budget, max_batch_rollouts=cap)
    a = p.allocation
    assert a.problems_per_batch * a.rollouts_per_problem * a.steps + p.unspent == int(budget) == p.compute
    assert 0 <= p.unspent < a.batch_rollouts
    assert a.steps == int(budget) // (a.problems_per_batch * a.rollouts_per_problem) >= 1
    assert a.rollouts_per_problem in LEVELS
    for other in [a, *(o.allocation for o in p.near_optimal)]:
        assert other.compute <= budget
        assert cap is None or other.batch_rollouts <= cap
        assert (other.problems_per_batch, other.rollouts_per_problem) in {
            (g["problems_per_batch"], g["rollouts_per_problem"]) for g in law.document["grid"]
        }
    if setting == "fixed-b":
        assert a.batch_rollouts == 1024
    if setting == "fixed-bp":
        assert a.problems_per_batch == 32
    json.dumps(p.to_dict(), allow_nan=False)


@given(st.sampled_from(SETTINGS[:3]), budgets)
def test_n_is_the_laws_rounded_to_a_measured_one(laws: dict[str, Law], setting: str, budget: float) -> None:
    law = laws[setting]
    assert law.logistic is not None
    x = int(budget) / 1024 if setting == "fixed-b" else math.log10(int(budget))
    log2_n = law.logistic([x])[:, 0]
    sizes = [g["problems_per_batch"] * g["rollouts_per_problem"] for g in law.document["grid"]]
    fits = sorted(
        {g["rollouts_per_problem"] for g, b in zip(law.document["grid"], sizes, strict=True) if b <= budget}
    )
    nearest = [min(fits, key=lambda n, own=own: abs(math.log2(n) - own)) for own in log2_n]
    p = law.predict(budget)
    assert p.allocation.rollouts_per_problem == nearest[0] == p.rollouts_per_problem.value
    if p.rollouts_per_problem.interval is not None:
        for end in p.rollouts_per_problem.interval:
            assert end is None or end in nearest


@given(budgets)
def test_joint_takes_the_smallest_batch_within_tolerance(laws: dict[str, Law], budget: float) -> None:
    law = laws["joint"]
    p = law.predict(budget)
    n = p.allocation.rollouts_per_problem
    at_end = {b: law.curves(b, n)(int(budget))[0, 0] for b in (16, 32, 64) if b * n <= budget}
    best = max(at_end.values())
    assert p.allocation.problems_per_batch == min(b for b, r in at_end.items() if r >= best - TOLERANCE)


def test_joint_finds_the_cheap_batch(laws: dict[str, Law]) -> None:
    """B_p = 32 is within 0.005 of 64; 16 is not."""
    assert laws["joint"].predict(1e6).allocation.problems_per_batch == 32


def test_fixed_b_trades_n_for_problems(laws: dict[str, Law]) -> None:
    seen = {laws["fixed-b"].predict(c).allocation for c in (5e4, 2e5, 9e5)}
    assert len({a.rollouts_per_problem for a in seen}) > 1
    assert all(a.problems_per_batch * a.rollouts_per_problem == 1024 for a in seen)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("budget", [3e4, 4e5, 9e5])
def test_regret_by_hand(laws: dict[str, Law], setting: str, budget: float) -> None:
    """Inside the measured range: mean loss over draws, and how often it is within tolerance."""
    law = laws[setting]
    pairs = [(g["problems_per_batch"], g["rollouts_per_problem"]) for g in law.document["grid"]]
    reward = np.array([law.curves(b, n)(budget)[:, 0] for b, n in pairs if b * n <= budget])
    loss = (reward.max(axis=0) - reward)[:, 1:]
    expected = {
        pair: (own.mean(), np.mean(own <= TOLERANCE))
        for pair, own in zip([p for p in pairs if p[0] * p[1] <= budget], loss, strict=True)
    }
    p = law.predict(budget)
    listed = {}
    for o in p.near_optimal:
        pair = (o.allocation.problems_per_batch, o.allocation.rollouts_per_problem)
        listed[pair] = (o.expected_regret, o.probability)
        assert listed[pair] == pytest.approx(expected[pair], abs=1e-9)
    chosen = (p.allocation.problems_per_batch, p.allocation.rollouts_per_problem)
    assert set(listed) == {pair for pair, (mean, _) in expected.items() if mean <= TOLERANCE} | {chosen}
    regrets = [o.expected_regret for o in p.near_optimal]
    assert regrets == sorted(regrets)
    assert min(regrets) >= 0


def test_the_reward_is_that_of_the_chosen_curve(laws: dict[str, Law]) -> None:
    law = laws["fixed-bp"]
    p = law.predict(4e5)
    own = law.curves(32, p.allocation.rollouts_per_problem)(4e5)[:, 0]
    assert p.reward.value == pytest.approx(own[0])
    assert p.reward.interval == pytest.approx(tuple(np.percentile(own[1:], [2.5, 97.5])))
    assert p.reward.value == pytest.approx(
        float(rewards(32, p.allocation.rollouts_per_problem, 4e5)), abs=0.02
    )


def flags(law: Law, budget: float, **options: Any) -> str:
    return "; ".join(law.predict(budget, **options).flags)


def test_flags(laws: dict[str, Law]) -> None:
    law = laws["fixed-bp"]
    within = [p for p in law.document["frontier"] if not p["censored"]]
    inside = within[len(within) // 2]
    assert law.predict(inside["x"]).flags == []
    assert law.predict(inside["x"]).rollouts_per_problem.status == "ok"
    assert "extrapolation: 9.00 times" in flags(law, 9.0e6) or "extrapolation: 9 times" in flags(law, 9.0e6)
    assert "far: more than 10 times" not in flags(law, 9e6)
    assert "far: more than 10 times what was measured" in flags(law, 1.1e7)
    assert law.predict(1.1e7).reward.status == "not_identified"
    assert "extrapolation: below the smallest" in flags(law, 1e4)
    assert "extrapolation" not in flags(law, 5e5)
    assert "grid edge: n = 512 is the largest measured" in flags(law, 1e8)
    assert law.predict(1e8).rollouts_per_problem.status == "lower_bound"
    interval = law.predict(9e6).rollouts_per_problem.interval
    assert interval is None or interval[1] is None
    assert "grid edge: n = 8 is the smallest measured" in flags(law, 2e4)
    assert law.predict(2e4).rollouts_per_problem.status == "upper_bound"
    assert "no law: n is the best measured curve" in flags(laws["refused"], 5e5)


def test_the_cap_is_flagged_where_it_binds(laws: dict[str, Law]) -> None:
    law = laws["fixed-bp"]
    free, capped = law.predict(1e8), law.predict(1e8, max_batch_rollouts=4096)
    assert (free.allocation.rollouts_per_problem, capped.allocation.rollouts_per_problem) == (512, 128)
    assert any(f.startswith("limited: the law asks for n = 512") for f in capped.flags)
    assert not any(f.startswith("limited") for f in law.predict(1e8, max_batch_rollouts=16384).flags)
    further = law.predict(5e6, max_batch_rollouts=4096).flags
    assert {"limited", "extrapolation"} <= {f.split(":")[0] for f in further}


def test_censoring_is_flagged(synthetic: Make) -> None:
    """Runs of equal length: at large budgets only the large n were measured."""
    runs = synthetic(
        [(32, n) for n in (8, 16, 32, 64, 128)], rewards, compute=lambda b, n: 300 * b * n, **NOISE
    )
    law = isolaw.fit(runs, bootstrap=15)
    alone = next(
        p for p in law.document["frontier"] if p["censored_by"] == ["a neighbouring n was not measured here"]
    )
    p = law.predict(alone["x"])
    if p.allocation.rollouts_per_problem not in (8, 128):
        assert any(f.startswith("censored") for f in p.flags)
    assert p.rollouts_per_problem.status != "ok"


def test_epochs(laws: dict[str, Law]) -> None:
    law = laws["fixed-bp"]
    assert law.document["epochs_seen"] == pytest.approx(32 * (1_000_000 // 256) / 2000)
    p = law.predict(5e5)
    assert p.epochs == pytest.approx(p.allocation.problems_per_batch * p.allocation.steps / 2000)
    assert not any(f.startswith("epochs") for f in p.flags)
    few = law.predict(5e5, n_train_problems=10)
    assert few.epochs == pytest.approx(p.epochs * 200)
    assert any("the runs saw" in f for f in few.flags)
    unknown = laws["joint"].predict(5e5)
    assert unknown.epochs is None
    assert unknown.to_dict()["epochs"]["status"] == "refused"
    assert any("do not say" in f for f in laws["joint"].predict(5e5, n_train_problems=10).flags)


def test_only_what_was_measured_at_the_budget_competes(synthetic: Make) -> None:
    """Inside the sweep's range, a curve is not continued: neither beyond its end nor before its start."""
    ranges = {8: (1e4, 2e5), 16: (1e4, 1e6), 32: (1e4, 1e6), 64: (4e4, 1e6), 128: (2e5, 1e6)}
    runs = synthetic(
        [(32, n) for n in ranges],
        lambda b, n, c: 0.5 - 0.2 * np.exp(-c / 2e5) + 1e-5 * n,
        start=lambda b, n: ranges[n][0],
        compute=lambda b, n: ranges[n][1],
        zero=False,
        noise=1e-4,
    )
    law = isolaw.fit(runs, records=None, bootstrap=15)
    for budget in (2e4, 1e5, 5e5):
        p = law.predict(budget)
        measured = {n for n, (low, high) in ranges.items() if low <= budget <= high}
        chosen = p.allocation.rollouts_per_problem
        assert {o.allocation.rollouts_per_problem for o in p.near_optimal} - {chosen} <= measured


def test_without_a_law_the_best_measured_curve_is_chosen(synthetic: Make) -> None:
    """n = 8 is best wherever it was measured with others; n = 64 stopped early, on a steep rise."""
    levels = [8, 16, 32, 64]

    def reward(_b: int, n: int, compute: Any) -> Any:
        if n == 64:
            return 0.2 + 0.6 * (1 - np.exp(-compute / 1e6))
        return 0.6 - 0.05 * math.log2(n / 8) - 0.3 * np.exp(-compute / 3e4)

    runs = synthetic(
        [(32, n) for n in levels], reward, compute=lambda b, n: 3e5 if n == 64 else 3e6, noise=0.003
    )
    law = isolaw.fit(runs, bootstrap=10)
    assert law.logistic is None
    p = law.predict(2.5e6)
    assert p.allocation.rollouts_per_problem == 8


@pytest.mark.parametrize("budget", [math.nan, math.inf, 0, 0.5, -1e6])
def test_no_budget(laws: dict[str, Law], budget: float) -> None:
    with pytest.raises(InputError, match="accepted: a positive number of rollouts"):
        laws["fixed-bp"].predict(budget)


def test_what_cannot_be_afforded(laws: dict[str, Law]) -> None:
    law = laws["fixed-bp"]
    with pytest.raises(InputError, match=r"a budget of 255 .* 256 rollouts"):
        law.predict(255)
    with pytest.raises(InputError, match=r"max_batch_rollouts = 255 .* 256 rollouts"):
        law.predict(1e6, max_batch_rollouts=255)
    with pytest.raises(InputError, match="n_train_problems 0"):
        law.predict(1e6, n_train_problems=0)
    assert law.predict(256).allocation.compute == 256


def test_the_shape_of_the_json(laws: dict[str, Law]) -> None:
    for law in laws.values():
        data = law.predict(4e5, n_train_problems=6000).to_dict()
        keys = {"compute", "rollouts_per_problem", "problems_per_batch", "steps", "unspent", "reward"}
        assert keys | {"near_optimal", "flags"} <= set(data)
        assert data["compute"] == 400_000
        for name in (keys | {"epochs"}) - {"compute"}:
            assert set(data[name]) == {"value", "interval", "status"}
        product = 1.0
        for name in ("rollouts_per_problem", "problems_per_batch", "steps"):
            product *= data[name]["value"]
        assert product + data["unspent"]["value"] == 400_000
        for other in data["near_optimal"]:
            assert set(other["reward"]) == {"value", "interval", "status"}
            assert 0 <= other["probability_within_0.005"] <= 1
        assert data["near_optimal"]
